"""A JSON schema of recipes, by which editors complete keys and show what each setting is.

`shuhari components --schema` prints it. Left out: what only the loop checks (bounds of numbers, columns, roles; the
descriptions name the bounds); an editor that finds no fault does not mean that `train --dry-run` finds none.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Annotated, Any, Literal, Union

from shuhari.config.overlay import NAMED, SINGLE, USE
from shuhari.desk.sentences import ALONE, NAMED_USES, ROLES, SECTIONS

NUMBER = ["number", "string"]  # a name such as `max_new` or `inf` stands for a number too
PLAIN: dict[Any, Any] = {int: NUMBER, float: NUMBER, bool: "boolean", str: "string", type(None): "null"}
TABLE: dict[str, Any] = {"type": "object"}


def make_schema() -> dict[str, Any]:
    """The schema of a recipe (draft 7): the keys at its top, and for each kind of component the settings by `use`."""
    from shuhari.config.distributed import Distributed
    from shuhari.config.evaluation import Evaluation
    from shuhari.config.stage import Checkpointing
    from shuhari.data import Sampling
    from shuhari.learners.parts import Part, Term

    properties: dict[str, Any] = {key: {"description": text} for key, text in SECTIONS.items()}
    for key in (*SINGLE, *NAMED):
        properties[key] |= TABLE
    for key in ALONE:
        properties[key] |= _refer(key, USE.get(key, ""))
    for key, (kind, default) in NAMED_USES.items():
        properties[key]["additionalProperties"] = _refer(kind, "" if default == "?" else default)
    for key, cls in {"evaluate": Evaluation, "store": Checkpointing, "distributed": Distributed}.items():
        properties[key]["properties"] = _list_settings(cls)
    properties["reward"]["properties"] = {"weights": TABLE, "beside": TABLE}
    optimiser, sampling = _refer("optimiser", USE["optimiser"]), TABLE | {"properties": _list_settings(Sampling)}
    term = TABLE | {"properties": {"use": {"type": "string"}, **_list_settings(Term)}}
    part = _list_settings(Part) | {"optimiser": optimiser, "terms": TABLE | {"additionalProperties": term}}
    properties["part"]["additionalProperties"] = TABLE | {"properties": part}
    properties["rollout"] = {"allOf": [properties["rollout"], {"properties": {"sampling": sampling}}]}
    stage = {k: v for k, v in properties.items() if k != "stage"}
    properties["stage"]["additionalProperties"] = TABLE | {"properties": stage}
    kinds = sorted({*ALONE, *(kind for kind, _ in NAMED_USES.values()), "optimiser", "objective"})
    return {"$schema": "http://json-schema.org/draft-07/schema#", "title": "A recipe of shuhari", "type": "object",
            "properties": properties, "definitions": {kind: _describe_kind(kind) for kind in kinds}}  # fmt: skip


def _refer(kind: str, default: str) -> dict[str, Any]:
    told = f"; `{default}` if `use` is not set" if default else ""
    return {"allOf": [{"$ref": f"#/definitions/{kind}"}], "title": f"{kind}{told}"}


def _describe_kind(kind: str) -> dict[str, Any]:
    """A component of a kind: `use`, and by it the settings."""
    from shuhari.kernel import registry

    names = sorted(registry.names(kind))
    roles = {key: {"description": text} for key, text in ROLES.items()} if kind == "model" else {}
    cases = [
        {"if": {"properties": {"use": {"const": name}}, "required": ["use"]},
         "then": {"properties": _list_settings(registry.find(kind, name))}}
        for name in names
    ]  # fmt: skip
    use = {"type": "string", "examples": names, "description": f"The {kind}: a name, or file.py:Class."}
    return TABLE | {"properties": {"use": use, **roles}, "allOf": cases}


def _list_settings(cls: Any) -> dict[str, Any]:
    """Setting -> its type and sentence, of a dataclass."""
    from shuhari import bounds
    from shuhari.kernel.field_docs import read_field_docs

    found: Any = cls
    if not is_dataclass(cls):
        return {}
    hints, docs = bounds.hints(found), read_field_docs(found)
    return {
        f.name: {**_describe_type(hints[f.name]), "description": docs.get(f.name, "")}
        for f in fields(found)
        if f.init
    }


def _describe_type(hint: Any) -> dict[str, Any]:
    """The JSON type of an annotation; {} for what may be anything, such as a component or a schedule."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return _describe_type(inner[0])
    if origin is Literal:
        return {"enum": list(inner)}
    if origin in (Union, types.UnionType):
        found = [_describe_type(one) for one in inner]
        return {"anyOf": found} if all(found) else {}
    if origin is tuple:
        return {"type": "array", "items": _describe_type(inner[0])} if inner else {"type": "array"}
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return dict(TABLE)
    return {"type": PLAIN[hint]} if hint in PLAIN else {}
