"""The main results of a run: held-out scores by chance, before and after training, and its plot.

Shared by the command line and notebooks, so that both show the same. Nothing is measured here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from shuhari.config.overlay import BUDGETS, RecipeError
from shuhari.config.recipe import Recipe
from shuhari.config.staged import name_stages
from shuhari.kernel.printable import make_printable
from shuhari.lab.diagnosis.evidence import list_trained as list_named
from shuhari.lab.plot import find_start, plot_curves

ENDS = ("chance", "before", "after")
ANSWERS = ("held-out prompt", "answer before", "answer after")
SHORT = 50  # characters of a prompt or an answer in a table
# a score of episodes -> the reward in its name, if any
_SCORE = re.compile(r"(?:greedy|mean|pass@\d+|(?:quantile|cvar)@[\d.e-]*\d)(?:\.([^@]+))?(?:@.*)?")


def read_ends(summary: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Return `chance`, `before` and `after` of a summary: name of a held-out score -> its value, for finite numbers."""
    return {
        end: {k: float(x) for k, x in (summary.get(end) or {}).items() if _is_known(x)}
        for end in ENDS
    }


def tabulate_ends(summary: Mapping[str, Any]) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
    """Return (header, rows) of the held-out scores by chance, before and after training, with the change and the reward
    of each. Empty columns and redundant rows are left out; None: unknown number. No rows if nothing was measured."""
    ends, measure = read_ends(summary), str(summary.get("measure") or "")
    names = choose_told(dict.fromkeys([*ends["before"], *ends["after"]]), measure)
    shown = [
        end
        for end in ENDS
        if any(name in ends[end] for name in names)
    ]
    both = any(name in ends["before"] and name in ends["after"] for name in names)
    rows = []
    for name in names:
        before, after = ends["before"].get(name), ends["after"].get(name)
        change = None if before is None or after is None else f"{after - before:+.4g}"
        of = (name_reward(name, measure) or None,) if measure else ()
        rows.append((name, *of, *(ends[end].get(name) for end in shown), *([change] if both else ())))
    return ("held-out", *(["reward"] if measure else ()), *shown, *(["change"] if both else ())), rows


def tabulate_answers(
    events: Iterable[Mapping[str, Any]], columns: Mapping[str, Sequence[Any]], most: int = 4
) -> list[tuple[str, str, str]]:
    """Return (prompt, greedy answer before the last stage, and after it) of the first held-out problems, each on one
    line, from the run's `answers` events. Empty if the run was not evaluated at both times."""
    found, begin = [event["data"] for event in events], find_start(columns, "step")
    first = [one["answers"] for one in found if one["step"] <= begin]
    if not first or found[-1]["step"] <= begin:
        return []
    before = {one["problem"]: one for one in first[-1]}
    return [
        (_cut(one["prompt"], before=True), _cut(before[one["problem"]]["text"]), _cut(one["text"]))
        for one in found[-1]["answers"][:most]
        if one["problem"] in before
    ]


def _cut(text: str, *, before: bool = False) -> str:
    """Return a text on one line, cut to a table cell; `before`: cut its start instead of its end."""
    line = make_printable(" ".join(text.split()), 400)
    if len(line) <= SHORT:
        return line or "(nothing)"
    return f"…{line[-SHORT:]}" if before else f"{line[:SHORT]}…"


def name_reward(score: str, measure: str) -> str:
    """Return the reward of a held-out score (`greedy`, `pass@4.score`, `mean@task`): the one in its name, otherwise
    `measure`; "" if it is not a score of episodes."""
    found = _SCORE.fullmatch(score)
    return "" if found is None else found[1] or measure


def choose_told(names: Iterable[str], measure: str) -> list[str]:
    """Choose the held-out scores for a table. Left out: scores named after the measure, which repeat those without a
    name; and for a run on recorded data only, the share of ungraded samples."""
    given = list(names)
    recorded = "greedy" not in given and any("/" in name for name in given)
    return [
        name
        for name in given
        if not (_tells_measure(name, measure) or (recorded and name.partition("@")[0].startswith("ungraded")))
    ]


def _tells_measure(name: str, measure: str) -> bool:
    found = _SCORE.fullmatch(name)
    return bool(measure) and found is not None and found[1] == measure


def find_unit(recipe: Mapping[str, Any], columns: Mapping[str, Sequence[Any]]) -> str:
    """Return the column for the x axis of a run's plot: the amount spent of its budget, or `step` if that is in
    steps."""
    unit = next((b for b in BUDGETS if b in recipe and f"spent/{b}" in columns), "steps")
    return "step" if unit == "steps" else f"spent/{unit}"


def draw(recipe: Mapping[str, Any], columns: Mapping[str, Sequence[Any]], summary: Mapping[str, Any], to: Any,
         kind: str = "png") -> None:  # fmt: skip
    """Draw a run's plot as PNG or SVG into the file or binary stream `to`. Raises ValueError if there is nothing to
    draw."""
    ends = read_ends(summary)
    marks = {end: ends[end]["greedy"] for end in ("before", "chance") if "greedy" in ends[end]}
    measure = str(summary.get("measure") or "")
    plot_curves(columns, to, str(recipe.get("name", "")), find_unit(recipe, columns), marks, kind, measure)


def describe_rewards(table: Mapping[str, Any], after: Mapping[str, float], measure: str = "") -> list[str]:
    """Return sentences on which reward the held-out score `greedy` is, and which others are trained, for a stage's
    `table`; empty if only one reward was graded. `after`: the scores at the end; `measure`: the reward that was read,
    from the run's summary (older runs do not have it)."""
    from shuhari.loop.outcomes import name_measure

    graded = [name.removeprefix("greedy.") for name in after if name.startswith("greedy.") and "@" not in name]
    if not graded:
        return []
    measure = measure or name_measure((table.get("evaluate") or {}).get("measure", ""), graded)
    trained = list_trained(table)
    if measure == "reward" and measure not in graded:
        names = f" of {' and '.join(map(repr, trained))}" if trained else ""
        return [f"greedy is the reward that is trained, the weighted sum{names}"]
    own = ", the task's own measure" if measure in ("score", "task") else ""
    lines = [f"greedy is the reward {measure!r}{own}"]
    summed = list_named(table.get("reward") or {})
    if len(summed) > 1:
        names = " and ".join(map(repr, summed))
        return [*lines, f"trained is the weighted sum of {names} (--set evaluate.measure=reward reports that)"]
    other = [name for name in trained if name in graded and name != measure]
    return lines + [f"trained is the reward {name!r}, greedy.{name} (--set evaluate.measure={name} reports that)"
                    for name in other]  # fmt: skip


def find_last_stage(recipe: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the whole table of the last stage of a run's recipe (`Run.recipe`)."""
    tree = {k: v for k, v in recipe.items() if k != "stage"}
    try:
        return Recipe("", {**tree, "stage": name_stages(recipe["stage"], "")}).stages[-1] if "stage" in recipe else tree
    except RecipeError:  # of an older format
        return tree


def list_trained(recipe: Mapping[str, Any]) -> list[str]:
    """Return the rewards that are trained instead of the task's own."""
    return [name for name in list_named(recipe.get("reward") or {}) if name not in ("score", "task")]


def _is_known(x: Any) -> bool:
    return isinstance(x, int | float) and math.isfinite(x)
