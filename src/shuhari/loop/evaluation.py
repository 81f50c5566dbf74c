"""Held-out measurement: the same rollouts and graders as training, on problems that training never sees.

Every evaluation of a run uses the same problems under the same request keys, and so the same noise (common random
numbers): two checkpoints differ by their weights, not by the luck of the draw. The price is that all points of a curve
share the error of that draw; it averages out over seeds, not over steps. `fresh` gives each evaluation noise of its
own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeGuard

from shuhari.config.evaluation import Evaluation
from shuhari.config.overlay import RecipeError
from shuhari.data import EMPTY, Ramp, Request
from shuhari.kernel.profile import spanned
from shuhari.loop.breaches import DRAWS, generator_states, sum_weights
from shuhari.loop.outcomes import Named, Outcomes, grade, mean
from shuhari.ports import Learner, Metric, Rollout, Source, Task, ability
from shuhari.tasks.contract import explain_ids

if TYPE_CHECKING:
    from shuhari.loop.context import Context

SPLITS = ("train", "test")  # which every task has


def evaluate(ctx: Context, evaluation: Evaluation, rollout: Rollout, first: int = 0) -> Outcomes:
    """Roll out the held-out problems, from index `first` on, and grade them. Charged under `evaluate/`; otherwise the
    run does not change, except that groups in flight continue meanwhile. Raises ValueError if there are no problems,
    two with one id, or fewer samples than a k of pass@k."""
    samples = evaluation.samples
    if samples > 1 and max(evaluation.k, default=1) > samples:
        raise ValueError(f"[evaluate] pass@{max(evaluation.k)} of {samples} samples: expected more samples")
    phase, ticket = ("evaluate", *((first,) if first else ())), ctx.step << 32 if evaluation.fresh else 0
    ctx = ctx.fork(*phase, rollout=rollout, task=evaluation.task, ticket=ticket)
    source = find_held_out(ctx.task, evaluation)
    size = source.size()
    n = evaluation.n if size is None else min(evaluation.n, size - first)
    if not evaluation.n:
        raise ValueError("[evaluate] n is 0, which plays nothing: expected a number of problems")
    if n <= 0:
        behind = f" behind the first {first}, and [evaluate] watch asks for some" if first else ""
        raise ValueError(f"the task has no problems in split {evaluation.split!r}{behind}: nothing to evaluate")
    problems = [source[i] for i in range(first, first + n)]
    if wrong := explain_ids(problems, evaluation.split, first=first, once=True):
        raise ValueError(f"{type(ctx.task).__name__}: {wrong}")
    sampling = evaluation.sampling or ctx.now(ctx.sampling)
    mode = replace(sampling, greedy=True, epsilon=0.0)
    once = [Request(p, 1, mode, settings=evaluation.settings) for p in problems]
    spent, count = _tokens_drawn(ctx), n
    once_graded = grade(once, ctx, evaluation.measure, evaluation.solved, 0 if first else evaluation.start_kl)
    sampled_rewards: Named = EMPTY
    sampled, facts, length = None, once_graded.facts, once_graded.facts["length"]
    if samples > 1:
        spent, count = _tokens_drawn(ctx), n * samples
        several = [Request(p, samples, sampling, settings=evaluation.settings) for p in problems]
        found = grade(several, ctx, once_graded.measure, evaluation.solved)
        sampled, sampled_rewards, length = found.outcome, found.rewards, found.facts["length"]
        facts = {**facts, **{name: found.facts[name] for name in ("distinct",) if name in found.facts}}
    return Outcomes(
        ids=[p.id for p in problems],
        greedy=once_graded.outcome[:, 0],
        sampled=sampled,
        facts=facts,
        tasks=[p.task for p in problems],
        rewards={name: x[:, 0] for name, x in once_graded.rewards.items()},
        sampled_rewards=sampled_rewards,
        tokens=(_tokens_drawn(ctx) - spent) / count or mean(length),
        measure=once_graded.measure,
        answers=once_graded.answers,
    )


def measures(evaluation: Evaluation | None) -> TypeGuard[Evaluation]:
    """Whether an evaluation measures anything."""
    return evaluation is not None and bool(evaluation.n or evaluation.more or evaluation.metrics)


def find_held_out(task: Task, evaluation: Evaluation) -> Source:
    """Return the problems of the tested split. Raises RecipeError if the task has no split of that name."""
    try:
        return task.problems(evaluation.split)
    except (ValueError, LookupError) as error:
        raise RecipeError("evaluate.split", str(error.args[0] if error.args else error)) from error


def count_held_out(ctx: Context, evaluation: Evaluation) -> int:
    """Return the number of problems of an evaluation, limited to the existing ones."""
    size = find_held_out(evaluation.task or ctx.task, evaluation).size()
    return evaluation.n if size is None else min(evaluation.n, size)


def _tokens_drawn(ctx: Context) -> float:
    """Return the number of tokens that evaluations have drawn; 0 if no engine charges any."""
    return sum(v for k, v in ctx.ledger.items() if k.startswith("evaluate/") and k.endswith("/tokens"))


@dataclass
class LastScores:
    """The last held-out scores of a run: `played`, of its models, with the step of their measurement and their `basis`;
    `recorded`, of its learners; `problems`: number of problems that a score in [0, 1] is the mean of; `reads`: the
    reward that `greedy` measures, "" if nothing was graded; `answers`: greedy answers that have to be stored."""

    played: dict[str, float] = field(default_factory=dict)
    step: int = -1
    basis: tuple[Any, ...] = ()
    recorded: dict[str, float] = field(default_factory=dict)
    problems: dict[str, int] = field(default_factory=dict)
    reads: str = ""
    answers: list[dict[str, Any]] = field(default_factory=list)

    def take_answers(self) -> list[tuple[str, Any]]:
        """Return the greedy answers that were not stored yet, an event for each evaluation: {step, answers}."""
        found, self.answers = self.answers, []
        return [("answers", one) for one in found]

    def name_measure(self, *, scored: bool) -> dict[str, str]:
        """Return `measure`, the reward behind the scores, for a report with held-out scores; else nothing."""
        return {"measure": self.reads} if scored and self.reads else {}

    @property
    def values(self) -> dict[str, float]:
        """All scores, by name."""
        return {**self.played, **self.recorded}

    @spanned("evaluate")
    def measure(
        self, ctx: Context, evaluation: Evaluation, rollout: Rollout, learners: Mapping[str, Learner], *, again: bool
    ) -> dict[str, float]:
        """Return the current scores. Unless `again`, scores `played` at this step are reused, if their basis is the
        same."""
        on = basis(ctx, evaluation, rollout)
        if again or not on or (self.step, self.basis) != (ctx.step, on):
            found = play_models(ctx, evaluation, rollout)
            self.played, self.step, self.basis = found.scores, ctx.step, on
            self.problems, self.reads = {}, ""
            if (outcomes := found.outcomes) is not None:
                self.problems = outcomes.count_shares()
                self.reads = "" if math.isnan(mean(outcomes.greedy)) else outcomes.measure
                if outcomes.answers:
                    self.answers.append({"step": ctx.step, "answers": list(outcomes.answers)})
        self.recorded = score_recorded(ctx, evaluation, learners)
        pairs = [name for name in self.recorded if name.endswith("accuracy")]
        self.problems |= dict.fromkeys(pairs, count_held_out(ctx, evaluation) if pairs else 0)
        return self.values


@dataclass(frozen=True, eq=False)
class Played:
    """The results of an evaluation of models: the `outcomes` of its rollouts (None: nothing was played), those of each
    further way with its settings, and the `numbers` of its metrics, `<name>.<number>`."""

    evaluation: Evaluation
    outcomes: Outcomes | None
    ways: Mapping[str, tuple[Evaluation, Outcomes]]
    numbers: Mapping[str, float]

    @property
    def scores(self) -> dict[str, float]:
        """All results as numbers by name, as a run reports them."""
        out: dict[str, float] = {}
        if (found := self.outcomes) is not None:
            out = {**found.scores(self.evaluation), **({"tokens": found.tokens} if self.evaluation.more else {})}
        for name, (used, found) in self.ways.items():
            out |= {f"{name}.{k}": v for k, v in {**found.scores(used), "tokens": found.tokens}.items()}
        return {**out, **self.numbers}


def play_models(ctx: Context, evaluation: Evaluation, rollout: Rollout) -> Played:
    """Run an evaluation: its rollouts, if any model plays in them, each further way to play, and its metrics."""
    outcomes = evaluate(ctx, evaluation, rollout) if evaluation.n and has_player(ctx, rollout) else None
    ways = {}
    for name, way in evaluation.more.items():
        used = way.of(evaluation)
        ways[name] = used, evaluate(ctx, used, way.rollout or rollout)
    numbers: dict[str, float] = {}
    for name, metric in evaluation.metrics.items():
        beside = ctx.fork("evaluate", "metrics", name, rollout=rollout, task=evaluation.task)
        with beside.charging_to("evaluate"):
            numbers |= {f"{name}.{k}": v for k, v in _read_metric(name, metric, beside).items()}
    return Played(evaluation, outcomes, ways, numbers)


def score_models(ctx: Context, evaluation: Evaluation, rollout: Rollout) -> dict[str, float]:
    """Return all results of an evaluation of models, as numbers by name."""
    return play_models(ctx, evaluation, rollout).scores


def has_player(ctx: Context, rollout: Rollout) -> bool:
    """Whether a model plays a role of the rollout: if only a reward model is trained, none does, and only recorded
    problems are held out."""
    roles = set(ability(rollout, "roles") or (ability(rollout, "role"),))
    return not ctx.models or not roles.isdisjoint(ctx.models)


def _read_metric(name: str, metric: Metric, ctx: Context) -> dict[str, float]:
    """Return the numbers of one metric, NaN for an unknown one. Raises ValueError, which names the metric, for what is
    no number, if the metric itself raises, and before the first step if it changes a model."""
    who = f"[evaluate.metrics.{name}] {type(metric).__name__}"
    before = None if ctx.step else (sum_weights(ctx.models), generator_states())  # of one call: it costs
    try:
        found: Any = metric(ctx)
    except (ValueError, TypeError, LookupError, ArithmeticError, AttributeError) as error:
        raise ValueError(f"{who} raised {type(error).__name__}: {error}") from error
    if not isinstance(found, Mapping):
        raise ValueError(f"{who} gave {found!r}: expected a mapping, name of a number -> number")
    out = {}
    for key, value in found.items():
        try:
            out[key] = float(value)
        except (TypeError, ValueError):
            raise ValueError(f"{who} gave {key!r} as {value!r}: expected a number") from None
    if before is not None:
        _check_untouched(who, *before, ctx)
        if unknown := [key for key, value in out.items() if value != value]:
            ctx.problems.append(f"{who} gave {', '.join(unknown)} as NaN, so that there is no number to report")
    return out


def _check_untouched(who: str, weights: Mapping[str, int], generators: Any, ctx: Context) -> None:
    """Raise ValueError if a metric has changed a model; a draw from a global generator becomes a message."""
    after = sum_weights(ctx.models)
    if moved := [role for role, x in weights.items() if x != after[role]]:
        raise ValueError(f"{who} changed the model of role {moved[0]!r}: an evaluation may not change a model")
    if generator_states() != generators:
        ctx.problems.append(f"{who} {DRAWS}")


@spanned("evaluate")
def watch(ctx: Context, evaluation: Evaluation, rollout: Rollout) -> dict[str, float]:
    """Return the scores of the `watch` problems, which come after the reported ones."""
    return evaluate(ctx, replace(evaluation, n=evaluation.watch), rollout, evaluation.n).scores(evaluation)


def score_recorded(ctx: Context, evaluation: Evaluation, learners: Mapping[str, Learner]) -> dict[str, float]:
    """Return the held-out scores of learners that train on recorded problems: `<part>/loss/<term>`, `<part>/<info>`. If
    held-out problems have nothing to imitate, that is counted and reported."""
    out: dict[str, float] = {}
    beside = ctx.fork("evaluate", "recorded", task=evaluation.task)
    try:
        for name, learner in learners.items() if evaluation.n else ():
            found: Mapping[str, float] = dict(ability(learner, "held_out")(evaluation.split, evaluation.n, beside))
            out |= {f"{name}/{k}" if len(learners) > 1 else k: v for k, v in _halve_ties(found).items()}
    except ValueError as error:
        ctx.record_failure("unmeasured", error)
    return out


def _halve_ties(found: Mapping[str, float]) -> dict[str, float]:
    """Return the scores with an accuracy of 1/2 instead of 0, if all pairs tie, as for a policy that equals its
    reference: if no margin is above 0 and their mean is 0, each is 0."""
    pairs = [name for name in found if name.endswith("/accuracy")]
    tied = [name for name in pairs if found[name] == 0 == found.get(name.removesuffix("accuracy") + "margin")]
    return {**found, **dict.fromkeys(tied, 0.5)}


def basis(ctx: Context, evaluation: Evaluation | None, rollout: Rollout) -> tuple[Any, ...]:
    """Return what scores depend on beside the weights: with an equal basis, evaluating the same weights again gives the
    same scores. Empty if that is unknown."""
    sampling = (evaluation and evaluation.sampling) or ctx.sampling
    if evaluation is None or isinstance(sampling.epsilon, Ramp):
        return ()
    weights = tuple((name, ctx.at(weight)) for name, weight in ctx.weights.items())
    parts = ctx.task, ctx.engine, rollout, *ctx.rewards.values()
    return replace(evaluation, every=0), sampling, weights, *map(id, parts)
