"""Reward models of a role, and of steps: scores by a script and by hand; a directory and its role say the same."""

from __future__ import annotations

import asyncio
import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForTokenClassification, AutoTokenizer

from shuhari import testing
from shuhari.data import ContractError, Problem, Request, Step, Trajectory
from shuhari.engines.local import Local
from shuhari.models.text import classifier
from shuhari.models.text.causal import Causal
from shuhari.models.text.made_tokenizers import bpe_tokenizer, character_tokenizer
from shuhari.rewards.reward_model import RewardModel

LETTERS = character_tokenizer("abc\n")
SAID = ["a\nb", "bc\n\nc\na", "b"]


def answer(said: str, text: Any = LETTERS, prompt: str = "a") -> Trajectory:
    """An answer as a rollout makes it, with its end token."""
    action = text.encode_answer(prompt, said)
    step = Step.of(text.encode(prompt), action, np.zeros(len(action), np.float32), info={"text": said})
    return Trajectory(Request(Problem("t", said, prompt)), (step,))


def scripted(value: Any, **models: Any) -> Any:
    """A context in which the role `reward` values an action [K] as `value` says."""
    engine = testing.ScriptedEngine(scores={"value": lambda context, action: value(action)})
    return testing.context(models={"policy": LETTERS, "reward": LETTERS, **models}, engine=engine)


def grade(reward: RewardModel, group: list[Trajectory], ctx: Any) -> list[Any]:
    found: Any = asyncio.run(reward.grade(group, ctx))
    return [None if g is None else g[reward.name] for g in found]


def places(action: Any) -> Any:
    return 1 + np.arange(len(action), dtype=np.float32)


def test_the_score_of_an_answer_is_the_value_at_its_end() -> None:
    ctx = scripted(places)
    assert grade(RewardModel(role="reward"), [answer("ab"), answer("")], ctx) == [3.0, 1.0]
    assert RewardModel(role="reward").roles == ("reward",)
    assert ctx.engine.asked[0][:2] == ("score", "reward")
    (share,) = grade(RewardModel(role="reward", scale="probability"), [answer("a")], ctx)
    assert share == pytest.approx(1 / (1 + math.exp(-2)))


def test_calls_of_a_group_wait_together() -> None:
    waiting, most = 0, 0

    class Slow(testing.ScriptedEngine):
        async def score(self, role: str, context: Any, action: Any, names: Any) -> Any:
            nonlocal waiting, most
            waiting, most = waiting + 1, max(most, waiting + 1)
            await asyncio.sleep(0)
            waiting -= 1
            return {"value": places(action)}

    ctx = testing.context(models={"policy": LETTERS, "reward": LETTERS}, engine=Slow())
    grade(RewardModel(role="reward"), [answer("a")] * 5, ctx)
    assert most == 5


def log_odds(share: float) -> float:
    return math.log(share / (1 - share))


def marks(*shares: float) -> Any:
    """Values with these probabilities at the line breaks and the last letter of "a\\nb\\nc" and its like, else 0."""

    def value(action: Any) -> Any:
        out = np.full(len(action), -9.0, np.float32)
        ends = [i for i, letter in enumerate(LETTERS.decode(action)) if letter == "\n"]
        out[[*ends, len(action) - 2]] = [log_odds(x) for x in shares]
        return out

    return value


@pytest.mark.parametrize(
    ("form", "wanted"),
    [
        ("raw", [0, 0.9, 0, 0.2, 0.6, 0]),
        ("clip", [0, 0, 0, -0.3, 0, 0]),
        ("delta", [0, 0.7, 0, 0.2, 0, 0]),
        ("first_wrong", [0, 1, 0, 0, 0, 0]),
        ("min", 0.2),
        ("last", 0.6),
        ("product", 0.9 * 0.2 * 0.6),
    ],
)
def test_rewards_of_steps_by_hand(form: Any, wanted: Any) -> None:
    reward = RewardModel(role="reward", level="step", form=form)
    (found,) = grade(reward, [answer("a\nb\nc")], scripted(marks(0.9, 0.2, 0.6)))
    assert np.shape(found) == np.shape(wanted) and found == pytest.approx(wanted, abs=1e-6)


def test_places_are_those_of_the_policys_own_tokens() -> None:
    """The policy's tokens are pieces, the reward model's are letters."""
    pieces = ["a\nb", "\nc", ""]
    policy = SimpleNamespace(decode=lambda ids: "".join(pieces[i] for i in ids))
    step = Step.of(np.ones(1, np.int32), np.array([0, 1, 2], np.int32), info={"text": "a\nb\nc"})
    group = [Trajectory(Request(Problem("t", "0", "a")), (step,))]
    ctx = scripted(marks(0.9, 0.2, 0.6), policy=policy)
    (found,) = grade(RewardModel(role="reward", level="step"), group, ctx)
    assert found == pytest.approx([0.9, 0.2 + 0.6, 0], abs=1e-6)


def test_what_cannot_be_placed_is_ungraded_and_counted() -> None:
    ids = np.ones(1, np.int32)
    first = Step.of(ids, np.array([2], np.int32), info={"text": "a"})
    second = Step.of(np.ones(2, np.int32), np.array([3], np.int32), info={"text": "b"}, parent=0)
    turns = Trajectory(Request(Problem("t", "0", "a")), (first, second))
    ctx = scripted(places)
    assert grade(RewardModel(role="reward", level="step"), [turns], ctx) == [None]
    assert ctx.ledger["failed_graders"] == 1 and "an answer of 2 turns" in ctx.problems[0]
    (least,) = grade(RewardModel(role="reward", level="step", form="min"), [turns], ctx)
    assert least == pytest.approx(1 / (1 + math.exp(-2))), "its one step ends at the second letter"
    policy = SimpleNamespace(decode=lambda ids: "a\nb")
    assert grade(RewardModel(role="reward", level="step"), [answer("a")], scripted(places, policy=policy)) == [None]


def test_scores_that_are_none_are_no_grades() -> None:
    def fail(action: Any) -> Any:
        if len(action) > 2:
            raise ValueError("too long")
        return np.full(len(action), np.nan, np.float32)

    ctx = scripted(fail)
    closed = Trajectory(Request(Problem("t", "0", "a")), (Step.closing(np.ones(1, np.int32), None, 0.0),))
    assert grade(RewardModel(role="reward"), [answer("ab"), answer("a"), closed], ctx) == [None, None, None]
    assert ctx.ledger["failed_graders"] == 2 and "too long" in "".join(ctx.problems)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("scale", ["score", "probability"])
def test_a_score_that_is_no_number_is_no_grade_and_the_others_are(bad: float, scale: Any) -> None:
    ctx = scripted(lambda action: np.full(len(action), bad if len(action) > 2 else 1.0, np.float32))
    first, second = grade(RewardModel(role="reward", scale=scale), [answer("ab"), answer("a")], ctx)
    assert first is None and 0 < second <= 1
    assert ctx.ledger["failed_graders"] == 1 and len(ctx.problems) == 1


def test_a_role_of_other_values_ends_the_run() -> None:
    last = scripted(lambda action: np.eye(len(action), dtype=np.float32)[-1])
    with pytest.raises(ContractError, match="values the last token alone: expected after = true"):
        grade(RewardModel(role="reward", level="step"), [answer("a\nb")], last)
    several = scripted(lambda action: np.zeros((len(action), 2), np.float32))
    with pytest.raises(ContractError, match="has 2 values: expected one"):
        grade(RewardModel(role="reward"), [answer("a")], several)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "a path is missing: expected a directory.* or a role"),
        ({"path": "x", "role": "reward"}, "path is 'x' and role is 'reward': expected one of them"),
        ({"role": "reward", "form": "min"}, "form is 'min', which is of steps: expected level"),
        ({"role": "reward", "level": "step", "form": "product", "scale": "score"}, "expected scale = 'probability'"),
        ({"role": "reward", "separator": ""}, "separator is ''"),
        ({"role": "reward", "level": "steps"}, "did you mean 'step'"),
    ],
)
def test_settings_that_do_not_fit(settings: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RewardModel(**settings)


# ---------------------------------------------------------------- directories


SIZES = {"hidden": 16, "layers": 2, "heads": 2, "intermediate": 24}


def build(architecture: str, after: Any) -> Causal:
    """A model with random weights and a head with a bias."""
    task = SimpleNamespace(problems=lambda split: None)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Causal(architecture=architecture, value_head=True, after=after, alphabet="abc\n", **SIZES)
        model.build(task)
        for p in model.module.parameters():
            torch.nn.init.normal_(p, std=0.3)
    return model


@pytest.fixture(params=["llama", "gpt2"])
def saved(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Causal, Path]:
    model = build(request.param, True)
    model.save_scorer(tmp_path / "out")
    return model, tmp_path / "out"


def test_a_directory_of_steps_scores_as_its_role_and_as_transformers(saved: tuple[Causal, Path]) -> None:
    model, path = saved
    ctx = testing.context(models={"policy": model, "reward": model}, engine=Local())
    ctx.serve()
    group = [answer(said, model.text) for said in SAID]
    of_role = ctx.wait(RewardModel(role="reward", level="step", scale="score").grade(group, ctx))
    of_path = ctx.wait(RewardModel(str(path), level="step", scale="score").grade(group, ctx))
    hf, words = AutoModelForTokenClassification.from_pretrained(path), AutoTokenizer.from_pretrained(path)
    assert hf.config.id2label == {0: "bad", 1: "good"}
    for said, a, b in zip(SAID, of_role, of_path, strict=True):
        mine = a["reward_model"]
        np.testing.assert_allclose(b["reward_model"], mine, atol=1e-5)
        with torch.no_grad():
            logits = hf(**words(f"a{said}", return_tensors="pt")).logits[0, 1:]
        shares = logits.softmax(-1)[:, 1]
        ends = np.flatnonzero(mine)
        np.testing.assert_allclose(1 / (1 + np.exp(-mine[ends])), shares[ends], atol=1e-5)
    assert [np.flatnonzero(a["reward_model"]).tolist() for a in of_role] == [[1, 2], [2, 5, 6], [0]]


def test_a_directory_of_the_other_kind_is_named(saved: tuple[Causal, Path], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"ForTokenClassification, which scores tokens: .* level = 'step'"):
        RewardModel(str(saved[1]))
    build("llama", "last").save_scorer(tmp_path / "texts")
    with pytest.raises(ValueError, match=r"ForSequenceClassification, which scores whole texts: .* level = 'answer'"):
        RewardModel(str(tmp_path / "texts"), level="step")


def test_three_labels_are_refused_and_one_is_read(saved: tuple[Causal, Path]) -> None:
    path = saved[1]
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "id2label": {"0": "a", "1": "b", "2": "c"}}))
    with pytest.raises(ValueError, match="tells 3 labels apart: expected one output, or two"):
        RewardModel(str(path), level="step")
    (path / "config.json").write_text(json.dumps(config))
    found = classifier.load(str(path), "tokens")
    two = found.score_tokens([[1, 2, 3]])
    hf, found.hf = found.hf, lambda **given: SimpleNamespace(logits=hf(**given).logits[..., 1:])  # its first are 0
    found.hf.device = hf.device
    np.testing.assert_allclose(found.score_tokens([[1, 2, 3]]), two, atol=1e-6)


def test_a_model_of_others_reads_a_separator_behind_the_last_step(saved: tuple[Causal, Path]) -> None:
    """As TRL trains them: every step has one."""
    model, path = saved
    file = path / "config.json"
    config = json.loads(file.read_text())
    del config["score_offset"]
    file.write_text(json.dumps(config))
    ctx = testing.context(models={"policy": model})
    reward = RewardModel(str(path), level="step", form="last", scale="score")
    assert not reward.model.closed
    (found,) = grade(reward, [answer("a\nb", model.text)], ctx)
    ids = [*model.text.encode("a").tolist(), *model.text.encode_text("a\nb\n").tolist()]
    assert found == pytest.approx(reward.model.score_tokens([ids])[0][-1], abs=1e-5)


def test_a_text_that_is_too_long_is_ungraded(saved: tuple[Causal, Path]) -> None:
    model, path = saved
    reward = RewardModel(str(path), level="step", form="last")
    reward.model.limit = 6
    ctx = testing.context(models={"policy": model})
    short, long = grade(reward, [answer("ab", model.text), answer("abcabc", model.text)], ctx)
    assert 0 < short < 1 and long is None and "the model reads 6" in ctx.problems[0]


def test_a_role_reads_the_text_by_its_own_tokens() -> None:
    """A policy of whole words, a reward model of bytes and one of letters that knows some of them alone."""
    words = bpe_tokenizer(["cab abc"] * 50, 300)
    policy = SimpleNamespace(decode=words.decode, encode=words.encode, encode_answer=words.encode_answer)
    said = answer("abcabc", words)
    own = bpe_tokenizer(["ab"] * 50, 260)
    ctx = scripted(places, policy=policy, reward=own)
    assert grade(RewardModel(role="reward"), [said], ctx) == [float(len(own.encode_answer("a", "abcabc")))]
    assert len(own.encode_answer("a", "abcabc")) != len(words.encode_answer("a", "abcabc"))
    few = scripted(places, policy=policy, reward=character_tokenizer("ab"))
    assert grade(RewardModel(role="reward"), [said, answer("abab", words)], few) == [None, 5.0]
    assert few.ledger["failed_graders"] == 1 and "'c'" in few.problems[0]


def test_a_byte_tokenizer_is_read_at_its_own_tokens(tmp_path: Path) -> None:
    """Line breaks inside of tokens: each step is scored once."""
    text = bpe_tokenizer(["one.\ntwo.\n", "\n\n"] * 50, 280)
    ctx = scripted(places, policy=text, reward=text)
    said = "one.\ntwo.\n\nöne.\n"
    (found,) = grade(RewardModel(role="reward", level="step", scale="score"), [answer(said, text, "x")], ctx)
    assert np.count_nonzero(found) == 3
