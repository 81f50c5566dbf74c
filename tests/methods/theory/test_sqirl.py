"""SQIRL against the catalogue's two-step table, exact Q-value iteration by enumeration, and many sampled episodes.

The study of samples to solve, with runs that are scripted: what it counts, and where it stops.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from shuhari.batch import Batch
from shuhari.methods.theory.sqirl.horizons import Horizons
from shuhari.methods.theory.sqirl.stepwise import Stepwise, fit, read_episodes
from shuhari.models.categorical import CategoricalPolicy
from shuhari.models.tabular import Tabular
from shuhari.tasks.gym import Gym
from shuhari.tasks.worlds.finite_horizon import act_greedily, evaluate_policy, iterate_from_random
from shuhari.tasks.worlds.sticky_maze import A, StickyMaze
from shuhari.testing import context

BUFFER: Any = None


@pytest.mark.parametrize(("k", "best", "value"), [(1, 1, 0.6), (2, 0, 1.0)])
def test_one_step_of_iteration_tells_the_better_door(k: int, best: int, value: float) -> None:
    """Door 0 leads to payments of 1 and 0, door 1 to .6 and .6: random play prefers door 1, the best play door 0."""
    state = torch.tensor([[0, 1], [0, 1], [0, 2], [0, 2]])
    action = torch.tensor([[0, 0], [0, 1], [1, 0], [1, 1]])
    reward = torch.tensor([[0.0, 1.0], [0.0, 0.0], [0.0, 0.6], [0.0, 0.6]], dtype=torch.double)
    q = fit(state, action, reward, 3, 2, k)
    assert int(q[0].argmax()) == best and float(q[0].max()) == pytest.approx(value)


def episodes(world: StickyMaze, actions: np.ndarray, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """What the maze does with actions [E, T]."""
    world.reset(seed=seed)
    states, rewards = [], []
    for row in actions.tolist():
        seen, here, paid = world.reset()[0], [], []
        for a in row:
            here.append(seen)
            seen, r, *_ = world.step(a)
            paid.append(r)
        states.append(here)
        rewards.append(paid)
    return torch.tensor(states), torch.from_numpy(actions), torch.tensor(rewards, dtype=torch.double)


@pytest.mark.parametrize("k", [1, 2, 3])
def test_all_plays_of_a_deterministic_maze_are_its_q_value_iteration(k: int) -> None:
    T = 4
    world = StickyMaze(side=3, distance=2, horizon=T, sticky=0.0, walls=0.0)
    state, action, reward = episodes(world, np.array(list(product(range(A), repeat=T))))
    S = (T + 1) * world.places
    found = fit(state, action, reward, S, A, k).view(T + 1, -1, A)[:T].numpy()
    exact = iterate_from_random(world.p, world.r, T, k)
    seen = np.isfinite(found)
    assert seen.any((1, 2)).all()
    np.testing.assert_allclose(found[seen], exact[seen], atol=1e-12)


def test_many_episodes_of_a_sticky_maze_come_near_it() -> None:
    world = StickyMaze(side=3, distance=2, horizon=4, walls=0.0)
    action = np.random.default_rng(0).integers(A, size=(20_000, 4))
    state, taken, reward = episodes(world, action)
    for k in (1, 2):
        found = fit(state, taken, reward, 5 * world.places, A, k)[world.first].numpy()
        np.testing.assert_allclose(found, iterate_from_random(world.p, world.r, 4, k)[0, world.first], atol=0.03)


def test_the_table_of_a_maze_is_what_it_does() -> None:
    world = StickyMaze(side=4, distance=3, horizon=6, layout=3)
    assert np.allclose(world.p.sum(2), 1.0)
    state, action, reward = episodes(world, np.random.default_rng(1).integers(A, size=(3000, 6)))
    q = evaluate_policy(world.p, world.r, np.full((6, *world.r.shape), 1 / A))
    value = q[0, world.first].mean()
    assert float(reward.sum(1).mean()) == pytest.approx(value, abs=4 * np.sqrt(value / 3000))
    place = (state % world.places).numpy()
    pairs = list(zip(place[:, :-1].ravel(), action[:, :-1].ravel().tolist(), place[:, 1:].ravel(), strict=True))
    assert all(world.p[s, a, after] > 0 for s, a, after in pairs)


def test_iteration_to_the_horizon_is_the_best_play() -> None:
    """k = T are the optimal values: those of their own greedy policy, and below those of no other."""
    world = StickyMaze(side=3, distance=2, horizon=5)
    q = iterate_from_random(world.p, world.r, 5, 5)
    np.testing.assert_allclose(evaluate_policy(world.p, world.r, act_greedily(q)), q, atol=1e-12)
    for k in range(1, 5):
        own = evaluate_policy(world.p, world.r, act_greedily(iterate_from_random(world.p, world.r, 5, k)))
        assert (own <= q + 1e-12).all()
    with pytest.raises(ValueError, match="none was 9 moves"):
        StickyMaze(side=3, distance=9)


TASK = Gym("world/sticky_maze", {"side": 3, "distance": 2, "horizon": 2})


def draw(*plays: list[tuple[int, int, float]]) -> Batch:
    rows = [(s, a, r, e, True) for e, play in enumerate(plays) for s, a, r in play]
    rows += [(0, 0, 0.0, e, False) for e in range(len(plays))]
    state, action, reward, episode, mask = map(torch.tensor, zip(*rows, strict=True))
    return Batch({"context": state, "action": action, "reward": reward[:, None], "episode": episode,
                  "mask": mask[:, None], "id": torch.arange(len(rows))})  # fmt: skip


def test_a_pass_finds_step_after_step_and_the_next_has_more_episodes() -> None:
    policy = Tabular()
    policy.build(TASK)
    learner = Stepwise(BUFFER, m=2, horizon=2)
    learner.bind({"policy": policy})
    table, ctx = policy.module.logits, context(models={})
    learner.update(draw([(4, 1, 0.0), (50, 0, 1.0)]), ctx)
    assert not table.any()  # one of two episodes
    learner.update(draw([(4, 2, 0.0), (51, 0, 0.0)]), ctx)
    assert table.nonzero().tolist() == [[4, 1]]
    learner.update(draw([(4, 1, 0.0), (50, 0, 0.0)], [(4, 1, 0.0), (50, 3, 1.0)]), ctx)
    assert table.nonzero().tolist() == [[4, 1], [50, 3]]
    last = learner.update(draw([(4, 1, 0.0), (50, 3, 1.0)]), ctx)  # of the finished policy: nothing is learnt
    assert not table.any() and last.info == {"stepwise/step": 2.0, "stepwise/episodes": 2.0}
    anew = learner.update(draw([(4, 0, 0.0), (50, 0, 0.0)]), ctx)
    assert anew.info == {"stepwise/step": 0.0, "stepwise/episodes": 4.0}
    with pytest.raises(ValueError, match="3 decisions: expected at most horizon = 2"):
        learner.update(draw([(4, 1, 0.0)] * 3), ctx)
    cut = draw([(4, 1, 0.0)], [(4, 0, 0.0), (50, 0, 0.0)])
    assert all(x.shape == (1, 2) for x in read_episodes(cut, 2))
    other = CategoricalPolicy((4,))
    other.build(TASK)
    with pytest.raises(TypeError, match="expected a tabular one"):
        learner.bind({"policy": other})


def test_the_metric_is_the_exact_share_of_the_best_value() -> None:
    from shuhari.methods.theory.sqirl.table_value import TableValue

    table, T = TASK.table, 2
    best = iterate_from_random(table.p, table.r, T, T)
    by_chance = iterate_from_random(table.p, table.r, T, 1)[0, table.first].mean() / best[0, table.first].max()
    for sure, share in ((99.0, 1.0), (0.0, by_chance)):
        logits = sure * torch.from_numpy(act_greedily(best)).view(-1, A)
        policy = SimpleNamespace(decide=lambda s, logits=logits: {"logits": logits[s]})
        found = TableValue()(context(models={"policy": policy}, task=TASK))
        assert found == {"share": pytest.approx(share), "states": 3 * 45}
    with pytest.raises(TypeError, match="tells no table"):
        TableValue()(context(models={}, task=Gym("CartPole-v1")))


SHARES = {  # run -> what it reports, every 10 steps
    "sqirl-0-0": [0.1, 0.95, 0.2], "sqirl-1-0": [0.3, 0.3, 0.95], "ppo-0-0": [0.95],
    "sqirl-0-1": [0.1, 0.2, 0.3], "sqirl-1-1": [0.0, 0.0, 0.95], "ppo-0-1": [0.1, 0.2, 0.95],
    "sqirl-0-2": [0.95], "sqirl-1-2": [0.0, 0.0], "ppo-0-2": [0.2, 0.2],
}  # fmt: skip


class Scripted:
    seed = 0

    def __init__(self) -> None:
        self.asked: dict[str, Mapping[str, Any]] = {}
        self.went: dict[str, list[dict[str, float]]] = {}

    def train(self, name: str, settings: Mapping[str, Any]) -> Iterator[dict[str, float]]:
        self.asked[name] = settings
        return self.go(name)

    def go(self, name: str) -> Iterator[dict[str, float]]:
        for i, share in enumerate(SHARES[name]):
            size = float(100 + 50 * int(name[-1]))
            row = {"evaluate/table.share": share, "evaluate/table.states": size, "spent/env_steps": 10.0 * (i + 1)}
            self.went.setdefault(name, []).append(row)
            yield row

    def reports(self, name: str) -> list[dict[str, float]]:
        return self.went.get(name, [])


def test_it_counts_the_quickest_run_of_each_arm_and_ranks_them() -> None:
    runs: Any = Scripted()
    contexts = {"task.kwargs.side": (3, 4, 5), "task.kwargs.distance": (2, 1, 3)}
    study = Horizons(contexts, {"sqirl": ({"k": 1}, {"k": 2}), "ppo": ({},)}, known=("task.kwargs.distance",))
    rows = [r for r in study(runs) if "study/size" in r]
    assert [round(10 ** r["study/sqirl"]) for r in rows] == [20, 30, 10]
    assert [round(10 ** r["study/ppo"]) for r in rows] == [10, 30, 20]  # of what is not solved all that was spent
    assert [round(10 ** r["study/size"]) for r in rows] == [100, 150, 200]
    assert "study/spearman" not in rows[1]
    # ranks (2, 3, 1) and (1, 3, 2): 1 - 6 * 2 / 24 = 0.5; of (1, 2, 3) and (1, 3, 2) the same
    assert rows[2]["study/spearman"] == pytest.approx(0.5) and rows[2]["study/spearman_size"] == pytest.approx(0.5)
    # of (2, 1, 3) and (1, 3, 2): 1 - 6 * 6 / 24 = -0.5
    assert rows[2]["study/spearman_distance"] == pytest.approx(-0.5)
    assert rows[2]["study/unsolved"] == pytest.approx(1 / 3)
    assert len(runs.went["sqirl-0-0"]) == 2  # it stopped there
    asked = runs.asked["sqirl-1-2"]
    assert asked["k"] == 2 and asked["task.kwargs.side"] == 5 and asked["seed"] == asked["task.kwargs.layout"]
    with pytest.raises(ValueError, match="known is 'side': expected one of the contexts"):
        Horizons({"task.kwargs.side": (3, 4)}, {"x": (), "y": ()}, known=("side",))
    with pytest.raises(ValueError, match="expected as many values of each, and two arms"):
        Horizons({"a": (1,), "b": (1, 2)}, {"x": (), "y": ()})
