"""What a setting may be: bounds of numbers, and names to choose from, said once, in its annotation.

    rate: Annotated[float, Bounds(0, 1)] = 0.5          # a number, or the ends of a schedule
    low: Annotated[Number, Bounds(0, infinite=True)]    # takes an infinity too
    scale: Literal["group", "none"] = "group"

A number is finite unless its annotation says otherwise; NaN is never one. `config.settings` holds every setting of a
recipe against its annotation; a component made by hand does so itself with `check(self)` in its `__post_init__`.
"""

from __future__ import annotations

import math
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import cache
from typing import Annotated, Any, Literal, Union

from shuhari.data import Number, Ramp, nearest

__all__ = ["AtLeast0", "Bounds", "Count", "Discount", "Length", "Positive", "Ratio", "Share", "check", "hints", "wrong"]


@dataclass(frozen=True)
class Bounds:
    """`low` <= x <= `high`; `open` leaves out an end: "low", "high" or "both". `infinite`: an infinity is a number too.
    `off`: this one value is taken as well."""

    low: float = -math.inf
    high: float = math.inf
    open: Literal["", "low", "high", "both"] = ""
    infinite: bool = False
    off: float | None = None

    def __str__(self) -> str:
        above, below = self.low > -math.inf, self.high < math.inf
        left, right = "(" if self.open in ("low", "both") else "[", ")" if self.open in ("high", "both") else "]"
        if above and below:
            told = f"a number in {left}{self.low:g}, {self.high:g}{right}"
        elif above:
            told = f"a number above {self.low:g}" if left == "(" else f"a number of {self.low:g} or more"
        elif below:
            told = f"a number below {self.high:g}" if right == ")" else f"a number of {self.high:g} or less"
        else:
            told = "a number"
        return f"{told}{f', or {self.off:g}' if self.off is not None else ''}"

    def hold(self, x: float) -> bool:
        """Whether a number is within them."""
        if math.isnan(x) or (math.isinf(x) and not self.infinite):
            return False
        if x == self.off:
            return True
        low = x > self.low if self.open in ("low", "both") else x >= self.low
        return low and (x < self.high if self.open in ("high", "both") else x <= self.high)


_ANY = Bounds()
AtLeast0 = Annotated[float, Bounds(0)]
Positive = Annotated[float, Bounds(0, open="low")]
Share = Annotated[float, Bounds(0, 1)]
Ratio = Annotated[Number, Bounds(0, infinite=True)]  # or its schedule
Discount = Annotated[Number, Bounds(0, 1)]  # or its schedule
Count = Annotated[int, Bounds(0)]
Length = Annotated[int, Bounds(1)]


def check(component: Any) -> None:
    """ValueError where a setting of a dataclass is not what its annotation says: names it, the value, and what was
    expected. Types are left to the reader of recipes, and to mypy."""
    own = hints(type(component))
    for f in fields(component):
        if f.init and (told := wrong(own[f.name], value := getattr(component, f.name))):
            raise ValueError(f"{type(component).__name__}: {f.name} is {value!r}: {told}")


def wrong(hint: Any, value: Any) -> str:
    """What was expected in the place of a value, by its annotation; "" where the value is right."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        bounds = next((x for x in inner[1:] if isinstance(x, Bounds)), None)
        return wrong(inner[0], value) if bounds is None else _outside(bounds, value)
    if origin is Literal:
        return "" if value in inner else nearest(str(value), map(str, inner))
    if origin in (Union, types.UnionType):
        return _none_fits(inner, value)
    if origin is tuple and isinstance(value, tuple) and inner:
        each = inner[:1] * len(value) if inner[-1] is Ellipsis else inner
        return next((f"entry {i}: {told}" for i, (h, v) in enumerate(zip(each, value, strict=False))
                     if (told := wrong(h, v))), "")  # fmt: skip
    if isinstance(origin, type) and issubclass(origin, Mapping) and isinstance(value, Mapping):
        return next((f"{k}: {told}" for k, v in value.items() if (told := wrong(inner[1], v))), "")
    if isinstance(value, float) and hint in (float, int):
        return _outside(_ANY, value)
    return ""


def _outside(bounds: Bounds, value: Any) -> str:
    numbers = _ends(value) if isinstance(value, Ramp) else (value,)
    numeric = all(isinstance(x, int | float) and not isinstance(x, bool) for x in numbers)
    if not numeric or all(map(bounds.hold, numbers)):
        return ""
    return f"expected {bounds}{'' if all(map(math.isfinite, numbers)) else ' that is finite'}"


def _ends(ramp: Ramp) -> tuple[float, ...]:
    return (ramp.start, *(v for _, v in ramp.steps), *(() if ramp.to is None else (ramp.to,)))


def _none_fits(choices: tuple[Any, ...], value: Any) -> str:
    """Of several annotations the one that is of this value's kind decides."""
    told = ""
    for hint in choices:
        base = typing.get_args(hint)[0] if typing.get_origin(hint) is Annotated else hint
        names = typing.get_origin(base) is Literal
        if names or base in (float, int) or typing.get_origin(base) is not None:
            fits = isinstance(value, str if names else float | int if base in (float, int) else object)
            if fits and not (new := wrong(hint, value)):
                return ""
            told = told or (new if fits else "")
        elif isinstance(base, type) and (getattr(base, "_is_protocol", False) or isinstance(value, base)):
            return ""  # of a port nothing can be asked but its name; None is of its type too
    return told


def hints(cls: Any, *, bare: bool = False) -> dict[str, Any]:
    """name -> annotation of a dataclass with its bounds, or `bare` of them; ports are known even where a module imports
    them for checkers."""
    return _hints(cls, bare)


@cache
def _hints(cls: Any, bare: bool) -> dict[str, Any]:
    try:
        return typing.get_type_hints(cls, include_extras=not bare)
    except NameError:
        from shuhari import ports

        known = {**vars(typing), **vars(ports), "Callable": Callable}
        return typing.get_type_hints(cls, localns=known, include_extras=not bare)
