"""Regularised planning: its soft backup and its worst case by hand, by linear programming and at its limits."""

from __future__ import annotations

from itertools import count, pairwise
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import linprog

from shuhari.batch import Batch
from shuhari.learners.regularised import Regularised, expect_worst, plan
from shuhari.models.tabular import Tabular
from shuhari.tasks.gym import Gym
from shuhari.tasks.worlds.episodic import Episodic
from shuhari.testing import context

BUFFER: Any = None
IDS = count()


def known(world: Episodic, visits: float = 1e12) -> dict[str, torch.Tensor]:
    """Counts of so many visits of each place and action at each step, as often as the tables say."""
    H, (P, A) = world.horizon, world.r.shape
    n = torch.full((H, P, A), visits, dtype=torch.double)
    after = n[..., None] * torch.from_numpy(world.p)
    after[-1] = 0.0  # the episode has ended
    return {"visits": n, "earned": n * torch.from_numpy(world.r), "after": after}


def uniform(world: Episodic) -> torch.Tensor:
    shape = world.horizon, *world.r.shape
    return torch.zeros(shape, dtype=torch.double).log_softmax(-1)


def test_a_soft_backup_by_hand() -> None:
    """Reference (.75, .25), Q = temperature (0, ln 2): policy (.6, .4), value .22314 temperatures."""
    t = 0.4
    q = torch.tensor([0.0, t * np.log(2)], dtype=torch.double)
    counts = {"visits": torch.ones(1, 1, 2), "earned": q.view(1, 1, 2), "after": torch.zeros(1, 1, 2, 1)}
    counts = {name: x.double() for name, x in counts.items()}
    found = plan(counts, torch.tensor([[[0.75, 0.25]]], dtype=torch.double).log(), t, 0.0, 0.0)
    assert found.logp.exp().flatten().tolist() == pytest.approx([0.6, 0.4])
    assert float(found.value) == pytest.approx(0.22314 * t, abs=1e-5)


def test_its_limits_are_the_reference_and_the_best_values() -> None:
    world = Episodic(layout="random", places=4, horizon=5, instance=3)
    reference = torch.randn(5, 4, 3, generator=torch.Generator().manual_seed(0), dtype=torch.double).log_softmax(-1)
    soft, sharp = (plan(known(world), reference, t, 0.0, 0.0) for t in (1e6, 1e-5))
    torch.testing.assert_close(soft.logp, reference, atol=1e-4, rtol=0)
    np.testing.assert_allclose(sharp.q.numpy(), world.q, atol=1e-3)
    assert (sharp.logp.argmax(-1).numpy() == world.q.argmax(-1)).all()


def test_the_plan_maximises_the_return_less_the_kl() -> None:
    """Its value is that of its own policy, by forward recursion, and no perturbed policy has a larger one."""
    world, t = Episodic(layout="random", places=3, horizon=4, instance=1), 0.3
    reference = torch.randn(4, 3, 3, generator=torch.Generator().manual_seed(1), dtype=torch.double).log_softmax(-1)
    found = plan(known(world), reference, t, 0.0, 0.0)

    def evaluate(logp: torch.Tensor) -> float:
        there, total = np.eye(3)[0], 0.0
        for h in range(4):
            pi, kl = logp[h].exp().numpy(), (logp[h] - reference[h]).numpy()
            does = there[:, None] * pi
            total += float((does * (world.r - t * kl)).sum())
            there = np.einsum("sa,sax->x", does, world.p)
        return total

    best = evaluate(found.logp)
    assert best == pytest.approx(float(found.value[0, 0]), abs=1e-5)
    for seed in range(10):
        noise = 0.3 * torch.randn(4, 3, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.double)
        assert evaluate((found.logp + noise).log_softmax(-1)) < best


def test_the_worst_expectation_by_hand_and_by_linear_programming() -> None:
    """V = (0, 1, 2), P = (.2, .3, .5): .9 within .2, 1.3 without; and the linear programme of the definition."""
    p, v = torch.tensor([0.2, 0.3, 0.5], dtype=torch.double), torch.tensor([0.0, 1.0, 2.0], dtype=torch.double)
    assert float(expect_worst(p, v, 0.2)) == pytest.approx(0.9) and float(expect_worst(p, v, 0.0)) == pytest.approx(1.3)
    rng = np.random.default_rng(0)
    for radius in (0.05, 0.3, 0.7):
        p, v = rng.dirichlet(np.ones(5), 4), rng.uniform(0, 3, 5)
        found = expect_worst(torch.from_numpy(p), torch.from_numpy(v), radius)
        dual = [max(np.minimum(v, a) @ row - radius * (a - v.min()) for a in v) for row in p]  # of the paper
        np.testing.assert_allclose(found.numpy(), dual, atol=1e-12)
        for row, value in zip(p, found.tolist(), strict=True):
            cost = np.r_[v, np.zeros(5)]  # q, and u >= |q - p|
            rows = np.block([[np.eye(5), -np.eye(5)], [-np.eye(5), -np.eye(5)], [np.zeros(5), np.ones(5)]])
            lp = linprog(cost, rows, np.r_[row, -row, 2 * radius], np.r_[np.ones(5), np.zeros(5)][None], [1.0])
            assert value == pytest.approx(lp.fun, abs=1e-8)


def test_values_fall_with_the_radius_and_rise_with_the_bonus() -> None:
    world = Episodic(layout="random", places=4, horizon=5)
    counts = known(world, 10.0)
    by_radius = [plan(counts, uniform(world), 0.1, 0.0, radius).value[0] for radius in (0.0, 0.1, 0.3)]
    by_bonus = [plan(counts, uniform(world), 0.1, bonus, 0.0).value[0] for bonus in (-1.0, 0.0, 1.0)]
    assert all(bool((a > b).all()) for a, b in pairwise(by_radius))
    assert all(bool((a < b).all()) for a, b in pairwise(by_bonus))


def test_what_is_new_is_worth_the_bonus_or_the_most() -> None:
    world = Episodic(layout="random", places=4, horizon=5)
    counts = known(world, 10.0)
    for name in ("visits", "earned", "after"):
        counts[name][2, 1, 0] = 0.0
    found = [float(plan(counts, uniform(world), 0.1, 0.3, 0.0, most).q[2, 1, 0]) for most in (False, True)]
    assert found == pytest.approx([0.3, 3.0])


def test_a_robust_plan_does_not_wait() -> None:
    """`invest` of four places and ten steps: 3 steps for 7 of reward are worth it, but not within 0.2 a step."""
    world = Episodic(layout="invest", places=4, horizon=10)
    first = [int(plan(known(world), uniform(world), 1e-3, 0.0, radius).q[0, 0].argmax()) for radius in (0.0, 0.2)]
    assert first == [1, 0] and float(world.q[0, 0, 1]) == 7.0 and float(world.q[0, 0, 0]) == 6.5


def made(**settings: Any) -> tuple[Regularised, dict[str, Any], Any]:
    task = Gym("world/episodic", {"places": 3, "horizon": 2})
    models = {role: Tabular() for role in ("policy", "explorer")}
    for model in models.values():
        model.build(task)
    learner = Regularised(BUFFER, horizon=2, explorer="explorer", **settings)
    learner.bind(models)
    return learner, models, context(models={}, task=task)


def walk(*steps: tuple[int, int, float], last: int) -> Batch:
    rows = [*steps, (last, 0, 0.0)]
    s, a, r = zip(*rows, strict=True)
    n = len(rows)
    return Batch({
        "context": torch.tensor(s), "action": torch.tensor(a), "reward": torch.tensor(r)[:, None],
        "mask": torch.tensor([True] * (n - 1) + [False])[:, None], "child": torch.tensor([*range(1, n), -1]),
        "cont": torch.tensor([1.0] * (n - 1) + [0.0])[:, None], "id": torch.tensor([next(IDS) for _ in rows]),
    })  # fmt: skip


def test_an_update_counts_once_and_explores_the_largest_gap() -> None:
    learner, models, ctx = made(explore="gap", bonus=0.5)
    batch = walk((0, 1, 0.0), (4, 1, 1.0), last=8)
    learner.update(batch, ctx)
    learner.update(batch, ctx)  # drawn again
    assert learner.state["visits"].nonzero().tolist() == [[0, 0, 1], [1, 1, 1]]
    assert learner.state["visits"].sum() == 2 and learner.state["after"].sum() == 1
    policy, explorer = (models[role].module.logits.detach() for role in ("policy", "explorer"))
    differ = (policy != explorer).any(1).view(3, 3).any(1)
    assert differ.sum() <= 1 and not differ[2]
    with pytest.raises(ValueError, match="explore is 'gap' and explorer is ''"):
        Regularised(BUFFER, explore="gap")
    with pytest.raises(ValueError, match="9 states: expected a multiple of horizon"):
        Regularised(BUFFER, horizon=3).bind(models)
