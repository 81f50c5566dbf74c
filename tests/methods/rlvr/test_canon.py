"""Advantages of halves: by hand, as Dr. GRPO's where both brackets weigh the same, and by order alone.

CANON as its recipe says it: where its schedule stands, and what is left of it at the middle, Dr. GRPO.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from built import answers, built, demonstrated, learnt, padded, same, table
from shuhari.config.build import build_stage
from shuhari.config.recipe import load
from shuhari.data import Ramp
from shuhari.methods.rlvr.canon.split_groups import Halves
from shuhari.testing import check_transform, context, groups, transitions
from shuhari.transforms.advantage import Advantage

NONE = None


def credited(made: Halves, rewards: Any, metric: Any, ctx: Any = None) -> list[list[float]]:
    """The advantage of each answer, a list a group, where these are its entropies (or lengths)."""
    lengths = [[int(x) for x in group] for group in metric] if made.metric == "length" else 2
    batch = groups(rewards, lengths=lengths)
    if made.metric == "entropy":
        flat = torch.tensor([float(x) for group in metric for x in group])
        batch = batch.put({made.needs[0].key: torch.stack([flat - 0.5, flat + 0.5], 1)})  # whose mean it is
    out = check_transform(made, batch, ctx or context())
    first = out["advantage"][:, 0].tolist()
    assert torch.equal(out["advantage"], torch.tensor(first)[:, None] * out["mask"])
    sizes = [len(group) for group in rewards]
    return [[first.pop(0) for _ in range(n)] for n in sizes]


RISING = [[0.1, 0.2, 0.3, 0.4]]


@pytest.mark.parametrize(
    ("mu", "expected"),
    [
        (1.0, [0.0, -1.0, 0.5, 0.5]),  # less the other half: means 1/2 (low) and 1 (high)
        (0.0, [0.5, -0.5, 0.0, 0.0]),  # less its own
        (0.75, [0.125, -0.875, 0.375, 0.375]),
        (0.5, [0.25, -0.75, 0.25, 0.25]),  # less 3/4
    ],
)
def test_by_hand(mu: float, expected: list[float]) -> None:
    found = credited(Halves(mu=mu), [[1.0, 0.0, 1.0, 1.0]], RISING)
    assert found == [pytest.approx(expected)]


def test_half_and_half_is_the_distance_to_the_mean_of_an_even_group() -> None:
    torch.manual_seed(0)
    for n in (2, 4, 8):
        rewards, metric = torch.rand(5, n), torch.rand(5, n)
        batch = groups(rewards.tolist(), lengths=2)
        for made in (Halves(), Halves(metric="order"), Halves(metric="length")):
            own = {k.key: metric.flatten()[:, None].expand(-1, 2).clone() for k in made.needs}
            plain = Advantage(scale="none")(batch, context())["advantage"]
            torch.testing.assert_close(made(batch.put(own), context())["advantage"], plain)


def test_what_counts_is_the_order_of_the_metric_not_its_scale() -> None:
    rewards = [[1.0, 0.0, 1.0, 0.0], [0.0, 0.0, 1.0, 1.0]]
    metric = torch.tensor([[0.3, 2.0, 0.1, 0.9], [1.0, 0.2, 0.4, 3.0]])
    for mu in (0.0, 0.3, 1.0):
        one, two = (credited(Halves(mu=mu), rewards, m.tolist()) for m in (metric, 10 + metric**3))
        assert one == [pytest.approx(group) for group in two]


def test_rows_of_a_group_may_stand_anywhere() -> None:
    """The same answers in another order have the same advantages, and no group hears of another."""
    rewards, metric = [[1.0, 0.0, 1.0, 1.0]], [[0.4, 0.2, 0.1, 0.3]]  # low: 0 and 1; high: 1 and 1
    assert credited(Halves(mu=1.0), rewards, metric) == [pytest.approx([0.5, -1.0, 0.0, 0.5])]
    two = credited(Halves(mu=1.0), [*rewards, [0.0] * 4], [*metric, [9.0] * 4])
    assert two == [pytest.approx([0.5, -1.0, 0.0, 0.5]), [0.0] * 4]


def test_equal_ones_in_the_order_of_sampling_and_an_odd_one_is_high() -> None:
    """Low: the first of three, 0; high: 1 and 0, of mean 1/2."""
    for made in (Halves(mu=1.0), Halves("order", mu=1.0), Halves("length", mu=1.0)):
        assert credited(made, [[0.0, 1.0, 0.0]], [[2, 2, 2]]) == [pytest.approx([-0.5, 1.0, 0.0])]


def test_lengths() -> None:
    """Low are the answers of 1 and 2 tokens, right both; high those of 3 and 5, one of which is."""
    found = credited(Halves("length", mu=1.0), [[0.0, 1.0, 1.0, 1.0]], [[5, 1, 3, 2]])
    assert found == [pytest.approx([-1.0, 0.5, 0.0, 0.5])]


def test_a_preference_by_equation_8() -> None:
    """Means 1/2 (low) and 1 (high), alpha = .8. For high: r - .4 there, .8 r - 1 here; for low: r - .8, .8 r - .5."""
    rewards = [[1.0, 0.0, 1.0, 1.0]]
    assert credited(Halves(mu=1.0, alpha=0.8), rewards, RISING) == [pytest.approx([-0.2, -1.0, 0.6, 0.6])]
    low = credited(Halves("length", mu=1.0, alpha=0.8, prefer="low"), rewards, [[1, 2, 3, 4]])
    assert low == [pytest.approx([0.2, -0.8, 0.3, 0.3])]
    # the other bracket knows no preference
    assert credited(Halves(mu=0.0, alpha=0.8), rewards, RISING) == [pytest.approx([0.5, -0.5, 0.0, 0.0])]


def test_mu_may_move() -> None:
    made = Halves(mu=Ramp(1.0, 0.0, over=10))
    assert credited(made, [[1.0, 0.0, 1.0, 1.0]], RISING, context(count=10)) == [pytest.approx([0.5, -0.5, 0.0, 0.0])]


def test_the_ungraded_count_nowhere() -> None:
    """Of four answers two have a grade: one of each half."""
    batch = groups([[1.0, NONE, 0.0, NONE]], lengths=1)
    ctx = context()
    out = Halves("order", mu=1.0)(batch, ctx)
    assert out["advantage"][:, 0].tolist() == [1.0, 0.0, -1.0, 0.0]
    assert out["weight/rl"][:, 0].tolist() == [1.0, 0.0, 1.0, 0.0] and ctx.ledger["ungraded"] == 2
    alone = Halves("order", mu=0.3)(groups([[1.0, NONE]], lengths=1), context())
    assert alone["advantage"][:, 0].tolist() == [0.0, 0.0]


def test_an_answer_of_several_rows_is_refused() -> None:
    with pytest.raises(ValueError, match="halves: an answer has several rows"):
        Halves("length")(transitions([[0.0, 1.0], [0.0, 0.0]]), context())


SAID, SCORE, ENTROPY = ["abcde"] * 4, [1.0, 0.0, 1.0, 1.0], [0.1, 0.2, 0.3, 0.4]


def test_mu_climbs_to_one_and_falls_to_two_fifths() -> None:
    stages = (built("rlvr/canon"), 30, 120), (demonstrated("rlvr/canon"), 20, 80)  # of 150 steps, and of 100
    for stage, warm, fall in stages:
        mu = stage.collect["split_groups"].mu
        assert [mu(0), mu(warm / 2 - 1)] == pytest.approx([1 / warm, 0.5])
        assert [mu(warm + x * fall) for x in (0, 0.5, 1)] == pytest.approx([1.0, 0.7, 0.4])


def test_the_gradient_by_hand() -> None:
    """mu = 1: means of halves 1/2 and 1, advantages 0, -1, 1/2, 1/2; over 4 answers and the constant of 5 tokens."""
    stage = demonstrated("rlvr/canon")
    stage.collect["split_groups"] = replace(stage.collect["split_groups"], mu=1.0)
    batch = answers(stage, SAID, SCORE)
    log_prob = padded(*([0.0] * 5 for _ in SAID)).requires_grad_()
    policy = table(log_prob=log_prob, entropy=padded(*([h] * 5 for h in ENTROPY)))
    (found,) = learnt(stage, batch, log_prob, policy=policy)
    same(found, [[-a / 4 / 5] * 5 for a in (0.0, -1.0, 0.5, 0.5)])


def test_at_one_half_it_is_dr_grpo() -> None:
    ours, base = built("rlvr/canon", usual=True), build_stage(load("baselines/dr_grpo").stages[-1])
    ours.collect["split_groups"] = replace(ours.collect["split_groups"], mu=0.5)
    assert list(ours.collect) == ["split_groups"] and isinstance(ours.collect["split_groups"], Halves)
    found = []
    for stage in (ours, base):
        log_prob = padded(*([0.0] * 5 for _ in SAID)).requires_grad_()
        policy = table(log_prob=log_prob, entropy=padded(*([h] * 5 for h in ENTROPY)))
        found += learnt(stage, answers(stage, SAID, SCORE), log_prob, policy=policy)
    same(found[0], found[1])
    same(found[1], [[-a / 4 / 8] * 5 for a in (0.25, -0.75, 0.25, 0.25)])
