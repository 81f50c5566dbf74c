"""Methods on late advice are SAC if none arrives."""

from __future__ import annotations

import torch

from shuhari.config.recipe import load
from shuhari.testing import loop, open_run

SMALL = {"env_steps": 400, "rollout.random": 100, "buffer.warmup": 100, "buffer.size": 16, "buffer.ratio": 0.1,
         "evaluate.n": 0, "evaluate.every": 0}  # fmt: skip


def is_sac_without_advice(method: str) -> None:
    """No answer arrives within the run: the same bits of every report that both have."""
    ends = []
    for recipe, settings in ((load("baselines/sac_merge"), {}), (load(method), {"collect.advise.delay": 10_000})):
        run = open_run(recipe.with_settings({**SMALL, **settings}))
        *_, last = loop(run)
        weights = [run.ctx.models[r].module.state_dict() for r in ("policy", "critic")]
        ends.append((last, [x for each in weights for x in each.values()]))
    assert all(torch.equal(a, b) for a, b in zip(ends[0][1], ends[1][1], strict=True))
    assert ends[0][0]["critic/value"] == ends[1][0]["critic/value"]
