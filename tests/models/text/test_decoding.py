"""Continuous batching: what a row says does not depend on when, where and beside whom it is said."""

import copy
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from shuhari.data import Ramp, Sampling
from shuhari.kernel.noise import CounterNoise, keys
from shuhari.models.text.causal import Causal
from shuhari.models.text.decoding import Decoder
from shuhari.models.text.rows import NoRoom, Row
from shuhari.models.text.static import generate
from shuhari.models.text.trunk import Trunk

LAYOUTS = {
    "llama": {"num_key_value_heads": 1},
    "qwen3": {"num_key_value_heads": 1},
    "gemma": {"num_key_value_heads": 1, "head_dim": 16},
    "gpt2": {},
}


def made(architecture: str = "llama", **fields) -> Causal:
    """A small model whose distributions are far from uniform."""
    model = Causal(architecture=architecture, hidden=16, layers=2, heads=2, intermediate=24, context=200, **fields)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model.build(SimpleNamespace(alphabet="abcdef"))
        for p in model.module.parameters():
            if p.dim() > 1:
                torch.nn.init.normal_(p, std=0.4)
    return model


@pytest.fixture(scope="module")
def model() -> Causal:
    return made()


SETTINGS = [
    Sampling(max_new=90, ban=(1,)),
    Sampling(max_new=30),
    Sampling(max_new=30, temperature=Ramp(2.0, 0.5, over=20), ban=(1, 2)),
    Sampling(max_new=40, top_k=3, top=2, temperature=1.5),
    Sampling(max_new=12, greedy=True),
    Sampling(max_new=60, stop=("ab", "f"), min_p=0.02),
]


def asked(n: int = 36, settings: list[Sampling] = SETTINGS, group: int = 4) -> list[Row]:
    """n rows in groups of one context; contexts of 1 to 90 tokens."""
    rng, row_keys, rows = np.random.default_rng(0), keys(0, "rows", n=n), []
    for i in range(n):
        if i % group == 0:
            context = rng.integers(2, 8, rng.choice([1, 3, 20, 90])).astype(np.int32)
        rows.append(Row(context, settings[i // group % len(settings)], int(row_keys[i]), (i,)))
    return rows


def finished(decoder: Decoder, rows: list[Row]) -> list[Row]:
    decoder.add(rows)
    left = []
    while len(decoder):
        left += decoder.step()
    assert sorted(map(id, left)) == sorted(map(id, rows))
    return rows


def same(rows: list[Row], others: list[Row], atol: float = 2e-5) -> None:
    for a, b in zip(sorted(rows, key=lambda r: r.order), sorted(others, key=lambda r: r.order), strict=True):
        x, y = a.trace(), b.trace()
        assert x.action.tolist() == y.action.tolist(), a.order
        np.testing.assert_allclose(x.logp, y.logp, atol=atol, rtol=0)
        assert x.info.keys() == y.info.keys() and x.info["ended"] == y.info["ended"]
        for name in x.info:
            np.testing.assert_allclose(x.info[name], y.info[name], atol=1e-4)


@pytest.mark.parametrize("architecture", LAYOUTS)
def test_the_same_as_static_batches(architecture) -> None:
    """Each setting alone through `generate`, whose forward is that of transformers."""
    model = made(architecture, config=LAYOUTS[architecture])
    rows = finished(model.decoder(slots=7), asked())
    for sampling in SETTINGS:
        some = [row for row in rows if row.sampling == sampling]
        want = generate(
            model.module, [r.context for r in some], sampling, CounterNoise([r.key for r in some]), ends=(1,), pad=0,
            stopped=model._stops(sampling.stop),
        )  # fmt: skip
        for row, trace in zip(some, want, strict=True):
            got = row.trace()
            assert got.action.tolist() == trace.action.tolist() and got.action.dtype == np.int32
            np.testing.assert_allclose(got.logp, trace.logp, atol=2e-4)
            assert got.info.keys() == trace.info.keys()
            for name, value in got.info.items():
                want_value = np.asarray(trace.info[name])
                if name in ("support", "top", "top_logp"):  # padded to the widest of the batch
                    assert (want_value[:, value.shape[1] :] < 0).all()
                    want_value = want_value[:, : value.shape[1]]
                np.testing.assert_allclose(value, want_value, atol=1e-3)
    assert len({len(r.tokens) for r in rows}) > 5 and {r.ended for r in rows} == {True, False}


@pytest.mark.parametrize(
    "settings",
    [{"slots": 1}, {"slots": 5, "chunk": 7}, {"slots": 64, "chunk": 1}, {"tokens": 400}, {"tokens": 1, "slots": 9}],
)
def test_slots_chunk_and_budget_change_nothing(model, settings) -> None:
    same(finished(model.decoder(**settings), asked()), finished(model.decoder(), asked()))


def test_order_and_company_change_nothing(model) -> None:
    want = finished(model.decoder(slots=16), asked())
    rows = asked()
    np.random.default_rng(1).shuffle(rows)
    same(finished(model.decoder(slots=16), rows), want)
    rows, decoder = asked(), model.decoder(slots=3)
    for piece in (rows[:1], rows[1:9], rows[9:]):
        finished(decoder, piece)
    same(rows, want)
    rows, decoder = asked(), model.decoder(slots=16)  # they come while others run
    for i in range(0, len(rows), 6):
        decoder.add(rows[i : i + 6])
        for _ in range(5):
            decoder.step()
    while len(decoder):
        decoder.step()
    same(rows, want)


def test_a_prompt_is_read_once_for_all_that_wait(model, monkeypatch) -> None:
    decoder, seen = model.decoder(slots=2), []
    hidden = decoder.lean.hidden
    monkeypatch.setattr(
        decoder.lean, "hidden", lambda w, ids, *a, **k: seen.append(len(ids)) or hidden(w, ids, *a, **k)
    )
    context = np.arange(2, 8, dtype=np.int32).repeat(6)
    rows = [Row(context, Sampling(max_new=3, ban=(1,)), i, (i,), least=3) for i in range(8)]
    finished(decoder, rows)
    assert seen.count(36) == 1 and sum(seen) == 36 + 8 * 2  # the last token is never read
    assert not decoder._prefixes and not decoder._wanted


def test_a_long_prompt_does_not_hold_up_those_that_run(model) -> None:
    decoder = model.decoder(slots=4, chunk=10)
    first = Row(np.array([2], np.int32), Sampling(max_new=50), 0, (0,), least=50)
    decoder.add([first])
    decoder.step()
    late = Row(np.full(95, 3, np.int32), Sampling(max_new=2), 1, (1,), least=2)
    decoder.add([late])
    for i in range(9):
        decoder.step()
        said = {r.order: len(r.tokens) for r in decoder.rows}
        assert said == {(0,): 2 + i, (1,): 0}
    decoder.step()
    assert {r.order: len(r.tokens) for r in decoder.rows} == {(0,): 11, (1,): 1}


def test_the_budget_bounds_the_cache(model) -> None:
    decoder, rows = model.decoder(slots=32, tokens=600), asked(settings=[Sampling(max_new=90, ban=(1,))])
    decoder.add(rows)
    most = 0
    while len(decoder):
        decoder.step()
        running = len(decoder._cache.running)
        most = max(most, running)
        assert decoder._used <= 600 or running == 1
    assert most > 3


@pytest.mark.parametrize("where", ["hidden", "logits"])
def test_after_a_step_that_raised_it_is_cleared_and_serves_again(model, monkeypatch, where) -> None:
    want, decoder, rows = finished(model.decoder(), asked()), model.decoder(slots=5), asked()
    decoder.add(rows)
    for _ in range(4):
        decoder.step()
    flying = decoder.rows
    decoder.remove(decoder.rows[:2])  # so that rows enter at the next step
    decoder.add(flying[:2])

    def full(*_, **__):
        raise RuntimeError("out of memory")

    with monkeypatch.context() as m:
        m.setattr(decoder.lean, where, full)
        with pytest.raises(RuntimeError, match="out of memory"):
            decoder.step()
    assert {r.order for r in decoder.rows} == {r.order for r in flying} and len(decoder) == len(flying)
    decoder.clear()
    assert len(decoder) == 0 and not decoder.rows and not decoder._prefixes and not decoder._wanted
    assert len(decoder._sampler.free) == 5 and decoder.step() == []
    same(finished(decoder, asked()), want)


def test_a_prefix_whose_beginning_was_asked_for_by_a_row_that_left(model) -> None:
    """One row goes on from context and said tokens, another has both for its context; the first leaves while they are
    being read, a chunk at a time."""
    decoder = model.decoder(slots=4, chunk=2)
    runs = Row(np.array([2], np.int32), Sampling(max_new=60), 0, (0,), least=60)
    decoder.add([runs])
    decoder.step()
    context, said = np.arange(12, dtype=np.int32) % 6 + 2, np.array([3, 4, 5], np.int32)
    began = {"tokens": said, "logp": np.zeros(3, np.float32), "version": np.zeros(3, np.int64)}
    first = Row(context, Sampling(max_new=9), 1, (1,), **began)
    other = Row(np.concatenate([context, said]), Sampling(max_new=9), 2, (2,))
    decoder.add([first, other])
    decoder.step()
    decoder.remove([first])
    for _ in range(60):
        decoder.step()
    assert len(decoder) == 0 and len(other.tokens)
    same([other], finished(model.decoder(), [Row(other.context, other.sampling, 2, (2,))]))


def test_new_weights_in_the_middle(model) -> None:
    """What was said stays; what follows is what a fresh decoder with the new weights says to that beginning."""
    model = copy.deepcopy(model)
    decoder, rows = model.decoder(slots=8, chunk=16), asked()
    decoder.refresh(3)
    decoder.add(rows)
    done = [row for _ in range(20) for row in decoder.step()]
    flying = decoder.rows
    assert len(done) + len(flying) == len(rows) and any(len(r.tokens) for r in flying)
    began = {r.order: (r.tokens, r.logp, r.version, copy.deepcopy(r.extra)) for r in flying}
    with torch.no_grad():
        for p in model.module.parameters():
            p.mul_(1.1)
    decoder.refresh(4)
    while len(decoder):
        decoder.step()
    for row in flying:
        k = len(began[row.order][0])
        assert row.tokens[:k].tolist() == began[row.order][0].tolist()
        assert row.logp[:k].tolist() == began[row.order][1].tolist()
        assert row.version.tolist() == [3] * k + [4] * (len(row.tokens) - k)
        context = np.concatenate([row.context, row.tokens[:-1]]).astype(np.int64)
        if not row.sampling.truncates and not row.sampling.greedy and row.sampling.temperature == 1:
            logits = model.module.lm(input_ids=torch.from_numpy(context)[None]).logits[0, len(row.context) - 1 :]
            logits[:, 0] = -torch.inf
            logits[0, list(row.sampling.ban)] = -torch.inf
            want = logits.log_softmax(-1).gather(1, torch.from_numpy(row.tokens.astype(np.int64))[:, None])[k:, 0]
            np.testing.assert_allclose(row.logp[k:], want.detach().numpy(), atol=2e-4)

    again = [Row(r.context, r.sampling, r.key, r.order, *began[r.order]) for r in flying]  # a resumed process
    np.random.default_rng(2).shuffle(again)
    other = model.decoder(slots=8, chunk=16)
    other.add(again)
    other.refresh(4)
    while len(other):
        other.step()
    for a, b in zip(sorted(again, key=lambda r: r.order), flying, strict=True):
        assert a.tokens.tolist() == b.tokens.tolist() and a.logp.tobytes() == b.logp.tobytes()
        assert a.version.tolist() == b.version.tolist() and a.ended == b.ended
        for name in a.trace().info:
            np.testing.assert_array_equal(a.trace().info[name], b.trace().info[name])


def test_weights_are_those_of_the_last_refresh(model) -> None:
    model = copy.deepcopy(model)
    decoder, want = model.decoder(), finished(model.decoder(), asked())
    decoder.refresh(0)
    with torch.no_grad():
        for p in model.module.parameters():
            p.add_(1.0)
    same(finished(decoder, asked()), want)


def test_refresh_without_new_weights_changes_no_token(model) -> None:
    want, rows, decoder = finished(model.decoder(), asked()), asked(), model.decoder(slots=10)
    decoder.add(rows)
    i = 0
    while len(decoder):
        decoder.step()
        i += 1
        if i % 9 == 0:
            decoder.refresh(i)
    same(rows, want)


def test_removed_rows_keep_what_they_said_and_others_go_on(model) -> None:
    want, rows, decoder = finished(model.decoder(), asked()), asked(), model.decoder(slots=10)
    decoder.add(rows)
    for _ in range(6):
        decoder.step()
    flying = decoder.rows
    gone = flying[::3]
    decoder.remove(gone)
    assert len(decoder) == len(flying) - len(gone)
    for row in gone:
        k = len(row.tokens)
        assert row.tokens.tolist() == want[row.order[0]].tokens[:k].tolist() and not row.ended
    assert any(len(row.tokens) for row in gone) and any(not len(row.tokens) for row in gone)
    while len(decoder):
        decoder.step()
    names = {row.order for row in gone}
    same([r for r in rows if r.order not in names], [r for r in want if r.order not in names])
    same(finished(decoder, gone), [r for r in want if r.order in names])  # and they may come back
    assert not decoder._prefixes and not decoder._wanted and len(decoder._sampler.free) == 10


def test_memory_is_given_back(model) -> None:
    decoder = model.decoder(slots=32)
    for _ in range(3):
        finished(decoder, asked(96))
        assert sum(p.kv.numel() for p in decoder._cache.pools) == 0
        assert not any(decoder._sampler.rows) and not decoder._prefixes


def test_half_precision_is_close() -> None:
    """The gap of the log-probabilities of single tokens: bounded at 0.15, its mean at 0.02."""
    model = Causal(hidden=64, layers=4, heads=4, intermediate=128, context=200)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model.build(SimpleNamespace(alphabet="abcdefghijklmnop"))
    rows = asked(settings=[Sampling(max_new=60, ban=(1,))])
    exact = [copy.copy(r) for r in rows]
    finished(model.decoder(dtype="bfloat16"), rows)
    assert model.module.lm.dtype == torch.float32
    gaps = []
    for row, other in zip(rows, exact, strict=True):  # the same tokens, by the weights as they are
        ids = torch.from_numpy(np.concatenate([other.context, row.tokens[:-1]]).astype(np.int64))
        logits = model.module.lm(input_ids=ids[None]).logits[0, len(row.context) - 1 :]
        logits[:, 0] = -torch.inf
        logits[0, 1] = -torch.inf
        want = logits.log_softmax(-1).gather(1, torch.from_numpy(row.tokens.astype(np.int64))[:, None])[:, 0]
        gaps.append(np.abs(row.logp - want.detach().numpy()))
    gap = np.concatenate(gaps)
    assert 0 < gap.max() < 0.15 and gap.mean() < 0.02


@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_a_model_in_half_precision_is_decoded(architecture) -> None:
    model = made(architecture)
    model.module = Trunk(model.module.lm.to(torch.bfloat16))
    rows = asked(8, [Sampling(max_new=20)])
    assert model.module.lean is not None
    finished(model.decoder(slots=3), rows)
    assert all(1 <= len(row.tokens) <= 20 and np.isfinite(row.logp).all() for row in rows)


def test_least_tokens(model) -> None:
    rows = asked(settings=[Sampling(max_new=40)])
    for i, row in enumerate(rows):
        row.least = i % 30
    finished(model.decoder(slots=8), rows)
    assert all(len(r.tokens) > r.least for r in rows) and all(r.ended for r in rows if len(r.tokens) < 40)
    assert not any((r.tokens[: r.least] == 1).any() for r in rows)


def test_what_cannot_be_said_is_refused_before_anything_is(model) -> None:
    decoder, good = model.decoder(), Row(np.array([2, 3], np.int32), Sampling(), 0)
    for row, error, text in [
        (Row(np.zeros(0, np.int32), Sampling(), 0), NoRoom, "a context of 0 tokens: expected 1 to 199"),
        (Row(np.full(200, 2, np.int32), Sampling(), 0), NoRoom, "a context of 200 tokens"),
        (Row(good.context, Sampling(epsilon=0.1), 0), ValueError, r"epsilon is 0\.1"),
        (Row(good.context, Sampling(ban=(8,)), 0), ValueError, "token 8: expected 0 to 7"),
        (Row(good.context, Sampling(ban=tuple(range(1, 8))), 0), ValueError, "ban names 7 tokens: expected one"),
        (Row(good.context, Sampling(stop=("a", "")), 0), ValueError, "empty"),
        (Row(good.context, Sampling(max_new=2), 0, tokens=np.array([2, 3], np.int32)), ValueError, "said 2 tokens"),
    ]:
        with pytest.raises(error, match=text):
            decoder.add([good, row])
        assert len(decoder) == 0
    for settings, text in [
        ({"slots": 0}, "slots is 0"),
        ({"chunk": 0}, "chunk is 0"),
        ({"tokens": -1}, "tokens is -1"),
        ({"dtype": "bf16"}, "dtype is 'bf16'.*bfloat16"),
        ({"dtype": "int64"}, "dtype is 'int64'"),
    ]:
        with pytest.raises(ValueError, match=text):
            model.decoder(**settings)
    assert decoder.step() == []
