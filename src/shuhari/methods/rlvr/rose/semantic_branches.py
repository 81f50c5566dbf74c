"""Groups that grow one answer at a time: from the prompt again, or from where an answer could have meant another thing.

Source: "Reinforced Efficient Reasoning via Semantically Diverse Exploration" (ROSE, arXiv 2601.05053), and its
sampler as released. A finished group is one tree, so what answers share is one row, learnt once; the transform
`node_advantage` with `less = "parent"` is its credit of segments. Left out: its factor for the length of right
answers.

Axes: `K` tokens of an answer, `S` most probable tokens, `V` tokens, `W` width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Annotated, Any, Literal, TypeAlias

import numpy as np
import torch

from shuhari.bounds import Bounds, Fraction, check
from shuhari.data import Array, ContractError, Request, Status, Step, Trajectory, is_tokens
from shuhari.kernel.registry import register
from shuhari.needs import Trace
from shuhari.ports import Ctx, ability

Metric: TypeAlias = Literal["semantic", "shifted", "entropy"]
CHUNK = 64  # tokens of an answer whose likely tokens' embeddings are held at once


@dataclass(eq=False)
class Answer:
    """One answer: its tokens with log-probabilities, versions and scores [K]; those before `begin` are of `parent`."""

    ids: Array
    logp: Array
    version: Array
    score: Array
    ended: bool
    parent: Answer | None = None
    begin: int = 0


@register("rollout", "semantic_branches")
@dataclass
class Semantic:
    """Grows the answers of a group one from another, from the token where likely words differ most in meaning (ROSE).

    The first of n answers begins at the prompt; each further one there too with a chance of `restart`, else at the
    token of largest score in any answer so far, which is drawn anew with all that follows. If the first token has the
    largest score an answer begins anew.

    The score of a token is H D, in nats, over the `top` most probable tokens there, with probabilities p and input
    embeddings e (what `role` reads tokens with) at length 1: the entropy H = -sum p log p, and D = -(|sum p e|^2 - sum
    p^2) in [-1, 1/2], which is high if likely tokens point apart. So it is in the release (`cosine-entropy`); if all
    likely tokens look alike it is below 0, and a sure token, of score 0, is larger.

    Info of each sample, so a column: `cut`, where its last segment begins. Refused with ContractError: problems that
    are played or begin with hints, prompts that are no text, schedules of temperature, stop strings, top-p and its kin,
    and a model without embeddings of tokens.
    """

    restart: Fraction = 0.5
    """Chance that an answer begins at the prompt again, or a schedule; 1 samples all answers independently."""
    metric: Metric = "semantic"
    """Score of a token: "semantic" is H D; "entropy" is H alone; "shifted" is H (1 + D), by which no sure token wins,
    published nowhere."""
    top: Annotated[int, Bounds(2, most=10**8)] = 20
    """Most probable tokens at each place that the score is made of."""
    role: str = "policy"
    """Role of the policy that is sampled, of which the input embeddings are compared."""
    accepts: Mapping[str, Any] = field(init=False, default_factory=dict)
    stamps = ("cut",)
    least_n = 0

    @property
    def roles(self) -> tuple[str, ...]:
        return (self.role,)

    def __post_init__(self) -> None:
        check(self)

    async def group(self, request: Request, ctx: Ctx) -> list[Trajectory]:
        context, sampling = ctx.encode(request.problem.prompt, self.role), request.sampling
        odd = bool(request.prefix) or ctx.task.environment(request.problem) is not None or sampling.truncates
        if odd or not is_tokens(context) or sampling.stop or not isinstance(sampling.temperature, int | float):
            whose = f"problem {request.problem.id!r} of {request.problem.task}"
            expected = "a prompt in text without a hint, one temperature, no stop strings, no top-p, top-k or min-p"
            raise ContractError(f"semantic: {whose}: expected {expected}")
        embeddings = None if self.metric == "entropy" else find_embeddings(ctx.models[self.role])
        restarts = torch.rand(request.n, generator=ctx.rng("semantic", request.key)) < ctx.at(self.restart)
        answers = list[Answer]()
        for i in range(request.n):
            parent, begin = (None, 0) if not answers or restarts[i] else find_highest(answers)
            said = parent.ids[:begin] if parent is not None else np.zeros(0, np.int32)
            asked = replace(sampling, top=self.top, max_new=sampling.max_new - begin)
            seen: Any = np.concatenate([context, said])
            (trace,) = await ctx.engine.sample(self.role, seen, asked, 1, key=(request.key, self.role, "answer", i))
            answers.append(join_answer(trace, parent, begin, embeddings, self.metric))
        return [self._plant(answers, context, request, ctx)]

    def _plant(self, answers: Sequence[Answer], context: Any, request: Request, ctx: Ctx) -> Trajectory:
        """The answers as one tree, whose steps are the pieces between places at which answers part."""
        steps, at = list[Step](), dict[tuple[int, int], int]()  # (answer, where a piece of it ends) -> its step
        number = {id(a): i for i, a in enumerate(answers)}
        for i, a in enumerate(answers):
            parts = sorted({b.begin for b in answers if b.parent is a} | {a.begin, len(a.ids)})
            up = at[number[id(a.parent)], a.begin] if a.parent is not None else None
            for begin, end in pairwise(parts):
                last = end == len(a.ids)
                text = ctx.text(a.ids[begin:end], self.role)
                info = {"text": text, "ended": a.ended and last, "cut": float(a.begin)}
                seen, piece = np.concatenate([context, a.ids[:begin]]), slice(begin, end)
                step = Step.of(seen, a.ids[piece], a.logp[piece], a.version[piece], role=self.role, info=info)
                steps.append(replace(step, parent=up))
                up = at[i, end] = len(steps) - 1
        finished = any(a.ended for a in answers)
        return Trajectory(request, tuple(steps), Status.FINISHED if finished else Status.TRUNCATED)


def find_highest(answers: Sequence[Answer]) -> tuple[Answer | None, int]:
    """(the answer that has the token of largest score, the place of that); of those alike the first. (None, 0) where it
    is a first token, behind which there is nothing to begin with."""
    best = max(answers, key=lambda a: float(a.score.max()))  # the first of those alike
    place = int(best.score.argmax())
    while best.parent is not None and place <= best.begin:
        best = best.parent  # whose token it is, or is beside
    return (best, place) if place else (None, 0)


def join_answer(
    trace: Trace, parent: Answer | None, begin: int, embeddings: torch.Tensor | None, metric: Metric
) -> Answer:
    """The answer of a trace that goes on from `begin` tokens of another."""
    ids: Any = trace.action
    if not is_tokens(ids) or trace.logp is None:
        raise ContractError(f"semantic: an engine said {ids!r:.40}: expected token ids with log-probabilities")
    score = score_tokens(np.asarray(trace.info["top"]), np.asarray(trace.info["top_logp"]), embeddings, metric)
    own = [ids, trace.logp, np.broadcast_to(np.asarray(trace.version, np.int64), (len(ids),)), score]
    if parent is not None:
        before = (parent.ids, parent.logp, parent.version, parent.score)
        own = [np.concatenate([x[:begin], y]) for x, y in zip(before, own, strict=True)]
    ended = trace.info.get("ended") is not False
    return Answer(own[0], own[1], own[2], own[3], ended, parent, begin)


def score_tokens(ids: Array, logp: Array, embeddings: torch.Tensor | None, metric: Metric = "semantic") -> Array:
    """[K] the score by a metric of the most probable tokens ids [K, S] (below 0: none) with log-probabilities
    logp [K, S], under embeddings [V, W] of any length; without embeddings it is H, whatever the metric."""
    p = torch.from_numpy(np.where(ids >= 0, np.exp(logp), 0.0)).double()
    h = -torch.xlogy(p, p).sum(1)
    if embeddings is None or metric == "entropy":
        return h.numpy()
    d = torch.zeros(len(p)).double()
    for at in range(0, len(p), CHUNK):
        some = slice(at, at + CHUNK)
        rows = torch.from_numpy(np.maximum(ids[some], 0)).long().to(embeddings.device)
        e = torch.nn.functional.normalize(embeddings[rows].float(), dim=-1).cpu()  # [CHUNK, S, W]
        whole = torch.einsum("ks,ksw->kw", p[some].float(), e).double()
        d[some] = (p[some] ** 2).sum(1) - (whole**2).sum(1)
    found: Array = (h * (d if metric == "semantic" else 1 + d)).numpy()
    return found


def find_embeddings(model: Any) -> torch.Tensor:
    """[V, W] what a model of text reads tokens with, as they are. ContractError where it has none."""
    module: Any = ability(model, "module")  # of a kind of its own each
    try:
        weight: torch.Tensor = module.lm.get_input_embeddings().weight.detach()
    except (AttributeError, TypeError):
        expected = "a model of text with embeddings of its input tokens, or metric = 'entropy'"
        message = f"semantic: {type(model).__name__} has no embeddings of tokens: expected {expected}"
        raise ContractError(message) from None
    return weight
