"""A loaded language model as it was when it was loaded, beside what training made of it. Left out: gradients."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch

from shuhari.batch import Batch
from shuhari.models.text import pretrained
from shuhari.models.text.lora import without_adapters
from shuhari.models.text.tokens import TokenDist
from shuhari.models.text.trunk import Trunk

LARGEST = 10**9  # weights of a model of which a second copy is read


def as_loaded(model: Any, scored: Callable[[Any, Batch], TokenDist]) -> Callable[[Batch], TokenDist] | None:
    """Returns a function of a batch: the distributions of a model as it was loaded. `scored`: (model, batch) -> those
    of a model as it is. With adapters it is the same model without them, else a copy that is read again from its
    `path`. None if it has no path, or no adapters and more than `LARGEST` weights."""
    net = model.module
    if not model.path or (model.lora is None and sum(x.numel() for x in net.parameters()) > LARGEST):
        return None
    if model.lora is not None:

        def bare(batch: Batch) -> TokenDist:
            with without_adapters(net.lm):
                return scored(model, batch)

        return bare
    with torch.random.fork_rng(devices=[]):
        lm, _ = pretrained.load(model.path)
    before = copy.copy(model)
    before.module = Trunk(lm, 0, model.context, dtype=pretrained.DTYPES[model.dtype], sure=net.lean is not None)
    before.module.to(net.device)
    return lambda batch: scored(before, batch)
