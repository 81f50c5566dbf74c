"""Gymnasium as a task: against hand-stepped environments; snapshots against an undisturbed copy."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from shuhari.config.overlay import RecipeError
from shuhari.config.settings import Settings
from shuhari.data import Problem, Status, code, is_tokens
from shuhari.tasks.gym import Gym
from shuhari.tasks.snapshots import Recorder, is_copyable, repeats, restore, snapshot

IDS = ["CartPole-v1", "Pendulum-v1", "MountainCar-v0"]


class Lag(gymnasium.Env[Any, Any]):
    """State in a container that no copy takes: the reward is the action before last."""

    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.past = [0, 0]
        return self.np_random.uniform(-1, 1, 2).astype(np.float32), {}

    def step(self, action: Any) -> Any:
        self.past.append(int(action))
        return np.full(2, self.np_random.random(), np.float32), self.past[-3], len(self.past) > 20, False, {}


class Odd(gymnasium.Env[Any, Any]):
    """Any spaces, and no end."""

    def __init__(self, seen: Any, done: Any) -> None:
        self.observation_space, self.action_space = seen, done

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros(self.observation_space.shape or (), self.observation_space.dtype), {}

    def step(self, action: Any) -> Any:
        return np.ones(self.observation_space.shape or (), self.observation_space.dtype), 0.0, False, False, {}


class Noisy(Lag):
    """Does not repeat itself."""

    count = 0

    def step(self, action: Any) -> Any:
        Noisy.count += 1
        return np.full(2, Noisy.count, np.float32), 0.0, False, False, {}


class Seedless(Lag):
    """Draws from its generator, to which it hands no seed."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.seen = self.np_random.uniform(size=2).astype(np.float32)
        return self.seen, {}

    def step(self, action: Any) -> Any:
        return self.seen, 0.0, False, False, {}


BOX, TWO = spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(2)


@pytest.fixture(autouse=True)
def ours() -> Iterator[None]:
    made = {
        "Lag-v0": (Lag, {}),
        "Noisy-v0": (Noisy, {}),
        "Seedless-v0": (Seedless, {}),
        "Odd-v0": (Odd, {"seen": BOX, "done": TWO}),
    }
    for name, (entry, kwargs) in made.items():
        gymnasium.register(name, entry_point=entry, kwargs=kwargs)
    yield
    for name in made:
        del gymnasium.registry[name]


def actions(task: Gym, n: int, seed: int = 0) -> list[Any]:
    space = task.spaces()[1]
    space.seed(seed)
    return [space.sample() for _ in range(n)]


def same(a: Any, b: Any) -> bool:
    return bool(np.array_equal(a[0], b[0])) and a[1:] == b[1:]


@pytest.mark.parametrize("name", [*IDS, "CliffWalking-v1", "Lag-v0"])
def test_snapshot_of_an_episode_equals_an_undisturbed_copy(name: str) -> None:
    task = Gym(name)
    assert task.copies is (name != "Lag-v0")
    problem, moves = task.problems("train")[0], actions(task, 400)
    episode, other = task.environment(problem), task.environment(problem)
    episode.reset(problem)
    other.reset(task.problems("train")[1])
    for move in moves[:4]:
        last = episode.step(move)[0]
    kept = episode.snapshot()
    compared = 0
    for _ in range(2):  # restoring leaves the snapshot as it was
        assert np.array_equal(other.restore(kept), last)
        undisturbed = task.environment(problem)
        undisturbed.reset(problem)
        for move in moves[:4]:
            undisturbed.step(move)
        for move in moves[4:]:
            mine = undisturbed.step(move)
            assert same(mine, other.step(move))
            compared += 1
            if mine[2]:
                break
    assert compared > 10
    assert same((last,), (task.environment(problem).reset(Problem("gym", "x", None, start=kept)),))


@pytest.mark.parametrize("name", [*IDS, "Lag-v0"])
def test_snapshot_of_a_bare_environment_covers_later_resets(name: str) -> None:
    """As a vectorised rollout uses it: resets without a seed go on alike, and the data survive tensors and JSON."""
    task = Gym(name, kwargs={"max_episode_steps": 15})
    env, other = task.make(), task.make()
    env.reset(seed=3)
    moves = actions(task, 60)
    for move in moves[:20]:
        *_, terminated, truncated, _ = env.step(move)
        if terminated or truncated:
            env.reset()
    restore(other, stored(snapshot(env)))
    assert restored_twice(other, task, env)
    for move in moves[20:]:
        mine, theirs = env.step(move), other.step(move)
        assert same(mine[:4], theirs[:4])
        if mine[2] or mine[3]:
            assert np.array_equal(env.reset()[0], other.reset()[0])


def stored(value: Any) -> Any:
    """Through what a checkpoint holds: tensors for arrays, JSON for the rest."""
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value.copy())
    if isinstance(value, dict):
        return {k: stored(v) for k, v in value.items()}
    if isinstance(value, tuple):
        return [stored(v) for v in value]
    return json.loads(json.dumps(value))


def restored_twice(other: Any, task: Gym, env: Any) -> bool:
    """A snapshot of what was restored restores as well."""
    third = task.make()
    restore(third, snapshot(other))
    move = actions(task, 1, seed=9)[0]
    probe = task.make()
    restore(probe, snapshot(env))
    return same(third.step(move)[:4], probe.step(move)[:4])


@pytest.mark.parametrize("name", IDS)
def test_steps_and_statuses_against_a_hand_stepped_environment(name: str) -> None:
    task = Gym(name)
    statuses = set()
    for i in range(6):
        problem = task.problems("train")[i]
        episode, bare = task.environment(problem), gymnasium.make(name)
        seed = code(f"gym/{name}", f"train/{i}", 0) % 2**30 * 2
        assert np.array_equal(episode.reset(problem), bare.reset(seed=seed)[0])
        for move in actions(task, 300, seed=i):
            seen, reward, status = episode.step(move)
            want, gain, terminated, truncated, _ = bare.step(move)
            assert np.array_equal(seen, want) and seen.dtype == np.float32
            assert reward == {"task": float(gain)}
            assert status is (Status.FINISHED if terminated else Status.TRUNCATED if truncated else None)
            if status is not None:
                statuses.add(status)
                break
        with pytest.raises(RuntimeError, match="has ended"):
            episode.step(move)
    assert statuses == {Status.FINISHED if name == "CartPole-v1" else Status.TRUNCATED}


def test_termination_at_the_limit_is_an_end() -> None:
    """Both at once: the episode is over, and its value is not to be bootstrapped."""
    task = Gym("CartPole-v1")
    problem = task.problems("train")[0]
    episode, steps = task.environment(problem), 0
    episode.reset(problem)
    while episode.step(0)[2] is None:
        steps += 1
    limited = Gym("CartPole-v1", kwargs={"max_episode_steps": steps + 1})
    episode = limited.environment(problem)
    episode.reset(problem)
    assert [episode.step(0)[2] for _ in range(steps + 1)] == [None] * steps + [Status.FINISHED]


def test_problems_seed_their_episodes() -> None:
    task = Gym("CartPole-v1", test_size=7)
    train, test = task.problems("train"), task.problems("test")
    assert test.size() == 7 and train.size() is None
    firsts = [task.environment(p).reset(p) for p in (train[0], train[1], test[0])]
    again = task.environment(train[0]).reset(train[0])
    assert np.array_equal(firsts[0], again) and len({f.tobytes() for f in firsts}) == 3
    moved = Gym("CartPole-v1", seed=1)
    assert not np.array_equal(moved.environment(train[0]).reset(train[0]), again)
    assert dict(task.grade(train[0], [])) == {}


def test_the_check_tells_copy_from_replay() -> None:
    assert is_copyable(lambda: gymnasium.make("CartPole-v1"))
    lag, noisy = (lambda name=name: gymnasium.make(name, disable_env_checker=True) for name in ("Lag-v0", "Noisy-v0"))
    assert not is_copyable(lag) and repeats(lag) and not repeats(noisy)
    assert isinstance(Gym("Lag-v0").make(), Recorder) and not isinstance(Gym("CartPole-v1").make(), Recorder)
    with pytest.warns(UserWarning, match="Noisy-v0 does not repeat itself"):
        assert Gym("Noisy-v0").copies is False
    with pytest.warns(UserWarning, match="Seedless-v0 does not repeat itself from its seed, so the same command gives"):
        assert Gym("Seedless-v0").copies is True
    normalised = lambda: gymnasium.wrappers.NormalizeObservation(gymnasium.make("CartPole-v1"))  # noqa: E731
    assert not is_copyable(normalised)  # its running mean is no plain attribute


class Carried(Lag):
    """Ends after as many steps as the episode before had, and one more: its seed alone does not tell."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.steps = 0, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.before, self.steps = self.steps, 0
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:
        self.steps += 1
        return np.zeros(2, np.float32), 0.0, self.steps > self.before, False, {}


def test_a_replay_that_ends_too_soon_goes_on_with_a_new_episode() -> None:
    """Its second episode may have two steps, in a fresh environment one: the third action has no place."""
    env, fresh = Recorder(Carried()), Recorder(Carried())
    env.reset(seed=1)
    env.step(0)
    env.reset()
    env.step(0)
    env.step(0)
    with pytest.warns(UserWarning, match="the replay ended after 1 of 2 steps: it does not repeat itself"):
        restore(fresh, snapshot(env))
    assert fresh.count == 2 and not fresh.actions and not fresh.step(0)[2]


def test_an_episode_of_minatar_follows_from_its_seed() -> None:
    pytest.importorskip("minatar")
    task = Gym("MinAtar/Breakout-v1")
    env, other = task.make(), task.make()
    env.unwrapped.game.last_action = 3  # of an episode before
    for seed in range(40):  # the first action is another's in a tenth of the episodes
        seen = [[e.reset(seed=seed)[0], *(e.step(1)[0] for _ in range(3))] for e in (env, other)]
        assert all(map(np.array_equal, *seen)), seed
        env.unwrapped.game.last_action = 3


def test_a_recorder_wants_a_first_seed() -> None:
    env = Gym("Lag-v0").make()
    with pytest.raises(ValueError, match="needs a seed"):
        env.reset()
    fresh = Gym("Lag-v0").make()
    restore(fresh, snapshot(env))  # nothing happened yet: nothing to replay
    with pytest.raises(ValueError, match="no Recorder"):
        restore(Gym("CartPole-v1").make(), snapshot(env))
    with pytest.raises(ValueError, match="expected 4, one a wrapper"):
        restore(Gym("CartPole-v1").make(), {"layers": (), "generator": ""})


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("CartPol-v1", "did you mean CartPole-v1"),
        ("CartPole-v9", "did you mean CartPole-v"),
        ("CartPole", "CartPole-v1"),
        ("Zzzzzz-v0", "pprint_registry"),
        ("Other/Pong-v5", "ale_py:ALE/Pong-v5"),
    ],
)
def test_unknown_ids(path: str, message: str) -> None:
    with pytest.raises(LookupError, match=message):
        Gym(path)


def test_missing_libraries_and_bad_settings() -> None:
    def lacking(**_: Any) -> Any:
        raise gymnasium.error.DependencyNotInstalled("MuJoCo is not installed")

    spec = gymnasium.registry["Hopper-v5"]
    kept, spec.entry_point = spec.entry_point, "gymnasium.envs.mujoco.nothing:Here"
    try:
        with pytest.raises(ModuleNotFoundError, match=r'pip install "shuhari\[control\]"'):
            Gym("Hopper-v5")
    finally:
        spec.entry_point = kept
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        Gym("no_such_module:Env-v0")
    with pytest.raises(ValueError, match="kwargs"):
        Gym("CartPole-v1", kwargs={"gravitas": 1})
    with pytest.raises(ValueError, match="an id is missing"):
        Gym()


@pytest.mark.parametrize(
    ("seen", "done", "message"),
    [
        (spaces.Tuple((TWO, TWO)), TWO, "is a Tuple: .*gymnasium.wrappers.FlattenObservation"),
        (spaces.Dict(a=BOX, b=spaces.Dict(c=spaces.Text(4))), TWO, "is a Text at 'b/c'.*wrappers.FilterObservation"),
        (spaces.Sequence(TWO), TWO, "is a Sequence: .*gymnasium.wrappers.TransformObservation"),
        (spaces.Graph(BOX, None), TWO, "is a Graph: .*gymnasium.wrappers.TransformObservation"),
        (BOX, spaces.MultiDiscrete([[2, 3]]), r"action space is a MultiDiscrete of shape \(1, 2\).*TransformAction"),
        (BOX, spaces.Tuple((TWO, TWO)), "action space is a Tuple.*gymnasium.wrappers.TransformAction"),
        (BOX, spaces.Box(0, 3, (2,), np.int64), "Box of int64.*gymnasium.wrappers.TransformAction"),
    ],
)
def test_other_spaces_name_a_wrapper(seen: Any, done: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        Gym("Odd-v0", kwargs={"seen": seen, "done": done})
    named = re.findall(r"gymnasium\.wrappers\.(\w+)", str(error.value))
    assert named and all(hasattr(gymnasium.wrappers, n) for n in named)


@pytest.mark.parametrize(
    ("space", "dtype"),
    [
        (spaces.Box(0, 9, (3,), np.int32), np.int64),
        (spaces.Box(0, 255, (2, 2, 3), np.uint8), np.uint8),
        (BOX, np.float32),
        (spaces.Box(-1, 1, (2,), np.float64), np.float32),
    ],
)
def test_observations_never_look_like_token_ids(space: Any, dtype: Any) -> None:
    task = Gym("Odd-v0", kwargs={"seen": space, "done": TWO})
    problem = task.problems("train")[0]
    first = task.environment(problem).reset(problem)
    assert isinstance(first, np.ndarray) and first.dtype == dtype and not is_tokens(first)


def test_actions_must_fit() -> None:
    for name, action, message in (("CartPole-v1", 2, "the action is 2"), ("Pendulum-v1", [0.0, 1.0], r"shape \(2,\)")):
        task = Gym(name)
        problem = task.problems("train")[0]
        episode = task.environment(problem)
        episode.reset(problem)
        with pytest.raises(ValueError, match=message):
            episode.step(action)


def test_held_out_episodes_are_the_same_for_every_seed_and_training_episodes_are_not() -> None:
    def first(seed: int, split: str) -> Any:
        task = Gym("CartPole-v1", seed=seed)
        problem = task.problems(split)[0]
        return task.environment(problem).reset(problem)

    np.testing.assert_array_equal(first(0, "test"), first(5, "test"))
    assert not np.array_equal(first(0, "train"), first(5, "train"))


def test_attributes_are_the_physics_of_every_environment_that_is_made() -> None:
    """Euler's first step from rest, by hand: the pole's angular acceleration falls with its length."""

    def speed(length: float) -> float:
        task = Gym("CartPole-v1", attributes={"length": length, "polemass_length": 0.1 * length})
        env = task.make()
        env.reset(seed=0)
        env.unwrapped.state = np.zeros(4)  # type: ignore[attr-defined]
        return float(env.step(1)[0][3])

    for length in (0.05, 0.5, 5.0):
        push = 10 / 1.1  # force over the whole mass
        assert speed(length) == pytest.approx(-0.02 * push / (length * (4 / 3 - 0.1 / 1.1)), rel=1e-5)
    assert Gym("CartPole-v1", attributes={"gravity": 1.6}).copies
    with pytest.raises(ValueError, match=r"attributes\.lenght.*'length'"):
        Gym("CartPole-v1", attributes={"lenght": 1.0})


def test_a_module_that_is_not_there_is_told_with_the_nearest_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "world.py").write_text("")
    with pytest.raises(ModuleNotFoundError, match=r"no module 'wrld' \(looked in .*\); did you mean 'world'") as told:
        Gym("wrld:Corridor-v0").spaces()
    assert "pip" not in str(told.value)


def test_a_class_of_a_file_is_a_task_and_other_forms_name_the_one_that_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mazes.py").write_text(
        "import gymnasium\n\n\nclass Maze(gymnasium.Env):\n    observation_space = gymnasium.spaces.Discrete(2)\n"
        "    action_space = gymnasium.spaces.Discrete(2)\n\n    def reset(self, *, seed=None, options=None):\n"
        "        return 0, {}\n\n    def step(self, action):\n        return 0, 0.0, True, False, {}\n"
    )
    for name in ("gym/mazes.py:Maze", "gym/world/mazes.py:Maze", "gym/world/mazes.Maze"):
        assert Settings().make_task({"name": name}).spaces()[1] == gymnasium.spaces.Discrete(2)
    with pytest.raises(RecipeError, match=r"did you mean 'file/rows\.csv'"):
        Settings().make_task({"name": "rows.csv"})
    for name, form in (("mazes.py:Maze", "gym/mazes.py:Maze"), ("mazes:Maze", "gym/world/mazes.Maze"),
                       ("mazes.Maze", "gym/world/mazes.Maze"), ("gym/mazes:Maze", "gym/world/mazes.Maze"),
                       ("gym/mazes.Maze", "gym/world/mazes.Maze")):  # fmt: skip
        with pytest.raises(RecipeError, match=rf"expected it as '?{re.escape(form)}'?$"):
            Settings().make_task({"name": name})


def test_a_file_finds_its_neighbours_and_is_called_as_it_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "the_neighbour.py").write_text("import gymnasium\n\n\nclass Base(gymnasium.Env):\n    pass\n")
    for name, module in (("fine", "the_neighbour"), ("lost", "the_nieghbour")):
        (tmp_path / f"{name}.py").write_text(f"from {module} import Base\n\n\nclass Mine(Base):\n    pass\n")
    with pytest.raises(RecipeError, match=r"gym/\S*fine\.py:Mine: its observation_space is"):  # it is loaded
        Settings().make_task({"name": f"gym/{tmp_path}/fine.py:Mine"})
    with pytest.raises(ModuleNotFoundError, match=r"^gym/\S*lost\.py:Mine: No module named 'the_nieghbour'") as told:
        Settings().make_task({"name": f"gym/{tmp_path}/lost.py:Mine"})
    assert "gym/world" not in str(told.value)


def test_a_package_of_the_extra_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    lacking = ModuleNotFoundError("No module named 'minigrid'", name="minigrid")
    monkeypatch.setattr(gymnasium, "make", Mock(side_effect=lacking))
    with pytest.raises(ModuleNotFoundError, match=r'pip install "shuhari\[control\]"'):
        Gym("minigrid:MiniGrid-Nowhere-v0")


def test_a_module_that_registers_by_a_call_is_told_apart_from_an_unknown_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "by_a_call.py").write_text("import gymnasium\ndef register_envs():\n    pass\n")
    (tmp_path / "by_import.py").write_text(
        "import gymnasium\ngymnasium.register('Own/Here-v0', entry_point='by_import:Here')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(LookupError, match=r"by_a_call was imported and registered nothing .*none, unless .*call"):
        Gym(path="by_a_call:Own/Thing-v0").spaces()
    with pytest.raises(LookupError, match="registered nothing by that name: it has Own/Here-v0"):
        Gym(path="by_import:Own/There-v0").spaces()
    gymnasium.registry.pop("Own/Here-v0")
