"""`show`: reads a run on disk, also during training; nothing here changes one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from shuhari.desk.cli.diagnosing import say_findings
from shuhari.desk.cli.options import check_together
from shuhari.desk.cli.rollouts import save_samples, save_video, show_rollouts
from shuhari.desk.cli.text import NOTHING, describe, make_printable, note, print_csv, print_json, print_table, say

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
LINES = 12  # of a table of steps on a screen
PROBLEMS = 5  # of a run, the last ones


READS = {
    "": "--json --csv",
    "--rollouts": "--step --json",
    "--video": "--step --episode",
    "--samples": "--step",
    "--profile": "--json",
}


def show(
    ctx: typer.Context,
    run: Annotated[str, typer.Argument(help="A path, a name under runs/, or `latest`.")],
    rollouts: Annotated[bool, typer.Option("--rollouts", help="What it did: groups, or episodes.")] = False,
    step: Annotated[int | None, typer.Option(help="Of this step (default: the last kept).")] = None,
    video: Annotated[Path | None, typer.Option(help="Draw an episode of a controller into this .gif.")] = None,
    episode: Annotated[int, typer.Option(min=0, help="Which held-out episode --video draws.")] = 0,
    samples: Annotated[bool, typer.Option("--samples", help="Draw what its policy makes beside the run.")] = False,
    profile: Annotated[bool, typer.Option("--profile", help="Where its time went, if it was profiled.")] = False,
    json: Json = False,
    csv: Annotated[bool, typer.Option("--csv", help="Every step's metrics as CSV.")] = False,
) -> None:
    """Show the metrics of a run, its rollouts, or where its time went.

    For a control run, the policy plays held-out episodes again: --rollouts prints what it saw and did, --video draws
    it. --samples draws some of them side by side, with chains of denoising, or how a masked language model fills in
    masks.

    Example: shuhari show latest --rollouts
    """
    from shuhari.store import Run, resolve

    check_together(ctx, READS)
    if json and csv:
        raise typer.BadParameter("--json and --csv are two formats: give one")
    path = Path(resolve(run))
    opened = Run(path)
    if profile:
        if not show_profile(path, json):
            raise typer.Exit(NOTHING)
        return
    if video is not None:
        save_video(path, video, step, episode)
        return
    if samples:
        save_samples(path, step)
        return
    if rollouts:
        show_rollouts(opened, path, step, json)
        return
    columns = opened.metrics()
    if csv:
        print_csv(columns)
    elif json:
        facts = {"path": path, "status": opened.status, "step": opened.step, "summary": opened.summary}
        print_json({**facts, "recipe": opened.recipe, "metrics": columns, "events": opened.events()})
    else:
        _show_overview(opened, path, columns)


def show_profile(path: Path, json: bool = False) -> bool:
    """Print the profile of a run by `train --profile`: a table of phases, rates, and the paths of the files. Returns
    False if the run has none."""
    from shuhari.desk.profile_report import HEADS, NUMBERS, TRACE, read, table_lines, table_rows

    profile = read(path)
    if profile is None:
        note(f"{path} has no profile: `shuhari train --profile` makes one of the steps that it makes")
    elif json:
        print_json(profile)
    else:
        print_table(HEADS, table_rows(profile))
        for line in table_lines(profile):
            say(line)
        say(f"profile: {path / NUMBERS}; trace, for ui.perfetto.dev: {path / TRACE}")
    return profile is not None


def _show_overview(run: Any, path: Path, columns: Mapping[str, Sequence[Any]]) -> None:
    from shuhari.desk.ends import ANSWERS, tabulate_answers, tabulate_ends
    from shuhari.lab.plot import choose_curves, name_metric
    from shuhari.store.listing import name_tasks

    recipe, summary = run.recipe, run.summary or {}
    task = name_tasks(recipe)
    name = f"{recipe.get('name', '')}{f' on {task}' if task else ''}"
    say(f"{path}: {name}, seed {recipe.get('seed', 0)}, {run.status}, step {run.step}")
    if run.status == "failed":
        note(f"failed: {make_printable(str(run.get('failed')), 2000)}")
    heads, ends = tabulate_ends(summary)
    if ends:
        print_table(heads, ends)
    if answers := tabulate_answers(run.events("answers"), columns, 8):
        print_table(ANSWERS, answers)
    for place, card in run.get("data", {}).items():
        say(f"data {place}: {describe(card)}")
    read = str(run.get("measure", ""))
    shown = {
        name_metric(metric, read) if label == "held-out" else label: metric
        for label, metric in choose_curves(columns).items()
    }
    if not columns["step"]:
        note("no step is stored yet")
        return
    print_table(*_tabulate(columns, shown))
    problems = {e["data"]: e["step"] for e in run.events("problem")}  # text -> its last step
    for text, step in list(problems.items())[-PROBLEMS:]:
        note(f"problem, last at step {step}: {make_printable(str(text), 500)}")
    say_findings(columns, recipe, path)
    hidden = [n for n in columns if n not in ("step", "stage", "wall", *shown.values())]
    say("also stored: " + ", ".join(hidden) + " (--json, --csv)")


def _tabulate(
    columns: Mapping[str, Sequence[Any]], shown: Mapping[str, str]
) -> tuple[Sequence[str], list[tuple[Any, ...]]]:
    """Return (header, a few rows) of `shown`, label -> metric: each row has the last values since the previous row, in
    its stage; for a stage without any of these, its loss."""
    steps, stages = columns["step"], columns["stage"]
    every, last = max(1, -(-len(steps) // LINES)), len(steps) - 1
    losses = [n for n in columns if "/loss/" in n and not n.startswith("evaluate/")]
    trained = [m for label, m in shown.items() if not label.startswith("held-out")]
    bare = set(stages) - {
        stages[i]
        for i in range(last + 1)
        for m in trained
        if columns[m][i] is not None
    }
    rows, before = [], -1
    for i in range(last % every, last + 1, every):
        span = [j for j in range(i, before, -1) if stages[j] == stages[i]]
        values = {label: _find_last(columns[m], span) for label, m in shown.items()}
        if bare:
            found = (_find_last(columns[n], span) for n in losses) if stages[i] in bare else ()
            values["loss"] = next((x for x in found if x is not None), None)
        rows.append((steps[i], stages[i], values))
        before = i
    labels = [
        k
        for k in rows[0][2]
        if any(values[k] is not None for _, _, values in rows)
    ]
    return ("step", "stage", *labels), [  # blank: held-out scores are measured now and then, and not all in each stage
        (step, stage, *("" if v[k] is None else v[k] for k in labels))
        for step, stage, v in rows
    ]


def _find_last(column: Sequence[Any], span: Sequence[int]) -> Any:
    """Return the first number at the places of `span`; None if there is none."""
    return next((x for j in span if isinstance(x := column[j], int | float) and x == x), None)
