"""DeepSearch: Overcome the Bottleneck of RL with Verifiable Rewards via Monte Carlo Tree Search (2025), catalogue 120.

Three parts that meet in columns and requests: a tree-searching rollout stamps `q`, an advantage reads it, a curriculum
keeps solved hard problems and hands their solutions to the rollout. The loss is DAPO's: `clip` with high = 0.28.
Left out: the entropy score of frontier nodes (off in the release).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import log, sqrt, tanh
from typing import Any

import numpy as np
import torch
from searchtree import Node, Tree
from torch import Tensor

from shuhari.batch import Batch
from shuhari.data import Problem, Request, Step, Trajectory, code
from shuhari.needs import Need
from shuhari.ports import Collected, Ctx, Curriculum, Event
from shuhari.reduce import ends, group_mean, units
from shuhari.rollouts.single import Single


@dataclass
class TreeSearch:
    """One tree a request, `width` chunks of at most `chunk` tokens a node; stops at a solution or after `budget` nodes.
    A request with a `known` solution is not searched: n plain samples, and the solution beside them."""

    width: int = 8
    chunk: int = 256
    depth: int = 64
    budget: int = 512
    explore: float = 2.0
    weights: tuple[float, float] = (0.4, 0.01)  # of the parent's value, of depth
    accepts: Mapping[str, Any] = field(init=False, default_factory=lambda: {"known": None})

    async def group(self, request: Request, ctx: Ctx) -> list[Trajectory]:
        if known := request.settings.get("known"):
            plain = await Single().group(replace(request, settings={}), ctx)
            return [*plain, Trajectory(request, (replay(plain[0].steps[0].context, known),))]
        tree = Tree(request, ctx.encode(request.problem.prompt))
        node: Node | None = tree.nodes[0]
        while node is not None and len(tree.nodes) < self.budget:
            kids = await self.expand(tree, node, ctx)
            done = [k for k in kids if k.ended or k.depth == self.depth]
            right = [k for k in done if solved(request.problem, tree.steps(k), ctx) and k.ended]
            if right:
                backup(right[0], +1.0)
                break
            if done:
                backup(max(done, key=lambda k: k.logp), -1.0)  # the wrong one that the policy is surest of
            node = self.descend(node, done) or self.frontier(tree)
        return [tree.trajectory(q=lambda n: n.value if n.visits else None)]

    async def expand(self, tree: Tree, node: Node, ctx: Ctx) -> list[Node]:
        sampling = replace(tree.request.sampling, max_new=self.chunk)
        key = (tree.request.key, "node", tree.nodes.index(node))
        return tree.add(node, await ctx.engine.sample("policy", node.context, sampling, self.width, key=key))

    def descend(self, node: Node, done: list[Node]) -> Node | None:
        """The new child to go on from, by UCT; none below a batch with terminals."""

        def uct(k: Node) -> float:
            n = max(k.visits, 1)
            return k.value / n + self.explore * sqrt(log(max(node.visits, 1)) / n)

        return None if done else max(node.kids, key=uct)

    def frontier(self, tree: Tree) -> Node | None:
        """Anywhere in the tree: the best node that may still be expanded."""
        free = [n for n in tree.nodes[1:] if not n.ended and n.depth < self.depth and len(n.kids) < self.width]
        return max(free, key=lambda n: self.score(n.parent.value if n.parent else 0.0, n.depth), default=None)

    def score(self, q_parent: float, depth: int) -> float:
        return self.weights[0] * tanh(q_parent) + self.weights[1] * sqrt(depth / self.depth)


def backup(leaf: Node, v: float, floor: float = 0.1) -> None:
    """Along the path, discounted towards the root; a failure never lowers a node that has succeeded."""
    for d, node in enumerate(leaf.path):
        g = max((d + 1) / (leaf.depth + 1), floor) * v
        node.value = node.value + g if node.value * v >= 0 else g if node.value < 0 else node.value
        node.visits += 1


def solved(problem: Problem, steps: list[Step], ctx: Ctx) -> bool:
    grade = ctx.task.grade(problem, steps)
    return grade is not None and grade["score"] == 1.0


def replay(context: Any, known: Mapping[str, Any]) -> Step:
    """A cached solution as a step, with the log-probabilities that it was sampled with."""
    return Step.of(context, known["action"], known["logp"], known["version"], info={"text": known["text"]})


@dataclass
class NodeAdvantage:
    """A = q(node) - mean leaf reward of the group, rewards in {-1, +1}, no deviation; where no search has passed, q is
    the mean of the leaves below."""

    needs: tuple[Need, ...] = field(default=(), init=False)

    def __call__(self, batch: Batch, ctx: Ctx) -> Batch:
        outcome = 2 * batch.outcome() - 1
        mean, _ = group_mean(batch, outcome)
        q = batch.get("q", torch.full_like(batch["logp"], torch.nan))
        assert q is not None
        q = torch.where(q.isnan(), outcome[:, None], q)
        return batch.put({"advantage": (q - mean[:, None]) * batch["mask"]})


@dataclass
class HardCache:
    """Problems of `inner`; one that was solved, but by at most `rate` of its leaves, comes with its solution from then
    on."""

    inner: Curriculum
    rate: float = 0.25
    state: dict[str, Any] = field(init=False, default_factory=dict)

    async def select(self, n: int, ctx: Ctx) -> list[Request]:
        requests = await self.inner.select(n, ctx)
        known = [self.state.get(str(code(r.problem.task, r.problem.id))) for r in requests]
        return [replace(r, settings={"known": k}) if k else r for r, k in zip(requests, known, strict=True)]

    def observe(self, event: Event) -> None:
        if not isinstance(event, Collected):
            return
        batch, right = event.batch, event.batch.outcome("reward/score")
        rate, _ = group_mean(batch, right)
        end = ends(batch)
        for u in units(batch, "group").unique():
            best = (end & (units(batch, "group") == u) & (right == 1)).nonzero()
            if len(best) and rate[best[0]] <= self.rate:
                self.state.setdefault(str(int(batch["problem"][best[0]])), solution(batch, best[0, 0]))


def solution(batch: Batch, leaf: Tensor) -> dict[str, Any]:
    """The path to a leaf as one action."""
    path, at = [], int(leaf)
    while at >= 0:
        path.append(batch.arena[int(batch["step"][at])])
        at = int(batch["parent"][at])
    path = path[::-1]
    whole: dict[str, Any] = {k: np.concatenate([getattr(s, k) for s in path]) for k in ("action", "logp", "version")}
    return {**whole, "text": "".join(str(s.info["text"]) for s in path)}
