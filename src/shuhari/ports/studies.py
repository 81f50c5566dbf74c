"""Ports of what is done with whole runs, and of what needs none."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from shuhari.data import EMPTY, Info


class Study(Protocol):
    """Drives whole runs: populations, transfer, search, fits. Yields the reports of its runs as they come, and after
    each piece of its own progress a row of numbers, which is a step of the study; `spent/<unit>` is what its runs have
    spent by then, unless the row says it (where runs take turns, one that goes on again may be ahead). A study that is
    resumed starts over: its runs are where they were, and what it yields again must be what it was."""

    def __call__(self, runs: Runs) -> Iterator[Info]: ...


class Runs(Protocol):
    """What a study may ask. `train` opens the run `name` of the study's recipe under `settings` (dotted keys), goes on
    with it to its end, yields its reports and returns its summary; several may take turns. `evaluate` gives the
    held-out scores of its weights under further settings. Both are charged to the study. `reports` is what a run has
    reported so far, a row a step, those of before it was resumed included. `folder` is where runs may tell each other
    something; it need not be there yet, and whoever writes there makes it."""

    seed: int
    folder: Path

    def train(self, name: str, settings: Mapping[str, Any] = EMPTY) -> Generator[Info, None, Mapping[str, Any]]: ...
    def reports(self, name: str) -> list[Info]: ...
    def evaluate(self, name: str, settings: Mapping[str, Any] = EMPTY) -> Mapping[str, float]: ...


class Analysis(Protocol):
    """What a paper shows without training a model: an exact identity, a simulation. Named numbers of a seed."""

    def __call__(self, seed: int) -> Mapping[str, float]: ...


# ---------------------------------------------------------------- what one may have, asked by `shuhari.ports.ability`


class StudyAttributes(Protocol):
    """Values that a study, or a quantity of a claim, may have: whether there are runs at all (`trains`); whether these
    must have the machine for themselves (`alone`); the metrics that it reads, to be kept and drawn (`names`)."""

    @property
    def trains(self) -> bool: ...
    @property
    def alone(self) -> bool: ...
    @property
    def names(self) -> tuple[str, ...]: ...
