"""The GPU of each learner process: the ones after the driver's, one each; with a sharded model the first learner has
the GPU of the run's own process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed

from shuhari.ports.hooks import ability


def find_missing(first: int, size: int) -> str:
    """Return, in words, what this machine lacks for `size` learners of a sharded model with a GPU each from
    cuda:`first` on; "" if nothing is missing."""
    count = torch.cuda.device_count()
    if not count:
        return f"torch {torch.__version__} finds no CUDA device here"
    if not torch.distributed.is_nccl_available():
        return f"torch {torch.__version__} was built without NCCL, by which GPUs add up"
    if first + size > count:
        return f"{size} learners have a GPU each from cuda:{first} on, and there are {count}"
    return ""


def move_models(roles: Mapping[str, Any], rank: int) -> None:
    """Move models of roles on `cuda:i` to the GPU `rank` places further on; called before they are built."""
    for role in roles.values():
        device = torch.device(ability(role.model, "device"))
        if device.type == "cuda":
            role.model.device = f"cuda:{(device.index or 0) + rank}"


def check_devices(roles: Mapping[str, Any], size: int) -> bool:
    """Whether any model is on CUDA. Raises ValueError if `size` processes want more GPUs than there are, or a device
    that several processes cannot share."""
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
