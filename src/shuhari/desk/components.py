"""Descriptions of a component without making it: its docstring, settings and declarations, as plain values for the
terminal and the board.
"""

from __future__ import annotations

import inspect
import re
import sys
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, asdict, fields, is_dataclass
from types import MappingProxyType
from typing import Annotated, Any, Literal, Union

from shuhari.kernel.field_docs import read_field_docs

WORDS: dict[Any, str] = {
    int: "whole number", float: "number", bool: "true or false", str: "text", type(None): "nothing"
}  # fmt: skip
INFINITIES = (float("inf"), -float("inf"))
SHOWN = ("reads", "stamps", "roles", "needs", "hears", "couples", "links", "least_n")  # declarations to show


_STOP = re.compile(r"(?<=\.)(?<!al\.)(?<!e\.g\.)\s+")  # not after "et al."


def take_sentence(doc: str) -> str:
    """Return the first sentence of a docstring, on one line."""
    return _STOP.split(" ".join(doc.partition("\n\n")[0].split()))[0]


def describe_setting(cls: Any, name: str) -> str:
    """Return the description of a setting: the docstring below it; otherwise, from the docstring of the class, what
    follows `name:`, or the clause that names it with its bounds (`name > 0`) or in backquotes. "" if there is none."""
    if own := read_field_docs(cls).get(name):
        return own.rstrip(".")
    text = " ".join((inspect.getdoc(cls) or "").split())
    if text.startswith(f"{cls.__name__}("):  # the generated docstring of a dataclass
        return ""
    word = rf"`?\b{re.escape(name)}\b`?"
    beside = rf"(?:`?\w+`?, )*{word}(?:, `?\w+`?)*"
    clauses = [
        clause
        for sentence in _STOP.split(text)
        for clause in _split(sentence, "; ")
    ]
    for begins in (rf"{beside}(?: [<>=][^:]*?)?: (.+)", rf"({beside} (?:[<>]|= |in \[).*)"):
        for clause in clauses:
            if found := re.match(begins, clause):
                return found[1].rstrip(".")
    pieces = [
        piece
        for clause in clauses
        for part in _split(clause, ": ")
        for piece in _split(part, ", ")
    ]
    named = next((piece.rstrip(".") for piece in pieces if f"`{name}`" in piece), "")
    return "" if named.startswith(("whose", "which", "of which")) else named  # half a sentence


def _split(text: str, mark: str) -> list[str]:
    """Split a text at marks outside brackets."""
    out = [""]
    for piece in text.split(mark):
        open_ = out[-1].count("(") + out[-1].count("[") > out[-1].count(")") + out[-1].count("]")
        out = [*out[:-1], f"{out[-1]}{mark}{piece}"] if open_ else [*out, piece]
    return [piece.strip() for piece in out if piece.strip()]


def summarise(kind: str, name: str) -> dict[str, Any]:
    """Return `kind`, `name`, and the first paragraph of its docstring."""
    from shuhari.kernel import registry

    try:
        doc = inspect.getdoc(registry.find(kind, name)) or ""
    except LookupError as error:  # of an installed package that cannot be imported
        doc = f"({error.args[0]})"
    return {"kind": kind, "name": name, "summary": doc.partition("\n\n")[0].replace("\n", " ")}


def describe(kind: str, name: str) -> dict[str, Any]:
    """Describe a component without making it: `doc`, the docstring of its `module`, `settings` (name, type, bounds,
    default, required, doc), and what it `declares` with its defaults (`note`: why not, if that depends on required
    settings). Raises LookupError for an unknown kind or component."""
    from shuhari.data import nearest
    from shuhari.kernel import registry

    if kind not in registry.KINDS:
        raise LookupError(f"expected a kind of component, got {kind!r}; {nearest(kind, registry.KINDS)}")
    cls: Any = registry.find(kind, name)
    if not isinstance(cls, type) or not is_dataclass(cls):
        raise LookupError(f"{kind} {name!r} is not a dataclass: its init fields are its settings")
    preset = registry.preset(kind, name)
    settings = describe_settings(cls, preset)
    declared, note = _read_declared(cls, preset, settings)
    return {
        "kind": kind,
        "name": name,
        "class": f"{cls.__module__}.{cls.__qualname__}",
        "doc": inspect.getdoc(cls) or "",
        "module": _read_module(cls),
        "settings": settings,
        "declares": declared,
        "note": note,
    }


def _read_module(cls: type) -> str:
    """Return the docstring of the module of a class; "" if it has none, or is no longer loaded."""
    module = sys.modules.get(cls.__module__)
    return inspect.cleandoc(module.__doc__ or "") if module else ""


def describe_settings(cls: Any, preset: Mapping[str, Any] = MappingProxyType({})) -> list[dict[str, Any]]:
    """Return the settings of a dataclass: name, type, bounds, default, required, doc (the docstring below it). preset:
    defaults that replace its own."""
    from shuhari import bounds

    hints = bounds.hints(cls)
    docs = read_field_docs(cls)
    return [_read_setting(f, hints[f.name], preset) | {"doc": docs.get(f.name, "")} for f in fields(cls) if f.init]


def _read_setting(f: Field[Any], hint: Any, preset: Mapping[str, Any]) -> dict[str, Any]:
    own = f.default if f.default_factory is MISSING else f.default_factory()
    default = preset.get(f.name, own)
    required = default is MISSING
    bounds = dict.fromkeys(bound for bound in _describe_bounds(hint))
    return {
        "name": f.name,
        "type": " or ".join(dict.fromkeys(_describe_types(hint))),
        "bounds": "; ".join(bounds),
        "default": None if required else _to_plain(default),
        "required": required,
    }


def _to_plain(value: Any) -> Any:
    """Convert a default to JSON."""
    if is_dataclass(value) and not isinstance(value, type):
        return _to_plain(asdict(value))
    if isinstance(value, Mapping):
        return {k: _to_plain(v) for k, v in value.items()}
    if isinstance(value, tuple | list):
        return [_to_plain(v) for v in value]
    return str(value) if value in INFINITIES else value


def _describe_types(hint: Any) -> Iterator[str]:
    """Yield the allowed types in words."""
    from shuhari.config.settings import KINDS
    from shuhari.data import Ramp, with_article

    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        yield from _describe_types(inner[0])
    elif origin in (Union, types.UnionType):
        for choice in inner:
            yield from _describe_types(choice)
    elif origin is Literal:
        yield "one of " + ", ".join(repr(x) for x in inner)
    elif origin is tuple:
        yield f"list of {' or '.join(_describe_types(inner[0]))}" if inner else "list"
    elif isinstance(origin, type) and issubclass(origin, Mapping):
        yield f"table of name = {' or '.join(_describe_types(inner[-1]))}"
    elif hint is Ramp:
        yield "schedule"
    elif hint in KINDS:
        yield with_article(KINDS[hint])
    else:
        table = isinstance(hint, type) and is_dataclass(hint)
        name = f"table ({hint.__name__})" if table else str(hint).replace("typing.", "")
        yield WORDS.get(hint, name)


def _describe_bounds(hint: Any) -> Iterator[str]:
    from shuhari.bounds import Bounds

    if typing.get_origin(hint) is Annotated:
        yield from (str(x) for x in typing.get_args(hint)[1:] if isinstance(x, Bounds))
    if typing.get_origin(hint) is not Literal:
        for inner in typing.get_args(hint):
            yield from _describe_bounds(inner)


def _read_declared(cls: Any, preset: Mapping[str, Any], settings: list[dict[str, Any]]) -> tuple[dict[str, Any], str]:
    """Return the declarations of a component with its defaults, and a note if it cannot be made with them."""
    from shuhari.ports.declares import Declares, declares

    if isinstance(reads := vars(cls).get("reads"), str):  # an analysis of runs, which declares no columns
        return {"reads": reads}, ""
    if any(s["required"] for s in settings):
        return {}, "what it reads and writes depends on the settings that it needs"
    try:
        declared = declares(cls(**preset))
    except Exception as error:  # a listing goes on, whatever a component needs to be made
        return {}, f"what it reads and writes is known once it is made: {error}"
    silent = Declares()
    out = {key: getattr(declared, key) for key in SHOWN if getattr(declared, key) != getattr(silent, key)}
    if "needs" in out:
        out["needs"] = [f"{need.key}{' (live)' if need.live else ''}" for need in out["needs"]]
    return {k: list(v) if isinstance(v, tuple) else v for k, v in out.items()}, ""
