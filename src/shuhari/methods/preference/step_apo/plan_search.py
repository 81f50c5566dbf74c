"""Monte Carlo tree search over the steps of an answer, with values by a value model.

Source: "CPL: Critical Plan Step Learning Boosts LLM Generalization in Reasoning Tasks" (2024), section on searching
plans; ended nodes are not selected again and equal next steps are one node, as in the search that it builds on
(AlphaMath, 2024). Left out: steps of a plan in a form of their own before a solution in one piece.

Axes: `K` tokens of a step. Values V lie in [-1, 1]: a right answer 1, a wrong one -1.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from math import exp, isnan, sqrt
from typing import Any

import numpy as np

from shuhari.bounds import AtLeast0, Length, check
from shuhari.data import ContractError, Request, Trajectory
from shuhari.kernel.registry import register
from shuhari.models.text.rows import NoRoom
from shuhari.needs import Trace
from shuhari.ports import Ctx
from shuhari.rollouts.single import force_steps
from shuhari.rollouts.tree import Node, Tree, back_up_mean


@register("rollout", "plan_search")
@dataclass
class PlanSearch:
    """Searches each problem's steps by PUCT, with a value model for what is not complete yet (CPL's search).

    Up to `iterations` times: from the root go down to the child with the largest Q + explore prior sqrt(N of the
    parent) / (1 + N), with prior = exp(mean log-probability of the step's tokens), to a node without children; sample
    its next steps; back up the V of each new node as a mean along its path. V of a complete answer is 2 r - 1 of its
    `reward` r in [0, 1], otherwise the value model's, held in [-1, 1]. Equal next steps are one node, which is backed
    up as often as it was sampled. Nodes below which all is complete are not selected, and a tree that is complete ends
    the search. An ungraded answer is not backed up.

    A step ends at `delimiter`, or after `chunk` tokens; an answer has at most `max_new` tokens, whatever its steps.
    Each group is one trajectory, the whole tree; `rollout.n` has no effect. Steps carry the columns [K] `q`, the node's
    mean value (NaN if nothing was backed up); `v`, that of the state before the step; `last`, 1 if the answer ends with
    it; `right`, how often the step was sampled, 0 if no right answer lies at or below it; and the column [B] `count`,
    how often it was sampled. Raises ContractError for a problem with an environment.
    """

    iterations: Length = 200
    """Largest number of expansions in one tree."""
    first: Length = 5
    """Number of next steps that are sampled at the prompt."""
    width: Length = 3
    """Number of next steps that are sampled in each later state."""
    explore: AtLeast0 = 1.0
    """Exploration constant of PUCT; larger tries more steps of a small value."""
    delimiter: str = ""
    """Text that ends a step, such as a line break; empty cuts after `chunk` tokens."""
    chunk: Length = 4
    """Tokens of a step; ignored with a `delimiter`."""
    reward: str = "score"
    """Name of the reward, in [0, 1], that gives an answer's value."""
    role: str = "policy"
    """Role of the policy that writes, a name under `[models]`."""
    value: str = "critic"
    """Role of the value model over text: one value for each state, before the next token."""
    accepts: Mapping[str, Any] = field(init=False, default_factory=dict)
    stamps = ("q", "v", "last", "right", "count")
    least_n = 0

    def __post_init__(self) -> None:
        check(self)

    @property
    def roles(self) -> tuple[str, ...]:
        return self.role, self.value

    @property
    def reads(self) -> tuple[str, ...]:
        return (f"reward/{self.reward}",)

    async def group(self, request: Request, ctx: Ctx) -> list[Trajectory]:
        if ctx.task.environment(request.problem) is not None:
            whose = f"problem {request.problem.id!r} of {request.problem.task}"
            raise ContractError(f"plan_search: {whose} is played: expected a text that is answered in one call")
        context: Any = ctx.encode(request.problem.prompt, self.role)
        prefix = force_steps(request.prefix, context, self.role, ctx)
        tree = Tree(request, np.concatenate([prefix[-1].context, prefix[-1].action]) if prefix else context, prefix)
        for i in range(self.iterations):
            node = self.select(tree)
            if node is None:
                break
            fresh = await self._expand(tree, node, i, ctx)
            for kid, v in zip(fresh, await self._value(tree, fresh, ctx), strict=True):
                for _ in range(0 if isnan(v) else count(kid)):
                    back_up_mean(kid, v)
        paths = [leaf.path for leaf in tree.nodes if leaf.worth > 0]
        right = {id(n) for n in chain.from_iterable(paths)}
        known = tree.trajectory(
            q=find_q,
            v=lambda n: find_q(n.parent) if n.parent is not None else None,
            last=lambda n: float(n.ended),
            right=lambda n: float(count(n) if id(n) in right else 0),
        )
        return [known]

    def select(self, tree: Tree) -> Node | None:
        """Returns the node to expand next; None if every answer is complete."""
        live: set[int] = set()
        for n in reversed(tree.nodes):
            if n.open or any(id(k) in live for k in n.kids):
                live.add(id(n))
        node = tree.nodes[0]
        while node.kids and id(node) in live:
            node = max((k for k in node.kids if id(k) in live), key=self.puct)
        return node if node.open else None

    def puct(self, node: Node) -> float:
        """Returns a node's PUCT score among its siblings."""
        assert node.parent is not None
        prior = exp(-node.uncertainty)
        return node.q + self.explore * prior * sqrt(node.parent.visits) / (1 + node.visits)

    async def _expand(self, tree: Tree, node: Node, i: int, ctx: Ctx) -> list[Node]:
        """Returns the new children of a node; the node itself, ended, if the model has no room left."""
        longest = tree.request.sampling.max_new
        left = longest - node.decided
        size, stop = (left, (self.delimiter,)) if self.delimiter else (min(self.chunk, left), ())
        sampling = replace(tree.request.sampling, max_new=size, stop=(*tree.request.sampling.stop, *stop))
        n, key = self.width if node.parent else self.first, (tree.request.key, self.role, "node", i)
        try:
            traces = await ctx.engine.sample(self.role, node.context, sampling, n, key=key)
        except NoRoom:
            if node.step is None:
                raise
            node.ended = True
            return [node]
        equal: dict[tuple[int, ...], list[Trace]] = {}
        for t in traces:
            equal.setdefault(tuple(t.action.tolist()), []).append(t)
        known = []
        for t, *others in equal.values():
            on = self._goes_on(t.action, t.info.get("ended") is False, ctx)
            known.append(replace(t, info={**t.info, "ended": not on, "count": 1.0 + len(others)}))
        kids = tree.add(node, known, self.role)
        for kid in kids:
            assert kid.step is not None
            # what it had left, so that `pack` keeps each step in a row of its own, also an only child
            kid.step = replace(kid.step, sampling=replace(tree.request.sampling, max_new=left))
            kid.ended |= kid.decided >= longest
        return kids

    def _goes_on(self, action: Any, cut: bool, ctx: Ctx) -> bool:
        """Whether an answer goes on after these tokens: a limit `cut` them, or the delimiter ended the step."""
        return cut or bool(self.delimiter and self.delimiter in ctx.text(action, self.role))

    async def _value(self, tree: Tree, nodes: list[Node], ctx: Ctx) -> list[float]:
        """Returns V of new nodes; NaN for ungraded answers."""
        ended = [n for n in nodes if n.ended]
        rest = [n for n in nodes if not n.ended]
        # the value before the next token does not depend on it: any token will do
        asked = (ctx.engine.score(self.value, n.context, n.context[-1:], ["value"]) for n in rest)
        known: dict[int, float] = {}
        for n, found in zip(rest, await asyncio.gather(*asked), strict=True):
            known[id(n)] = float(np.clip(np.mean(found["value"][0]), -1, 1))
        for n, grade in zip(ended, await tree.grade(ended, ctx, self.reward), strict=True):
            n.worth = known[id(n)] = 2 * grade - 1
        return [known[id(n)] for n in nodes]


def count(node: Node) -> int:
    """Returns how often the step that led to a node was sampled from its state; 1 for the root."""
    return int(node.step.info.get("count", 1)) if node.step is not None else 1


def find_q(node: Node) -> float | None:
    """Returns Q of the step that led to a node, which is V of the node, as no reward is given on the way; None before
    the first backup."""
    return node.q if node.visits else None
