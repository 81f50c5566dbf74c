"""The pieces of a gradient learner: parts, each owned by one optimiser, made of weighted terms."""

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
    """One loss of a part, with its weight: `weight` times the reduction `reduce` of `objective` over the rows of
    `stream`."""

    objective: Objective
    """Loss that is minimised, named by `use` in a recipe."""
    stream: str = "rl"
    """Stream of rows, and of their weights, that the loss learns from: `rl` is the run's own samples, `ce`
    demonstrations."""
    weight: Number = 1.0
    """Coefficient of the loss in the part's sum, or its schedule."""
    reduce: str = "decision"
    """Average over the losses: by `decision` (token mean), `row` (sample mean), `turn`, `episode`, `group`, or
    `constant:N` (divided by N a row)."""

    def __post_init__(self) -> None:
        check(self)
        check_reduction(self.reduce)
        if (couples := declares(self.objective).couples) not in ("row", "batch"):
            message = f"couples is {couples!r}: expected 'row', or 'batch' where a row's loss depends on others"
            raise ValueError(f"{type(self.objective).__name__}: {message}")

    @cached_property
    def links(self) -> str:
        """The links that the loss is over, one number each; empty for a loss over rows."""
        return declares(self.objective).links

    @cached_property
    def couples(self) -> bool:
        """Whether the loss of a row depends on other rows; true for a loss over links, since a piece has not all of
        them."""
        return declares(self.objective).couples == "batch" or bool(self.links)


def _name_objective(term: Term) -> str:
    known = [name for kind, name in registry.known_as(type(term.objective)) if kind == "objective"]
    return min(known, default=LOSS)


@dataclass
class Part:
    """What one optimiser owns: the models it trains, its losses, and when it steps.

    No gradient reaches a role that it does not train, whatever the terms read. The part acts on every `every`-th
    update, from update `after` on.
    """

    trains: tuple[str, ...]
    """Roles whose weights the optimiser updates; in a recipe by default the role that the part is named after."""
    terms: Mapping[str, Term]
    """Losses by name, whose weighted sum is minimised."""
    optimiser: Optimiser
    """Optimiser that steps these roles, such as `adamw`."""
    epochs: Length = 1
    """Passes over each drawn batch."""
    minibatches: Length = 1
    """Number of pieces that each pass is cut into, with an optimiser step on each."""
    unit: Literal["auto", "row", "group", "episode"] = "auto"
    """Unit that a minibatch never cuts: a `row`, a `group` or an `episode`; `auto` is group if a loss compares rows,
    episode if a model remembers the rows before, else row."""
    every: Length = 1
    """Number of updates for each one that the part acts on, such as 2 for TD3's delayed policy."""
    after: Count = 0
    """Number of first updates that the part skips."""

    def __post_init__(self) -> None:
        check(self)

    @cached_property
    def labels(self) -> dict[str, str]:
        """term -> its name in reports: the term `loss` goes by its objective, such as `clip`, any other by its own
        name."""
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
