"""`eval`: scores of a run over problems, `stats.interval` of every number alike. It is opened read-only, and nothing is
stored in it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

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

    path, over = resolve_run(run), read_settings(sets or [])
    drawn = samples if samples is not None or sets_samples(over) else 8
    if k and drawn is not None and max(k) > drawn:
        raise typer.BadParameter(f"pass@{max(k)} needs at least {max(k)} samples, and --samples is {drawn}")
    settings = {"n": n, "samples": drawn, "split": split, "k": tuple(k) if k else None if drawn is None else ()}
    measured = measure_run(path, step, {key: v for key, v in settings.items() if v is not None}, over=over)
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
    rows_ = [(name, e.value, format_interval(e.low, e.high), e.n or None) for name, e in found.items()]
    print_table(("held-out", "value", "95 % interval", "problems"), rows_, f"{path}, step {at}, split {used.split}")
    graded = found["greedy"].n if played else 0
    if (ungraded := len(outcomes.ids) - graded) > 0 and played:
        note(f"{ungraded} of {len(outcomes.ids)} problems could not be graded and are left out")
    for key, value in walk_leaves(measured.settings):
        say(f"set: {format_path(sum(map(split_path, key), ()))} = {value!r}")
    for name in measured.recorded:
        if name.endswith("/accuracy"):
            say(f"{name}: the share of held-out pairs whose chosen answer is above the rejected one")


def format_interval(low: float | None, high: float | None) -> str:
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


def resolve_run(name: str) -> Path:
    """The folder of a run: a path, a name under runs/, or `latest`."""
    from shuhari.store import resolve

    return Path(resolve(name))
