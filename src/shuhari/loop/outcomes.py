"""Grades of held-out episodes: from the rows of an evaluation to named scores.

Leaves out when and on what a run is measured (`evaluation`). Axes: `n` problems, `samples` of each.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor

from shuhari.batch import Batch
from shuhari.buffers.references import find_reference, normalise
from shuhari.data import EMPTY, Array, Number, Ramp, Request, code, nearest
from shuhari.kernel import reduce
from shuhari.kernel.measure import count_decisions, count_turns
from shuhari.kernel.pack import find_usable
from shuhari.kernel.stats import by_problem, cvar, powers, quantile
from shuhari.loop.starting import START_KL, measure_start_kl

if TYPE_CHECKING:
    from shuhari.loop.context import Context

Named = Mapping[str, Array]
SHOWN, LONG = 8, 400  # greedy answers that are kept to be read; characters of a text
OWN = ("score", "task")  # what tasks grade by themselves: of text, of environments


class Scoring(Protocol):
    """The settings of an evaluation that determine how grades are read."""

    k: tuple[int, ...]
    solved: float
    tail: tuple[float, ...]
    reference: str


@dataclass(frozen=True, eq=False)
class Outcomes:
    """Grades of one evaluation: problem ids, greedy [n], sampled [n, samples]. NaN: ungraded, including episodes that
    ended in an error. `facts`: further numbers, [n] each, of the greedy episodes, and `distinct` of the sampled ones;
    `tasks`: of each problem; `rewards`, `sampled_rewards`: every graded name, like `greedy` and `sampled`, if there are
    several; `tokens`: number of tokens that one sampled episode drew (a greedy one, if none was sampled), including
    answers that its rollout did not keep; its decisions, if no engine counts tokens. `measure`: the reward in `greedy`
    and `sampled`; `answers`: the first greedy texts, see `Graded`."""

    ids: list[str]
    greedy: Array
    sampled: Array | None
    facts: Named = EMPTY
    tasks: Sequence[str] = ()
    rewards: Named = EMPTY
    sampled_rewards: Named = EMPTY
    tokens: float = float("nan")
    measure: str = ""
    answers: Sequence[Mapping[str, Any]] = ()

    def scores(self, settings: Scoring) -> dict[str, float]:
        """Return the numbers of an evaluation by name; ungraded episodes count only in `ungraded`.

        `greedy`: the mean over problems. `length`, and if some episodes have several, `turns`: decisions of a greedy
        episode. If samples were drawn: `mean`, `pass@<k>` (of samples that reach `solved`; `k` empty: 1, 2, 4, ..., and
        none if `solved` is 1 and a sample is outside [0, 1], as returns are) and, for texts, `distinct`, the mean
        number of different ones that solve a problem. If several names were graded, `greedy.<name>` and `mean.<name>`
        of each, and `pass@<k>.score` if the measure is another than the task's score. `quantile@<a>`, `cvar@<a>` for
        each a of `tail`: see `stats`, of all sampled episodes together (greedy, if none was sampled), and of each name.
        `greedy.normalised`, with a `reference`: D4RL's score of the mean return of environments, `task`. `ungraded`:
        the share of all episodes, if there are any; `ungraded.low` and `ungraded.high`: what `greedy` would be if all
        ungraded ones were 0, or 1, for a measure in [0, 1] that is partly graded. With several tasks, the same of each:
        `<name>@<task>`.
        """
        out = {"greedy": mean(self.greedy), **{name: mean(values) for name, values in self.facts.items()}}
        grades = self.greedy
        if self.sampled is not None:
            found = _solve(self.sampled, settings.k, settings.solved)
            out |= {name: mean(values) for name, values in found.items()}
            grades = np.append(self.greedy, self.sampled)
        out |= {f"greedy.{name}": mean(x) for name, x in self.rewards.items()}
        out |= {f"mean.{name}": mean(by_problem(x)["mean"]) for name, x in self.sampled_rewards.items()}
        out |= {f"{name}.score": mean(x) for name, x in self.solve_score(settings.k, settings.solved).items()}
        returns = self.greedy if self.measure == "task" else self.rewards.get("task")
        if (reference := find_reference(settings.reference)) is not None and returns is not None:
            out["greedy.normalised"] = normalise(mean(returns), reference)
        drawn = self.greedy if self.sampled is None else self.sampled
        for a in settings.tail:
            for name, x in (("", drawn), *(self.rewards if self.sampled is None else self.sampled_rewards).items()):
                end = f"@{a:g}.{name}" if name else f"@{a:g}"
                out |= {f"quantile{end}": quantile(x, a), f"cvar{end}": cvar(x, a)}
        if ungraded := float(np.isnan(grades).mean()):
            out["ungraded"] = ungraded
            known = self.greedy[~np.isnan(self.greedy)]
            # a mean of the rest may flatter
            if 0 < len(known) < len(self.greedy) and ((known >= 0) & (known <= 1)).all():
                lowest = float(known.sum()) / len(self.greedy)
                out |= {"ungraded.low": lowest, "ungraded.high": lowest + 1 - len(known) / len(self.greedy)}
        for task, part in self.parts().items():
            out |= {f"{name}@{task}": value for name, value in part.scores(settings).items()}
        return out

    def solve_score(self, k: Sequence[int], solved: float) -> dict[str, Array]:
        """Return `pass@<k>` -> [n] of the task's own score, if the measure is another; `k` as in `scores`."""
        own = self.sampled_rewards.get("score")
        if own is None or self.measure in ("", "score") or not np.isfinite(own).any():
            return {}
        return {name: x for name, x in _solve(own, k, solved).items() if name.startswith("pass@")}

    def count_shares(self) -> dict[str, int]:
        """Return {"greedy": number of problems in the mean} if each graded number is in [0, 1]; likewise
        `greedy.score`, if that is another measure."""
        own = self.rewards.get("score") if self.measure not in ("", "score") else None
        out = {}
        for name, x in {"greedy": self.greedy, **({} if own is None else {"greedy.score": own})}.items():
            known = x[~np.isnan(x)]
            if len(known) and ((known >= 0) & (known <= 1)).all():
                out[name] = len(known)
        return out

    def parts(self) -> dict[str, Outcomes]:
        """Return the outcomes of each task, if there are several."""
        out = {}
        for task in dict.fromkeys(self.tasks) if len(set(self.tasks)) > 1 else ():
            at = np.flatnonzero([t == task for t in self.tasks])
            named = (
                {n: x[at] for n, x in m.items()}
                for m in (self.facts, self.rewards, self.sampled_rewards)
            )
            facts, rewards, sampled_rewards = named
            sampled = None if self.sampled is None else self.sampled[at]
            ids = [self.ids[i] for i in at]
            out[task] = Outcomes(ids, self.greedy[at], sampled, facts, (), rewards, sampled_rewards,
                                 measure=self.measure)  # fmt: skip
        return out


def _solve(sampled: Array, k: Sequence[int], solved: float) -> dict[str, Array]:
    """Return `stats.by_problem` of samples; without a `k` it is 1, 2, 4 and so on, and none for returns."""
    share = solved != 1 or not ((sampled < 0) | (sampled > 1)).any()
    return by_problem(sampled, k or (powers(sampled.shape[1]) if share else ()), solved)


@dataclass(frozen=True, eq=False)
class Graded:
    """Grades of one set of requests: `outcome` [problems, n] of the reward `measure`, in order, `rewards` of every
    graded name if there are several, and facts [problems]; a group that failed is NaN. `answers`: for texts with one
    sample a problem, the first SHOWN: {problem, prompt, text, grade}."""

    measure: str
    outcome: Array
    rewards: Named
    facts: Named
    answers: Sequence[Mapping[str, Any]] = ()


def grade(requests: list[Request], ctx: Context, measure: str, solved: float, watched: int = 0) -> Graded:
    """Roll out and grade by `measure`, "" for what is trained: if nothing of that is graded, the task's own score is
    read, and a message reports it. `watched`: over the answers to that many first problems a loaded model is compared
    with its start, the fact `start_kl`."""
    batch = ctx.wait(ctx.probe(requests, tag="evaluate"))
    n = requests[0].n
    if not len(batch):
        none = {"length": np.full(len(requests), np.nan)}
        return Graded(name_measure(measure, ctx.reward_names, ctx.weights),
                      np.full((len(requests), n), np.nan), {}, none)  # fmt: skip
    measure, outcome = _choose(batch, measure, ctx)
    names = sorted(c.removeprefix("reward/") for c in batch.names() if c.startswith("reward/"))
    others = {name: outcome if name == measure else _outcome(batch, name, ctx) for name in names if len(names) > 1}
    place = {code(r.problem.task, r.problem.id): i for i, r in enumerate(requests)}
    sort, filled = _sort_episodes(batch, place, len(requests), n)
    out, rewards = sort(outcome), {name: sort(values) for name, values in others.items()}
    leaf = batch["leaf"]
    counts = {"length": count_decisions(batch)}
    if bool((batch["segment"] > 0).any()):
        counts["turns"] = count_turns(batch)
    rows = [place[int(p)] for p in batch["problem"]]
    totals = {name: np.bincount(rows, count, len(requests)) for name, count in counts.items()}
    with np.errstate(invalid="ignore"):
        facts: dict[str, Array] = {name: total / np.array(filled) for name, total in totals.items()}
    at = np.array(rows)
    if (moved := measure_start_kl(batch, at < watched, at, len(requests), ctx)) is not None:
        facts[START_KL] = moved
    texts = [batch.arena[i].info.get("text") for i in batch["step"][leaf].tolist()] if "step" in batch else []
    said = list(zip(batch["problem"][leaf].tolist(), texts, outcome[leaf].tolist(), strict=True)) if texts else []
    if n > 1 and any(text is not None for text in texts):
        right = {(place[p], text) for p, text, value in said if value >= solved}
        count = np.bincount([i for i, _ in right], minlength=len(requests))
        facts["distinct"] = np.where(np.isnan(out).all(1), np.nan, count)
    shown = {place[p]: (text, value) for p, text, value in reversed(said) if isinstance(text, str)} if n == 1 else {}
    kept = [_keep_answer(requests[i], *shown[i]) for i in sorted(shown) if i < SHOWN]
    return Graded(measure, out, rewards, facts, kept)


def _keep_answer(request: Request, text: str, value: float) -> dict[str, Any]:
    """Return an answer for reading: of a conversation its last message, long texts cut."""
    problem = request.problem
    turn = problem.prompt[-1] if isinstance(problem.prompt, Sequence) and problem.prompt else problem.prompt
    prompt = str(turn.get("content") or "") if isinstance(turn, Mapping) else str(problem.prompt)
    grade = value if np.isfinite(value) else None
    return {"problem": problem.id, "prompt": prompt[:LONG], "text": text[:LONG], "grade": grade}


def name_measure(measure: str, graded: Container[str], weights: Mapping[str, Number] = EMPTY) -> str:
    """Return the reward that is read: `measure`; by default the task's own, the first graded one of `score` and `task`,
    if either has one of the `weights`, or no name has; else what is trained instead: the one name, if its weight is 1,
    or "reward", the weighted sum."""
    own = next((n for n in OWN if n in graded), "reward")
    trained = [name for name, weight in weights.items() if _weighs(weight)]
    if measure or not trained or not set(trained).isdisjoint(OWN):
        return measure or own
    return trained[0] if len(trained) == 1 and weights[trained[0]] == 1 else "reward"


def _weighs(weight: Number) -> bool:
    """Whether a weight is ever other than 0."""
    return any(x != 0 for x in weight.ends) if isinstance(weight, Ramp) else weight != 0


def _sort_episodes(batch: Batch, place: Mapping[int, int], problems: int, n: int) -> tuple[Any, list[int]]:
    """Return (a function from outcomes [B] to [problems, n] at their `place`, the number of episodes of each problem).
    """
    leaf = batch["leaf"]
    episodes, inverse = torch.unique(batch["episode"][leaf], return_inverse=True)  # in request order
    problem = torch.empty(len(episodes), dtype=torch.long).index_copy_(0, inverse, batch["problem"][leaf]).tolist()
    filled, slots = [0] * problems, list[tuple[int, int]]()
    for p in problem:
        i = place.get(p, -1)
        if i < 0 or filled[i] == n:
            found = f"{len(problem)} episodes, and evaluation asked for {n} of each of {problems} problems"
            raise ValueError(f"the rollout returned {found}: some belong to other problems; set [evaluate] rollout")
        slots.append((i, filled[i]))
        filled[i] += 1

    def sort(outcome: Tensor) -> Array:
        out = np.full((problems, n), np.nan)
        mean = reduce.mean_by(outcome[leaf], inverse, len(episodes))[0]  # a tree counts once: the mean of its leaves
        out[tuple(zip(*slots, strict=True))] = mean.numpy()
        return out

    return sort, filled


def _choose(batch: Batch, measure: str, ctx: Context) -> tuple[str, Tensor]:
    """Return (the reward that is read, its outcome [B]): `measure`, or by default what is trained; the task's own score
    if nothing of that is graded, which a message reports."""
    name, own = name_measure(measure, ctx.reward_names, ctx.weights), name_measure("", ctx.reward_names)
    outcome = _outcome(batch, name, ctx)
    if measure or own == name or not bool(outcome.isnan().all()):
        return name, outcome
    found = _outcome(batch, own, ctx)
    if bool(found.isnan().all()):
        return name, outcome
    what = "the weighted sum of rewards" if name == "reward" else f"the reward {name!r}"
    ctx.problems.append(f"[evaluate] {what} grades no held-out answer: {own!r} is read in its place")
    return own, found


def _outcome(batch: Batch, measure: str, ctx: Context) -> Tensor:
    """Return [B], a reward along the row's path; NaN if its grader failed or the episode ended in an error. Raises
    KeyError for a name that nothing has ever graded, if something else was graded."""
    column = f"reward/{measure}" if f"reward/{measure}" in batch else "reward" if measure == "reward" else ""
    if column:
        return batch.outcome(column).masked_fill(~find_usable(batch), torch.nan)
    if measure not in ctx.reward_names and not bool(batch["reward"].isnan().all()):
        message = f"[evaluate] measure names {measure!r}, which nothing grades; {nearest(measure, ctx.reward_names)}"
        raise KeyError("; ".join([message, *ctx.problems]))
    return torch.full((len(batch),), torch.nan)


def mean(x: Array) -> float:
    """Return the mean of graded values; NaN if there are none."""
    return float(np.nanmean(x)) if np.isfinite(x).any() else float("nan")
