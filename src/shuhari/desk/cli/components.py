"""`components`: what there is to name in a recipe, and what the settings of one are. Nothing is trained or read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from shuhari.desk.cli.catalogue import Json
from shuhari.desk.cli.text import print_json, print_table, say
from shuhari.desk.components import INFINITIES, describe, summarise


def complete_kind(incomplete: str) -> list[str]:
    """Kinds that begin so."""
    from shuhari.kernel.registry import KINDS

    return [kind for kind in sorted(KINDS) if kind.startswith(incomplete)]


def complete_name(ctx: typer.Context, incomplete: str) -> list[str]:
    """Components of the kind that was typed, which begin so."""
    from shuhari.kernel import registry

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
    from shuhari.kernel import registry

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
        for s in shown["settings"]:
            if s["doc"]:
                say(f"{s['name']}: {s['doc']}")
    for key, value in shown["declares"].items():
        say(f"{key:<8} {', '.join(map(str, value)) if isinstance(value, list) else value}")
    if shown["note"]:
        say(shown["note"])
    if shown["module"]:
        say(f"\nIts module\n\n{shown['module']}")


def _cut(text: str, limit: int = 110) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1].rstrip()}…"


def _list_all(kind: str = "") -> list[tuple[str, str]]:
    """(kind, name) of each component, of one kind or of all."""
    from shuhari.kernel import registry

    return [
        (k, n)
        for k in ([kind] if kind else registry.KINDS)
        for n in registry.names(k)
    ]


def _find_of_any_kind(text: str) -> tuple[str, str]:
    """(kind, name) of the one component that is called so, or that a file or a dotted path registers."""
    from shuhari.data import nearest
    from shuhari.kernel.registry import KINDS, known_as, locate

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


def _format_default(setting: Mapping[str, Any]) -> str:
    if setting["required"]:
        return "(required)"
    value = setting["default"]
    if isinstance(value, str):
        return value if value in map(str, INFINITIES) else repr(value)
    return str(value).lower() if isinstance(value, bool) else str(value)
