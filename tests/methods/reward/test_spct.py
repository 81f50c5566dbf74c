"""SPCT by hand: sums of scores in shuffled orders, the filter of judgements, and what voting is worth."""

from __future__ import annotations

import asyncio
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

from shuhari.config.build import build_stage
from shuhari.config.recipe import load
from shuhari.data import ContractError, Problem, Request, Sampling
from shuhari.methods.reward.spct.vote_scores import VoteScores, add_up, put_back, reorder
from shuhari.rewards.pointwise import is_right, read_scores
from shuhari.tasks.source import answer_text
from shuhari.testing import ScriptedEngine, context, groups
from shuhari.transforms.label_outcomes import LabelOutcomes

TEXT = "0123456789?=,:[]abc"
PROBLEM = Problem("judging", "0", "a?ab,aa,bb=", "2", info={"candidates": ("ab", "aa", "bb")})


class Spells:
    """A text model that only spells."""

    end, limit = -1, 64

    def encode(self, prompt: Any) -> Any:
        return np.array([TEXT.index(x) for x in prompt], np.int32)

    def decode(self, ids: Any) -> str:
        return "".join(TEXT[i] for i in ids if i >= 0)


def vote(answers: Any, values: Any = None, n: int = 1, **settings: Any) -> list[str]:
    """The lists of sums; `answers`: texts in order, or a function of the prompt; `values`: of a text, by the role."""
    spell = Spells()

    def say(seen: Any, i: int) -> Any:
        return spell.encode(answers[i] if isinstance(answers, list) else answers(spell.decode(seen)))

    scores = {"value": lambda seen, said: values[spell.decode(said)]}
    engine = ScriptedEngine(answers={"policy": say}, scores=scores)
    models: Any = {"policy": spell, "meta": spell}
    ctx = context(models=models, engine=engine)
    rollout = VoteScores(meta="meta" if values else "", **settings)
    found = asyncio.run(rollout.group(Request(PROBLEM, n, Sampling(), key="0"), ctx))
    assert all(len(t.steps) == rollout.votes + 1 and not t.steps[-1].mask.any() for t in found)
    return [str(t.steps[-1].info["text"]) for t in found]


def test_sums_and_the_filter_by_hand() -> None:
    """[6,7], [9,5] and [8,4] add up to [23,16]; the first judgement alone, which has the largest value, to [6,7]."""
    said = ["[6,7,0]", "[9,5,0]", "[8,4,0]"]
    values = dict(zip(said, (2.2, -2.2, -1.4), strict=True))  # logits of .9, .1 and .2
    assert vote(said, votes=3, shuffle=False) == ["[23,16,0]"]
    assert vote(said, values, votes=3, shuffle=False, keep=1) == ["[6,7,0]"]
    assert vote(said, values, votes=3, shuffle=False, keep=2) == ["[14,11,0]"]
    assert not is_right(read_scores("[23,16,0]", 3), "2") and is_right(read_scores("[6,7,0]", 3), "2")


def test_judgements_without_scores_do_not_count() -> None:
    assert vote(["[6,7,0]", "a:b", "[1,2]"], votes=3, shuffle=False) == ["[6,7,0]"]
    assert vote(["", "a", "[1]"], votes=3, shuffle=False) == ["[]"]


def test_scores_of_shuffled_candidates_are_put_back() -> None:
    """A judge that counts letters, whatever the order, gives the sums of the problem's order; one that prefers the
    first place gives all candidates about as much."""

    def count(prompt: str) -> str:
        texts = prompt.removesuffix("=").partition("?")[2].split(",")
        return f"[{','.join(str(x.count('a') + 1) for x in texts)}]"

    assert vote(count, votes=5, n=3) == ["[10,15,5]"] * 3
    sums = read_scores(vote(lambda prompt: "[3,0,0]", votes=300)[0], 3)
    assert sums is not None and sum(sums) == 900 and min(sums) > 3 * (100 - 4 * 8.2)  # deviation sqrt(300 2/9)


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 0, 1], [1, 2, 0]])
def test_an_order_and_back(order: list[int]) -> None:
    shown = str(reorder(PROBLEM, order, ",").prompt)[2:-1].split(",")
    assert [shown.index(x) for x in PROBLEM.info["candidates"]] == [order.index(k) for k in range(3)]
    assert put_back([10 * k for k in order], order) == (0, 10, 20) and put_back(None, order) is None
    assert add_up([(1, 2), None, (3, 4)]) == [4, 6]


def test_candidates_that_do_not_stand_in_the_prompt_are_refused() -> None:
    with pytest.raises(ContractError, match="does not have its candidates"):
        reorder(PROBLEM, [1, 0, 2], ";")
    with pytest.raises(ValueError, match="expected at most votes"):
        VoteScores(votes=2, keep=3)


def test_three_votes_of_a_judge_that_is_right_with_seven_in_ten_are_right_with_784_in_a_thousand() -> None:
    """Of two candidates, scores 2 and 1 or 1 and 2: all eight outcomes, by their probability."""
    total = 0.0
    for found in product([True, False], repeat=3):
        sums = add_up([(2, 1) if right else (1, 2) for right in found])
        total += 0.7 ** sum(found) * 0.3 ** (3 - sum(found)) * is_right(sums, 1)
    assert total == pytest.approx(0.784)


def test_the_graded_text_ends_with_the_sums() -> None:
    spell = Spells()
    engine = ScriptedEngine(answers={"policy": lambda seen, i: spell.encode("[9,0,0]")})
    models: Any = {"policy": spell}
    ctx = context(models=models, engine=engine)
    (t,) = asyncio.run(VoteScores(votes=2, shuffle=False).group(Request(PROBLEM, 1, Sampling(), key="0"), ctx))
    for step in t.steps[:-1]:
        object.__setattr__(step, "info", {"text": spell.decode(step.action)})
    assert read_scores(answer_text(t.steps), 3) == (18, 0, 0)


def test_right_answers_are_labelled_at_their_end() -> None:
    batch = groups([[1.0, 0.0, None]], lengths=[[2, 3, 1]])
    label = LabelOutcomes()(batch, context())["label"]
    expected = [[torch.nan, 1.0, torch.nan], [torch.nan, torch.nan, 0.0], [torch.nan] * 3]
    torch.testing.assert_close(label, torch.tensor(expected), equal_nan=True)


def test_the_recipe_rejects_first_and_then_learns_by_rl_near_that() -> None:
    stages: list[Any] = [build_stage(table, {}) for table in load("reward/spct").stages]
    rft, rl = stages[-2:]
    assert list(rft.collect) == ["drop_uniform_groups", "keep_best"]
    terms = rl.learners["main"].parts["policy"].terms
    assert terms["divergence"].weight == 0.08 and rl.models["reference"].init == "policy" and rl.n == 4
