"""Answers to grade, as a rollout hands them on; and what a policy says that has learnt nothing."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from shuhari.config.recipe import Recipe
from shuhari.data import Step
from shuhari.loop.run import open_run
from shuhari.metrics.exact import Exact

RUN = """
steps = 1
threads = 1
models.policy = {use = "causal", hidden = 16, layers = 1, heads = 2, intermediate = 16}
collect.advantage = {}
part.policy = {terms.loss = {use = "clip"}, optimiser.lr = 0.1}
evaluate = {every = 0, n = 0}
"""


def said(*texts: str, role: str = "policy") -> list[Step]:
    """One step for each text."""
    ids = np.ones(1, np.int32)
    return [Step.of(ids, ids, info={"text": text}, role=role) for text in texts]


def score_uniform(task: Mapping[str, Any], max_new: int, n: int, path: Path) -> Mapping[str, float]:
    """The exact numbers of a language model whose logits are all equal, on the first `n` problems of a task."""
    rollout = {"n": 2, "sampling": {"max_new": max_new}}
    recipe = Recipe("made", {**tomllib.loads(RUN), "task": dict(task), "rollout": rollout}, {})
    with open_run(recipe, path) as run, torch.no_grad():
        run.enter_stage()
        model: Any = run.ctx.models["policy"]
        for x in model.module.parameters():
            x.zero_()
        return Exact(by="level", k=(8,), n=n)(run.ctx)
