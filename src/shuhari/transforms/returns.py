"""Credit over the graph of decisions: generalised advantage estimation and discounted returns.

Axes: `B` rows, `K` positions of a row. A *node* is what credit treats as one decision (`level`), its *head* the first
decision in it: rewards of the node are summed there and its value is read there. Positions that are not decisions are
skipped: a reward on one moves to the decision before it, also across rows; one before any decision is dropped. A row
without decisions and successors closes an episode: its value counts times its `cont`; one in the middle (a forced
prefix, another player's move) is passed through. Inside a row the recursion is a scan of affine maps (log2 K passes); a
row is then one affine map, composed along chains by pointer jumping (log2 of the length) and along trees level by
level, where several successors of a row are averaged. Off-policy corrections (V-trace) are left out.

Source: Schulman et al., High-Dimensional Continuous Control Using Generalized Advantage Estimation, equations 11-16.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from shuhari.batch import STATUS, Batch
from shuhari.bounds import Discount, check
from shuhari.data import Status
from shuhari.kernel.columns import BRANCH
from shuhari.kernel.registry import register
from shuhari.needs import Need
from shuhari.ports import Ctx
from shuhari.transforms.streams import find_carried, whiten, zero_ungraded

CreditLevel: TypeAlias = Literal["auto", "decision", "row", "segment", "episode"]


@register("transform", "gae")
@dataclass
class Gae:
    """Generalised advantage estimation, from a critic's values.

    Stamps columns `into` and `target` [B, K]: the advantage A = sum of (gamma lam)^t delta, delta = r + gamma cont' V'
    - V, and the return A + V. Rows whose reward is NaN get advantage 0 and weight 0 on `stream`, and are charged as
    `ungraded`.
    """

    gamma: Discount = 0.99
    """Discount factor of future rewards, in [0, 1]."""
    lam: Discount = 0.95
    """GAE's lambda, in [0, 1]: 0 is the one-step temporal difference, 1 the Monte Carlo return less the value."""
    critic: str = "critic"
    """Role of the critic whose values are the baseline; the mean of several members."""
    reward: str = "reward"
    """Column [B, K] with the rewards that are credited."""
    level: CreditLevel = "auto"
    """Unit that counts as one step: a `decision` (token or action), a `row`, a turn (`segment`) or an `episode`; `auto`
    is decision for text, row for the rest."""
    scale: bool | Literal["batch", "none"] = False
    """Normalise advantages to mean 0 and standard deviation 1 over the batch (true or `batch`); false leaves them as
    they are."""
    bootstrap_truncated: bool = False
    """Bootstrap text cut at its length limit from the value before its last token; false counts the cut as an end of
    value 0."""
    stream: str = "rl"
    """Stream that loses weight on ungraded rows, and whose rows the normalisation is over."""
    into: str = "advantage"
    """Column [B, K] that receives the advantages."""
    target: str = "return"
    """Column [B, K] that receives the returns, which the critic's loss regresses on."""

    @property
    def stamps(self) -> tuple[str, ...]:
        return self.into, self.target

    @property
    def reads(self) -> tuple[str, ...]:
        return self.reward, f"weight/{self.stream}"

    def __post_init__(self) -> None:
        check(self)

    @property
    def needs(self) -> tuple[Need, ...]:
        return (Need((self.critic,), "value"),)

    def __call__(self, batch: Batch, ctx: Ctx) -> Batch:
        value = batch[self.needs[0]]
        value = value.mean(2) if value.dim() == 3 else value  # an ensemble's mean
        gamma, lam = ctx.at(self.gamma), ctx.at(self.lam)
        advantage, target = credit(batch, value, gamma, lam, self.reward, self.level, self.bootstrap_truncated)
        return _put(batch, {self.into: advantage, self.target: target}, ctx, self.reward, self.scale, self.stream)


@register("transform", "returns")
@dataclass
class Returns:
    """Discounted returns without a critic: REINFORCE's advantages.

    Stamps columns `target` and `into` [B, K], both the discounted sum of the rewards from the decision on. Nothing is
    bootstrapped: rewards after a cut or truncation count as 0. Ungraded rows are as in `gae`.
    """

    gamma: Discount = 1.0
    """Discount factor of future rewards, in [0, 1]; 1 is undiscounted."""
    reward: str = "reward"
    """Column [B, K] with the rewards that are summed."""
    level: CreditLevel = "auto"
    """Unit that counts as one step: a `decision` (token or action), a `row`, a turn (`segment`) or an `episode`; `auto`
    is decision for text, row for the rest."""
    scale: bool | Literal["batch", "none"] = False
    """Normalise the advantages, not the returns, to mean 0 and standard deviation 1 over the batch (true or `batch`);
    false leaves them as they are."""
    stream: str = "rl"
    """Stream that loses weight on ungraded rows, and whose rows the normalisation is over."""
    into: str = "advantage"
    """Column [B, K] that receives the advantages."""
    target: str = "return"
    """Column [B, K] that receives the returns, never normalised."""
    needs: tuple[Need, ...] = field(default=(), init=False)

    @property
    def stamps(self) -> tuple[str, ...]:
        return self.into, self.target

    @property
    def reads(self) -> tuple[str, ...]:
        return self.reward, f"weight/{self.stream}"

    def __post_init__(self) -> None:
        check(self)

    def __call__(self, batch: Batch, ctx: Ctx) -> Batch:
        target, _ = credit(batch, None, ctx.at(self.gamma), 1.0, self.reward, self.level)
        columns = {self.into: target, self.target: target}
        return _put(batch, columns, ctx, self.reward, self.scale, self.stream)


def credit(
    batch: Batch,
    value: Tensor | None,
    gamma: float,
    lam: float,
    reward: str = "reward",
    level: str = "auto",
    bootstrap_truncated: bool = False,
) -> tuple[Tensor, Tensor]:
    """Returns (advantage, return), both [B, K], 0 at positions without a decision; value [B, K] or None (no baseline,
    no bootstrap).

    Ungraded rewards (NaN) count as 0, and ungraded branches of a tree do not count in its means. Raises ValueError for
    a view that lacks successors of its rows, for `episode` on trees, and for a column that is not a reward.
    """
    if level == "auto":  # only text stores the length of its rows
        level = "decision" if "length" in batch else "row"
    mask, r = batch["mask"], batch[reward]
    if r.shape != mask.shape:
        raise ValueError(f"reward names the column {reward!r}, which has no number for each decision: expected one "
                         "of rewards, such as 'reward/task'")  # fmt: skip
    K = mask.shape[1]
    if K > 1:
        r = r.masked_fill(batch["segment"] < 0, 0.0)  # padding
    bad = batch.outcome(reward).isnan() if bool(r.isnan().any()) else None
    r = r if bad is None else r.nan_to_num(0.0)
    value = torch.zeros_like(r) if value is None else value.to(r.dtype)
    graph = _Graph(batch, bad)
    decides, cont = batch.decides, batch["cont"]
    head, before, first = find_heads(batch, level)
    entry = value.gather(1, first)[:, 0]  # [B] the value of the row: at its first decision, or of its closing state

    if bool((r.masked_fill(head, 0.0) != 0).any()):
        lost = r.masked_fill(before >= 0, 0.0).sum(1)
        r = torch.zeros_like(r).scatter_add(1, before.clamp(min=0), r.masked_fill(before < 0, 0.0))
    else:
        lost = r.new_zeros(len(r))
    if level == "episode":
        return _credit_episodes(batch, graph, r, lost, entry, gamma)

    passing = ~decides & (graph.child != -1)
    handed = cont * entry  # [B] the value that a row passes to the decision before it
    if bool(passing.any()):
        lost = graph.back(lost, passing.to(r.dtype))
        handed = graph.back(handed.masked_fill(passing, 0.0), cont * passing)
    onward = graph.mean(handed)  # [B] the value after the row's last decision
    if bootstrap_truncated:
        open_end = (graph.child == -1) & decides & (batch["status"] == STATUS[Status.TRUNCATED])
        onward = torch.where(open_end, value.gather(1, _last_decision(mask))[:, 0], onward)
    discount: float | Tensor = gamma
    if level == "row" and "duration" in batch:
        discount = gamma ** batch["duration"].to(r.dtype)[:, None]
    following = onward[:, None]  # [B, K] the value at the next head
    extra = graph.mean(lost)[:, None]
    if K > 1:
        after = _next_head(head)
        following = torch.cat([value, following], 1).gather(1, after)
        extra = extra * (after == K)
    delta = (r + extra + discount * following - value).masked_fill(~head, 0.0)
    decay = torch.where(head, discount * lam, torch.ones_like(r))  # positions that are not heads are passed through
    y, p = _scan(delta, decay)
    run = graph.back(cont * y[:, 0], cont * p[:, 0])  # [B] cont times the advantage at the row's first head
    advantage = y + p * graph.mean(run)[:, None]
    target = advantage + value
    if level != "decision" and K > 1:
        advantage, target = advantage.gather(1, before.clamp(min=0)), target.gather(1, before.clamp(min=0))
    return advantage.masked_fill(~mask, 0.0), target.masked_fill(~mask, 0.0)


class _Graph:
    """The successors of the rows of a batch."""

    def __init__(self, batch: Batch, bad: Tensor | None) -> None:
        whole = batch["child"]
        self.child = batch.local(whole)
        if batch.rows is not None and bool(((whole >= 0) & (self.child < 0)).any()):
            raise ValueError(
                "credit (gae, returns) needs whole chains, and a buffer that draws single decisions (replay, offline) "
                "gives parts of them: use a loss that bootstraps (soft_td, q_learning), of recorded data the column "
                "to_go, or a buffer of new rows (fresh)"
            )
        self.branched = bool((whole == BRANCH).any())
        if self.branched:
            self.parent, self.levels = batch.local(batch["parent"]), list(batch.by_depth())
            self.weight = torch.ones(len(batch)) if bad is None else (~bad).float()
            self.count = self._up(torch.arange(len(batch)), self.weight).clamp(min=1)

    def _up(self, rows: Tensor, x: Tensor) -> Tensor:
        rows = rows[self.parent[rows] >= 0]
        return x.new_zeros(len(self.parent)).index_add_(0, self.parent[rows], x[rows])

    def mean(self, x: Tensor) -> Tensor:
        """Returns [B] the mean of x [B] over each row's successors, 0 if there are none."""
        if self.branched:
            return self._up(torch.arange(len(x)), x * self.weight) / self.count
        return torch.where(self.child < 0, 0.0, x[self.child.clamp(min=0)])

    def back(self, x: Tensor, c: Tensor) -> Tensor:
        """Returns [B] y = x + c * (mean of y over the successors)."""
        if self.branched:
            y, below = x.clone(), torch.zeros_like(x)
            for rows in self.levels:
                y[rows] += c[rows] * below[rows] / self.count[rows]
                rows = rows[self.parent[rows] >= 0]
                below.index_add_(0, self.parent[rows], y[rows] * self.weight[rows])
            return y
        c, child = c.masked_fill(self.child < 0, 0.0), self.child.clamp(min=0)
        y = x
        while bool((c != 0).any()):
            y, c, child = y + c * y[child], c * c[child], child[child]
        return y


def find_heads(batch: Batch, level: str) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the heads [B, K]; the last head at or before each position [B, K], -1 if none; the first decision [B, 1],
    or 0."""
    mask = batch["mask"]
    B, K = mask.shape
    if K == 1:
        return mask, mask.long() - 1, mask.new_zeros(B, 1, dtype=torch.long)
    first = mask.to(torch.uint8).argmax(1, keepdim=True)
    place = torch.arange(K).expand(B, K)
    if level == "decision":
        head = mask
    elif level == "segment":
        turn = torch.where(mask, batch["segment"], -1).cummax(1).values
        head = mask & (turn > torch.cat([turn.new_full((B, 1), -1), turn[:, :-1]], 1))
    else:
        head = mask & (place == first)
    return head, torch.where(head, place, -1).cummax(1).values, first


def _next_head(head: Tensor) -> Tensor:
    """Returns [B, K] the first head after each position, K if none."""
    B, K = head.shape
    place = torch.where(head, torch.arange(K), K)
    ahead = torch.cat([place[:, 1:], place.new_full((B, 1), K)], 1)
    return ahead.flip(1).cummin(1).values.flip(1)


def _last_decision(mask: Tensor) -> Tensor:
    """Returns [B, 1] the last decision, 0 if none."""
    return torch.where(mask, torch.arange(mask.shape[1]), 0).amax(1, keepdim=True)


def _scan(x: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """Returns y[k] = x[k] + c[k] y[k+1], and the products of c from k on: [B, K] each, in log2 K passes."""
    step = 1
    while step < x.shape[1]:
        x = torch.cat([x[:, :-step] + c[:, :-step] * x[:, step:], x[:, -step:]], 1)
        c = torch.cat([c[:, :-step] * c[:, step:], c[:, -step:]], 1)
        step *= 2
    return x, c


def _credit_episodes(
    batch: Batch, graph: _Graph, r: Tensor, lost: Tensor, entry: Tensor, gamma: float
) -> tuple[Tensor, Tensor]:
    """Credits each chain as one node: all its rewards, discounted once before the value of its end."""
    if graph.branched:
        raise ValueError("level 'episode' is for chains: here rows have several successors; use 'decision' or 'row'")
    decides, parent = batch.decides, batch.local(batch["parent"])
    closes = ~decides & (graph.child == -1)
    own = r.sum(1) + lost + gamma * batch["cont"] * entry * closes
    total, rows = graph.back(own, torch.ones_like(own)), torch.arange(len(own))
    up = parent  # the nearest deciding row before
    while bool((skip := (up >= 0) & ~decides[up.clamp(min=0)]).any()):
        up = torch.where(skip, parent[up.clamp(min=0)], up)
    start = torch.where(up >= 0, up, rows)  # then the first: what came before is nobody's decision
    while bool((start[start] != start).any()):
        start = start[start]
    target, mask = total[start] - lost[start], batch["mask"]
    shape = mask.shape
    advantage = (target - entry[start])[:, None].expand(shape)
    return advantage.masked_fill(~mask, 0.0), target[:, None].expand(shape).masked_fill(~mask, 0.0)


def _put(batch: Batch, columns: dict[str, Tensor], ctx: Ctx, reward: str, scale: bool | str, stream: str) -> Batch:
    """Adds the columns (advantage, then return), 0 for unknown rewards, the first of them scaled if `scale`."""
    if bool(batch[reward].isnan().any()):
        bad = batch.outcome(reward).isnan()
        columns = {name: x.masked_fill(bad[:, None], 0.0) for name, x in columns.items()}
        batch = zero_ungraded(batch, bad, ctx, stream)
    if scale and scale != "none":
        where = batch["mask"]
        if f"weight/{stream}" in batch or "status" in batch:
            where = where & find_carried(batch, stream)[:, None]
        into, advantage = next(iter(columns.items()))
        columns = {**columns, into: whiten(advantage, where)}
    return batch.put(columns)

