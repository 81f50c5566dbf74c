"""Which GPU each of several learner processes has: those that follow the driver's, one each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from shuhari.ports.hooks import ability


def move_models(roles: Mapping[str, Any], rank: int) -> None:
    """Before they are built: models of roles on `cuda:i` to the GPU `rank` further on."""
    for role in roles.values():
        device = torch.device(ability(role.model, "device"))
        if device.type == "cuda":
            role.model.device = f"cuda:{(device.index or 0) + rank}"


def check_devices(roles: Mapping[str, Any], size: int) -> bool:
    """Whether models are on CUDA. ValueError where `size` processes want more GPUs than there are, or one that several
    processes cannot share."""
    cuda = False
    for name, role in roles.items():
        device = torch.device(ability(role.model, "device"))
        if device.type not in ("cpu", "cuda"):
            raise ValueError(f"models.{name}.device is {device.type!r}, and distributed.learners is {size}: "
                             "expected cpu or cuda, as there is one device of that kind")  # fmt: skip
        if device.type == "cuda":
            cuda, first, count = True, device.index or 0, torch.cuda.device_count()
            if first + size > count:
                raise ValueError(f"distributed.learners is {size}, each with a GPU of its own from cuda:{first} on, "
                                 f"and there are {count}: expected at most {max(count - first, 0)}")  # fmt: skip
    return cuda
