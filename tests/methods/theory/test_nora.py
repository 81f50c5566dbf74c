"""NORA: the actor is a softmax of the summed critic, switches are few, and the critic is dynamic programming."""

from __future__ import annotations

import math
from itertools import count
from typing import Any

import numpy as np
import pytest
import torch

from shuhari.batch import Batch
from shuhari.config.build import build_stage
from shuhari.lab import demonstrations
from shuhari.methods.theory.nora.rare_actor import RareActor, fit_critic
from shuhari.models.tabular import Tabular
from shuhari.tasks.gym import Gym
from shuhari.tasks.worlds.episodic import Episodic
from shuhari.tasks.worlds.finite_horizon import evaluate_policy
from shuhari.testing import context

BUFFER: Any = None
IDS = count()


def made(horizon: int = 2, **settings: Any) -> tuple[RareActor, torch.Tensor]:
    task, policy = Gym("world/episodic", {"places": 3, "horizon": horizon}), Tabular()
    policy.build(task)
    learner = RareActor(BUFFER, horizon=horizon, **settings)
    learner.bind({"policy": policy})
    return learner, policy.module.logits.detach()


def walk(*steps: tuple[int, int, float], last: int) -> Batch:
    s, a, r = zip(*steps, (last, 0, 0.0), strict=True)
    n = len(s)
    return Batch({
        "context": torch.tensor(s), "action": torch.tensor(a), "reward": torch.tensor(r)[:, None],
        "mask": torch.tensor([True] * (n - 1) + [False])[:, None], "child": torch.tensor([*range(1, n), -1]),
        "cont": torch.tensor([1.0] * (n - 1) + [0.0])[:, None], "id": torch.tensor([next(IDS) for _ in s]),
    })  # fmt: skip


def known(world: Episodic, visits: float) -> dict[str, torch.Tensor]:
    H, (P, A) = world.horizon, world.r.shape
    n = torch.full((H, P, A), visits, dtype=torch.double)
    after = n[..., None] * torch.from_numpy(world.p)
    after[-1] = 0.0
    return {"visits": n, "earned": n * torch.from_numpy(world.r), "after": after}


def test_the_critic_is_dynamic_programming() -> None:
    """With many visits the best values, or those of the actor; with a bonus above them; of what is new the most."""
    world = Episodic(layout="random", places=4, horizon=5, instance=1)
    counts = known(world, 1e12)
    np.testing.assert_allclose(fit_critic(counts, 0.0, None).numpy(), world.q, atol=1e-9)
    policy = np.random.default_rng(0).dirichlet(np.ones(3), (5, 4))
    own = evaluate_policy(world.p, world.r, policy)
    np.testing.assert_allclose(fit_critic(counts, 0.0, torch.from_numpy(policy)).numpy(), own, atol=1e-9)
    assert (fit_critic(known(world, 9.0), 1.0, None).numpy() >= world.q - 1e-12).all()
    counts["visits"][2, 1, 0] = counts["earned"][2, 1, 0] = 0.0
    counts["after"][2, 1, 0] = 0.0
    assert fit_critic(counts, 1.0, None)[2, 1, 0] == 3.0 and fit_critic(counts, 0.0, None)[2, 1, 0] == 0.0


def test_steps_with_one_critic_are_a_softmax_of_its_sum() -> None:
    """From uniform, n steps of exp(rate f) are softmax(rate n f); a huge rate acts greedily on the critic."""
    learner, table = made(rate=0.3, growth=1e9, bonus=0.1)
    batch, ctx = walk((0, 1, 0.0), (4, 0, 0.5), last=6), context(models={})
    for n in range(1, 5):
        learner.update(batch, ctx)
        f = learner.state["critic"].flatten(0, 1)
        torch.testing.assert_close(table[:6].double().softmax(1), (0.3 * n * f).softmax(1), atol=1e-6, rtol=0)
    assert learner.state["switches"] == 1
    sharp, table = made(rate=1e6, bonus=0.1)
    sharp.update(batch, ctx)
    f = sharp.state["critic"].flatten(0, 1)
    differ = f[:, 0] != f[:, 1]
    assert differ.any() and (table[:6].argmax(1) == f.argmax(1))[differ].all()
    assert table[:6].softmax(1).amax(1)[differ].min() > 0.999


def test_switches_are_few_and_make_the_actor_uniform() -> None:
    """Doublings of a product of P A numbers that grow to T + 1 each: at most H P A log2(T + 1), and the first fit."""
    learner, table = made(rate=0.5)
    rng, ctx, T, last = np.random.default_rng(0), context(models={}), 200, 0
    for _ in range(T):
        a, b, middle, end = rng.integers(2), rng.integers(2), rng.integers(3), rng.integers(3)
        learner.update(walk((0, int(a), 0.0), (3 + int(middle), int(b), 1.0), last=6 + int(end)), ctx)
        if learner.state["switches"] > last:  # one step from the uniform policy
            last = learner.state["switches"]
            f = learner.state["critic"].flatten(0, 1)
            torch.testing.assert_close(table[:6].double().softmax(1), (0.5 * f).softmax(1), atol=1e-6, rtol=0)
    assert last <= 2 * 3 * 2 * math.log2(T + 1) + 1 and last < T / 3


def test_it_keeps_to_its_settings_and_sides() -> None:
    learner, _ = made(growth=1.0)
    for _ in range(3):
        last = learner.update(walk((0, 0, 0.0), (3, 0, 0.0), last=6), context(models={}))
    assert last.info["actor/switches"] == 3.0
    with pytest.raises(ValueError, match="9 states: expected a multiple of horizon"):
        RareActor(BUFFER, horizon=3).bind({"policy": _policy()})
    arms = demonstrations.read("theory/nora").claim.arms
    found: Any = {name: build_stage(arm.stages[-1]).learners["main"] for name, arm in arms.items()}
    assert {name: (x.bonus, x.target, x.resets, x.growth) for name, x in found.items()} == {
        "method": (1.0, "best", True, 2.0), "baseline": (1.0, "actor", False, 1.0),
    }  # fmt: skip


def _policy() -> Tabular:
    policy = Tabular()
    policy.build(Gym("world/episodic", {"places": 3, "horizon": 2}))
    return policy
