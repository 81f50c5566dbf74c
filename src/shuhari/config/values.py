"""Plain values of a recipe, converted by annotation: numbers, truth values, texts, tuples and tables of those, and
schedules.

Values are checked strictly and never evaluated. Left out: components and their tables (`settings`).
"""

from __future__ import annotations

import json
import typing
from collections.abc import Mapping
from functools import cache
from math import isnan
from typing import Any, Literal, Union

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.errors import PydanticSchemaGenerationError
from pydantic_core import SchemaError

from shuhari.config.overlay import RecipeError, format_path
from shuhari.data import Ramp, nearest

RAMP = {"from": "start", "per": ""} | {k: k for k in ("to", "over", "after", "warm", "shape", "steps", "period")}


def read_ramp(table: Mapping[str, Any], where: str, per: str = "step", *, in_steps: bool = True) -> Ramp:
    """Return `{from, to, over, after, warm, shape, period}`, or `{from, steps, warm, period}`, as a schedule over a
    stage, whose budget is `in_steps`; with `per = "decision"` over the decisions of a sample, which a sampling
    temperature counts."""
    for key in table:
        if key not in RAMP:
            raise RecipeError(join_key(where, key), f"no key of a schedule; {nearest(key, RAMP)}")
    wanted = ("from", "steps") if "steps" in table else ("from", "to", *(("over",) if per == "decision" else ()))
    for key in wanted:
        if key not in table:
            whole = "{from = .., to = .., over = ..}" if per == "decision" else "{from = .., to = ..}"
            message = f"missing: a schedule is {whole}; this has {', '.join(table) or 'none'}"
            raise RecipeError(join_key(where, key), message)
    if table.get("per", "step") != per:
        known = "it counts decisions here: add per = 'decision'" if per == "decision" else "it counts steps here"
        raise RecipeError(join_key(where, "per"), f"{table.get('per', 'step')!r}: {known}")
    kinds: dict[str, Any] = {"steps": tuple[tuple[float, float], ...], "shape": str}
    values = {RAMP[k]: read_plain([kinds.get(k, float)], v, join_key(where, k)) for k, v in table.items() if k != "per"}
    try:
        made = Ramp(**values)
        made.check(in_steps=in_steps)
        if per == "decision" and made.relative:
            raise ValueError("this schedule counts decisions: expected `over`, `after` and `warm` of 1 or more, not "
                             "shares")  # fmt: skip
        return made
    except ValueError as error:
        raise RecipeError(where, str(error)) from None


def read_plain(choices: list[Any], raw: Any, where: str) -> Any:
    """Return a number, truth value, text, tuple or mapping of those, checked strictly: "8" is no number, 8.5 no
    integer."""
    if isinstance(raw, float) and isnan(raw):
        raise RecipeError(where, "nan: expected a finite number")
    if int in choices and float not in choices and isinstance(raw, float) and raw.is_integer():
        raw = int(raw)
    try:
        return _make_adapter(Union[tuple(choices)]).validate_json(json.dumps(raw))  # noqa: UP007
    except ValidationError as error:
        named = any(typing.get_origin(choice) is Literal for choice in choices) and not where.startswith("claim")
        hint = f" (`shuhari components {where.rpartition('.')[2]}` explains them)" if named else ""
        raise RecipeError(where, f"{raw!r}: expected {_describe_expected(choices, error, raw)}{hint}") from None
    except (PydanticSchemaGenerationError, SchemaError):  # of components, by name
        raise RecipeError(where, f"{raw!r:.60}: expected a table") from None
    except (TypeError, ValueError, RecursionError) as error:  # a date of TOML, or an annotation that is none of ours
        raise RecipeError(where, f"{raw!r}: {error}") from None


@cache
def _make_adapter(hint: Any) -> TypeAdapter[Any]:
    return TypeAdapter(hint, config=ConfigDict(strict=True, arbitrary_types_allowed=True))


def _describe_hint(hint: Any) -> str:
    """Return the type of an annotation, in words."""
    names: dict[Any, str] = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
    origin = typing.get_origin(hint)
    if origin is Mapping:
        return "a table"
    many = origin is tuple and Ellipsis in typing.get_args(hint)
    return "a list" if many else names.get(hint, str(hint).replace("typing.", ""))


def _describe_expected(choices: list[Any], error: ValidationError, raw: Any) -> str:
    for choice in choices:
        if typing.get_origin(choice) is Literal:
            known = [str(x) for x in typing.get_args(choice)]
            near = nearest(str(raw), known)
            return f"one of {', '.join(map(repr, known))}" + (f"; {near}" if near.startswith("did you") else "")
    first, message = error.errors()[0], " or ".join(map(_describe_hint, choices))
    place = ".".join(str(x) for x in first["loc"] if isinstance(x, int))
    return f"{message} (entry {place}: {first['msg']})" if place else message


def join_key(where: str, key: str) -> str:
    """Return the dotted key of an entry of the table at `where`."""
    return f"{where}.{format_path((key,))}" if where else format_path((key,))
