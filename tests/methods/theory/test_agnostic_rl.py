"""Capacities, values and estimates by enumeration; policy search by dynamic programming beside the exact optimum."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from shuhari.methods.theory.agnostic_rl.agnostic import (
    RULES,
    AgnosticRL,
    count_tree,
    find_capacity,
    list_singletons,
    search_by_resets,
    weigh,
)
from shuhari.methods.theory.agnostic_rl.layered import Layered, draw, draw_world


def list_all(horizon: int, states: int) -> np.ndarray:
    every = list(product(range(2), repeat=horizon * states))
    return np.array(every).reshape(-1, horizon, states)


def test_one_policy_spans_one() -> None:
    assert find_capacity(list_all(2, 2)[5:6], 2) == 1


@pytest.mark.parametrize("horizon", [1, 2, 3])
def test_singletons_span_one_more_than_the_horizon(horizon: int) -> None:
    assert find_capacity(list_singletons(horizon, horizon), 2) == horizon + 1


def test_all_policies_span_every_sequence_of_actions() -> None:
    assert find_capacity(list_all(2, 2), 2) == 4
    some = list_all(2, 2)[np.random.default_rng(0).permutation(16)]
    for n in (2, 3, 6):
        assert find_capacity(some[:n], 2) <= min(n, 4)


def make_world() -> Layered:
    rng = np.random.default_rng(1)
    return Layered(rng.dirichlet(np.ones(2), (2, 2, 2)), rng.random((2, 2, 2)), np.array([0.3, 0.7]))


def list_episodes(world: Layered) -> list[tuple[float, tuple[int, ...], tuple[int, ...]]]:
    """(chance of the states given the actions, states, actions) of every episode of two steps."""
    found = []
    for s, a, t, b in product(range(2), repeat=4):
        found.append((world.start[s] * world.moves[0, s, a, t], (s, t), (a, b)))
    return found


def test_values_by_enumeration() -> None:
    world, policies = make_world(), list_all(2, 2)
    for policy, found in zip(policies, world.evaluate(policies), strict=True):
        exact = 0.0
        for chance, (s, t), (a, b) in list_episodes(world):
            if (policy[0, s], policy[1, t]) == (a, b):
                exact += chance * (world.means[0, s, a] + world.means[1, t, b])
        assert found == pytest.approx(exact)
    assert world.solve() == pytest.approx(world.evaluate(policies).max())


def test_importance_sampling_is_unbiased_by_enumeration() -> None:
    """The estimate of each episode with its mean return, weighted with the episode's chance under uniform actions."""
    world, policies = make_world(), list_all(2, 2)
    total = np.zeros(len(policies))
    for chance, (s, t), (a, b) in list_episodes(world):
        mean = np.array([world.means[0, s, a] + world.means[1, t, b]])
        total += 0.25 * chance * weigh(np.array([[s, t]]), np.array([[a, b]]), mean, 0.25, policies, 1)
    assert total == pytest.approx(world.evaluate(policies))


def test_episodes_have_their_chances() -> None:
    world, rng = make_world(), np.random.default_rng(2)
    first = draw(np.broadcast_to(world.start, (40_000, 2)), rng)
    states, returns = world.play(first, np.tile([1, 0], (40_000, 1)), rng)
    shares = np.bincount(2 * states[:, 0] + states[:, 1], minlength=4) / 40_000
    assert shares == pytest.approx((world.start[:, None] * world.moves[0, :, 1]).ravel(), abs=0.01)
    exact = world.evaluate(np.tile(np.array([1, 0])[:, None], (1, 1, 2)))[0]
    assert returns.mean() == pytest.approx(exact, abs=0.02)


@pytest.mark.parametrize("rule", RULES)
def test_every_estimate_nears_the_exact_values(rule: str) -> None:
    rng = np.random.default_rng(3)
    world = draw_world(3, 2, rng)
    exact = world.evaluate(list_singletons(3, 4))
    assert RULES[rule](world, 80_000, rng) == pytest.approx(exact, abs=0.02)


def test_a_tree_of_three_steps_has_nine_transitions() -> None:
    """Three of the core; from its states 3, 2 and 1 more."""
    assert count_tree(3) == 3 + 3 + 2 + 1


def test_policy_search_with_resets_to_every_state_is_optimal() -> None:
    rng = np.random.default_rng(4)
    world = draw_world(4, 2, rng)
    found = search_by_resets(world, np.full(4, 0.25), 60_000, rng)
    assert world.evaluate(found[None])[0] == pytest.approx(world.solve(), abs=0.005)


def test_uniform_play_falls_behind_as_episodes_get_longer() -> None:
    found = AgnosticRL(worlds=6, draws=10)(0)
    assert found["capacity"] == 4 and found["slope"] > 0.2
    assert found["ratio/10"] > found["ratio/4"] > 1 and found["psdp/all"] < found["psdp/one"]
