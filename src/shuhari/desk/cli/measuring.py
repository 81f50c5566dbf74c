"""`compare`: differences of runs, with intervals. Over seeds the interval of claims: Student's, of pairs of a seed,
from five seeds on. Runs are opened read-only; nothing is stored in them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shuhari.data import nearest
from shuhari.desk.cli.text import format_number, note, print_json, print_table, say

if TYPE_CHECKING:
    from shuhari.loop.measuring import Measured

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def format_interval(low: float | None, high: float | None) -> str:
    """An interval as a cell; a dash where there is none."""
    return "-" if low is None or high is None or low != low else f"[{format_number(low)}, {format_number(high)}]"


def measure_run(
    path: Path, step: int | None, settings: Mapping[str, Any], tasks: dict[str, Any] | None = None, **more: Any
) -> Measured:
    """`loop.measuring.measure`, with what went wrong as notes; a split that is not there is a mistake of --split."""
    from shuhari.config.overlay import RecipeError
    from shuhari.loop.measuring import measure

    try:
        found = measure(path, step, settings, tasks, **more)
    except RecipeError as error:
        if error.where != "evaluate.split" or "split" not in settings:
            raise
        raise typer.BadParameter(error.problem, param_hint="--split") from None
    for problem in found.problems:
        note(problem)
    return found


def compare(
    given: Annotated[list[str], typer.Argument(metavar="RUN...", help="Runs; join the seeds of one arm by commas.")],
    metric: Annotated[str, typer.Option(help="What is compared: its last value in each run.")] = "evaluate/greedy",
    png: Annotated[
        Path, typer.Option("--png", "--plot", help="Where the plot goes: a .png, or an .svg for print.")
    ] = Path("compare.png"),
    n: Annotated[
        int | None, typer.Option("-n", "--n", min=1, help="Held-out problems, where single runs are compared.")
    ] = None,
    json: Json = False,
) -> None:
    """Compare runs, or sets of seeds, with the first: difference, 95 % interval, and a plot of the curves.

    Several runs an arm are compared over seeds, by the paired interval of claims: below five seeds an arm there is
    none, as two or three say next to nothing of the next. One run an arm is evaluated anew, both on the same problems;
    that interval is about these two runs, not about their methods.

    Example: shuhari compare a-s0,a-s1,a-s2,a-s3,a-s4 b-s0,b-s1,b-s2,b-s3,b-s4 --png a-b.png
    """
    from shuhari.desk.comparison import (
        GREEDY,
        check_same_task,
        compare_seeds,
        find_axis,
        list_caveats,
        list_measures,
        name_arms,
    )
    from shuhari.lab.plot import KINDS, name_metric, plot_comparison
    from shuhari.store import metrics

    arms = {
        arm: [find_run(name) for name in _split(arm)]
        for arm in given
    }
    if (kind := png.suffix.lower()) not in ("", *KINDS):
        raise typer.BadParameter(f"{png.name} ends with {kind}: expected {' or '.join(KINDS)}", param_hint="--png")
    if len(arms) < 2:
        raise typer.BadParameter("compare needs two different arms; seeds of one arm are joined by commas")
    with _explain():
        check_same_task([
            path
            for paths in arms.values()
            for path in paths
        ])
    columns = {
        arm: [metrics(path) for path in paths]
        for arm, paths in arms.items()
    }
    single = all(len(paths) == 1 for paths in arms.values())
    single = single and (metric in (GREEDY, "held-out") or metric.startswith(f"{GREEDY}."))
    read = list_measures(arms)
    measure, equal = read[0] if len(read) == 1 else "", False
    if single:
        measure, equal, found = _compare_problems(arms, n, metric.removeprefix(GREEDY).partition(".")[2])
    else:
        with _explain():
            found = compare_seeds(arms, columns, metric)
    caveats = list_caveats(found, single, equal)
    if not single and len(read) > 1 and name_metric(metric, "?") != metric:
        caveats.append(f"these runs read different rewards as {metric} ({', '.join(read)}): compare one that all have, "
                       f"such as --metric {GREEDY}.{read[0]}")  # fmt: skip
    if single and (others := _list_untold(arms, measure)):
        caveats.append(f"compared is {measure!r}; trained is {' and '.join(map(repr, others))}: "
                       f"--metric {GREEDY}.{others[0]} compares that")  # fmt: skip
    drawn: Path | None = png
    before = png.with_suffix(png.suffix or ".png").exists()
    named = {label: columns[arm] for arm, label in name_arms(arms).items()}
    word, over = (
        name_metric(metric, measure),
        find_axis(
            columns,
            [
                p
                for paths in arms.values()
                for p in paths
            ],
        ),
    )
    try:
        plot_comparison(named, metric, png, word, over)
    except (KeyError, OSError) as error:
        note(f"no plot: {error.args[0] if isinstance(error, KeyError) else error}")
        drawn = None
    if before and drawn:
        note(f"{png} was there, and is written over: --png names another file")
    if json:
        table = {"metric": metric, "over": "problems" if single else "seeds", "arms": found, "png": drawn}
        print_json({**table, **({"measure": measure} if single else {}), "caveats": caveats})
        return
    rows = []
    for name, entry in found.items():
        bounds = format_interval(entry.get("low"), entry.get("high"))
        rows.append((name, entry["value"], entry["n"], entry.get("difference"), bounds, entry.get("paired")))
    over = "problems" if single else "seeds"
    print_table((word, "mean", over, "difference", "95 % interval", "paired"), rows)
    if single:
        say(f"compared: {measure!r}, greedy, of the last checkpoint of each run")
    if drawn is not None:
        say(f"plot: {drawn}")
    for caveat in caveats:
        note(caveat)


def _list_untold(arms: Mapping[str, Sequence[Path]], measure: str) -> list[str]:
    """The rewards that were trained in any of the runs, where that which is compared is none of them."""
    from shuhari.desk.ends import list_trained
    from shuhari.store import Run

    trained = dict.fromkeys(
        n
        for paths in arms.values()
        for p in paths
        for n in list_trained(Run(p).recipe)
    )
    return [] if measure in (*trained, "reward") else list(trained)


def _compare_problems(
    arms: Mapping[str, Sequence[Path]], n: int | None, name: str
) -> tuple[str, bool, dict[str, dict[str, Any]]]:
    """(the reward compared: `name`, or what evaluation reads of all, the task's own where they read different ones that
    all have; whether two arms differ by the same on every problem;
    each single run evaluated greedily, with differences over problems, paired where they are the same problems)."""
    from shuhari.desk.comparison import FEWEST, compare_with_first

    settings = {"samples": 1, **({} if n is None else {"n": n})}
    tasks: dict[str, Any] = {}
    found: dict[str, tuple[list[float], list[Any]]] = {}
    every = {arm: measure_run(paths[0], None, settings, tasks, further=False) for arm, paths in arms.items()}
    read = list(dict.fromkeys(measured.measure for measured in every.values()))
    shared = ["score", "task"] if len(read) > 1 else []
    measure = name or next((one for one in shared if all(
        one == m.measure or one in m.outcomes.rewards for m in every.values())), read[0])  # fmt: skip
    for arm, paths in arms.items():
        measured = every[arm]
        outcomes = measured.outcomes
        known = {**outcomes.rewards, measured.measure: outcomes.greedy}
        if measure not in known:
            message = f"{paths[0]} grades no {measure!r}; {nearest(measure, known)}"
            raise typer.BadParameter(message, param_hint="--metric")
        values = known[measure].tolist()
        if not any(x == x for x in values):
            others = [f"evaluate/{k}" for k in measured.recorded if k.endswith("/accuracy")]
            message = f"{paths[0]}: none of {len(values)} held-out problems could be graded"
            raise typer.BadParameter(f"{message}: --metric {others[0]} compares what it says of recorded pairs"
                                     if others else message)  # fmt: skip
        found[arm] = values, outcomes.ids
    compared = compare_with_first(found, FEWEST)
    equal = any(entry.get("low") is not None and entry["low"] == entry["high"] for entry in compared.values())
    for entry in compared.values():
        if entry.get("low") is not None and entry["low"] == entry["high"]:
            entry |= {"low": float("nan"), "high": float("nan")}
    return measure, equal, compared


@contextmanager
def _explain() -> Iterator[None]:
    """What cannot be compared is a mistake of the command."""
    from shuhari.desk.comparison import ComparisonError

    try:
        yield
    except ComparisonError as error:
        raise typer.BadParameter(str(error)) from None


def _split(arm: str) -> list[str]:
    return [name for name in arm.split(",") if name]


def find_run(name: str) -> Path:
    from shuhari.store import resolve

    return Path(resolve(name))
