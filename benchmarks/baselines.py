"""Train the baselines on several seeds, and write their numbers and curves beside this file.

    python benchmarks/baselines.py                      # all of them, seeds 0 to 2, two single-threaded runs at a time
    python benchmarks/baselines.py grpo dapo --seeds 0  # some of them
    python benchmarks/baselines.py --report             # only write the page again; what has no runs stays

Runs lie under runs/baselines and go on where they stopped. It writes results/baselines.json (every curve, with
versions and wall time), curves-text.png, curves-control.png, and the tables in baselines.md between their marks.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from shuhari.config import recipe as recipes
from shuhari.store import Run

HERE = Path(__file__).parent
RUNS = Path("runs/baselines")
RESULTS = HERE / "results" / "baselines.json"
FAMILY = "baselines/"


def train(name: str, seed: int) -> None:
    path = RUNS / f"{name}-{seed}"
    if (path / "summary.json").exists():
        return
    RUNS.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    with path.with_name(f"{path.name}.log").open("w") as log:  # beside: a run's folder holds nothing else at the start
        command = [sys.executable, "-m", "shuhari", "train", FAMILY + name, "--seed", str(seed), "--run", str(path)]
        code = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, check=False).returncode
    print(f"{name} seed {seed}: exit {code}, {time.monotonic() - began:.0f} s", flush=True)


def read(name: str, seed: int) -> dict[str, Any] | None:
    """What a complete run measured; None where it is not complete."""
    path = RUNS / f"{name}-{seed}"
    if not (path / "summary.json").exists():
        return None
    run = Run(path)
    summary, columns = json.loads((path / "summary.json").read_text()), run.metrics()
    text = "evaluate/mean" in columns
    y = next(n for n in ("evaluate/mean", "rollout/return", "reward/mean", "evaluate/greedy") if n in columns)
    y = "evaluate/greedy" if text else y
    x = "step" if text else "spent/env_steps" if "spent/env_steps" in columns else "step"
    curve = [[a, b] for a, b in zip(columns[x], columns[y], strict=True) if a is not None and b is not None]
    curve = [[a, float(f"{b:.5g}")] for a, b in curve[:: max(1, len(curve) // 100)]]
    return {"seed": seed, "before": summary["before"], "after": summary["after"], "wall_s": round(summary["wall_s"], 1),
            "spent": summary["spent"], "curve": {"x": x, "y": y, "points": curve}}  # fmt: skip


def is_text(recipe: Any) -> bool:
    return any("use" in m and str(m["use"]).startswith("causal") for m in recipe.stages[-1]["models"].values())


def budget(recipe: Any) -> str:
    return " + ".join(
        f"{value:,} {key.replace('_', ' ')}"
        for stage in recipe.stages
        for key, value in stage.items()
        if key in ("steps", "env_steps", "decisions", "tokens", "updates")
    )


def number(value: float | None, text: bool) -> str:
    return (
        "" if value is None else f"{100 * value:.1f}" if text else f"{value:.3g}" if abs(value) < 10 else f"{value:.0f}"
    )


def table(results: dict[str, Any], text: bool) -> list[str]:
    seeds = sorted({r["seed"] for e in results.values() for r in e["runs"]})
    rows = [["recipe", "budget", *(f"seed {s}" for s in seeds), "time (s)"]]
    for name, entry in results.items():
        if entry["text"] is not text:
            continue
        by = {r["seed"]: r for r in entry["runs"]}
        cells = []
        for s in seeds:
            before, after = (by[s][k].get("greedy") if s in by else None for k in ("before", "after"))
            both = text and s in by
            cells.append(f"{number(before, text)} → {number(after, text)}" if both else number(after, text))
        times = [r["wall_s"] for r in entry["runs"]]
        first, last = f"{min(times):.0f}", f"{max(times):.0f}"
        rows.append([f"`{FAMILY}{name}`", entry["budget"], *cells, first if first == last else f"{first} to {last}"])
    return ["| " + " | ".join(r) + " |" for r in (rows[0], ["---"] * len(rows[0]), *rows[1:])]


def curves(results: dict[str, Any], text: bool) -> None:
    entries = {n: e for n, e in results.items() if e["text"] is text}
    wide = 4
    high = -(-len(entries) // wide)
    figure, axes = plt.subplots(high, wide, figsize=(3.2 * wide, 2.4 * high), layout="constrained", squeeze=False)
    for axis in axes.flat[len(entries) :]:
        axis.axis("off")
    for axis, (name, entry) in zip(axes.flat, entries.items(), strict=False):
        for run in entry["runs"]:
            points = run["curve"]["points"]
            marker = None if len(points) > 1 else "o"
            axis.plot(*zip(*points, strict=True), marker=marker, label=f"seed {run['seed']}", linewidth=1)
        axis.set_title(name, fontsize=9)
        axis.tick_params(labelsize=7)
        axis.set_xlabel(entry["runs"][0]["curve"]["x"].removeprefix("spent/"), fontsize=7)
        axis.set_ylabel(entry["runs"][0]["curve"]["y"], fontsize=7)
    axes.flat[0].legend(fontsize=7)
    figure.savefig(HERE / f"curves-{'text' if text else 'control'}.png", dpi=90)


def report(names: Sequence[str], seeds: Sequence[int]) -> None:
    known: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    results: dict[str, Any] = {}
    for name in names:
        recipe = recipes.load(FAMILY + name)
        runs = [r for r in (read(name, s) for s in seeds) if r is not None]
        if runs:
            results[name] = {"text": is_text(recipe), "budget": budget(recipe), "runs": runs}
        elif name in known:
            results[name] = known[name]  # measured before, and the runs are elsewhere
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    page = HERE / "baselines.md"
    for what, text in (("text", True), ("control", False)):
        if any(e["text"] is text for e in results.values()):
            curves(results, text)
            marked = rf"(<!-- {what} -->\n).*?(<!-- /{what} -->)"
            body = "\n".join(table(results, text)) + "\n"
            page.write_text(re.sub(marked, lambda m, b=body: m[1] + b + m[2], page.read_text(), flags=re.DOTALL))


def main() -> None:
    known = [n.removeprefix(FAMILY) for n in recipes.list_names() if n.startswith(FAMILY)]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(known)}")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--report", action="store_true")
    asked = parser.parse_args()
    unknown = set(asked.names) - set(known)
    if unknown:
        parser.error(f"no recipe {FAMILY}{min(unknown)}")
    if not asked.report:
        with ThreadPoolExecutor(asked.workers) as pool:
            list(pool.map(lambda job: train(*job), [(n, s) for s in asked.seeds for n in asked.names or known]))
    report(known, asked.seeds)


if __name__ == "__main__":
    main()
