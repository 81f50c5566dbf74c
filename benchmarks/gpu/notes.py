"""What a part of `run.py` has found, written after every entry, and the time that it has left."""

from __future__ import annotations

import gc
import json
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(eq=False)
class Notes:
    """`file`: where they are written (None: nowhere); `seconds`: how long it may go on from now; `device`: of torch;
    `tiny`: sizes with which everything is over in seconds; `weights`: a .gguf file or a directory, if there is one."""

    file: Path | None = None
    seconds: float = 600.0
    device: str = "cpu"
    tiny: bool = True
    weights: Path | None = None
    found: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.end = time.monotonic() + self.seconds

    @property
    def left(self) -> float:
        """Seconds."""
        return self.end - time.monotonic()

    def put(self, name: str, value: Any) -> None:
        self.found[name] = value
        if self.file is not None:
            written = self.file.with_name(f".tmp-{self.file.name}")
            written.write_text(json.dumps(self.found, indent=1, default=str) + "\n")
            written.replace(self.file)

    def attempt(self, name: str, least: float, work: Callable[[], Any]) -> None:
        """Note what `work` returns, or with which error it ended, if `least` seconds are left; then what it held is
        let go."""
        if self.left < least:
            self.put(name, {"left out": f"{self.left:.0f} seconds were left, and it wants {least:.0f}"})
            return
        began = time.monotonic()
        try:
            value = work()
        except Exception:  # whatever it is: the next one is to run
            value = {"failed": traceback.format_exc()}
        if isinstance(value, dict):
            value["took_s"] = round(time.monotonic() - began, 2)
        self.put(name, value)
        empty()


def empty() -> None:
    """Give memory of the GPU back."""
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def wait() -> None:
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()


def seconds(work: Callable[[], Any]) -> float:
    """How long it takes, the GPU's work included."""
    wait()
    began = time.perf_counter()
    work()
    wait()
    return time.perf_counter() - began


def peak_gib() -> float:
    """The most memory of the GPU that was taken since `forget_peak`; without one, of this process ever."""
    import resource

    import torch

    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 2**30
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def forget_peak() -> None:
    import torch

    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
