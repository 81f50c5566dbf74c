"""The mixed-integer programme beside enumeration, feasibility beside every assignment, exact values of coupled arms."""

from __future__ import annotations

from itertools import pairwise, product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from shuhari.config.build import build_stage
from shuhari.config.recipe import load
from shuhari.data import Sampling
from shuhari.kernel.noise import CounterNoise
from shuhari.lab import demonstrations
from shuhari.loop.run import train
from shuhari.methods.theory.sequoia.arm_values import ArmValues, expect, find_rewards
from shuhari.methods.theory.sequoia.embedding import Coupling, maximise
from shuhari.methods.theory.sequoia.joint_q import JointQ
from shuhari.methods.theory.sequoia.restless import Arms, Restless
from shuhari.tasks.gym import Gym
from shuhari.testing import context


def budget_of(bits: int, most: int) -> Coupling:
    return Coupling(np.ones((1, bits)), np.array([float(most)]), bits)


def draw_net(rng: np.random.Generator, *sizes: int) -> list[tuple[np.ndarray, np.ndarray]]:
    return [(rng.normal(size=(b, a)), rng.normal(size=b)) for a, b in pairwise(sizes)]


def forward(layers: list[tuple[np.ndarray, np.ndarray]], x: np.ndarray) -> float:
    for weights, bias in layers[:-1]:
        x = np.maximum(weights @ x + bias, 0)
    return float((layers[-1][0] @ x + layers[-1][1])[0])


@pytest.mark.parametrize("hidden", [(12,), (6, 5), ()])
@pytest.mark.parametrize("seed", range(3))
def test_the_programme_finds_the_best_of_all_feasible_actions(hidden: tuple[int, ...], seed: int) -> None:
    layers = draw_net(np.random.default_rng(seed), 8, *hidden, 1)
    action, value = maximise(layers, budget_of(8, 3))
    every = [np.array(a, float) for a in product((0, 1), repeat=8) if sum(a) <= 3]
    assert value == pytest.approx(max(forward(layers, a) for a in every), abs=1e-5)
    assert value == pytest.approx(forward(layers, action), abs=1e-5) and action.sum() <= 3


def test_a_linear_network_takes_the_largest_positive_weights() -> None:
    weights = np.array([[0.5, -1.0, 2.0, 0.1, 1.5, -0.2]])
    action, value = maximise([(weights, np.array([0.25]))], budget_of(6, 2))
    assert action.tolist() == [0, 0, 1, 0, 1, 0] and value == pytest.approx(3.75)
    assert maximise([(weights, np.zeros(1))], budget_of(6, 6))[0].tolist() == [1, 0, 1, 1, 1, 0]


def test_constraints_that_nothing_satisfies_are_an_error() -> None:
    with pytest.raises(ValueError, match="no action is feasible"):
        maximise([(np.ones((1, 2)), np.zeros(1))], budget_of(2, -1))


def test_feasible_actions_by_every_assignment_to_workers() -> None:
    """Each acted arm goes to some worker: all assignments, one by one, beside the list and the linear constraints."""
    world = Restless(arms=6, budget=3, workers=2, instance=3)
    assert world.table.coupling.listed is not None
    listed = {tuple(int(x) for x in a) for a in world.table.coupling.listed}
    found = set()
    for places in product(range(3), repeat=6):  # 2: nobody
        loads = [sum(c for c, i in zip(world.costs, places, strict=True) if i == w) for w in range(2)]
        if (np.array(loads) <= world.capacities).all() and sum(i < 2 for i in places) <= 3:
            found.add(tuple(int(i < 2) for i in places))
    assert listed == found and 1 < len(found) < 42
    for action in product((0, 1), repeat=6):  # the action nearest to this one is itself if it is feasible
        nearest = maximise([(2 * np.array([action]) - 1.0, np.zeros(1))], world.table.coupling)[0]
        assert (tuple(nearest.astype(int)) == action) == (action in found)


def make_policy(by: Any, **world: Any) -> tuple[JointQ, Gym]:
    task, policy = Gym("world/restless", kwargs=world), JointQ(hidden=(8,), by=by)
    torch.manual_seed(0)
    policy.build(task)
    return policy, task


def test_the_programme_and_the_list_act_alike() -> None:
    by_list, _ = make_policy("list")
    by_milp, _ = make_policy("milp")
    seen = torch.rand(6, 8)
    best = by_list.find_best(seen)
    assert torch.equal(best, by_milp.find_best(seen))
    every = torch.from_numpy(by_list.coupling.listed)
    for x, a in zip(seen, best, strict=True):
        top = float(by_list.rate(x.expand(len(every), -1), every).detach().max())
        assert float(by_list.rate(x[None], a[None]).detach()) == pytest.approx(top, abs=1e-6)
    with torch.no_grad():  # what is remembered is forgotten with the weights
        by_milp.module.layers[-1].weight.neg_()  # type: ignore[index, operator, union-attr]
        by_list.module.layers[-1].weight.neg_()  # type: ignore[index, operator, union-attr]
    found = [by_list.rate(seen, policy.find_best(seen)).tolist() for policy in (by_list, by_milp)]  # some are alike
    assert found[0] == pytest.approx(found[1], abs=1e-5)


def test_exploring_rows_take_each_feasible_action_as_often() -> None:
    """A share e of 60 actions: 1 - e + e / 60 of the rows are greedy, and the log-probabilities say so."""
    policy, task = make_policy("list")
    noise, seen = CounterNoise(np.arange(3000, dtype=np.uint64)), torch.zeros(3000, 8)
    found, best = policy.sample(seen, Sampling(epsilon=0.5), noise=noise), policy.find_best(seen)
    world: Any = task.make().unwrapped
    same = (found.action == best).all(1)
    assert float(same.double().mean()) == pytest.approx(0.5 + 0.5 / 60, abs=0.03)
    assert len(found.action.unique(dim=0)) == 60 and all(world.allows(a.numpy()) for a in found.action)
    assert found.logp.exp().flatten() == pytest.approx(torch.where(same, 0.5 + 0.5 / 60, 0.5 / 60))
    greedy = policy.sample(seen, Sampling(greedy=True, epsilon=0.5), noise=noise)
    assert not greedy.logp.any() and torch.equal(greedy.action, best)


def test_without_a_list_exploring_rows_are_feasible_and_of_unknown_probability() -> None:
    policy, task = make_policy("milp", arms=13)
    seen, noise = torch.zeros(12, 13), CounterNoise(np.arange(12, dtype=np.uint64))
    found = policy.sample(seen, Sampling(epsilon=1.0), noise=noise)
    world: Any = task.make().unwrapped
    assert bool(found.logp.isnan().all()) and len(found.action.unique(dim=0)) > 2
    assert all(world.allows(a.numpy()) for a in found.action)
    one = policy.sample(seen[:1], Sampling(), noise=CounterNoise(np.arange(1, dtype=np.uint64)))
    assert one.logp.item() == 0.0


def test_an_arm_moves_by_its_chances_and_an_action_that_is_not_feasible_does_nothing() -> None:
    world = Restless(arms=4, budget=2, workers=2, instance=1)
    moves, worth = world.table.moves, world.table.worth
    assert moves.sum(-1) == pytest.approx(1) and (moves[:, 0, 1, 1] >= 0.7).all()
    counts, n = np.zeros(3), 4000
    world.reset(seed=0)
    for _ in range(n):
        world.state = np.array([1, 0, 0, 0])
        seen, reward, over, cut, _ = world.step(np.array([1, 1, 1, 1]))
        counts[round(float(seen[0]) * 2)] += 1
    assert reward == pytest.approx(sum(moves[j, 0, s] @ worth[j] for j, s in enumerate([1, 0, 0, 0])))
    assert counts / n == pytest.approx(moves[0, 0, 1], abs=0.03) and not over and cut
    with pytest.raises(ValueError, match="expected less than the 4 arms"):
        Restless(arms=4, budget=4)


def test_values_of_coupled_arms_by_enumeration_of_paths() -> None:
    """Two arms, two steps: a fixed action a step, all paths of both arms."""
    world = Restless(arms=2, budget=1, workers=1, instance=5, horizon=2)
    table, actions = world.table, np.array([[1.0, 0.0], [0.0, 1.0]])
    rewards = find_rewards(table, actions)
    value = rewards[0] + 0.9 * expect(table, rewards[1], actions[0])
    for first in product(range(3), repeat=2):
        total = 0.0
        for second, third in product(product(range(3), repeat=2), repeat=2):
            chance = np.prod([table.moves[j, int(actions[0, j]), first[j], second[j]] for j in (0, 1)])
            then = np.prod([table.moves[j, int(actions[1, j]), second[j], third[j]] for j in (0, 1)])
            worth = [sum(table.worth[j, at[j]] for j in (0, 1)) for at in (second, third)]
            total += chance * then * (worth[0] + 0.9 * worth[1])
        assert value[first] == pytest.approx(total)


def test_the_metric_ranks_what_it_should() -> None:
    policy, task = make_policy("list", arms=5, budget=2, workers=2, instance=1)
    metric = ArmValues(probes=5)
    found = metric(context(models={"policy": policy}, task=task))
    assert found["gap"] < 1e-4 and 0 <= found["patient"] <= 1
    assert max(found[x] for x in ("value", "myopic", "random", "constant")) <= found["best"] + 1e-9
    table: Arms = task.table
    with torch.no_grad():
        policy.module.layers[-1].weight.zero_()  # type: ignore[index, operator, union-attr]
    same = metric(context(models={"policy": policy}, task=task))
    assert table.coupling.listed is not None and not table.coupling.listed[0].any()  # all alike: the first, nothing
    nothing = np.zeros((3,) * 5)
    for _ in range(table.horizon):
        nothing = find_rewards(table, np.zeros((1, 5)))[0] + 0.99 * expect(table, nothing, np.zeros(5))
    assert same["value"] == pytest.approx(nothing[(slice(2),) * 5].mean())
    with pytest.raises(TypeError, match="expected the world `restless`"):
        metric(context(models={"policy": SimpleNamespace()}, task=task))


def test_worlds_without_joint_actions_or_a_coupling_are_refused() -> None:
    with pytest.raises(TypeError, match="needs a MultiBinary action space"):
        JointQ().build(Gym("CartPole-v1"))
    with pytest.raises(ValueError, match="does not list its feasible actions"):
        JointQ(by="list").build(Gym("world/restless", kwargs={"arms": 13}))


def test_a_run_with_the_programme_in_every_decision_and_target(tmp_path: Any) -> None:
    small = {"models.policy": {"use": "joint_q", "hidden": [4]}, "task.kwargs": {"arms": 5, "budget": 2}}
    buffer = {"buffer.warmup": 20, "buffer.draws": 1, "buffer.size": 8, "evaluate.every": 1000}
    recipe = load("theory/sequoia", settings={**small, **buffer, "env_steps": 40})
    reports = list(train(recipe, tmp_path / "run"))
    assert reports and all(np.isfinite(r["policy/loss"]) for r in reports if "policy/loss" in r)


def test_its_sides_differ_in_the_discount() -> None:
    arms = demonstrations.read("theory/sequoia").claim.arms
    found: Any = {name: build_stage(arm.stages[-1]).learners["main"] for name, arm in arms.items()}
    gammas = {name: x.parts["policy"].terms["soft_td"].objective.gamma for name, x in found.items()}
    assert gammas == {"method": 0.9, "baseline": 0.0}
