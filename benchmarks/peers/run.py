"""Measure shuhari beside TRL, Stable-Baselines3 and d3rlpy: ours, theirs, ours, theirs, ..., in one run.

    python benchmarks/peers/run.py --setup     make the environment benchmarks/.peers (needs a package index)
    python benchmarks/peers/run.py             measure every case; prints a table, writes benchmarks/results/peers.json
    python benchmarks/peers/run.py --test      the differential tests

Each side of a case is a process of its own (`worker`). The two take turns, one block of steps each, so that a change of
the machine's speed meets both; first blocks are warm-up and do not count. A ratio is theirs over ours, seconds for the
same work, of one pair of neighbouring blocks: above 1, ours is faster. Wall time is what a person waits for; processor
time leaves out what other work on the machine took. A race is not a number of steps but the way to a held-out accuracy.
Uses the standard library only; `--only returns` hands over to `returns`. Left out: GPUs, several machines.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from common import ALLOCATOR, machine, publish, shown, spread, table  # noqa: E402

ROOT = HERE.parent.parent
ENV = HERE.parent / ".peers"
OUT = HERE.parent / "results" / "peers.json"
PYTHON = ENV / "bin" / "python"
PEERS = ("trl", "stable-baselines3", "d3rlpy")
PACKAGES = ("torch", "transformers", "accelerate", "gymnasium", "numpy", "shuhari", *PEERS)
RATIOS = ("wall", "cpu")

ROLLOUT: dict[str, Any] = {"module": "rollout", "unit": "tokens", "n": 8, "block": 1, "batch": 64}
SMALL, LARGE = {**ROLLOUT, "size": "1M", "groups": 32}, {**ROLLOUT, "size": "15M", "groups": 8}
EQUAL = {**ROLLOUT, "size": "0.8M", "groups": 64, "length": 24, "batch": 512}
# `settings` of generate_batch, `batch` and `cache` of generate: the best at this batch of those tried, see README.md
PAGED = {"num_blocks": 100, "page_size": 256}
TEXT: dict[str, Any] = {"module": "text", "unit": "samples", "prompts": 32, "n": 16, "new": 24, "block": 2}
PAIRED = {**TEXT, "module": "online_dpo", "prompts": 64, "n": 2}
CONTROL: dict[str, Any] = {"module": "control", "lr": 3e-4, "parts": 1, "unit": "env_steps"}
PPO = {**CONTROL, "method": "ppo", "recipe": "ppo_cartpole", "width": 64, "block": 4}
SAC = {**CONTROL, "method": "sac", "recipe": "sac_pendulum", "parts": 3, "block": 10}
DQN = {**CONTROL, "method": "dqn", "recipe": "dqn_cartpole", "width": 64, "block": 100}
OFFLINE: dict[str, Any] = {"module": "offline", "unit": "updates", "block": 3}
IQL = {**OFFLINE, "method": "iql", "recipe": "iql_pendulum"}
TD3_BC = {**OFFLINE, "method": "td3_bc", "recipe": "td3_bc_pendulum"}
CQL = {**OFFLINE, "method": "cql", "recipe": "cql_pendulum", "block": 1}
CASES: dict[str, dict[str, Any]] = {
    "rollout 1M, generate": {**SMALL, "peer": "generate", "cache": "static"},
    "rollout 1M, generate_batch": {**SMALL, "peer": "continuous", "rows": 16, "settings": PAGED},
    "rollout 15M, generate": {**LARGE, "peer": "generate", "cache": "static"},
    "rollout 15M, generate_batch": {**LARGE, "peer": "continuous", "rows": 16, "settings": PAGED},
    "rollout 0.8M, 24 tokens each, generate": {**EQUAL, "peer": "generate", "cache": "static"},
    "grpo, GPT-2 0.36M, 1 update": {**TEXT, "architecture": "gpt2", "updates": 1},
    "grpo, GPT-2 0.36M, 2 updates": {**TEXT, "architecture": "gpt2", "updates": 2},
    "grpo, Llama 0.80M, 1 update": {**TEXT, "architecture": "llama", "updates": 1},
    "grpo, Llama 0.80M, 2 updates": {**TEXT, "architecture": "llama", "updates": 2},
    "online DPO, GPT-2 0.36M": {**PAIRED, "architecture": "gpt2"},
    "online DPO, Llama 0.80M": {**PAIRED, "architecture": "llama"},
    "PPO CartPole": PPO,
    "PPO CartPole, theirs fused": {**PPO, "fused": True},
    "SAC Pendulum, width 64": {**SAC, "width": 64},
    "SAC Pendulum, width 64, theirs fused": {**SAC, "width": 64, "fused": True},
    "SAC Pendulum, width 256": {**SAC, "width": 256},
    "SAC Pendulum, width 256, theirs fused": {**SAC, "width": 256, "fused": True},
    "DQN CartPole, width 64": DQN,
    "DQN CartPole, width 64, theirs fused": {**DQN, "fused": True},
    "IQL Pendulum": IQL,
    "IQL Pendulum, theirs from ready batches": {**IQL, "ready": True},
    "TD3+BC Pendulum": TD3_BC,
    "TD3+BC Pendulum, theirs from ready batches": {**TD3_BC, "ready": True},
    "CQL Pendulum": CQL,
    "CQL Pendulum, theirs from ready batches": {**CQL, "ready": True},
}
# five steps a block, each block followed by the exam; an end after `most` blocks, reached or not
RACE = {**TEXT, "module": "race", "unit": "steps", "new": 8, "updates": 2, "block": 5, "target": 0.8, "most": 24}


class Side:
    """One worker process: `block` runs a block of steps there and returns its report. Of a case: `python`, the
    interpreter; `allocator`, what its environment says of memory; `before`, another checkout of ours, which takes the
    place of theirs."""

    def __init__(self, side: str, case: dict[str, Any]) -> None:
        threads = {"OMP_NUM_THREADS": str(case["threads"]), "MKL_NUM_THREADS": str(case["threads"])}
        quiet = {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
        allocator, other = case.get("allocator", ALLOCATOR), {}
        if side == "theirs" and case.get("before"):
            side, other = "ours", {"PYTHONPATH": str(Path(case["before"], "src"))}
        self.name, self.log = f"{side} of {case['name']}", tempfile.TemporaryFile("w+")  # noqa: SIM115
        self.process = subprocess.Popen(
            [case.get("python", str(PYTHON)), str(HERE / "worker.py"), side, json.dumps(case)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True, cwd=HERE,
            env={**os.environ, **allocator, **threads, **quiet, **other},
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
        rates = {f"{unit}_per_{clock}_s": spread([r[unit] / r[clock] for r in found]) for clock in RATIOS}
        out[side] = {**rates, "work_per_block": work, "peak_mib": max(r["rss"] for r in found)}
    for clock in RATIOS:
        pairs = zip(reports["ours"], reports["theirs"], strict=True)
        out[f"ratio_{clock}"] = spread([(b[clock] / b[unit]) / (a[clock] / a[unit]) for a, b in pairs])
    return out


def _public(case: dict[str, Any]) -> dict[str, Any]:
    own = ("name", "folder", "module", "unit", "recipe", "parts", "python", "before", "kind", "trl")
    return {k: v for k, v in case.items() if k not in own}


HEAD = ("case", "unit", "ours, a second", "theirs", "ratio, wall: min / median / max", "ratio, processor")


def row(found: dict[str, Any]) -> tuple[str, ...]:
    """Of the table: medians of units a second, then min/median/max of the two ratios."""
    unit = next(iter(found["ours"])).partition("_per_")[0]
    rates = (f"{found[s][f'{unit}_per_wall_s']['median']:,.0f}" for s in ("ours", "theirs"))
    return found["case"], unit.replace("_", " "), *rates, *(shown(found[f"ratio_{c}"]) for c in RATIOS)


def race(case: dict[str, Any]) -> dict[str, Any]:
    """Blocks in turn until both sides have reached `target`, or have had `most` blocks: steps, seconds and curves."""
    sides: dict[str, Side] = {}
    found: dict[str, Any] = {"seed": case["seed"], "target": case["target"]}
    try:
        for side in ("ours", "theirs"):
            sides[side] = Side(side, case)
            found[side] = {"steps": 0, "wall": 0.0, "cpu": 0.0, "reached": False, "curve": []}
        for _ in range(case["most"]):
            for side in [s for s in sides if not found[s]["reached"]]:
                report, so_far = sides[side].block(), found[side]
                for what in ("steps", *RATIOS):
                    so_far[what] += report[what]
                so_far["curve"].append([so_far["steps"], report["accuracy"]])
                so_far["reached"] = report["accuracy"] >= case["target"]
    finally:
        for worker in sides.values():
            worker.close()
    for clock in RATIOS:
        found[f"ratio_{clock}"] = found["theirs"][clock] / found["ours"][clock]
    return found


def race_row(found: dict[str, Any]) -> tuple[str, ...]:
    """Of its table."""
    told = [f"{found[s]['steps']:.0f}{'' if found[s]['reached'] else ' (not reached)'}" for s in ("ours", "theirs")]
    seconds = (f"{found[s]['wall']:.1f}" for s in ("ours", "theirs"))
    return str(found["seed"]), *told, *seconds, *(f"{found[f'ratio_{c}']:.2f}" for c in RATIOS)


RACE_HEAD = ("seed", "steps, ours", "theirs", "seconds, ours", "theirs", "ratio, wall", "ratio, processor")


def versions() -> dict[str, str]:
    """Of the packages of the environment."""
    code = "import importlib.metadata as m, json, sys; print(json.dumps({p: m.version(p) for p in sys.argv[1:]}))"
    told = subprocess.run([str(PYTHON), "-c", code, *PACKAGES], capture_output=True, text=True, check=True).stdout
    found: dict[str, str] = json.loads(told)
    return found


def set_up() -> None:
    """Make benchmarks/.peers: torch first and alone, then the peers at their pins and this checkout, then d3rlpy, whose
    own pins are set aside."""
    if not PYTHON.exists():
        subprocess.run([sys.executable, "-m", "venv", str(ENV)], check=True)
    lines = (HERE / "requirements.txt").read_text().splitlines()
    pins = [pin for line in lines if (pin := line.partition("#")[0].strip())]
    torch, alone = ([p for p in pins if p.startswith(f"{name}==")] for name in ("torch", "d3rlpy"))
    rest = [p for p in pins if p not in torch + alone]
    for wanted in (torch, [*rest, "-e", str(ROOT)], ["--no-deps", *alone]):
        subprocess.run([str(PYTHON), "-m", "pip", "install", *wanted], check=True)
    subprocess.run([str(PYTHON), "-c", "import d3rlpy"], check=True)  # whether what it imports is all there


def prepared(case: dict[str, Any], folders: dict[str, str], root: str) -> dict[str, Any]:
    """With the folder of its model and problems, made on first use."""
    what = case.get("size") or case.get("architecture")
    if what is None:
        return case
    name = f"{case['module']}-{what}"
    if name not in folders:
        folders[name] = str(Path(root, name))
        make = f"import pathlib, sys, {case['module']} as m; m.prepare(pathlib.Path(sys.argv[1]), *sys.argv[2:])"
        command = [str(PYTHON), "-c", make, folders[name], what]
        done = subprocess.run(command, cwd=HERE, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{name} could not be made:\n{done.stderr[-3000:]}")
    return {**case, "folder": folders[name]}


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure shuhari beside its peers.")
    parser.add_argument("--setup", action="store_true", help="make the environment and end")
    parser.add_argument("--test", action="store_true", help="run the differential tests and end")
    parser.add_argument("--only", default="", help="cases whose name contains this; or `race`, `returns`")
    parser.add_argument("--pairs", type=int, default=7, help="counted pairs of blocks (default 7)")
    parser.add_argument("--warm", type=int, default=1, help="blocks of each side that do not count (default 1)")
    parser.add_argument("--threads", type=int, default=1, help="threads of each side (default 1)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="of the race")
    parser.add_argument("--target", type=float, default=RACE["target"], help="held-out accuracy that ends the race")
    parser.add_argument("--out", type=Path, default=OUT, help="where the JSON goes")
    args = parser.parse_args()
    if args.setup:
        return set_up()
    if not PYTHON.exists():
        sys.exit("no environment yet: run with --setup first")
    if args.test:
        sys.exit(subprocess.run([str(PYTHON), "-m", "pytest", "-q", str(HERE)], cwd=HERE).returncode)
    if args.only == "returns":
        sys.exit(subprocess.run([str(PYTHON), str(HERE / "returns.py")]).returncode)
    old = json.loads(args.out.read_text()) if args.out.exists() else {}
    kept = {f["case"]: f for f in old.get("cases", [])}
    raced: list[dict[str, Any]] = []
    about, folders = machine(args.threads, versions()), dict[str, str]()

    def save() -> None:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        cases = [kept[n] for n in CASES if n in kept]
        found = {"machine": about, "cases": cases, "race": raced or old.get("race", [])}
        args.out.write_text(json.dumps(found, indent=1) + "\n")

    with tempfile.TemporaryDirectory() as root:
        print(*table(HEAD), sep="\n", flush=True)
        for name, case in CASES.items():
            if args.only.lower() in name.lower():
                case = prepared({**case, "name": name, "threads": args.threads}, folders, root)
                kept[name] = {**measure(case, args.pairs, args.warm), "machine": about}
                print(table(row(kept[name]))[0], flush=True)
                save()
        if args.only.lower() in "race":
            print(*table(RACE_HEAD), sep="\n", flush=True)
            case = prepared({**RACE, "name": "race", "architecture": "gpt2"}, folders, root)
            for seed in args.seeds:
                given = {"threads": args.threads, "seed": seed, "target": args.target}
                raced.append({**race({**case, **given}), "machine": about})
                print(table(race_row(raced[-1]))[0], flush=True)
                save()
    if args.out == OUT:
        found = json.loads(OUT.read_text())
        publish("peers", table(HEAD, *map(row, found["cases"])))
        if found["race"]:
            publish("race", table(RACE_HEAD, *map(race_row, found["race"])))


if __name__ == "__main__":
    main()
