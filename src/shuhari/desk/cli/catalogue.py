"""`methods` and `tasks`: list recipes and tasks."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from shuhari.desk.cli.options import check_together
from shuhari.desk.cli.text import NOTHING, make_printable, note, print_json, print_table, say
from shuhari.kernel.abilities import ability

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def methods(
    words: Annotated[
        list[str] | None, typer.Argument(help="Only those in whose name, summary or verdict all stand.")
    ] = None,
    trouble: Annotated[
        str | None, typer.Option("--for", metavar="TROUBLE", help="Only those against a trouble; `all` lists troubles.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="All, with what each does; otherwise names by family.")] = False,
    json: Json = False,
) -> None:
    """List the recipes by family. With words, --for or --all: name, the verdict of its claim, what each does; then the
    beds that methods are measured on.

    Example: shuhari methods --for "entropy collapse"
    """
    from dataclasses import asdict

    from shuhari.config.library import BEDS, CONTROL, TROUBLES
    from shuhari.data import nearest
    from shuhari.lab.claims.kept_results import list_methods as listed

    if not (words or trouble or every or json):
        _say_families()
        return
    if trouble == "all":
        print_json(TROUBLES) if json else print_table(("trouble", "how it shows"), TROUBLES.items())
        return
    if trouble is not None and (trouble := trouble.strip().lower()) not in TROUBLES:
        near, exact = _find_troubles(trouble, TROUBLES)
        if len(near) != 1 or not exact:
            guess = f"did you mean {' or '.join(map(repr, near))}?" if near else nearest(trouble, TROUBLES)
            message = f"expected a trouble, got {trouble!r}; {guess} (`shuhari methods --for all` lists them)"
            raise typer.BadParameter(message, param_hint="--for")
        (trouble,) = near

    wanted = [word.lower() for word in words or ()]
    found = [(m, _describe_verdict(m)) for m in listed() if trouble is None or trouble in m.helps]
    texts = {m.name: f"{m.name} {m.summary} {v or ''}".lower() for m, v in found}
    found = [
        (m, v)
        for m, v in found
        if all(w in texts[m.name] for w in wanted)
    ]
    if json:
        print_json([asdict(m) for m, _ in found])
    if not found:
        which = f" of those against {trouble}" if trouble else ""
        known = {
            part
            for m in listed()
            for part in (m.name, *m.name.split("/"))
        }
        unknown = [
            word
            for word in wanted
            if not any(word in text for text in texts.values())
        ]
        near = [guess for word in unknown if (guess := nearest(word, known)).startswith("did you mean")]
        near += [
            f"--for {t!r} goes by that trouble"
            for word in unknown
            for t in _find_troubles(word, TROUBLES)[0][:1]
        ]
        what = f"no recipe{which} has {' and '.join(wanted) or 'anything'} in its name, summary or verdict"
        note("; ".join([what, *near]))
        raise typer.Exit(NOTHING)
    if json:
        return
    for m, verdict in found:
        if m.family != BEDS:
            _say_method(m, verdict)
    beds = [m for m, _ in found if m.family == BEDS and CONTROL not in m.name.split("/")]
    if beds:
        say("\nBeds, and what is seen there:\n")
    for m in beds:
        _say_method(m, None)


def _say_families() -> None:
    """Print the names of all recipes by family, those of beds by bed, without the verdicts, which take long to read."""
    from textwrap import fill

    from shuhari.config.library import BEDS, CONTROL, list_recipes

    families: dict[str, list[str]] = {}
    for one in list_recipes():
        *family, last = one.name.split("/") if one.problem is None else (one.name, f"({one.problem})")
        if family[:1] != [BEDS] or CONTROL not in family:
            families.setdefault("/".join(family), []).append(last)
    first = ("baselines", "pretrained")
    for name, of in sorted(families.items(), key=lambda item: (item[0].startswith(BEDS), item[0] not in first)):
        text = f"{name}/ ({len(of)}): {', '.join(of)}"
        say(fill(text, 80, subsequent_indent="    ", break_on_hyphens=False, break_long_words=False))
    say("\n`shuhari methods WORD ...`: what those do whose name, summary or verdict has the words, as `rlvr/`")
    say("--for TROUBLE: those against it (`--for all` lists troubles); --all: everything")


def _find_troubles(text: str, troubles: Mapping[str, str]) -> tuple[list[str], bool]:
    """Return the troubles that match most words of a text, exactly or otherwise allowing misspellings; and whether they
    match exactly."""
    for exact in (True, False):
        found = {
            t: sum(_stands(word, f"{t} {sign}", exact) for word in text.split())
            for t, sign in troubles.items()
        }
        if best := max(found.values(), default=0):
            return [t for t, n in found.items() if n == best], exact
    return [], False


def _stands(word: str, text: str, exact: bool) -> bool:
    from difflib import get_close_matches

    return len(word) > 2 and (word in text if exact else bool(get_close_matches(word, text.split(), 1, 0.75)))


def _say_method(method: Any, verdict: str | None) -> None:
    """Print a recipe in lines of 80 columns."""
    from textwrap import fill

    head = f"{method.name}: {verdict}" if verdict else method.name
    say(fill(head, 80, subsequent_indent=" " * 8, break_on_hyphens=False))
    about = method.summary if method.problem is None else f"({method.problem})"
    say(fill(about, 80, initial_indent="    ", subsequent_indent="    "))


def _describe_verdict(method: Any) -> str | None:
    """Return the verdict on a recipe's claim; None if it has no claim."""
    from shuhari.config.recipe import load
    from shuhari.lab.claims.kept_results import read_result
    from shuhari.lab.claims.wording import describe_verdict

    if method.problem is not None:
        return None
    if method.verdict is None:
        return "not measured" if load(method.name).tree.get("claim") else None
    kept = read_result(method.name)
    assert kept is not None
    return describe_verdict(kept, now=True)


READS = {"": "--json", "NAME": "-n --split --set --json"}


def tasks(
    ctx: typer.Context,
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

    check_together(ctx, READS)
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
    from shuhari.config.overlay import lay, nest, parse_setting
    from shuhari.tasks import catalogue

    given: dict[str, Any] = {}
    for path, value in map(parse_setting, sets):
        lay(given, nest(path, value), "--set", {})
    task = make_component("task", {"name": name, **given})
    shown = catalogue.preview(task, n, split)
    if json:
        print_json(shown)
    if not shown:
        note(f"split {split!r} of {name} has no problems")
        raise typer.Exit(NOTHING)
    if json:
        return
    if (spaces := task.spaces()) is not None:
        say(f"observations: {spaces[0]}")
        say(f"actions:      {spaces[1]}")
        if (limit := _find_limit(task)) is not None:
            say(f"an episode has at most {limit} steps")
    more = sorted({
        k
        for p in shown
        for k in p["info"]
    })
    shown_by_default = [
        k
        for k in ("id", "prompt", "answer", "solution")
        if any(p[k] is not None for p in shown)
    ]
    rows = [
        (
            *(_shorten(p[k]) for k in shown_by_default),
            *(_shorten(p["info"].get(k)) for k in more),
        )
        for p in shown
    ]
    if shown_by_default != ["id"] or more:  # an episode of an environment is only its seed
        print_table((*shown_by_default, *more), rows)
    own = {k: v for k in inspect.signature(type(task)).parameters if _is_plain(v := getattr(task, k, None))}
    say("settings: " + ", ".join(f"{k} = {v!r}" for k, v in own.items()))


def _is_plain(value: Any) -> bool:
    return isinstance(value, bool | int | float | str | tuple)


def _find_limit(task: Any) -> int | None:
    """Return the time limit of a Gymnasium environment; None for other tasks, or without a limit."""
    make = ability(task, "make")
    if make is None:
        return None
    env = make()
    try:
        return env.spec.max_episode_steps if env.spec is not None else None
    finally:
        env.close()


def _read_example(entry: dict[str, Any]) -> str:
    if entry["problem"]:
        return f"({entry['problem']})"
    shown = entry["example"]
    if not shown or (shown["answer"] is None and entry["spaces"] != "text"):
        return str(entry["spaces"])
    return " -> ".join(_shorten(shown[k]) for k in ("prompt", "answer") if shown[k] is not None)


def _shorten(value: Any) -> str:
    return "-" if value is None else make_printable(str(value), 120).replace("\n", "⏎")
