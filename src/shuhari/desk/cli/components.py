"""`components`: lists the components that a recipe may name, and the settings of one. Nothing is trained or read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from shuhari.desk.cli.catalogue import Json
from shuhari.desk.cli.text import print_json, print_table, say
from shuhari.desk.components import INFINITIES, describe, summarise


def complete_kind(incomplete: str) -> list[str]:
    """Return the kinds that begin with this."""
    from shuhari.kernel.registry import KINDS

    return [kind for kind in sorted(KINDS) if kind.startswith(incomplete)]


def complete_name(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the components of the given kind that begin with this."""
    from shuhari.kernel import registry

    kind = ctx.params.get("kind") or ""
    return [n for n in registry.names(kind) if n.startswith(incomplete)] if kind in registry.KINDS else []


def components(
    kind: Annotated[
        str, typer.Argument(help="One kind, the name of a component, or of a setting.", autocompletion=complete_kind)
    ] = "",
    name: Annotated[
        str, typer.Argument(help="One component, also as file.py:Class.", autocompletion=complete_name)
    ] = "",
    schema: Annotated[
        bool, typer.Option("--schema", help="Print a JSON schema of recipes, for the completion of editors.")
    ] = False,
    json: Json = False,
) -> None:
    """List the components (losses, rewards, models, ...) that a recipe may name, or show the settings of one.

    The name of a setting, such as `reduce`, shows what it means, and which components have it.

    Example: shuhari components transform gae
    """
    from shuhari.desk.sentences import list_meanings
    from shuhari.kernel import registry

    if schema:
        from shuhari.desk.json_schema import make_schema

        print_json(make_schema())
        return
    if kind and not name and kind not in registry.KINDS:
        known = {n for _, n in _list_all()}
        if kind.isidentifier() and kind not in known and (meanings := list_meanings(kind)):
            _show_meanings(kind, meanings, json)
            return
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
        for s in shown["settings"]:
            if s["doc"]:
                say(f"{s['name']}: {s['doc']}")
    for key, value in shown["declares"].items():
        say(f"{key:<8} {', '.join(map(str, value)) if isinstance(value, list) else value}")
    if shown["note"]:
        say(shown["note"])
    if shown["module"]:
        say(f"\nIts module\n\n{shown['module']}")


def _show_meanings(setting: str, meanings: Mapping[str, list[str]], json: bool) -> None:
    """Print each sentence that describes a setting of that name, with what has the setting."""
    if json:
        print_json([{"setting": setting, "doc": doc, "of": owners} for doc, owners in meanings.items()])
        return
    for doc, owners in meanings.items():
        more = f" and {len(owners) - 6} more" if len(owners) > 6 else ""
        say(f"{setting}, a setting of {', '.join(owners[:6])}{more}:")
        say(f"    {doc or 'no description'}\n")
    say("shuhari components KIND NAME shows all settings of one; docs/words.md has words with several meanings")


def _cut(text: str, limit: int = 110) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1].rstrip()}…"


def _list_all(kind: str = "") -> list[tuple[str, str]]:
    """Return (kind, name) of each component, of one kind or of all."""
    from shuhari.kernel import registry

    return [
        (k, n)
        for k in ([kind] if kind else registry.KINDS)
        for n in registry.names(k)
    ]


def _find_of_any_kind(text: str) -> tuple[str, str]:
    """Return (kind, name) of the one component of that name, or of the one registered by a file or a dotted path."""
    from shuhari.data import nearest
    from shuhari.kernel.registry import KINDS, known_as, locate

    found = [(k, n) for k, n in _list_all() if n == text]
    if not found and ("." in text or ":" in text):
        try:
            found = known_as(locate("component", text, {n for _, n in _list_all()}))
        except LookupError as error:
            raise typer.BadParameter(str(error.args[0]), param_hint="KIND") from None
        if not found:
            message = f"{text} registers no component: name its kind too, shuhari components KIND {text}"
            raise typer.BadParameter(message, param_hint="KIND")
    if len(found) == 1:
        return found[0]
    if found:
        message = f"{text!r} is the name of several: {', '.join(f'{k} {n}' for k, n in found)}"
    else:
        near = nearest(text, [*KINDS, *(n for _, n in _list_all())])
        message = f"expected a kind, a component or a setting, got {text!r}; {near}"
    raise typer.BadParameter(message, param_hint="KIND")


def _format_default(setting: Mapping[str, Any]) -> str:
    if setting["required"]:
        return "(required)"
    value = setting["default"]
    if isinstance(value, str):
        return value if value in map(str, INFINITIES) else repr(value)
    return str(value).lower() if isinstance(value, bool) else str(value)
