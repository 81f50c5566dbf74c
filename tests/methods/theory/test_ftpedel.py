"""Occupancies and values by enumeration, a design of two arms by hand, and what offline data save."""

from __future__ import annotations

from itertools import pairwise, product

import numpy as np
import pytest

from shuhari.methods.theory.ftpedel.branches import ACTIONS, LEFT, Counts, World, draw_world, list_policies
from shuhari.methods.theory.ftpedel.ftpedel import (
    FTPedel,
    estimate_values,
    explore,
    find_policy,
    play_all,
)


def see_all(world: World, n: float = 1e9) -> Counts:
    """Counts whose shares are the exact chances and means."""
    return Counts(n * world.moves, n * world.means)


def walk(world: World, policy: np.ndarray) -> tuple[list[np.ndarray], float]:
    """(the occupancy [S, A] of each step, the value), by all paths of states."""
    horizon, S = policy.shape
    occupancy, value = [np.zeros((S, ACTIONS)) for _ in range(horizon)], 0.0
    for path in product(range(S), repeat=horizon):
        chance = world.start[path[0]]
        for h, (s, t) in enumerate(pairwise(path)):
            chance *= world.moves[h, s, policy[h, s], t]
        for h, s in enumerate(path):
            occupancy[h][s, policy[h, s]] += chance
            value += chance * world.means[h, s, policy[h, s]]
    return occupancy, value


def test_the_class_has_every_policy_that_differs_where_it_goes() -> None:
    policies = list_policies(3, 2)
    assert policies.shape == (2 * 2**4, 3, 5) and len(np.unique(policies, axis=0)) == 32
    assert list_policies(2, 1).tolist() == [
        [[b, 0, 0], [0, *x]] for b, xs in ((0, [(0, 0), (1, 0)]), (1, [(0, 0), (0, 1)])) for x in xs
    ]


def test_occupancies_and_values_of_exact_counts_are_those_of_all_paths() -> None:
    world = draw_world(3, 2, np.random.default_rng(0))
    policies, seen = list_policies(3, 2), list[np.ndarray]()

    def add(h: int, occupancy: np.ndarray) -> Counts:
        seen.append(occupancy)
        return world.no_counts()

    values = estimate_values(see_all(world), world.start, policies, add)
    assert values == pytest.approx(world.evaluate(policies), abs=1e-6)
    for i in (0, 7, 20, 31):
        occupancy, value = walk(world, policies[i])
        assert values[i] == pytest.approx(value, abs=1e-6)
        for h in range(3):
            assert seen[h][i] == pytest.approx(occupancy[h], abs=1e-6)


def test_counts_have_the_chances_of_single_episodes() -> None:
    world, policy = draw_world(3, 2, np.random.default_rng(1)), list_policies(3, 2)[21]
    counts = world.play(policy, 100_000, np.random.default_rng(2))
    occupancy, value = walk(world, policy)
    for h in range(3):
        assert counts.moves[h].sum(-1) / 1e5 == pytest.approx(occupancy[h], abs=0.01)
    assert counts.rewards.sum() / 1e5 == pytest.approx(value, abs=0.01)
    assert counts.moves[1].sum() == 100_000


@pytest.mark.parametrize(("known", "episodes"), [(0, 2000), (1000, 1000), (2000, 1000), (600, 1400)])
def test_the_design_of_two_arms_by_hand(known: int, episodes: int) -> None:
    """One state and step: an arm's occupancy is 1, so each needs 1 / goal = 1000 visits, less those that are known of
    the first."""
    arms = World(np.ones((1, 1, 2, 1)), np.full((1, 1, 2), 0.5), np.ones(1))
    policies = np.array([[[0]], [[1]]])
    offline = Counts(np.array([known, 0.0]).reshape(1, 1, 2, 1), np.zeros((1, 1, 2)))
    occupancy = np.eye(2)[:, None]
    counts, n = explore(arms, policies, 0, occupancy, occupancy, offline, 1e-3, np.random.default_rng(0))
    assert episodes <= n <= 1.05 * episodes + 32
    assert (counts.moves[0, 0, :, 0] + [known, 0] >= 1000 - 1e-3).all()


def test_enough_offline_data_need_no_online_episode_and_give_the_best_policy() -> None:
    rng = np.random.default_rng(3)
    for _ in range(5):
        world, policies = draw_world(3, 2, rng), list_policies(3, 2)
        best = world.evaluate(policies)
        found, n = find_policy(world, policies, see_all(world), 0.1, 0.5, 0.1, rng)
        assert n == 0 and best[found] == pytest.approx(best.max())


def test_no_offline_data_are_the_online_algorithm() -> None:
    """Without them every policy that is left needs visits of its own: at least the first epoch's beta / (1/2)^2, in
    each of three steps."""
    world, policies = draw_world(3, 2, np.random.default_rng(4)), list_policies(3, 2)
    none = play_all(world, policies[:1], 0, np.random.default_rng(0))
    found, n = find_policy(world, policies, none, 0.4, 0.5, 0.1, np.random.default_rng(5))
    beta = 0.5 * 3**2 * np.log(2 * 32 * 3 * 4 / 0.1)
    assert not none.moves.any() and n >= 3 * 4 * beta
    values = world.evaluate(policies)
    assert values[found] >= values.max() - 0.4


def test_what_was_never_seen_is_worth_nothing() -> None:
    world, policies = draw_world(3, 2, np.random.default_rng(6)), list_policies(3, 2)
    left = policies[:, 0, 0] == LEFT
    values = estimate_values(play_all(world, policies[left], 100_000, np.random.default_rng(0)), world.start, policies)
    assert values[~left] == pytest.approx(0) and values[left] == pytest.approx(world.evaluate(policies)[left], abs=0.03)


def test_data_of_a_branch_save_episodes_and_are_not_enough_alone() -> None:
    found = FTPedel(worlds=3)(0)
    for epsilon in (0.4, 0.2):
        assert found[f"ratio/{epsilon}"] < 0.9 and found[f"none/{epsilon}"] == pytest.approx(1, abs=0.05)
        assert found[f"lost/both/{epsilon}"] <= epsilon and found[f"episodes/full/{epsilon}"] == 0
    assert found["lost/offline"] >= 0 and all(np.isfinite(x) for x in found.values())
    with pytest.raises(ValueError, match="worlds"):
        FTPedel(worlds=0)
