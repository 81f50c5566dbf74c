"""Prefers problems with varying answers: half of a batch is drawn by variance, half comes as usual.

Source: "MMR1: Enhancing Multimodal Reasoning with Variance-Aware Sampling and Open Resources" (VAS, Leng et al. 2025,
arXiv 2509.21268), and its released sampler. Left out: diversity by self-BLEU or edit distance; answers are compared by
their trigrams.

Axes: `Q` problems of the set, `n` answers to each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shuhari.batch import Batch
from shuhari.bounds import AtLeast0, Count, Length, Share, ShareBelow1, Size, check
from shuhari.curricula.target import count_successes, name_of
from shuhari.data import Info, Request
from shuhari.kernel.registry import register
from shuhari.ports import Ctx, Curriculum
from shuhari.ports.declares import together

GRAM = 3  # tokens


@register("curriculum", "variance_sampling")
@dataclass
class Variance:
    """Prefers prompts whose samples vary most in outcome and in wording; the rest of a batch comes as usual (VAS).

    Every `every` steps each problem of a set is answered `n` times (charged as probes) and scored. In a batch of N
    problems, floor(share N) are drawn with replacement in proportion to w, the others come from `candidates` in order;
    the two kinds alternate.

        s = variance p (1 - p) + diversity D
        w = momentum w_old + (1 - momentum) (s - min s) / (max s - min s)
        p   the share of right answers;   D   distinct trigrams of tokens over all trigrams in the answers

    If all weights are 0, draws are uniform. Raises ValueError for an outcome outside [0, 1]. The report has
    `curriculum/variance` and `curriculum/diversity`, the means of p (1 - p) and D over the set at its last scoring.
    """

    candidates: Curriculum
    """Curriculum that the problems come from."""
    size: Size = 512
    """Number of scored problems, the first ones of `candidates`."""
    every: Length = 28
    """Number of steps between two scorings of the whole set; fewer are fresher and cost more samples."""
    n: Count = 8
    """Number of samples of each problem at a scoring; 0: as many as a group of the run has (`rollout.n`)."""
    share: Share = 0.5
    """Share of a batch that is drawn by score; 0 turns it off."""
    variance: AtLeast0 = 0.8
    """Weight of p (1 - p) in the score, 0.8 in the paper."""
    diversity: AtLeast0 = 0.2
    """Weight of the share of distinct trigrams in the score, 0.2 in the paper."""
    momentum: ShareBelow1 = 0.0
    """Share of the old weights kept at each scoring; 0 keeps nothing."""
    reward: str = "reward"
    """Reward column, in [0, 1], that is the outcome of a sample; `reward` is the weighted sum that is trained."""
    state: dict[str, Any] = field(
        init=False, default_factory=lambda: {"set": [], "weights": torch.zeros(0), "scored": 0, "report": {}}
    )

    @property
    def stamps(self) -> tuple[str, ...] | None:
        return together((), self.candidates)

    @property
    def reads(self) -> tuple[str, ...]:
        return (self.reward,)

    def __post_init__(self) -> None:
        check(self)

    async def select(self, n: int, ctx: Ctx) -> list[Request]:
        if not self.state["set"]:
            found = await self.candidates.select(self.size, ctx)
            self.state["set"] = list({name_of(r.problem): r for r in found}.values())
            await self._score(ctx)
        elif ctx.step - self.state["scored"] >= self.every:
            await self._score(ctx)
        k = int(self.share * n)
        drawn = [self.state["set"][i] for i in draw_by_weight(self.state["weights"], k, ctx)]
        others = await self.candidates.select(n - k, ctx)
        return [
            r
            for pair in zip_longest(drawn, others)
            for r in pair
            if r is not None
        ]

    async def _score(self, ctx: Ctx) -> None:
        """Answers all problems of the set, and updates their weights."""
        names = [name_of(r.problem) for r in self.state["set"]]
        batch = await ctx.probe([Request(r.problem, self.n) for r in self.state["set"]], tag="probe")
        rates = {name: s.rate for name, s in count_successes(batch, self.reward).items()}
        p = torch.tensor([rates.get(name, 0.0) for name in names], dtype=torch.float64)
        answers = read_answers(batch)
        d = torch.tensor([distinct(answers.get(name, ())) for name in names], dtype=torch.float64)
        w = stretch(self.variance * p * (1 - p) + self.diversity * d)
        old = self.state["weights"]
        self.state["weights"] = self.momentum * old + (1 - self.momentum) * w if len(old) else w
        self.state["scored"] = ctx.step
        means = {"variance": float((p * (1 - p)).mean()), "diversity": float(d.mean())}
        self.state["report"] = {f"curriculum/{k}": x for k, x in means.items()}

    def report(self) -> Info:
        return dict(self.state["report"])


def draw_by_weight(weights: Tensor, n: int, ctx: Ctx) -> list[int]:
    """Draws n positions with replacement in proportion to weights [Q]; uniformly if all are 0."""
    if not n:
        return []
    weights = weights if bool((weights > 0).any()) else torch.ones_like(weights)
    found: list[int] = torch.multinomial(weights, n, replacement=True, generator=ctx.rng("variance")).tolist()
    return found


def stretch(x: Tensor) -> Tensor:
    """Returns numbers [Q] scaled to [0, 1] by their minimum and maximum; 0 if all are equal."""
    return (x - x.min()) / (x.max() - x.min() + 1e-8)


def distinct(answers: Sequence[Sequence[int]]) -> float:
    """Returns distinct trigrams of tokens over all trigrams of a problem's answers; 0 if there are none."""
    grams = [
        tuple(a[i : i + GRAM])
        for a in answers
        for i in range(len(a) - GRAM + 1)
    ]
    return len(set(grams)) / len(grams) if grams else 0.0


def read_answers(batch: Batch) -> dict[str, list[list[int]]]:
    """Returns problem (its `name_of`) -> the decided tokens of each row of its answers."""
    found: dict[str, list[list[int]]] = {}
    for problem, i in zip(batch["problem"].tolist(), batch["step"].tolist(), strict=True):
        step = batch.arena[int(i)]
        said = np.atleast_1d(np.asarray(step.action))[np.atleast_1d(step.mask)]
        found.setdefault(str(problem), []).append(said.tolist())
    return found
