"""Measure shuhari beside TRL and Stable-Baselines3: ours, theirs, ours, theirs, ..., in one run.

    python benchmarks/peers/run.py --setup     make the environment benchmarks/.peers (needs a package index)
    python benchmarks/peers/run.py             measure every case; prints a table, writes benchmarks/results/peers.json
    python benchmarks/peers/run.py --test      the differential tests

Each side of a case is a process of its own (`worker`). The two take turns, one block of steps each, so that a change of
the machine's speed meets both; first blocks are warm-up and do not count. A ratio is theirs over ours, seconds for the
same work, of one pair of neighbouring blocks: above 1, ours is faster. Wall time is what a person waits for; processor
time leaves out what other work on the machine took. Uses the standard library only. Left out: GPUs, several machines.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
ENV = HERE.parent / ".peers"
OUT = HERE.parent / "results" / "peers.json"
PYTHON = ENV / "bin" / "python"
PACKAGES = ("torch", "transformers", "trl", "accelerate", "stable-baselines3", "gymnasium", "numpy", "shuhari")
RATIOS = ("wall", "cpu")

TEXT: dict[str, Any] = {"module": "text", "unit": "samples", "prompts": 32, "n": 16, "new": 24, "block": 2}
CONTROL: dict[str, Any] = {"module": "control", "lr": 3e-4, "parts": 1, "unit": "env_steps"}
PPO = {**CONTROL, "method": "ppo", "recipe": "ppo_cartpole", "width": 64, "block": 4}
SAC = {**CONTROL, "method": "sac", "recipe": "sac_pendulum", "parts": 3, "block": 10}
DQN = {**CONTROL, "method": "dqn", "recipe": "dqn_cartpole", "width": 64, "block": 100}
CASES: dict[str, dict[str, Any]] = {
    "grpo, GPT-2 0.36M, 1 update": {**TEXT, "architecture": "gpt2", "updates": 1},
    "grpo, GPT-2 0.36M, 2 updates": {**TEXT, "architecture": "gpt2", "updates": 2},
    "grpo, Llama 0.80M, 1 update": {**TEXT, "architecture": "llama", "updates": 1},
    "grpo, Llama 0.80M, 2 updates": {**TEXT, "architecture": "llama", "updates": 2},
    "PPO CartPole": PPO,
    "PPO CartPole, theirs fused": {**PPO, "fused": True},
    "SAC Pendulum, width 64": {**SAC, "width": 64},
    "SAC Pendulum, width 64, theirs fused": {**SAC, "width": 64, "fused": True},
    "SAC Pendulum, width 256": {**SAC, "width": 256},
    "SAC Pendulum, width 256, theirs fused": {**SAC, "width": 256, "fused": True},
    "DQN CartPole, width 64": DQN,
    "DQN CartPole, width 64, theirs fused": {**DQN, "fused": True},
}


class Side:
    """One worker process: `block` runs a block of steps there and returns its report."""

    def __init__(self, side: str, case: dict[str, Any]) -> None:
        threads = {"OMP_NUM_THREADS": str(case["threads"]), "MKL_NUM_THREADS": str(case["threads"])}
        quiet = {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
        self.name, self.log = f"{side} of {case['name']}", tempfile.TemporaryFile("w+")  # noqa: SIM115
        self.process = subprocess.Popen(
            [str(PYTHON), str(HERE / "worker.py"), side, json.dumps(case)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True, cwd=HERE,
            env={**os.environ, **threads, **quiet},
        )  # fmt: skip

    def block(self) -> dict[str, float]:
        assert self.process.stdin is not None and self.process.stdout is not None
        line = ""
        if self.process.poll() is None:
            self.process.stdin.write("go\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        if not line:
            self.log.seek(0)
            raise RuntimeError(f"{self.name} ended:\n{self.log.read()[-3000:]}")
        found: dict[str, float] = json.loads(line)
        return found

    def close(self) -> None:
        self.process.terminate()
        self.process.wait()
        self.log.close()


def measure(case: dict[str, Any], pairs: int, warm: int) -> dict[str, Any]:
    """The reports of `pairs` alternating blocks of both sides, after `warm` of each."""
    sides: dict[str, Side] = {}
    reports: dict[str, list[dict[str, float]]] = {"ours": [], "theirs": []}
    try:
        for side in reports:
            sides[side] = Side(side, case)
            for _ in range(warm):
                sides[side].block()
        for _ in range(pairs):
            for side, found in reports.items():
                found.append(sides[side].block())
    finally:
        for worker in sides.values():
            worker.close()
    return summary(case, reports)


def summary(case: dict[str, Any], reports: dict[str, list[dict[str, float]]]) -> dict[str, Any]:
    unit, out = case["unit"], {"case": case["name"], "settings": _public(case), "pairs": len(reports["ours"])}
    for side, found in reports.items():
        work = {k: statistics.mean(r[k] for r in found) for k in found[0] if k not in ("wall", "cpu", "rss")}
        rates = {f"{unit}_per_{clock}_s": _spread([r[unit] / r[clock] for r in found]) for clock in RATIOS}
        out[side] = {**rates, "work_per_block": work, "peak_mib": max(r["rss"] for r in found)}
    for clock in RATIOS:
        pairs = zip(reports["ours"], reports["theirs"], strict=True)
        out[f"ratio_{clock}"] = _spread([(b[clock] / b[unit]) / (a[clock] / a[unit]) for a, b in pairs])
    return out


def _spread(x: list[float]) -> dict[str, float]:
    return {"min": min(x), "median": statistics.median(x), "max": max(x)}


def _public(case: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in case.items() if k not in ("name", "folder", "module", "unit", "recipe", "parts")}


def row(found: dict[str, Any]) -> str:
    """One line of the table: medians of units a second, then min/median/max of the two ratios."""
    unit = next(iter(found["ours"])).partition("_per_")[0]
    rates = " | ".join(f"{found[s][f'{unit}_per_wall_s']['median']:,.0f}" for s in ("ours", "theirs"))
    ratios = (" / ".join(f"{found[f'ratio_{c}'][k]:.2f}" for k in ("min", "median", "max")) for c in RATIOS)
    return f"| {found['case']} | {unit.replace('_', ' ')} | {rates} | {' | '.join(ratios)} |"


HEAD = "| case | unit | ours, a second | theirs | ratio, wall: min / median / max | ratio, processor |\n|" + "---|" * 6


def machine(threads: int) -> dict[str, Any]:
    """What the numbers hang on."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    cpu = next(named, platform.processor())
    code = "import importlib.metadata as m, json, sys; print(json.dumps({p: m.version(p) for p in sys.argv[1:]}))"
    told = subprocess.run([str(PYTHON), "-c", code, *PACKAGES], capture_output=True, text=True, check=True).stdout
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    system = {"cpu": cpu, "cores": cores, "system": platform.system(), "python": platform.python_version()}
    return {**system, "threads": threads, "load": os.getloadavg()[0], "versions": json.loads(told)}


def set_up() -> None:
    """Make benchmarks/.peers: torch first and alone, then the peers at their pins, then this checkout."""
    if not PYTHON.exists():
        subprocess.run([sys.executable, "-m", "venv", str(ENV)], check=True)
    pins = HERE / "requirements.txt"
    torch = next(x for x in pins.read_text().splitlines() if x.startswith("torch=="))
    pip = [str(PYTHON), "-m", "pip", "install"]
    for wanted in ([torch], ["-r", str(pins), "-e", str(ROOT)]):
        subprocess.run([*pip, *wanted], check=True)


def publish(found: list[dict[str, Any]]) -> None:
    """The table, between its marks in benchmarks/README.md."""
    page = HERE.parent / "README.md"
    body = "\n".join([HEAD, *map(row, found)]) + "\n"
    text = re.sub(r"(<!-- peers -->\n).*?(<!-- /peers -->)", lambda m: m[1] + body + m[2], page.read_text(), flags=re.S)
    page.write_text(text)


def prepared(case: dict[str, Any], folders: dict[str, str], root: str) -> dict[str, Any]:
    """With the folder of its model and problems, made on first use."""
    architecture = case.get("architecture")
    if architecture is None:
        return case
    if architecture not in folders:
        folders[architecture] = str(Path(root, architecture))
        code = "import sys, pathlib, text; text.prepare(pathlib.Path(sys.argv[1]), sys.argv[2])"
        subprocess.run(
            [str(PYTHON), "-c", code, folders[architecture], architecture],
            check=True,
            cwd=HERE,
            stderr=subprocess.DEVNULL,
        )
    return {**case, "folder": folders[architecture]}


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure shuhari beside its peers.")
    parser.add_argument("--setup", action="store_true", help="make the environment and end")
    parser.add_argument("--test", action="store_true", help="run the differential tests and end")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--pairs", type=int, default=7, help="counted pairs of blocks (default 7)")
    parser.add_argument("--warm", type=int, default=1, help="blocks of each side that do not count (default 1)")
    parser.add_argument("--threads", type=int, default=1, help="threads of each side (default 1)")
    parser.add_argument("--out", type=Path, default=OUT, help="where the JSON goes")
    args = parser.parse_args()
    if args.setup:
        return set_up()
    if not PYTHON.exists():
        sys.exit("no environment yet: run with --setup first")
    if args.test:
        sys.exit(subprocess.run([str(PYTHON), "-m", "pytest", "-q", str(HERE)], cwd=HERE).returncode)
    found, folders = [], dict[str, str]()
    about = machine(args.threads)
    print(HEAD, flush=True)
    with tempfile.TemporaryDirectory() as root:
        for name, case in CASES.items():
            if args.only.lower() in name.lower():
                case = prepared({**case, "name": name, "threads": args.threads}, folders, root)
                found.append(measure(case, args.pairs, args.warm))
                print(row(found[-1]), flush=True)
                args.out.parent.mkdir(parents=True, exist_ok=True)
                args.out.write_text(json.dumps({"machine": about, "cases": found}, indent=1) + "\n")
    if args.out == OUT and not args.only:
        publish(found)


if __name__ == "__main__":
    main()
