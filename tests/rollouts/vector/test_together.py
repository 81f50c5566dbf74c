"""Lanes that are stepped together against the same lanes stepped one by one: what is seen, earned and told, and
what the environments hold afterwards, are the same bits."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from shuhari import testing
from shuhari.kernel import registry
from shuhari.models.gaussian import GaussianPolicy
from shuhari.models.tabular import Tabular
from shuhari.rollouts.vector.lanes import Inline, allocate, find_extras
from shuhari.rollouts.vector.vector import VectorRollout
from shuhari.store.codec import dumps, loads
from shuhari.tasks.gym import Gym
from shuhari.tasks.lanes import Lanes, are_alike, at_least, at_most, look, power
from shuhari.tasks.snapshots import snapshot
from shuhari.tasks.worlds.merge import Merge
from shuhari.testing.compare import differences

COST, REGRET = {"cost": "reward"}, {"regret": "column"}
HAZARDS = {"noise": 0.2, "hazards": ((1.5, 1.5, 1.2), (5.0, 4.0, 2.0))}
WORLDS: dict[str, tuple[str, dict[str, Any], dict[str, str]]] = {  # settings with which what there is comes up
    "point": ("world/point", {"limit": 30}, {}),
    "point, fast": ("world/point", {"maze": "u", "speed": 0.9, "inertia": 0.0, "cost": 0.1}, {}),
    "point, hazards": ("world/point", HAZARDS, COST),
    "point, final": ("world/point", {**HAZARDS, "maze": "G.\n.S", "limit": 9}, {"cost": "final"}),
    "point, executed": ("world/point", {"limit": 12}, {"executed": "action"}),
    "insert": ("world/insert", {}, {}),
    "insert, wide": ("world/insert", {"half": 0.5, "stride": 0.4, "noise": 0.1}, {}),
    "insert, still": ("world/insert", {"noise": 0.0, "slide": 0.0, "limit": 7}, {}),
    "merge": ("world/merge", {"limit": 25}, {}),
    "merge, dense": ("world/merge", {"ramp": 60.0, "cars": 11}, {}),
    "cmdp": ("world/cmdp", {}, COST),
    "riverswim": ("world/riverswim", {"period": 5, "limit": 33}, REGRET),
    "key and door": ("world/key_door", {"cells": ("SaKDG",), "slip": 0.3, "limit": 12}, {"message": "column"}),
    "coverage": ("world/coverage", {"horizon": 9}, {}),
    "episodic": ("world/episodic", {}, REGRET),
    "cut": ("world/point", {"max_episode_steps": 8}, {}),
}


def play(task: Gym, N: int, steps: int, few: int, rng: Any, wild: float = 0.0) -> list[Any]:
    """All that comes of the same random actions; lanes that end begin anew a step later, some others at random, of
    which half at a snapshot. wild: the share of actions that are NaN or infinite."""
    space, does = task.spaces()
    actor = Inline(task.make, range(N))
    actor.few = few
    assert actor._alike
    seen, reward, out = allocate(space, N), np.full(N, np.nan), []
    extras = {n: np.full((N, *x.shape), x) for n, x in find_extras(task).items()}
    actor.start(list(range(5, 5 + N)), seen)
    start = {"env": actor.snapshots()[0], "last": seen[0].copy()}
    fresh: dict[int, Any] = {}
    for _ in range(steps):
        taken: Any
        if does.shape:
            taken = rng.uniform(-1.3, 1.3, (N, *does.shape)).astype(np.float32)
            taken = np.where(rng.random(taken.shape) < 0.2, np.sign(taken) * rng.integers(2, size=taken.shape), taken)
            taken = np.where(rng.random(taken.shape) < wild, np.nan, taken).astype(np.float32)
        else:
            taken = rng.integers(does.n, size=N).tolist()
        actor.post(slice(0, N), taken, fresh)
        over = actor.poll(slice(0, N), seen, reward, extras)
        fresh = {i: None for i, _ in over}
        fresh |= {int(i): start if rng.random() < 0.5 else None for i in np.flatnonzero(rng.random(N) < 0.05)}
        out.append([seen.copy(), reward.copy(), {n: x.copy() for n, x in extras.items()}, sorted(over)])
    out.append(actor.snapshots())
    return out


@pytest.mark.parametrize("case", WORLDS)
def test_together_is_one_by_one(case: str) -> None:
    path, kwargs, tells = WORLDS[case]
    task = Gym(path, kwargs, tells=tells)
    together, alone = (play(task, 12, 300, few, np.random.default_rng(3)) for few in (1, 13))
    assert dumps(together) == dumps(alone)  # bits, the types of numbers and the sign of zeros included
    assert any(how for *_, over in together[:-1] for _, how in over)  # episodes ended


@pytest.mark.parametrize("case", [c for c in WORLDS if c.startswith(("point", "insert"))])
def test_actions_that_are_no_numbers(case: str) -> None:
    path, kwargs, tells = WORLDS[case]
    task = Gym(path, kwargs, tells={k: v for k, v in tells.items() if v != "action"})
    found = []
    for few in (1, 13):
        try:
            found.append(dumps(play(task, 12, 100, few, np.random.default_rng(3), wild=0.05)))
        except ValueError as error:  # an observation that holds a NaN is refused either way
            found.append(str(error).encode())
    assert found[0] == found[1]


def test_cars_that_are_level() -> None:
    """With each other, and with the one that merges: whose speed counts, and who follows whom."""
    actions = np.random.default_rng(0).uniform(-1, 1, (24, 2)).astype(np.float32)
    alone, together = [Merge() for _ in actions], [Merge() for _ in actions]
    for i, w in (pair for worlds in (alone, together) for pair in enumerate(worlds)):
        w.places = np.array([0.0, 10, 10, 30, 50, 50, 90])
        w.speeds = np.array([9.0, 8, 12, 10, 7, 11, 9.5]) if i % 2 else np.full(7, 20.0)  # as fast as can be
        w.x, w.y, w.v = (0.0, 10.0, 50.0, 70.0)[i % 4], (-1.0, -4.0, -0.0)[i % 3], 20.0
    for _ in range(3):
        lanes = Lanes(together)
        *found, _ = lanes.act(actions)
        lanes.put([*range(24)])
        for i, w in enumerate(alone):
            assert dumps([np.array(x[i]) for x in found]) == dumps([np.array(x) for x in w.step(actions[i])[:4]])
            assert dumps(snapshot(w)) == dumps(snapshot(together[i]))


def test_arithmetic_is_pythons() -> None:
    x = np.array([-0.0, 0.0, 1.5, np.nan, np.inf, -np.inf, *np.random.default_rng(0).normal(0, 9, 2000)])
    for bound in (0.0, -0.0, 1.5):
        assert dumps(at_least(x, bound)) == dumps(np.array([max(v, bound) for v in x.tolist()]))
        assert dumps(at_most(x, bound)) == dumps(np.array([min(v, bound) for v in x.tolist()]))
    assert all(dumps(power(x, n)) == dumps(np.array([v**n for v in x.tolist()])) for n in (2, 3, 4))


def test_every_world_that_has_the_form_is_here() -> None:
    have = {n for n in registry.names("world") if "step_lanes" in vars(registry.find("world", n))}
    assert have == {path.removeprefix("world/") for path, *_ in WORLDS.values()}


@pytest.mark.parametrize("path", ["world/point", "world/cmdp"])
def test_rollouts_in_workers_rings_and_after_a_resume(path: str) -> None:
    """Two workers, of 24 lanes each and of 12 a slot of a ring, collect what one process does that steps one by one;
    and so does a rollout saved half-way. The table plays the ring: it rounds alike in batches of any size."""
    table = path == "world/cmdp"
    task: Any = Gym(path, tells=COST if table else {})
    model = Tabular() if table else GaussianPolicy((8,))
    torch.manual_seed(0)
    model.build(task)
    ctx = testing.context(models={"policy": model})
    rollouts = [VectorRollout(lanes=48, **more) for more in ({}, {}, {"workers": 2, "ring": 1 + table}, {})]
    for rollout in rollouts:
        rollout.open(task, 7)
    alone: Any = rollouts[0]._actor
    alone._alike = False
    *others, late = rollouts
    first = [rollout.collect(2000, ctx) for rollout in others]
    saved = [dumps(rollout.state) for rollout in others]
    assert saved[0] == saved[1] == saved[2]
    late.state = loads(saved[2])
    second = [rollout.collect(2000, ctx) for rollout in rollouts]
    for like, *rest in (first, second):
        for batch in rest:
            assert batch.names() == like.names()
            assert [n for n in like.names() if dumps(batch[n]) != dumps(like[n])] == []
    for rollout in rollouts:
        rollout.close()


class Pair(gymnasium.Env[Any, Any]):
    """Pays two rewards; `at` begins as a whole number and goes on in halves. Without a number at `broken`."""

    moves = ("at",)
    observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, broken: float = -1.0) -> None:
        self.at: float = 0
        self.broken = broken

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.at = int(self.np_random.integers(3))
        return np.float32([self.at]), {}

    def step(self, action: Any) -> Any:
        self.at += 0.5
        second = np.nan if self.at == self.broken else float(action)
        return np.float32([self.at]), np.array([0.1 * self.at, second]), self.at >= 4, False, {"twice": 2 * self.at}

    def step_lanes(self, lanes: Any, actions: Any) -> Any:
        lanes.at = lanes.at + 0.5
        second = np.where(lanes.at == self.broken, np.nan, actions)
        rewards = np.column_stack([0.1 * lanes.at, second])
        return look(lanes.at), rewards, lanes.at >= 4, np.zeros(len(second), bool), {"twice": 2 * lanes.at}


class Wrong(Pair):
    """Whose form moves less than its step, or tells something else."""

    moves = ("at",)

    def step_lanes(self, lanes: Any, actions: Any) -> Any:
        seen, rewards, over, cut, tells = super().step_lanes(lanes, actions)
        if self.broken == -2:
            lanes.at = lanes.at + 0.5
        return seen, rewards, over, cut, {"twice": 3 * lanes.at if self.broken == -3 else tells["twice"]}


def test_a_form_that_does_something_else_is_found() -> None:
    given: Any = {"rewards": ("near", "far"), "tells": {"twice": "column"}}
    testing.check_environment(Gym("Pair-v0", **given))
    testing.check_environment(Gym("world/point"))
    for broken in (-2, -3):
        with pytest.raises(testing.ConformanceError, match="Gym: steps lanes together otherwise"):
            testing.check_environment(Gym("Wrong-v0", {"broken": broken}, **given))


class Single(Pair):
    """A world in single precision, with draws of several kinds in a step, and a goal that a reset draws."""

    moves = ("at", "speed", "goal")

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.at, self.speed = self.np_random.random(2, dtype=np.float32)
        self.goal = int(self.np_random.integers(2, 5))
        return np.float32([self.at]), {}

    def step(self, action: Any) -> Any:
        self.speed = self.speed * self.speed + np.float32(0.3 * self.np_random.uniform(0, 1, 2)[1])
        self.at = self.at + self.speed * np.float32(self.np_random.integers(3))
        return np.float32([self.at]), float(self.at * self.speed), bool(self.at > self.goal), False, {}

    def step_lanes(self, lanes: Any, actions: Any) -> Any:
        lanes.speed = lanes.speed * lanes.speed + (0.3 * lanes.draw("uniform", 0, 1, 2)[:, 1]).astype(np.float32)
        lanes.at = lanes.at + lanes.speed * lanes.draw("integers", 3).astype(np.float32)
        paid = (lanes.at * lanes.speed).astype(float)
        return look(lanes.at), paid, lanes.at > lanes.goal, np.zeros(len(paid), bool), {}


class Bad(Single):
    """Of which `how` says what is wrong with its form."""

    moves: Any = ("at", "speed", "goal")

    def __init__(self, how: str = "") -> None:
        super().__init__()
        self.how = how

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        found = super().reset(seed=seed)
        self.pair = (1, 2)
        return found

    def step_lanes(self, lanes: Any, actions: Any) -> Any:
        seen, paid, over, cut, tells = super().step_lanes(lanes, actions)
        if self.how == "a subset":
            lanes.speed = lanes.speed + np.float32(len(actions) == 2)
        if self.how == "a number":
            lanes.at = 5
        seen = seen.tolist() if self.how == "a list" else seen
        over = bool(over.any()) if self.how == "one end" else over
        return seen, paid[0] if self.how == "one reward" else paid, over, cut, tells


def test_a_world_in_single_precision_that_is_put_back_one_by_one() -> None:
    N, task = 12, Gym("Single-v0")
    testing.check_environment(task)
    alone, *others = (play(task, N, 200, few, np.random.default_rng(3)) for few in (N + 1, 1, N, N - 2))
    assert [dumps(other) == dumps(alone) for other in others] == [True] * 3


@pytest.mark.parametrize(
    ("how", "moves", "said"),
    [
        ("", ("at", "speed"), "Bad: goal is not the same in all environments: expected in moves"),
        ("", (), "Bad: .* is not the same in all environments"),
        ("", ("at", "speed", "goal", "pair"), r"Bad: moves has 'pair', which is \(1, 2\)"),
        ("", "at", "Bad: moves is 'at': expected a tuple"),
        ("a number", ..., r"Bad: lanes.at was set to 5: expected an array \[.\]"),
        ("a list", ..., r"gym/Bad-v0: observations of its step_lanes are \[\[.*expected an array of shape \(4, 1\)"),
        ("one end", ..., r"gym/Bad-v0: terminated of its step_lanes are False, .* of shape \(4,\)"),
        ("one reward", ..., r"gym/Bad-v0: rewards of its step_lanes are .*, no array: .* of shape \(4,\)"),
        ("a subset", ..., "Gym: steps lanes together otherwise"),
    ],
)
def test_a_wrong_form_is_named(how: str, moves: Any, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    task = Gym("Bad-v0", {"how": how})
    if moves is not ...:
        monkeypatch.setattr(Bad, "moves", moves)
    with pytest.raises((ValueError, testing.ConformanceError), match=said):
        testing.check_environment(task)


def test_what_moves_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Pair, "moves", ())
    with pytest.raises(AttributeError, match="'at'") as found:
        Lanes([Pair(), Pair()]).act(np.zeros(2, int))
    assert found.value.__notes__ == ["Pair: expected one of its moves, ()"]


def test_an_error_between_leaves_the_environments_where_they_were() -> None:
    """Those that were stepped together have moved; the rollout knows that it is in the middle of a step."""
    task = Gym("Single-v0")
    actor = Inline(task.make, range(12))
    seen, reward = allocate(task.spaces()[0], 12), np.zeros(12)
    actor.start(range(12), seen)
    actor.post(slice(0, 12), [0] * 12, {})
    actor.poll(slice(0, 12), seen, reward, {})
    bare = [env.unwrapped for env in actor.envs.values()]
    actor.post(slice(0, 12), [0] * 12, {0: None, 1: {"env": None, "last": None}})
    with pytest.raises(TypeError) as found:
        actor.poll(slice(0, 12), seen, reward, {})
    assert "in lane 1, counted from 0" in found.value.__notes__ and actor.astray
    began = bare[0].at
    actor.snapshots()
    assert bare[0].at == began and [float(env.at) for env in bare[2:]] == seen[2:, 0].tolist()


class Quiet(Pair):
    """Does something else, and has the form of what it comes from."""

    def step(self, action: Any) -> Any:
        return super().step(0)


def test_an_environment_of_ones_own_that_pays_two_rewards() -> None:
    """Whose numbers begin as whole ones; in Gymnasium's own wrapper of a time limit."""
    task = Gym("Pair-v0", {"max_episode_steps": 5}, rewards=("near", "far"), tells={"twice": "column"})
    together, alone = (play(task, 12, 60, few, np.random.default_rng(3)) for few in (1, 13))
    assert dumps(together[:-1]) == dumps(alone[:-1])
    for mine, other in zip(together[-1], alone[-1], strict=True):
        assert not differences(mine, other)


def test_a_step_that_gives_no_number_names_the_step_and_the_environment() -> None:
    task = Gym("Pair-v0", rewards=("near", "far"))
    assert task.copies
    task.kwargs = {"broken": 2.5}  # from now on
    with pytest.raises(ValueError, match=r"gym/Pair-v0: its reward at step . of an episode is .*nan") as found:
        play(task, 12, 60, 1, np.random.default_rng(3))
    assert any("lanes 0 to 11" in note for note in found.value.__notes__)


def test_who_is_stepped_together() -> None:
    def alike(**task: Any) -> bool:
        made = Gym(**task)
        return are_alike([made.make() for _ in range(2)])

    assert alike(path="world/point") and alike(path="Pair-v0", rewards=("a", "b"))
    assert not alike(path="Quiet-v0", rewards=("a", "b"))  # its form is another class's
    assert not alike(path="CartPole-v1") and not alike(path="world/point", stack=2)
    assert not are_alike([Gym("world/point").make(), Gym("world/point", {"max_episode_steps": 3}).make()])


gymnasium.register("Bad-v0", Bad)
gymnasium.register("Pair-v0", Pair)
gymnasium.register("Quiet-v0", Quiet)
gymnasium.register("Single-v0", Single)
gymnasium.register("Wrong-v0", Wrong)
