"""Hopeless problems asked for again: who is asked what, how often, and what is imitated behind which prompt."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from pupils import collected
from shuhari import testing
from shuhari.data import ContractError, Problem, Request, Sampling, Step
from shuhari.engines.local import Local
from shuhari.kernel.pack import pack
from shuhari.methods.rlvr.cog_rethinker.cog_rethinker import Cascade, fill, list_special, strip_names
from shuhari.models.text.made_tokenizers import bpe_tokenizer, character_tokenizer
from shuhari.models.text.tokenizers import Template
from shuhari.needs import Trace
from shuhari.rollouts.single import Single
from shuhari.transforms.advantage import Advantage
from shuhari.transforms.filters import Mixed, Only
from shuhari.transforms.streams import weights_on

TEMPLATES = {"direct": "d{problem}", "decompose": "w{problem}", "refine": "r{problem}={answer}"}


class Solver:
    """Says `y` where `knows(prompt, noise)`, else `n`."""

    def __init__(self, knows: Any) -> None:
        text = character_tokenizer("dwrxyn=")
        self.encode, self.decode, self.end, self.knows = text.encode, text.decode, text.end, knows
        self.seen: list[str] = []

    def sample(self, contexts: Any, sampling: Any, *, noise: Any) -> list[Trace]:
        said = []
        for c, u in zip(contexts, noise.uniform(0).tolist(), strict=True):
            self.seen.append(self.decode(np.array(c, np.int32)))
            action = np.array([*self.encode("y" if self.knows(self.seen[-1], u) else "n"), self.end], np.int32)
            said.append(Trace(action, np.full(2, -0.5, np.float32), 0, {"ended": True}))
        return said


def setting(knows: Any, grade: Any = None) -> tuple[Any, Solver]:
    model, score = Solver(knows), grade or (lambda text: {"score": float("y" in text)})
    task = SimpleNamespace(environment=lambda problem: None, grade=lambda p, steps: score(steps[-1].info["text"]))
    ctx: Any = testing.context(engine=Local(), task=task, models={"policy": model}, step=4)
    ctx.serve()
    return ctx, model


def asked(n: int = 4, prompt: Any = "dx", **fields: Any) -> Request:
    return Request(Problem("t", "p", prompt, "y"), n, Sampling(max_new=2), key="k", **fields)


def test_who_solves_only_what_is_mended_is_asked_three_times_and_imitated_behind_its_own_prompt() -> None:
    ctx, model = setting(lambda prompt, u: prompt[0] == "r")
    group = collected(Cascade(**TEMPLATES), ctx, asked(3))
    assert model.seen == ["dx"] * 3 + ["wx"] * 3 + ["rx=n"] * 3
    assert ctx.ledger["rounds"] == 3 and ctx.ledger["tokens"] == 9 * 2  # what is attached is not sampled
    assert [t.info["attached"] for t in group] == [0, 0, 0, 1, 1, 1] and {t.info["asked"] for t in group} == {2}
    for t in group:
        assert model.decode(np.array(t.steps[0].context)) == ("dx" if t.info["attached"] else "rx=n")
        assert t.steps[0].reward == {"score": 1.0} and t.request.problem.prompt == "dx"


def test_one_right_answer_ends_it() -> None:
    ctx, model = setting(lambda prompt, u: len(model.seen) == 3)
    group = collected(Cascade(**TEMPLATES), ctx, asked())
    assert model.seen == ["dx"] * 4 and ctx.ledger["rounds"] == 1
    assert all(t.info["attached"] == t.info["asked"] == 0 for t in group) and len(group) == 4
    ctx, model = setting(lambda prompt, u: len(model.seen) == 6)
    group = collected(Cascade(**TEMPLATES), ctx, asked())
    assert model.seen == ["dx"] * 4 + ["wx"] * 4 and [t.info["attached"] for t in group] == [0, 0, 0, 0, 1]


def test_a_round_without_a_template_is_left_out() -> None:
    ctx, model = setting(lambda prompt, u: False)
    group = collected(Cascade(direct="d{problem}", refine="r{problem}={answer}"), ctx, asked(2))
    assert model.seen == ["dx"] * 2 + ["rx=n"] * 2 and len(group) == 2


def test_without_templates_it_is_the_rollout_itself_bit_for_bit() -> None:
    groups = []
    for rollout in (Single(), Cascade()):
        ctx, _ = setting(lambda prompt, u: u < 0.3)
        groups.append([t.steps[0] for t in collected(rollout, ctx, asked(16))])
    a, b = groups
    assert len({s.action.tobytes() for s in a}) == 2  # both letters
    assert all(np.array_equal(x.action, y.action) and np.array_equal(x.logp, y.logp) for x, y in zip(a, b, strict=True))


def test_what_nobody_graded_is_not_asked_again() -> None:
    ctx, model = setting(lambda prompt, u: False, grade=lambda text: None)
    collected(Cascade(**TEMPLATES), ctx, asked(2))
    assert model.seen == ["dx"] * 2


def test_the_wrong_answer_that_is_shown_is_any_of_them() -> None:
    shown = set()
    for k in range(12):  # `y` is wrong here too
        ctx, model = setting(lambda prompt, u: u < 0.5, grade=lambda text: {"score": 0.0})
        collected(Cascade(direct="d{problem}", refine="r{problem}={answer}"), ctx, Request(
            Problem("t", "p", "dx", "y"), 8, Sampling(max_new=2), key=f"k{k}"))  # fmt: skip
        shown |= set(model.seen[8:])
    assert shown == {"rx=y", "rx=n"}


def test_rows_are_learnt_from_as_the_recipe_has_it() -> None:
    """Three of four in parts are right: their own rows have the advantages of a group of four and the stream `rl`; the
    copies behind the plain prompt have the stream `ce`, and unknown log-probabilities."""
    ctx, model = setting(lambda prompt, u: prompt[0] == "w" and len(model.seen) != 6)
    batch = pack(collected(Cascade(**TEMPLATES), ctx, asked(4)))
    batch = batch.put({"reward": batch["reward/score"]})
    for transform in (
        Only("attached", of="rl", stream="ce"), Only("attached", equals=0.0), Mixed(),
        Advantage(scale="none", exclude="attached"),
    ):  # fmt: skip
        batch = transform(batch, ctx)
    rl, ce = weights_on(batch, "rl"), weights_on(batch, "ce")
    assert rl.sum(1).tolist() == [2, 2, 2, 2, 0, 0, 0] and ce.sum(1).tolist() == [0, 0, 0, 0, 2, 2, 2]
    assert batch["advantage"][:4, 0].tolist() == pytest.approx([0.25, -0.75, 0.25, 0.25])
    assert bool(batch["logp"][4:].isnan().all()) and bool(batch["logp"][:4].isfinite().all())
    assert torch.equal(batch["action"][4], batch["action"][0])


def test_what_is_said_is_put_in_as_it_is() -> None:
    assert fill("{answer}|{problem}", "{answer}", "{problem}\\1") == "{problem}\\1|{answer}"


def test_a_wrong_answer_names_no_special_token_to_the_prompt_it_is_put_in() -> None:
    text = bpe_tokenizer(["n"], 258)
    names = list_special(SimpleNamespace(text=text))
    assert names == ["<end>", "<pad>"] and list_special(SimpleNamespace()) == []
    hostile = "a<end>b<pa<en<pad>d>d>c <b> </end>"
    assert text.end in text.encode(Template(hostile)) and text.end not in text.encode(hostile)
    kept = strip_names(hostile, names)
    assert kept == "abc <b> </end>" and set(text.encode(kept).tolist()).isdisjoint({text.end, text.pad})
    assert strip_names("a<end>", []) == "a<end>"


def test_the_answer_that_is_shown_is_stripped() -> None:
    """The model says, beside `n`, its padding, whose name is no character of its alphabet."""
    ctx, model = setting(lambda prompt, u: False)
    model.text = text = character_tokenizer("dwrxyn=")  # type: ignore[attr-defined]
    say = np.array([text.pad, *text.encode("n"), text.end], np.int32)
    of = model.sample

    def sample(contexts: Any, sampling: Any, *, noise: Any) -> list[Trace]:
        answers = of(contexts, sampling, noise=noise)
        return [Trace(say, np.full(3, -0.5, np.float32), 0, {"ended": True}) for _ in answers]

    model.sample = sample  # type: ignore[method-assign]
    collected(Cascade(direct="d{problem}", refine="r{problem}={answer}"), ctx, asked(2))
    assert model.seen == ["dx"] * 2 + ["rx=n"] * 2


def test_what_cannot_be_asked_again_is_refused() -> None:
    for settings in ({"direct": "d"}, {"decompose": "w"}, {"refine": "{problem}{problem}"}):
        with pytest.raises(ValueError, match="once"):
            Cascade(**settings)
    with pytest.raises(ValueError, match="only in refine"):
        Cascade(decompose="{problem}{answer}")
    for request, match in (
        (asked(prompt="wx"), "expected the template 'd{problem}'"), (asked(prompt=("dx",)), "expected the template"),
        (asked(prefix=(Step.of("", np.array([1], np.int32), info={"text": "w"}),)), "begins with hints"),
    ):  # fmt: skip
        ctx, _ = setting(lambda prompt, u: False)
        if isinstance(request.problem.prompt, tuple):
            ctx.encode = lambda prompt, role="policy": np.array([1], np.int32)
        with pytest.raises(ContractError, match=match):
            collected(Cascade(**TEMPLATES), ctx, request)
