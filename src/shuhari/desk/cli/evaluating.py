"""`eval`: scores of runs, and of models without any training, also several side by side. Each score has a confidence
interval over problems (`stats.interval`).

Runs are opened read-only; nothing is stored in them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from shuhari.desk.cli.measuring import Json, format_interval, measure_run
from shuhari.desk.cli.text import format_number, make_printable, note, print_json, print_table, say

if TYPE_CHECKING:
    from shuhari.config.evaluation import Evaluation
    from shuhari.desk.evaluating import Named
    from shuhari.kernel.stats import Estimate
    from shuhari.loop.measuring import Measured
    from shuhari.loop.outcomes import Outcomes

Found: TypeAlias = "tuple[Path, Measured, dict[str, Estimate]]"
LONG = 2000  # characters of a text on a screen


def evaluate(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL|RUN...",
            help="Runs (a path, a name under runs/, `latest`, RUN@step), directories of models, adapters or exports, "
            ".gguf files, ids of the hub.",
        ),
    ],
    task: Annotated[str, typer.Option(help="Other problems: file/problems.jsonl, or any task.")] = "",
    reward: Annotated[
        list[str] | None, typer.Option(help="Another grader: maths, rewards.py:function, NAME=USE.")
    ] = None,
    n: Annotated[
        int | None, typer.Option("-n", "--n", min=1, help="Held-out problems (else the recipe's; without a run 32).")
    ] = None,
    samples: Annotated[
        int | None, typer.Option(min=1, help="Samples a problem, for the mean and pass@k (else 8; without a run 1).")
    ] = None,
    k: Annotated[list[int] | None, typer.Option("-k", min=1, help="k of pass@k (default: 1, 2, 4, ...).")] = None,
    split: Annotated[str | None, typer.Option(help="Which problems (default: the recipe's).")] = None,
    step: Annotated[int | None, typer.Option(help="The checkpoint of this step (default: the last).")] = None,
    show: Annotated[int, typer.Option(min=0, help="Print so many prompts, with answers and grades.")] = 0,
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", help="evaluate.a=value, rollout.sampling.a=value; task.a and reward.NAME.a of --task and "
                     "--reward; may be repeated."),
    ] = None,
    json: Json = False,
) -> None:  # fmt: skip
    """Evaluate runs and models on held-out problems: greedy, mean of samples and unbiased pass@k, with 95 % intervals;
    for pairs (DPO, a reward model) the share whose chosen answer is above the rejected one. Each further way to play of
    the recipe, or of --set, is shown as <way>.greedy, and each of its metrics.

    The reward is the one that was trained, or that of --reward, and the task's own score is shown too. A model without
    a run needs --task. Several policies are compared side by side, with the settings of the first run among them.

    Example: shuhari eval latest --samples 16 -k 1 -k 4 -k 16

    Example: shuhari eval MODEL latest --task file/problems.jsonl --reward maths -n 50 --samples 1 --show 3

    Example: shuhari eval latest --set evaluate.more.cold.sampling.temperature=0.3
    """
    from shuhari.config.overlay import read_settings
    from shuhari.desk.cli.pulse import Pulse
    from shuhari.desk.evaluating import find_policy
    from shuhari.loop.measuring import sets_samples

    given = read_settings(sets or [])
    plain = len(names) == 1 and not task and not reward
    if twice := [name for name in names if names.count(name) > 1]:
        raise typer.BadParameter(f"{twice[0]} is named twice: expected different ones")
    with _explain_step():
        named = [find_policy(name, step, hub=not plain) for name in names]
    runs = any(one.kind == "run" for one in named)
    drawn = samples if samples is not None or sets_samples(given) or not runs else 8
    if k and (drawn is not None or not runs) and max(k) > (drawn or 1):
        raise typer.BadParameter(f"pass@{max(k)} needs at least {max(k)} samples, and --samples is {drawn or 1}")
    settings = {"n": n, "samples": drawn, "split": split, "k": tuple(k) if k else None if drawn is None else ()}
    settings = {key: v for key, v in settings.items() if v is not None}
    found: dict[str, Found]
    with Pulse(what="the evaluation"):
        if plain and runs:
            found = {names[0]: _sum_up(named[0].path, measure_run(named[0].path, named[0].step, settings, over=given))}
        else:
            found = _measure_all(named, task, reward or [], settings, given)
    if json:
        _print_json(found, show)
        return
    if len(found) == 1:
        _say_one(*next(iter(found.values())))
    else:
        _say_several(found)
    _say_cut(found)
    if show:
        _say_answers(found, show)


@contextmanager
def _explain_step() -> Iterator[None]:
    """Turn the ValueError of a policy without steps into a mistake in --step."""
    try:
        yield
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--step") from None


def _measure_all(
    named: Sequence[Named], task: str, reward: Sequence[str], settings: Mapping[str, Any], given: Mapping[str, Any]
) -> dict[str, Found]:
    """Return name -> results, for policies evaluated with the same settings."""
    from shuhari.config.overlay import RecipeError
    from shuhari.desk.evaluating import Asked, make_graders, make_task, measure_policies, split_settings

    parts = split_settings(given)
    for section, asked in (("task", task), ("reward", reward)):
        if parts[section] and not asked:
            first = next(key for key in given if key.split(".")[0] == section)
            raise RecipeError(first, f"a setting of --{section}, which is not given")
    weights = parts["reward"].pop("weights", {})
    want = Asked(
        make_task({"name": task, **parts["task"]}) if task else None,
        make_graders(reward, parts["reward"]) if reward else None,
        weights,
        settings,
        parts["over"],
    )
    out: dict[str, Found] = {}
    try:
        for one, measured in measure_policies(named, want):
            for problem in measured.problems:
                note(f"{one.name}: {problem}")
            out[one.name] = _sum_up(one.path, measured)
    except RecipeError as error:
        if error.where != "evaluate.split" or "split" not in settings:
            raise
        raise typer.BadParameter(error.problem, param_hint="--split") from None
    return out


def _sum_up(path: Path, measured: Measured) -> Found:
    """Return (path, what was measured, name -> estimate). Raises ValueError if nothing could be graded."""
    outcomes = measured.outcomes
    played = any(x == x for x in outcomes.greedy)
    if not (played or measured.recorded or measured.ways or measured.numbers):
        raise ValueError(f"{path}: none of {len(outcomes.ids)} held-out problems could be graded: expected a task with "
                         "answers, a [reward.<name>] or --reward, or recorded pairs")  # fmt: skip
    found = _estimate(measured, outcomes, measured.used) if played else {}
    for way, (how, own) in measured.ways.items():
        if any(x == x for x in own.greedy):
            found |= {f"{way}.{name}": x for name, x in _estimate(measured, own, how).items()}
        else:
            note(f"none of the {len(own.ids)} problems that {way!r} has played could be graded")
    found |= {name: _estimate_alone(x, 0) for name, x in measured.numbers.items()}
    return path, measured, found | _estimate_recorded(measured)


def _print_json(found: Mapping[str, Found], show: int) -> None:
    from shuhari.desk.evaluating import describe_answer

    out = {}
    for name, (path, measured, estimates) in found.items():
        rows = {key: {"value": e.value, "low": e.low, "high": e.high, "n": e.n or None} for key, e in estimates.items()}
        answers = {"answers": [describe_answer(t) for t in measured.played[:show]]} if show else {}
        out[name] = {
            "run": str(path),
            "step": measured.step,
            "split": measured.used.split,
            "problems": len(measured.outcomes.ids),
            "samples": measured.used.samples,
            "measure": measured.measure,
            "settings": measured.settings,
            **rows,
            **answers,
        }
    alone = next(iter(out.values())) if len(out) == 1 else {"models": out, "differences": _compare(found)}
    print_json(alone)


def _say_one(path: Path, measured: Measured, found: Mapping[str, Estimate]) -> None:
    """Print the table of one policy."""
    from shuhari.config.overlay import format_path, split_path, walk_leaves

    outcomes, used = measured.outcomes, measured.used
    at = f", step {measured.step}" if measured.step >= 0 else ""
    rows = [
        (name, _name_reward(name, measured), found[name].value, format_interval(found[name].low, found[name].high),
         found[name].n or None)
        for name in _choose(found, measured)
    ]  # fmt: skip
    heads = ("held-out", "reward", "value", "95 % interval", "problems")
    print_table(heads, rows, f"{path}{at}, split {used.split}")
    graded = found["greedy"].n if "greedy" in found else 0
    if (ungraded := len(outcomes.ids) - graded) > 0 and "greedy" in found:
        note(f"{ungraded} of {len(outcomes.ids)} problems could not be graded and are left out")
    for key, value in walk_leaves(measured.settings):
        say(f"set: {format_path(sum(map(split_path, key), ()))} = {value!r}")
    for name in measured.recorded:
        if name.endswith("/accuracy"):
            labels = "or, of a reward model of labels, the share of labels on its side"
            say(f"{name}: the share of held-out pairs whose chosen answer is above the rejected one, {labels}")


def _say_several(found: Mapping[str, Found]) -> None:
    """Print the table of several policies side by side, and how each differs from the first, problem by problem."""
    (_, first, _), *_ = found.values()
    names = dict.fromkeys(
        name
        for _, measured, estimates in found.values()
        for name in _choose(estimates, measured)
    )
    rows = []
    for name in names:
        cells = [_spell_estimate(estimates.get(name)) for _, _, estimates in found.values()]
        rows.append((name, _name_reward(name, first), *cells))
    used = first.used
    title = f"split {used.split}, {len(first.outcomes.ids)} problems, {used.samples} sample{'s' * (used.samples > 1)}"
    print_table(("held-out", "reward", *found), rows, title)
    base = next(iter(found))
    rows = [
        (score, _name_reward(score, first), name, d["difference"], format_interval(d.get("low"), d.get("high")))
        for score, arms in _compare(found).items()
        for name, d in arms.items()
    ]
    print_table(("difference", "reward", f"less {base}", "value", "95 % interval"), rows)


def _spell_estimate(e: Estimate | None) -> str:
    return "-" if e is None else f"{format_number(e.value)} {format_interval(e.low, e.high)}".removesuffix(" -")


def _say_cut(found: Mapping[str, Found]) -> None:
    """Print how many answers were cut, if any."""
    for name, (_, measured, _) in found.items():
        if measured.cut and any("text" in step.info for step in measured.played[0].steps):
            sampling = measured.played[0].request.sampling
            most = sampling.max_new if sampling is not None else "?"
            whose = f"{name}: " if len(found) > 1 else ""
            note(f"{whose}{measured.cut} of {len(measured.played)} greedy answers were cut, at {most} tokens or the "
                 "model's context: --set rollout.sampling.max_new=... allows more")  # fmt: skip


def _say_answers(found: Mapping[str, Found], show: int) -> None:
    """Print some prompts with all greedy answers to them, their grades, and whether they were cut."""
    from shuhari.desk.evaluating import describe_answer

    told = {
        name: {answer["id"]: answer for answer in map(describe_answer, measured.played)}
        for name, (_, measured, _) in found.items()
    }
    ids = dict.fromkeys(
        one
        for answers in told.values()
        for one in answers
    )
    for one in [*ids][:show]:
        asked = next(answers[one] for answers in told.values() if one in answers)
        say(f"--- {one}")
        for part in ("prompt", "answer"):
            if asked[part] is not None:
                say(f"{part}: {make_printable(_spell(asked[part]), LONG)}")
        for name, answers in told.items():
            if one in answers:
                _say_answer(name if len(found) > 1 else "", answers[one])


def _say_answer(name: str, told: Mapping[str, Any]) -> None:
    grades = " ".join(f"{key}={format_number(float(x))}" for key, x in told["rewards"].items()) or "ungraded"
    say(f"  {f'{name} ' if name else ''}[{grades}]{' cut' if told['cut'] else ''}")
    for text in told["says"]:
        say("    " + make_printable(text.rstrip("\n"), LONG).replace("\n", "\n    "))


def _spell(value: Any) -> str:
    """Return a prompt or an answer as text; a conversation turn by turn."""
    if isinstance(value, Sequence) and value and all(isinstance(one, Mapping) for one in value):
        return "\n".join(f"{one.get('role', '')}: {one.get('content', '')}" for one in value)
    return str(value)


def _compare(found: Mapping[str, Found]) -> dict[str, dict[str, dict[str, Any]]]:
    """Return score -> name -> {difference, low, high, ...} for each policy but the first, problem by problem, for
    scores that all have."""
    from shuhari.desk.comparison import FEWEST
    from shuhari.desk.contrasts import compare_with_first

    arms = {name: (_list_values(measured.outcomes), measured.outcomes.ids) for name, (_, measured, _) in found.items()}
    (first, _), *others = arms.values()
    shared = [
        score
        for score in first
        if all(score in values for values, _ in others)
    ]
    told = _choose(shared, next(iter(found.values()))[1])
    out = {}
    for score in told:
        compared = compare_with_first({name: (values[score], ids) for name, (values, ids) in arms.items()}, FEWEST)
        out[score] = dict([*compared.items()][1:])
    return out


def _list_values(outcomes: Outcomes) -> dict[str, list[float]]:
    """Return score -> one value a problem, NaN if it could not be graded, for greedy answers and for means of
    samples."""
    import numpy as np

    out = {"greedy": outcomes.greedy, **{f"greedy.{name}": x for name, x in outcomes.rewards.items()}}
    sampled = {} if outcomes.sampled is None else {"mean": outcomes.sampled}
    for name, x in {**sampled, **{f"mean.{n}": x for n, x in outcomes.sampled_rewards.items()}}.items():
        known = ~np.isnan(x)
        total = np.where(known, x, 0.0).sum(1)
        out[name] = np.where(known.any(1), total / np.maximum(known.sum(1), 1), np.nan)
    return {name: x.tolist() for name, x in out.items() if not np.isnan(x).all()}


def _name_reward(name: str, measured: Measured) -> str:
    """Return the reward of a line of the table; a further way to play has the run's reward."""
    from shuhari.desk.ends import name_reward

    way = next((way for way in measured.ways if name.startswith(f"{way}.")), "")
    return name_reward(name.removeprefix(f"{way}.") if way else name, measured.measure)


def _choose(names: Iterable[str], measured: Measured) -> list[str]:
    """Choose the lines of a table, without those named after the measure, which repeat the ones without a name."""
    from shuhari.desk.ends import choose_told

    return choose_told(names, measured.measure)


def _estimate(measured: Measured, outcomes: Outcomes, used: Evaluation) -> dict[str, Estimate]:
    """Return name -> estimate for one way to play and, if there are several tasks, for each of them."""
    from shuhari.kernel import stats

    found: dict[str, Estimate] = {}
    parts = {  # tasks without a graded problem have no line
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
        for n, x in part.sampled_rewards.items():
            if any(v == v for v in x.flat):
                own[f"mean.{n}"] = stats.scores(x)["mean"]
        own |= {f"{name}.score": stats.interval(x)
                for name, x in part.solve_score(used.k, used.solved).items() if len(x)}  # fmt: skip
        if "distinct" in part.facts:
            own["distinct"] = stats.interval(part.facts["distinct"])
        found |= {f"{name}@{task}" if task else name: value for name, value in own.items()}
    if measured.ways:  # what a way costs matters for a comparison
        found["tokens"] = _estimate_alone(outcomes.tokens, len(outcomes.ids))
    return found


def _estimate_alone(value: float, n: int) -> Estimate:
    """Return a number without an interval."""
    from shuhari.kernel.stats import Estimate

    return Estimate(value, float("nan"), float("nan"), n)


def _estimate_recorded(measured: Measured) -> dict[str, Estimate]:
    """Return the learners' scores on held-out recorded problems; with intervals for accuracies, whose pairs are right
    or wrong."""
    from shuhari.kernel import stats

    out: dict[str, Estimate] = {}
    for name, value in measured.recorded.items():
        right, nan = round(value * measured.count) if value == value else -1, float("nan")
        whole = name.endswith("/accuracy") and 0 <= right <= measured.count and measured.count > 0
        whole = whole and abs(value * measured.count - right) < 1e-3
        out[name] = stats.wilson(right, measured.count) if whole else stats.Estimate(value, nan, nan, measured.count)
    return out


def _tells_solved(measured: Measured, part: Any) -> bool:
    """Whether samples can be counted as solved, for pass@k: all scores lie in [0, 1] and, if they are returns, some
    reach the threshold `solved`."""
    shares = not ((part.sampled < 0) | (part.sampled > 1)).any()
    return bool(shares and (measured.measure != "task" or (part.sampled >= measured.used.solved).any()))
