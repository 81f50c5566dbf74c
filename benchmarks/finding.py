"""How long questions take about the rollouts of a large run: the worst, a page deep inside, a word.

    python benchmarks/finding.py                  10^6 groups in 1,000 steps; writes results/finding.json
    python benchmarks/finding.py --groups 20000   a look

The run is synthetic: each group is one answer of about 30 words to a prompt, with its own reward, length, end and
words, entered by the store's own writer, one transaction a step. What is stored of an answer itself (its compressed
bytes, below 1 kB) is one of 500, as packing a million of them would take longer than all the rest; no question reads
it.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from common import RESULTS, machine, publish, table

from shuhari.data import Problem, Request, Status, Step, Trajectory
from shuhari.store import Run, Store, rollouts

PACKED = 500
PROMPT = np.arange(12, dtype=np.int32)
SYLLABLES = [a + b for a in "bdfgklmnprst" for b in "aeiou"]


def make_groups(rng: random.Random, n: int, words: list[str]) -> list[dict[str, Any]]:
    """`n` answers of words that are as common as those of a language (Zipf)."""
    draws = np.random.default_rng(rng.randrange(2**32)).random((n, 50))
    at = (len(words) ** draws).astype(int) - 1  # a word's share falls as one over its rank
    groups = []
    for i in range(n):
        said = [words[j] for j in at[i, : rng.randint(10, 50)].tolist()]
        problem = Problem("synthetic", f"p{rng.randrange(5000)}", "what is said of " + " ".join(said[:6]))
        k = len(said)
        step = Step.of(PROMPT, np.arange(k, dtype=np.int32), np.zeros(k, np.float32), info={"text": " ".join(said)})
        status = rng.choices(list(Status), (90, 8, 1, 1))[0]
        groups.append({"group": f"{i}", "task": "synthetic", "problem": problem.id, "why": "all", "score": rng.gauss(),
                       "trajectories": (Trajectory(Request(problem), (step,), status),)})  # fmt: skip
    return groups


def fill(path: Path, groups: int, steps: int) -> None:
    """A run of that many groups."""
    rng = random.Random(0)
    words = ["".join(rng.choices(SYLLABLES, k=rng.randint(2, 4))) for _ in range(20_000)]
    pool = make_groups(rng, PACKED, words)
    payloads = [rollouts.pack(g) for g in pool]
    with Store.open(path) as store:
        store.commit(0, metrics={}, tree={})
        for step in range(1, steps + 1):
            own = make_groups(rng, groups // steps, words)
            if step == steps // 2:
                own[7]["score"] = -99.0  # the worst
            names = ("task", "problem", "why", "score")
            rows = [(step, g["group"], rng.choice(payloads), *(g[name] for name in names)) for g in own]
            store._db.execute("begin immediate")
            rollouts.write(store._db, step, list(zip(own, rows, strict=True)), again=False)
            store._db.execute("commit")


def questions(common: str, rare: str) -> dict[str, Callable[[Run], Any]]:
    return {
        "the worst rollout, with its text": lambda run: run.read_group(run.find_groups("worst", limit=1)[0]["id"]),
        "page 1,000 of 50, by score": lambda run: run.find_groups("score", descending=True, offset=999 * 50),
        "the longest that failed": lambda run: run.find_groups("length", descending=True, status="error"),
        "by length, in a range of scores": lambda run: run.find_groups("length", low=1.0, high=1.01),
        "by length, in a range that nothing meets": lambda run: run.find_groups("length", low=50.0),
        "the worst of a step": lambda run: run.find_groups("worst", step=700),
        "a rare word": lambda run: run.find_groups("score", text=rare),
        "two words, one common": lambda run: run.find_groups("score", text=f"{common} {rare}"),
        "a common word": lambda run: run.find_groups("score", text=common),
        "a common word that failed, by length": lambda run: run.find_groups("length", text=common, status="error"),
        "how many say a common word": lambda run: run.count_groups("score", text=common),
        "how many there are": lambda run: run.count_groups("score"),
    }


def summary(found: dict[str, Any]) -> list[str]:
    rows = [(name, *(f"{1000 * t[k]:,.0f}" for k in ("first", "wall", "cpu"))) for name, t in found["seconds"].items()]
    return table(("question", "ms, the first time", "median, wall", "median, processor"), *rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", type=int, default=10**6)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--run", type=Path, default=None, help="keep the run here, or ask one that is there")
    parser.add_argument("--out", type=Path, default=RESULTS / "finding.json")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = args.run or Path(folder) / "run"
        began = time.perf_counter()
        if not path.exists():
            fill(path, args.groups, args.steps)
        spent = time.perf_counter() - began
        run = Run(path)
        with run._open() as db:
            said = dict(db.execute("select word, sum(length(rollouts)) / 8 from words group by word order by 2 desc"))
        ordered = list(said)
        common, rare = ordered[12], ordered[len(ordered) // 2]
        found: dict[str, Any] = {}
        for name, ask in questions(common, rare).items():
            walls, cpus = [], []
            for _ in range(args.rounds):
                wall, cpu = time.perf_counter(), time.process_time()
                ask(run)
                walls.append(time.perf_counter() - wall)
                cpus.append(time.process_time() - cpu)
            found[name] = {"first": walls[0], "wall": statistics.median(walls), "cpu": statistics.median(cpus)}
            print(name, *(f"{k} {1000 * x:.0f} ms" for k, x in found[name].items()), sep=", ", flush=True)
        size = sum(p.stat().st_size for p in path.glob("run.sqlite*")) / 1e6
        print(f"{run.count_groups('step')} groups, {size:.0f} MB, made in {spent:.0f} s")
        facts = {"groups": args.groups, "steps": args.steps, "megabytes": size}
        result = {"machine": machine(1), **facts, "common": said[common], "rare": said[rare], "seconds": found}
        args.out.write_text(json.dumps(result, indent=1) + "\n")
        if args.out == RESULTS / "finding.json":
            publish("finding", summary(result))


if __name__ == "__main__":
    main()
