"""Groups whose samples do not start at the prompt, but inside one of the policy's own answers or after a guide's first
tokens.

The tokens before that point are a forced prefix, without loss and without decisions. The policy continues from there,
and all samples of a group are compared with each other, as in both papers. Text of one policy call; left out:
environments, several turns. A schedule of temperatures over decisions restarts after a forced prefix. Evaluate without
these rollouts: `evaluate.rollout = "single"`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from shuhari.bounds import Coefficient, Fraction, Length, check
from shuhari.data import Array, ContractError, Request, Step, Trajectory, copy_with, is_tokens
from shuhari.kernel.registry import register
from shuhari.ports import Ctx, Rollout, ability
from shuhari.ports.declares import together
from shuhari.rollouts.single import Single


@register("rollout", "branch")
@dataclass
class Branch:
    """CURE's branching: some answers of a group are cut at an uncertain token and continued anew (arXiv 2508.11016,
    2025).

    Of the n samples of a request, n // (1 + m) answers are each continued m = `regrow` times; the others are plain. The
    cut is drawn uniformly before one of the answer's `top` decisions of highest entropy, never before the first one; an
    answer of one decision is regrown from the prompt. The decision at the cut is drawn anew. Adds to the info of each
    sample, and so as a column: `cut`, the number of tokens kept before the cut. Raises ContractError for answers that
    are not one step of text.
    """

    regrow: Coefficient = 3
    """Number of times that each chosen answer is continued anew, or its schedule, rounded; 0 samples plainly."""
    top: Length = 20
    """Number of highest-entropy tokens of an answer that the cut is drawn from."""
    of: Rollout = field(default_factory=Single)
    """Rollout that samples the answers."""

    @property
    def stamps(self) -> tuple[str, ...] | None:
        return together(("cut",), self.of)

    def __post_init__(self) -> None:
        check(self)

    @property
    def accepts(self) -> Mapping[str, Any]:
        return self.of.accepts

    async def group(self, request: Request, ctx: Ctx) -> list[Trajectory]:
        regrow = round(ctx.at(self.regrow))
        cut = request.n // (1 + regrow) if regrow else 0
        plain = await self.of.group(replace(request, n=request.n - cut * regrow), ctx)
        group, role = [_tell(t, request, 0) for t in plain], ability(self.of, "role")
        for i, t in enumerate(plain[:cut]):
            context, said = find_answer(t)
            scores = await ctx.engine.score(role, context, said, ["entropy"])
            at = choose_cut(scores["entropy"], self.top, ctx.rng("branch", request.key, i))
            group += await go_on(request, said[:at], i, regrow, self.of, ctx)
        return group


@register("rollout", "guide_prefix")
@dataclass
class Guided:
    """Roll-ins from a guide: some answers start with the first tokens of another model's answer, and the policy
    continues.

    The guide's part has t tokens, with t uniform from 0 to max_new - 1. If the guide ends earlier, its end token is
    dropped. Adds to the info of each sample, and so as a column: `cut`, the number of the guide's tokens. Roll-ins of
    PPO++ (Chang et al. 2023, "Learning to Generate Better Than Your LLM", arXiv 2306.11816). Raises ContractError if
    the guide writes no text.
    """

    share: Fraction = 0.2
    """Probability that a sample starts with the guide's tokens, in [0, 1], or its schedule; 0 samples plainly."""
    guide: str = "guide"
    """Role of the model that writes the beginnings, a name under `[models]`."""
    of: Rollout = field(default_factory=Single)
    """Rollout that samples the rest."""

    @property
    def stamps(self) -> tuple[str, ...] | None:
        return together(("cut",), self.of)

    @property
    def roles(self) -> tuple[str, ...]:
        return (self.guide,)

    def __post_init__(self) -> None:
        check(self)

    @property
    def accepts(self) -> Mapping[str, Any]:
        return self.of.accepts

    async def group(self, request: Request, ctx: Ctx) -> list[Trajectory]:
        rng = ctx.rng("guided", request.key)
        led = torch.rand(request.n, generator=rng) < ctx.at(self.share)
        cuts = torch.randint(request.sampling.max_new, (request.n,), generator=rng).where(led, 0)
        lengths = [int(t) for t in cuts if t]
        alone = request.n - len(lengths)
        plain = await self.of.group(replace(request, n=alone), ctx) if alone else []
        group = [_tell(t, request, 0) for t in plain]
        prompt = ctx.encode(request.problem.prompt, self.guide)
        for i, t in enumerate(lengths):
            sampling, key = replace(request.sampling, max_new=t), (request.key, self.guide, i)
            (trace,) = await ctx.engine.sample(self.guide, prompt, sampling, 1, key=key)
            if not is_tokens(trace.action):
                raise ContractError(f"guided: role {self.guide!r} said {trace.action!r:.40}: expected token ids")
            said = trace.action[:-1] if trace.info.get("ended") is not False else trace.action
            group += await go_on(request, said, i, 1, self.of, ctx)
        return group


async def go_on(request: Request, ids: Array, i: int, n: int, of: Rollout, ctx: Ctx) -> list[Trajectory]:
    """Returns n samples of a request that begin with the tokens `ids`, which count towards `max_new`. `i` keeps the
    random keys of different beginnings apart."""
    role = ability(of, "role")
    sampling = replace(request.sampling, max_new=max(1, request.sampling.max_new - len(ids)))
    begin = (Step.of("", ids, role=role, info={"text": ctx.text(ids, role)}),) if len(ids) else ()
    asked = replace(request, n=n, key=f"{request.key}/{i}", sampling=sampling, prefix=(*request.prefix, *begin))
    return [_tell(t, request, len(ids)) for t in await of.group(asked, ctx)]


def find_answer(t: Trajectory) -> tuple[Array, Array]:
    """Returns (context, token ids) of an answer. Raises ContractError unless it has exactly one deciding step, of
    text."""
    steps = [s for s in t.steps if s.mask.any()]
    if len(steps) != 1 or not (is_tokens(steps[0].context) and is_tokens(steps[0].action)):
        raise ContractError(f"branch: an answer of {len(steps)} steps, or not of text: expected one step of token ids")
    context: Any = steps[0].context
    action: Any = steps[0].action
    return context, action


def choose_cut(entropy: Sequence[float] | Array, top: int, rng: torch.Generator) -> int:
    """Draws one of the `top` positions of highest entropy [K], except the first; returns 0 if there is no other."""
    found = 1 + np.argsort(-np.asarray(entropy)[1:], kind="stable")[:top]
    return int(found[int(torch.randint(len(found), (), generator=rng))]) if len(found) else 0


def _tell(t: Trajectory, request: Request, cut: int) -> Trajectory:
    return copy_with(t, request=request, info={**t.info, "cut": float(cut)})
