"""The constrained MDP: its programme against dynamic programming and numbers by hand, its steps by tables."""

import numpy as np
import pytest

from shuhari.tasks.worlds.cmdp import Cmdp, make_tables, solve


def test_the_programme_by_hand():
    # one place, two speeds that pay 0 and 1 and cost 0 and 1, over four steps: half of the cost buys half of the return
    p, r, c = np.ones((1, 2, 1)), np.array([[0.0, 1.0]]), np.array([[0.0, 1.0]])
    best, x = solve(p, r, c, np.ones(1), 4, 2.0)
    assert best == pytest.approx(2.0) and float((x * c).sum()) == pytest.approx(2.0)
    assert x.sum((1, 2)).tolist() == pytest.approx([1.0] * 4)
    with pytest.raises(ValueError, match="no policy costs"):
        solve(p, r, c + 1, np.ones(1), 4, 2.0)


def test_without_a_limit_it_is_dynamic_programming():
    p, r, c = make_tables(5, 3, 7)
    v = np.zeros(5)
    for _ in range(6):
        v = (r + p @ v).max(1)
    assert solve(p, r, c, np.full(5, 0.2), 6, 1e6)[0] == pytest.approx(v.mean())


def test_steps_are_those_of_the_tables():
    env = Cmdp(states=3, speeds=2, limit=4_000, instance=1)
    place, _ = env.reset(seed=1)
    seen = np.zeros((3, 3))
    for _ in range(3_999):
        after, reward, finished, cut, info = env.step(1)
        assert reward == env.r[place, 1] and info["cost"] == env.c[place, 1] and not finished and not cut
        seen[place, after] += 1
        place = after
    assert env.step(0)[3]
    shares = seen / seen.sum(1, keepdims=True)
    assert np.abs(shares - env.p[:, 1]).max() < 0.06  # of some 1,300 draws a row
