"""Stock augmentation: the stock's identity by hand, exact dynamic programming, and what the greedy action maximises."""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from shuhari.config.build import build_stage
from shuhari.lab import demonstrations
from shuhari.methods.theory.stock.cliff import Cliff, Outcomes
from shuhari.methods.theory.stock.stock import Stock
from shuhari.methods.theory.stock.stock_q import StockQ, find_cvar, rate
from shuhari.methods.theory.stock.tail import Tail, find_best, find_returns, find_values
from shuhari.tasks.gym import Gym
from shuhari.testing import context


class Pays(gymnasium.Env[Any, Any]):
    """Pays 1, then 2."""

    observation_space, action_space = spaces.Box(0.0, 1.0, (1,)), spaces.Discrete(2)

    def __init__(self) -> None:
        self.at = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.at = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: int) -> Any:
        self.at += 1
        return np.zeros(1, np.float32), float(self.at), self.at == 2, False, {}


def test_the_stock_by_hand() -> None:
    """gamma 1/2, c_0 = 0, rewards 1 and 2: stocks 2 and 8, and gamma^2 8 = 2 is the return 1 + 1/2 2."""
    env = Stock(Pays(), low=0.0, high=0.0, gamma=0.5)
    assert env.reset(seed=0)[0].tolist() == [0.0, 0.0]
    stocks = [env.step(0)[4]["stock"] for _ in range(2)]
    assert stocks == [2.0, 8.0] and 0.5**2 * stocks[-1] == 1 + 0.5 * 2
    drawn = [float(Stock(Pays(), low=3.0, high=5.0).reset(seed=i)[0][-1]) for i in range(20)]
    assert min(drawn) >= 3 and max(drawn) <= 5 and len(set(drawn)) == 20
    with pytest.raises(ValueError, match="expected a discount"):
        Stock(Pays(), gamma=0.0)
    with pytest.raises(ValueError, match="expected low <= high"):
        Stock(Pays(), low=2.0, high=1.0)


def outcomes(chance: Any, place: Any, reward: Any, over: Any, horizon: int) -> Outcomes:
    places = np.asarray(chance).shape[0]
    seen = np.zeros((horizon + 1, places, 1))
    return Outcomes(*map(np.asarray, (chance, place, reward, over)), 0, horizon, seen)


# action 0 pays 1, action 1 pays 3 or -1
BETS = outcomes([[[0.5, 0.5]] * 2], [[[0, 0]] * 2], [[[1.0, 1.0], [3.0, -1.0]]], [[[True, True]] * 2], 1)
# the first step pays 1 or -1 whatever is done, the second what is chosen: 1, 0, -1
SECOND = outcomes(
    [[[0.5, 0.5]] * 3] * 2, [[[1, 1]] * 3] * 2, [[[1.0, -1.0]] * 3, [[1.0, 1.0], [0.0, 0.0], [-1.0, -1.0]]],
    [[[False, False]] * 3, [[True, True]] * 3], 2,
)  # fmt: skip


def test_the_cvar_of_two_bets() -> None:
    """Both bets have mean 1; the worst half of them is worth 1 and -1, and the search over c_0 finds the safe one."""
    found = [find_cvar(*map(torch.from_numpy, find_returns(BETS, lambda *_, a=a: np.array([a]))), 0.5) for a in (0, 1)]
    assert found == [1.0, -1.0]
    assert find_best(BETS, np.linspace(-3, 3, 7), 0.5) == pytest.approx(1.0)
    assert find_cvar(torch.tensor([3.0, -1.0, 5.0]), torch.tensor([0.5, 0.25, 0.25]), 0.5) == pytest.approx(1.0)


def test_only_a_policy_of_the_stock_brings_the_total_to_zero() -> None:
    """E|total| is 0 by dynamic programming over what was earned; no policy of step and place alone is below 1."""
    assert find_values(SECOND, lambda total: np.array([-abs(total)])).item() == 0.0
    plain = []
    for a in range(3):
        earned, chance = find_returns(SECOND, lambda t, place, x, a=a: np.full(len(place), a))
        plain.append(float(np.abs(earned) @ chance))
    assert min(plain) == 1.0
    earned, chance = find_returns(SECOND, lambda t, place, x: (x + 1).astype(int))  # -1 -> pay 1, 1 -> pay -1
    assert float(np.abs(earned) @ chance) == 0.0


def neutral(table: Outcomes) -> tuple[float, Any]:
    """Value iteration: the best mean return, and its policy [T, P]."""
    value = np.zeros(len(table.place))
    does = np.zeros((table.horizon, len(value)), int)
    for t in reversed(range(table.horizon)):
        q = (table.chance * (table.reward + np.where(table.over, 0.0, value[table.place]))).sum(-1)
        does[t], value = q.argmax(1), q.max(1)
    return float(value[table.first]), does


def test_a_linear_utility_is_value_iteration_and_the_cliff_needs_another() -> None:
    table = Cliff(rows=3, columns=5, horizon=10).table
    best, does = neutral(table)
    assert find_values(table, lambda total: np.array([total])).item() == pytest.approx(best)
    earned, chance = find_returns(table, lambda t, place, _: does[t, place])
    assert chance.sum() == pytest.approx(1.0) and float(earned @ chance) == pytest.approx(best)
    risky = find_cvar(torch.from_numpy(earned), torch.from_numpy(chance), 0.1)
    assert find_best(table, np.linspace(0, 30, 31), 0.1) > risky + 1  # a return is a whole number: the grid is exact


def test_the_best_cvar_is_that_of_the_best_policy_by_enumeration() -> None:
    """All policies of step, place and earnings of a small table, one by one."""
    rng = np.random.default_rng(4)
    place = rng.integers(2, size=(2, 2, 2))
    table = outcomes(np.tile([0.3, 0.7], (2, 2, 1)), place, rng.integers(-2, 3, (2, 2, 2)).astype(float),
                     np.zeros((2, 2, 2), bool), 2)  # fmt: skip
    seen = [(1, p, x) for p in range(2) for x in range(-2, 3)]
    best = -np.inf
    for plan in product(range(2), repeat=1 + len(seen)):
        rule = dict(zip([(0, 0, 0), *seen], plan, strict=True))
        act = lambda t, at, x, rule=rule: np.array([rule[t, p, int(e)] for p, e in zip(at, x, strict=True)])  # noqa: E731
        best = max(best, find_cvar(*map(torch.from_numpy, find_returns(table, act)), 0.4))
    assert find_best(table, np.linspace(-5, 5, 11), 0.4) == pytest.approx(best)


def test_steps_of_the_cliff_are_those_of_its_table() -> None:
    world = Cliff(wind=0.4, horizon=50)
    table, rng = world.table, np.random.default_rng(0)
    assert table.reward[world.first, 1].tolist() == [-4.0, -4.0] and table.place[world.first, 1, 0] == world.first
    count, gusts = 0, 0
    for seed in range(20):
        seen, over = world.reset(seed=seed)[0], False
        while not over:
            before, action = world.place, int(rng.integers(4))
            seen, reward, over, _, _ = world.step(action)
            outcome = (world.place, reward)
            options = [(int(table.place[before, action, k]), float(table.reward[before, action, k])) for k in (0, 1)]
            assert outcome in options and int(seen[:-1].argmax()) == world.place
            if options[0] != options[1]:
                count, gusts = count + 1, gusts + (outcome == options[1])
    assert gusts / count == pytest.approx(0.4, abs=4 * (0.24 / count) ** 0.5)


def test_the_greedy_action_maximises_the_utility_of_stock_plus_return() -> None:
    """Action 0 returns 1, action 1 returns 3 or -1: the same mean; shortfall prefers the first at c = 0 or -0.5, and is
    indifferent at 1, distance prefers the second at -3."""
    z = torch.tensor([[[1.0, 1.0], [3.0, -1.0]]])
    assert rate(z, torch.tensor([5.0]), "mean").tolist() == [[1.0, 1.0]]
    assert rate(z, torch.tensor([0.0]), "shortfall").tolist() == [[0.0, -0.5]]
    assert rate(z, torch.tensor([-2.0]), "shortfall").tolist() == [[-1.0, -1.5]]
    assert rate(z, torch.tensor([-3.0]), "distance").tolist() == [[-2.0, -2.0]]
    assert rate(z, torch.tensor([1.0]), "shortfall").tolist() == [[0.0, 0.0]]


def test_the_metric_is_that_of_the_policy_as_it_acts() -> None:
    task = Gym("world/cliff", wrappers=({"use": "shuhari.methods.theory.stock.stock.Stock", "high": 20.0},))
    policy = StockQ(hidden=(8,))
    torch.manual_seed(0)
    policy.build(task)
    with torch.no_grad():  # up, right or down by the place alone: along the row above the cliff
        for p in policy.module.parameters():
            p.zero_()
        first, last = policy.module.layers
        columns, goal = 6, 23
        first.weight[0, 18], first.weight[1, columns * 2 : columns * 3 - 1] = 1.0, 1.0
        first.weight[2, columns * 3 - 1] = 1.0
        first.weight[3, : columns * 2] = 1.0
        m = policy.quantiles.n
        for unit, a in ((0, 0), (1, 1), (2, 2), (3, 2)):
            last.weight[a * m : (a + 1) * m, unit] = 1.0
    found = Tail(high=20.0, points=21)(context(models={"policy": policy}, task=task))
    table = task.table
    plan = np.full(goal + 1, 2)
    plan[18], plan[12:17] = 0, 1
    by_hand = find_returns(table, lambda t, place, _: plan[place])
    assert found["mean"] == pytest.approx(float(by_hand[0] @ by_hand[1])) and found["cvar"] <= found["best"]
    with pytest.raises(TypeError, match="expected a world with a table of outcomes"):
        Tail()(context(models={"policy": SimpleNamespace()}, task=task))


def test_its_sides_differ_in_the_utility() -> None:
    arms = demonstrations.read("theory/stock").claim.arms
    found: Any = {name: build_stage(arm.stages[-1]).models["policy"].model for name, arm in arms.items()}
    assert {name: x.utility for name, x in found.items()} == {"method": "shortfall", "baseline": "mean"}
