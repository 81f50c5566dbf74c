"""Checks of an engine before the first step, and advice on whether another one would be faster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from shuhari.config.overlay import RecipeError, format_path
from shuhari.config.stage import walk_learners
from shuhari.data import Sampling
from shuhari.engines import advice
from shuhari.ports.hooks import ability

if TYPE_CHECKING:
    from shuhari.config.stage import Components


def check_engine(stage: Components) -> None:
    """Raise RecipeError, with what to set, for sampling settings that the engine does not support, and for a trained
    role that the engine samples with weights that are not updated."""
    refuses, fixed = ability(stage.engine, "refuses"), ability(stage.engine, "fixed")
    asks = any(learner.buffer.wanted() > 0 for _, learner in walk_learners(stage.learners))
    sampled: dict[tuple[str, ...], Sampling | None] = {("rollout",): stage.sampling} if asks else {}
    if stage.evaluate is not None:
        sampled |= {("evaluate",): stage.evaluate.sampling}
        sampled |= {("evaluate", "more", k): way.sampling for k, way in stage.evaluate.more.items()}
    for place, sampling in sampled.items():
        if sampling is not None and (why := refuses(sampling)):
            raise RecipeError(format_path((*place, "sampling")), f"in stage {stage.name!r}: {why}")
    for place, learner in walk_learners(stage.learners) if fixed and asks else ():
        parts: Any = ability(learner, "parts")
        for name, part in parts.items():
            if fixed in part.trains:
                where = format_path((*place, "part", name))
                message = f"{where} trains {fixed!r} in stage {stage.name!r}, and this engine answers with weights that"
                more = "do not follow; expected engine.rescore = true, another role, or engine.use = \"vllm\""
                raise RecipeError("engine", f"{message} {more}")


def advise_engine(stage: Components, max_new: int, models: Mapping[str, Any]) -> str:
    """Return the advice for a stage that another engine would serve faster; "" if there is none."""
    policy, local = models.get("policy"), ability(stage.engine, "stand_in") is None
    asks = any(learner.buffer.wanted() > 0 for _, learner in walk_learners(stage.learners))
    if policy is None or not (local and asks) or ability(policy, "export") is None:
        return ""
    if policy.module.device.type != "cpu":
        return ""
    return advice.advise(sum(p.numel() for p in policy.module.parameters()), max_new)
