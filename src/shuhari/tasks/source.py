"""Shared by the tasks: sources of problems, seeded streams, and the split by content.

Left out: shuffling (curricula do that) and anything stateful. A problem is a function of (seed, split, index), so
nothing here needs saving. Whether a problem is held out depends only on its content, not on the seed, order or task.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from shuhari.data import Problem, Step, code, nearest

T = TypeVar("T")

SPLITS = ("train", "test")
CALLS = "tool_calls"  # in a step's `info`: number of functions called in its turn; such a turn is no answer
TRIES = 100_000  # draws for one problem before a split counts as empty
_M64 = (1 << 64) - 1


class Stream:
    """A named stream of random numbers: splitmix64 (Steele, Lea and Flood, 2014) counting up from a hash of the name.

    Plain Python integers, because a problem needs few draws and an array call costs more than all of them.
    """

    __slots__ = ("_x",)

    def __init__(self, *name: object) -> None:
        self._x = code(*name)

    def bits(self) -> int:
        """Returns a uniform integer of 64 bits."""
        self._x = x = (self._x + 0x9E3779B97F4A7C15) & _M64
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _M64
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _M64
        return x ^ (x >> 31)

    def below(self, n: int) -> int:
        """Returns a uniform integer in 0..n-1 (n well below 2^64)."""
        return self.bits() * n >> 64

    def uniform(self) -> float:
        """Returns a uniform number in (0, 1)."""
        return ((self.bits() >> 11) + 0.5) * 2.0**-53


@dataclass(frozen=True, eq=False)
class Generated:
    """Problems made on demand by `make(index)`; `count` is None if endless."""

    make: Callable[[int], Problem]
    count: int | None = None

    def __getitem__(self, index: int) -> Problem:
        if index < 0 or (self.count is not None and index >= self.count):
            raise IndexError(f"problem {index}: expected an index in 0..{'' if self.count is None else self.count - 1}")
        return self.make(index)

    def size(self) -> int | None:
        return self.count


@dataclass(frozen=True, eq=False)
class Listed:
    """Problems from a list."""

    problems: Sequence[Problem]

    def __getitem__(self, index: int) -> Problem:
        if not 0 <= index < len(self.problems):
            raise IndexError(f"problem {index}: expected an index in 0..{len(self.problems) - 1}")
        return self.problems[index]

    def size(self) -> int | None:
        return len(self.problems)


def check_split(split: str, known: Sequence[str] = SPLITS) -> str:
    """Returns `split` if it is known; raises ValueError with the nearest one if not."""
    if split not in known:
        raise ValueError(f"no split {split!r}; {nearest(split, known)}")
    return split


def is_held_out(content: str, fraction: float) -> bool:
    """Whether the problem with this content belongs to the test split, which holds `fraction` of all contents."""
    return code("held out", content) < fraction * 2.0**63


def has_values(info: Mapping[str, Any], where: Mapping[str, Any]) -> bool:
    """Whether the info of a problem has every value of `where` (any value of a list)."""
    return all(
        name in info and any(bool(np.array_equal(info[name], v)) for v in (x if isinstance(x, list | tuple) else (x,)))
        for name, x in where.items()
    )


def draw_item(split: str, fraction: float, draw: Callable[[], tuple[str, T]], what: str) -> tuple[str, T]:
    """Draws until an item belongs to `split`; returns (content, item). Raises ValueError if there seems to be none."""
    test = split == "test"
    for _ in range(TRIES):
        content, item = draw()
        if is_held_out(content, fraction) is test:
            return content, item
    raise ValueError(
        f"{what}: none of {TRIES} draws belongs to the split {split!r} (test_fraction is {fraction}): "
        "expected a task with more distinct problems, or another test_fraction"
    )


def draw_distinct(make: Callable[[int], tuple[str, Problem]], n: int) -> Listed:
    """Returns up to n problems of pairwise distinct content; `make(index)` gives (content, problem). Gives up, with
    fewer, after ten times as many draws as found problems without a new one."""
    found: dict[str, Problem] = {}
    index = last = 0
    while len(found) < n and index - last <= 10 * len(found) + 100:
        content, problem = make(index)
        index += 1
        if content not in found:
            found[content], last = problem, index
    return Listed(tuple(found.values()))


@dataclass(frozen=True, eq=False)
class Splits:
    """The `problems` of a task that generates them: `train` is endless, `test` has up to `test_size` problems of
    pairwise distinct content. `item(split, index)` gives (content, problem)."""

    item: Callable[[str, int], tuple[str, Problem]]
    test_size: int

    def __call__(self, split: str) -> Generated | Listed:
        return self._test if check_split(split) == "test" else Generated(lambda i: self.item("train", i)[1])

    @cached_property
    def _test(self) -> Listed:
        return draw_distinct(lambda i: self.item("test", i), self.test_size)


def last_decision(steps: Sequence[Step]) -> Step:
    """Returns the last step that holds a decision."""
    for step in reversed(steps):
        if step.action is not None:
            return step
    raise ValueError(f"{len(steps)} steps without a decision: nothing to grade")


def answer_text(steps: Sequence[Step]) -> str:
    """Returns the decoded text of the last acting role in these steps, without a closing newline and without turns that
    called functions."""
    role, parts = last_decision(steps).role, []
    for step in steps:
        if step.action is None or step.role != role or step.info.get(CALLS):
            continue
        text = step.info.get("text")
        if not isinstance(text, str):
            raise TypeError(f"a step of {role!r} has no info['text']: a grader of text reads the decoded action there")
        parts.append(text)
    return "".join(parts).removesuffix("\n")
