"""What the store costs beside another version of it: opening, listing, resuming, committing.

    python benchmarks/store.py --before PATH                       20 pairs, of runs of 10, 1,000 and 10,000 steps
    python benchmarks/store.py --before PATH --pairs 3 --steps 10 1000    a look

PATH is another checkout of this repository. Each version makes a run of so many steps (ten metrics, a group of rollouts
and eight counts of problems a step, a checkpoint now and then), then both do the same in turns, each in a process of
its own that has imported everything: `open` a run and close it, `list` it as `shuhari runs` does, `resume` it, up to
its first commit, and make 100 `commit`s without a checkpoint. The table has the median of the ratios of pairs, now to
before, and of the milliseconds; `processor` is the same of processor time, which other work disturbs less. `older`:
this version opens, lists and resumes the run that the other has made.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from common import machine, table

HERE = Path(__file__).resolve().parent
WORK = ("open", "list", "resume", "commit")


# ---------------------------------------------------------------- in a process of each version


def commit(store: Any, step: int, tree: Any = None) -> None:
    import numpy as np

    metrics = {f"part/number{i}": step / (i + 1) for i in range(10)}
    group = {"group": f"g{step}", "task": "sums", "problem": f"p{step % 50}", "score": step % 7 / 7,
             "text": f"the sum of {step} and {step % 13}", "tokens": np.arange(60) + step}  # fmt: skip
    problems = [("sums", f"p{(step * 8 + i) % 400}", 4, i % 5) for i in range(8)]
    store.commit(step, stage="main", wall=float(step), metrics=metrics, tree=tree, rollouts=[group], problems=problems,
                 events=[("told", step)] * (step % 10 == 0))  # fmt: skip


def make(run: Path, steps: int) -> None:
    import torch

    from shuhari.store import Store

    with Store.open(run) as store:
        store.write_text("recipe.toml", "steps = 1\n")
        store.set(total=steps, recipe="steps = 1\n")
        for step in range(1, steps + 1):
            due = step == steps or step % max(1, steps // 5) == 0
            commit(store, step, {"w": torch.full((1000,), float(step))} if due else None)


def measure(work: str, run: Path) -> tuple[float, float]:
    """Seconds of it: of the clock, and of the processor."""
    from shuhari.store import Store, list_runs

    began = read_clocks()
    if work == "list":
        assert list_runs(run.parent)[0].status == "stopped"
        return since(began)
    with Store.open(run) as store:
        if work != "open":
            tree = store.load()
            if work == "commit":
                store.set(total=store.step + 100)
                began = read_clocks()
                for step in range(store.step + 1, store.step + 101):
                    commit(store, step)
                return since(began)
            commit(store, store.step + 1, tree)
    return since(began)


def read_clocks() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def since(began: tuple[float, float]) -> tuple[float, float]:
    wall, processor = read_clocks()
    return wall - began[0], processor - began[1]


def serve() -> None:
    import torch

    torch.set_num_threads(1)
    print("ready", flush=True)
    for line in sys.stdin:
        ask = json.loads(line)
        done = make(Path(ask["run"]), ask["steps"]) if "steps" in ask else measure(ask["work"], Path(ask["run"]))
        print(json.dumps(done), flush=True)


# ---------------------------------------------------------------- here


class Version:
    def __init__(self, checkout: Path) -> None:
        env = {**os.environ, "PYTHONPATH": str(checkout / "src"), "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen([sys.executable, str(Path(__file__).resolve()), "--serve"], env=env,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=HERE)  # fmt: skip
        self.ask({})

    def ask(self, what: dict[str, Any]) -> Any:
        assert self.process.stdin is not None and self.process.stdout is not None
        if what:
            self.process.stdin.write(json.dumps(what) + "\n")
            self.process.stdin.flush()
        answer = self.process.stdout.readline().strip()
        assert answer, "a version ended"
        return answer if answer == "ready" else json.loads(answer)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--before", type=Path)
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--steps", type=int, nargs="+", default=[10, 1000, 10_000])
    parser.add_argument("--serve", action="store_true")
    args = parser.parse_args()
    if args.serve:
        return serve()
    if args.before is None:
        parser.error("--before is missing: the path of another checkout")
    versions = {"before": Version(args.before.resolve()), "now": Version(HERE.parent)}
    print(json.dumps(machine(1)))
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for steps in args.steps:
            made = {name: Path(folder) / name / str(steps) for name in versions}
            for name, version in versions.items():
                version.ask({"run": str(made[name]), "steps": steps})
            for work in WORK:
                found = compare(versions, made, work, args.pairs, Path(folder) / "try")
                old = {"before": made["before"], "now": made["before"]}
                older = compare(versions, old, work, args.pairs, Path(folder) / "try") if work != "commit" else None
                rows.append((f"{steps:,}", work, *show(found), *(show(older)[2:] if older else ("", ""))))
                print(rows[-1], f"load {os.getloadavg()[0]:.2f}", file=sys.stderr, flush=True)
    head = ("steps", "work", "before, ms", "now, ms", "now / before", "processor", "older / before", "processor")
    print("\n".join(table(head, *rows)))
    print(f"load {os.getloadavg()[0]:.2f} at the end")


def compare(versions: dict[str, Version], made: dict[str, Path], work: str, pairs: int, place: Path) -> Any:
    """Version -> seconds, of pairs in turns; each has a fresh copy."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in versions}
    for pair in range(pairs + 1):
        for name in sorted(versions, reverse=bool(pair % 2)):
            shutil.rmtree(place, ignore_errors=True)
            shutil.copytree(made[name], place / "run")
            seconds = versions[name].ask({"work": work, "run": str(place / "run")})
            if pair:  # the first warms up
                found[name].append(seconds)
    return found


def show(found: dict[str, list[tuple[float, float]]]) -> tuple[str, ...]:
    pairs = list(zip(found["before"], found["now"], strict=True))
    ratios = (f"{statistics.median(b[i] / a[i] for a, b in pairs):.3f}" for i in (0, 1))
    return *(f"{statistics.median(x[0] for x in found[name]) * 1e3:.2f}" for name in ("before", "now")), *ratios


if __name__ == "__main__":
    main()
