"""`compare`: compares runs, sets of seeds, or everything measured on a bed with the first, with intervals.

Over seeds, the interval is that of claims: Student's, on pairs with the same seed, from five seeds on, corrected for
several comparisons. Runs are opened read-only; nothing is stored in them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shuhari.data import nearest
from shuhari.desk.cli.measuring import format_interval, measure_run, resolve_run
from shuhari.desk.cli.text import note, print_json, print_table, say

if TYPE_CHECKING:
    from shuhari.desk.sides import Sides
    from shuhari.loop.measuring import Measured

Arms = Mapping[str, Sequence[Path]]
PLOT = Path("compare.png")  # default


def compare(
    given: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME=]RUN,RUN...", help="Runs; join the seeds of one arm by commas, and name it."),
    ] = None,
    metric: Annotated[
        str, typer.Option(help="What is compared: a metric, by its last value, or a reading as evaluate/mean:area.")
    ] = "",
    guard: Annotated[
        list[str] | None, typer.Option(help="A further metric or reading, shown beside it; may be repeated.")
    ] = None,
    bed: Annotated[str, typer.Option(metavar="BED", help="The arms that `claim --bed` has measured there.")] = "",
    table: Annotated[
        list[Path] | None, typer.Option(help="Write the table into a .tex, .csv or .md; may be repeated.")
    ] = None,
    png: Annotated[
        Path | None, typer.Option("--png", "--plot", help="Where the plot goes (default: compare.png).")
    ] = None,
    svg: Annotated[Path | None, typer.Option("--svg", help="The plot as SVG, for print.")] = None,
    pdf: Annotated[Path | None, typer.Option("--pdf", help="The plot as PDF, for a paper.")] = None,
    label: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=TEXT", help="What plots and tables call a metric, or x; may hold $formulas$."),
    ] = None,
    n: Annotated[
        int | None, typer.Option("-n", "--n", min=1, help="Held-out problems, where single runs are compared.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="With --bed: where results are (default: results).")] = None,
    runs: Annotated[Path | None, typer.Option(help="With --bed: its runs (default: runs/claims).")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Compare runs, or sets of seeds, with the first: difference, interval, and a plot of the curves.

    Several runs an arm are compared over seeds, by the paired interval of claims, which needs five seeds an arm: two or
    three say little about the next. If several arms are compared with the first, the level of each interval is
    corrected for that (Holm). With one run an arm, the runs are evaluated again on the same problems; that interval is
    about these runs, not about their methods.

    Example: shuhari compare GRPO=a-s0,a-s1,a-s2,a-s3,a-s4 DAPO=b-s0,b-s1,b-s2,b-s3,b-s4 --pdf a-b.pdf --table a-b.tex

    Example: shuhari compare GRPO=a-s0,a-s1 DAPO=b-s0,b-s1 --label evaluate/greedy=accuracy --label x="training steps"

    Example: shuhari compare --bed rev.toml --metric evaluate/mean:area --svg rev.svg
    """
    from shuhari.desk.papers import WRITERS
    from shuhari.desk.sides import compare_bed

    plots = _list_plots(png, svg, pdf)
    for path in table or ():
        if path.suffix.lower() not in WRITERS:
            message = f"{path.name} ends with {path.suffix or 'nothing'}: expected {', '.join(WRITERS)}"
            raise typer.BadParameter(message, param_hint="--table")
    over, measure = "seeds", ""
    if bed:
        if given:
            raise typer.BadParameter("--bed compares what was measured there: expected no runs beside it")
        if n is not None:
            raise typer.BadParameter("it is not read with --bed: leave one of them out", param_hint="--n")
        with _explain():
            sides = compare_bed(bed, out or Path("results"), runs or Path("runs/claims"), metric, guard or ())
    else:
        for where, option in ((out, "--out"), (runs, "--runs")):
            if where is not None:
                raise typer.BadParameter("of --bed, which is not given", param_hint=option)
        arms = read_arms(given or [])
        sides, over, measure = _compare_arms(arms, metric, guard or [], n)
    with _explain():
        sides.label(_read_labels(label or []))
    drawn = _draw(sides, plots)
    for path in table or ():
        _write_table(sides, path)
    if json:
        told = {"metric": sides.metric, "over": over, "arms": sides.arms, "guards": sides.guards,
                "png": drawn[0] if drawn else None, "plots": drawn, "tables": table or []}  # fmt: skip
        print_json({**told, **({"measure": measure} if measure else {}), "caveats": sides.caveats})
        return
    show_sides(sides, over)
    if measure and over == "problems":
        say(f"compared: {measure!r}, greedy, of the last checkpoint of each run")
    for path in drawn:
        say(f"plot: {path}")
    if drawn and any(entry["n"] > 1 for entry in sides.arms.values()) and over == "seeds":
        say("bands: 95 % intervals of the mean, point by point; of fewer than five seeds their range")
    for path in table or ():
        say(f"table: {path}")
    for caveat in sides.caveats:
        note(caveat)


def read_arms(given: Sequence[str]) -> dict[str, list[Path]]:
    """Parse arms by name: the part before `=`, or a name that distinguishes their runs."""
    from shuhari.desk.comparison import name_arms

    if not given:
        raise typer.BadParameter("Missing argument '[NAME=]RUN,RUN...': two arms or more, or --bed")
    named: dict[str, list[Path]] = {}
    order: dict[str, str] = {}  # text -> its name, "" if it has none
    for text in dict.fromkeys(given):
        name, equals, rest = _split_name(text)
        own = bool(equals and name) and not _is_run(text.partition(",")[0])
        runs = [resolve_run(one) for one in (rest if own else text).split(",") if one]
        if not runs:
            raise typer.BadParameter(f"{text!r} names no run: expected NAME=RUN,RUN,...")
        if own and name in order.values():
            raise typer.BadParameter(f"two arms are called {name!r}: expected another name of each")
        order[text], named[text] = name if own else "", runs
    if len(order) < 2:
        raise typer.BadParameter("compare needs two different arms; seeds of one arm are joined by commas")
    found = name_arms({text: named[text] for text, name in order.items() if not name})
    out: dict[str, list[Path]] = {}
    for text, name in order.items():
        label = name or found[text]
        taken = {*out, *(n for n in order.values() if n)} if not name else set(out)
        out[next(x for x in _number(label) if x not in taken)] = named[text]
    return out


def _split_name(text: str) -> tuple[str, str, str]:
    """Return (name, "=", runs): at the first `=` that a run follows (`lr=0.1=RUN,RUN`), otherwise at the first."""
    parts = text.split("=")
    for i in range(1, len(parts)):
        name, runs = "=".join(parts[:i]), "=".join(parts[i:])
        if _is_run(runs.partition(",")[0].partition("@")[0]):
            return name, "=", runs
    return text.partition("=")


def _number(label: str) -> Iterator[str]:
    yield label
    yield from (f"{label} ({i})" for i in range(2, 10_000))


def _is_run(name: str) -> bool:
    from shuhari.store.schema import FILE

    return any((place / name / FILE).exists() for place in (Path(), Path("runs")))


def _read_labels(given: Sequence[str]) -> dict[str, str]:
    found = dict[str, str]()
    for text in given:
        name, _, label = text.partition("=")
        if not name or not label.strip():
            raise typer.BadParameter(f"{text!r}: expected NAME=TEXT, such as x=tokens", param_hint="--label")
        found[name] = label
    return found


def _list_plots(png: Path | None, svg: Path | None, pdf: Path | None) -> list[Path]:
    """Return the plots to write, by default `compare.png`."""
    from shuhari.lab.plot import KINDS

    asked = ((png, ("", *KINDS), "--png"), (svg, ("", ".svg"), "--svg"), (pdf, ("", ".pdf"), "--pdf"))
    for path, kinds, option in asked:
        if path is not None and (kind := path.suffix.lower()) not in kinds:
            expected = " or ".join(kinds[1:])
            raise typer.BadParameter(f"{path.name} ends with {kind}: expected {expected}", param_hint=option)
    ends = ((png, ".png"), (svg, ".svg"), (pdf, ".pdf"))
    return [path if path.suffix else path.with_suffix(end) for path, end in ends if path is not None] or [PLOT]


def _compare_arms(arms: Arms, metric: str, guards: Sequence[str], n: int | None) -> tuple[Sides, str, str]:
    """Return (the comparison, `seeds` or `problems`, the reward that is compared)."""
    from shuhari.desk.comparison import GREEDY, check_same_task, find_axis, list_caveats, list_measures
    from shuhari.desk.sides import Sides, compare_runs, draw_runs
    from shuhari.lab.plot import name_axis, name_metric
    from shuhari.store import metrics

    metric = GREEDY if metric in ("", "held-out") else metric
    every = list(chain.from_iterable(arms.values()))
    with _explain():
        check_same_task(every)
    single = len(every) == len(arms) and (metric == GREEDY or metric.startswith(f"{GREEDY}."))
    if not single:
        with _explain():
            sides = compare_runs(arms, metric, guards)
        if len(read := list_measures(arms)) > 1 and name_metric(metric, "?") != metric:
            sides.caveats.append(f"these runs read different rewards as {metric} ({', '.join(read)}): compare one that "
                                 f"all have, such as --metric {GREEDY}.{read[0]}")  # fmt: skip
        return sides, "seeds", read[0] if len(read) == 1 else ""
    measure, equal, found = _compare_problems(arms, n, metric.removeprefix(GREEDY).partition(".")[2])
    columns = {
        name: [metrics(path) for path in paths]
        for name, paths in arms.items()
    }
    over = find_axis(columns, every)
    sides = Sides(metric, found, axis=name_axis(over), caveats=list_caveats(found, True, equal))
    if others := _list_untold(every, measure):
        sides.caveats.append(f"compared is {measure!r}; trained is {' and '.join(map(repr, others))}: "
                             f"--metric {GREEDY}.{others[0]} compares that")  # fmt: skip
    try:
        sides.panels = draw_runs(arms, columns, [metric, *guards], over)
    except KeyError as error:
        note(f"no plot: {error.args[0]}")
    return sides, "problems", measure


def _draw(sides: Sides, plots: Sequence[Path]) -> list[Path]:
    """Draw the plots, and return those that were written."""
    from shuhari.lab.plot import plot_arms

    drawn = []
    for path in plots if sides.panels and all(sides.panels.values()) else ():
        before = path.exists()
        try:
            plot_arms(sides.panels, path, sides.axis)
        except OSError as error:
            note(f"no plot: {error}")
            continue
        drawn.append(path)
        if before:
            note(f"{path} was there, and is written over: --png names another file")
    return drawn


def _write_table(sides: Sides, path: Path) -> None:
    from shuhari.desk.papers import write_table

    before = path.exists()
    write_table(sides, path)
    if before:
        note(f"{path} was there, and is written over")


def show_sides(sides: Sides, over: str) -> None:
    """Print a table of the metric, and one of each guard."""
    from shuhari.desk.contrasts import find_word, format_confidence
    from shuhari.lab.plot import name_metric

    heads = ("mean", "95 % interval", over, "difference", "its interval", "is", "level", "paired")
    for metric, arms in {sides.metric: sides.arms, **sides.guards}.items():
        rows = []
        for name, entry in arms.items():
            own = format_interval(entry.get("own_low"), entry.get("own_high"))
            of = format_interval(entry.get("low"), entry.get("high"))
            at = format_confidence(entry.get("level", math.nan)) or "-"
            by, paired = entry.get("difference"), entry.get("paired")
            rows.append((name, entry["value"], own, entry["n"], by, of, find_word(entry) or "-", at, paired))
        print_table((name_metric(metric), *heads), rows, f"guard: {metric}" if metric in sides.guards else "")


def _list_untold(runs: Sequence[Path], measure: str) -> list[str]:
    """Return the rewards that any of the runs trained, if the compared one is not among them."""
    from shuhari.desk.ends import list_trained
    from shuhari.store import Run

    trained = dict.fromkeys(chain.from_iterable(list_trained(Run(path).recipe) for path in runs))
    return [] if measure in (*trained, "reward") else list(trained)


def _compare_problems(arms: Arms, n: int | None, name: str) -> tuple[str, bool, dict[str, dict[str, Any]]]:
    """Evaluate each single run greedily. Returns (the reward compared: `name`, otherwise the one that evaluations read,
    or the task's own if they read different ones; whether two arms differ by the same on every problem; the comparison
    over problems, paired if these are the same)."""
    from shuhari.desk.comparison import FEWEST
    from shuhari.desk.contrasts import compare_with_first

    settings = {"samples": 1, **({} if n is None else {"n": n})}
    tasks: dict[str, Any] = {}
    found: dict[str, tuple[list[float], list[Any]]] = {}
    every = {arm: measure_run(paths[0], None, settings, tasks, further=False) for arm, paths in arms.items()}
    measure = name or _choose_measure(list(every.values()))
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
    compared = compare_with_first(found, FEWEST, shares=True)
    return measure, any(entry.get("why") for entry in compared.values()), compared


def _choose_measure(every: Sequence[Measured]) -> str:
    """Return the reward that all evaluations read; if they read different ones, the task's own if all have it."""
    read = list(dict.fromkeys(measured.measure for measured in every))
    own = ("score", "task") if len(read) > 1 else ()
    known = [{measured.measure, *measured.outcomes.rewards} for measured in every]
    return next((name for name in own if name in set.intersection(*known)), read[0])


@contextmanager
def _explain() -> Iterator[None]:
    """Turn a ComparisonError into a mistake in the command."""
    from shuhari.desk.comparison import ComparisonError

    try:
        yield
    except ComparisonError as error:
        raise typer.BadParameter(str(error)) from None
