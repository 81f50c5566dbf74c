"""Ports of what drives whole runs, and of analyses that need none."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from shuhari.data import EMPTY, Info


class Study(Protocol):
    """A driver of whole runs: populations, transfer, search, fits.

    It yields the reports of its runs as they come, and after each piece of its own progress a row of numbers, which is
    a step of the study; `spent/<unit>` is what its runs have spent by then, unless the row has it (if runs take turns,
    one that continues may be ahead). A resumed study starts over: its runs are where they were, and it must yield the
    same again."""

    def __call__(self, runs: Runs) -> Iterator[Info]: ...


class Runs(Protocol):
    """The interface of a study to its runs. `train` opens the run `name` of the study's recipe under `settings` (dotted
    keys), continues it to its end, yields its reports and returns its summary; several may take turns. `evaluate` gives
    the held-out scores of its weights under further settings. Both are charged to the study. `reports` is what a run
    has reported so far, a row a step, including those before it was resumed. `folder` is for files that runs exchange;
    it may not exist yet: create it before writing."""

    seed: int
    folder: Path

    def train(self, name: str, settings: Mapping[str, Any] = EMPTY) -> Generator[Info, None, Mapping[str, Any]]: ...
    def reports(self, name: str) -> list[Info]: ...
    def evaluate(self, name: str, settings: Mapping[str, Any] = EMPTY) -> Mapping[str, float]: ...


class Analysis(Protocol):
    """A result without training a model: an exact identity, a simulation. Returns named numbers of a seed."""

    def __call__(self, seed: int) -> Mapping[str, float]: ...


class RunAnalysis(Protocol):
    """An analysis of runs that have ended, or of curves from elsewhere. `given`: what the user named, a
    `shuhari.lab.analyses.Given`. Returns a `shuhari.lab.analyses.Finding`: numbers with intervals, and what to draw."""

    def __call__(self, given: Any) -> Any: ...


# ---------------------------------------------------------------- what one may have, asked by `shuhari.ports.ability`


class StudyAttributes(Protocol):
    """Optional values of a study, or a quantity of a claim: whether there are runs at all (`trains`); whether these
    need the machine for themselves (`alone`); the metrics that it reads, to be kept and drawn (`names`)."""

    @property
    def trains(self) -> bool: ...
    @property
    def alone(self) -> bool: ...
    @property
    def names(self) -> tuple[str, ...]: ...
