"""Minari data sets: recorded episodes in the format of the Farama Foundation.

Read from the local store (`MINARI_DATASETS_PATH`) or a directory. Nothing is downloaded: the error names the command
that does. Axes: `T` decisions of an episode.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from shuhari.bounds import Count, check
from shuhari.buffers.recording import RecordedEpisode, columns_of, examine
from shuhari.data import nearest
from shuhari.kernel.registry import register
from shuhari.ports import Task
from shuhari.tasks.views import flatten

ADROIT = ("door", "hammer", "pen", "relocate")  # of D4RL/, whose mazes and kitchen may pay otherwise than before
ARRAYS = ("observations", "actions", "rewards", "terminations", "truncations")  # of an episode


@register("recording", "minari")
@dataclass
class Minari:
    """A Minari data set, by its `id` in the local store or by its directory.

    Its files may be of Arrow or of HDF5. Nested observations become flat ones, keys joined by "/". Raises
    ModuleNotFoundError with the command that installs Minari or what reads such files, LookupError for a data set that
    is not here, ValueError for a name that its infos or its episodes lack.
    """

    id: str = ""
    """Name in the local store of Minari, such as `D4RL/pointmaze/umaze-v2`; give this or `path`."""
    path: str = ""
    """Directory of a data set in Minari's format; give this or `id`."""
    episodes: Count = 0
    """Number of first episodes that are read; 0 reads all."""
    columns: tuple[str, ...] = ()
    """Names in the episodes' `infos` that become columns of the data set."""
    reward: str = "task"
    """Name of its rewards: column `reward/<name>`, weighted by `reward.weights.<name>`."""

    def __post_init__(self) -> None:
        check(self)
        if bool(self.id) == bool(self.path):
            raise ValueError(f"minari: id is {self.id!r} and path is {self.path!r}: expected one of them")
        self.odd: tuple[str, ...] = ()
        self.unknown = ""

    @property
    def stamps(self) -> tuple[str, ...]:
        return (f"reward/{self.reward}", *self.columns)

    @property
    def d4rl(self) -> str:
        """D4RL's name of its environment, if the rewards are the same there; else ""."""
        space, _, rest = self.id.partition("/")
        name = rest.partition("/")[0]
        return name if space == "D4RL" and name in ADROIT else ""

    def read(self, task: Task, seed: int) -> dict[str, Tensor]:
        data = self._open()
        try:
            columns = columns_of(self._list_episodes(data))
        except Exception as error:  # of h5py, pyarrow or minari, without the file's name
            raise self._explain(error) from error
        self.odd, self.unknown = examine(columns, task.spaces(), f"minari: {self.id or self.path}")
        return columns

    def _explain(self, error: Exception) -> Exception:
        """Returns a library's error as one that names the data set."""
        whose = f"minari: {self.id or self.path}"
        if str(error).startswith("minari: "):
            return error
        if isinstance(error, ImportError):  # of the library that reads the format of these files
            return ModuleNotFoundError(f'{whose}: pip install "shuhari[control]" (a library is missing: {error})')
        if isinstance(error, KeyError) and (lost := [name for name in ARRAYS if name in str(error)]):
            return ValueError(f"{whose}: its episodes have no {lost[0]!r}: expected {', '.join(ARRAYS)}")
        return ValueError(f"{whose}: its files cannot be read ({type(error).__name__}: {error}); it may be damaged")

    def _list_episodes(self, data: Any) -> Iterator[RecordedEpisode]:
        count = int(data.total_episodes)
        whose = f"minari: {self.id or self.path}"
        for episode in data.iterate_episodes(range(min(self.episodes or count, count))):
            infos = episode.infos or {}
            for name in self.columns:
                if name not in infos:
                    raise ValueError(f"{whose}: its infos have no {name!r}; {nearest(name, infos)}")
            seen: Any = episode.observations
            actions: Any = episode.actions
            if isinstance(actions, Mapping | tuple):
                raise ValueError(f"{whose}: actions of several parts: expected one array")
            yield RecordedEpisode(
                flatten(seen) if isinstance(seen, Mapping) else seen,
                actions,
                {self.reward: episode.rewards},
                bool(episode.terminations[-1]),
                {name: np.asarray(infos[name])[: len(actions)] for name in self.columns},
            )

    def _open(self) -> Any:
        try:
            import minari
        except ModuleNotFoundError:
            raise ModuleNotFoundError('minari: pip install "shuhari[control]" (a library is missing)') from None
        if self.path:
            folder = Path(self.path).expanduser()
            folder = folder / "data" if (folder / "data").is_dir() else folder
            if not folder.is_dir():
                raise FileNotFoundError(f"minari: no data set at {self.path!r}: expected a directory that holds one")
            return self._load(minari.MinariDataset, folder)
        known = minari.list_local_datasets()
        if self.id not in known:
            raise LookupError(f"minari: no data set {self.id!r} here; {nearest(self.id, known)}; to fetch it: "
                              f"minari download {self.id}")  # fmt: skip
        return self._load(minari.load_dataset, self.id)

    def _load(self, load: Callable[[Any], Any], what: Any) -> Any:
        try:
            return load(what)
        except Exception as error:
            raise self._explain(error) from error
