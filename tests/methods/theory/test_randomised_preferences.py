"""Randomised preference RL: the rule of disagreement in closed form, the logistic reward, and its limits."""

from __future__ import annotations

from itertools import count
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from shuhari.batch import Batch
from shuhari.config.build import build_stage
from shuhari.lab import demonstrations
from shuhari.learners.linear import plan
from shuhari.methods.theory.randomised_preferences.preference_rlsvi import (
    PreferenceRlsvi,
    draw_normal,
    find_disagreement,
    find_gram,
    fit_reward,
    read_features,
)
from shuhari.models.tabular import Tabular
from shuhari.tasks.gym import Gym
from shuhari.testing import context

BUFFER: Any = None
IDS = count()


def test_the_disagreement_of_a_pair_is_that_of_draws() -> None:
    """1.12838 for noise 1 and a difference of norm 1; and the mean of many pairs of draws from the posterior."""
    eye = torch.eye(3, dtype=torch.double)
    assert find_disagreement(eye[0], eye, 1.0) == pytest.approx(1.12838, abs=1e-5)
    g = torch.Generator().manual_seed(0)
    differences = torch.randn(5, 3, generator=g, dtype=torch.double)
    gram, difference = find_gram(differences, 0.5), torch.tensor([1.0, -2.0, 0.5], dtype=torch.double)
    draws = torch.stack([draw_normal(gram, z) for z in torch.randn(8000, 3, generator=g, dtype=torch.double)]) * 0.7
    torch.testing.assert_close(draws.T.cov(), 0.49 * torch.linalg.inv(gram), atol=0.02, rtol=0)
    sampled = float(((draws[::2] - draws[1::2]) @ difference).abs().mean())
    assert find_disagreement(difference, torch.linalg.inv(gram), 0.7) == pytest.approx(sampled, rel=0.05)


def test_the_reward_is_the_most_likely_one() -> None:
    """Against scipy's minimum; and with many answers it finds differences of the true reward."""
    rng = np.random.default_rng(1)
    true = np.array([0.5, -1.0, 0.2])
    x = rng.normal(size=(3000, 3))
    y = (rng.random(3000) < 1 / (1 + np.exp(-2.0 * x @ true))).astype(float)

    def lose(theta: np.ndarray) -> float:
        z = 2.0 * x[:40] @ theta
        return float(np.logaddexp(0, z).sum() - y[:40] @ z + 0.7 * theta @ theta / 2)

    few = fit_reward(torch.from_numpy(x[:40]), torch.from_numpy(y[:40]), 2.0, 0.7)
    np.testing.assert_allclose(few.numpy(), minimize(lose, np.zeros(3)).x, atol=1e-4)
    many = fit_reward(torch.from_numpy(x), torch.from_numpy(y), 2.0, 1.0)
    np.testing.assert_allclose(many.numpy(), true, atol=0.12)
    assert not fit_reward(torch.zeros(0, 3, dtype=torch.double), torch.zeros(0, dtype=torch.double), 1.0, 1.0).any()


def made(**settings: Any) -> tuple[PreferenceRlsvi, torch.Tensor]:
    task, policy = Gym("world/episodic", {"places": 3, "horizon": 2}), Tabular()
    policy.build(task)
    learner = PreferenceRlsvi(BUFFER, horizon=2, **settings)
    learner.bind({"policy": policy})
    return learner, policy.module.logits.detach()


def episodes(*walks: list[tuple[int, int, float]]) -> Batch:
    """Episodes of two steps (state, action, reward) that end at place 0."""
    rows = [(*step, e, True, 1.0) for e, walk in enumerate(walks) for step in [*walk]]
    out, at = [], 0
    for e, walk in enumerate(walks):
        out += [*rows[at : at + len(walk)], (3 * len(walk), 0, 0.0, e, False, 0.0)]
        at += len(walk)
    s, a, r, e, mask, cont = zip(*out, strict=True)
    child = [-1 if not m else i + 1 for i, m in enumerate(mask)]
    return Batch({
        "context": torch.tensor(s), "action": torch.tensor(a), "reward": torch.tensor(r)[:, None],
        "mask": torch.tensor(mask)[:, None], "child": torch.tensor(child), "cont": torch.tensor(cont)[:, None],
        "episode": torch.tensor(e), "id": torch.tensor([next(IDS) for _ in out]),
    })  # fmt: skip


FIRST, SECOND = [(0, 1, 0.0), (4, 1, 1.0)], [(0, 0, 0.25), (3, 0, 0.25)]


def test_features_and_returns_by_hand() -> None:
    batch = episodes(FIRST, SECOND)
    features, returns = read_features(batch.take(batch.decides), 3, 2, 2)
    assert features.tolist() == [[0, 1, 0, 1, 0, 0], [2, 0, 0, 0, 0, 0]] and returns.tolist() == [1.0, 0.5]
    cut = episodes(FIRST, SECOND[:1])
    assert read_features(cut.take(cut.decides), 3, 2, 2)[1].tolist() == [1.0]
    with pytest.raises(ValueError, match="2 decisions: expected at most horizon = 1"):
        read_features(batch.take(batch.decides), 3, 2, 1)


def test_it_asks_by_its_rule_and_the_passive_one_asks_each_time() -> None:
    ctx = context(models={})
    found = {}
    for ask in ("active", "always", "never"):
        learner, _ = made(ask=ask, threshold=0.8, reward_noise=0.5)
        for _ in range(6):
            for walk in (FIRST, SECOND):
                last = learner.update(episodes(walk), ctx)
        found[ask] = last.info["randomised/queries"]
        assert last.info["randomised/asked"] == found[ask] / 11
    # the difference (-2, 1, 0, 1, 0, 0), of square 6: 0.56419 sqrt(6 / (1 + 6 n)) is 1.38 at first, 0.52 after one
    assert found == {"active": 1.0, "always": 11.0, "never": 0.0}


def test_without_noise_it_is_least_squares_value_iteration_that_asks_nothing() -> None:
    """The known reward and no noise: the plan of LSVI without a bonus, of the same counts; and no query."""
    learner, table = made(known=True, reward_noise=0.0, noise=0.0, trust=10.0)
    batch = episodes(FIRST, SECOND, FIRST)
    learner.update(batch, context(models={}))
    mine = learner.state
    H, P, A = mine["visits"].shape
    phi = torch.eye(P * A, dtype=torch.double).expand(H, -1, -1)
    inverse = torch.diag_embed(1 / (mine["visits"].flatten(1) + 1.0))
    mean = mine["earned"] / mine["visits"].clamp(min=1)
    # LSVI shrinks the reward too: give it the sums whose shrunk means are the means here
    q = plan(phi, inverse, mean * (mine["visits"] + 1.0), mine["after"], 0.0)
    assert (table[: H * P].argmax(1) == q.flatten(0, 1).argmax(1)).all() and table[0].argmax() == 1
    quiet, _ = made(reward_noise=0.0, noise=0.0, threshold=0.0)
    for walk in (FIRST, SECOND):
        last = quiet.update(episodes(walk), context(models={}))
    assert last.info["randomised/queries"] == 0.0


def test_what_was_never_visited_is_not_trusted() -> None:
    """With noise of 100 on values, Q of unseen pairs is 0, and of seen ones it is not."""
    learner, _ = made(known=True, noise=100.0)
    learner.update(episodes(FIRST, SECOND), context(models={}))
    q = learner._plan(context(models={}))
    assert (q[learner.state["visits"] == 0] == 0).all() and (q[learner.state["visits"] > 0] != 0).all()


def test_its_sides_differ_in_the_rule() -> None:
    arms = demonstrations.read("theory/randomised_preferences").claim.arms
    found: Any = {name: build_stage(arm.stages[-1]).learners["main"] for name, arm in arms.items()}
    assert {name: x.ask for name, x in found.items()} == {"method": "active", "baseline": "always"}
