"""The surroundings of a place in observations, so that a plot of a path shows its obstacles."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Box = tuple[float, float, float, float]  # left, bottom, width, height


@dataclass(frozen=True)
class Scene:
    """The plane in which the first two numbers of an observation are a place, in their units: its extent, walls and
    goals. hazards: circles (x, y, radius). place: (observation) -> (x, y), if they are other numbers; `names`: of the
    two. aim: (observation) -> (x, y), the best decision there."""

    whole: Box
    walls: tuple[Box, ...] = ()
    goals: tuple[Box, ...] = ()
    place: Callable[[Any], tuple[float, float]] | None = None
    hazards: tuple[tuple[float, float, float], ...] = ()
    names: tuple[str, str] = ("x", "y")
    aim: Callable[[Any], Any] | None = None
