"""How far a loaded model (`path`) has moved from what was loaded, over the tokens of its own held-out answers.

Left out: models from scratch, models whose log-probability is not exact, other roles than the first one that answers,
updates that several processes share, and models of more than a billion weights that train all of them.

Axes: `B` rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from shuhari.batch import Batch
from shuhari.data import Array, code
from shuhari.ports import ability, is_text

if TYPE_CHECKING:
    from shuhari.loop.context import Context

START_KL = "start_kl"


def measure_start_kl(batch: Batch, rows: Array, problem: Array, n: int, ctx: Context) -> Array | None:
    """Return [n] KL(now || as loaded) in nats a token, exact at each token, the mean over the tokens of each problem's
    rows; NaN for a problem without any. `rows` [B]: which rows count; `problem` [B]: their places in [0, n). None
    before the first update, and if the model has no known start. A start that cannot be read is reported."""
    if not ctx.step or ctx.team is not None or "step" not in batch or not rows.any():
        return None
    who = batch["role"].numpy()
    named = (r for r in ctx.models if ability(ctx.models[r], "path") and code(r) == int(who[rows][0]))
    role = next(named, None)
    if role is None or not is_text(model := ctx.models[role]) or ability(model, "kind") != "exact":
        return None
    try:
        start = ability(model, "initial")()
    except (OSError, ValueError) as error:
        ctx.record_failure("unmeasured", error)
        return None
    if start is None:
        return None
    chosen = np.flatnonzero(rows & (who == code(role)))
    few = batch.take(torch.from_numpy(chosen)).for_role(role)
    with torch.no_grad():
        kl = model(few).kl(start(few)).double().masked_fill(~few["mask"], 0.0).sum(1).numpy()
    at = problem[chosen]
    tokens = np.bincount(at, few["mask"].sum(1).numpy(), n)
    with np.errstate(invalid="ignore"):
        found: Array = np.bincount(at, kl, n) / tokens
    return found
