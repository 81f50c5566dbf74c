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
from shuhari.data import EMPTY, Array, Request, code, nearest
from shuhari.kernel import reduce
from shuhari.kernel.measure import count_decisions, count_turns
from shuhari.kernel.pack import find_usable
from shuhari.kernel.stats import by_problem, cvar, powers, quantile

if TYPE_CHECKING:
    from shuhari.loop.context import Context

Named = Mapping[str, Array]


class Scoring(Protocol):
    """What of an evaluation's settings says how grades are read."""

    k: tuple[int, ...]
    solved: float
    tail: tuple[float, ...]


@dataclass(frozen=True, eq=False)
class Outcomes:
    """Grades of one evaluation: problem ids, greedy [n], sampled [n, samples]. NaN: ungraded, as an episode that ended
    in an error is. `facts`: further numbers, [n] each, of the greedy episodes, and `distinct` of the sampled ones;
    `tasks`: of each problem; `rewards`, `sampled_rewards`: every graded name, as `greedy` and `sampled`, where there
    are several; `tokens`: how many one sampled episode drew (a greedy one, where none was sampled), with those of
    answers that its rollout did not keep; its decisions, where no engine counts tokens."""

    ids: list[str]
    greedy: Array
    sampled: Array | None
    facts: Named = EMPTY
    tasks: Sequence[str] = ()
    rewards: Named = EMPTY
    sampled_rewards: Named = EMPTY
    tokens: float = float("nan")

    def scores(self, settings: Scoring) -> dict[str, float]:
        """The numbers of an evaluation by name; what is ungraded counts nowhere but in `ungraded`.

        `greedy`: the mean over problems. `length`, and where some have several, `turns`: decisions of a greedy episode.
        Where samples were drawn: `mean`, `pass@<k>` (of samples that reach `solved`; `k` empty: 1, 2, 4, ..., and
        none where `solved` is 1 and a sample is outside [0, 1], as returns are) and, of
        texts, `distinct`, the mean number of different ones that solve a problem. Where several names were graded,
        `greedy.<name>` and `mean.<name>` of each. `quantile@<a>`, `cvar@<a>` for each a of `tail`: see `stats`, of all
        sampled episodes together (greedy, where none was sampled), and of each name. `ungraded`: the share of all
        episodes, where there are any; `ungraded.low` and `ungraded.high`: what `greedy` would be, were all that is
        ungraded 0, or 1, of a measure in [0, 1]. Of several tasks the same of each: `<name>@<task>`."""
        out = {"greedy": mean(self.greedy), **{name: mean(values) for name, values in self.facts.items()}}
        grades = self.greedy
        if self.sampled is not None:
            share = settings.solved != 1 or not ((self.sampled < 0) | (self.sampled > 1)).any()
            k = settings.k or (powers(self.sampled.shape[1]) if share else ())
            found = by_problem(self.sampled, k, settings.solved)
            out |= {name: mean(values) for name, values in found.items()}
            grades = np.append(self.greedy, self.sampled)
        out |= {f"greedy.{name}": mean(x) for name, x in self.rewards.items()}
        out |= {f"mean.{name}": mean(by_problem(x)["mean"]) for name, x in self.sampled_rewards.items()}
        drawn = self.greedy if self.sampled is None else self.sampled
        for a in settings.tail:
            for name, x in (("", drawn), *(self.rewards if self.sampled is None else self.sampled_rewards).items()):
                end = f"@{a:g}.{name}" if name else f"@{a:g}"
                out |= {f"quantile{end}": quantile(x, a), f"cvar{end}": cvar(x, a)}
        if ungraded := float(np.isnan(grades).mean()):
            out["ungraded"] = ungraded
            known = self.greedy[~np.isnan(self.greedy)]
            if len(known) < len(self.greedy) and ((known >= 0) & (known <= 1)).all():  # a mean of the rest may flatter
                lowest = float(known.sum()) / len(self.greedy)
                out |= {"ungraded.low": lowest, "ungraded.high": lowest + 1 - len(known) / len(self.greedy)}
        for task, part in self.parts().items():
            out |= {f"{name}@{task}": value for name, value in part.scores(settings).items()}
        return out

    def count_shares(self) -> dict[str, int]:
        """{"greedy": how many problems it is the mean of} where each of them has a score in [0, 1]; else nothing."""
        known = self.greedy[~np.isnan(self.greedy)]
        return {"greedy": len(known)} if len(known) and ((known >= 0) & (known <= 1)).all() else {}

    def parts(self) -> dict[str, Outcomes]:
        """The outcomes of each task, where there are several."""
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
            out[task] = Outcomes(ids, self.greedy[at], sampled, facts, (), rewards, sampled_rewards)
        return out


def grade(requests: list[Request], ctx: Context, measure: str, solved: float) -> tuple[Array, Named, Named]:
    """Roll out and grade: [problems, n] of the reward `measure` in order, the same of every graded name where there are
    several, and facts [problems]; a group that failed is NaN."""
    batch = ctx.wait(ctx.probe(requests, tag="evaluate"))
    n = requests[0].n
    if not len(batch):
        return np.full((len(requests), n), np.nan), {}, {"length": np.full(len(requests), np.nan)}
    measure = name_measure(measure, ctx.reward_names)
    names = sorted(c.removeprefix("reward/") for c in batch.names() if c.startswith("reward/"))
    outcome = _outcome(batch, measure, ctx)
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
    texts = [batch.arena[i].info.get("text") for i in batch["step"][leaf].tolist()] if n > 1 and "step" in batch else []
    if any(text is not None for text in texts):
        answers = zip(batch["problem"][leaf].tolist(), texts, outcome[leaf].tolist(), strict=True)
        right = {(place[p], text) for p, text, value in answers if value >= solved}
        count = np.bincount([i for i, _ in right], minlength=len(requests))
        facts["distinct"] = np.where(np.isnan(out).all(1), np.nan, count)
    return out, rewards, facts


def name_measure(measure: str, graded: Container[str]) -> str:
    """The reward that is read: `measure`, or the first of `score`, `task` that is graded, or "reward", the weighted
    sum."""
    return measure or next((n for n in ("score", "task") if n in graded), "reward")


def _sort_episodes(batch: Batch, place: Mapping[int, int], problems: int, n: int) -> tuple[Any, list[int]]:
    """(a function from outcomes [B] to [problems, n] at their `place`, the number of episodes of each problem)."""
    leaf = batch["leaf"]
    episodes, inverse = torch.unique(batch["episode"][leaf], return_inverse=True)  # in request order
    problem = torch.empty(len(episodes), dtype=torch.long).index_copy_(0, inverse, batch["problem"][leaf]).tolist()
    filled, slots = [0] * problems, list[tuple[int, int]]()
    for p in problem:
        i = place.get(p, -1)
        if i < 0 or filled[i] == n:
            found = f"{len(problem)} episodes, and evaluation asked for {n} of each of {problems} problems"
            raise ValueError(f"the rollout returned {found}: some are of others; set [evaluate] rollout")
        slots.append((i, filled[i]))
        filled[i] += 1

    def sort(outcome: Tensor) -> Array:
        out = np.full((problems, n), np.nan)
        mean = reduce.mean_by(outcome[leaf], inverse, len(episodes))[0]  # a tree counts once: the mean of its leaves
        out[tuple(zip(*slots, strict=True))] = mean.numpy()
        return out

    return sort, filled


def _outcome(batch: Batch, measure: str, ctx: Context) -> Tensor:
    """[B] of a reward along the row's path; NaN where its grader failed or the episode ended in an error. KeyError for
    a name that nothing has ever graded, while something was graded."""
    column = f"reward/{measure}" if f"reward/{measure}" in batch else "reward" if measure == "reward" else ""
    if column:
        return batch.outcome(column).masked_fill(~find_usable(batch), torch.nan)
    if measure not in ctx.reward_names and not bool(batch["reward"].isnan().all()):
        message = f"[evaluate] measure names {measure!r}, which nothing grades; {nearest(measure, ctx.reward_names)}"
        raise KeyError("; ".join([message, *ctx.problems]))
    return torch.full((len(batch),), torch.nan)


def mean(x: Array) -> float:
    """The mean of what is graded; NaN where nothing is."""
    return float(np.nanmean(x)) if np.isfinite(x).any() else float("nan")
