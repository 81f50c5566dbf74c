"""What the bits of a run depend on beside its recipe: versions of packages, threads, and the kind of processor."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

PACKAGES = ("shuhari", "torch", "numpy", "scipy", "scikit-learn", "transformers", "tokenizers", "gymnasium")
HALF = ("avx512_bf16", "amx_bf16", "avx_ne_convert", "bf16")  # that compute with bfloat16, of x86 and of arm
CHOOSE = ("sse4", "avx", "fma", "amx", "f16c", "bmi", "asimd", "sve")  # instructions by which libraries choose kernels


def versions() -> dict[str, Any]:
    """Return the versions, threads and processor that a run is made with."""
    found: dict[str, Any] = {name: known for name in PACKAGES if (known := _version(name))}
    there = {"python": platform.python_version(), "machine": platform.machine(), "processor": processor()}
    return {**found, **there, "threads": torch.get_num_threads()}


@cache
def _version(package: str) -> str:
    """Return a package's version, "" if it is not installed. Cached, as parsing the metadata takes milliseconds."""
    with suppress(PackageNotFoundError):
        return version(package)
    return ""


@cache
def _read_facts() -> Mapping[str, str]:
    """Return what the system says of its first processor by name; nothing if it does not list that."""
    facts: dict[str, str] = {}
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().partition("\n\n")[0].splitlines():
            key, _, value = line.partition(":")
            facts[key.strip()] = value.strip()
    return facts


def _list_flags() -> list[str]:
    """Return the names of the processor's instructions; none if the system does not list them."""
    facts = _read_facts()
    return facts.get("flags", facts.get("Features", "")).split()


def lacks_bfloat16() -> bool:
    """Whether the processor is known to have no instructions for bfloat16, which is then several times slower than
    float32."""
    flags = _list_flags()
    return bool(flags) and not any(f in HALF for f in flags)


@cache
def processor() -> str:
    """Return the kind of processor: maker, family and model, the instructions that torch uses, and a digest of the
    instructions by which libraries choose kernels. If the system does not list them, return what Python knows."""
    facts = _read_facts()
    kind = " ".join(facts[k] for k in ("vendor_id", "cpu family", "model") if k in facts) or platform.processor()
    flags = sorted(f for f in _list_flags() if f.startswith(CHOOSE))
    mark = hashlib.blake2b(" ".join(flags).encode(), digest_size=3).hexdigest()
    return f"{kind} {torch.backends.cpu.get_cpu_capability()} {mark}".strip()
