"""Prefixes: scripted policies that succeed from a known length on, a chain of known odds, and which tokens learn."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from built import SCALED, holds, one_loss
from pupils import SOLUTION, Pupil, collected, context, request
from shuhari.data import ContractError, Problem, Request, Sampling, Step
from shuhari.kernel.pack import pack
from shuhari.methods.data.prefix_rl.solution_prefix import Prefixed
from shuhari.models.text.causal import Causal
from shuhari.needs import Need, Trace, evaluate
from shuhari.rollouts.single import Single
from shuhari.transforms.advantage import Advantage


def shown(rollout: Prefixed, keys: int) -> list[float]:
    """The share of the solution that each of so many groups of two is shown."""
    ctx = context(Pupil(lambda hint, u: False))
    found = []
    for key in range(keys):
        asked = Request(Problem("t", "p", "ab", "y", SOLUTION), 2, Sampling(max_new=4), key=f"k{key}")
        one, two = collected(rollout, ctx, asked)
        assert one.info["hint"] == two.info["hint"] and one.request.key == asked.key and not one.request.prefix
        found.append(one.info["hint"])
    return found


def test_without_a_prefix_it_is_a_plain_group() -> None:
    lucky = Pupil(lambda hint, u: u < 0.3)
    alone = pack(collected(Single(), context(lucky), request(8)))
    for none in (Prefixed(share=0.0), Prefixed(share=1.0, low=0.0, high=0.0)):
        other = pack(collected(none, context(lucky), request(8)))
        assert other["hint"].tolist() == [0.0] * 8
        for name in alone.names():
            assert torch.equal(alone[name], other[name]), name


def test_a_share_of_the_groups_has_one_and_its_length_is_uniform() -> None:
    """Of 8 letters, shares of .4 to .8 are 3.2 to 6.4: 3, 4, 5 and 6 letters with odds of .3, 1, 1, .9 of 3.2."""
    found = shown(Prefixed(), 2000)
    assert np.mean([x > 0 for x in found]) == pytest.approx(0.5, abs=0.04)
    letters = np.array([8 * x for x in found if x])
    odds = [x / 3.2 for x in (0.3, 1, 1, 0.9)]
    assert [np.mean(letters == k) for k in (3, 4, 5, 6)] == pytest.approx(odds, abs=0.05)
    assert set(shown(Prefixed(share=1.0), 200)) == {3 / 8, 4 / 8, 5 / 8, 6 / 8}


def test_the_policy_goes_on_behind_the_prefix_and_alone_is_charged_and_learnt_from() -> None:
    ctx = context(model := Pupil(lambda hint, u: hint >= 4))
    group = collected(Prefixed(share=1.0, low=0.5, high=0.5), ctx)
    assert model.seen == ["abcd"] * 4 and ctx.ledger["tokens"] == 4 * 2
    batch = pack(group)
    assert batch["mask"].tolist() == [[False] * 4 + [True] * 2] * 4
    assert all(t.steps[0].info["text"] == "abcd" and t.steps[0].logp is None for t in group)


def test_it_goes_behind_what_the_request_begins_with() -> None:
    ctx = context(model := Pupil(lambda hint, u: False))
    begun = request(prefix=(Step.of("", model.encode("gh")),))
    (first, *_) = collected(Prefixed(share=1.0, low=0.5, high=0.5), ctx, begun)
    assert model.seen == ["ghabcd"] * 4 and first.request.prefix == begun.prefix


class Uniform:
    """Says `n` letters, each `a` or `b` with even odds; what is right is `a` alone, ten times."""

    def __init__(self) -> None:
        pupil = Pupil(lambda hint, u: False)
        self.encode, self.decode, self.end = pupil.encode, pupil.decode, pupil.end

    def sample(self, contexts: Any, sampling: Any, *, noise: Any) -> Any:
        coins, said = np.stack([noise.uniform(i).numpy() < 0.5 for i in range(10)], 1), []
        for c, coin in zip(contexts, coins, strict=True):
            text = "".join("a" if x else "b" for x in coin[: 12 - len(c)])
            action = np.array([*(self.encode(text) if text else ()), self.end], np.int32)
            said.append(Trace(action, np.full(len(action), -0.5, np.float32), 0, {"ended": True}))
        return said


@pytest.mark.parametrize(("letters", "odds"), [(8, 0.25), (7, 0.125), (10, 1.0), (0, 2.0**-10)])
def test_a_chain_of_ten_even_choices_is_passed_as_often_as_is_left_of_it(letters: int, odds: float) -> None:
    """2^-10 from the prompt, 2^-2 behind 8 of 10; behind all of it every reward is 1 and no advantage is left."""

    def grade(problem: Any, steps: Any) -> dict[str, float]:
        return {"score": float("".join(s.info["text"] for s in steps) == "a" * 10)}

    ctx = context(Uniform())
    ctx.task.grade = grade
    asked = Request(Problem("t", "p", "ab", "y", "a" * 10), 4096, Sampling(max_new=11), key="k")
    group = collected(Prefixed(share=1.0, low=letters / 10, high=letters / 10), ctx, asked)
    batch = pack(asyncio.run(ctx.grade(group)))
    right = batch.outcome("reward/score")
    assert float(right.mean()) == pytest.approx(odds, abs=3 * (odds * (1 - odds) / 4096) ** 0.5 + 1e-9)
    if letters == 10:
        assert (Advantage()(batch.put({"reward": batch["reward/score"]}), ctx)["advantage"] == 0).all()


def test_a_prefix_is_learnt_from_as_if_it_were_of_the_prompt() -> None:
    """The gradient of log pi over decisions is that of the same answers to a prompt that ends in the prefix."""
    model = Causal(hidden=16, layers=1, heads=2, intermediate=24, context=32)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model.build(SimpleNamespace(alphabet="abcdefghyn"))
    need = Need(("policy",), "log_prob", live=True)
    group = collected(Prefixed(share=1.0, low=0.5, high=0.5), context(model, grade=lambda text: {"score": 0.0}))
    prompted = [replace(t, steps=(replace(t.steps[1], parent=None),)) for t in group]

    def gradient(trajectories: Any) -> list[torch.Tensor]:
        batch = pack(trajectories)
        logp = evaluate(batch, [need], {"policy": model}, ["policy"])[need.key]
        assert not logp[~batch["mask"]].any()
        return list(torch.autograd.grad(logp.sum(), list(model.module.parameters()), allow_unused=True))

    pairs = list(zip(gradient(group), gradient(prompted), strict=True))
    assert any(a is not None and a.abs().max() > 0 for a, _ in pairs)
    for a, b in pairs:
        assert (a is None) == (b is None)
        if a is not None:
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def test_wrong_lengths_and_problems_without_a_solution_are_named() -> None:
    with pytest.raises(ValueError, match=r"low is 0\.6 and high 0\.5"):
        Prefixed(low=0.6, high=0.5)
    with pytest.raises(ContractError, match="problem 'p' of t has no solution in text"):
        collected(Prefixed(share=1.0), context(Pupil(lambda hint, u: False)), request(solution=None))


def test_numbers_of_the_paper() -> None:
    stage = holds(
        "data/prefix_rl",
        {
            "rollout": Prefixed(share=0.5, low=0.4, high=0.8),
            "n": 8,
            "collect": SCALED,
        },
    )
    one_loss(stage)
