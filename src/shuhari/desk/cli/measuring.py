"""`eval` and `compare`: scores of runs, with intervals.

Over the problems of one run `stats.interval`, of every number alike. Over seeds the interval of claims: Student's, of
pairs of a seed, from five seeds on. Runs are opened read-only; nothing is stored in them.
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
    from shuhari.config.evaluation import Evaluation
    from shuhari.kernel.stats import Estimate
    from shuhari.loop.measuring import Measured
    from shuhari.loop.outcomes import Outcomes

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def evaluate(
    run: Annotated[str, typer.Argument(help="A path, a name under runs/, or `latest`.")],
    n: Annotated[int | None, typer.Option("-n", "--n", min=1, help="Held-out problems (else the recipe's).")] = None,
    samples: Annotated[
        int | None, typer.Option(min=1, help="Samples a problem, for the mean and pass@k (default: 8).")
    ] = None,
    k: Annotated[list[int] | None, typer.Option("-k", min=1, help="k of pass@k (default: 1, 2, 4, ...).")] = None,
    split: Annotated[str | None, typer.Option(help="Which problems (default: the recipe's).")] = None,
    step: Annotated[int | None, typer.Option(help="The checkpoint of this step (default: the last).")] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", help="A setting of how it is measured, evaluate.a.b=value; may be repeated."),
    ] = None,
    json: Json = False,
) -> None:
    """Evaluate a run on held-out problems: greedy, mean of samples and unbiased pass@k, with 95 % intervals; of pairs
    (DPO, a reward model) the share whose chosen answer is above the rejected one. Each further way to play of the
    recipe, or of --set, is told under its name, <way>.greedy, and each of its metrics.

    Example: shuhari eval latest --samples 16 -k 1 -k 4 -k 16

    Example: shuhari eval latest --set evaluate.more.cold.sampling.temperature=0.3
    """
    from shuhari.config.overlay import format_path, read_settings, split_path, walk_leaves
    from shuhari.loop.measuring import sets_samples

    path, over = _resolve(run), read_settings(sets or [])
    drawn = samples if samples is not None or sets_samples(over) else 8
    if k and drawn is not None and max(k) > drawn:
        raise typer.BadParameter(f"pass@{max(k)} needs at least {max(k)} samples, and --samples is {drawn}")
    settings = {"n": n, "samples": drawn, "split": split, "k": tuple(k) if k else None if drawn is None else ()}
    measured = _measure(path, step, {key: v for key, v in settings.items() if v is not None}, over=over)
    outcomes, used, at = measured.outcomes, measured.used, measured.step
    played = any(x == x for x in outcomes.greedy)
    if not (played or measured.recorded or measured.ways or measured.numbers):
        raise ValueError(f"{path}: none of {len(outcomes.ids)} held-out problems could be graded: expected a task with "
                         "answers, a [reward.<name>], or recorded pairs")  # fmt: skip
    found = _estimate(measured, outcomes, used) if played else {}
    for way, (how, own) in measured.ways.items():
        if any(x == x for x in own.greedy):
            found |= {f"{way}.{name}": x for name, x in _estimate(measured, own, how).items()}
        else:
            note(f"none of the {len(own.ids)} problems that {way!r} has played could be graded")
    found |= {name: _tell_alone(x, 0) for name, x in measured.numbers.items()}
    found |= _estimate_recorded(measured)
    if json:
        rows = {name: {"value": e.value, "low": e.low, "high": e.high, "n": e.n or None} for name, e in found.items()}
        print_json(
            {
                "run": str(path),
                "step": at,
                "split": used.split,
                "problems": len(outcomes.ids),
                "samples": used.samples,
                "measure": measured.measure,
                "settings": measured.settings,
                **rows,
            }
        )
        return
    rows_ = [(name, e.value, _format_interval(e.low, e.high), e.n or None) for name, e in found.items()]
    print_table(("held-out", "value", "95 % interval", "problems"), rows_, f"{path}, step {at}, split {used.split}")
    graded = found["greedy"].n if played else 0
    if (ungraded := len(outcomes.ids) - graded) > 0 and played:
        note(f"{ungraded} of {len(outcomes.ids)} problems could not be graded and are left out")
    for key, value in walk_leaves(measured.settings):
        say(f"set: {format_path(sum(map(split_path, key), ()))} = {value!r}")
    for name in measured.recorded:
        if name.endswith("/accuracy"):
            say(f"{name}: the share of held-out pairs whose chosen answer is above the rejected one")


def _format_interval(low: float | None, high: float | None) -> str:
    return "-" if low is None or high is None or low != low else f"[{format_number(low)}, {format_number(high)}]"


def _estimate(measured: Measured, outcomes: Outcomes, used: Evaluation) -> dict[str, Estimate]:
    """name -> estimate of what one way to play gave, and the same of each of its tasks, where there are several."""
    from shuhari.kernel import stats

    found: dict[str, Estimate] = {}
    parts = {  # a task of which nothing could be graded has no line
        task: part
        for task, part in outcomes.parts().items()
        if any(x == x for x in part.greedy)
    }
    for task, part in {"": outcomes, **parts}.items():
        own = {"greedy": stats.interval(part.greedy)}
        if part.sampled is not None:
            ks = stats.powers(used.samples) if _tells_solved(measured, part) else ()
            own |= stats.scores(part.sampled, used.k or ks, used.solved)
        own |= {
            f"greedy.{n}": stats.interval(x)
            for n, x in part.rewards.items()
            if any(v == v for v in x)
        }
        if "distinct" in part.facts:
            own["distinct"] = stats.interval(part.facts["distinct"])
        found |= {f"{name}@{task}" if task else name: value for name, value in own.items()}
    if measured.ways:  # what a way costs is a part of what it is
        found["tokens"] = _tell_alone(outcomes.tokens, len(outcomes.ids))
    return found


def _tell_alone(value: float, n: int) -> Estimate:
    """A number without an interval."""
    from shuhari.kernel.stats import Estimate

    return Estimate(value, float("nan"), float("nan"), n)


def _estimate_recorded(measured: Measured) -> dict[str, Estimate]:
    """What learners say of held-out recorded problems; an interval of accuracies, whose pairs are right or wrong."""
    from shuhari.kernel import stats

    out: dict[str, Estimate] = {}
    for name, value in measured.recorded.items():
        right, nan = round(value * measured.count) if value == value else -1, float("nan")
        whole = name.endswith("/accuracy") and 0 <= right <= measured.count and measured.count > 0
        whole = whole and abs(value * measured.count - right) < 1e-3
        out[name] = stats.wilson(right, measured.count) if whole else stats.Estimate(value, nan, nan, measured.count)
    return out


def _tells_solved(measured: Measured, part: Any) -> bool:
    """Whether samples of a run are solved or not, which pass@k is of: those of a score in [0, 1], and of a return where
    some have reached what counts as solved."""
    shares = not ((part.sampled < 0) | (part.sampled > 1)).any()
    return bool(shares and (measured.measure != "task" or (part.sampled >= measured.used.solved).any()))


def _measure(
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
        arm: [_resolve(name) for name in _split(arm)]
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
        bounds = _format_interval(entry.get("low"), entry.get("high"))
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
    every = {arm: _measure(paths[0], None, settings, tasks, further=False) for arm, paths in arms.items()}
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


def _resolve(name: str) -> Path:
    from shuhari.store import resolve

    return Path(resolve(name))
