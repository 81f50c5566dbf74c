"""`methods` and `tasks`: list recipes and tasks."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from shuhari.cli.text import make_printable, note, print_json, print_table, say

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def methods(json: Json = False) -> None:
    """List the recipes: name, what each does, and the verdict of its claim; then the beds that methods are measured on.

    Example: shuhari methods --json
    """
    from dataclasses import asdict

    from shuhari.config.library import BEDS, CONTROL
    from shuhari.config.recipe import list_methods as listed

    found = listed()
    if json:
        print_json([asdict(m) for m in found])
        return
    rows = [(m, m.summary if m.problem is None else f"({m.problem})") for m in found]
    print_table(
        ("method", "summary", "verdict"), [(m.name, x, _describe_verdict(m)) for m, x in rows if m.family != BEDS]
    )
    say("")
    beds = [(m.name, x) for m, x in rows if m.family == BEDS and CONTROL not in m.name.split("/")]
    print_table(("bed", "what is seen there"), beds)


def _describe_verdict(method: Any) -> str | None:
    """The verdict of its claim, and whether the library has changed since; None where it states none."""
    from shuhari.claims.sources import is_older
    from shuhari.config.library import read_result
    from shuhari.config.recipe import load

    if method.problem is not None:
        return None
    if method.verdict is None:
        return "not measured" if load(method.name).tree.get("claim") else None
    kept = read_result(method.name)
    assert kept is not None
    marks = ["older rule"] * ("headline" not in kept) + ["exploratory"] * bool(kept.get("exploratory"))
    marks += ["stale"] if method.stale else ["older core"] if is_older(kept["hashes"]) else []
    return f"{method.verdict} ({', '.join(marks)})" if marks else str(method.verdict)


def tasks(
    name: Annotated[str, typer.Argument(help="A task to look at; all are listed without it.")] = "",
    n: Annotated[int, typer.Option("-n", min=1, help="How many problems to show.")] = 3,
    split: Annotated[str, typer.Option(help="Of which split.")] = "train",
    sets: Annotated[list[str] | None, typer.Option("--set", help="A setting of the task: key=value.")] = None,
    json: Json = False,
) -> None:
    """List the tasks, or preview problems of one.

    Example: shuhari tasks arithmetic -n 5 --set digits=3
    """
    from shuhari.tasks import catalogue

    if name:
        _preview(name, n, split, sets or [], json)
        return
    found = catalogue.list_tasks()
    if json:
        print_json(found)
        return
    rows = [(t["name"], t["summary"], _read_example(t)) for t in found]
    print_table(("task", "what it is", "example"), rows)
    say("shuhari tasks NAME shows problems and settings of one")


def _preview(name: str, n: int, split: str, sets: list[str], json: bool) -> None:
    from shuhari.config.build import make_component
    from shuhari.config.overlay import format_path, parse_setting
    from shuhari.tasks import catalogue

    given = dict((format_path(path), value) for path, value in map(parse_setting, sets))
    task = make_component("task", {"name": name, **given})
    shown = catalogue.preview(task, n, split)
    if json:
        print_json(shown)
        return
    if not shown:
        note(f"split {split!r} of {name} has no problems")
    more = sorted({k for p in shown for k in p["info"]})
    shown_by_default = ("id", "prompt", "answer", *(["solution"] if any(p["solution"] for p in shown) else []))
    rows = [(*(_shorten(p[k]) for k in shown_by_default), *(_shorten(p["info"].get(k)) for k in more)) for p in shown]
    print_table((*shown_by_default, *more), rows)
    own = {k: v for k, v in vars(task).items() if isinstance(v, bool | int | float | str | tuple)}
    say("settings: " + ", ".join(f"{k} = {v!r}" for k, v in own.items() if not k.startswith("_")))


def _read_example(entry: dict[str, Any]) -> str:
    if entry["problem"]:
        return f"({entry['problem']})"
    shown = entry["example"]
    if not shown:
        return str(entry["spaces"])
    return f"{_shorten(shown['prompt'])} -> {_shorten(shown['answer'])}"


def _shorten(value: Any) -> str:
    return "-" if value is None else make_printable(str(value), 120).replace("\n", "⏎")
