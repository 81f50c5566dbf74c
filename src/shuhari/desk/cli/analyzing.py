"""`analyze`: answers to common questions about runs, with intervals, a picture and JSON."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shuhari.desk.cli.measuring import format_interval
from shuhari.desk.cli.options import check_together
from shuhari.desk.cli.text import note, print_json, print_table, say

if TYPE_CHECKING:
    from shuhari.desk.evaluating import Asked
    from shuhari.kernel.findings import Finding

HEAD = ("number", "value", "95 % interval", "null", "what it is")
READS = {
    "": "NAME --set --seed --json",
    "RUN...": "NAME --task --reward --set --seed --plot --out --json",
    "--packaged": "NAME --runs --out --json",
    "--show": "NAME --out --json",
}


def analyze(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="An analysis; none: list them.")] = "",
    given: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RUN...",
            help="Runs (a path, a name under runs/, `latest`, RUN@step, RUN@start), models, or files of curves: "
            "trainer_state.json of TRL, progress.csv and monitor.csv of Stable-Baselines3, CSV, TSV, Parquet.",
        ),
    ] = None,
    packaged: Annotated[
        bool, typer.Option("--packaged", help="Train the runs of its packaged finding, and keep what is found.")
    ] = False,
    show: Annotated[bool, typer.Option("--show", help="Print its packaged finding, as it is kept.")] = False,
    task: Annotated[str, typer.Option(help="Other problems: file/problems.jsonl, or any task.")] = "",
    reward: Annotated[
        list[str] | None, typer.Option(help="Another grader: maths, rewards.py:function, NAME=USE.")
    ] = None,
    sets: Annotated[
        list[str] | None, typer.Option("--set", help="A setting of the analysis, such as samples=64; may be repeated.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of its draws.")] = 0,
    png: Annotated[
        Path | None, typer.Option("--png", "--plot", help="Where the picture goes: .png, .svg or .pdf.")
    ] = None,
    runs: Annotated[
        Path, typer.Option(help="With --packaged: where runs are made; what is there is used again.")
    ] = Path("runs/findings"),
    out: Annotated[
        Path | None, typer.Option(help="Where JSON and picture go (default: runs/analyses; with --packaged: results).")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Answer a question about runs: numbers with 95 % intervals, a picture, JSON. Without a name, list the analyses.

    Analyses of curves read any program's; those that play policies need runs of shuhari, or models with --task. Which
    run comes first is in its help (`shuhari components run_analysis NAME`). A packaged finding is the
    same analysis on runs that it trains itself, on three seeds, beside a null.

    Example: shuhari analyze scaling runs/a --set metric=evaluate/greedy

    Example: shuhari analyze pass_at_k runs/start runs/rl --set samples=64

    Example: shuhari analyze scaling out/trainer_state.json --set metric=reward
    """
    from shuhari.desk.analyzing import running

    check_together(ctx, READS)
    if not name:
        _list(json)
        return
    if packaged or show:
        _show_packaged(name, show, runs, out or Path("results"), json)
        return
    if not given:
        _analyze_alone(name, sets or [], seed, json)
        return
    from shuhari.config.overlay import read_settings
    from shuhari.desk.analyzing.given import Names
    from shuhari.desk.cli.pulse import Pulse

    settings = read_settings(sets or [])
    names = Names(tuple(given), seed, _read_asked(task, reward or []), note)
    with _explain(), Pulse(what="the analysis"):
        found = running.analyze(name, names, settings)
    kept = running.to_json(name, names, settings, found)
    at = running.name_files(name, given, out or Path("runs/analyses"))
    path = running.write_kept(kept, at.with_name(at.name + ".json"))
    drawn = None
    if found.panels:
        drawn = running.draw_finding(found, png or at.with_name(at.name + ".png"), f"{name}: {', '.join(given)}"[:100])
    if json:
        print_json({**kept, "picture": drawn})
        return
    show_finding(found)
    say(f"kept: {path}" + (f"; picture: {drawn}" if drawn else ""))


def show_finding(found: Finding) -> None:
    """Print the numbers of a finding, its table and its notes."""
    rows = [(key, x.value, format_interval(x.low, x.high), None if math.isnan(x.null) else x.null, x.says)
            for key, x in found.numbers.items()]  # fmt: skip
    print_table(HEAD, rows)
    if found.rows:
        print_table(list(found.heads), found.rows)
    for text in found.notes:
        note(text)


def _read_asked(task: str, reward: Sequence[str]) -> Asked:
    from shuhari.desk.evaluating import Asked, make_graders, make_task

    return Asked(make_task({"name": task}) if task else None, make_graders(reward) if reward else None)


def _list(json: bool) -> None:
    from shuhari.desk.analyzing import running
    from shuhari.desk.components import summarise
    from shuhari.kernel import registry

    packaged = {one.stated.analysis: one for one in running.list_packaged().values()}
    rows = [
        {"name": name, "reads": vars(registry.find(kind, name)).get("reads", "nothing"),
         "finding": packaged[name].name if name in packaged else "", "answers": summarise(kind, name)["summary"]}
        for name, kind in running.list_analyses().items()
    ]  # fmt: skip
    if json:
        print_json(rows)
        return
    print_table(("analysis", "reads", "packaged finding", "answers"), [tuple(row.values()) for row in rows])
    say("shuhari analyze NAME RUN...; its settings: shuhari components run_analysis NAME")


def _analyze_alone(name: str, sets: Sequence[str], seed: int, json: bool) -> None:
    """Run an analysis that reads no runs, on one seed; for any other, the error names what to give."""
    from shuhari.config.overlay import read_settings
    from shuhari.desk.analyzing import running

    with _explain():
        kind, analysis = running.make_analysis(name, read_settings(sets))
        if kind != running.ALONE:
            one = running.find_packaged(name)
            packaged = f", or --packaged for the runs of {one.name}" if one else ""
            raise typer.BadParameter(f"{name} reads {analysis.reads}: give runs{packaged}", param_hint="RUN...")
    found = {key: float(value) for key, value in analysis(seed).items()}
    if json:
        print_json({"analysis": name, "seed": seed, "numbers": found})
        return
    print_table(("number", "value"), list(found.items()), f"{name}, seed {seed}")


def _show_packaged(name: str, show: bool, runs: Path, out: Path, json: bool) -> None:
    from shuhari.desk.analyzing import running
    from shuhari.desk.cli.claiming import end_by_sigterm

    with _explain():
        one = running.find_packaged(name)
        if one is None:
            one = running.read_packaged(name)
        if show:
            found = running.read_finding(one.name, out / running.FOLDER)
            if found is None:
                note(f"{one.name}: not made yet: `shuhari analyze {one.name} --packaged`")
                raise typer.Exit(1)
        else:
            with end_by_sigterm():
                picture = out / "plots" / f"{one.name}.png"
                found = running.measure_packaged(one, runs, tell=note, draw=picture)
            running.write_finding(found, out)
    if json:
        print_json(found)
        return
    say(found["says"])
    print_table(("number", "each seed", "mean", "95 % interval over seeds", "null", "what it is"),
                [_list_cells(key, x) for key, x in found["numbers"].items()])  # fmt: skip
    if found["null"]:
        say(f"null: {found['null']}")


def _list_cells(key: str, x: Mapping[str, Any]) -> list[Any]:
    def join(values: Sequence[float | None]) -> str:
        return ", ".join("-" if v is None else f"{v:.3g}" for v in values)

    null = join(x["null"]) if any(v is not None for v in x["null"]) else ""
    return [key, join(x["values"]), x["mean"], format_interval(x["low"], x["high"]), null, x["says"]]


@contextmanager
def _explain() -> Iterator[None]:
    """Turn what an analysis refuses, and an unknown name, into a mistake in the command."""
    from shuhari.kernel.findings import AnalysisError

    try:
        yield
    except (AnalysisError, LookupError) as error:
        raise typer.BadParameter(str(error.args[0] if error.args else error)) from None
