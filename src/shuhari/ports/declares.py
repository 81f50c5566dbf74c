"""What a component says of itself, so that a mistake in a recipe is found before the first step.

Class attributes or properties of a component, all of them optional. `declares` is the only place that reads them; the
checks are in `loop/checks.py`. Left out: the columns of models and engines (what a `Trace` tells beside its action).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

from shuhari.needs import Need

SPACES = ("reward", "weight", "links", "context", "view")  # of columns `<space>/<name>`; a `*` stands for the others


@dataclass(frozen=True)
class Declares:
    """What a component wants of models, and which columns it reads and writes.

    needs: columns wanted from models. roles: the models that it calls itself. reads: columns without which it fails;
    one that is read only where it is there need not be named. hears: of a buffer, columns that an update tells of rows
    that it has drawn. stamps: columns that it writes; None: it does not say, so that nothing is known of what is there
    behind it. Beside plain names (of a task: what its environments tell) there are `reward/<name>` (what is graded; a
    reward stamps nothing else), `weight/<stream>` (rows that carry a stream) and `links/<name>`; names that only data
    tell are said as `reward/*`, `weight/*`, `links/*`, `info/*`, and `*` for all others. couples: whether the loss of a
    row depends on others (`batch`), links: the links that it is of. least_n: how many samples of a group it compares,
    so what `rollout.n` must at least be; of a rollout 0 where `n` does not say how many there are.
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
    """What a component says of itself; the defaults for what it does not mention."""
    own = {name: _said(component, name) for name in _DEFAULTS}
    for name in ("needs", "roles", "reads", "hears"):
        own[name] = tuple(own[name])
    return Declares(**own)


def needs_of(component: Any) -> tuple[Need, ...]:
    """Its `needs` alone, which every draw asks for."""
    return tuple(_said(component, "needs"))


def is_among(column: str, declared: Collection[str]) -> bool:
    """Whether a column is one of those declared, or one that a `*` among them stands for."""
    space, slash, _ = column.partition("/")
    among = (f"{space}/*" in declared) if slash else False
    return column in declared or among or ("*" in declared and not (slash and space in SPACES))


def _said(component: Any, name: str) -> Any:
    return getattr(component, name, _DEFAULTS[name])


_DEFAULTS = dict(vars(Declares()))


def together(own: Iterable[str], *parts: Any) -> tuple[str, ...] | None:
    """The `stamps` of a component that is made of others: its own and theirs; None where one of them does not say."""
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
