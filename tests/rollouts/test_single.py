"""Single: from a request to trajectories, with a text policy that echoes its noise and with a bandit."""

import asyncio
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from shuhari import testing
from shuhari.data import ContractError, Problem, Request, Sampling, Status, Step
from shuhari.engines.local import Local
from shuhari.kernel.pack import pack
from shuhari.kernel.registry import find
from shuhari.models.text.causal import Causal
from shuhari.models.text.made_tokenizers import character_tokenizer
from shuhari.models.text.rows import NoRoom
from shuhari.needs import Trace, Traces
from shuhari.rollouts.single import Single


class Speaker:
    """Says its context's last token once, or twice where the noise is high (and then never ends)."""

    def __init__(self) -> None:
        self.text = character_tokenizer("abcdef")
        self.encode, self.decode, self.end = self.text.encode, self.text.decode, self.text.end

    def sample(self, contexts, sampling, *, noise):
        long = (noise.uniform(0) > 0.5).tolist()
        out = []
        for c, twice in zip(contexts, long, strict=True):
            action = np.array([c[-1], c[-1] if twice else self.end], np.int32)
            out.append(Trace(action, np.full(2, -0.5, np.float32), 0, {"ended": not twice}))
        return out


class Arms:
    def sample(self, contexts, sampling, *, noise):
        return Traces(contexts + 10, torch.full((len(contexts), 1), -1.5))


def context(model: object, seed: int = 0, version: int = 4) -> Any:
    engine = Local()
    engine.seed = seed
    engine.sync({"policy": model, "solver": model}, version)
    task = SimpleNamespace(environment=lambda problem: None)
    return testing.context(models={"policy": model, "solver": model}, task=task, engine=engine)


def collected(request: Request, model: object, rollout: Single | None = None, **fields):
    return asyncio.run((rollout or Single()).group(request, context(model, **fields)))


def test_one_step_a_sample() -> None:
    sampling = Sampling(temperature=0.5, max_new=2)
    request = Request(Problem("t", "p", "abc"), 8, sampling, key="p#0")
    group = collected(request, Speaker())
    assert len(group) == 8 and {t.status for t in group} == {Status.FINISHED, Status.TRUNCATED}
    for t in group:
        (step,) = t.steps
        assert step.context.tolist() == [2, 3, 4] and step.role == "policy" and step.parent is None
        assert step.mask.tolist() == [True, True] and step.version.tolist() == [4, 4]
        assert step.logp.tolist() == [-0.5, -0.5] and t.request is request
        ended = t.status == Status.FINISHED
        assert step.info == {"ended": ended, "text": "c" if ended else "cc"}
    batch = pack(group)
    assert batch["group"].unique().numel() == 1 and (batch["temperature"] == 0.5).all()


def test_samples_depend_on_the_key_and_the_seed() -> None:
    def texts(key: str, **fields: int) -> list[str]:
        request = Request(Problem("t", "p", "a"), 30, Sampling(), key=key)
        return [t.steps[0].info["text"] for t in collected(request, Speaker(), **fields)]

    assert texts("p#0") == texts("p#0")
    assert texts("p#0") != texts("p#1")
    assert texts("p#0") != texts("p#0", seed=1)
    request = Request(Problem("t", "p", "a"), 30, Sampling(), key="p#0")
    other = collected(request, Speaker(), Single(role="solver"))
    assert [t.steps[0].info["text"] for t in other] != texts("p#0") and other[0].steps[0].role == "solver"


def test_a_prefix_is_kept_and_decided_by_nobody() -> None:
    model = Speaker()
    prompt = model.encode("ab")
    hints = (
        Step.of(prompt, model.encode("de"), np.zeros(2, np.float32)),
        Step.of("", "f"),  # its context is what came before
    )
    request = Request(Problem("t", "p", "ab"), 2, Sampling(), prefix=hints, key="k")
    for t in (group := collected(request, model)):
        first, second, last = t.steps
        assert [s.parent for s in t.steps] == [None, 0, 1]
        assert not first.mask.any() and not second.mask.any() and last.mask.all()
        assert first.logp is None and (first.version == -1).all()
        assert model.decode(second.context) == "abde" and model.decode(last.context) == "abdef"
        assert last.info["text"][0] == "f"
    batch = pack(group)  # one row a sample: the hint is text in between
    assert len(batch) == 2 and batch["mask"].tolist() == [[False] * 3 + [True] * 2] * 2
    assert [model.decode(s.context) for s in batch.steps] == ["ab"] * 2


def test_a_prompt_that_fills_the_model_costs_its_own_group_only() -> None:
    model = Causal(hidden=16, layers=1, heads=2, intermediate=24, context=8)
    with torch.random.fork_rng():
        model.build(SimpleNamespace(alphabet="abc"))
    ctx, rollout = context(model), Single()
    prompts = ("ab", "abcabcab", "abcabca")
    asked = [Request(Problem("t", p, p), 3, Sampling(max_new=5), key=p) for p in prompts]

    async def run() -> list[object]:
        return await asyncio.gather(*(rollout.group(r, ctx) for r in asked), return_exceptions=True)

    short, full, last = asyncio.run(run())
    assert isinstance(full, NoRoom) and "8 tokens: expected 1 to 7" in str(full)
    assert isinstance(short, list) and isinstance(last, list) and len(short) == 3
    assert max(len(t.steps[0].action) for t in short) > 1 and {len(t.steps[0].action) for t in last} == {1}
    assert all((t.status is Status.FINISHED) == (t.steps[0].action[-1] == model.end) for t in (*short, *last))


def test_a_bandit_is_one_dense_decision() -> None:
    request = Request(Problem("bandit", "0", 3), 4, Sampling(), key="k")
    group = collected(request, Arms())
    batch = pack(group)
    assert batch["context"].tolist() == [3] * 4 and batch["action"].tolist() == [13] * 4
    assert batch["logp"].tolist() == [[-1.5]] * 4 and batch["mask"].all()
    assert {t.status for t in group} == {Status.FINISHED}
    with pytest.raises(TypeError, match="a prefix goes before text"):
        collected(Request(Problem("bandit", "0", 3), 1, prefix=(Step.of(3, 1),)), Arms())


def test_registered() -> None:
    assert find("rollout", "single") is Single


def test_a_game_is_not_asked_once():
    ctx = testing.context(task=SimpleNamespace(environment=lambda problem: object()))
    with pytest.raises(ContractError, match="problem 'p' of t is played: set rollout"):
        asyncio.run(Single().group(Request(Problem("t", "p", "x"), 1), ctx))
