"""What the scripts of this folder share: the machine in words, spreads, and tables that find their place in a page.

The standard library only, so that any interpreter can run it.
"""

from __future__ import annotations

import json
import os
import platform
import re
import statistics
import sys
from collections.abc import Iterable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
PAGES = "README.md", "baselines.md", "more.md"
PACKAGES = ("torch", "transformers", "numpy", "shuhari")
# glibc gives freed memory back at once and asks for it again, page by page, which costs copying caches (transformers'
# own grow by copying) up to half of their time: keep it. Read by every child process.
ALLOCATOR = {"MALLOC_TRIM_THRESHOLD_": "10000000000", "MALLOC_MMAP_THRESHOLD_": "10000000000"}


def machine(threads: int, versions: dict[str, str] | None = None) -> dict[str, Any]:
    """What the numbers depend on; `versions`: of another environment than this interpreter's."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    system = {"cpu": next(named, platform.processor()), "cores": cores, "system": platform.system()}
    found = {p: _version(p) for p in PACKAGES} if versions is None else versions
    return {**system, "python": platform.python_version(), "threads": threads, "load": os.getloadavg()[0],
            "versions": found}  # fmt: skip


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:  # on the path, and not installed
        return ""


def spread(x: Sequence[float]) -> dict[str, float]:
    return {"min": min(x), "median": statistics.median(x), "max": max(x)}


def shown(found: dict[str, float], digits: int = 2) -> str:
    """min / median / max."""
    return " / ".join(f"{found[k]:.{digits}f}" for k in ("min", "median", "max"))


def table(*rows: Sequence[str]) -> list[str]:
    """The lines of a table; the first row is its head."""
    return ["| " + " | ".join(r) + " |" for r in (rows[0], ["---"] * len(rows[0]), *rows[1:])]


def memory() -> float:
    """MiB of this process that are resident now; Linux, elsewhere the most there has been."""
    statm = Path("/proc/self/statm")
    if statm.is_file():
        return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)


def write(name: str, found: Any) -> None:
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n")


def publish(mark: str, lines: Iterable[str]) -> None:
    """Put lines between the marks `<!-- mark -->` and `<!-- /mark -->` of the page that has them."""
    body = "\n".join(lines) + "\n"
    for page in (HERE / name for name in PAGES):
        old = page.read_text()
        marked = rf"(<!-- {mark} -->\n).*?(<!-- /{mark} -->)"
        new, found = re.subn(marked, lambda m: m[1] + body + m[2], old, flags=re.DOTALL)
        if found:
            page.write_text(new)
            return
    raise ValueError(f"no page has marks {mark!r}: looked in {', '.join(PAGES)}")
