"""`components`: what there is to name in a recipe, and what the settings of one are. Nothing is trained or read."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, asdict, fields, is_dataclass
from types import MappingProxyType
from typing import Annotated, Any, Literal, Union

import typer

from shuhari.cli.catalogue import Json
from shuhari.cli.text import print_json, print_table, say

WORDS: dict[Any, str] = {
    int: "whole number", float: "number", bool: "true or false", str: "text", type(None): "nothing"
}  # fmt: skip
INFINITIES = (float("inf"), -float("inf"))
SHOWN = ("reads", "stamps", "roles", "needs", "hears", "couples", "links", "least_n")  # of what it declares, in order


def complete_kind(incomplete: str) -> list[str]:
    """Kinds that begin so."""
    from shuhari.registry import KINDS

    return [kind for kind in sorted(KINDS) if kind.startswith(incomplete)]


def complete_name(ctx: typer.Context, incomplete: str) -> list[str]:
    """Components of the kind that was typed, which begin so."""
    from shuhari import registry

    kind = ctx.params.get("kind") or ""
    return [n for n in registry.names(kind) if n.startswith(incomplete)] if kind in registry.KINDS else []


def components(
    kind: Annotated[
        str, typer.Argument(help="One kind, or the name of a component.", autocompletion=complete_kind)
    ] = "",
    name: Annotated[
        str, typer.Argument(help="One component, also as file.py:Class.", autocompletion=complete_name)
    ] = "",
    json: Json = False,
) -> None:
    """List the components (losses, rewards, models, ...) that a recipe may name, or show the settings of one.

    Example: shuhari components transform gae
    """
    from shuhari import registry

    if kind and not name and kind not in registry.KINDS:
        kind, name = _find_of_any_kind(kind)
    if not name:
        found = [summarise(*key) for key in sorted(_list_all(kind))]
        if json:
            print_json(found)
            return
        print_table(("kind", "name", "what it is"), [(c["kind"], c["name"], _cut(c["summary"])) for c in found])
        say("shuhari components KIND NAME shows the settings of one")
        return
    try:
        shown = describe(kind, name)
    except LookupError as error:
        raise typer.BadParameter(str(error.args[0]), param_hint="NAME") from None
    if json:
        print_json(shown)
        return
    say(f"{shown['kind']} {shown['name']}  ({shown['class']})")
    say(f"\n{shown['doc']}\n")
    if shown["settings"]:
        rows = [(s["name"], s["type"], s["bounds"], _format_default(s)) for s in shown["settings"]]
        print_table(("setting", "type", "expected", "default"), rows)
    for key, value in shown["declares"].items():
        say(f"{key:<8} {', '.join(map(str, value)) if isinstance(value, list) else value}")
    if shown["note"]:
        say(shown["note"])


def _cut(text: str, limit: int = 110) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1].rstrip()}…"


def _list_all(kind: str = "") -> list[tuple[str, str]]:
    """(kind, name) of each component, of one kind or of all."""
    from shuhari import registry

    return [(k, n) for k in ([kind] if kind else registry.KINDS) for n in registry.names(k)]


def _find_of_any_kind(text: str) -> tuple[str, str]:
    """(kind, name) of the one component that is called so, or that a file or a dotted path registers."""
    from shuhari.data import nearest
    from shuhari.registry import KINDS, known_as, locate

    found = [(k, n) for k, n in _list_all() if n == text]
    if not found and ("." in text or ":" in text):
        try:
            found = known_as(locate("component", text, {n for _, n in _list_all()}))
        except LookupError as error:
            raise typer.BadParameter(str(error.args[0]), param_hint="KIND") from None
        if not found:
            message = f"{text} is registered as no component: say its kind too, shuhari components KIND {text}"
            raise typer.BadParameter(message, param_hint="KIND")
    if len(found) == 1:
        return found[0]
    if found:
        message = f"{text!r} is the name of several: {', '.join(f'{k} {n}' for k, n in found)}"
    else:
        message = f"no kind and no component {text!r}; {nearest(text, [*KINDS, *(n for _, n in _list_all())])}"
    raise typer.BadParameter(message, param_hint="KIND")


def summarise(kind: str, name: str) -> dict[str, Any]:
    """`kind`, `name`, and the first paragraph of its docstring."""
    from shuhari import registry

    try:
        doc = inspect.getdoc(registry.find(kind, name)) or ""
    except LookupError as error:  # of an installed package that cannot be imported
        doc = f"({error.args[0]})"
    return {"kind": kind, "name": name, "summary": doc.partition("\n\n")[0].replace("\n", " ")}


def describe(kind: str, name: str) -> dict[str, Any]:
    """All that is known of a component before it is made: `doc`, `settings` (name, type, bounds, default, required) and
    what it `declares` with its defaults (`note`: why not, where that hangs on settings that it needs). LookupError for
    a kind or a component that there is not."""
    from shuhari import registry
    from shuhari.data import nearest

    if kind not in registry.KINDS:
        raise LookupError(f"no kind of component {kind!r}; {nearest(kind, registry.KINDS)}")
    cls: Any = registry.find(kind, name)
    if not isinstance(cls, type) or not is_dataclass(cls):
        raise LookupError(f"{kind} {name!r} is no dataclass: its init fields are its settings")
    preset = registry.preset(kind, name)
    settings = describe_settings(cls, preset)
    declared, note = _read_declared(cls, preset, settings)
    return {
        "kind": kind,
        "name": name,
        "class": f"{cls.__module__}.{cls.__qualname__}",
        "doc": inspect.getdoc(cls) or "",
        "settings": settings,
        "declares": declared,
        "note": note,
    }


def describe_settings(cls: Any, preset: Mapping[str, Any] = MappingProxyType({})) -> list[dict[str, Any]]:
    """The settings of a dataclass: name, type, bounds, default, required. preset: defaults in the place of its own."""
    from shuhari import bounds

    hints = bounds.hints(cls)
    return [_describe_setting(f, hints[f.name], preset) for f in fields(cls) if f.init]


def _describe_setting(f: Field[Any], hint: Any, preset: Mapping[str, Any]) -> dict[str, Any]:
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


def _format_default(setting: Mapping[str, Any]) -> str:
    if setting["required"]:
        return "(required)"
    value = setting["default"]
    if isinstance(value, str):
        return value if value in map(str, INFINITIES) else repr(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def _to_plain(value: Any) -> Any:
    """A default as JSON writes it."""
    if is_dataclass(value) and not isinstance(value, type):
        return _to_plain(asdict(value))
    if isinstance(value, Mapping):
        return {k: _to_plain(v) for k, v in value.items()}
    if isinstance(value, tuple | list):
        return [_to_plain(v) for v in value]
    return str(value) if value in INFINITIES else value


def _describe_types(hint: Any) -> Iterator[str]:
    """What may stand there, in words."""
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
    """What it says of itself with its defaults, and a note where it cannot be made by them."""
    from shuhari.ports.declares import Declares, declares

    if any(s["required"] for s in settings):
        return {}, "what it reads and writes depends on the settings that it needs"
    try:
        declared = declares(cls(**preset))
    except Exception as error:  # a listing shows what there is, whatever a component needs to be made
        return {}, f"what it reads and writes is known once it is made: {error}"
    silent = Declares()
    out = {key: getattr(declared, key) for key in SHOWN if getattr(declared, key) != getattr(silent, key)}
    if "needs" in out:
        out["needs"] = [f"{need.key}{' (live)' if need.live else ''}" for need in out["needs"]]
    return {k: list(v) if isinstance(v, tuple) else v for k, v in out.items()}, ""
