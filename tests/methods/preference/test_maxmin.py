"""MaxMin-RLHF: users by the likelihood of their pairs, the worst group by hand, and what one reward for all misses."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from shuhari.batch import Batch
from shuhari.config.build import build_stage
from shuhari.config.recipe import load
from shuhari.methods.preference.maxmin.user_groups import UserGroups, WorstGroup, find_likelihoods
from shuhari.needs import Need
from shuhari.testing import check_transform, context, groups

NEEDS = tuple(Need((role,), "value") for role in ("first", "second"))


def make_pairs(first: Tensor, second: Tensor, index: Tensor, user: Tensor) -> Batch:
    """Answers with a value [B] by each model, and the pairs that users have compared."""
    columns: dict[Any, Tensor] = {"mask": torch.ones(len(first), 1, dtype=torch.bool)}
    columns |= {need.key: x[:, None] for need, x in zip(NEEDS, (first, second), strict=True)}
    return Batch(columns).link("pairs", index, {"user": user.double()})


def read_users(batch: Batch, role: str) -> set[int]:
    return set(batch.links[role][1]["user"].int().tolist())


def make_crowd(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """n users with ten pairs each of six answers: even ones like what odd ones dislike. Returns pairs and users."""
    g = torch.Generator().manual_seed(seed)
    taste = 3 * torch.randn(6, generator=g, dtype=torch.float64)
    user = torch.arange(n).repeat_interleave(10)
    index = torch.stack([torch.randperm(6, generator=g)[:2] for _ in user])
    mine = torch.where(user % 2 == 0, 1.0, -1.0) * (taste[index[:, 0]] - taste[index[:, 1]])
    wins = torch.rand(len(user), generator=g) < mine.sigmoid()
    return torch.where(wins[:, None], index, index.flip(1)), user


@pytest.mark.parametrize("seed", range(3))
def test_users_go_where_the_sum_over_their_pairs_is_largest(seed: int) -> None:
    """Against all assignments of four users to two models: the largest total log-likelihood is the one chosen."""
    index, user = make_crowd(4, seed)
    first, second = torch.randn(2, 6, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    batch = check_transform(UserGroups(first=0), make_pairs(first, second, index, user), context(count=1))
    each = torch.stack([F.logsigmoid(r[index[:, 0]] - r[index[:, 1]]) for r in (first, second)])

    def total(groups: tuple[int, ...]) -> float:
        return float(sum(each[groups[int(u)], i] for i, u in enumerate(user.tolist())))

    best = max(itertools.product(range(2), repeat=4), key=total)
    assert read_users(batch, "first") == {u for u in range(4) if best[u] == 0}
    assert read_users(batch, "second") == {u for u in range(4) if best[u] == 1}
    assert len(batch.links["first"][0]) + len(batch.links["second"][0]) == len(index)  # each pair once


def test_the_likelihood_of_the_pairs_never_falls_and_opposed_groups_are_found() -> None:
    """EM with a table of rewards for each group: the M-step climbs to the optimum of its pairs. Users come in turn, 0,
    2, 4, ... to the first group and the others to the second; they are numbered such that each has both tastes."""
    index, user = make_crowd(12, seed=5)
    order = torch.tensor([0, 1, 3, 2, 4, 5, 7, 6, 8, 9, 11, 10])  # two of each four stand in the other's group
    step, r = UserGroups(first=1, memory=0.0), torch.zeros(2, 6, dtype=torch.float64)
    reached = []
    for _ in range(8):
        batch = step(make_pairs(r[0], r[1], index, order[user]), context(count=1))
        parts = [batch.links[role][0] for role in ("first", "second")]
        for u, pairs in enumerate(parts):
            r[u] = fit(pairs)
        reached.append(sum(float(likelihood(r[u], pairs)) for u, pairs in enumerate(parts)))
    assert all(b >= a - 1e-6 for a, b in itertools.pairwise(reached))
    kinds = [{int((order == i).nonzero()) % 2 for i in read_users(batch, role)} for role in ("first", "second")]
    assert sorted(map(sorted, kinds)) == [[0], [1]]  # one taste each, whichever comes first
    assert reached[-1] > float(likelihood(fit(index), index))  # one model of all pairs explains less


def likelihood(r: Tensor, pairs: Tensor) -> Tensor:
    return F.logsigmoid(r[pairs[:, 0]] - r[pairs[:, 1]]).sum() - 0.01 * (r - r.mean()).square().sum()


def fit(pairs: Tensor) -> Tensor:
    """The rewards of six answers by penalised Bradley-Terry, by Newton's method."""
    r = torch.zeros(6, dtype=torch.float64)
    for _ in range(50):
        hessian = torch.autograd.functional.hessian(lambda x: likelihood(x, pairs) - 1e-6 * x.square().sum(), r)
        x = r.clone().requires_grad_()
        (slope,) = torch.autograd.grad(likelihood(x, pairs) - 1e-6 * x.square().sum(), x)
        r = r - torch.linalg.solve(hessian, slope)
    return r


def test_users_stay_at_first_and_older_batches_count_less() -> None:
    """Two users, of whom the second agrees with the first model by 2 logits: in turn at first, then moved."""
    first, second = torch.tensor([2.0, 0.0]), torch.tensor([0.0, 0.0])
    batch = make_pairs(first, second, torch.tensor([[0, 1], [0, 1]]), torch.tensor([7, 3]))
    step = UserGroups(first=1, memory=0.5)
    found = step(batch, context(count=1))
    assert (read_users(found, "first"), read_users(found, "second")) == ({3}, {7})
    again = UserGroups(first=1, memory=0.5)
    again.state = dict(step.state)
    for mine in (step, again):
        found = mine(batch, context(count=1))
        assert (read_users(found, "first"), read_users(found, "second")) == ({3, 7}, set())
    gap = float(find_likelihoods(batch, NEEDS, torch.tensor([[0, 1]])) @ torch.tensor([1.0, -1.0]))
    a, b = step.state["likelihood"]["7"]
    assert a - b == pytest.approx(1.5 * gap, rel=1e-6)


@pytest.mark.parametrize(("columns", "error", "message"), [
    ({}, KeyError, "no column 'user'"),
    ({"user": torch.tensor([float("nan")])}, ValueError, "1 pairs have no 'user'"),
])  # fmt: skip
def test_pairs_of_unknown_users_are_refused(columns: Any, error: Any, message: str) -> None:
    batch = make_pairs(torch.zeros(2), torch.zeros(2), torch.tensor([[0, 1]]), torch.zeros(1))
    with pytest.raises(error, match=message):
        UserGroups()(batch.link("pairs", torch.tensor([[0, 1]]), columns), context(count=1))


# ---------------------------------------------------------------- the policy


def make_group(first: list[float], second: list[float]) -> Batch:
    batch = groups([first], lengths=1)
    rewards = {f"reward/{n}": torch.tensor(x)[:, None] for n, x in (("first", first), ("second", second))}
    return batch.put(rewards)


def test_the_group_that_has_risen_least_is_trained_on() -> None:
    """At first rewards of 0, 2 and 0, 4: means 1 and 2, deviations 1 and 2. Then 1, 3 and 0, 6: risen by 1 and 1/2."""
    step = WorstGroup()
    start = check_transform(WorstGroup(), make_group([0.0, 2.0], [0.0, 4.0]), context())
    assert step(make_group([0.0, 2.0], [0.0, 4.0]), context())["reward"][:, 0].tolist() == [0.0, 2.0]
    assert start["reward"][:, 0].tolist() == [0.0, 2.0]  # of equal ones the first
    assert step(make_group([1.0, 3.0], [0.0, 6.0]), context())["reward"][:, 0].tolist() == [0.0, 3.0]
    nan = float("nan")
    found = step(make_group([1.0, nan], [6.0, 6.0]), context())["reward"][:, 0]
    assert found[0] == 1.0 and bool(found[1].isnan())
    with pytest.raises(ValueError, match="no sample has a reward 'second'"):
        step(make_group([1.0, 1.0], [nan, nan]), context())


def test_the_worst_group_of_a_mixture_is_best_off_half_and_half() -> None:
    """Rewards (1, 0, .4) and (0, 1, .4): no policy leaves both groups more than 1/2, which (1/2, 1/2, 0) does; an 80/20
    mixture of the rewards picks the first answer, with 0 for the minority; the least of each answer picks the third."""
    r = torch.tensor([[1.0, 0.0, 0.4], [0.0, 1.0, 0.4]])
    grid = [(i / 20, j / 20, (20 - i - j) / 20) for i in range(21) for j in range(21 - i)]
    worst = {p: float((r @ torch.tensor(p)).min()) for p in grid}
    assert max(worst, key=worst.__getitem__) == (0.5, 0.5, 0.0) and max(worst.values()) == pytest.approx(0.5)
    mixed = torch.tensor([0.8, 0.2]) @ r
    assert int(mixed.argmax()) == 0 and float(r[:, 0].min()) == 0
    assert int(r.min(0).values.argmax()) == 2


def test_the_minority_s_taste_is_not_in_one_reward_for_all() -> None:
    """Four of five prefer the first answer with 0.9, the others the second: the one Bradley-Terry model of all pairs
    has the first above the second, by the logit of the mean probability, as Chakraborty et al. (2024) warn."""
    p = 0.8 * 0.9 + 0.2 * 0.1
    gap = torch.zeros((), dtype=torch.float64, requires_grad=True)
    for _ in range(200):
        loss = -(p * F.logsigmoid(gap) + (1 - p) * F.logsigmoid(-gap))
        (slope,) = torch.autograd.grad(loss, gap)
        gap = (gap - 4 * slope).detach().requires_grad_()
    assert gap.item() == pytest.approx(torch.logit(torch.tensor(p)).item(), abs=1e-6) and gap.item() > 0


def test_the_recipe_trains_both_models_on_their_own_pairs() -> None:
    _, stage, last = (build_stage(table, {}) for table in load("preference/maxmin").stages)
    terms = stage.learners["main"].parts["models"].terms
    assert {name: (x.objective.role, x.objective.links) for name, x in terms.items()} == {
        "first": ("first", "first"), "second": ("second", "second"),
    }  # fmt: skip
    assert list(last.collect)[:2] == ["worst_group", "advantage"]
