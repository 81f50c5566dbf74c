"""Ports of what is done with whole runs, and of what needs none."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from typing import Any, Protocol

from shuhari.data import EMPTY, Info


class Study(Protocol):
    """Drives whole runs: populations, transfer, search, fits. Yields the reports of its runs as they come, and after
    each piece of its own progress a row of numbers, which is a step of the study. A study that is resumed starts over:
    its runs are where they were, and what it yields again must be what it was."""

    def __call__(self, runs: Runs) -> Iterator[Info]: ...


class Runs(Protocol):
    """What a study may ask. `train` goes on with the run `name` of the study's recipe under `settings` (dotted keys) to
    its end, yields its reports and returns its summary; `evaluate` gives the held-out scores of its weights under
    further settings. Both are charged to the study."""

    seed: int

    def train(self, name: str, settings: Mapping[str, Any] = EMPTY) -> Generator[Info, None, Mapping[str, Any]]: ...
    def evaluate(self, name: str, settings: Mapping[str, Any] = EMPTY) -> Mapping[str, float]: ...


class Analysis(Protocol):
    """What a paper shows without training a model: an exact identity, a simulation. Named numbers of a seed."""

    def __call__(self, seed: int) -> Mapping[str, float]: ...
