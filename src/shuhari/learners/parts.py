"""What a gradient learner is made of: parts, each of which one optimiser owns, of weighted terms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from shuhari.bounds import Count, Length, check
from shuhari.data import Number
from shuhari.kernel import registry
from shuhari.kernel.kinds import LOSS
from shuhari.kernel.reduce import check_reduction
from shuhari.needs import Need, distinct
from shuhari.ports import Objective, Optimiser
from shuhari.ports.declares import declares, needs_of


@dataclass
class Term:
    """One loss of a part: `weight` times the reduction `reduce` of `objective` over the rows of `stream`."""

    objective: Objective
    stream: str = "rl"
    weight: Number = 1.0
    reduce: str = "decision"

    def __post_init__(self) -> None:
        check(self)
        check_reduction(self.reduce)
        if (couples := declares(self.objective).couples) not in ("row", "batch"):
            message = f"couples is {couples!r}: expected 'row', or 'batch' where a row's loss depends on others"
            raise ValueError(f"{type(self.objective).__name__}: {message}")

    @cached_property
    def links(self) -> str:
        """The links whose loss it is, one number each; empty where it is one of rows."""
        return declares(self.objective).links

    @cached_property
    def couples(self) -> bool:
        """Whether the loss of a row depends on others; one of links does, for a piece has not all of them."""
        return declares(self.objective).couples == "batch" or bool(self.links)


def _name_objective(term: Term) -> str:
    known = [name for kind, name in registry.known_as(type(term.objective)) if kind == "objective"]
    return min(known, default=LOSS)


@dataclass
class Part:
    """What one optimiser owns: the roles it trains, its terms, and when it steps.

    trains: the roles whose weights its optimiser moves, in a recipe by default the one that the part is called after.
    No gradient reaches another, whatever the terms read. `minibatches` per epoch keep a `unit` whole (`row`, `group`,
    `episode`; auto: `group` where a term couples the batch). The part acts on every `every`-th update, from
    update `after` on.
    """

    trains: tuple[str, ...]
    terms: Mapping[str, Term]
    optimiser: Optimiser
    epochs: Length = 1
    minibatches: Length = 1
    unit: Literal["auto", "row", "group", "episode"] = "auto"
    every: Length = 1
    after: Count = 0

    def __post_init__(self) -> None:
        check(self)

    @cached_property
    def labels(self) -> dict[str, str]:
        """term -> what its numbers are called: the term `loss` goes by its objective, as `clip`, any other by its name.
        """
        return {name: _name_objective(term) if name == LOSS else name for name, term in self.terms.items()}

    @cached_property
    def needs(self) -> list[Need]:
        return distinct(
            n
            for t in self.terms.values()
            for n in needs_of(t.objective)
        )

    @cached_property
    def live(self) -> list[Need]:
        """The needs that are recomputed at each optimiser step."""
        return [n for n in self.needs if n.live]

    @cached_property
    def couples(self) -> bool:
        return any(t.couples for t in self.terms.values())
