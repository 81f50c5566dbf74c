"""Part 1: what the machine is, and its limits: bytes a second of a copy (read and written), and operations a second of
the best square matrix product."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from importlib.metadata import distributions
from typing import Any

import torch
from common import machine
from notes import Notes, seconds

ASKED = ("shuhari", "torch", "transformers", "numpy", "scipy", "safetensors", "tokenizers", "peft", "accelerate", "trl",
         "gguf", "gymnasium", "pydantic", "triton", "vllm", "flash-attn", "matplotlib", "huggingface-hub")  # fmt: skip


def words(device: str) -> dict[str, Any]:
    """The machine, packages and the GPU."""
    versions = {d.metadata["Name"].lower(): d.version for d in distributions() if d.metadata["Name"]}
    found: dict[str, Any] = machine(torch.get_num_threads(), {name: versions.get(name, "") for name in ASKED})
    found |= {"device": device, "cuda": torch.version.cuda, "nccl": torch.distributed.is_nccl_available(),
              "trl": importlib.util.find_spec("trl") is not None, "free_disk_gib": shutil.disk_usage(".").free / 2**30,
              "memory_gib": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30}  # fmt: skip
    if torch.cuda.is_available():
        one = torch.cuda.get_device_properties(0)
        found |= {"gpu": one.name, "gpus": torch.cuda.device_count(), "gpu_gib": one.total_memory / 2**30,
                  "capability": f"{one.major}.{one.minor}", "multiprocessors": one.multi_processor_count,
                  "matmul_precision": torch.get_float32_matmul_precision()}  # fmt: skip
    if tool := shutil.which("nvidia-smi"):
        asked = "--query-gpu=name,driver_version,clocks.sm,clocks.max.sm,power.limit,memory.used"
        done = subprocess.run([tool, asked, "--format=csv"], capture_output=True, text=True, check=False, timeout=60)
        found["nvidia_smi"] = (done.stdout or done.stderr).strip()
    return found


def limits(device: str, tiny: bool) -> dict[str, Any]:
    def best(work: Any, times: int) -> float:
        work()
        return min(seconds(work) for _ in range(times))

    x = torch.empty(2**22 if tiny else 2**30, dtype=torch.uint8, device=device)
    y = torch.empty_like(x)
    found: dict[str, Any] = {"copy_gb_per_s": 2 * x.numel() / best(lambda: y.copy_(x), 5) / 1e9}
    for dtype in (torch.bfloat16, torch.float32):
        peak = 0.0
        for n in (256,) if tiny else (4096, 8192):
            a, b = (torch.randn(n, n, device=device, dtype=dtype) for _ in range(2))
            peak = max(peak, 2 * n**3 / best(lambda a=a, b=b: a @ b, 5 if dtype == torch.float32 else 10))
        found[f"product_tflop_per_s_{str(dtype).removeprefix('torch.')}"] = peak / 1e12
    one, host = torch.zeros(1, device=device), torch.zeros(256, device=device)
    found["launch_us"] = 1e6 * seconds(lambda: [one.add_(1) for _ in range(1000)]) / 1000
    found["copy_to_host_us"] = 1e6 * seconds(lambda: [host.cpu() for _ in range(200)]) / 200
    return found


def main(notes: Notes) -> None:
    notes.attempt("machine", 0, lambda: words(notes.device))
    notes.attempt("limits", 5, lambda: limits(notes.device, notes.tiny))
