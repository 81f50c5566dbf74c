"""Groups grown one answer at a time: from the prompt, or from the token where an answer could differ most in meaning.

Source: "Reinforced Efficient Reasoning via Semantically Diverse Exploration" (ROSE, arXiv 2601.05053), and its sampler
as released. A finished group is one tree, so shared parts of answers are one row, learnt once; the transform
`node_advantage` with `less = "parent"` is its credit of segments. Left out: its factor for the length of right answers.

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
CHUNK = 64  # tokens of an answer whose candidates' embeddings are held at once


@dataclass(eq=False)
class Answer:
    """One answer: its tokens with log-probabilities, versions and scores [K]; those before `begin` belong to
    `parent`."""

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
    """Grows the answers of a group from each other, at the token where probable words differ most in meaning (ROSE).

    The first of n answers begins at the prompt, as does each further one with probability `restart`; otherwise it
    begins at the token with the largest score in any answer so far, which is sampled again with all that follows. If
    that is a first token, the answer begins at the prompt.

    The score of a token is H D, in nats, over the `top` most probable tokens there, with probabilities p and normalised
    input embeddings e of `role`: the entropy H = -sum p log p, and D = -(|sum p e|^2 - sum p^2) in [-1, 1/2], which is
    high if probable tokens point in different directions. This is the release's score (`cosine-entropy`); if all
    probable tokens are similar it is below 0, and a certain token, with score 0, is larger.

    Adds to the info of each sample, and so as a column: `cut`, where its last segment begins. The ledger counts answers
    that do not begin at the prompt as `branches`. Raises ContractError for
    problems with an environment or hints, prompts that are no text, temperature schedules, stop strings, truncations
    such as top-p, and a model without token embeddings.
    """

    restart: Fraction = 0.5
    """Probability that an answer begins at the prompt, or a schedule; 1 samples all answers independently."""
    metric: Metric = "semantic"
    """Score of a token: "semantic" is H D; "entropy" is H alone; "shifted" is H (1 + D), with which no certain token
    wins (not from a paper)."""
    top: Annotated[int, Bounds(2, most=10**8)] = 20
    """Number of most probable tokens at each position used for the score."""
    role: str = "policy"
    """Role of the policy that is sampled, whose input embeddings are compared."""
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
        ctx.charge("branches", sum(a.parent is not None for a in answers))
        return [self._plant(answers, context, request, ctx)]

    def _plant(self, answers: Sequence[Answer], context: Any, request: Request, ctx: Ctx) -> Trajectory:
        """Returns the answers as one tree, whose steps are the pieces between branching points."""
        steps, at = list[Step](), dict[tuple[int, int], int]()  # (answer, end of one of its pieces) -> its step
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
    """Returns (the answer that has the token with the largest score, its position), the first of ties. (None, 0) if it
    is a first token, which no prefix precedes."""
    best = max(answers, key=lambda a: float(a.score.max()))  # the first of ties
    place = int(best.score.argmax())
    while best.parent is not None and place <= best.begin:
        best = best.parent  # its token, or an alternative to one
    return (best, place) if place else (None, 0)


def join_answer(
    trace: Trace, parent: Answer | None, begin: int, embeddings: torch.Tensor | None, metric: Metric
) -> Answer:
    """Returns the answer of a trace that continues from `begin` tokens of another."""
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
    """Returns [K] the score by a metric of the most probable tokens ids [K, S] (below 0: none) with log-probabilities
    logp [K, S], under embeddings [V, W] of any length; without embeddings it is H for every metric."""
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
    """Returns [V, W] the input embeddings of a text model. Raises ContractError if it has none."""
    module: Any = ability(model, "module")  # the attribute differs between models
    try:
        weight: torch.Tensor = module.lm.get_input_embeddings().weight.detach()
    except (AttributeError, TypeError):
        expected = "a model of text with embeddings of its input tokens, or metric = 'entropy'"
        message = f"semantic: {type(model).__name__} has no embeddings of tokens: expected {expected}"
        raise ContractError(message) from None
    return weight
