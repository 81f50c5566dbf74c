"""The devices of torch by name, or an error that explains what is wrong, before weights are moved.

Left out: several devices for one model.
"""

from __future__ import annotations

import torch


def find_device(name: str) -> torch.device:
    """Returns the device `name`: `cpu`, `cuda`, `cuda:1`, `mps`. Raises ValueError for another name, and for a device
    that this machine, or this build of torch, does not have."""
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ValueError(f"device is {name!r}: expected cpu, cuda, cuda:<number> or mps") from error
    if device.type == "cpu":
        return device
    if device.type not in ("cuda", "mps"):
        raise ValueError(f"device is {name!r}: expected cpu, cuda, cuda:<number> or mps")
    count = torch.cuda.device_count() if device.type == "cuda" else int(torch.backends.mps.is_available())
    if (device.index or 0) >= count:
        has = f"{count} of its kind" if count else "none of its kind"
        built = " (it was built without CUDA)" if device.type == "cuda" and torch.version.cuda is None else ""
        raise ValueError(f"device is {name!r}, and torch {torch.__version__} finds {has} here{built}: expected 'cpu'"
                         + (f", or up to '{device.type}:{count - 1}'" if count else ""))  # fmt: skip
    return device
