"""Off-policy distance of a batch (in versions and in log-probability), and the share of answers longer than `max_new`.

Leaves out what an objective corrects (`ratio`); this is measured before the first update, on a few rows.

Axes: `B` rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from shuhari.batch import Batch
from shuhari.data import Info, Request, Sampling, code
from shuhari.kernel.measure import summarise_batch
from shuhari.needs import Need
from shuhari.ports import ability, is_text

if TYPE_CHECKING:
    from shuhari.loop.asks import LoopCtx

ROWS = 8  # rows of a step that are scored for the gap


def describe_collected(batch: Batch, requests: Sequence[Request], ctx: LoopCtx) -> Info:
    """Return the numbers of a step's report about a collected batch and its requests."""
    facts = summarise_batch(batch, (r.problem.task for r in requests))
    return {**facts, **measure_drift(batch, ctx), **measure_answers(requests, ctx)}


def measure_answers(requests: Sequence[Request], ctx: LoopCtx) -> Info:
    """Return `rollout/answers_too_long`, at the first step of a stage: the share of problems whose answer has more
    tokens than the policy may generate, among problems whose answer is a text that the model can write."""
    model = ctx.models.get("policy")
    if ctx.count or model is None or not is_text(model):
        return {}
    long = []
    for r in requests:
        if isinstance(r.problem.answer, str) and isinstance(r.sampling, Sampling):
            with suppress(ValueError):  # it cannot be written
                ids: Any = ctx.encode_text(r.problem.answer)
                long.append(len(ids) > r.sampling.max_new)
    return {"rollout/answers_too_long": sum(long) / len(long)} if long else {}


def measure_drift(batch: Batch, ctx: LoopCtx) -> Info:
    """Return the drift of a collected batch: `rollout/staleness`, the mean number of versions that a decision is old,
    and `rollout/staleness_max`, if groups stay in flight across steps; for text, `engine/gap` and `engine/gap_max`, the
    mean and largest absolute difference between a decision's log-probability from the engine and from the trainer's
    forward, over rows sampled by the current policy."""
    if not len(batch):
        return {}
    info: Info = {}
    if ctx.staleness:
        old = (ctx.version - batch["version"])[batch["mask"]].float()
        if len(old):
            info = {"rollout/staleness": float(old.mean()), "rollout/staleness_max": float(old.max())}
    if "step" not in batch:
        return info
    now = ((batch["version"] == ctx.version) & batch["logp"].isfinite()) | ~batch["mask"]
    rows = (now.all(1) & batch.decides).nonzero().squeeze(1)
    role = next((r for r in ctx.models if len(rows) and code(r) == int(batch["role"][rows[0]])), None)
    if role is None or ability(ctx.models[role], "kind") != "exact":
        return info
    few = batch.take(rows[batch["role"][rows] == code(role)][:ROWS])
    need = Need((role,), "log_prob")
    gap = (ctx.score(few, [need])[need] - few["logp"]).abs()[few["mask"]]
    return {**info, "engine/gap": float(gap.mean()), "engine/gap_max": float(gap.max())}
