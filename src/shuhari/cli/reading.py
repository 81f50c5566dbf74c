"""`show`: read a run on disk, also while it is being written; nothing here changes one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from shuhari.cli.diagnosing import say_findings
from shuhari.cli.text import describe, format_number, make_printable, note, print_json, print_table, say

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
LINES = 12  # of a table of steps on a screen
PROBLEMS = 5  # of a run, the last ones


def show(
    run: Annotated[str, typer.Argument(help="A path, a name under runs/, or `latest`.")],
    rollouts: Annotated[bool, typer.Option("--rollouts", help="The best, the worst and a random group.")] = False,
    step: Annotated[int | None, typer.Option(help="Rollouts of this step (default: the last kept).")] = None,
    profile: Annotated[bool, typer.Option("--profile", help="Where its time went, if it was profiled.")] = False,
    json: Json = False,
    csv: Annotated[bool, typer.Option("--csv", help="Every step's metrics as CSV.")] = False,
) -> None:
    """Show the metrics of a run, its rollouts, or where its time went.

    Example: shuhari show latest --rollouts
    """
    from shuhari.store import Run, resolve

    if json and csv:
        raise typer.BadParameter("--json and --csv are two formats: give one")
    path = Path(resolve(run))
    opened = Run(path)
    if profile:
        show_profile(path, json)
        return
    if rollouts:
        _show_rollouts(opened, path, step, json)
        return
    columns = opened.metrics()
    if csv:
        _print_csv(columns)
    elif json:
        facts = {"path": path, "status": opened.status, "step": opened.step, "summary": opened.summary}
        print_json({**facts, "recipe": opened.recipe, "metrics": columns, "events": opened.events()})
    else:
        _show_overview(opened, path, columns)


def show_profile(path: Path, json: bool = False) -> None:
    """What `train --profile` has measured of a run: a table of phases, rates, and where the files are."""
    from shuhari.tools.profile_report import NUMBERS, TRACE, read, table_lines, table_rows

    profile = read(path)
    if profile is None:
        note(f"{path} has no profile: `shuhari train --profile` makes one of the steps that it makes")
    elif json:
        print_json(profile)
    else:
        print_table(("phase", "seconds", "share", "ms a step", "resident MB", "GPU MB"), table_rows(profile))
        for line in table_lines(profile):
            say(line)
        say(f"profile: {path / NUMBERS}; trace, for ui.perfetto.dev: {path / TRACE}")


def _print_csv(columns: Mapping[str, Sequence[Any]]) -> None:
    import csv
    import sys

    out = csv.writer(sys.stdout, lineterminator="\n")
    out.writerow(columns)
    for i in range(len(columns["step"])):
        out.writerow(["" if columns[name][i] is None else columns[name][i] for name in columns])


def _show_overview(run: Any, path: Path, columns: Mapping[str, Sequence[Any]]) -> None:
    from shuhari.tools.plot import choose_curves

    recipe, summary = run.recipe, run.summary or {}
    say(f"{path}: {recipe.get('name', '')}, seed {recipe.get('seed', 0)}, {run.status}, step {run.step}")
    for when in ("before", "after"):
        if summary.get(when):
            known = {k: v for k, v in summary[when].items() if v is not None and v == v}
            say(f"{when}: " + ", ".join(f"{k} {format_number(v)}" for k, v in known.items()))
    for place, card in run.get("data", {}).items():
        say(f"data {place}: {describe(card)}")
    shown = choose_curves(columns)
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
    """(heads, a few rows) of `shown`, label -> metric: each row has the last values since the row before, in its stage;
    where a stage has none of these, its loss."""
    steps, stages = columns["step"], columns["stage"]
    every, last = max(1, -(-len(steps) // LINES)), len(steps) - 1
    losses = [n for n in columns if "/loss/" in n and not n.startswith("evaluate/")]
    trained = [m for label, m in shown.items() if label != "held-out"]
    bare = set(stages) - {stages[i] for i in range(last + 1) for m in trained if columns[m][i] is not None}
    rows, before = [], -1
    for i in range(last % every, last + 1, every):
        span = [j for j in range(i, before, -1) if stages[j] == stages[i]]
        values = {label: _find_last(columns[m], span) for label, m in shown.items()}
        if bare:
            found = (_find_last(columns[n], span) for n in losses) if stages[i] in bare else ()
            values["loss"] = next((x for x in found if x is not None), None)
        rows.append((steps[i], stages[i], values))
        before = i
    labels = [k for k in rows[0][2] if any(values[k] is not None for _, _, values in rows)]
    return ("step", "stage", *labels), [(step, stage, *(v[k] for k in labels)) for step, stage, v in rows]


def _find_last(column: Sequence[Any], span: Sequence[int]) -> Any:
    """The first value that is a number at the places of `span`, None where none is."""
    return next((x for j in span if isinstance(x := column[j], int | float) and x == x), None)


# ------------------------------------------------------------------------------------------------ rollouts


def _show_rollouts(run: Any, path: Path, step: int | None, json: bool) -> None:
    groups = run.rollouts(step)
    if json:
        print_json([_read_group(g) for g in groups])
        return
    if not groups:
        of = "" if step is None else f" of step {step}"
        note(f"{path} keeps no rollouts{of}: groups are kept of single episodes ([store] rollouts), not of lanes")
        return
    for entry in map(_read_group, groups):
        problem = entry["problem"]
        reward = format_number(entry["score"])
        say(f"--- {entry['why']} group of step {entry['step']}: {make_printable(problem['id'])}, reward {reward}")
        say(f"prompt: {make_printable(str(problem['prompt']), 2000)}")
        if problem["answer"] is not None:
            say(f"answer: {make_printable(str(problem['answer']), 500)}")
        for episode, times in _count_alike(entry["episodes"]):
            rewards = " ".join(f"{k}={format_number(v)}" for k, v in episode["reward"].items())
            why = "; ".join(f"{k}: {make_printable(str(v), 200)}" for k, v in episode["reasons"].items())
            again = f" ({times} times)" if times > 1 else ""
            say(f"  [{rewards}] {episode['status']}{f' ({why})' if why else ''}{again}")
            for text, reply in zip(episode["steps"], episode["told"], strict=True):
                for mark, line in (("    ", text), ("    > ", reply)):
                    if line or mark == "    ":
                        say(mark + make_printable(line, 2000).replace("\n", "\n" + mark))
    say()


def _count_alike(episodes: Sequence[dict[str, Any]]) -> list[tuple[dict[str, Any], int]]:
    """Each different episode once, in order, with how many are like it."""
    found: dict[str, tuple[dict[str, Any], int]] = {}
    for episode in episodes:
        key = str({name: x for name, x in episode.items() if name != "decisions"})
        first, times = found.get(key, (episode, 0))
        found[key] = first, times + 1
    return list(found.values())


def _read_group(group: Mapping[str, Any]) -> dict[str, Any]:
    """A stored group in plain values."""
    trajectories = group["trajectories"]
    problem = trajectories[0].request.problem
    decisions = group.get("decisions") or [[{}] * len(t.steps) for t in trajectories]
    return {
        "step": group["step"],
        "why": group.get("why", ""),
        "score": group.get("score"),
        "problem": {"id": problem.id, "prompt": _to_readable(problem.prompt), "answer": _to_readable(problem.answer)},
        "episodes": [_read_episode(t, computed) for t, computed in zip(trajectories, decisions, strict=True)],
    }


def _read_episode(trajectory: Any, computed: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Rewards by name, summed over steps; `reasons`: the text that graders and rollouts left in `info`; `decisions`:
    of each step its `logp` and what was `computed` of it, one number a position."""
    reward: dict[str, float] = {}
    reasons: dict[str, str] = {k: v for k, v in trajectory.info.items() if isinstance(v, str)}
    for step in trajectory.steps:
        for name, value in step.reward.items():
            reward[name] = reward.get(name, 0.0) + float(value.sum() if hasattr(value, "sum") else value)
        reasons |= {k: v for k, v in step.info.items() if isinstance(v, str) and k not in ("text", "observation")}
    acts = [step for step in trajectory.steps if step.action is not None]
    replies = [str(step.info.get("observation", "")) for step in acts]  # what the environment or a tool answered
    common = {"status": str(trajectory.status), "reward": reward, "reasons": reasons}
    numbers = [
        {name: _to_readable(x) for name, x in {"logp": step.logp, **found}.items() if x is not None}
        for step, found in zip(trajectory.steps, computed, strict=True)
        if step.action is not None
    ]
    return {**common, "steps": [_describe_act(step) for step in acts], "told": replies, "decisions": numbers}


def _describe_act(step: Any) -> str:
    return str(step.info["text"]) if "text" in step.info else str(_to_readable(step.action))


def _to_readable(value: Any) -> Any:
    """A payload as plain values."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, Mapping):
        return {k: _to_readable(v) for k, v in value.items()}
    if isinstance(value, tuple | list):
        return [_to_readable(v) for v in value]
    return value.hex() if isinstance(value, bytes) else value
