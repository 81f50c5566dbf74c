"""Answers that are regrown, and such as a guide begins: where they are cut, what is forced, learnt and counted."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from shuhari import testing
from shuhari.data import ContractError, Problem, Ramp, Request, Sampling, Step, Trajectory, is_tokens
from shuhari.engines.local import Local
from shuhari.kernel.pack import pack
from shuhari.models.text.causal import Causal
from shuhari.needs import Need, Trace, gather
from shuhari.rollouts.branch import Branch, Guided, choose_cut, find_answer
from shuhari.rollouts.single import Single
from shuhari.testing import ScriptedEngine

PROMPT = Problem("t", "p", "ab")


class Text:
    """The ids of a to j are 0 to 9, which are also how texts are shown."""

    end = 10

    def encode(self, text: str) -> Any:
        return np.array([ord(x) - 97 for x in text], np.int32)

    def decode(self, ids: Any) -> str:
        return "".join(chr(97 + i) for i in ids if i < 10)


def ids(*x: int) -> Any:
    return np.array(x, np.int32)


def context(engine: Any, **fields: Any) -> Any:
    task = SimpleNamespace(environment=lambda problem: None)
    return testing.context(models={"policy": Text(), "guide": Text()}, task=task, engine=engine, **fields)


def request(n: int, max_new: int = 6) -> Request:
    return Request(PROMPT, n, Sampling(max_new=max_new), key="p#0")


def said(t: Trajectory) -> tuple[list[int], list[bool]]:
    """All tokens behind the prompt, and which were decided."""
    batch = pack([t])
    return batch["action"][0].tolist(), batch["mask"][0].tolist()


def test_a_cut_is_before_a_decision_of_highest_entropy() -> None:
    """One-hot at position 7: with one of the highest that is it; of two it is one or the other; never the first."""
    entropy = np.zeros(10)
    entropy[7] = 1.0
    rng = torch.Generator().manual_seed(0)
    assert {choose_cut(entropy, 1, rng) for _ in range(9)} == {7}
    entropy[[0, 3]] = 9.0, 0.5
    assert {choose_cut(entropy, 2, rng) for _ in range(50)} == {3, 7}
    assert {choose_cut(entropy, 99, rng) for _ in range(300)} == set(range(1, 10))
    assert choose_cut(ids(5), 3, rng) == 0


def test_what_is_regrown_begins_with_the_answer_and_is_learnt_behind_the_cut_alone() -> None:
    """Two plain answers of six, one of which is regrown four times from before its third token."""
    given = [ids(2, 3, 4, 5, 10), ids(6, 10), *(ids(7, i, 10) for i in range(4))]
    engine = ScriptedEngine({"policy": given}, {"entropy": lambda context, action: np.array([9.0, 0, 1, 0, 0])})
    group = asyncio.run(Branch(regrow=4, top=1).group(request(6), context(engine)))
    assert len(group) == 6 and len({id(t.request) for t in group}) == 1
    assert [said(t)[0] for t in group] == [[2, 3, 4, 5, 10], [6, 10], *([2, 3, 7, i, 10] for i in range(4))]
    assert [said(t)[1] for t in group] == [[True] * 5, [True] * 2, *([[False] * 2 + [True] * 3] * 4)]
    assert [t.info["cut"] for t in group] == [0.0, 0.0, 2.0, 2.0, 2.0, 2.0]
    assert [a.tolist() for kind, _, a in engine.asked if kind == "sample"] == [[0, 1], [0, 1, 2, 3]]
    assert [kind for kind, *_ in engine.asked] == ["sample", "score", "sample"]


@pytest.mark.parametrize(("n", "regrow", "plain"), [(16, 3, 4), (8, 3, 2), (7, 3, 4), (3, 3, 3), (8, 0, 8)])
def test_how_many_are_plain(n: int, regrow: int, plain: int) -> None:
    engine = ScriptedEngine({"policy": [ids(1, 2, 10)] * n}, {"entropy": lambda context, action: np.ones(3)})
    group = asyncio.run(Branch(regrow=regrow).group(request(n), context(engine)))
    assert len(group) == n and [t.info["cut"] > 0 for t in group].count(False) == plain


def test_a_schedule_ends_it() -> None:
    made = Branch(regrow=Ramp(3.0, steps=((5.0, 0.0),)))
    for count, plain in ((4, 2), (5, 8)):
        engine = ScriptedEngine({"policy": [ids(1, 2, 10)] * 8}, {"entropy": lambda context, action: np.ones(3)})
        group = asyncio.run(made.group(request(8), context(engine, count=count)))
        assert [t.info["cut"] > 0 for t in group].count(False) == plain


def test_a_beginning_counts_in_the_length() -> None:
    asked: list[int] = []

    class Engine(ScriptedEngine):
        async def sample(self, role: str, context: Any, sampling: Sampling, n: int = 1, *, key: Any) -> list[Trace]:
            asked.append(sampling.max_new)
            return await ScriptedEngine.sample(self, role, context, sampling, n, key=key)

    engine = Engine({"policy": [ids(1, 2, 3, 4)] * 2}, {"entropy": lambda context, action: np.array([0.0, 0, 0, 1])})
    asyncio.run(Branch(regrow=1, top=1).group(request(2, 4), context(engine)))
    assert asked == [4, 1]


def test_without_any_it_is_what_single_draws() -> None:
    model = causal()
    wanted = asyncio.run(Single().group(request(5), real(model)))
    for made in (Branch(regrow=0), Guided(share=0.0)):
        found = asyncio.run(made.group(request(5), real(model)))
        assert [said(t) for t in found] == [said(t) for t in wanted]
        assert torch.equal(pack(found)["logp"], pack(wanted)["logp"])


def causal() -> Any:
    torch.manual_seed(0)
    model = Causal(architecture="gpt2", hidden=16, layers=1, heads=2, context=32)
    model.build(SimpleNamespace(alphabet="abcdefghij"))
    return model


def real(model: Any) -> Any:
    engine = Local()
    engine.sync({"policy": model, "guide": model}, 0)
    task = SimpleNamespace(environment=lambda problem: None)
    return testing.context(models={"policy": model, "guide": model}, task=task, engine=engine)


@pytest.mark.parametrize("made", [Branch(regrow=3, top=2), Guided(share=1.0)])
def test_the_samplers_log_probabilities_are_those_of_the_joined_text(made: Any) -> None:
    """Scored anew, what was decided behind a forced beginning has the log-probability that it was drawn with: that of
    the whole text less that of the beginning."""
    model = causal()
    ctx = real(model)
    group = asyncio.run(made.group(request(8), ctx))
    assert sum(t.info["cut"] > 0 for t in group) >= 4
    batch = pack(group)
    need = Need(("policy",), "log_prob")
    scored = gather(batch, [need], {"policy": model})[need]
    torch.testing.assert_close(scored, batch["logp"].where(batch["mask"], 0.0), atol=1e-4, rtol=0)
    whole = gather(batch.put({"mask": torch.ones_like(batch["mask"])}), [need], {"policy": model})[need]
    for row, t in enumerate(group):
        cut = int(t.info["cut"])
        assert not batch["mask"][row, :cut].any() and whole[row, :cut].sum() <= 0
        torch.testing.assert_close(scored[row, cut:], whole[row, cut:] * batch["mask"][row, cut:], atol=1e-4, rtol=0)


def test_a_guide_begins_and_the_policy_goes_on() -> None:
    """All of 40 samples, each cut before one of six places; a guide that ends early leaves its last token."""
    engine = ScriptedEngine({
        "guide": lambda context, i: Trace(ids(7, 8, 10), np.zeros(3, np.float32), 0, {"ended": True}),
        "policy": lambda context, i: ids(9, 10),
    })
    group = asyncio.run(Guided(share=1.0).group(request(40), context(engine)))
    assert len(group) == 40
    for t in group:
        cut = int(t.info["cut"])
        assert said(t) == ([*[7, 8][:cut], 9, 10], [False] * cut + [True] * 2)
    assert {int(t.info["cut"]) for t in group} == {0, 2}  # nothing is drawn of a guide at a cut of 0
    assert sum(role == "guide" for _, role, _ in engine.asked) == sum(t.info["cut"] > 0 for t in group)


def test_how_often_a_guide_begins() -> None:
    engine = ScriptedEngine({"guide": lambda c, i: ids(7, 8, 7, 8), "policy": lambda c, i: ids(9, 10)})
    led = [t.info["cut"] > 0 for t in asyncio.run(Guided(share=0.3).group(request(2000, 50), context(engine)))]
    assert abs(sum(led) / 2000 - 0.3 * 49 / 50) < 0.04  # four deviations


def test_what_is_no_text_is_refused() -> None:
    steps = Step.of(ids(1), ids(2)), Step.of(ids(1, 2, 3), ids(4), parent=0)
    with pytest.raises(ContractError, match="an answer of 2 steps"):
        find_answer(Trajectory(request(1), steps))
    with pytest.raises(ContractError, match="not of text"):
        find_answer(Trajectory(request(1), (Step.of(np.zeros(2), 3),)))
    assert is_tokens(find_answer(Trajectory(request(1), (Step.of(ids(1), ids(2)),)))[1])
