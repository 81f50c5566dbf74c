"""Allowed values of settings: bounds of numbers, and names to choose from, declared once, in the annotation.

    rate: Annotated[float, Bounds(0, 1)] = 0.5          # a number, or the ends of a schedule
    low: Annotated[Number, Bounds(0, infinite=True)]    # takes an infinity too
    scale: Literal["group", "none"] = "group"

A number is finite unless its annotation allows infinities; NaN is never allowed. `config.settings` checks every setting
of a recipe against its annotation; a component made by hand does so itself with `check(self)` in its `__post_init__`.
"""

from __future__ import annotations

import math
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from functools import cache
from numbers import Real
from typing import Annotated, Any, Literal, Union

from shuhari.kernel.ramp import Number, Ramp

__all__ = [
    "AtLeast0", "Bounds", "Budget", "Coefficient", "Count", "Depth", "Discount", "Fraction", "Group", "Lanes",
    "Length", "Positive", "PositiveNumber", "PositiveShare", "Processes", "ProperShare", "Ratio", "Seconds", "Seed",
    "Share", "ShareBelow1", "Size", "SomeProcesses", "Steps", "Width", "bare", "check", "hints", "nearest", "wrong",
]  # fmt: skip


PORTS: dict[str, Any] = {}  # name -> port; the package `ports`, which stands above this module, enters them


@dataclass(frozen=True)
class Bounds:
    """`low` <= x <= `high`; `open` excludes an end: "low", "high" or "both". `infinite`: infinities are allowed. `off`:
    one further value that is allowed. `hint`: added to an error. `most`: a further upper limit, of what a machine can
    do rather than of the number's meaning; only errors about values above it mention it."""

    low: float = -math.inf
    high: float = math.inf
    open: Literal["", "low", "high", "both"] = ""
    infinite: bool = False
    off: float | None = None
    hint: str = ""
    most: float = math.inf

    def __str__(self) -> str:
        above, below = self.low > -math.inf, self.high < math.inf
        left, right = "(" if self.open in ("low", "both") else "[", ")" if self.open in ("high", "both") else "]"
        if self.low == self.high:
            text = f"{self.low:g}"
        elif above and below:
            text = f"a number in {left}{self.low:g}, {self.high:g}{right}"
        elif above:
            text = f"a number above {self.low:g}" if left == "(" else f"a number of {self.low:g} or more"
        elif below:
            text = f"a number below {self.high:g}" if right == ")" else f"a number of {self.high:g} or less"
        else:
            text = "a number"
        if self.infinite and not (above and below):
            text += ", or inf" if above else ", or -inf" if below else ", or an infinity"
        return text + (f", or {self.off:g}" if self.off is not None else "") + (f" ({self.hint})" if self.hint else "")

    def hold(self, x: float) -> bool:
        """Whether a number is within the bounds."""
        if math.isnan(x) or (math.isinf(x) and not self.infinite):
            return False
        if x == self.off:
            return True
        low = x > self.low if self.open in ("low", "both") else x >= self.low
        return low and (x < self.high if self.open in ("high", "both") else x <= self.high) and x <= self.most


_ANY = Bounds()
AtLeast0 = Annotated[float, Bounds(0)]
Positive = Annotated[float, Bounds(0, open="low")]
Share = Annotated[float, Bounds(0, 1)]
PositiveShare = Annotated[float, Bounds(0, 1, open="low")]
Seconds = Annotated[float, Bounds(0, 86_400, open="low")]  # of a timer, at most a day
ShareBelow1 = Annotated[float, Bounds(0, 1, open="high")]
ProperShare = Annotated[float, Bounds(0, 1, open="both")]
# numbers, or their schedules
Coefficient = Annotated[Number, Bounds(0)]
PositiveNumber = Annotated[Number, Bounds(0, open="low")]
Ratio = Annotated[Number, Bounds(0, infinite=True)]
Fraction = Annotated[Number, Bounds(0, 1)]
Discount = Fraction
# whole numbers: a size or a count has an upper bound too, above which no run would begin, or end
Count = Annotated[int, Bounds(0, most=10**9)]
Length = Annotated[int, Bounds(1, most=10**9)]
Seed = Annotated[int, Bounds(0, most=2**63 - 1)]
Budget = Annotated[int, Bounds(1, most=10**15)]  # of decisions, tokens
Steps = Annotated[int, Bounds(0, most=10**15)]  # of a stage, which with 0 only measures
Size = Annotated[int, Bounds(1, most=10**8)]  # rows that are held at once
Group = Annotated[int, Bounds(1, most=10**6)]  # samples of a problem
Width = Annotated[int, Bounds(1, most=2**16)]  # of a layer
Depth = Annotated[int, Bounds(1, most=1024)]  # layers
Lanes = Annotated[int, Bounds(1, most=2**16)]  # environments that are stepped side by side
Processes = Annotated[int, Bounds(0, most=1024)]  # or threads, of one machine
SomeProcesses = Annotated[int, Bounds(1, most=1024)]


def nearest(name: str, names: Iterable[str]) -> str:
    """Return the end of an error message: the nearest known name, also by the part after its last slash, or all names.
    """
    known = sorted({str(n) for n in names})
    called = {
        **{n.rpartition("/")[2]: n for n in known},
        **{n: n for n in known},
    }
    near = get_close_matches(str(name), called, 1)
    return f"did you mean {called[near[0]]!r}?" if near else f"known: {', '.join(known) or 'none'}"


def with_article(noun: str) -> str:
    """Return a noun with its article: "a task", "an objective"; a plural has none."""
    if noun.endswith("s") and not noun.endswith(("ss", "sis")):
        return noun
    return f"{'an' if noun[:1].lower() in 'aeiou' else 'a'} {noun}"


def check(component: Any) -> None:
    """Raise ValueError if a setting of a dataclass does not fit its annotation; the error names it, the value, and what
    was expected. Types are checked elsewhere, by the reader of recipes and by mypy."""
    cls: Any = type(component)
    for name, bounds, hint in _held(cls):
        value = getattr(component, name)
        if misfit := wrong(hint, value) if bounds is None else _outside(bounds, value):
            raise ValueError(f"{cls.__name__}: {name} is {value!r}: {misfit}")


@cache
def _held(cls: Any) -> tuple[tuple[str, Bounds | None, Any], ...]:
    """Return (name, its bounds if it is one number, annotation) of each setting that `wrong` can check."""
    own = {f.name: hints(cls)[f.name] for f in fields(cls) if f.init}
    return tuple((name, _bounds(hint), hint) for name, hint in own.items() if _held_to(hint))


def _held_to(hint: Any) -> bool:
    return hint in (int, float) or typing.get_origin(hint) is Literal or any(map(_held_to, typing.get_args(hint)))


def _bounds(hint: Any) -> Bounds | None:
    given = typing.get_args(hint)[1:] if typing.get_origin(hint) is Annotated else ()
    return next((x for x in given if isinstance(x, Bounds)), None)


def wrong(hint: Any, value: Any) -> str:
    """Return what its annotation expects in place of a value; "" if the value is right."""
    origin, inner, value = typing.get_origin(hint), typing.get_args(hint), _plain(value)
    if origin is Annotated:
        bounds = _bounds(hint)
        return wrong(inner[0], value) if bounds is None else _outside(bounds, value)
    if origin is Literal:
        return "" if value in inner else nearest(str(value), map(str, inner))
    if origin in (Union, types.UnionType):
        return _none_fits(inner, value)
    if origin is tuple and isinstance(value, tuple | list) and inner:
        each = inner[:1] * len(value) if inner[-1] is Ellipsis else inner
        if len(each) != len(value):
            return f"expected {len(each)} entries"
        return next((f"entry {i}: {misfit}" for i, (h, v) in enumerate(zip(each, value, strict=True))
                     if (misfit := wrong(h, v))), "")  # fmt: skip
    if isinstance(origin, type) and issubclass(origin, Mapping) and isinstance(value, Mapping):
        return next((f"{k}: {misfit}" for k, v in value.items() if (misfit := wrong(inner[1], v))), "")
    if isinstance(value, Real) and hint in (float, int):
        return _outside(_ANY, value)
    return ""


def _outside(bounds: Bounds, value: Any) -> str:
    if type(value) in (float, int) and bounds.hold(value):
        return ""  # as nearly always, and a run asks thousands of times
    numbers = value.ends if isinstance(value, Ramp) else (_plain(value),)
    if any(isinstance(x, bool) or not isinstance(x, Real) for x in numbers) or all(map(bounds.hold, numbers)):
        return ""
    if any(x > bounds.most for x in numbers if math.isfinite(x)):
        return f"expected at most {bounds.most:,.0f}"
    return f"expected {bounds}{'' if bounds.infinite or all(map(math.isfinite, numbers)) else ' that is finite'}"


def _plain(value: Any) -> Any:
    """Convert a number of NumPy or torch, or their array without axes, to a Python number; return anything else as it
    is."""
    return value.item() if not isinstance(value, type) and getattr(value, "shape", None) == () else value


def _none_fits(choices: tuple[Any, ...], value: Any) -> str:
    """Return the misfit among several annotations; the one of the value's kind decides."""
    misfit = ""
    for hint in choices:
        base = bare(hint)
        origin = typing.get_origin(base)
        if origin is not None or base in (float, int):
            kind: Any = str if origin is Literal else origin or Real
            if (fits := isinstance(value, kind)) and not (new := wrong(hint, value)):
                return ""
            misfit = misfit or (new if fits else "")
        elif isinstance(base, type) and (getattr(base, "_is_protocol", False) or isinstance(value, base)):
            return ""  # of a port nothing can be asked but its name; None is of its type too
    return misfit


def bare(hint: Any) -> Any:
    """Return an annotation without its bounds."""
    return typing.get_args(hint)[0] if typing.get_origin(hint) is Annotated else hint


def hints(cls: Any, *, bare: bool = False) -> dict[str, Any]:
    """Return name -> annotation of a dataclass with its bounds, or `bare` of them; names of ports are resolved even if
    a module imports them for type checkers only."""
    return _hints(cls, bare)


@cache
def _hints(cls: Any, bare: bool) -> dict[str, Any]:
    try:
        return typing.get_type_hints(cls, include_extras=not bare)
    except NameError:
        known = {**vars(typing), **PORTS, "Callable": Callable}
        found: dict[str, Any] = {}
        for base in reversed(cls.__mro__):  # what a world of Gymnasium derives from has settings of nobody's
            if "__dataclass_fields__" in vars(base):
                own = {k: vars(base).get(k) for k in ("__annotations__", "__module__")}
                found |= typing.get_type_hints(type(base.__name__, (), own), localns=known, include_extras=not bare)
        return found
