"""Tree search in one group: answers are generated in chunks, and the most promising nodes are expanded.

Three settings make a search: how a node is expanded (`width`, `depth`), how answers are backed up (`backup`) and which
node is next (`select`). A finished tree is one trajectory and a node is one step of it, so a chunk that several answers
share is one row, trained once. Left out: games (an environment's state would have to be copied), learned values.

Axes: `K` decisions of a step. Values lie in [-1, 1] unless backups add them up: a right answer +1, a wrong one -1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from math import inf, isnan, log, nan, sqrt, tanh
from typing import Any, Literal, NamedTuple

import numpy as np

from shuhari.bounds import AtLeast0, Count, Length, check
from shuhari.data import EMPTY, ContractError, Request, Status, Step, Trajectory, nearest, sum_reward
from shuhari.kernel.registry import register
from shuhari.models.text.rows import NoRoom
from shuhari.needs import Trace
from shuhari.ports import Ctx
from shuhari.rollouts.single import Single, force_steps

# ---------------------------------------------------------------- a tree under construction


@dataclass(eq=False)
class Node:
    """A node of the search tree. `value`: the sum (or last value) of its `visits` backups; `worth`: the value of a
    graded answer; `graded_by`: the graders of the path to it (as of a `Trajectory`); `logp`: log-probability of the
    `decided` decisions from the root. The root has `depth` 0."""

    context: Any  # the context of a continuation
    parent: Node | None = None
    step: Step | None = None  # None: the root
    depth: int = 0
    ended: bool = False
    logp: float = 0.0
    decided: int = 0
    worth: float = nan
    value: float = 0.0
    visits: int = 0
    graded_by: Mapping[str, tuple[str, ...] | None] = field(default_factory=lambda: EMPTY)
    kids: list[Node] = field(default_factory=list)

    @property
    def path(self) -> list[Node]:
        """Returns the nodes from the root to this one."""
        return [*(self.parent.path if self.parent else ()), self]

    @property
    def q(self) -> float:
        """Returns the mean backed-up value; 0 before the first backup."""
        return self.value / self.visits if self.visits else 0.0

    @property
    def open(self) -> bool:
        """Whether it can be expanded: it has no children and is not a complete answer."""
        return not (self.ended or self.kids)

    @property
    def confidence(self) -> float:
        """Returns the mean log-probability of the decisions from the root."""
        return self.logp / max(1, self.decided)

    @property
    def uncertainty(self) -> float:
        """Returns the mean -log-probability of this node's own decisions, an estimate of their entropy."""
        logp, decided = (self.parent.logp, self.parent.decided) if self.parent else (0.0, 0)
        return (logp - self.logp) / max(1, self.decided - decided)


class Tree:
    """A tree under construction. `nodes` in the order of expansion, the root first; `prefix`: forced steps before the
    root."""

    def __init__(self, request: Request, context: Any, prefix: Sequence[Step] = ()) -> None:
        self.request, self.prefix = request, tuple(prefix)
        self.nodes = [Node(context)]

    def add(self, node: Node, traces: Sequence[Trace], role: str = "policy") -> list[Node]:
        """Add a child of `node` for each trace; returns the new nodes."""
        kids = []
        for t in traces:
            step = Step.of(node.context, t.action, t.logp, t.version, role=role, info=t.info)
            context, ended = np.concatenate([node.context, t.action]), t.info.get("ended") is not False
            logp, decided = (0.0, 0) if t.logp is None else (float(t.logp.sum()), len(t.logp))
            path = node.depth + 1, ended, node.logp + logp, node.decided + decided
            kids.append(Node(context, node, step, *path))
        node.kids += kids
        self.nodes += kids
        return kids

    def steps(self, node: Node) -> list[Step]:
        """Returns the steps from the beginning to `node`, as a chain."""
        said = [*self.prefix, *(n.step for n in node.path if n.step is not None)]
        return [replace(s, parent=i - 1 if i else None) for i, s in enumerate(said)]

    async def grade(self, nodes: Sequence[Node], ctx: Ctx, reward: str = "score") -> list[float]:
        """Returns the reward of the paths that end in `nodes`, NaN if ungraded; their steps keep the grades, so that
        the run does not grade them again. Raises ContractError for a reward name that no grader gives."""
        asked = await ctx.grade([Trajectory(self.request, tuple(self.steps(n))) for n in nodes], until=reward)
        for node, t in zip(nodes, asked, strict=True):
            assert node.step is not None
            last, node.graded_by = t.steps[-1].reward, t.graded_by
            if last and reward not in last:
                raise ContractError(f"tree: reward {reward!r} is graded by nobody; {nearest(reward, last)}")
            node.step = replace(node.step, reward=last)
        return [sum_reward(t.steps, reward) for t in asked]

    def trajectory(self, leaves: Iterable[Node] | None = None, **columns: Callable[[Node], float | None]) -> Trajectory:
        """Returns the tree as one trajectory: the paths to `leaves`, or all of it. `columns`: name -> node -> number,
        written at every decision of the node's step (NaN for None), so that nodes stay distinct after they are joined
        into a row."""
        kept = (
            None
            if leaves is None
            else {
                id(n)
                for leaf in leaves
                for n in leaf.path
            }
        )
        nodes = [n for n in self.nodes if n.step is not None and (kept is None or id(n) in kept)]
        place = {id(n): i for i, n in enumerate(nodes, len(self.prefix))}
        steps, root = list(self.prefix), len(self.prefix) - 1 if self.prefix else None
        for n in nodes:
            assert n.step is not None
            k = len(n.step.mask)
            own = {name: np.full(k, nan if (x := of(n)) is None else x, np.float32) for name, of in columns.items()}
            steps.append(replace(n.step, parent=place.get(id(n.parent), root), info={**n.step.info, **own}))
        finished = any(s.info.get("ended") is not False for s in steps)
        inner = {id(n.parent) for n in nodes}
        asked = [n.graded_by for n in nodes if id(n) not in inner]
        everywhere = [
            name
            for name in dict.fromkeys(chain(*asked))
            if all(name in a for a in asked)
        ]
        graded_by = {
            name: _join_names(a[name] for a in asked)
            for name in everywhere
        }
        status = Status.FINISHED if finished else Status.TRUNCATED
        return Trajectory(self.request, tuple(steps), status, graded_by=graded_by)


def _join_names(each: Iterable[tuple[str, ...] | None]) -> tuple[str, ...] | None:
    """Returns all names that a grader gave on any path; None if it gave none for any."""
    given = [names for names in each if names is not None]
    return tuple(sorted(set(chain(*given)))) if given else None


# ---------------------------------------------------------------- backing up


def back_up_signed(leaf: Node, v: float, floor: float = 0.1) -> None:
    """Adds v, discounted towards the root by max((d + 1) / (l + 1), `floor`) at depth d of a leaf at depth l. A failure
    does not lower a node that has succeeded, and a success replaces all failures (DeepSearch, section 3.3)."""
    for d, node in enumerate(leaf.path):
        g = max((d + 1) / (leaf.depth + 1), floor) * v
        node.value = node.value + g if node.value * v >= 0 else g if v > 0 else node.value
        node.visits += 1


def back_up_mean(leaf: Node, v: float) -> None:
    """Adds v along the whole path, so that q is a mean over answers."""
    for node in leaf.path:
        node.value, node.visits = node.value + v, node.visits + 1


class Backup(NamedTuple):
    """A backup rule. `born`: visits of a new node; `back`: updates the path of an answer; `q`: a node's value, in [-1,
    1]."""

    born: int
    back: Callable[[Node, float], None]
    q: Callable[[Node], float]


BACKUPS = {
    # the released code squashes inner sums
    "signed": Backup(1, back_up_signed, lambda n: n.value if n.ended else tanh(n.value)),
    "mean": Backup(0, back_up_mean, lambda n: n.q),
}

# ---------------------------------------------------------------- selecting


def uct(node: Node, explore: float) -> float:
    """Returns Q + explore sqrt(ln N_parent / N) (UCT; Kocsis and Szepesvari 2006): without the bonus if the parent has
    no visits, infinite if the node has none."""
    above = node.parent.visits if node.parent else 0
    if not node.visits:
        return inf
    return node.q + (explore * sqrt(log(above) / node.visits) if above else 0.0)


def score(node: Node, weights: Sequence[float], depth: int) -> float:
    """Returns the priority of a frontier node: w1 tanh(Q of its parent) + w2 (mean -log p of its decisions) + w3 sqrt(d
    / depth)."""
    q = node.parent.q if node.parent else 0.0
    return weights[0] * tanh(q) + weights[1] * node.uncertainty + weights[2] * sqrt(node.depth / depth)


def _pick_frontier(search: TreeSearch, tree: Tree, fresh: Sequence[Node]) -> Node | None:
    """Picks the best of the newest nodes if none of them is an answer, otherwise the best open node anywhere."""
    if fresh and not any(n.ended for n in fresh):
        return max(fresh, key=lambda n: uct(n, search.explore))
    free = [n for n in tree.nodes[1:] if n.open]
    return max(free, key=lambda n: score(n, search.weights, search.depth), default=None)


def _pick_uct(search: TreeSearch, tree: Tree, fresh: Sequence[Node]) -> Node | None:
    """Descends from the root to the best child, skipping subtrees that cannot be expanded."""
    live: set[int] = set()
    for n in reversed(tree.nodes):
        if n.open or any(id(k) in live for k in n.kids):
            live.add(id(n))
    node = tree.nodes[0]
    while node.kids and id(node) in live:
        node = max((k for k in node.kids if id(k) in live), key=lambda n: uct(n, search.explore))
    return node if node.open else None


def _pick_breadth(search: TreeSearch, tree: Tree, fresh: Sequence[Node]) -> Node | None:
    """Picks the oldest node that can be expanded (breadth first)."""
    return next((n for n in tree.nodes if n.open), None)


SELECTS: dict[str, Callable[[TreeSearch, Tree, Sequence[Node]], Node | None]] = {
    "frontier": _pick_frontier,
    "uct": _pick_uct,
    "breadth": _pick_breadth,
}


@register("rollout", "tree")
@dataclass
class TreeSearch:
    """Tree search over partial answers, one tree per problem; steps that answers share are trained once (DeepSearch,
    2025, arXiv 2509.25454, section 3).

    Nodes are continued by `width` chunks of max_new / `depth` tokens until n answers are backed up, or after `budget`
    expansions. With depth = 1 and width = n these are n plain samples. With a `chunk`, the last chunk of an answer has
    the remaining tokens, and `depth` follows from it.

    Only the best answer of an expansion is backed up, by reward and then by mean log-probability (section 3.2), or all
    of them with `every`; once no node can be expanded, the remaining answers follow one by one. An answer's value is 2
    r - 1 of its `reward` r in [0, 1], graded during the search by the run's graders; ungraded answers are not backed
    up. The trained tree is the paths to the backed-up answers, or all of it with `whole`; its steps carry `q` [K], the
    node's value. New nodes are equal under UCT (no value yet, as many visits), so `frontier` takes the first of them,
    and `explore` has no effect there.

    The request setting `known` is a right answer found earlier, {"action", "logp", "version", "mask"} [K]: then there
    is no search, and the group is n - 1 plain samples and this answer. Chunks are decoded one by one for graders, and a
    temperature ramp restarts at each.
    """

    select: Literal["frontier", "uct", "breadth"] = "frontier"
    """Rule that picks the next node: `frontier` (DeepSearch's score of open nodes), `uct` from the root, or `breadth`,
    level by level."""
    backup: Literal["signed", "mean"] = "signed"
    """Rule by which an answer's value reaches its path: `signed` and discounted (DeepSearch), or summed to a `mean`."""
    width: Length = 8
    """Number of continuations sampled at each expansion."""
    depth: Length = 64
    """Number of chunks in the longest answer, which must divide `max_new`; ignored with a `chunk`."""
    budget: Count = 512
    """Largest number of expansions in one tree; 0 sets no limit."""
    explore: AtLeast0 = 2.0
    """Exploration constant of UCT; only `select = "uct"` depends on it."""
    weights: tuple[float, float, float] = (0.4, 0.4, 0.01)
    """Weights of the frontier score: parent's value, uncertainty (mean negative log-probability) and depth."""
    every: bool = False
    """Back up all answers of an expansion, not only the best."""
    whole: bool = False
    """Train on the whole tree, not only on the paths to backed-up answers."""
    reward: str = "score"
    """Name of the reward, in [0, 1], that gives an answer's value."""
    role: str = "policy"
    """Role of the policy that writes, a name under `[models]`."""
    chunk: Count = 0
    """Tokens per chunk; 0 takes `max_new` / `depth`."""
    accepts: Mapping[str, Any] = field(init=False, default_factory=lambda: {"known": None})
    stamps = ("q",)
    least_n = 0

    @property
    def roles(self) -> tuple[str, ...]:
        return (self.role,)

    @property
    def reads(self) -> tuple[str, ...]:
        return (f"reward/{self.reward}",)

    def __post_init__(self) -> None:
        check(self)

    async def group(self, request: Request, ctx: Ctx) -> list[Trajectory]:
        """Searches one tree. Raises ContractError for a problem with an environment or a max_new that `depth` does not
        divide."""
        if request.settings.get("known") is not None or ctx.task.environment(request.problem) is not None:
            return await self._plain(request, ctx)
        longest = request.sampling.max_new
        if self.chunk and self.depth != (depth := -(-longest // self.chunk)):
            return await replace(self, depth=depth).group(request, ctx)
        if not self.chunk and longest % self.depth:
            message = f"max_new is {longest}: expected a multiple of depth, which is {self.depth}"
            raise ContractError(f"the rollout 'tree': {message}")
        context = ctx.encode(request.problem.prompt, self.role)
        prefix = force_steps(request.prefix, context, self.role, ctx)
        tree = Tree(request, np.concatenate([prefix[-1].context, prefix[-1].action]) if prefix else context, prefix)
        born, back, q = BACKUPS[self.backup]
        node: Node | None = tree.nodes[0]
        done: list[Node] = []
        grown = 0
        while len(done) < request.n:
            fresh = await self._expand(tree, node, grown, ctx) if node is not None else []
            for kid in fresh:
                kid.visits += 0 if kid.ended else born
            new = [n for n in fresh or tree.nodes if n.ended and not isnan(n.worth) and n not in done]
            if not (fresh or new):
                break
            best = sorted(new, key=lambda n: (n.worth, n.confidence), reverse=True)
            for leaf in (best if self.every else best[:1])[: request.n - len(done)]:
                back(leaf, leaf.worth)
                done.append(leaf)
            grown += bool(fresh)
            node = None if self.budget and grown >= self.budget else SELECTS[self.select](self, tree, fresh)
        leaves = done or [max(tree.nodes, key=lambda n: (n.depth, n.confidence))]  # nothing was graded: the longest
        if self.whole:
            await tree.grade([n for n in tree.nodes[1:] if not (n.kids or n.graded_by)], ctx, self.reward)
        return [tree.trajectory(None if self.whole else leaves, q=lambda n: q(n) if n.visits else None)]

    async def _expand(self, tree: Tree, node: Node, i: int, ctx: Ctx) -> list[Node]:
        """Expands a node and grades the new answers; returns its children, or the node itself if the model has no room
        left."""
        longest = tree.request.sampling.max_new
        size = min(self.chunk, longest - node.depth * self.chunk) if self.chunk else longest // self.depth
        sampling = replace(tree.request.sampling, max_new=size)
        key = (tree.request.key, self.role, "node", i)
        try:
            kids = tree.add(
                node, await ctx.engine.sample(self.role, node.context, sampling, self.width, key=key), self.role
            )
        except NoRoom:
            if node.step is None:
                raise
            kids = [node]
        for kid in kids:
            kid.ended |= kid.depth == self.depth or kid is node
        ended = [kid for kid in kids if kid.ended]
        for kid, grade in zip(ended, await tree.grade(ended, ctx, self.reward), strict=True):
            kid.worth = 2 * grade - 1
        return kids

    async def _plain(self, request: Request, ctx: Ctx) -> list[Trajectory]:
        """Samples n - 1 plain answers and adds the known one."""
        known = request.settings.get("known")
        rest, single = replace(request, settings=EMPTY), Single(self.role)
        if known is None:
            return await single.group(rest, ctx)  # which raises the error
        plain = await single.group(replace(rest, n=request.n - 1), ctx) if request.n > 1 else []
        context = ctx.encode(request.problem.prompt, self.role)
        step = Step.of(context, known["action"], known["logp"], known["version"], role=self.role)
        step = replace(step, mask=known["mask"], info={"text": ctx.text(known["action"], self.role)})
        return [*plain, Trajectory(rest, (step,))]
