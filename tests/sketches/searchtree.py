"""A tree of calls of a policy under construction: what tree-searching rollouts share.

Left out: where to grow it and what its nodes are worth; that is the method. A finished tree is one trajectory, and a
node is one step: its statistics become columns `q` [B, K] and `visits` [B].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import nan
from typing import Any

import numpy as np

from shuhari.data import Request, Step, Trajectory
from shuhari.needs import Trace


@dataclass(eq=False)
class Node:
    """`value`: what backups have added up or set, over `visits` of them; `depth` of the root is 0."""

    context: Any  # what a continuation sees
    parent: Node | None = None
    step: Step | None = None  # None: the root
    depth: int = 0
    ended: bool = False
    value: float = 0.0
    visits: int = 0
    kids: list[Node] = field(default_factory=list)

    @property
    def path(self) -> list[Node]:
        """Root to here."""
        return [*(self.parent.path if self.parent else ()), self]

    @property
    def logp(self) -> float:
        """Mean log-probability of the decisions from the root."""
        known = [n.step.logp for n in self.path if n.step is not None and n.step.logp is not None]
        return float(np.concatenate(known).mean())


class Tree:
    """`nodes` in the order of growth, the root first."""

    def __init__(self, request: Request, context: Any) -> None:
        self.request = request
        self.nodes = [Node(context)]

    def add(self, node: Node, traces: Sequence[Trace], role: str = "policy") -> list[Node]:
        """Continue `node` by each trace; the new nodes."""
        kids = []
        for t in traces:
            step = Step.of(node.context, t.action, t.logp, t.version, role=role, info=t.info)
            context = np.concatenate([node.context, t.action])
            ended = t.info.get("ended") is not False
            kids.append(Node(context, node, step, node.depth + 1, ended))
        node.kids += kids
        self.nodes += kids
        return kids

    def steps(self, node: Node) -> list[Step]:
        """What was said from the root to `node`, for graders."""
        return [n.step for n in node.path if n.step is not None]

    def trajectory(self, **columns: Any) -> Trajectory:
        """The tree as one trajectory; `columns`: name -> node -> number, stamped at every decision of the node's step
        (NaN: nothing known), so that they stay apart where pack joins an only child to its parent."""
        nodes = [n for n in self.nodes if n.step is not None]
        place = {id(n): i for i, n in enumerate(nodes)}
        steps = []
        for n in nodes:
            assert n.step is not None
            k = len(n.step.mask)
            stamps = {name: np.full(k, nan if (x := f(n)) is None else x, np.float32) for name, f in columns.items()}
            steps.append(replace(n.step, parent=place.get(id(n.parent)), info={**n.step.info, **stamps}))
        return Trajectory(self.request, tuple(steps))
