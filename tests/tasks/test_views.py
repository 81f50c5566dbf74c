"""What a Gymnasium task shows: flat Dicts, masks, wrappers, kept entries, stacked frames; what it refuses and how."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from shuhari.tasks.gym import Gym
from shuhari.tasks.snapshots import Recorder, restore, snapshot
from shuhari.tasks.views import View

NESTED = spaces.Dict(
    {
        "place": spaces.Discrete(4, start=2),
        "inner": spaces.Dict({"bits": spaces.MultiBinary(2), "pair": spaces.MultiDiscrete([2, 3])}),
    }
)


class Masked(gymnasium.Env[Any, Any]):
    """Counts to four; the action that repeats the last is forbidden, and raises. At the end nothing is allowed."""

    action_space = spaces.Discrete(3, start=1)
    observation_space = spaces.Box(0, 9, (1,), np.float32)

    def __init__(self, empty: bool = False) -> None:
        self.empty = empty

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t, self.last = 0, int(self.np_random.integers(3))
        return self._seen()

    def step(self, action: Any) -> Any:
        if action - 1 == self.last:
            raise ValueError("a forbidden action")
        self.t, self.last = self.t + 1, int(action) - 1
        seen, info = self._seen()
        return seen, float(self.last), self.t == 4, False, info

    def _seen(self) -> Any:
        allowed = np.arange(3) != self.last
        if self.t == 4 or (self.empty and self.t == 2):
            allowed[:] = False
        return np.array([self.t], np.float32), {"action_mask": allowed}


class Nested(gymnasium.Env[Any, Any]):
    observation_space, action_space = NESTED, spaces.MultiBinary(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        return self._seen(), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        return self._seen(), float(np.sum(action)), False, self.t == 3, {}

    def _seen(self) -> Any:
        return {"place": 2 + self.t, "inner": {"bits": np.array([1, 0], np.int8), "pair": np.array([1, self.t % 3])}}


@pytest.fixture(autouse=True)
def ours() -> Iterator[None]:
    made = {"Masked-v0": Masked, "Nested-v0": Nested}
    for name, entry in made.items():
        gymnasium.register(name, entry_point=entry)
    yield
    for name in made:
        del gymnasium.registry[name]


def test_a_nested_dict_is_flat_and_its_parts_keep_their_numbers() -> None:
    task = Gym("Nested-v0")
    seen, does = task.spaces()
    assert dict(seen) == {
        "inner/bits": spaces.MultiBinary(2),
        "inner/pair": spaces.MultiDiscrete([2, 3]),
        "place": NESTED["place"],
    }
    assert does == spaces.MultiBinary(2)
    episode, problem = task.environment(task.problems("train")[0]), task.problems("train")[0]
    first = episode.reset(problem)
    assert first["place"] == 2 and first["inner/bits"].tolist() == [1, 0] and first["inner/pair"].dtype == np.int64
    second, reward, status = episode.step(np.array([1, 1]))
    assert (second["place"], second["inner/pair"].tolist(), reward, status) == (3, [1, 1], {"task": 2.0}, None)
    with pytest.raises(ValueError, match="the action is \\[2, 0\\]"):
        episode.step(np.array([2, 0]))
    kept, other = episode.snapshot(), task.environment(problem)
    assert other.restore(kept)["place"] == 3 and other.step(np.array([0, 0]))[0]["place"] == 4


def test_a_mask_from_info_is_part_of_the_observation() -> None:
    task = Gym("Masked-v0")
    assert task.copies and dict(task.spaces()[0]) == {
        "action_mask": spaces.MultiBinary(3),
        "observation": Masked.observation_space,
    }
    env = task.make()
    seen, _ = env.reset(seed=0)
    for _ in range(4):
        assert seen["action_mask"].dtype == np.int8 and seen["action_mask"].sum() == 2
        action = int(np.flatnonzero(seen["action_mask"])[0]) + 1
        seen, _, terminated, _, _ = env.step(action)
    assert terminated and seen["action_mask"].tolist() == [1, 1, 1]  # nothing is decided there
    assert Gym("Masked-v0", masks=False).spaces()[0] == Masked.observation_space


def test_a_mask_that_forbids_everything_is_an_error_while_the_episode_goes_on() -> None:
    task = Gym("Masked-v0", kwargs={"empty": True})
    env = View(gymnasium.make("Masked-v0", empty=True), in_info=True)
    seen, _ = env.reset(seed=0)
    seen = env.step(int(np.flatnonzero(seen["action_mask"])[0]) + 1)[0]
    with pytest.raises(ValueError, match="action_mask allows no action"):
        env.step(int(np.flatnonzero(seen["action_mask"])[0]) + 1)
    with pytest.raises(ValueError, match="action_mask allows no action"):
        task.make()


def test_entries_are_kept_and_frames_stacked() -> None:
    bare = gymnasium.make("CartPole-v1")
    task = Gym("CartPole-v1", keep=(2, 0), stack=3)
    assert task.spaces()[0].shape == (3, 2) and task.spaces()[0].low[0, 1] == bare.observation_space.low[0]
    assert not task.copies and isinstance(task.make(), Recorder)  # frames stand in a queue
    env, frames = task.make(), [bare.reset(seed=5)[0]]
    seen = env.reset(seed=5)[0]
    np.testing.assert_array_equal(seen, np.stack([frames[0][[2, 0]]] * 3))
    for action in (0, 1, 1, 0):
        frames.append(bare.step(action)[0])
        seen = env.step(action)[0]
    np.testing.assert_array_equal(seen, np.stack([f[[2, 0]] for f in frames[-3:]]))
    other = task.make()
    restore(other, snapshot(env))
    np.testing.assert_array_equal(other.step(1)[0], env.step(1)[0])


class Shared(gymnasium.Env[Any, Any]):
    """Hands out its one array, and goes on to change it; it changes the action that it is given too."""

    observation_space: Any = spaces.Box(0, 9, (2,), np.float32)
    action_space: Any = spaces.Box(np.array([0.0, -1.0]), np.array([np.inf, 1.0]), dtype=np.float64)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.seen = np.zeros(2, np.float32)
        return self.seen, {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), action
        self.seen += 1
        reward = float(action[0])
        action += 100
        return self.seen, reward, False, False, {}


@pytest.fixture
def shared() -> Iterator[Any]:
    gymnasium.register("Shared-v0", entry_point=Shared)
    yield lambda **fields: Gym("Shared-v0", **fields)
    del gymnasium.registry["Shared-v0"]


def test_frames_are_those_of_their_time_also_where_the_environment_hands_out_its_own_array(shared: Any) -> None:
    env = shared(stack=3).make()
    env.reset(seed=0)
    for _ in range(3):
        seen = env.step(np.zeros(2))[0]
    assert seen[:, 0].tolist() == [1, 2, 3]


def test_an_episode_holds_a_box_within_its_bounds_in_its_own_number_type(shared: Any) -> None:
    task = shared()
    episode, action = task.environment(task.problems("train")[0]), np.array([-3, 8], np.float32)
    first = episode.reset(task.problems("train")[0])
    second, reward, _ = episode.step(action)
    assert reward == {"task": 0.0} and action.tolist() == [-3, 8]
    assert episode.step(np.array([5.0, 0.0]))[1] == {"task": 5.0}  # no bound on this side
    assert (first.tolist(), second.tolist()) == ([0, 0], [1, 1])
    env, other = Recorder(Shared()), Recorder(Shared())
    env.reset(seed=0)
    env.step(np.array([2.0, 0.5]))
    kept = snapshot(env)
    for _ in range(2):  # a snapshot is good twice
        restore(other, kept)
        assert other.actions[0].tolist() == [2.0, 0.5] and kept["replay"]["actions"].tolist() == [[2.0, 0.5]]
    with pytest.raises(ValueError, match=r"the action has shape \(1,\): expected \(2,\)"):
        episode.step(np.zeros(1))


def test_a_mask_in_the_observation_goes_before_that_of_info_and_masks_are_of_choices() -> None:
    class Both(gymnasium.ObservationWrapper[Any, Any, Any]):
        def __init__(self) -> None:
            super().__init__(Masked())
            parts = {"action_mask": spaces.MultiBinary(3), "t": Masked.observation_space}
            self.observation_space = spaces.Dict(parts)

        def observation(self, observation: Any) -> Any:
            return {"action_mask": np.array([0, 0, 1], np.int8), "t": observation}

    seen, info = View(Both(), in_info=True).reset(seed=0)
    assert seen["action_mask"].tolist() == [0, 0, 1] != info["action_mask"].tolist()
    boxed = Masked()
    boxed.action_space = spaces.Box(-1, 1, (2,))  # type: ignore[assignment]
    with pytest.raises(ValueError, match=r"its actions are Box.*, not choices; set task.masks = false"):
        View(boxed, in_info=True)
    both = Both()
    both.action_space = boxed.action_space
    with pytest.raises(ValueError, match=r"its actions are Box.*FilterObservation"):
        View(both, in_info=False)


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"keep": (0, 4)}, ValueError, r"keep = \[0, 4\]: expected different entries of 0..3"),
        ({"keep": (1, 1)}, ValueError, "different entries"),
        ({"stack": 0}, ValueError, "stack is 0"),
        ({"wrappers": ("gymnasium.wrappers.FlatenObservation",)}, LookupError, "did you mean.*FlattenObservation"),
        ({"wrappers": ("nowhere.py:W",)}, LookupError, "no file 'nowhere.py'"),
        ({"wrappers": ({"seconds": 1},)}, ValueError, "expected a path, or a table with use"),
        ({"wrappers": ({"use": "shuhari.tasks.latency.Latency", "second": 1},)}, ValueError, "argument 'second'"),
        ({"wrappers": ({"use": "shuhari.tasks.latency.Latency", "seconds": -1},)}, ValueError, "seconds is -1"),
    ],
)
def test_mistakes_in_what_is_seen_are_told(fields: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Gym("CartPole-v1", **fields)
    with pytest.raises(ValueError, match="keep"):
        Gym("Nested-v0", keep=(0,))
    with pytest.raises(ValueError, match="stack"):
        Gym("Nested-v0", stack=2)


def test_wrappers_by_dotted_path_and_by_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "import gymnasium\nclass Doubled(gymnasium.RewardWrapper):\n    def reward(self, r):\n        return 2 * r\n"
    )
    task = Gym("Nested-v0", wrappers=("gymnasium.wrappers.FlattenObservation", f"{file}:Doubled"))
    assert task.spaces()[0].shape == (4 + 2 + 2 + 3,) and task.copies
    episode, problem = task.environment(task.problems("train")[0]), task.problems("train")[0]
    episode.reset(problem)
    assert episode.step([1, 1])[1] == {"task": 4.0}


@pytest.mark.parametrize(
    ("path", "command"),
    [
        ("LunarLander-v3", r'pip install "shuhari\[box2d\]"'),
        ("ALE/Pong-v5", r'pip install "shuhari\[atari\]"'),
        ("PongNoFrameskip-v4", r'pip install "shuhari\[atari\]"'),
        ("MinAtar/Breakout-v1", r'pip install "shuhari\[minatar\]"'),
        ("ale_py:ALE/Pong-v5", r'pip install "shuhari\[atari\]"'),
        ("phys2d/CartPole-v1", r'pip install "gymnasium\[jax\]"'),
    ],
)
def test_what_is_not_installed_is_told_with_the_command_that_installs_it(path: str, command: str) -> None:
    package = {"LunarLander-v3": "Box2D", "ale_py:ALE/Pong-v5": "ale_py", "ALE/Pong-v5": "ale_py",
               "PongNoFrameskip-v4": "ale_py", "MinAtar/Breakout-v1": "minatar",
               "phys2d/CartPole-v1": "jax"}[path]  # fmt: skip
    if _there(package):
        pytest.skip(f"{package} is installed")
    with pytest.raises(ModuleNotFoundError, match=command):
        Gym(path)


def _there(package: str) -> bool:
    from importlib.util import find_spec

    return find_spec(package) is not None


def test_minigrid_is_read_through_its_own_wrapper() -> None:
    pytest.importorskip("minigrid")
    with pytest.raises(ValueError, match=r'MissionSpace at \'mission\'.*\["minigrid.wrappers.ImgObsWrapper"\]'):
        Gym("minigrid:MiniGrid-Empty-5x5-v0")
    task = Gym("minigrid:MiniGrid-Empty-5x5-v0", wrappers=("minigrid.wrappers.ImgObsWrapper",))
    assert task.spaces()[0].shape == (7, 7, 3)
    problem = task.problems("train")[0]
    episode = task.environment(problem)
    assert episode.reset(problem).dtype == np.uint8
    kept = episode.snapshot()
    other = task.environment(problem)
    np.testing.assert_array_equal(other.restore(kept), episode.last)
    for action in (2, 1, 2, 0):
        np.testing.assert_array_equal(other.step(action)[0], episode.step(action)[0])
