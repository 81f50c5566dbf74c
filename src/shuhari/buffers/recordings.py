"""Sources of data sets: a policy that plays the task, files, and several data sets joined.

Each returns columns in episode order (`recording`). `minari` reads Minari data sets.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from shuhari.bounds import AtLeast0, Count, Length, PositiveShare, Share, check
from shuhari.buffers.data_files import HDF5, read_arrays, read_columns
from shuhari.buffers.layouts import FLAGS, LAYOUT, bootstrap_by_masks, list_gaps, settle_ends, split_episodes
from shuhari.buffers.recording import (
    RecordedEpisode,
    card_of,
    check_columns,
    columns_of,
    digest,
    examine,
    join_sets,
    select_episodes,
)
from shuhari.buffers.references import find_reference
from shuhari.data import Array, ContractError, Status, Step, code, nearest
from shuhari.kernel.registry import register
from shuhari.models.experts import Expert, draw_uniform, find_expert
from shuhari.ports import Recording, Task, ability
from shuhari.ports.declares import together
from shuhari.store import tensors
from shuhari.store.files import StoreError, Trail, replace_file, translate_errors
from shuhari.tasks.contract import explain_step

COLUMNS, CARD = "columns.safetensors", "card.json"


@register("recording", "played")
@dataclass
class Played:
    """A data set for offline RL made by a scripted policy that plays the task's problems of `train`.

    All rewards of the task are kept. If a problem has no environment, an episode is one decision at the prompt, graded
    by the task. Raises TypeError for a text task, ValueError for settings that do not fit its actions.
    """

    stamps = ("reward/*",)
    policy: str = "expert"
    """Policy that plays: `expert` (the task's own), `random` (uniform actions), or a function of (observation,
    generator) -> action, as a dotted path or `file.py:function`."""
    episodes: Length = 20
    """Number of episodes played, one for each problem."""
    epsilon: Share = 0.0
    """Share of the actions that are uniform instead of the policy's."""
    noise: AtLeast0 = 0.0
    """Standard deviation of normal noise on the actions, as a share of half the range of a bounded Box; results are
    clipped to the bounds."""
    max_steps: Length = 1000
    """Number of decisions after which an episode is cut."""
    first: Count = 1_000_000
    """Index of the first problem that is played; large, so that an endless task gives other episodes than online
    training."""

    def __post_init__(self) -> None:
        check(self)

    def read(self, task: Task, seed: int) -> dict[str, Tensor]:
        found = task.spaces()
        if found is None:
            raise TypeError(f"played: the task {type(task).__name__} has no spaces: it is one of text (see 'demos')")
        space: Any = found[1]
        if self.noise and not (hasattr(space, "is_bounded") and space.is_bounded()):
            raise ValueError(f"played: noise is {self.noise}: it is for a Box with bounds, and the actions are {space}")
        expert, source = find_expert(task, self.policy), task.problems("train")
        return columns_of(self._play(task, source[self.first + i], expert, seed) for i in range(self.episodes))

    def _play(self, task: Task, problem: Any, expert: Expert, seed: int) -> RecordedEpisode:
        rng = np.random.default_rng(code("played", seed, problem.id))
        env: Any = task.environment(problem)
        if env is None:
            return self._decide(task, problem, expert, rng)
        space: Any = task.spaces()[1]  # type: ignore[index]
        observed, actions, rewards, status = [env.reset(problem)], list[Any](), list[Mapping[str, Any]](), None
        while status is None and len(actions) < self.max_steps:
            action = self._act(space, expert, observed[-1], rng)
            given = env.step(action)
            if wrong := explain_step(given, text=False):
                raise ContractError(f"{type(env).__name__}.step {wrong} (problem {problem.id!r})")
            seen, reward, status = given
            observed.append(seen)
            actions.append(action)
            rewards.append(reward)
        names = dict.fromkeys(
            n
            for r in rewards
            for n in r
        )
        earned = {
            n: np.array([float(r.get(n, 0.0)) for r in rewards], np.float32)
            for n in names
        }
        return RecordedEpisode(_stack(observed), np.stack(actions), earned, status is Status.FINISHED)

    def _decide(self, task: Task, problem: Any, expert: Expert, rng: np.random.Generator) -> RecordedEpisode:
        space: Any = task.spaces()[1]  # type: ignore[index]
        action = self._act(space, expert, problem.prompt, rng)
        grades = task.grade(problem, [Step.of(problem.prompt, action)]) or {}
        earned = {k: np.array([v], np.float32) for k, v in grades.items() if isinstance(v, int | float)}
        return RecordedEpisode(_stack([problem.prompt] * 2), action[None], earned, True)

    def _act(self, space: Any, expert: Expert, observation: Any, rng: np.random.Generator) -> Array:
        """Returns the policy's action, or a uniform one, with noise added."""
        try:
            action = draw_uniform(space, rng) if rng.random() < self.epsilon else expert(observation, rng)
        except Exception as error:
            others = "set buffer.data for others (of a mixture buffer.buffers.<name>.data)"
            error.add_note(f"raised by the policy {self.policy!r}, which plays the data: {others}")
            raise
        if self.noise:
            noise = self.noise * (space.high - space.low) / 2 * rng.normal(size=space.shape)
            action = np.clip(action + noise, space.low, space.high)
        return np.asarray(action, space.dtype)


@register("recording", "joined")
@dataclass
class Joined:
    """Several data sets joined into one, for offline RL on mixed data.

    Raises ValueError for a share of an unknown part, and for data sets that differ in their columns.
    """

    parts: Mapping[str, Recording]
    """Name -> data set; all must have the same columns."""
    share: Mapping[str, PositiveShare] = None  # type: ignore[assignment]
    """Part -> share of its first episodes that is taken; a part that is not listed is taken whole."""

    def __post_init__(self) -> None:
        check(self)
        self.share = self.share or {}
        for name in self.share:
            if name not in self.parts:
                raise ValueError(f"joined: share.{name}: no such part; {nearest(name, self.parts)}")

    @property
    def stamps(self) -> tuple[str, ...] | None:
        return together((), *self.parts.values())

    @property
    def odd(self) -> tuple[str, ...]:
        return tuple(
            told
            for part in self.parts.values()
            for told in ability(part, "odd")
        )

    @property
    def unknown(self) -> str:
        return next(filter(None, (ability(part, "unknown") for part in self.parts.values())), "")

    def read(self, task: Task, seed: int) -> dict[str, Tensor]:
        sets = []
        for name, part in self.parts.items():
            columns = dict(part.read(task, seed))
            if (share := self.share.get(name, 1.0)) < 1:
                n = int(columns["episode"].max()) + 1
                columns = select_episodes(columns, torch.arange(max(1, round(share * n))))
            sets.append(columns)
        return join_sets(sets)


@register("recording", "file")
@dataclass
class Stored:
    """A data set on disk: a directory that `save` or `shuhari export RUN DIR --replay` wrote, or an `.npz` or HDF5 file
    (`.hdf5`, `.h5`) with the arrays of D4RL and OGBench.

    Those are `observations`, `actions`, `terminals` and, if there are any, `rewards`, `timeouts`, `next_observations`
    and `masks`; others of the same length become columns. A mask of 0 says that nothing is expected after a transition,
    whether or not the recording goes on (the reached goal of a task of OGBench). If an episode has no final observation
    (no `next_observations`), the last transition has none either, and is left out unless the episode ended there.
    Groups of an HDF5 file are left out.
    """

    stamps = ("*", "reward/*")
    path: str = ""
    """Directory of a saved data set, or an `.npz` or `.hdf5` file; `~` is the home directory."""
    reward: str = "task"
    """Name that the `rewards` of such a file get: column `reward/<name>`, weighted by `reward.weights.<name>`."""
    layout: Literal["d4rl", "ogbench"] = "d4rl"
    """Meaning of `terminals` in such a file: "d4rl", that the episode ended by itself; "ogbench", the last
    observation of a recording that was cut there (its action is left out)."""

    def __post_init__(self) -> None:
        check(self)
        self.odd: tuple[str, ...] = ()
        self.unknown = ""

    @property
    def d4rl(self) -> str:
        """The file's name, if it is one of D4RL's."""
        name = Path(self.path).stem
        return name if find_reference(name) else ""

    def read(self, task: Task, seed: int) -> dict[str, Tensor]:
        path = Path(self.path).expanduser()
        if (path / COLUMNS).is_file():
            columns = read_columns(path / COLUMNS)
            check_columns(columns, task.spaces(), str(path / COLUMNS))
            return self._look(columns, task, str(path / COLUMNS))
        if path.suffix not in (".npz", *HDF5) or not path.is_file():
            message = f"expected a directory with {COLUMNS}, or an .npz or .hdf5 file"
            raise FileNotFoundError(f"file: no data set at {self.path!r}: {message}")
        own = ("actions", *LAYOUT)  # of as many rows as actions
        arrays = read_arrays(path, ("observations", "actions", "terminals"), own, FLAGS)
        if "rewards" in arrays and arrays["rewards"].ndim != 1:
            shape = list(arrays["rewards"].shape)
            raise ValueError(f"{path}: rewards is an array {shape}: expected a number for each row")
        if (given := arrays.get("next_observations", arrays["observations"])).shape != arrays["observations"].shape:
            width, behind = (list(x.shape[1:]) for x in (arrays["observations"], given))
            wanted = list(found[0].shape or ()) if (found := task.spaces()) else []
            raise ValueError(f"{path}: observations have shape {width}, and next_observations {behind}: the task's "
                             f"have {wanted}")  # fmt: skip
        if self.layout == "ogbench":
            settle_ends(arrays)
        try:
            columns = bootstrap_by_masks(columns_of(split_episodes(arrays, self.reward)))
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
        check_columns(columns, task.spaces(), str(path))
        return self._look(columns, task, str(path), list_gaps(arrays))

    def _look(self, columns: dict[str, Tensor], task: Task, whose: str, gaps: Iterable[str] = ()) -> dict[str, Tensor]:
        """Returns the columns, after storing the warnings about them."""
        self.odd, self.unknown = examine(columns, task.spaces(), whose, gaps)
        return columns


def save(columns: Mapping[str, Tensor], directory: Path, reward: str = "reward/task", source: str = "") -> Path:
    """Writes a data set and its card, for the recording `file`. Raises StoreError if writing fails, and then leaves
    nothing."""
    card = {"format": 1, "source": source, **card_of(columns, reward), "digest": digest(columns)}
    trail = Trail(directory)
    try:
        with translate_errors(f"write {directory}"):
            directory.mkdir(parents=True, exist_ok=True)
            replace_file(directory / COLUMNS, tensors.pack(dict(columns)))
            replace_file(directory / CARD, [(json.dumps(card, indent=2) + "\n").encode()])
    except StoreError:
        trail.remove([directory / COLUMNS])
        raise
    return directory


def _stack(observed: list[Any]) -> Any:
    if isinstance(observed[0], Mapping):
        return {
            k: np.stack([o[k] for o in observed])
            for k in observed[0]
        }
    return np.stack([np.asarray(o) for o in observed])
