"""Does the interval of a claim keep its word? Comparisons of a recipe with itself: at most 5 % may exclude 0.

    python benchmarks/aa.py [tables | text] [--workers N]

`tables`: 400 comparisons, 200 of the bandit's recipe and 200 of the gridworld's, each of 2 x 8 seeds that no other
comparison has; the last reward. `text`: 64 runs of a tiny language model, eight from each of eight warm-ups, with
bounds of the ratio under which some collapse; 400 comparisons resample 2 x 8 of them without replacement, so their
interval is that of this pool, and one over pools would be wider. What counts is the rule of claims: a verdict `holds`
in either direction. Beside it stand the paired t interval of five seeds and the percentile bootstrap's. Results:
benchmarks/results/aa.json.
"""

from __future__ import annotations

import argparse
import json
import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from scipy.stats import ttest_rel

import shuhari
from shuhari.api import load_initial
from shuhari.config.recipe import Recipe, load

OUT = Path(__file__).parent / "results" / "aa.json"
COMPARISONS, SEEDS, POOL, MANY = 400, 8, 64, 100_000
TABLES = {"baselines/bandit": {"steps": 10}, "baselines/gridworld": {"steps": 3}}  # while they still learn
WARM = {"stage.rl": False}
WIDE = {"part.policy.minibatches": 4, "part.policy.terms.clip.low": 1.0, "part.policy.terms.clip.high": 1.0}
TEXT = {"stage.warm-up": False, "steps": 40, "evaluate.every": 40, **WIDE}


def rewards(name: str, settings: dict, seeds: list[int]) -> list[float]:
    """The last reward of a run a seed."""
    from shuhari.loop.run import train

    out = []
    for seed in seeds:
        *_, report = train(recipe(name, settings, seed))
        out.append(report["reward/mean"])
    return out


def scores(seeds: list[int]) -> list[float]:
    """The last held-out score of a run a seed, all from one warm-up."""
    from shuhari.loop.run import train

    with TemporaryDirectory() as folder:
        start = shuhari.train(recipe("baselines/grpo_chain", WARM, seeds[0]), folder)
        out = []
        for seed in seeds:
            *_, report = train(recipe("baselines/grpo_chain", TEXT, seed), init=load_initial(str(start.path)))
            out.append(report["evaluate/mean"])
    return out


def recipe(name: str, settings: dict, seed: int) -> Recipe:
    return load(name, settings={**settings, "threads": 1, "seed": seed})


def excludes(x: np.ndarray, y: np.ndarray) -> dict[str, bool]:
    """Whether the rule, or an interval of the paired differences, says that two arms which are one differ."""
    from shuhari.claims.verdict import Rule, Verdict
    from shuhari.stats import bootstrap, t_interval

    rule = any(Rule(way).judge(x, y)[0] is Verdict.HOLDS for way in ("up", "down"))
    found = {
        "t, 5 seeds": t_interval((x - y)[:5]),
        "bootstrap, 8 seeds": bootstrap(x - y, draws=2000),
        "bootstrap, 5 seeds": bootstrap((x - y)[:5], draws=2000),
    }
    return {"rule, 8 seeds": rule, **{name: bool(e.low > 0 or e.high < 0) for name, e in found.items()}}


def shares(pairs: list[tuple[np.ndarray, np.ndarray]]) -> dict[str, dict[str, float]]:
    """How many comparisons exclude 0, by interval."""
    told = [excludes(x, y) for x, y in pairs]
    return {name: share(sum(t[name] for t in told), len(told)) for name in told[0]}


def share(excluded: int, of: int) -> dict[str, float]:
    """A share of comparisons with Wilson's interval."""
    from shuhari.stats import wilson

    e = wilson(excluded, of)
    return {"excluded": excluded, "of": of, "share": e.value, "low": e.low, "high": e.high}


def tables(pool: ProcessPoolExecutor) -> dict:
    """400 comparisons of tabular recipes, every run of its own."""
    out = {}
    everything = []
    for name, settings in TABLES.items():
        n = COMPARISONS // len(TABLES) * 2 * SEEDS
        pieces = [list(range(i, min(i + 100, n))) for i in range(0, n, 100)]
        futures = [pool.submit(rewards, name, {**settings, "evaluate.every": 0, "evaluate.n": 0}, p) for p in pieces]
        values = np.array([v for f in futures for v in f.result()]).reshape(-1, 2, SEEDS)
        pairs = [(v[0], v[1]) for v in values]
        everything += pairs
        out[name] = shares(pairs)
        print(name, f"mean {values.mean():.3f}, deviation {values.std():.3f}", flush=True)
    return {"both": shares(everything), **out}


def text(pool: ProcessPoolExecutor) -> dict:
    """400 comparisons resampled from 64 runs."""
    futures = [pool.submit(scores, list(range(i, i + SEEDS))) for i in range(0, POOL, SEEDS)]
    values = np.array([v for f in futures for v in f.result()])
    return {"values": [round(float(v), 4) for v in values], **resampled(values)}


def resampled(values: np.ndarray) -> dict:
    """400 comparisons of 2 x 8 of the pool; and the paired t alone on 100,000, which is its level on this pool."""
    rng = np.random.default_rng(0)
    drawn = [rng.permutation(values)[: 2 * SEEDS].reshape(2, SEEDS) for _ in range(COMPARISONS)]
    more = np.array([rng.permutation(values)[: 2 * SEEDS] for _ in range(MANY)]).reshape(MANY, 2, SEEDS)
    excluded = int((ttest_rel(more[:, 0], more[:, 1], axis=1).pvalue < 0.05).sum())
    return {"400 of 64": shares([(d[0], d[1]) for d in drawn]), "100,000 of 64": {"t, 8 seeds": share(excluded, MANY)}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", choices=[[], "tables", "text"], default=["tables", "text"])
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args()
    found = json.loads(OUT.read_text()) if OUT.is_file() else {}
    with ProcessPoolExecutor(given.workers, mp_context=get_context("spawn")) as pool:
        for what in given.what:
            found[what] = {"tables": tables, "text": text}[what](pool)
            OUT.parent.mkdir(parents=True, exist_ok=True)
            OUT.write_text(json.dumps(found, indent=1) + "\n")
    for what, groups in found.items():
        for group, intervals in groups.items():
            for name, share in intervals.items() if isinstance(intervals, dict) else ():
                told = f"{share['share']:.1%} [{share['low']:.1%}, {share['high']:.1%}]"
                print(f"{what} {group}: {name}: {share['excluded']} of {share['of']}, {told}")


if __name__ == "__main__":
    main()
