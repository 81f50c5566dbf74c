"""What grows: tokens a second with the queue, and resident memory with the steps.

    python benchmarks/growth.py                  both; writes results/growth.json and the page
    python benchmarks/growth.py --steps 400 --longest 128 --rounds 1 --out x.json    a look

Queue: 256, 1,024 and 4,096 rows wait at once in an engine of 64 slots, for a Llama layout of 1 M parameters with random
weights; lengths are log-normal as in `peers/rollout.py`, to their ends. The sizes take turns, `rounds` times. Memory: a
text run and a control run of `steps` steps each, in processes of their own; resident at a tenth of the way and at the
end, each the mean of the twenty steps before it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from common import HERE, RESULTS, machine, memory, publish, shown, spread, table

QUEUES = (256, 1024, 4096)
RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "text, GRPO": ("baselines/grpo", {
        "remove": ["stage"], "steps": 10**9, "models.policy.hidden": 32, "models.policy.layers": 1,
        "models.policy.heads": 2, "rollout.n": 4, "buffer.size": 4}),
    "control, PPO": ("baselines/ppo_cartpole", {
        "env_steps": 10**9, "models.policy.hidden": [16], "models.critic.hidden": [16], "rollout.lanes": 4,
        "buffer.size": 64, "part.policy.epochs": 1, "part.policy.minibatches": 1}),
    "control, SAC": ("baselines/sac_pendulum", {
        "env_steps": 10**9, "models.policy.hidden": [16], "models.critic.hidden": [16], "rollout.random": 50,
        "buffer.warmup": 50, "buffer.size": 32, "buffer.capacity": 400, "buffer.collect": 8}),
}  # fmt: skip


def queue(args: argparse.Namespace) -> dict[str, Any]:
    """Tokens a second, wall and processor, by number of queued rows."""
    import tempfile

    sys.path.insert(0, str(HERE / "peers"))
    import rollout
    import torch

    torch.set_num_threads(args.threads)
    found: dict[str, Any] = {str(rows): {"wall": [], "cpu": []} for rows in QUEUES}
    with tempfile.TemporaryDirectory() as folder:
        rollout.prepare(Path(folder), "1M")
        case = {"folder": folder, "n": 8, "batch": 64, "longest": args.longest}
        roll = rollout.engine(case)
        roll(*rollout.workload({**case, "groups": 8}, 0))
        for turn in range(args.rounds):
            for rows in QUEUES:
                prompts, lengths = rollout.workload({**case, "groups": rows // 8}, turn)
                wall, cpu = time.perf_counter(), time.process_time()
                tokens = roll(prompts, lengths)
                wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
                found[str(rows)]["wall"].append(tokens / wall)
                found[str(rows)]["cpu"].append(tokens / cpu)
                print(f"{rows} rows: {tokens / wall:,.0f} tokens/s, {tokens / cpu:,.0f} a processor second", flush=True)
    return found


def resident(name: str, steps: int) -> dict[str, float]:
    """MiB after a tenth of the steps and after all, of a run in a process of its own."""
    command = [sys.executable, __file__, "--one", name, "--steps", str(steps)]
    told = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    found: dict[str, float] = json.loads(told.splitlines()[-1])
    return found


def one(name: str, steps: int) -> dict[str, float]:
    from shuhari.config import recipe
    from shuhari.loop.run import loop, open_run

    base, settings = RUNS[name]
    run = open_run(recipe.load(base, settings={**settings, "threads": 1, "remove": ["evaluate"]}))
    seen, began = [], time.perf_counter()
    for _ in loop(run):
        seen.append(memory())
        if len(seen) == steps:
            break
    early = seen[max(0, steps // 10 - 20) : steps // 10]
    return {"early": sum(early) / len(early), "late": sum(seen[-20:]) / 20, "seconds": time.perf_counter() - began}


def summary(found: dict[str, Any]) -> list[str]:
    base = found["queue"][str(QUEUES[0])]
    rows = [("rows queued", "tokens a second", "against 256: wall, min / median / max", "processor")]
    for count in QUEUES:
        own = found["queue"][str(count)]
        ratios = (shown(spread([a / b for a, b in zip(own[c], base[c], strict=True)])) for c in ("wall", "cpu"))
        rows.append((f"{count:,}", f"{spread(own['wall'])['median']:,.0f}", *ratios))
    runs = [("run", "steps", f"MiB at step {found['steps'] // 10:,}", f"at {found['steps']:,}", "growth")]
    for name, r in found["memory"].items():
        growth = f"{100 * (r['late'] / r['early'] - 1):+.2f} %"
        runs.append((name, f"{found['steps']:,}", f"{r['early']:.1f}", f"{r['late']:.1f}", growth))
    return [*table(*rows), "", *table(*runs)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--longest", type=int, default=1024)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=RESULTS / "growth.json")
    parser.add_argument("--one", default="", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(one(args.one, args.steps)))
        return
    found: dict[str, Any] = {"machine": machine(args.threads), "steps": args.steps, "memory": {}}
    for name in RUNS:
        found["memory"][name] = resident(name, args.steps)
        print(name, found["memory"][name], flush=True)
    found["queue"] = queue(args)
    args.out.write_text(json.dumps(found, indent=1) + "\n")
    print(*summary(found), sep="\n")
    if args.out == RESULTS / "growth.json":
        publish("growth", summary(found))


if __name__ == "__main__":
    main()
