"""A preference model whose score of a pair is a skew-symmetric form of two embeddings, so that it can say cycles.

Source: Zhang et al. 2024, "General Preference Modeling with Preference Representations for Aligning Language Models",
sections 4 and 5. Left out: the scale of each block by the prompt (all are 1), and embeddings of unit length.

Axes: `B` rows, `K` positions, `P` pairs, `L` answers of a prompt, `n` numbers of an embedding.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import numpy as np
import torch
from torch import Tensor

from shuhari.batch import Batch
from shuhari.bounds import Bounds, check
from shuhari.data import ContractError, Info, Trajectory
from shuhari.kernel.registry import register
from shuhari.needs import Need
from shuhari.objectives.preference import read_links
from shuhari.ports import Ctx
from shuhari.tasks.source import answer_text

Tau = Annotated[float, Bounds(0, open="low")]


def embed(value: Tensor) -> Tensor:
    """Return the embedding [..., 2k] of the outputs [..., n] of a value head: n is 1 or even.

    An even n is taken as k pairs, and 1 / l is added to the second number of the l-th: a new head gives 0, which as an
    embedding has no gradient, and equal pairs would stay equal. A single output r is the pair (r, 1), Bradley-Terry.
    Raises ValueError for another n.
    """
    n = value.shape[-1]
    if n == 1:
        return torch.cat([value, torch.ones_like(value)], -1)
    if n % 2:
        raise ValueError(f"skew: the value head has {n} outputs: expected 1, or an even number such as {n + 1}")
    first = torch.zeros(n, dtype=value.dtype)
    first[1::2] = 1 / torch.arange(1, n // 2 + 1, dtype=value.dtype)
    return value + first.to(value.device)


def compare(a: Tensor, b: Tensor) -> Tensor:
    """Return the preference scores [...] of a over b, of embeddings [..., 2k]: the sum over pairs of a_1 b_2 - a_2 b_1,
    which is <R a, b> with the paper's R. It is minus that of b over a."""
    return (a[..., 0::2] * b[..., 1::2] - a[..., 1::2] * b[..., 0::2]).sum(-1)


@register("objective", "skew_preference")
@dataclass
class SkewPreference:
    """The loss of a general preference model on pairs, [P]: -log sigmoid(s(better > worse) / tau), with the score s of
    `compare` (Zhang et al. 2024, equation 10).

    The role has a value head with `outputs` = 2k and `after = "last"`; with one output it is a Bradley-Terry model.
    Info: `accuracy`, the share of pairs whose score is above 0, and `margin`, the score over tau. Raises KeyError
    without the links, ValueError for another number of outputs.
    """

    role: str = "judge"
    """Role of the preference model that is trained, a name under `[models]`."""
    tau: Tau = 1.0
    """Temperature: scores are divided by it before the sigmoid; above 0. The authors' code has 0.1."""
    links: str = "pairs"
    """Name of the links that hold the pairs, as buffer `preferences` makes them."""
    couples: Literal["row", "batch"] = field(default="batch", init=False)
    stamps = ()

    def __post_init__(self) -> None:
        check(self)

    @property
    def needs(self) -> tuple[Need, ...]:
        return (Need((self.role,), "value", live=True),)

    @property
    def reads(self) -> tuple[str, ...]:
        return (f"links/{self.links}",)

    def __call__(self, batch: Batch, ctx: Ctx) -> tuple[Tensor, Info]:
        value, mask = batch[self.needs[0]], batch["mask"]
        if value.dim() == 2:
            value = value[..., None]
        each = embed(torch.where(mask[..., None], value, 0.0).sum(1))  # the head values the last decision alone
        index, _ = read_links(batch, self.links)
        margin = compare(*each[index].unbind(1)) / self.tau
        info = {"accuracy": (margin > 0).float(), "margin": margin}
        return -torch.nn.functional.logsigmoid(margin), {k: v.detach() for k, v in info.items()}


@register("reward", "skew_duel")
@dataclass
class SkewDuel:
    """Mean score of an answer against the other answers to its prompt, by a general preference model of the run.

    The grade of answer i is the mean over j other than i of s(i > j) / tau, or of its sigmoid. Each answer is embedded
    once. Samples without a decision are ungraded, as is an answer without others. Raises ContractError for a role that
    has no embedding of whole answers.
    """

    role: str = "judge"
    """Role of the preference model, trained by `skew_preference`."""
    tau: Tau = 1.0
    """Temperature that the model was trained with."""
    form: Literal["score", "probability"] = "score"
    """Number that is averaged: the `score` (GPO), or the `probability` of a win, its sigmoid (SPPO)."""
    name: str = "win"
    """Name of the grade, so that its column is `reward/<name>`."""

    @property
    def stamps(self) -> tuple[str, ...]:
        return (f"reward/{self.name}",)

    @property
    def roles(self) -> tuple[str, ...]:
        return (self.role,)

    def __post_init__(self) -> None:
        check(self)

    async def grade(self, group: Sequence[Trajectory], ctx: Ctx) -> list[Mapping[str, float] | None]:
        """Returns one grade per leaf."""
        leaves = [
            (t, [t.steps[i] for i in path])
            for t in group
            for path in t.paths()
        ]
        asked = {
            i: (t.request.problem.prompt, answer_text(steps))
            for i, (t, steps) in enumerate(leaves)
            if any(s.action is not None for s in steps)
        }
        if len(asked) < 2:
            return [None] * len(leaves)
        found = await asyncio.gather(*(self._ask(prompt, said, ctx) for prompt, said in asked.values()))
        each = embed(torch.from_numpy(np.stack(found)).double())  # [L, 2k]
        s = compare(each[:, None], each[None]) / self.tau  # [L, L]
        if self.form == "probability":
            s = torch.sigmoid(s)
        mean = (s.sum(1) - s.diagonal()) / (len(s) - 1)
        grades: list[Mapping[str, float] | None] = [None] * len(leaves)
        for i, x in zip(asked, mean.tolist(), strict=True):
            grades[i] = {self.name: x} if math.isfinite(x) else None
        return grades

    async def _ask(self, prompt: Any, said: str, ctx: Ctx) -> np.ndarray[Any, Any]:
        """Returns the outputs [n] of the value head at the end of an answer."""
        context, action = ctx.encode(prompt, self.role), ctx.encode_answer(prompt, said, self.role)
        value = np.asarray((await ctx.engine.score(self.role, context, action, ["value"]))["value"])
        last: np.ndarray[Any, Any] = np.atleast_1d(value[-1])
        if len(last) > 1 and len(last) % 2:
            expected = "expected 1, or an even number"
            raise ContractError(f"reward {self.name!r}: role {self.role!r} has {len(last)} outputs: {expected}")
        return last
