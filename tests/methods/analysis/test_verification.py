"""The planted subsequence by hand, and the exact policies against an enumeration of all traces."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from shuhari.data import Array
from shuhari.methods.analysis.verification.planted import (
    Base,
    Planted,
    condition,
    draw_traces,
    find_reward,
    imitate,
    learn_verifier,
    maximise,
    tilt,
)
from shuhari.testing import check_analysis

BASE = Base(np.array([0.2, 0.6]), np.array([0.7, 0.3]), steps=4, tokens=2)


def enumerate_traces(base: Base) -> tuple[Array, Array]:
    """Return (probability, r_h [H]) of all traces of all styles."""
    chances, rewards = [], []
    for s, wrote in product(range(len(base.write)), product((0, 1), repeat=base.steps)):
        p, at, r = base.shares[s], 0, []
        for w in wrote:
            if at == base.tokens:  # nothing is left to write
                p *= 1.0 - w
            else:
                p *= base.write[s] if w else 1 - base.write[s]
                at += w
            r.append(float(at == base.tokens))
        chances.append(p)
        rewards.append(r)
    return np.array(chances), np.array(rewards)


def test_a_trace_by_hand() -> None:
    """The subsequence 1, 2 in the trace 0, 1, 0, 2, 0 is complete from the fourth of five steps on."""
    chances = np.zeros((1, 5, 2))
    chances[0, 1, 0] = chances[0, 3, 1] = 1.0
    assert find_reward(chances, np.ones(1)) == pytest.approx(0.4)


def test_the_base_and_its_conditioning_are_those_of_all_traces() -> None:
    p, r = enumerate_traces(BASE)
    assert p.sum() == pytest.approx(1)
    assert find_reward(BASE.list_chances(), BASE.shares) == pytest.approx(p @ r.mean(1))
    solved = p * r[:, -1]
    assert find_reward(*condition(BASE)) == pytest.approx(solved @ r.mean(1) / solved.sum())


def test_imitation_of_much_data_is_the_base_conditioned_on_right_traces() -> None:
    rng = np.random.default_rng(0)
    found = imitate(draw_traces(*condition(BASE), 100_000, rng), BASE)
    assert find_reward(found, np.ones(1)) == pytest.approx(find_reward(*condition(BASE)), abs=0.004)


def test_without_data_imitation_is_the_base() -> None:
    found = imitate(np.zeros((0, 5), np.int64), BASE)
    assert find_reward(found, np.ones(1)) == pytest.approx(find_reward(BASE.list_chances(), BASE.shares))


def test_the_tilt_is_that_of_all_traces() -> None:
    p, r = enumerate_traces(BASE)
    solved = np.array([0.0, 1.0, 0.0, 1.0])
    q = p * np.exp(1.3 * r @ solved)
    q /= q.sum()
    chances, shares, kl = tilt(BASE, solved, 1.3)
    kept = q > 0
    assert kl == pytest.approx(float((q[kept] * np.log(q[kept] / p[kept])).sum()))
    assert find_reward(chances, shares) == pytest.approx(q @ r.mean(1))


def test_a_perfect_verifier_is_at_least_as_good_as_conditioning_at_the_same_kl() -> None:
    kl = -np.log(float(BASE.shares @ BASE.find_solved()[:, 0, 0]))
    found = maximise(BASE, np.ones(4), kl)
    assert find_reward(*found) > find_reward(*condition(BASE))


def test_where_all_traces_are_alike_both_are_equal() -> None:
    alike = Base(np.ones(1), np.ones(1), steps=6, tokens=2)
    rng = np.random.default_rng(0)
    imitator = imitate(draw_traces(*condition(alike), 3, rng), alike)
    verified = maximise(alike, learn_verifier(draw_traces(alike.list_chances(), alike.shares, 3, rng), 2), 0.0)
    assert find_reward(imitator, np.ones(1)) == find_reward(*verified) == pytest.approx(5 / 6)


def test_a_verifier_trusts_only_what_it_has_seen_solved() -> None:
    traces = np.array([[0, 1, 2, 2, 2], [0, 0, 0, 1, 2]])
    assert learn_verifier(traces, 2).tolist() == [0, 1, 1, 1]


def test_it_keeps_to_its_port_and_finds_a_gap_that_grows() -> None:
    found = check_analysis(Planted(draws=4, longest=32))
    assert found["gap/32"] == pytest.approx(32 * (found["verifier/32"] - found["imitation/32"]))
    with pytest.raises(ValueError, match="longest is 16: expected at least 32"):
        Planted(longest=16)
