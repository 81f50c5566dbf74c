"""Compares rules that choose training contexts, on stored returns of policies of all contexts, measured in all
contexts.

The result of a few trainings depends more on their luck than on their contexts. If a policy of every context has been
trained and measured in every context (`benchmarks/transfer.py` does it), any rule's choice can be replayed without
further training, and all rules have the same luck. The rules are those of the study `mbtl` (Cho et al. 2024, arXiv
2408.04498), which defines how policies serve contexts and coverage.

File: `seeds` [S], one per whole set of trainings; `choose`, `held` [S, n, n]: the return in [0, 1] of the policy of
context a, measured in b, in the episodes used to choose and in others. Left out: rules that train a context twice.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Literal

import numpy as np

from shuhari.bounds import AtLeast0, Length, check
from shuhari.data import Array, nearest
from shuhari.kernel.registry import register
from shuhari.methods.curriculum.mbtl.mbtl import Mbtl

Pick = Literal["mbtl", "equidistant", "random", "best"]
STORED = {"cartpole": "32c0487828df2f28"}  # name -> digest of its file, so that a claim's code identifies its numbers


@register("analysis", "transfer")
@dataclass
class Transfer:
    """How well a rule chooses contexts to train in, replayed on stored returns of policies of all contexts (MBTL);
    nothing is trained.

    Numbers: `coverage`, the mean over contexts of the return there of the best policy among the `trainings` chosen
    contexts, and `gain`, the difference to the rule `over`. A seed is one whole set of trainings. Raises KeyError for a
    seed that the file lacks, ValueError for a stored file that has changed.
    """

    pick: Pick = "mbtl"
    """Rule that chooses: "mbtl", "equidistant" or "random" as in the study `mbtl`, or "best", the best contexts in
    hindsight."""
    over: Pick = "random"
    """Rule that it is compared with."""
    trainings: Length = 4
    """Number of contexts that each rule chooses."""
    draws: Length = 1000
    """Number of random choices over which the rule "random" is averaged."""
    slope: AtLeast0 | Literal["fitted"] = "fitted"
    """Return, on the scale of [0, 1], that "mbtl" expects to lose for each context further away; "fitted" estimates
    it."""
    file: str = "cartpole"
    """Name of a table of returns that comes with the library (`cartpole`), or a path."""

    def __post_init__(self) -> None:
        check(self)
        if self.pick == self.over:
            raise ValueError(f"pick and over are both {self.pick!r}: expected two different rules")

    def __call__(self, seed: int) -> dict[str, float]:
        seeds, chooses, held = read(self.file)
        if seed not in seeds:
            raise KeyError(f"no trainings of seed {seed} in {self.file!r}: it has {', '.join(map(str, seeds))}")
        at = seeds.index(seed)
        if not 1 <= self.trainings <= len(held[at]):
            raise ValueError(f"trainings is {self.trainings}: expected 1 to {len(held[at])}, a context each")
        ours, theirs = (self.coverage(rule, chooses[at], held[at], seed) for rule in (self.pick, self.over))
        return {"coverage": ours, "gain": ours - theirs}

    def coverage(self, rule: Pick, J: Array, held: Array, seed: int) -> float:
        """Returns the mean over contexts of the `held` score of the policy that is best by J [n, n] among a rule's
        choices."""
        return float(np.mean([_served(J, held, list(trained)) for trained in self._chosen(rule, J, seed)]))

    def _chosen(self, rule: Pick, J: Array, seed: int) -> list[tuple[int, ...]]:
        """Returns the contexts of each of the rule's draws: one, or many for `random`."""
        n, k = len(J), self.trainings
        if rule == "random":
            rng = np.random.default_rng((seed, n, k))
            return [tuple(rng.permutation(n)[:k].tolist()) for _ in range(self.draws)]
        if rule == "best":
            return [max(combinations(range(n), k), key=lambda some: J[list(some)].max(0).mean())]
        study = Mbtl({"context": tuple(map(float, range(n)))}, k, rule, slope=self.slope)
        seen, done = np.zeros_like(J), list[int]()
        while len(done) < k:
            done.append(study.choose_next(seen, done, seed))
            seen[done[-1]] = J[done[-1]]
        return [tuple(done)]


def _served(J: Array, held: Array, trained: list[int]) -> float:
    """Returns the coverage if only some contexts are trained in."""
    best = np.array(trained)[J[trained].argmax(0)]
    return float(held[best, np.arange(len(J))].mean())


@cache
def read(file: str) -> tuple[tuple[int, ...], Array, Array]:
    """Returns ([S] seeds, [S, n, n] returns used to choose, [S, n, n] others) of a file."""
    path = Path(__file__).with_name(f"transfer_{file}.json") if file in STORED else Path(file)
    if file not in STORED and not path.is_file():
        raise ValueError(f"file is {file!r}, which is not there; {nearest(file, STORED)}, or a path")
    text = path.read_bytes()
    mark = hashlib.blake2b(text, digest_size=8).hexdigest()
    if STORED.get(file, mark) != mark:
        raise ValueError(f"{path.name} has changed (digest {mark}, not {STORED[file]}): write its new digest here")
    table = json.loads(text)
    J, held = (np.array(table[name], np.float64) for name in ("choose", "held"))
    if J.shape != held.shape or J.ndim != 3 or J.shape[1] != J.shape[2] or len(J) != len(table["seeds"]):
        raise ValueError(f"{path}: {len(table['seeds'])} seeds, arrays {J.shape} and {held.shape}: expected [S, n, n]")
    return tuple(table["seeds"]), J, held
