"""The local engine: what shares a forward, whose noise is whose, and what happens when a model raises."""

import asyncio
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from shuhari.data import Problem, Request, Sampling, Step, Trajectory
from shuhari.engines.clock import Virtual, VirtualLoop
from shuhari.engines.decoders import Decoders
from shuhari.engines.local import Local
from shuhari.kernel.noise import CounterNoise, keys
from shuhari.kernel.pack import pack
from shuhari.kernel.registry import find
from shuhari.models.text.causal import Causal
from shuhari.models.text.rows import NoRoom
from shuhari.needs import Trace, Traces


class Dice:
    """A text model: each token is its row's noise, so that a trace shows which noise it got."""

    def __init__(self) -> None:
        self.calls: list[list[list[int]]] = []

    def sample(self, contexts, sampling, *, noise):
        self.calls.append([c.tolist() for c in contexts])
        u = torch.stack([noise.uniform(i) for i in range(2)], 1)
        return [Trace((row * 1000).int().numpy(), row.float().numpy(), 0, {"ended": True}) for row in u]

    def decode(self, ids) -> str:
        return "-".join(map(str, ids))


class Dense:
    """A dense policy: the action is the sum of the context."""

    def sample(self, contexts, sampling, *, noise):
        x = contexts if isinstance(contexts, torch.Tensor) else contexts["x"] + contexts["y"][:, None]
        return Traces(x.sum(1), torch.zeros(len(x), 1), 0, {"mean": x})


class Broken:
    def sample(self, contexts, sampling, *, noise):
        raise self.error

    def __init__(self, error: BaseException) -> None:
        self.error = error


def ids(*tokens: int) -> np.ndarray:
    return np.array(tokens, np.int32)


def engine(tokens: int = 0, **models: object) -> Local:
    own = Local(tokens)
    own.seed, own.spent = 7, {}
    own.charge = lambda what, amount: own.spent.update({what: own.spent.get(what, 0) + amount})
    own.sync(models, 3)
    return own


def gathered(*calls):
    async def run():
        return await asyncio.gather(*(call() for call in calls), return_exceptions=True)

    return asyncio.run(run())


def test_calls_that_wait_together_share_a_forward() -> None:
    model = Dice()
    own = engine(policy=model, opponent=model, other=Dice())
    hot = Sampling(temperature=2.0)

    async def twice():
        first = await own.sample("policy", ids(1), Sampling(), 2, key=("a",))
        return first + await own.sample("policy", ids(2), Sampling(), key=("b",))

    out = gathered(
        twice,
        lambda: own.sample("opponent", ids(3, 3), Sampling(), key=("c",)),
        lambda: own.sample("policy", ids(4), hot, key=("d",)),
        lambda: own.sample("other", ids(5), Sampling(), key=("e",)),
    )
    # roles of one model together, another sampling or model apart, a later call later
    assert model.calls == [[[1], [1], [3, 3]], [[4]], [[2]]]
    assert own.models["other"].calls == [[[5]]]
    assert [len(x) for x in out] == [3, 1, 1, 1]
    assert own.spent == {"tokens": 12, "prompt_tokens": 1 + 1 + 2 + 1 + 1 + 1}


def test_a_draw_depends_on_its_key_and_number_only() -> None:
    def drawn(*calls: tuple[str, int], tokens: int = 0) -> dict[str, list[list[int]]]:
        own = engine(tokens, policy=Dice())
        two = Sampling(max_new=2)
        out = gathered(*(lambda k=k, n=n: own.sample("policy", ids(1, 2), two, n, key=(k, 0)) for k, n in calls))
        return {k: [t.action.tolist() for t in traces] for (k, _), traces in zip(calls, out, strict=True)}

    alone = drawn(("b", 4))["b"]
    assert drawn(("a", 3), ("b", 4), ("c", 1))["b"] == alone
    assert drawn(("a", 3), ("b", 4), tokens=9)["b"] == alone
    assert drawn(("b", 2))["b"] == alone[:2]
    assert len({tuple(x) for x in alone}) == 4
    want = CounterNoise(keys(7, "b", 0, n=4)).uniform(0) * 1000
    assert [x[0] for x in alone] == want.int().tolist()


def test_traces_carry_version_and_text() -> None:
    own = engine(policy=Dice())
    (traces,) = gathered(lambda: own.sample("policy", ids(1), Sampling(), 2, key=("k",)))
    for t in traces:
        assert t.version == 3 and t.info == {"ended": True, "text": "-".join(map(str, t.action))}


@pytest.mark.parametrize(
    ("budget", "sizes"), [(0, [5]), (100, [5]), (12, [2, 3]), (11, [1, 1, 2, 1]), (18, [3, 2]), (1, [1] * 5)]
)
def test_a_large_batch_is_sampled_in_parts(budget: int, sizes: list[int]) -> None:
    model = Dice()
    own = engine(budget, policy=model)
    contexts = [ids(1), ids(1, 2, 3), ids(1), ids(1), ids(2)]
    gathered(*(lambda c=c, i=i: own.sample("policy", c, Sampling(max_new=3), key=(i,)) for i, c in enumerate(contexts)))
    assert [len(c) for c in model.calls] == sizes
    assert [c for part in model.calls for c in part] == [c.tolist() for c in contexts]


def test_dense_contexts_are_stacked() -> None:
    own = engine(policy=Dense())
    out = gathered(
        lambda: own.sample("policy", np.array([1.0, 2.0]), Sampling(), 2, key=("a",)),
        lambda: own.sample("policy", np.array([3.0, 4.0]), Sampling(), key=("b",)),
    )
    assert [[float(t.action) for t in traces] for traces in out] == [[3, 3], [7]]
    assert out[1][0].info["mean"].tolist() == [3, 4] and out[1][0].version == 3
    assert own.spent == {}
    nested = gathered(lambda: own.sample("policy", {"x": np.array([1.0, 2.0]), "y": 5.0}, Sampling(), key=("a",)))
    assert float(nested[0][0].action) == 13


def test_an_error_reaches_everybody_who_waits_and_nobody_else() -> None:
    own = engine(policy=Broken(ZeroDivisionError("boom")), judge=Broken(StopIteration()), other=Dice())
    out = gathered(
        lambda: own.sample("policy", ids(1), Sampling(), key=("a",)),
        lambda: own.sample("policy", ids(1), Sampling(), key=("b",)),
        lambda: own.sample("judge", ids(1), Sampling(), key=("b",)),
        lambda: own.sample("other", ids(1), Sampling(), key=("c",)),
        lambda: own.sample("polcy", ids(1), Sampling(), key=("d",)),
    )
    assert [type(x) for x in out] == [ZeroDivisionError, ZeroDivisionError, RuntimeError, list, KeyError]
    assert "did you mean 'policy'" in str(out[4])
    again = gathered(lambda: own.sample("other", ids(1), Sampling(), key=("c",)))
    assert len(again[0]) == 1


def test_a_text_that_is_too_long_fails_alone() -> None:
    model = Dice()
    model.limit = 4
    own = engine(policy=model, other=Dice())
    out = gathered(
        lambda: own.sample("policy", ids(1, 2, 3), Sampling(), key=("a",)),
        lambda: own.sample("policy", ids(1, 2, 3, 4), Sampling(), 2, key=("b",)),
        lambda: own.sample("policy", ids(), Sampling(), key=("c",)),
        lambda: own.sample("policy", ids(5), Sampling(), key=("d",)),
        lambda: own.sample("other", ids(*[1] * 9), Sampling(), key=("e",)),  # tells no limit
    )
    assert [len(x) if isinstance(x, list) else type(x) for x in out] == [1, NoRoom, NoRoom, 1, 1]
    assert str(out[1]).startswith("a context of 4 tokens: expected 1 to 3 (the model reads 4;")
    assert model.calls == [[[1, 2, 3], [5]]] and own.spent["prompt_tokens"] == 3 + 1 + 9


def test_a_call_given_up_is_not_computed() -> None:
    model = Dice()
    own = engine(policy=model)

    async def run() -> None:
        task = asyncio.ensure_future(own.sample("policy", ids(1), Sampling(), key=("a",)))
        await asyncio.sleep(0)
        task.cancel()
        await own.sample("policy", ids(2), Sampling(), key=("b",))

    asyncio.run(run())
    assert model.calls == [[[2]]]


class Scored:
    """log_prob: each token's id, in hundredths, negative; kl: what the other role's constant is."""

    forwards = 0

    def __init__(self, constant: float = 0.0) -> None:
        self.constant = constant

    def __call__(self, batch):
        self.forwards += 1
        return SimpleNamespace(
            constant=self.constant,
            log_prob=lambda: -batch["action"] / 100,
            kl=lambda other: torch.full(tuple(batch["mask"].shape), other.constant),
        )


def test_scores_of_anybodys_actions() -> None:
    own = engine(policy=Scored(), reference=Scored(0.5))
    out = gathered(
        lambda: own.score("policy", ids(9, 9), ids(1, 2, 3), ("log_prob", "kl:reference")),
        lambda: own.score("policy", ids(9), ids(4), ("log_prob", "kl:reference")),
        lambda: own.score("policy", ids(9), ids(4), ("log_prb",)),
    )
    np.testing.assert_allclose(out[0]["log_prob"], [-0.01, -0.02, -0.03])
    np.testing.assert_allclose(out[1]["log_prob"], [-0.04])
    assert out[0]["kl:reference"].tolist() == [0.5] * 3
    assert own.models["policy"].forwards == 2 and own.models["reference"].forwards == 1
    assert isinstance(out[2], AttributeError) and "log_prob" in str(out[2])
    assert own.spent["scored_tokens"] == 5 + 2  # what failed is not charged
    own.models["reference"].limit = 4
    out = gathered(
        lambda: own.score("policy", ids(9, 9), ids(1, 2, 3), ("kl:reference",)),
        lambda: own.score("policy", ids(9, 9), ids(1, 2), ("kl:reference",)),
        lambda: own.score("policy", ids(9, 9), ids(1, 2, 3), ("log_prob",)),
    )
    assert isinstance(out[0], NoRoom) and str(out[0]).startswith("a context of 2 tokens: expected 1 to 1 (")
    assert out[1]["kl:reference"].tolist() == [0.5] * 2 and len(out[2]["log_prob"]) == 3


def test_nobody_waits_for_an_engine_that_broke() -> None:
    """What raises where no call stands on the stack (a decoder that cannot be made, a step, a tokenizer) is told."""
    model = Causal(hidden=16, layers=1, heads=2, intermediate=16, context=64, alphabet="abc")
    model.build(SimpleNamespace())
    own = engine(policy=model)

    def ask() -> list[Any]:
        return gathered(
            *(lambda k=k: own.sample("policy", model.encode("ab"), Sampling(max_new=4), key=(k,)) for k in "ab")
        )

    for whose, name in ((model.module.lean, "logits"), (model, "decode"), (model, "decoder")):
        own._decoders = Decoders({})
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(whose, name, lambda *_, **__: 1 / 0)
            assert [type(x) for x in ask()] == [ZeroDivisionError] * 2
        assert [len(x) for x in ask()] == [1, 1]  # and it goes on


def test_new_weights_interrupt_what_is_being_sampled() -> None:
    """Each decision keeps the version it was made with, and its log-probability is that of those weights."""
    torch.manual_seed(0)
    model = Causal(hidden=16, layers=1, heads=2, intermediate=16, context=64, alphabet="abcdefghijklmnopqrstuvwxyz")
    model.build(SimpleNamespace())
    own = Local(virtual=Virtual(decode=1.0))
    own.sync({"policy": model}, 0)
    old, loop = {k: v.clone() for k, v in model.module.state_dict().items()}, VirtualLoop()

    async def run() -> Trace:
        task = asyncio.ensure_future(own.sample("policy", model.encode("ab"), Sampling(max_new=9), key=("k",)))
        await asyncio.sleep(4.5)  # four tokens later
        with torch.no_grad():
            for p in model.module.parameters():
                p.add_(torch.randn_like(p) / 4)
        own.sync({"policy": model}, 1)
        return (await task)[0]

    trace = loop.run_until_complete(run())
    loop.close()
    n = len(trace.action)
    assert n > 5 and trace.version.tolist() == [0] * 4 + [1] * (n - 4)
    batch = pack([Trajectory(Request(Problem("t", "0", "")), (Step.of(model.encode("ab"), trace.action),))])
    with torch.no_grad():
        new = model(batch).log_prob()[0].numpy()
        model.module.load_state_dict(old)
        before = model(batch).log_prob()[0].numpy()
    np.testing.assert_allclose(trace.logp, [*before[:4], *new[4:]], atol=1e-5)
    assert np.abs(before - new).max() > 0.1


def test_registered() -> None:
    assert find("engine", "local") is Local


# ---------------------------------------------------------------- rows that are watched


def small() -> Causal:
    torch.manual_seed(0)
    model = Causal(hidden=16, layers=1, heads=2, intermediate=16, context=64, alphabet="abcdefghijklmnopqrstuvwxyz")
    model.build(SimpleNamespace())
    return model


def test_what_a_watched_call_hears_is_its_trace_but_the_last_token() -> None:
    """Token by token, of its own rows only, also where rows wait again because the cache is full."""
    own = Local(tokens=128, slots=3)
    own.sync({"policy": small()}, 0)
    heard: dict[int, list[tuple[int, float]]] = {}

    def watch(row, token, logp) -> None:
        heard.setdefault(row.key, []).append((token, logp))

    def call(name: str, n: int, **more):
        return lambda: own.sample("policy", ids(5, 6, 7), Sampling(max_new=40), n, key=(name,), **more)

    out = gathered(call("a", 3, watch=watch), call("b", 3), call("c", 1, watch=watch))
    watched = [*out[0], *out[2]]
    row_keys = [int(k) for name, n in (("a", 3), ("c", 1)) for k in keys(0, name, n=n)]
    assert heard.keys() <= set(row_keys) and max(len(t.action) for t in watched) > 20
    for key, trace in zip(row_keys, watched, strict=True):
        assert [token for token, _ in heard.get(key, [])] == trace.action[:-1].tolist()
        assert [p for _, p in heard.get(key, [])] == trace.logp[:-1].tolist()


def test_settings_that_come_once_are_forgotten_and_those_in_use_are_not() -> None:
    """A server is asked with ever new temperatures: what is remembered of them does not grow for ever."""
    from shuhari.models.text import rows

    own, model = Local(slots=4), small()
    own.sync({"policy": model}, 0)
    wanted = model.sample([ids(5, 6)], Sampling(max_new=30, temperature=0.7), noise=CounterNoise(keys(0, "long", n=1)))

    async def go():
        settings = Sampling(max_new=30, temperature=0.7)
        long = asyncio.ensure_future(own.sample("policy", ids(5, 6), settings, key=("long",)))
        for i in range(2 * rows.SETTINGS // 40 + 1):
            calls = (Sampling(max_new=1, temperature=1 + (40 * i + j) * 1e-4) for j in range(40))
            await asyncio.gather(*(own.sample("policy", ids(5), s, key=(i, j)) for j, s in enumerate(calls)))
        return await long

    (trace,) = asyncio.run(go())
    assert trace.action.tolist() == wanted[0].action.tolist()
    ((_, decoder),) = own._decoders
    assert len(decoder._sampler._settings) <= rows.SETTINGS + 12
    assert len(decoder._sampler._samplings) <= rows.SETTINGS
