"""Step-APO: CPL, Critical Plan Step Learning Boosts LLM Generalization in Reasoning Tasks (2024), catalogue 150.

A tree search by PUCT over steps of a text stamps Q; sibling steps of opposite sign become pairs whose margin is the
difference of their advantages (V of the common parent cancels); role `value` is regressed on the tree. In a recipe:

    collect : sibling pairs (below)
    policy  : step preference, over the links "pairs"
    value   : value(role = "value", target = "v"), stream `value`

Left out: supervised learning on right paths before the first round (stream `ce`), the form of a plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import exp, isnan, sqrt
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from shuhari.batch import Batch
from shuhari.data import Info, Request, Trajectory
from shuhari.kernel.ratio import log_ratio
from shuhari.needs import Need
from shuhari.ports import Ctx
from shuhari.rollouts.tree import Node, Tree


@dataclass
class PlanSearch:
    """`iterations` times: select a leaf by PUCT, continue it by `width` steps of at most `chunk` tokens (`first` at the
    root), value each, mean backup. V is in [-1, 1]: the grade of what is complete, else the role `value`."""

    iterations: int = 200
    first: int = 5
    width: int = 3
    chunk: int = 256
    depth: int = 8
    explore: float = 1.0
    accepts: Mapping[str, Any] = field(init=False, default_factory=dict)

    async def group(self, request: Request, ctx: Ctx) -> list[Trajectory]:
        tree = Tree(request, ctx.encode(request.problem.prompt))
        for i in range(self.iterations):
            leaf = self.select(tree.nodes[0])
            if leaf.ended or leaf.depth == self.depth:
                backup(leaf, leaf.value / max(leaf.visits, 1))
                continue
            sampling = replace(request.sampling, max_new=self.chunk)
            n = self.width if leaf.parent else self.first
            traces = await ctx.engine.sample("policy", leaf.context, sampling, n, key=(request.key, "plan", i))
            for kid in tree.add(leaf, traces):
                backup(kid, await self.worth(tree, kid, ctx))
        known = tree.trajectory(q=q, v=lambda n: q(n.parent) if n.parent else None, last=lambda n: float(n.ended))
        return [known]

    def select(self, node: Node) -> Node:
        def puct(k: Node) -> float:
            assert k.step is not None and k.step.logp is not None
            prior = exp(float(k.step.logp.mean()))
            return (q(k) or 0.0) + self.explore * prior * sqrt(node.visits) / (1 + k.visits)

        return self.select(max(node.kids, key=puct)) if node.kids else node

    async def worth(self, tree: Tree, node: Node, ctx: Ctx) -> float:
        if node.ended or node.depth == self.depth:
            [grade] = await tree.grade([node], ctx)
            return 0.0 if isnan(grade) else 2 * grade - 1
        after = await ctx.engine.score("value", node.context, node.context[:1], ["value"])  # before any next token
        return float(after["value"][0].clip(-1, 1))


def q(node: Node) -> float | None:
    """Q(parent, step) = V(node): there is no reward on the way. None where nothing is known."""
    return node.value / node.visits if node.visits else None


def backup(node: Node, v: float) -> None:
    for n in node.path:
        n.value, n.visits = n.value + v, n.visits + 1


@dataclass
class SiblingPairs:
    """Links "pairs" [P, 2] of (better, worse) rows with one parent and Q > 0 > Q', column `margin` [P] = A_w - A_l: all
    such pairs of plan steps; of last steps the best and the worst only, their Q times `last`. Stream `rl` is on paired
    rows (a tree without pairs is asked for again), stream `value` on the first position of each row, where V of the
    state before the step stands."""

    last: float = 0.3
    needs: tuple[Need, ...] = field(default=(), init=False)

    def __call__(self, batch: Batch, ctx: Ctx) -> Batch:
        last = batch["last"][:, 0] == 1
        q = batch["q"][:, 0] * torch.where(last, self.last, 1.0)
        alike = (batch["episode"][:, None] == batch["episode"]) & (batch["parent"][:, None] == batch["parent"])
        alike &= last[:, None] == last
        best = q == torch.where(alike, q, -torch.inf).amax(1)
        worst = q == torch.where(alike, q, torch.inf).amin(1)
        pair = alike & (q[:, None] > 0) & (q < 0) & (~last[:, None] | (best[:, None] & worst))
        index = pair.nonzero()
        margin = q[index[:, 0]] - q[index[:, 1]]
        first = torch.arange(batch.width) == 0
        paired = torch.zeros(len(batch), 1).index_fill_(0, index.flatten(), 1)
        columns = {
            "weight/rl": paired * batch["mask"],
            "weight/value": (first & batch["mask"] & ~batch["v"].isnan()).float(),
        }
        return batch.put(columns).link("pairs", index, {"margin": margin})


@dataclass
class StepPreference:
    """-log sigmoid(beta (log-ratio of the better - of the worse step) - margin), [P]; margin 0 is step-wise DPO."""

    beta: float = 0.5
    links: str = "pairs"
    needs: tuple[Need, ...] = field(
        default=(Need(("policy",), "log_prob", live=True), Need(("reference",), "log_prob")), init=False
    )
    couples: Literal["row", "batch"] = field(default="batch", init=False)

    def __call__(self, batch: Batch, ctx: Ctx) -> tuple[Tensor, Info]:
        index, columns = batch.links[self.links]
        s = self.beta * log_ratio(batch[self.needs[0]], batch[self.needs[1]], batch, "row")[:, 0]
        loss = -F.logsigmoid(s[index[:, 0]] - s[index[:, 1]] - columns["margin"])
        return loss, {"pairs": float(len(index))}
