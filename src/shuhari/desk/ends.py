"""What a person looks at first of a run: held-out scores by chance, before and after, and its picture.

One place for the command line and for notebooks, so that both say the same. Nothing is measured here.
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
# a score of episodes -> the reward that its name says it is of, if it says so
_SCORE = re.compile(r"(?:greedy|mean|pass@\d+|(?:quantile|cvar)@[\d.e-]*\d)(?:\.([^@]+))?(?:@.*)?")


def read_ends(summary: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """`chance`, `before` and `after` of a summary: name of a held-out score -> its value, of those that are numbers."""
    return {
        end: {k: float(x) for k, x in (summary.get(end) or {}).items() if _is_known(x)}
        for end in ENDS
    }


def tabulate_ends(summary: Mapping[str, Any]) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
    """(heads, rows) of the held-out scores by chance, before and after training, with the change and the reward that
    each is of; without the columns that have nothing, and the rows that say nothing new. A number that is not known is
    None. No rows where nothing was measured."""
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
    """(prompt, greedy answer before the last stage, and after it) of the first held-out problems, each on one line, as
    the `answers` events of a run have them. Nothing for a run that was not evaluated at both."""
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
    """On one line, as far as a table holds it; `before`: what is left out stands before the rest."""
    line = make_printable(" ".join(text.split()), 400)
    if len(line) <= SHORT:
        return line or "(nothing)"
    return f"…{line[-SHORT:]}" if before else f"{line[:SHORT]}…"


def name_reward(score: str, measure: str) -> str:
    """The reward that a held-out score (`greedy`, `pass@4.score`, `mean@task`) is of, `measure` if its name does not
    say; "" of what is no score of episodes."""
    found = _SCORE.fullmatch(score)
    return "" if found is None else found[1] or measure


def choose_told(names: Iterable[str], measure: str) -> list[str]:
    """The names of held-out scores that a table tells: without those of the measure by its name, which stand there
    without it, and of a run that learns from recorded data alone without the share of what nothing grades."""
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
    """The column that the x of a run's picture is: what was spent of its budget, `step` where that counts steps."""
    unit = next((b for b in BUDGETS if b in recipe and f"spent/{b}" in columns), "steps")
    return "step" if unit == "steps" else f"spent/{unit}"


def draw(recipe: Mapping[str, Any], columns: Mapping[str, Sequence[Any]], summary: Mapping[str, Any], to: Any,
         kind: str = "png") -> None:  # fmt: skip
    """Draw a run's picture as PNG or SVG, into the file or the binary stream `to`. ValueError where there is nothing to
    draw."""
    ends = read_ends(summary)
    marks = {end: ends[end]["greedy"] for end in ("before", "chance") if "greedy" in ends[end]}
    measure = str(summary.get("measure") or "")
    plot_curves(columns, to, str(recipe.get("name", "")), find_unit(recipe, columns), marks, kind, measure)


def tell_rewards(table: Mapping[str, Any], after: Mapping[str, float], measure: str = "") -> list[str]:
    """Which reward the held-out score `greedy` is, and which are trained instead, of a stage's `table`; nothing where
    one reward alone was graded. `after`: the scores at the end; `measure`: the reward that was read, as the run's
    summary has it (older ones have not)."""
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
    """The whole table of the last stage of a run's recipe, as `Run.recipe` has it."""
    tree = {k: v for k, v in recipe.items() if k != "stage"}
    try:
        return Recipe("", {**tree, "stage": name_stages(recipe["stage"], "")}).stages[-1] if "stage" in recipe else tree
    except RecipeError:  # of an older format
        return tree


def list_trained(recipe: Mapping[str, Any]) -> list[str]:
    """The rewards that are trained in the place of the task's own."""
    return [name for name in list_named(recipe.get("reward") or {}) if name not in ("score", "task")]


def _is_known(x: Any) -> bool:
    return isinstance(x, int | float) and math.isfinite(x)
