"""GPM and GPO by enumeration: what a skew-symmetric score says and a reward cannot, and the minimum of GPO's loss."""

from __future__ import annotations

import asyncio
import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from shuhari import testing
from shuhari.batch import Batch
from shuhari.config.build import build_stage
from shuhari.config.recipe import load
from shuhari.data import ContractError, Problem, Request, Step, Trajectory
from shuhari.methods.preference.gpm.skew import SkewDuel, SkewPreference, compare, embed
from shuhari.models.text.made_tokenizers import character_tokenizer
from shuhari.needs import Need
from shuhari.objectives.log_ratio import LogRatio
from shuhari.objectives.preference import Preference
from shuhari.tasks.letters import Letters, find_kind
from shuhari.testing import check_objective, context

LIVE = Need(("judge",), "value", live=True)
CIRCLE = [(0, 1), (1, 2), (2, 0)]  # stone, scissors, paper: each is preferred to the next


def around(angles: list[float]) -> Tensor:
    """Unit vectors [n, 2] at these angles, in degrees."""
    turn = torch.tensor(angles, dtype=torch.float64).deg2rad()
    return torch.stack([turn.cos(), turn.sin()], -1)


def make_batch(value: Tensor, pairs: list[tuple[int, int]]) -> Batch:
    """Answers of two tokens, whose head values the last one alone: value [B] or [B, n]."""
    mask = torch.ones(len(value), 2, dtype=torch.bool)
    columns: dict[Any, Tensor] = {"mask": mask, LIVE.key: torch.stack([torch.zeros_like(value), value], 1)}
    return Batch(columns).link("pairs", torch.tensor(pairs))


def test_the_score_of_a_pair_is_minus_that_of_the_pair_reversed() -> None:
    g = torch.Generator().manual_seed(0)
    a, b = torch.randn(2, 5, 6, generator=g, dtype=torch.float64)
    R = torch.block_diag(*[torch.tensor([[0.0, -1.0], [1.0, 0.0]], dtype=torch.float64)] * 3)
    torch.testing.assert_close(compare(a, b), ((R @ a[..., None]).squeeze(-1) * b).sum(-1))  # <R a, b>
    assert torch.equal(compare(a, b), -compare(b, a)) and not compare(a, a).any()


def test_a_circle_of_three_by_hand() -> None:
    """Unit vectors at 0, 120 and 240 degrees: score sin 120 = 0.86603, probability 0.70392, and 0.99983 at tau 0.1."""
    value = around([0, 120, 240]) - embed(torch.zeros(2, dtype=torch.float64))
    for tau, p in ((1.0, 0.70392), (0.1, 0.99983)):
        loss, info = check_objective(SkewPreference(tau=tau), make_batch(value, CIRCLE), context())
        assert loss.exp().tolist() == pytest.approx([1 / p] * 3, abs=1e-5)
        assert info["accuracy"].tolist() == [1, 1, 1]
        assert info["margin"].tolist() == pytest.approx([0.86603 / tau] * 3, abs=1e-4)


def test_no_reward_has_more_than_two_of_three_and_its_best_loss_is_that_of_chance() -> None:
    right = [sum(r[a] > r[b] for a, b in CIRCLE) for r in itertools.product(range(3), repeat=3)]
    assert max(right) == 2
    value = torch.zeros(3, dtype=torch.float64, requires_grad=True)  # the loss is convex in the rewards
    loss, _ = SkewPreference()(make_batch(value, CIRCLE), context())
    (slope,) = torch.autograd.grad(loss.sum(), value)
    assert not slope.any() and loss.tolist() == pytest.approx([math.log(2)] * 3)


def test_one_output_is_a_bradley_terry_model() -> None:
    value = torch.randn(6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    batch = make_batch(value, [(0, 1), (2, 3), (5, 4)])
    loss, _ = SkewPreference(tau=0.5)(batch, context())
    term = Preference(role="judge", score="value", reference_free=True, beta=2.0)
    expected, _ = term(batch, context(count=1))
    torch.testing.assert_close(loss, expected)


def test_a_new_head_learns_and_its_pairs_of_numbers_differ() -> None:
    value = torch.zeros(3, 4, dtype=torch.float64, requires_grad=True)
    loss, _ = SkewPreference()(make_batch(value, [(0, 1), (0, 2)]), context())
    (slope,) = torch.autograd.grad(loss.sum(), value)
    assert bool(slope[:, 0::2].all()) and not torch.equal(slope[:, :2], slope[:, 2:])
    with pytest.raises(ValueError, match="3 outputs: expected 1, or an even number"):
        embed(torch.zeros(3))


def test_four_numbers_say_a_reward_and_a_circle_at_once() -> None:
    """All preferences of the task: sharpness times rewards in one pair of numbers, kinds in a circle in the other."""
    task = Letters(sharpness=12.0, cycle=3.0)
    problem = task.problems("test")[3]
    texts = ["".join(x) for x in itertools.product("abc", repeat=3)]
    reward = torch.tensor([task.rate(problem.id, 0, x) for x in texts], dtype=torch.float64)
    ring = around([-120.0 * find_kind(x) for x in texts]) * math.sqrt(3.0 / math.sin(2 * math.pi / 3))
    each = torch.cat([torch.stack([12 * reward, torch.ones_like(reward)], 1), ring], 1)
    found = torch.sigmoid(compare(each[:, None], each[None]))
    wanted = [[task.compare(problem, a, b) for b in texts] for a in texts]
    torch.testing.assert_close(found, torch.tensor(wanted, dtype=torch.float64))


# ---------------------------------------------------------------- the policy

LETTERS = character_tokenizer("abc")
PLACES = {"a": 0.0, "b": 120.0, "c": 240.0}


def grade(reward: SkewDuel, said: list[str], outputs: int = 2) -> list[Any]:
    """Grades of answers of one letter each, which lie on a circle; "" says nothing."""

    def value(ids: Any, action: Any) -> Any:
        out = np.zeros((len(action), outputs), np.float32)
        here = around([PLACES[LETTERS.decode(action)]])[0].numpy()
        out[-1, :2] = here - embed(torch.zeros(2)).numpy()
        return out

    group = []
    for text in said:
        action = LETTERS.encode_answer("a", text)
        step = Step.of(LETTERS.encode("a"), action, np.zeros(len(action), np.float32), info={"text": text})
        group.append(Trajectory(Request(Problem("t", text, "a")), (step,)))
    engine = testing.ScriptedEngine(scores={"value": value})
    found: Any = asyncio.run(reward.grade(group, context(models={"policy": LETTERS, "judge": LETTERS}, engine=engine)))
    return [None if x is None else x["win"] for x in found]


def test_an_answer_is_compared_with_the_others_of_its_group() -> None:
    """a beats b, b beats c, c beats a, by 0.86603; of a, a, b and c: 0, 0, (-2 + 1) / 3 and (2 - 1) / 3 of it."""
    s = math.sin(2 * math.pi / 3)
    assert grade(SkewDuel(), ["a", "a", "b", "c"]) == pytest.approx([0, 0, -s / 3, s / 3], abs=1e-6)
    assert grade(SkewDuel(tau=0.5), ["a", "b"]) == pytest.approx([2 * s, -2 * s], abs=1e-6)
    p = 1 / (1 + math.exp(-s))
    assert grade(SkewDuel(form="probability"), ["a", "b"]) == pytest.approx([p, 1 - p], abs=1e-6)
    assert grade(SkewDuel(), ["a"]) == [None]
    with pytest.raises(ContractError, match="has 3 outputs: expected 1, or an even number"):
        grade(SkewDuel(), ["a", "b"], outputs=3)


@pytest.mark.parametrize("beta", [1.0, 3.0])
def test_the_minimum_of_gpo(beta: float) -> None:
    """All answers, as often as the last policy gives them: at pi ~ last exp(s / beta) the regression of the log-ratio
    on s leaves beta log Z (pi - last), as it takes the logarithm of the normaliser Z as 0; centred, nothing is left."""
    g = torch.Generator().manual_seed(2)
    last = torch.randn(5, generator=g, dtype=torch.float64).softmax(0)
    each = torch.randn(5, 4, generator=g, dtype=torch.float64)
    s = compare(each[:, None], each[None]) @ last
    assert float(last @ s) == pytest.approx(0, abs=1e-12)  # nobody is preferred to themselves
    best = (last.log() + s / beta).softmax(0)
    log_z = float((last * (s / beta).exp()).sum().log())

    def find_slope(centred: bool) -> Tensor:
        theta = best.log().requires_grad_()
        new = theta.log_softmax(0)[:, None]
        term = LogRatio(over="behaviour", beta=beta)
        batch = Batch({
            "mask": torch.ones(5, 1, dtype=torch.bool), "logp": last.log()[:, None], "advantage": s[:, None],
            term.needs[0].key: new + (log_z if centred else 0.0),
        })  # fmt: skip
        loss, _ = term(batch, context(count=1))
        return torch.autograd.grad((last * loss).sum(), theta)[0]

    torch.testing.assert_close(find_slope(False), beta * log_z * (best - last))
    torch.testing.assert_close(find_slope(True), torch.zeros(5, dtype=torch.float64), atol=1e-12, rtol=0)


def test_the_recipe_has_a_judge_of_pairs_and_regresses_on_its_scores() -> None:
    _, judge, last = (build_stage(table, {}) for table in load("preference/gpm").stages)
    assert judge.learners["main"].parts["judge"].terms["pairs"].objective.tau == 1.0
    term = last.learners["main"].parts["policy"].terms["loss"].objective
    assert (term.over, term.centre, term.link) == ("behaviour", "none", "square")
    assert load("preference/gpm").stages[-1]["rollout"]["role"] == "previous"
