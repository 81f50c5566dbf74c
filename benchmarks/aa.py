"""Does the rule of claims keep its word? Comparisons of a recipe with itself, look by look; and planted effects.

    python benchmarks/aa.py [tables | text | card:BED:METRIC ... | pools] [--workers N]

`tables`: 128 runs each of the bandit's recipe and of the gridworld's; the last reward. `text`: 64 runs of a tiny
language model, eight from each of eight warm-ups, with bounds of the ratio under which some collapse.
`card:trie/twins:evaluate/exact.entropy:area`: the committed baselines of a bed, their redraw and its control.

Of each pool 400 comparisons draw 12 pairs without replacement; each is a claim whose margin is the least that its looks
can find (the MDE; of a card, as planned from it). So are 50 in which the method's side is better by twice the margin,
400 in which it is by the margin, and, of a card, 50 of the control against the baseline. Wanted: at most 5 % of
comparisons say that arms differ, 2.5 % that the method holds; at least 80 % of the 50 are found, and of the 400 as many
as the MDE says: 80 %. Comparisons of one pool share its runs, so their binomial interval is that of this pool alone;
`pools` says by how much the shares of pools differ: of 40, each of 24 normal pairs. Results:
benchmarks/results/aa.json.
"""

from __future__ import annotations

import argparse
import json
import os
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from trials import Shares, draw_pairs, plant, simulate

import shuhari
from shuhari.config import library
from shuhari.config.recipe import Recipe, load
from shuhari.kernel.stats import Estimate
from shuhari.lab.claims import cards, kept_results
from shuhari.lab.claims.looks import LOOKS, compute_mde
from shuhari.lab.claims.quantities import Metric, read_values
from shuhari.lab.claims.verdict import Rule
from shuhari.loop.roles import load_initial

OUT = Path(__file__).parent / "results" / "aa.json"
COMPARISONS, PLANTED, POOL, EACH = 400, 50, 64, 8  # the pool: pairs of tables, runs of text, of a warm-up each
POOLS, SEEDS = 40, 24  # what a card has
MOST = LOOKS[-1]
TABLES = {"baselines/bandit": {"steps": 10}, "baselines/gridworld": {"steps": 3}}  # while they still learn
WARM = {"remove": ["stage.rl"]}
WIDE = {"part.policy.minibatches": 4, "part.policy.terms.loss.low": 1.0, "part.policy.terms.loss.high": 1.0}
TEXT = {"remove": ["stage.warm-up"], "steps": 40, "evaluate.every": 40, **WIDE}


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


def told(rule: Rule, pairs: np.ndarray) -> dict[str, dict]:
    """What claims on pairs [K, P, 2] without an effect say, the first of them with twice the margin planted, and all
    with what their looks should just find, whatever the margin."""
    x, y = pairs[..., 0], pairs[..., 1]
    least = compute_mde(float(((x - y) / np.abs(y) if rule.ratio else x - y).std()), LOOKS, rule.direction)
    just = replace(rule, margin=least)
    found = {
        "null": simulate(rule, pairs),
        "planted": simulate(rule, plant(rule, pairs[:PLANTED], 2 * rule.margin)),
        "just found": simulate(just, plant(just, pairs, least)),
    }
    return {name: _table(shares) for name, shares in found.items()}


def _table(shares: Shares) -> dict:
    each = {"excludes 0": _share(shares.excludes), "holds": _share(shares.held)}
    return {**each, "pairs": round(shares.pairs, 2), "verdicts": shares.verdicts}


def _share(e: Estimate) -> dict[str, float]:
    return {"share": round(e.value, 4), "low": round(e.low, 4), "high": round(e.high, 4), "of": e.n}


def just_found(pairs: np.ndarray) -> Rule:
    """A headline whose margin is what its looks can just find in such pairs."""
    d = pairs[..., 0] - pairs[..., 1]
    return Rule("up", margin=compute_mde(float(d.std()), LOOKS), role="headline")


def tables(pool: ProcessPoolExecutor) -> dict:
    """400 comparisons resampled from runs of each tabular recipe, which are kept."""
    out = {}
    for name, settings in TABLES.items():
        pieces = [list(range(i, i + 16)) for i in range(0, 2 * POOL, 16)]
        futures = [pool.submit(rewards, name, {**settings, "evaluate.every": 0, "evaluate.n": 0}, p) for p in pieces]
        pool_of = np.array([v for f in futures for v in f.result()]).reshape(POOL, 2)
        pairs = draw_pairs(pool_of, COMPARISONS)
        out[name] = told(just_found(pairs), pairs)
    return out


def text(pool: ProcessPoolExecutor, before: dict) -> dict:
    """400 comparisons resampled from 64 runs, which are kept."""
    values = before.get("values")
    if values is None:
        futures = [pool.submit(scores, list(range(i, i + EACH))) for i in range(0, POOL, EACH)]
        values = [round(float(v), 4) for f in futures for v in f.result()]
    rng = np.random.default_rng(0)
    drawn = [rng.permutation(values)[: 2 * MOST].reshape(MOST, 2) for _ in range(COMPARISONS)]
    return {"values": values, "64 runs": told(just_found(np.array(drawn)), np.array(drawn))}


def card(bed: str, metric: str) -> dict:
    """400 comparisons resampled from the baselines of a bed and their redraw, and 50 of its control."""
    found, quantity = cards.read(kept_results.find_cards() / f"{bed}.json"), Metric(metric)
    sides = {arm: np.array(read_values(quantity, found.read_runs(arm), arm, 0)) for arm in found.arms}
    up = Rule("up", 1.0, role="headline")
    rule = replace(up, margin=compute_mde(found.measure_spread(quantity), LOOKS))
    out = told(rule, draw_pairs(np.stack([sides[cards.BASELINE], sides[cards.REDRAW]], 1), COMPARISONS))
    better = np.stack([sides[library.CONTROL], sides[cards.BASELINE]], 1)
    out["control"] = _table(simulate(rule, draw_pairs(better, PLANTED, by_lot=False)))
    effect = float(np.nanmean(better[:, 0] - better[:, 1])) / rule.margin
    return {metric: out, f"{metric}, control in margins": round(effect, 2)}


def pools() -> dict:
    """How the shares of pools differ, each of 24 normal pairs: (the least, the median, the most) of 40."""
    rng, found = np.random.default_rng(1), []
    for seed in range(POOLS):
        pool = np.stack([rng.standard_normal(SEEDS), np.zeros(SEEDS)], 1)
        pairs = draw_pairs(pool, COMPARISONS, seed)
        parts = told(Rule("up", compute_mde(float(pool[:, 0].std(ddof=1)), LOOKS), role="headline"), pairs)
        found.append([parts["null"]["excludes 0"], parts["null"]["holds"], parts["just found"]["holds"]])
    shares = np.quantile([[e["share"] for e in row] for row in found], (0, 0.5, 1), axis=0).T.round(4).tolist()
    return dict(zip(("excludes 0", "holds", "the margin is found"), shares, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", default=["tables", "text"])
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args()
    found = json.loads(OUT.read_text()) if OUT.is_file() else {}
    with ProcessPoolExecutor(given.workers, mp_context=get_context("spawn")) as pool:
        for what in given.what:
            if what.startswith("card:"):
                _, bed, metric = what.split(":", 2)
                found[f"card {bed}"] = found.get(f"card {bed}", {}) | card(bed, metric)
            elif what == "pools":
                found[what] = pools()
            elif what == "text":
                found[what] = text(pool, found.get(what, {}))
            elif what == "tables":
                found[what] = tables(pool)
            else:
                parser.error(f"{what!r}: expected tables, text, pools, or card:BED:METRIC:READING")
            OUT.parent.mkdir(parents=True, exist_ok=True)
            OUT.write_text(json.dumps(found, indent=1) + "\n")
    for what, groups in found.items():
        for group, parts in groups.items():
            for part, shares in parts.items() if isinstance(parts, dict) else ():
                for name in ("excludes 0", "holds"):
                    e = shares[name]
                    interval = f"{e['share']:.1%} [{e['low']:.1%}, {e['high']:.1%}] of {e['of']}"
                    print(f"{what} {group}, {part}: {name} {interval}")


if __name__ == "__main__":
    main()
