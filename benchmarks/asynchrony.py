"""Asynchronous beside synchronous training where tools are slow: GRPO in `slow.py`'s game, staleness 0 and 2.

    python benchmarks/asynchrony.py                     five seeds; writes results/asynchrony.json and the page
    python benchmarks/asynchrony.py --seeds 0 --steps 4 --warm-up 20 --out x.json    a look

Both start from one model taught by demonstrations, and take the same number of steps of the same size; seed by seed,
one after the other, who goes first alternating. Rate: samples learnt from a second, of the whole run. Reward:
greedy accuracy on 256 held-out problems, tools at once. The interval is Student's, of the paired differences.
The game's settings (`TASK`) were chosen on seed 0, which does not count: in harder ones neither side learnt anything.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import tempfile
import time
from itertools import islice
from pathlib import Path
from typing import Any

from common import HERE, RESULTS, machine, publish, shown, spread, table

from shuhari.config import recipe
from shuhari.config.evaluation import Evaluation
from shuhari.loop.evaluation import evaluate
from shuhari.loop.run import loop, open_run

TASK = {"name": f"{HERE / 'slow.py'}:SlowShop", "guess": 0.4, "most": 4, "turns": 10}
SIDES = {"sync": 0, "async": 2}


def taught(folder: Path, steps: int) -> None:
    """The model that all runs start from."""
    task = {**TASK, "wait": 0.0}  # demonstrations are played out, too
    settings = {"task": task, "steps": steps, "buffer": {"use": "demos", "size": 64},
                "remove": ["task", "stage", "evaluate", "collect", "transform", "part"],
                "part.policy.terms.nll.stream": "ce", "part.policy.optimiser.use": "adamw",
                "part.policy.optimiser.lr": {"from": 2e-3, "to": 0, "after": 0.8 * steps, "over": 0.2 * steps,
                                             "warm": 15},
                "part.policy.optimiser.clip": 1.0}  # fmt: skip
    run = open_run(recipe.load("baselines/grpo_tools", settings=settings))
    for _ in loop(run):
        pass
    run.ctx.models["policy"].save(folder)


def train(folder: Path, seed: int, staleness: int, args: argparse.Namespace) -> dict[str, Any]:
    lr = {"from": 5e-4, "to": 5e-5, "over": args.steps, "warm": 3}
    settings = {"task": TASK, "remove": ["task", "models.policy", "stage", "evaluate"], "seed": seed,
                "threads": args.threads, "steps": args.steps, "models.policy": {"use": "causal", "path": str(folder)},
                "rollout.n": args.n, "buffer.size": args.groups, "part.policy.optimiser.lr": lr}  # fmt: skip
    if staleness:
        settings["engine.staleness"] = staleness
    run = open_run(recipe.load("baselines/grpo_tools", settings=settings))
    run.enter_stage()  # the model is loaded before the clock starts
    began, steps, decisions = time.perf_counter(), loop(run), 0.0
    for report in islice(steps, args.steps):  # and no further: behind its last step a run is closed
        seconds, decisions = time.perf_counter() - began, report["spent/decisions"]
    measured = Evaluation(n=256)
    run.ctx.serve()
    greedy = evaluate(run.ctx, measured, run.ctx.rollout).scores(measured)["greedy"]
    steps.close()
    return {"rate": args.steps * args.n * args.groups / seconds, "seconds": seconds, "greedy": greedy,
            "decisions": decisions}  # fmt: skip


def interval(differences: list[float], level: float = 0.95) -> tuple[float, float, float]:
    """(mean, low, high) by Student's t."""
    from scipy.stats import t

    n, mean = len(differences), statistics.mean(differences)
    half = math.nan if n < 2 else float(t.ppf((1 + level) / 2, n - 1)) * statistics.stdev(differences) / math.sqrt(n)
    return mean, mean - half, mean + half


def summary(runs: list[dict[str, Any]]) -> list[str]:
    rows = [("seed", "samples a second, sync", "async", "ratio", "greedy, sync", "async")]
    for r in runs:
        a, b = r["sync"], r["async"]
        rows.append((str(r["seed"]), f"{a['rate']:.1f}", f"{b['rate']:.1f}", f"{b['rate'] / a['rate']:.2f}",
                     f"{100 * a['greedy']:.1f}", f"{100 * b['greedy']:.1f}"))  # fmt: skip
    ratios = spread([r["async"]["rate"] / r["sync"]["rate"] for r in runs])
    mean, low, high = interval([100 * (r["async"]["greedy"] - r["sync"]["greedy"]) for r in runs])
    gain = f"Reward, async less sync: {mean:+.1f} points [{low:+.1f}, {high:+.1f}]."
    return [*table(*rows), "", f"Ratio min / median / max: {shown(ratios)}. {gain}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--groups", type=int, default=8)
    parser.add_argument("--n", type=int, default=8)
    parser.add_argument("--warm-up", type=int, default=400, dest="warm")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=RESULTS / "asynchrony.json")
    args = parser.parse_args()
    runs: list[dict[str, Any]] = []
    about = machine(args.threads)
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root, "taught")
        taught(folder, args.warm)
        for i, seed in enumerate(args.seeds):
            found: dict[str, Any] = {"seed": seed}
            for side in list(SIDES) if i % 2 == 0 else list(SIDES)[::-1]:
                found[side] = train(folder, seed, SIDES[side], args)
                print(seed, side, found[side], flush=True)
            runs.append(found)
            sizes = {k: getattr(args, k) for k in ("steps", "groups", "n", "warm")}
            args.out.write_text(json.dumps({"machine": about, "settings": sizes, "runs": runs}, indent=1) + "\n")
    print(*summary(runs), sep="\n")
    if args.out == RESULTS / "asynchrony.json":
        publish("asynchrony", summary(runs))


if __name__ == "__main__":
    main()
