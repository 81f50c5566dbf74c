"""Diverse groups: answers branch if the second token is nearly as probable, and branches that become similar are
pruned.

Source: "Lookahead Tree-Based Rollouts for Enhanced Trajectory-Level Exploration in Reinforcement Learning with
Verifiable Rewards" (LATR, arXiv 2510.24302), and its released sampler. Each branch is a separate answer, learnt from
like a plain one: shared parts are learnt twice, and its biased sampling is not corrected, as in the release.

Axes: `K` tokens of an answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import exp
from typing import Any

import numpy as np

from shuhari.bounds import Fraction, Length, Share, check
from shuhari.data import ContractError, Request, Status, Step, Trajectory, copy_with, is_tokens
from shuhari.kernel.registry import register
from shuhari.ports import Ctx
from shuhari.rollouts.single import Single


@dataclass(eq=False)
class Twig:
    """A branch: its tokens so far with log-probability and version each. It left `parent` before token `birth`."""

    number: int
    parent: Twig | None = None
    birth: int = 0
    ids: list[int] = field(default_factory=list)
    logp: list[float] = field(default_factory=list)
    version: list[int] = field(default_factory=list)
    ended: bool = False


@register("rollout", "lookahead_tree")
@dataclass
class Lookahead:
    """Makes a group more diverse: some answers branch if the second token is nearly as probable as the first (LATR).

    Of the n samples of a request, round(share n) are the branches of one tree, the others plain. The tree has room for
    that many branches. While there is room each branch takes its most probable token, otherwise a sampled one. If there
    is room and the second token is probable enough (`second`, `gap`), a new branch takes it. A branch with one of
    `ages` tokens is compared with its parent branch from its start on: it is pruned, which makes room, if less than
    `alike` of it differs (edit distance over length), unless either has ended. Answers that the tree lacks in the end
    are sampled plainly. Adds to the info of each sample, and so as a column: `branch`, 1 for those of the tree.

    Tokens are sampled one by one, so stop strings, temperature schedules and truncations such as top-p, whose kept ids
    are not stored here, are refused; raises ContractError for these, for a problem with an environment or hints, and
    for a prompt that is no text. Most probable tokens are requested at the request's temperature: an engine that gives
    those at temperature 1 only (`vllm`) refuses others. The ledger counts the whole text before each token as
    `prompt_tokens`, once for each token of each branch, and the answers that left another one as `branches`.
    """

    share: Fraction = 1.0
    """Share of a group that are branches of the tree, or a schedule; 0 is plain sampling, bit for bit."""
    second: Share = 0.25
    """Probability above which the second most probable token starts a branch."""
    gap: Share = 0.15
    """Difference between the probabilities of the first and the second token below which a branch starts."""
    ages: tuple[Length, ...] = (20, 30, 50)
    """Ages in tokens at which a branch is compared with its parent; choose them below the length of an answer."""
    alike: Share = 0.4
    """Share of edits below which a branch is pruned as too similar; 0 prunes none."""
    role: str = "policy"
    """Role of the policy that is sampled."""
    accepts: Mapping[str, Any] = field(init=False, default_factory=dict)
    stamps = ("branch",)

    @property
    def roles(self) -> tuple[str, ...]:
        return (self.role,)

    def __post_init__(self) -> None:
        check(self)

    async def group(self, request: Request, ctx: Ctx) -> list[Trajectory]:
        room, single = round(ctx.at(self.share) * request.n), Single(self.role)
        twigs = await self._grow(request, room, ctx) if room else []
        ctx.charge("branches", max(len(twigs) - 1, 0))  # without the first, which left none
        rest = request.n - len(twigs)
        plain = await single.group(replace(request, n=rest), ctx) if rest else []
        context: Any = ctx.encode(request.problem.prompt, self.role)
        group = [copy_with(t, request=request, info={**t.info, "branch": 0.0}) for t in plain]
        return group + [self._finish(t, context, request, ctx) for t in twigs]

    async def _grow(self, request: Request, room: int, ctx: Ctx) -> list[Twig]:
        """Returns the remaining branches, at most `room`."""
        context: Any = ctx.encode(request.problem.prompt, self.role)
        sampling = request.sampling
        odd = bool(request.prefix) or ctx.task.environment(request.problem) is not None or sampling.truncates
        if odd or not is_tokens(context) or sampling.stop or not isinstance(sampling.temperature, int | float):
            whose = f"problem {request.problem.id!r} of {request.problem.task}"
            expected = "a prompt in text without a hint, one temperature, no stop strings, no top-p, top-k or min-p"
            raise ContractError(f"lookahead: {whose}: expected {expected}")
        twigs, made = [Twig(0)], 1
        for place in range(sampling.max_new):
            going = [t for t in twigs if not t.ended]
            if not going:
                break
            full = len(twigs) >= room
            asked = replace(sampling, top=2, max_new=1, greedy=sampling.greedy or not full)
            calls = (
                ctx.engine.sample(
                    self.role, np.concatenate([context, np.array(t.ids, np.int32)]), asked, 1,
                    key=(request.key, self.role, "twig", t.number, place),
                ) for t in going
            )  # fmt: skip
            for twig, (trace,) in zip(going, await asyncio.gather(*calls), strict=True):
                best, likely = np.asarray(trace.info["top"])[0], np.asarray(trace.info["top_logp"])[0]
                end = self._end(ctx)
                if not full and len(twigs) < room and self._branches(likely):
                    twigs.append(_leave(twig, made, place, int(best[1]), float(likely[1]), trace.version, end))
                    made += 1
                assert trace.logp is not None
                _say(twig, int(trace.action[0]), float(trace.logp[0]), trace.version, end)
            twigs = self._prune(twigs, place + 1)
        return twigs

    def _branches(self, likely: Sequence[float]) -> bool:
        """Whether the second of two log-probabilities is enough for a branch."""
        first, second = (exp(x) for x in likely[:2])
        return second > self.second and first - second < self.gap

    def _prune(self, twigs: list[Twig], place: int) -> list[Twig]:
        """Drops branches whose text is now similar to their parent's; the parent takes over their children."""
        lost = [t for t in twigs if place - t.birth in self.ages and self._repeats(t)]
        for gone in lost:
            for t in twigs:
                if t.parent is gone:
                    t.parent, t.birth = gone.parent, gone.birth
        return [t for t in twigs if t not in lost]

    def _repeats(self, t: Twig) -> bool:
        if t.parent is None or t.ended or t.parent.ended:
            return False
        mine, its = t.ids[t.birth :], t.parent.ids[t.birth :]
        return edit_distance(mine, its) / max(len(mine), 1) < self.alike

    def _end(self, ctx: Ctx) -> int:
        return int(ctx.models[self.role].end)  # type: ignore[attr-defined]

    def _finish(self, t: Twig, context: Any, request: Request, ctx: Ctx) -> Trajectory:
        ids = np.array(t.ids, np.int32)
        info = {"text": ctx.text(ids, self.role), "ended": t.ended}
        version = np.array(t.version, np.int64)
        logp = np.array(t.logp, np.float32)
        step = Step.of(context, ids, logp, version, role=self.role, info=info)
        status = Status.FINISHED if t.ended else Status.TRUNCATED
        return Trajectory(request, (step,), status, info={"branch": 1.0})


def _leave(parent: Twig, number: int, place: int, token: int, logp: float, version: Any, end: int) -> Twig:
    """Returns a branch with another token than its parent's next one."""
    made = Twig(number, parent, place, list(parent.ids), list(parent.logp), list(parent.version))
    _say(made, token, logp, version, end)
    return made


def _say(t: Twig, token: int, logp: float, version: Any, end: int) -> None:
    t.ids.append(token)
    t.logp.append(logp)
    t.version.append(int(np.ravel(version)[-1]))
    t.ended = token == end


def edit_distance(a: Sequence[int], b: Sequence[int]) -> int:
    """Returns the smallest number of insertions, deletions and changes between two sequences (Levenshtein 1966)."""
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        before, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (x != y))
    return row[-1]
