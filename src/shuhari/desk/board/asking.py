"""Queries of views: parameters are checked by the annotations of the view, with errors that name the nearest."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_origin, get_type_hints

from pydantic import TypeAdapter, ValidationError

from shuhari.desk.serving.refusals import Refused, show, unknown


def read_query(view: Callable[..., Any], given: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Parse the arguments of `view`, except the first, from a query: a list parameter takes every value given under its
    name, others the last. Raises Refused for an unknown, missing or invalid one."""
    _, *parameters = inspect.signature(view).parameters.values()
    kinds, plain = get_type_hints(view, include_extras=True), get_type_hints(view)
    names = [p.name for p in parameters]
    for name in given:
        if name not in names:
            raise unknown(name, names, "the query")
    out = {}
    for p in parameters:
        if p.name not in given:
            if p.default is p.empty:
                raise Refused(f"the query lacks {p.name}", p.name)
            continue
        several = get_origin(plain[p.name]) in (list, Sequence)
        value: Any = list(given[p.name]) if several else given[p.name][-1]
        try:
            out[p.name] = TypeAdapter(kinds[p.name]).validate_python(value)
        except ValidationError as error:
            why = str(error.errors()[0]["msg"])
            raise Refused(f"{p.name} is {show(value)}: {why[:1].lower()}{why[1:]}", p.name) from None
    return out
