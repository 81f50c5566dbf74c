"""How well `shuhari plan` predicts: one run measures this machine; of three others the seconds a step are predicted.

    python benchmarks/plan.py                        a quarter of an hour; writes results/plan.json and the page
    python benchmarks/plan.py --quick --out x.json   a look, of two minutes
    python benchmarks/plan.py --cpu --out x.json     on a busy machine: processor time of the first two, no waits

All play `slow.py`'s game on one machine and in one process, from one model taught by demonstrations. The first (8
groups of 8, synchronous) gives the speeds: of decoding, reading, training, and of what a step takes besides. The others
are another batch (16 groups of 4), longer games (synchronous), and asynchronous collection (staleness 2) with slow
tools. From these the planner is told what is asked of it: groups, answers a group, staleness, the lengths of answers,
and the tools' waits; no other time.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from statistics import fmean
from typing import Any

from asynchrony import TASK, taught
from common import RESULTS, machine, publish, shown, spread, table

from shuhari.config import recipe
from shuhari.desk.planning.choose import plan
from shuhari.desk.planning.measured import measure
from shuhari.desk.profile_report import train_profiled
from shuhari.kernel import profile
from shuhari.store import Run

CALIBRATION: dict[str, Any] = {"groups": 8, "n": 8, "staleness": 0, "wait": 0.02, "most": 4}
SETTINGS: dict[str, dict[str, Any]] = {
    "another batch": {**CALIBRATION, "groups": 16, "n": 4},
    "longer games": {**CALIBRATION, "most": 8, "turns": 20},
    "asynchronous, slow tools": {**CALIBRATION, "staleness": 2, "wait": 0.3, "longer": 4},  # rare waits decide
}
WARM = 3  # steps that fill the pipeline, and do not count


def train(model: Path, path: Path, args: argparse.Namespace, setting: dict[str, Any]) -> float:
    """Seconds a step of a run of this setting."""
    task = {**TASK, "wait": setting["wait"], "most": setting["most"], "turns": setting.get("turns", TASK["turns"])}
    steps = args.steps * setting.get("longer", 1) + WARM
    settings = {"task": task, "remove": ["task", "models.policy", "stage", "evaluate"], "threads": 1, "steps": steps,
                "seed": args.seed, "models.policy": {"use": "causal", "path": str(model)},
                "store.groups": ["all"], "store.every": 10_000, "rollout.n": setting["n"],
                "buffer.size": setting["groups"], "part.policy.optimiser.lr": 1e-5}  # fmt: skip
    if setting["staleness"]:
        settings["engine.staleness"] = setting["staleness"]
    spent = [time.process_time() for _ in train_profiled(recipe.load("baselines/grpo_tools", settings=settings), path)]
    wall = spent if args.cpu else Run(path).metrics()["wall"]
    took = [b - a for a, b in zip(wall[WARM - 1 : -1], wall[WARM:], strict=True)]
    took = took[: -setting["staleness"] or None]  # the last steps ask for nothing new
    return fmean(took)


def predict(known: Path, path: Path) -> float:
    """Seconds a step of the run at `path`, by the speeds of the one at `known`."""
    asked = measure(path)
    return plan(asked.setting, measure(known).hardware, asked.workload).outcome.seconds


def summary(rounds: list[dict[str, Any]]) -> list[str]:
    rows = [("setting", "measured, s a step", "planned", "error")]
    for name in rounds[0]["settings"]:
        found = [r["settings"][name] for r in rounds]
        errors = [100 * (x["planned"] / x["measured"] - 1) for x in found]
        rows.append((name, shown(spread([x["measured"] for x in found]), 3), shown(spread([x["planned"] for x in
        found]), 3),
                     " / ".join(f"{e:+.0f} %" for e in spread(errors).values())))  # fmt: skip
    return [*table(*rows), "", f"Minimum / median / maximum of {len(rounds)} rounds, each measured from anew."]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one round of few steps")
    parser.add_argument("--cpu", action="store_true", help="processor time, where others use the machine too")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--warm-up", type=int, default=300, dest="warm")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=RESULTS / "plan.json")
    args = parser.parse_args()
    if args.quick:
        args.rounds, args.steps, args.warm = 1, 8, 40
    if args.cpu:
        profile._now = time.process_time
        SETTINGS.pop("asynchronous, slow tools")
        for setting in (CALIBRATION, *SETTINGS.values()):
            setting["wait"] = 0.0
    about, rounds = machine(1), list[dict[str, Any]]()
    with tempfile.TemporaryDirectory() as root:
        model = Path(root, "taught")
        taught(model, args.warm)
        for i in range(args.rounds):
            known = Path(root, f"{i}-calibration")
            seconds = train(model, known, args, CALIBRATION)
            itself = predict(known, known)
            print(f"calibration: {seconds:.3f} s a step, planned {itself:.3f}", flush=True)
            found: dict[str, Any] = {}
            for j, (name, setting) in enumerate(SETTINGS.items()):
                path = Path(root, f"{i}-{j}")
                measured = train(model, path, args, setting)
                planned = predict(known, path)
                found[name] = {"measured": measured, "planned": planned}
                print(
                    f"{name}: {measured:.3f} s a step, planned {planned:.3f} ({planned / measured - 1:+.0%})",
                    flush=True,
                )
            rounds.append({"calibration": {"measured": seconds, "planned": itself}, "settings": found})
            settings = {k: getattr(args, k) for k in ("rounds", "steps", "warm", "seed")}
            args.out.write_text(json.dumps({"machine": about, "settings": settings, "rounds": rounds}, indent=1) + "\n")
    print(*summary(rounds), sep="\n")
    if args.out == RESULTS / "plan.json":
        publish("plan", summary(rounds))


if __name__ == "__main__":
    main()
