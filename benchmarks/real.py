"""Claims asked again of a pretrained language model: the same question, rivals and readings, on three seeds.

    python benchmarks/real.py MODEL                 all that benchmarks/real has; what is done is not done again
    python benchmarks/real.py MODEL clip_cov raft   some of them
    python benchmarks/real.py MODEL --rates         GRPO alone at four learning rates, on the seed kept for that

MODEL is a directory as transformers saves it, or a .gguf file (SmolLM2-135M-Instruct in docs/real.md). Its rows are
sums, asked in words; each arm is `pretrained/grpo` with benchmarks/real/bed.toml, the claim's method over it, and one
thread. Runs lie under runs/real, two at a time; results go to results/real/<family>/<method>.json. Three pairs are too
few for the rule of claims, which asks for five: an effect has its interval and no verdict.

Left out of the draw of docs/real.md: `curriculum/ghpo` (rows of GSM8K, which this model does not solve in an answer of
affordable length).
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sqlite3
import tarfile
import tempfile
import tomllib
from collections.abc import Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from shuhari.config.overlay import merge_overlays
from shuhari.config.recipe import load
from shuhari.lab.claims.claim import Claim, resolve
from shuhari.lab.claims.findings import Findings
from shuhari.lab.claims.pool import Progress
from shuhari.lab.claims.result import list_points, list_quantities, round_to, write_json
from shuhari.lab.claims.runs import make
from shuhari.loop.machine import versions
from shuhari.store.schema import FILE

HERE = Path(__file__).resolve().parent
TABLES, RUNS, KEPT = HERE / "real", Path("runs") / "real", HERE / "real" / "runs"
SAMPLED = ("rollouts", "groups", "words", "problems")  # tables of a run's store that no reading needs
BED, FORMAT, SEEDS, LEVEL = "pretrained/grpo", 1, 3, 0.95
TRAINED, HELD = 1000, 128  # rows of each number of digits, at most
ASKED = "What is {a} + {b}? Reply with the number only."
RATES, RATE_SEED = (5e-5, 1e-4, 2e-4, 4e-4), 10


def list_names() -> list[str]:
    return sorted(file.stem for file in TABLES.glob("*.toml") if file.stem not in ("bed", "remix_recipe"))


def write_rows(levels: list[int]) -> str:
    """Write sums of some numbers of digits, with their `level`, and return the name of the task. The same sums each
    time; none that is held out is trained on."""
    rows, held = [], {"train": TRAINED // len(levels), "test": HELD // len(levels)}
    for level in levels:
        rng, least = random.Random(f"sums {level}"), 10 ** (level - 1) if level > 1 else 0
        there = {(rng.randrange(least, 10**level), rng.randrange(least, 10**level)) for _ in range(10 * TRAINED)}
        pairs = sorted(there)
        rng.shuffle(pairs)
        n = min(held["test"], len(pairs) // 4)
        parts = {"test": pairs[:n], "train": pairs[n : n + held["train"]]}
        rows += [
            {"prompt": ASKED.format(a=a, b=b), "answer": str(a + b), "level": str(level), "split": split}
            for split, some in parts.items()
            for a, b in some
        ]
    random.Random(0).shuffle(rows)  # levels are mixed in what is held out, too
    file = RUNS / f"sums-{'-'.join(map(str, levels))}.jsonl"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return f"file/{file.resolve()}"


def read_shared(model: str, levels: list[int], more: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of all arms: those of the bed, `more` over them, the model, and the rows."""
    own = {"models": {"policy": {"path": model}}, "task": {"name": write_rows(levels)}}
    return merge_overlays([tomllib.loads((TABLES / "bed.toml").read_text()), more, own])


def read(name: str, model: str) -> tuple[Claim, dict[str, Any]]:
    """The arms and checks of one table, and what else it says."""
    table = tomllib.loads((TABLES / f"{name}.toml").read_text())
    said = {key: table.pop(key) for key in ("method", "reads", "levels") if key in table}
    whole = table.pop("recipe", "")  # of a method that cannot be laid over a recipe
    table["settings"] = read_shared(model, said.get("levels", [2]), table.pop("settings", {}))
    reference = str(TABLES / whole) if whole else said["method"]
    return resolve(reference, load(reference), table, bed="" if whole else BED, seeds=SEEDS), said


def keep_runs() -> None:
    """Pack the numbers of runs that are done, without what they sampled, some ten kilobytes each."""
    KEPT.mkdir(exist_ok=True)
    for place in (found.parent for found in RUNS.glob("*/summary.json")):
        if (file := KEPT / f"{place.name}.tar.xz").is_file():
            continue
        with tempfile.TemporaryDirectory() as folder:
            left = shutil.ignore_patterns("needs", "checkpoints", "*.lock", "*-shm", "*-wal")
            copy = shutil.copytree(place, Path(folder) / "run", ignore=left)
            with closing(sqlite3.connect(copy / FILE, isolation_level=None)) as store:
                for table in SAMPLED:
                    store.execute(f"DELETE FROM {table}")
                store.execute("VACUUM")
            with tarfile.open(part := file.with_suffix(".part"), "w:xz") as packed:
                packed.add(copy, place.name)
            part.replace(file)  # a pack that was interrupted is no pack


def take_runs() -> None:
    """Unpack the runs that were packed and are not there."""
    for file in KEPT.glob("*.tar.xz"):
        if not (RUNS / file.name.removesuffix(".tar.xz")).exists():
            with tarfile.open(file) as packed:
                packed.extractall(RUNS, filter="data")


def tell(progress: Progress) -> None:
    if progress.finished:
        keep_runs()
        print(f"{progress.done} of {progress.total}: {progress.finished}", flush=True)


def measure(name: str, model: str, workers: int) -> Path:
    """Make the missing runs of a table and write its result."""
    claim, said = read(name, model)
    quantities = list_quantities(claim)
    run = partial(make, root=RUNS, workers=workers, tell=tell)
    found = Findings(claim, quantities, None, run, str, seeds=claim.seeds)  # nothing is registered
    found.add(range(len(claim.checks)), claim.seeds)
    for number in range(len(claim.checks)):
        found.estimate(number, LEVEL)
    names, arms = dict.fromkeys(name for quantity in quantities for name in quantity.names), found.made.evidence
    result = {
        "format": FORMAT, **said, "model": Path(model).name, "bed": BED,
        "budget": dict([claim.budget]) if claim.budget else None, "seeds": list(claim.seeds),
        "checks": list(found.checks.values()),
        "curves": {
            metric: {arm: [list_points(run, metric) for run in runs] for arm, runs in arms.items()}
            for metric in names
        },
        "cpu_s": {arm: [round_to(run.cpu, 3) for run in runs] for arm, runs in arms.items()},
        "versions": versions(),
    }  # fmt: skip
    return write_json(result, HERE.parent / "results" / "real" / f"{said['method']}.json")


def try_rates(model: str) -> None:
    """GRPO at each rate on the seed that no other run has: the held-out mean over the run."""
    from shuhari.loop.study import train

    shared = read_shared(model, [2], {})
    for rate in RATES:
        more = {"part.policy.optimiser.lr": rate, "seed": RATE_SEED, "threads": 1}
        recipe, path = load(BED).with_settings(shared).with_settings(more), RUNS / "rates" / f"{rate:g}"
        for info in train(recipe, path, rehearsal=False):
            if "evaluate/mean" in info:
                print(f"{rate:g} step {info['step']}: {info['evaluate/mean']:.3f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("names", nargs="*", choices=[[], *list_names()])
    parser.add_argument("--rates", action="store_true")
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args()
    model = str(Path(given.model).absolute())
    if given.rates:
        try_rates(model)
        return
    take_runs()
    for name in given.names or list_names():
        print(measure(name, model, given.workers), flush=True)


if __name__ == "__main__":
    main()
