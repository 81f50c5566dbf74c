"""Declarations of a component, so that a mistake in a recipe is found before the first step.

Class attributes or properties of a component, all optional. `declares` is the only place that reads them; the checks
are in `loop/checks.py`. Not covered: the columns of models and engines (what a `Trace` has beside its action).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

from shuhari.needs import Need

SPACES = ("reward", "weight", "links", "context", "view")  # of columns `<space>/<name>`; a `*` stands for the others


@dataclass(frozen=True)
class Declares:
    """The columns that a component needs of models, and those that it reads and writes.

    needs: columns computed by models. roles: the models that it calls itself. reads: columns without which it fails;
    one that is optional need not be named. hears: for a buffer, columns that an update sends back for the rows it has
    drawn. stamps: columns that it writes; None: undeclared, so that column checks know nothing of what follows. Beside
    plain names (for a task: what its environments report) there are `reward/<name>` (grades; a reward stamps nothing
    else), `weight/<stream>` (rows that carry a stream) and `links/<name>`; `reward/*`, `weight/*`, `links/*`, `info/*`
    stand for names that only the data determine, and `*` for all others. couples: whether the loss of a row depends on
    others (`batch`). links: the links that its loss is over. least_n: the number of samples of a group that it
    compares, a lower bound of `rollout.n`; 0 for a rollout whose number of samples is not `n`.
    """

    needs: tuple[Need, ...] = ()
    roles: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    stamps: tuple[str, ...] | None = None
    couples: str = "row"
    links: str = ""
    least_n: int = 1
    hears: tuple[str, ...] = ()


def declares(component: Any) -> Declares:
    """Return the declarations of a component, with defaults for those it lacks."""
    own = {name: _said(component, name) for name in _DEFAULTS}
    for name in ("needs", "roles", "reads", "hears"):
        own[name] = tuple(own[name])
    return Declares(**own)


def needs_of(component: Any) -> tuple[Need, ...]:
    """Return only the `needs` of a component, which every draw reads."""
    return tuple(_said(component, "needs"))


def is_among(column: str, declared: Collection[str]) -> bool:
    """Whether a column is among those declared, by name or by a `*`."""
    space, slash, _ = column.partition("/")
    among = (f"{space}/*" in declared) if slash else False
    return column in declared or among or ("*" in declared and not (slash and space in SPACES))


def _said(component: Any, name: str) -> Any:
    return getattr(component, name, _DEFAULTS[name])


_DEFAULTS = dict(vars(Declares()))


def together(own: Iterable[str], *parts: Any) -> tuple[str, ...] | None:
    """Return the `stamps` of a component made of others: its own and theirs; None if one of them declares none."""
    stamps = [declares(part).stamps for part in parts]
    return (
        (
            *own,
            *(
                name
                for names in stamps
                if names is not None
                for name in names
            ),
        )
        if None not in stamps
        else None
    )
