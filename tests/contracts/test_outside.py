"""Every setting of every registered component, and of the tables that they are made of: a number just outside of its
bounds, NaN, an infinity, and a name that there is not are refused in a recipe and by hand, with key and value."""

from __future__ import annotations

import math
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Annotated, Any, Literal, Union

import pytest

from shuhari.bounds import Bounds, bare, hints, wrong
from shuhari.config.evaluation import Evaluation
from shuhari.config.overlay import RecipeError
from shuhari.config.settings import Settings
from shuhari.config.stage import Checkpointing
from shuhari.data import Ramp, Sampling
from shuhari.kernel import registry


def leaves(hint: Any) -> Iterator[Any]:
    """What an annotation is made of, with bounds where they stand."""
    inner = hint if isinstance(hint, list) else typing.get_args(hint)  # a list: what a callable takes
    if typing.get_origin(hint) in (Annotated, Literal) or not inner:
        yield hint
    else:
        for x in inner:
            yield from leaves(x)


def component_classes() -> list[type]:
    """All that is registered, and the dataclasses of its settings."""
    found: set[type] = set()
    waiting: list[Any] = [Checkpointing, Evaluation, Sampling, *registry.entries().values()]
    while waiting:
        cls = waiting.pop()
        own = isinstance(cls, type) and is_dataclass(cls) and cls.__module__.startswith("shuhari.")
        if own and cls is not Ramp and cls not in found:
            found.add(cls)
            waiting += [x for f in fields(cls) if f.init for x in leaves(hints(cls)[f.name])]
    return sorted(found, key=lambda cls: (cls.__module__, cls.__qualname__))


CLASSES = component_classes()


def outside(hint: Any) -> list[Any]:
    """Values that an annotation of one number or name refuses."""
    if typing.get_origin(hint) is Literal:
        return ["nobody has named anything so"]
    bounds = next((x for x in typing.get_args(hint)[1:] if isinstance(x, Bounds)), Bounds())
    base = bare(hint)
    if not {int, float} & set(leaves(base)):
        return []
    out: list[Any] = [math.nan, *(() if bounds.infinite else (math.inf, -math.inf))]
    whole = base is int
    for end, side, away in ((bounds.low, "low", -math.inf), (bounds.high, "high", math.inf)):
        if math.isfinite(end):
            shut = bounds.open in (side, "both")
            out.append(end if shut else int(end) + (1 if away > 0 else -1) if whole else math.nextafter(end, away))
    return [x for x in out if x != bounds.off]


def refused(hint: Any, default: Any = None) -> Iterator[tuple[Any, Any]]:
    """(value, what is wrong in it) of a setting, each refused by its annotation."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (Union, types.UnionType):
        for x in inner:
            others = [y for y in inner if y is not x]
            yield from ((v, bad) for v, bad in refused(x, default) if not any(takes(y, v) for y in others))
    elif origin is tuple and inner and inner[-1] is not Ellipsis:
        for i, x in enumerate(inner if isinstance(default, tuple) else ()):
            yield from (((*default[:i], v, *default[i + 1 :]), bad) for v, bad in refused(x))
    elif origin is tuple and inner:
        yield from (((v,), bad) for v, bad in refused(inner[0]))
    elif isinstance(origin, type) and issubclass(origin, Mapping):
        yield from (({"a": v}, bad) for v, bad in refused(inner[1]))
    else:
        yield from ((x, x) for x in outside(hint))


def takes(hint: Any, value: Any) -> bool:
    """Whether an annotation is of a value's kind, and takes it."""
    kinds = {int: int, float: (int, float), str: str}
    return isinstance(value, kinds.get(bare(hint), ())) and not wrong(hint, value)


def cases(cls: type) -> Iterator[tuple[str, Any, str]]:
    """(setting, value, the part of it that messages tell)."""
    for f in fields(cls):
        if f.init:
            default = f.default if f.default is not MISSING else None
            yield from ((f.name, value, str(bad)) for value, bad in refused(hints(cls)[f.name], default))


HELD = [cls for cls in CLASSES if any(True for _ in cases(cls))]


@pytest.mark.parametrize("cls", HELD, ids=lambda c: c.__name__)
def test_a_recipe_cannot_say_what_is_outside(cls: Any) -> None:
    for name, value, bad in cases(cls):
        raw = list(value) if isinstance(value, tuple) else value
        with pytest.raises(RecipeError) as error:
            Settings().make(cls, {name: raw}, "at", "it")
        assert error.value.where.startswith(f"at.{name}"), (name, value)
        assert bad in error.value.problem, (name, value)
        assert "expected" in error.value.problem or "did you mean" in error.value.problem, (name, value)


@pytest.mark.parametrize("cls", HELD, ids=lambda c: c.__name__)
def test_one_made_by_hand_is_refused_before_anything_else_is_asked(cls: Any) -> None:
    needed = [f.name for f in fields(cls) if f.init and f.default is MISSING and f.default_factory is MISSING]
    for name, value, bad in cases(cls):
        with pytest.raises(ValueError, match=f"{cls.__name__}: {name} is ") as error:
            cls(**{**dict.fromkeys(needed, object()), name: value})
        assert bad in str(error.value), (name, value)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda c: c.__name__)
def test_whole_numbers_have_bounds(cls: Any) -> None:
    loose = [f.name for f in fields(cls) if f.init and int in leaves(hints(cls)[f.name])]
    assert not loose, f"{cls.__name__}: {loose}: expected bounds, such as shuhari.bounds.Count or Length"
