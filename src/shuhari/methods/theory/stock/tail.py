"""The exact distribution of the return of a policy in a table of outcomes, its CVaR, and the best CVaR there is.

Source: Pires et al., "Optimizing Return Distributions with Distributional Dynamic Programming" (2025); the
search over c_0 is that of Baeuerle and Ott, "Markov Decision Processes with Average-Value-at-Risk criteria" (2011).
Undiscounted. Left out: tables whose rewards differ so much that every path has a sum of its own.

Axes: `n` pairs of a place and what was earned so far, `C` first stocks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from shuhari.bounds import Length, ProperShare, check
from shuhari.data import Array
from shuhari.kernel.registry import register
from shuhari.methods.theory.stock.cliff import Outcomes
from shuhari.methods.theory.stock.stock_q import StockQ, find_cvar
from shuhari.needs import role_model
from shuhari.ports import Ctx, ability

Act = Callable[[int, Array, Array], Array]  # step, places [n], what was earned [n] -> actions [n]


@register("metric", "tail")
@dataclass
class Tail:
    """The exact mean and CVaR of the return of a greedy `stock_q` policy, in a world with a table of outcomes.

    The first stock c_0 is the one of `points` numbers evenly spaced from `low` to `high` for which the network expects
    the best CVaR: -c_0 + E min(0, c_0 + G) / share. `cvar`: the mean return of the worst `share` of episodes; `mean`:
    that of all; `start`: c_0; `best`: the largest CVaR of any policy, by dynamic programming over places and earnings.
    Raises TypeError for a task without such a table, and for another policy.
    """

    role: str = "policy"
    """Role of the policy that is evaluated."""
    share: ProperShare = 0.1
    """Share of the worst episodes that the CVaR is the mean of, in (0, 1)."""
    low: float = 0.0
    """Least first stock, in units of the reward."""
    high: float = 40.0
    """Largest first stock."""
    points: Length = 41
    """Number of first stocks that are tried."""

    def __post_init__(self) -> None:
        check(self)
        if not self.low <= self.high:
            raise ValueError(f"tail: low is {self.low:g} and high {self.high:g}: expected low <= high")
        self._best: tuple[Any, float] | None = None  # for the current table

    @property
    def roles(self) -> tuple[str, ...]:
        return (self.role,)

    def __call__(self, ctx: Ctx) -> Mapping[str, float]:
        table, policy = ability(ctx.task, "table"), role_model(ctx.models, self.role)
        if not isinstance(table, Outcomes) or not isinstance(policy, StockQ):
            raise TypeError(f"metric tail: the task is {type(ctx.task).__name__} and the policy "
                            f"{type(policy).__name__}: expected a world with a table of outcomes, as `cliff` has, and "
                            "a `stock_q`")  # fmt: skip
        stocks = np.linspace(self.low, self.high, self.points)

        def observe(t: int, place: Array, stock: Array) -> torch.Tensor:
            seen = np.concatenate([table.seen[t, place], stock[:, None]], 1)
            return torch.from_numpy(seen.astype(np.float32))

        with torch.no_grad():
            first = observe(0, np.full(len(stocks), table.first), stocks)
            action = policy.decide(first)["action"]
            z = policy.find_quantiles(first)[torch.arange(len(stocks)), action].double().numpy()  # [C, m]
            hoped = -stocks + np.minimum(0, stocks[:, None] + z).mean(1) / self.share
            start = float(stocks[hoped.argmax()])
            act = lambda t, place, earned: policy.decide(observe(t, place, start + earned))["action"].numpy()  # noqa: E731
            earned, chance = find_returns(table, act)
        if self._best is None or self._best[0] is not table:
            self._best = table, find_best(table, stocks, self.share)
        cvar = find_cvar(torch.from_numpy(earned), torch.from_numpy(chance), self.share)
        return {"cvar": cvar, "mean": float(earned @ chance), "start": start, "best": self._best[1]}


def find_returns(table: Outcomes, act: Act) -> tuple[Array, Array]:
    """Returns ([n] returns, [n] their probabilities) of a policy that sees the step, places and what was earned."""
    place: Array = np.array([table.first])
    earned: Array = np.zeros(1)
    chance: Array = np.ones(1)
    ended: dict[float, float] = defaultdict(float)
    for t in range(table.horizon):
        at = place, act(t, place, earned)
        there, total = table.place[at], earned[:, None] + table.reward[at]  # [n, 2]
        p, over = chance[:, None] * table.chance[at], table.over[at] | (t + 1 == table.horizon)
        for x, q in zip(total[over], p[over], strict=True):
            ended[round(float(x), 9)] += float(q)
        pairs = np.stack([there[~over], total[~over].round(9)], 1)
        if not len(pairs):
            break
        pairs, which = np.unique(pairs, axis=0, return_inverse=True)
        place, earned = pairs[:, 0].astype(int), pairs[:, 1]
        chance = np.bincount(which.ravel(), p[~over], len(pairs))
    return np.array(list(ended)), np.array(list(ended.values()))


def find_best(table: Outcomes, stocks: Array, share: float) -> float:
    """Returns max over c_0 of -c_0 + max over policies of E min(0, c_0 + G) / share, c_0 one of `stocks` [C]: the best
    CVaR, if they are fine enough. Policies may see what was earned so far."""
    return float((find_values(table, lambda earned: np.minimum(0, stocks + earned)) / share - stocks).max())


def find_values(table: Outcomes, rate: Callable[[float], Array]) -> Array:
    """Returns [C] the largest expectation of `rate`(return) [C] of any policy that sees the step, the place and what
    was earned, by dynamic programming from the last step."""
    layers: list[set[tuple[int, float]]] = [{(table.first, 0.0)}]
    for t in range(table.horizon - 1):
        layers.append(set().union(*(_list_next(table, *here) for here in layers[t])))
    after: dict[tuple[int, float], Array] = {}
    for t in reversed(range(table.horizon)):
        now: dict[tuple[int, float], Array] = {}
        for place, earned in layers[t]:
            options = []
            for a in range(table.place.shape[1]):
                value: Any = 0.0
                for k, p in enumerate(table.chance[place, a]):
                    there, total = int(table.place[place, a, k]), round(earned + float(table.reward[place, a, k]), 9)
                    over = table.over[place, a, k] or t + 1 == table.horizon
                    value = value + p * (rate(total) if over else after[there, total])
                options.append(value)
            now[place, earned] = np.max(options, 0)
        after = now
    return after[table.first, 0.0]


def _list_next(table: Outcomes, place: int, earned: float) -> list[tuple[int, float]]:
    """Returns the pairs of a place and what was earned that a step may lead to, without those that end."""
    rows = zip(
        table.place[place].ravel().tolist(),
        table.reward[place].ravel().tolist(),
        table.over[place].ravel().tolist(),
        strict=True,
    )
    return [(there, round(earned + reward, 9)) for there, reward, over in rows if not over]
