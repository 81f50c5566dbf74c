"""Any Gymnasium environment as a task: `gym/CartPole-v1`.

An episode's seed is a hash of its problem, so episodes repeat. `views` defines the supported spaces and the
observations of models. A vectorised rollout takes environments from `make`, and saves them by `snapshot` and `restore`.
Left out: a score in [0, 1], which Gymnasium does not define; evaluation reads the return, `task`.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, TypeVar

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec

from shuhari.bounds import Count, Length, Seed, check
from shuhari.data import EMPTY, Array, Payload, Problem, Status, Step, code, nearest
from shuhari.engines.time_limit import guard
from shuhari.kernel.registry import find, locate, register, searching
from shuhari.models.spaces import MASK
from shuhari.ports.hooks import ability
from shuhari.tasks.atari import Unstuck
from shuhari.tasks.checked import Checked, check_has_spaces
from shuhari.tasks.running import RAW, keep_raw, warn_of_running
from shuhari.tasks.snapshots import (
    Env,
    Recorder,
    begin,
    is_copyable,
    is_seeded,
    repeats,
    restore,
    simulates,
    snapshot,
)  # fmt: skip
from shuhari.tasks.source import Generated, check_split
from shuhari.tasks.tells import EXECUTED, EXTRAS, Teller, find_layout
from shuhari.tasks.views import View, check_spaces, to_action, to_context, wrap

__all__ = ["Episode", "Gym", "restore", "snapshot"]
T = TypeVar("T")

# Gymnasium's family of environments, or a missing package -> its install command
_INSTALL = {
    "mujoco": 'pip install "shuhari[control]"',
    "minigrid": 'pip install "shuhari[control]"',
    "box2d": 'pip install "shuhari[box2d]"',
    "minatar": 'pip install "shuhari[minatar]"',
    "toy_text": 'pip install "gymnasium[toy-text]"',
    "classic_control": 'pip install "gymnasium[classic-control]"',
    "phys2d": 'pip install "gymnasium[jax]"',
    "tabular": 'pip install "gymnasium[jax]"',
    "ale_py": 'pip install "shuhari[atari]"',
    "cv2": "pip install opencv-python-headless",
    "PIL": "pip install pillow",
}
_FAMILIES = {"MinAtar": ("minatar.gym", "register_envs"), "ALE": ("ale_py", "")}  # of ids: module, what registers them
_ATARI = r"\w+NoFrameskip-v[04]"  # ids of the ALE that are older than its name
MAKING = 600.0  # seconds in which an environment must be made
_NO_NAME = r"[^\w:.-]"  # not allowed in an id, such as the slashes of `file.py:Class`
_NO_SCREEN = "without a screen MuJoCo renders under MUJOCO_GL=egl (a graphics card) or MUJOCO_GL=osmesa (none)"


@register("task", "gym")
@dataclass
class Gym:
    """A Gymnasium environment, named as `gym/<id>`; the reward is `task`.

    Uses of a name in `info` (setting `tells`): `reward`, a reward for [reward.weights] and evaluation; `final`, the
    same from an episode's last step only (a success); `column`, a column of the batch; `action`, the action that was
    executed instead of the decision, in the environment's format, or None.

    Raises LookupError for an unknown id or wrapper, ModuleNotFoundError with the install command for a missing library,
    ValueError for spaces that no model here supports.
    """

    path: str = ""
    """Gymnasium id (`CartPole-v1`, or `module:id` from another package), or `world/` and the name of a world here, a
    dotted path or `file.py:Class`."""
    kwargs: Mapping[str, Any] = EMPTY
    """Keyword arguments for `gymnasium.make`, such as `max_episode_steps`."""
    attributes: Mapping[str, Any] = EMPTY
    """Attributes set on the environment once it is made, such as its physics; set those derived from them too
    (CartPole's `polemass_length` with `length`)."""
    wrappers: tuple[str | Mapping[str, Any], ...] = ()
    """Wrappers by dotted path or `file.py:Class`, the innermost first; a table `{use = <path>, <setting> = ..}` gives
    one settings."""
    keep: tuple[Count, ...] = ()
    """Indices of the entries of a flat Box observation that are kept, in this order; empty keeps all."""
    stack: Length = 1
    """Number of latest observations seen at once, the oldest first; more than 1 shows motion (frame stacking)."""
    masks: bool = True
    """Add an `action_mask` in `info` to the observation, so that forbidden actions are never taken."""
    tells: Mapping[str, str] = EMPTY
    """Name in `info` -> its use: `reward`, `final` (a reward at an episode's last step only), `column`, or `action`
    (the action executed instead)."""
    rewards: tuple[str, ...] = ()
    """Names of the entries of a vector reward, whose sum is the reward `task`; empty for a scalar reward."""
    test_size: Length = 100
    """Number of episodes in the test split."""
    seed: Seed = 0
    """Seed of the training episodes; test episodes are the same under every seed, so that runs compare. In a recipe it
    is the run's seed unless set."""

    def __post_init__(self) -> None:
        check(self)
        if not self.path:
            raise ValueError("task gym: an id is missing: expected gym/<id>, for example gym/CartPole-v1")
        self.extras: dict[str, Array] = {}  # column -> fill value where nothing is reported
        self._mask_in_info = False  # whether `info` tells the actions that are allowed
        self._told = self.tells
        env = self._guard(self._make_env)
        try:
            warn_of_running(env, self.called)
            check_has_spaces(env, self.called)
            check_spaces(self.path, env)
            info = self._guard(lambda: env.reset(seed=0))[1]
            self._mask_in_info = self.masks and MASK in info
            viewed = self._wrap(env)
            self._spaces = viewed.observation_space, viewed.action_space
            says = bool(self._told or self.rewards)
            self.extras = find_layout(env, self._told, self.rewards, self.called) if says else {}
        finally:
            env.close()

    @property
    def stamps(self) -> tuple[str, ...]:
        return "reward/task", *self.extras, *(("replaced",) if EXECUTED in self.extras else ())

    @property
    def called(self) -> str:
        """The task's name as a user writes it: a class of a file has no `world/`."""
        return f"gym/{self.path.removeprefix('world/') if '.py:' in self.path else self.path}"

    @classmethod
    def preview(cls) -> dict[str, Any]:
        return {"name": "gym/<id>", "spaces": "of the environment; CartPole-v1: Box(4) -> Discrete(2)"}

    def problems(self, split: str) -> Generated:
        """Returns one problem per episode: endless for `train`, `test_size` of them for `test`, which alone have odd
        seeds."""
        count = self.test_size if check_split(split) == "test" else None
        return Generated(lambda i: Problem(f"gym/{self.path}", f"{split}/{i}", None), count)

    def grade(self, problem: Problem, steps: Sequence[Step]) -> Mapping[str, Any]:
        """Returns an empty mapping: the rewards of the steps are the only grade."""
        return EMPTY

    def environment(self, problem: Problem) -> Episode:
        return Episode(self)

    def spaces(self) -> tuple[spaces.Space[Any], spaces.Space[Any]]:
        """Returns (observation space, action space)."""
        return self._spaces

    def filmed(self) -> Gym:
        """Returns the same task with environments that render images. Raises ValueError for one without
        `render_mode`."""
        return replace(self, kwargs={**self.kwargs, "render_mode": "rgb_array"})

    def make(self) -> Env:
        """Returns a fresh environment for a vectorised rollout. If copying its attributes does not restore it, it comes
        in a `Recorder`, so that `snapshot` and `restore` replay it, or save its simulator. Seed its first reset."""
        env = self._make_bare()
        return env if self.copies else Recorder(env, self.simulates)

    @cached_property
    def copies(self) -> bool:
        """Whether a snapshot is a copy of attributes (else a replay): determined once, by trial."""
        with guard(lambda: f"{self.called}, as it is tried out,", MAKING):
            copies = is_copyable(self._make_bare)
            fine = (is_seeded if copies else repeats)(self._make_bare)
        if not fine:
            what = "the same command gives another run" if copies else "a resumed run differs from one never stopped"
            message = (
                f"does not repeat itself from its seed, so {what}: draw from self.np_random, and call super().reset"
            )
            warnings.warn(f"{self.called} {message}(seed=seed)", stacklevel=2)
        return copies

    @cached_property
    def simulates(self) -> bool:
        """Whether a snapshot has the state of MuJoCo's simulator: determined once, by trial."""
        with guard(lambda: f"{self.called}, as it is tried out,", MAKING):
            return not self.copies and simulates(self._make_bare)

    @cached_property
    def table(self) -> Any:
        """The environment's own table of transitions; None if it has none."""
        return ability(self._guard(self._make_env).unwrapped, "table")

    @cached_property
    def expert(self) -> Any:
        """The environment's own `expert(observation, generator)`, a scripted policy; None if it has none."""
        return ability(self._guard(self._make_env).unwrapped, "expert")

    @cached_property
    def compute_reward(self) -> Any:
        """The environment's own `compute_reward(achieved, desired, info)`, of goals; None where it has none, or
        wrappers of its user's may change what it pays."""
        return self._find_of_goals("compute_reward")

    @cached_property
    def compute_terminated(self) -> Any:
        """The environment's own `compute_terminated(achieved, desired, info)`, of goals; None where it has none."""
        return self._find_of_goals("compute_terminated")

    def _find_of_goals(self, name: Literal["compute_reward", "compute_terminated"]) -> Any:
        return None if self.wrappers else ability(self._guard(self._make_env).unwrapped, name)

    @cached_property
    def scene(self) -> Any:
        """The environment's own `Scene`; None if it has none, or models see other observations than its own."""
        seen = not (self.keep or self.wrappers or self.stack > 1)
        return ability(self._guard(self._make_env).unwrapped, "scene") if seen else None

    def _make_bare(self) -> Env:
        return self._wrap(self._guard(self._make_env))

    def _wrap(self, env: Env) -> Env:
        nested = isinstance(env.observation_space, spaces.Dict)
        env = View(env, self._mask_in_info) if nested or self._mask_in_info else env
        return Teller(env, self._told, self.rewards, self.extras) if self.extras else env

    def _make_env(self) -> Env:
        space, _, world = self.path.partition("/")
        made: Any = find("world", world) if space == "world" else None
        spec = self.path if made is None else EnvSpec(f"world/{re.sub(_NO_NAME, '-', world)}", made)
        family = "ALE" if re.fullmatch(_ATARI, self.path) else space
        if made is None and self.path not in gymnasium.registry and family in _FAMILIES:
            _register(*_FAMILIES[family])
        if made is None and ":" not in self.path and self.path not in gymnasium.registry:
            raise gymnasium.error.UnregisteredEnv
        module = self.path.partition(":")[0] if made is None and ":" in self.path else ""
        try:
            with searching(module) if module else nullcontext():
                env = gymnasium.make(spec, disable_env_checker=True, **self.kwargs)
                env = Unstuck(env) if family == "MinAtar" else env
        except TypeError as error:
            raise ValueError(f"{self.called}: kwargs {dict(self.kwargs)}: {error}") from None
        for name, value in self.attributes.items():
            if not hasattr(env.unwrapped, name):
                raise ValueError(f"{self.called}: attributes.{name}: {nearest(name, vars(env.unwrapped))}")
            setattr(env.unwrapped, name, value)
        env = wrap(env, self.wrappers, self.keep, self.stack)
        if not self.rewards and RAW not in self.tells and keep_raw(env):  # what a return would be without a wrapper
            self._told = {**self.tells, RAW: "reward"}
        return Checked(env, self.called, len(self.rewards))

    def _guard(self, make: Callable[[], T]) -> T:
        """Returns the result of `make`; an environment's own error is raised with advice."""
        try:
            with guard(lambda: f"{self.called}, as it is made,", MAKING):
                return make()
        except (gymnasium.error.DependencyNotInstalled, ModuleNotFoundError) as error:
            raise ModuleNotFoundError(f"{self.called}: {_explain_missing(self.path, error)}") from error
        except gymnasium.error.UnregisteredEnv:
            raise LookupError(f"{self.called}: {_explain_unknown(self.path)}") from None
        except LookupError as error:
            raise LookupError(f"{self.called}: {error}") from error
        except (gymnasium.error.Error, ImportError) as error:  # moved or withdrawn
            raise LookupError(f"{self.called}: {error}") from None
        except Exception as error:
            if type(error).__module__.partition(".")[0] in ("mujoco", "glfw", "OpenGL"):
                raise RuntimeError(f"{self.called}: it cannot render here ({error}): {_NO_SCREEN}") from error
            called = self.called
            if called not in f"{error}{vars(error).get('__notes__', '')}":
                error.add_note(f"raised as {called} was made")
            raise


class Episode:
    """One episode of a Gymnasium environment. Observations: float32 (Box), uint8 (images), int64, an int, or a flat
    mapping of these."""

    def __init__(self, task: Gym) -> None:
        self.task, self.env = task, task.make()
        self.observation, self.action = task.spaces()
        self.last: Payload = None
        self.ended = True
        self.facts: dict[str, Any] = {}

    def reset(self, problem: Problem) -> Payload:
        """Returns the first observation of the episode seeded by the problem's hash, or of its `start` snapshot."""
        if problem.start is not None:
            return self.restore(problem.start)
        held = problem.id.startswith("test/")
        seed = code(problem.task, problem.id, 0 if held else self.task.seed) % 2**30 * 2 + held
        self.last, self.ended = to_context(self.env.reset(seed=seed)[0], self.observation), False
        return self.last

    def step(self, action: Any) -> tuple[Payload, dict[str, float], Status | None]:
        """Returns (observation, {"task": reward, and other reported rewards}, the status if the episode ended). Raises
        RuntimeError after the end. Other reports are in `facts`: column -> array; EXECUTED only if it differs from the
        action sent."""
        if self.ended:
            raise RuntimeError(f"{self.task.called}: the episode has ended: reset before the next step")
        taken = to_action(action, self.action)
        observation, reward, terminated, truncated, info = self.env.step(taken)
        found = info[EXTRAS] if self.task.extras else EMPTY
        self.last, self.ended = to_context(observation, self.observation), bool(terminated or truncated)
        status = Status.FINISHED if terminated else Status.TRUNCATED if truncated else None
        self.facts = {n: x for n, x in found.items() if not n.startswith("reward/") and n != EXECUTED}
        if EXECUTED in found:
            replaced = not np.array_equal(found[EXECUTED], taken)
            self.facts |= {"replaced": float(replaced)} | ({EXECUTED: found[EXECUTED]} if replaced else {})
        named = {n.removeprefix("reward/"): float(x) for n, x in found.items() if n.startswith("reward/")}
        return self.last, {"task": float(reward), **named}, status

    def draw(self) -> Array | None:
        """Returns [H, W, 3] uint8 for a `filmed` task, None if the environment has no such mode. Raises
        ModuleNotFoundError, with the install command, for a missing library."""
        found: Any = self.task._guard(self.env.render)
        return np.asarray(found, np.uint8) if np.ndim(found) == 3 else None

    def snapshot(self) -> Payload:
        return {"env": snapshot(self.env), "last": self.last, "ended": self.ended}

    def restore(self, snapshot: Payload) -> Payload:
        """Returns to a snapshot; returns the observation there."""
        s: Any = snapshot
        self.last, self.ended = begin(self.env, s), bool(s["ended"])
        return self.last


def _register(name: str, call: str) -> None:
    """Import a package of environments, and call what registers its ids if the import alone does not. Raises
    ModuleNotFoundError if it is not installed."""
    module = import_module(name)
    if call:
        vars(module)[call]()


def _explain_unknown(path: str) -> str:
    dotted, name = path.replace(":", "."), path.rpartition(":")[2]
    if "." in dotted:
        with suppress(Exception):  # a module that does not exist, or fails
            if issubclass(locate("world", dotted), gymnasium.Env):
                return f"{dotted} is a class, and no id is registered: expected it as gym/world/{dotted}"
    near = get_close_matches(name, gymnasium.registry, 3, 0.5)
    module = path.rpartition(":")[0]
    if module in sys.modules:
        package = module.partition(".")[0]
        known = gymnasium.registry.items()
        own = [i for i, spec in known if re.split("[.:]", str(spec.entry_point))[0] == package]
        call = f"a call of its own; make it in a module of yours that imports {module}, and name that before the colon"
        has = f"it has {', '.join(sorted(own)[:8])}" if own else f"it has none, unless it registers them by {call}"
        return f"the module {module} was imported and registered nothing by that name: {has}"
    hint = f"did you mean {' or '.join(near)}?" if near else "gymnasium.pprint_registry() lists those there are"
    return f"Gymnasium knows no such id; {hint} (an id of another package is written module:id, as ale_py:ALE/Pong-v5)"


def _explain_missing(path: str, error: Exception) -> str:
    spec = gymnasium.registry.get(path)
    family = re.match(r"gymnasium\.envs\.(\w+)", str(spec.entry_point)) if spec is not None else None
    command = _INSTALL.get(family[1]) if family else None
    lost = re.search(r"No module named '(\w+)", str(error))  # Gymnasium raises it again, without its name
    name = lost[1] if lost else ""
    if command is None or name in ("cv2", "PIL"):
        hint = re.search(r"pip install [^`]+", str(error))
        command = _INSTALL.get(name) or (hint[0].strip() if hint else command)
    module = path.rpartition(":")[0]
    if command is None and name and name == module.partition(".")[0]:
        near = get_close_matches(name, [f.stem for f in Path.cwd().glob("*.py")], 1)
        return f"no module {name!r} (looked in {Path.cwd()})" + (f"; did you mean {near[0]!r}?" if near else "")
    return f"{command} (a library is missing: {error})" if command else str(error)
