"""Two Ray workers beside the engine of the run's own process, and what killing them changes.

    python benchmarks/workers.py                    writes results/workers.json
    python benchmarks/workers.py --quick --out x.json    a look: few steps, one repeat, five kills

Four comparisons, their sides one after the other, who goes first alternating. `compute`: a small language model on
sums, where nothing waits; `larger`: one of 3M weights and longer answers; `tools`: a game whose tool blocks its
process, against the synchronous and asynchronous local engine. The rate is samples learnt from a second, from the end
of the first step on (starting is stated apart).
`kills`: a run that learns, with and without workers that are killed (SIGKILL) at random moments.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from asynchrony import TASK, taught
from common import HERE, RESULTS, machine

from shuhari.config import recipe
from shuhari.loop.run import loop, open_run

COMPUTE = {"remove": ["stage", "evaluate"], "rollout.n": 16, "buffer.size": 16}
LARGER = {**COMPUTE, "models.policy.hidden": 256, "models.policy.layers": 4, "models.policy.heads": 4,
          "rollout.sampling.max_new": 32}  # fmt: skip
TOOLS = {"remove": ["task", "stage", "evaluate"], "rollout.n": 4, "buffer.size": 4,
         "task": {"name": f"{HERE / 'blocked.py'}:Blocked", "turns": 4, "wait": 0.05}}  # fmt: skip
SIDES: dict[str, tuple[str, dict[str, Any], dict[str, dict[str, Any]]]] = {  # name -> base, settings, sides
    "compute": ("baselines/grpo", COMPUTE, {"local": {}, "workers": {"distributed.workers": 2}}),
    "larger": ("baselines/grpo", LARGER, {"local": {}, "workers": {"distributed.workers": 2}}),
    "tools": ("baselines/grpo_tools", TOOLS, {
        "local": {}, "local_async": {"engine.staleness": 2}, "workers": {"distributed.workers": 2},
        "workers_async": {"distributed.workers": 2, "engine.staleness": 2}}),
}  # fmt: skip


def measure(base: str, settings: dict[str, Any], steps: int, kills: int = 0) -> dict[str, Any]:
    """One run: its rate, what it earned, what it spent. `kills`: so many workers are killed, as many after each step,
    at random moments."""
    began = time.perf_counter()
    run = open_run(recipe.load(base, settings={**settings, "steps": steps, "threads": settings.get("threads", 0)}))
    crew, struck, marks, done = run.ctx.crew, [0], list[float](), threading.Event()

    def strike() -> None:
        chance = random.Random(0)
        while not done.wait(chance.uniform(0.0, 0.3)) and struck[0] < kills:
            alive = [w.hand.pid for w in list(crew.workers) if not w.dead and w.started.done() and w.hand.pid]
            if alive and struck[0] < kills * len(marks) / (steps - 1):
                with suppress(ProcessLookupError):
                    os.kill(chance.choice(alive), signal.SIGKILL)
                    struck[0] += 1

    killer = threading.Thread(target=strike, daemon=True)
    rewards, samples = [], []
    if kills:
        killer.start()
    for report in loop(run):
        marks.append(time.perf_counter())
        rewards.append(float(report.get("reward/mean", float("nan"))))
        samples.append(sum(len(group) for group in run.ctx.groups))
    done.set()
    return {"rate": sum(samples[1:]) / (marks[-1] - marks[0]), "start": marks[0] - began, "steps": len(marks),
            "samples": sum(samples), "reward": rewards, "kills": struck[0],
            "lost_groups": run.ctx.ledger.get("lost_groups", 0.0)}  # fmt: skip


def compare(name: str, repeats: int, steps: int, threads: int) -> dict[str, Any]:
    """Each side's rates, and the ratios within a repeat to the synchronous local one."""
    base, settings, sides = SIDES[name]
    found: dict[str, list[dict[str, Any]]] = {side: [] for side in sides}
    for i in range(repeats):
        for side in list(sides)[:: 1 if i % 2 == 0 else -1]:
            found[side].append(measure(base, {**settings, **sides[side], "seed": i, "threads": threads}, steps))
            print(f"{name} {i} {side}: {found[side][-1]['rate']:.1f} samples/s", flush=True)
    rates = {side: [r["rate"] for r in runs] for side, runs in found.items()}
    ratio = {side: statistics.median(a / b for a, b in zip(rates[side], rates["local"], strict=True)) for side in sides}
    return {"rates": rates, "ratio_to_local": ratio, "start_s": statistics.median(r["start"] for r in found["workers"])}


def strike_and_compare(kills: int, steps: int, warm: int = 300) -> dict[str, Any]:
    """A run that learns, from a model taught by demonstrations, with and without killed workers."""
    with tempfile.TemporaryDirectory() as root:
        taught(Path(root, "taught"), warm)
        policy = {"use": "causal", "path": str(Path(root, "taught"))}
        learning = {"remove": ["task", "models.policy", "stage", "evaluate"], "rollout.n": 8, "buffer.size": 8,
                    "task": {**TASK, "wait": 0.005}, "models.policy": policy, "part.policy.optimiser.lr": 1e-4,
                    "threads": 1, "distributed.workers": 2}  # fmt: skip
        calm, struck = (measure("baselines/grpo_tools", learning, steps, k) for k in (0, kills))
    thirds = {name: [statistics.fmean(run["reward"][i * steps // 3 : (i + 1) * steps // 3]) for i in range(3)]
              for name, run in (("calm", calm), ("struck", struck))}  # fmt: skip
    return {"kills": struck["kills"], "lost_groups": struck["lost_groups"], "reward_by_third": thirds,
            "steps": [calm["steps"], struck["steps"]], "samples": [calm["samples"], struck["samples"]]}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few steps, one repeat, five kills")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="of the run; workers share the cores")
    parser.add_argument("--only", choices=[*SIDES, "kills"], help="one of the comparisons")
    parser.add_argument("--out", type=Path, default=RESULTS / "workers.json")
    given = parser.parse_args()
    repeats, steps, kills = (1, 4, 5) if given.quick else (5, 16, 100)
    out: dict[str, Any] = {"machine": machine(given.threads), "steps": steps, "repeats": repeats}
    if given.only and given.out.is_file():
        out = {**json.loads(given.out.read_text()), **out}
    for name in SIDES:
        if given.only in (None, name):
            out[name] = compare(name, repeats, steps, given.threads)
    if given.only in (None, "kills"):
        out["kills"] = strike_and_compare(kills, 2 * kills)
        print(f"kills: {out['kills']}", flush=True)
    given.out.write_text(json.dumps(out, indent=2) + "\n")


if __name__ == "__main__":
    main()
