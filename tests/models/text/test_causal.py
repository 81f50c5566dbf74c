"""Causal language models against plain Hugging Face forwards and `generate`."""

import copy
import itertools
import logging
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from shuhari.batch import Batch
from shuhari.config.build import make_component
from shuhari.data import Problem, Ramp, Request, Sampling, Step, Trajectory
from shuhari.kernel.noise import CounterNoise, keys
from shuhari.kernel.pack import pack
from shuhari.kernel.registry import find
from shuhari.models.text import packing, tokens
from shuhari.models.text.causal import Causal, CausalValue
from shuhari.needs import Need, evaluate

TASK = SimpleNamespace(alphabet="abcdef")
LOGP, LIVE = Need(("policy",), "log_prob"), Need(("policy",), "log_prob", live=True)


def made(spread: float = 0.4, **fields) -> Causal:
    """A small model whose distributions are far from uniform."""
    model = Causal(**{"hidden": 16, "layers": 2, "heads": 2, "intermediate": 24, "context": 32, **fields})
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model.build(TASK)
        for p in model.module.parameters():
            if p.dim() > 1:
                torch.nn.init.normal_(p, std=spread)
    return model


@pytest.fixture(scope="module")
def model() -> Causal:
    return made()


def ids(*tokens: int) -> np.ndarray:
    return np.array(tokens, np.int32)


def noise(n: int, *name: object) -> CounterNoise:
    return CounterNoise(keys(0, *name, n=n))


def rows(*pairs: tuple[np.ndarray, np.ndarray | None]) -> Batch:
    steps = [Step.closing(c, None, 0.0) if a is None else Step.of(c, a) for c, a in pairs]
    return pack([Trajectory(Request(Problem("t", str(i), "")), (s,)) for i, s in enumerate(steps)])


def sampled(model: Causal, contexts: list[np.ndarray], sampling: Sampling, *name: object) -> Batch:
    traces = model.sample(contexts, sampling, noise=noise(len(contexts), *name))
    request = Request(Problem("t", "0", ""), sampling=sampling)
    steps = [Step.of(c, t.action, t.logp, info=t.info) for c, t in zip(contexts, traces, strict=True)]
    return pack([Trajectory(request, (s,)) for s in steps])


def naive(lm, context: np.ndarray, action: np.ndarray, pad: int | None = 0) -> torch.Tensor:
    """[k] log-probabilities by one plain forward of one row, where `pad` is not among the tokens."""
    row = torch.from_numpy(np.concatenate([context, action]).astype(np.int64))[None]
    logits = lm(input_ids=row).logits[0, len(context) - 1 : -1]
    if pad is not None:
        logits = logits.index_fill(1, torch.tensor([pad]), -torch.inf)
    return logits.log_softmax(-1).gather(-1, row[0, len(context) :, None])[:, 0]


RAGGED = [(ids(2, 3), ids(4, 5, 1)), (ids(2, 3, 4, 5, 6), ids(7)), (ids(7), ids(2, 2, 2, 2)), (ids(3, 4), ids(1))]
GROUPED = [(ids(2, 3, 4, 6, 5), ids(4, j + 2)) for j in range(4)] + [(ids(7, 7, 7, 4), ids(2 + j, 1)) for j in range(4)]
EVEN = [(ids(2, 3, 4, 6, 5), ids(4, j + 2)) for j in range(4)] + [(ids(7, 7, 7, 4, 2), ids(5)) for _ in range(4)]


# ------------------------------------------------------------------------------------------------ scoring


@pytest.mark.parametrize("pairs", [RAGGED, GROUPED, EVEN, GROUPED[:1]], ids=["ragged", "grouped", "even", "one"])
@pytest.mark.parametrize("share", [0.0, 10.0], ids=["plain", "shared"])
@pytest.mark.parametrize("path", ["lean", "recomputed", "generic"])
def test_log_probabilities_and_gradients_are_those_of_plain_forwards(model, pairs, share, path, monkeypatch) -> None:
    monkeypatch.setattr(packing, "SHARE", share)
    monkeypatch.setattr(model.module, "recompute", path == "recomputed")
    if path == "generic":
        monkeypatch.setattr(model.module, "lean", None)
    batch = rows(*pairs)
    got = evaluate(batch, [LIVE], {"policy": model}, ["policy"])[LIVE.key]
    want = [naive(model.module.lm, c, a) for c, a in pairs]
    for i, w in enumerate(want):
        torch.testing.assert_close(got[i, : len(w)], w, atol=1e-5, rtol=1e-5)
        assert (got[i, len(w) :] == 0).all()
    weight = torch.randn(got.shape, generator=torch.Generator().manual_seed(1))
    params = list(model.module.parameters())
    a = torch.autograd.grad((weight * got).sum(), params)
    b = torch.autograd.grad(sum((weight[i, : len(w)] * w).sum() for i, w in enumerate(want)), params)
    for x, y in zip(a, b, strict=True):
        torch.testing.assert_close(x, y, atol=2e-5, rtol=1e-4)


def test_many_rows_of_one_prompt_run_it_once(model, monkeypatch) -> None:
    seen: list[int] = []
    hidden, whole = model.module.hidden, model.module.lean.hidden
    monkeypatch.setattr(model.module, "hidden", lambda i, *a: seen.append(i.numel()) or hidden(i, *a))
    monkeypatch.setattr(model.module.lean, "hidden", lambda w, i, *a: seen.append(i.numel()) or whole(w, i, *a))
    evaluate(rows(*GROUPED), [LOGP], {"policy": model})
    assert seen.pop() == 5 + 4 + 8  # two prompts, and the first token of each answer
    evaluate(rows(*RAGGED), [LOGP], {"policy": model})
    assert seen.pop() == 4 + 5 + 4 + 2  # nothing behind the last decision, and no padding
    monkeypatch.setattr(model.module, "lean", None)
    evaluate(rows(*GROUPED), [LOGP], {"policy": model})
    assert seen == [2 * 5, 8]
    seen.clear()
    evaluate(rows(*RAGGED), [LOGP], {"policy": model})
    assert seen == [4 * 5]


def test_chunks_change_nothing(model, monkeypatch) -> None:
    needs = [LIVE, Need(("policy",), "entropy", live=True), Need(("policy", "reference"), "kl", live=True)]
    models = {"policy": model, "reference": made(0.3)}
    params = list(model.module.parameters())

    def columns() -> tuple[dict[str, torch.Tensor], tuple[torch.Tensor, ...]]:
        out = evaluate(rows(*RAGGED), needs, models, ["policy"])
        return out, torch.autograd.grad(sum(c.square().sum() for c in out.values()), params)

    whole, chunked = columns(), []
    monkeypatch.setattr(tokens, "ENTRIES", 20)
    chunked = columns()
    for key in whole[0]:
        torch.testing.assert_close(whole[0][key], chunked[0][key])
    for a, b in zip(whole[1], chunked[1], strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)


def test_the_padding_of_a_wider_batch_changes_nothing(model) -> None:
    batch = rows(*RAGGED)
    whole = evaluate(batch, [LOGP], {"policy": model})[LOGP.key]
    narrow = evaluate(batch.take(torch.tensor([3])), [LOGP], {"policy": model})[LOGP.key]
    torch.testing.assert_close(whole[3:], narrow, atol=1e-6, rtol=1e-6)


def test_a_value_is_0_at_first_and_closing_rows_have_one(model) -> None:
    critic = made(value_head=True)
    torch.nn.init.zeros_(critic.module.value.weight)
    need = Need(("critic",), "value")
    batch = rows(*RAGGED, (ids(2, 3, 4, 5, 1), None))
    assert (evaluate(batch, [need], {"critic": critic})[need.key] == 0).all()
    torch.nn.init.normal_(critic.module.value.weight)
    value = critic(batch).value()
    hidden = critic.module.base(input_ids=torch.tensor([[2, 3, 4, 5, 1]])).last_hidden_state[0]
    want = critic.module.value(hidden)[:, 0]
    torch.testing.assert_close(value[0, :3], want[1:4], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(value[4, 0], want[4], atol=1e-5, rtol=1e-5)
    with pytest.raises(AttributeError, match="value_head"):
        model(batch).value()


@pytest.mark.parametrize("size", [5, 6, 7, 32, 40])
def test_a_closing_row_is_valued_by_its_last_token_that_the_model_reads(size) -> None:
    critic = made(value_head=True)
    torch.nn.init.normal_(critic.module.value.weight)
    context = ids(*np.random.default_rng(0).integers(2, 8, size))
    value = critic(rows((ids(2, 3), ids(4, 5, 1)), (context, None))).value()
    read = torch.from_numpy(context[:32].astype(np.int64))[None]
    want = critic.module.value(critic.module.base(input_ids=read).last_hidden_state[0, -1])
    torch.testing.assert_close(value[1, 0], want[0], atol=1e-5, rtol=1e-5)


def test_a_row_longer_than_the_model_is_refused(model) -> None:
    fits = (ids(*[2] * 28), ids(3, 3, 3, 3))
    model(rows(fits, (ids(2), ids(*[3] * 31))))  # each row is 32 long, together they pad to 59
    with pytest.raises(ValueError, match="33 tokens: expected at most 32"):
        model(rows(fits, (ids(2, 2), ids(*[3] * 31))))


# ------------------------------------------------------------------------------------------------ sampling


@pytest.mark.parametrize("lengths", [(4, 4, 4), (2, 5, 3)])
def test_greedy_is_that_of_transformers(model, lengths) -> None:
    rng = np.random.default_rng(1)
    contexts = [rng.integers(2, 8, n).astype(np.int32) for n in lengths]
    traces = model.sample(contexts, Sampling(greedy=True, max_new=8), noise=noise(3))
    for context, trace in zip(contexts, traces, strict=True):
        row = torch.from_numpy(context.astype(np.int64))[None]
        with torch.no_grad():
            want = model.module.lm.generate(row, attention_mask=torch.ones_like(row), max_new_tokens=8, do_sample=False)
        assert trace.action.tolist() == want[0, len(context) :].tolist()
        torch.testing.assert_close(torch.from_numpy(trace.logp), naive(model.module.lm, context, trace.action).detach())


def test_frequencies_of_whole_texts_are_their_probabilities() -> None:
    model = made(alphabet="ab", spread=0.5)
    n, context = 20_000, model.encode("ab")
    traces = model.sample([context] * n, Sampling(max_new=2), noise=noise(n))
    counts: dict[tuple[int, ...], int] = {}
    for t in traces:
        counts[tuple(t.action.tolist())] = counts.get(tuple(t.action.tolist()), 0) + 1
    exact = {}
    for text in [(1,), *itertools.product((2, 3), (1, 2, 3))]:
        exact[text] = float(naive(model.module.lm, context, ids(*text)).sum().exp().detach())
    assert sum(exact.values()) == pytest.approx(1, abs=1e-5)
    assert set(counts) <= set(exact)
    for text, p in exact.items():
        assert abs(counts.get(text, 0) - n * p) < 5 * (n * p * (1 - p)) ** 0.5 + 1, text


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(max_new=6),
        Sampling(temperature=0.5, max_new=6),
        Sampling(temperature=Ramp(2.0, 0.5, over=4), max_new=6),
        Sampling(top_p=0.7, max_new=6),
        Sampling(top_k=3, min_p=0.05, temperature=1.5, max_new=6),
        Sampling(ban=(1, 4), max_new=6),
        Sampling(ban=(1, 4), top_p=0.9, max_new=6),
        Sampling(greedy=True, temperature=0.7, max_new=6),
    ],
)
def test_scoring_again_gives_what_was_sampled(model, sampling) -> None:
    contexts = [ids(2, 3, 4)] * 20 + [ids(5), ids(6, 2)] * 10
    batch = sampled(model, contexts, sampling)
    again = evaluate(batch, [LOGP], {"policy": model})[LOGP.key]
    torch.testing.assert_close(again, batch["logp"], atol=1e-4, rtol=0)
    if sampling.ban:
        assert not np.isin(batch["action"][:, 0], sampling.ban).any()
    entropy = evaluate(batch, [Need(("policy",), "entropy")], {"policy": model})["policy/entropy"]
    assert entropy.isfinite().all() and (entropy >= -1e-6).all()


def test_truncated_and_free_rows_mix(model) -> None:
    free, cut = (sampled(model, [ids(2, 3)] * 3, Sampling(max_new=3, **s)) for s in ({}, {"top_k": 2}))
    request = Request(Problem("t", "0", ""))
    both = pack([Trajectory(request, (s,)) for s in (*free.steps, *cut.steps)])
    want = torch.cat([evaluate(b, [LOGP], {"policy": model})[LOGP.key] for b in (free, cut)])
    torch.testing.assert_close(evaluate(both, [LOGP], {"policy": model})[LOGP.key], want, atol=1e-6, rtol=1e-6)


def test_a_row_does_not_depend_on_its_neighbours(model) -> None:
    rng = np.random.default_rng(0)
    contexts = [rng.integers(2, 8, rng.integers(1, 9)).astype(np.int32) for _ in range(60)]
    sampling = Sampling(max_new=12)
    row_keys = keys(0, "row", n=60)
    together = model.sample(contexts, sampling, noise=CounterNoise(row_keys, 4))
    for i in range(60):
        alone = model.sample([contexts[i]], sampling, noise=CounterNoise(row_keys[i : i + 1]))[0]
        assert alone.action.tolist() == together[i].action.tolist()
        np.testing.assert_allclose(alone.logp, together[i].logp, atol=1e-5)
    lengths = {len(t.action) for t in together}
    assert len(lengths) > 3  # rows did leave at different times


def test_a_text_ends_with_its_end_or_is_cut(model) -> None:
    traces = model.sample([ids(2, 3)] * 200, Sampling(max_new=5), noise=noise(200))
    assert {t.info["ended"] for t in traces} == {True, False}
    for t in traces:
        assert t.info["ended"] == (t.action[-1] == model.end)
        assert model.end not in t.action[:-1] and (t.info["ended"] or len(t.action) == 5)
        assert t.action.dtype == np.int32 and t.logp.dtype == np.float32 and len(t.logp) == len(t.action)


@pytest.mark.parametrize("kind", ["char", "bpe"])
def test_a_text_ends_with_a_stop_string(kind, monkeypatch) -> None:
    model = made()
    if kind == "bpe":
        monkeypatch.setattr(model.text, "stops", lambda strings: None)  # decoded, as other tokenizers need it
    traces = model.sample([ids(2, 3)] * 300, Sampling(max_new=10, stop=("ab", "f"), ban=(1,)), noise=noise(300))
    texts = [model.decode(t.action) for t in traces]
    for text, t in zip(texts, traces, strict=True):
        body = text[:-1]
        assert "ab" not in body and "f" not in body
        assert t.info["ended"] == (text.endswith(("ab", "f")) or t.action[-1] == model.end)
    assert any(t.endswith("ab") for t in texts) and any(t.endswith("f") for t in texts)


def test_the_limit_of_the_model_cuts(model) -> None:
    trace = model.sample([ids(*[2] * 30)], Sampling(ban=(1,), max_new=9), noise=noise(1, "long"))[0]
    assert len(trace.action) <= 2
    with pytest.raises(ValueError, match=r"a context of 32 tokens: expected 1 to 31 \(the model reads 32;"):
        model.sample([ids(*[2] * 32)], Sampling(), noise=noise(1))


@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_a_row_has_the_room_that_its_own_context_leaves(architecture) -> None:
    model = made(architecture=architecture)  # reads 32
    contexts = [ids(*[2 + j % 5] * n) for j, n in enumerate((31, 3, 28, 31, 20, 3, 1))]
    sampling = Sampling(max_new=9, ban=(1,), temperature=3.0)
    row_keys = keys(0, "room", n=len(contexts))
    together = model.sample(contexts, sampling, noise=CounterNoise(row_keys))
    for i, (context, trace) in enumerate(zip(contexts, together, strict=True)):
        alone = model.sample([context], sampling, noise=CounterNoise(row_keys[i : i + 1]))[0]
        assert alone.action.tolist() == trace.action.tolist() and alone.info == {**trace.info, "ban": alone.info["ban"]}
        assert len(trace.action) == min(9, 32 - len(context)) or trace.info["ended"]
    assert [len(t.action) for t in together if len(t.action) < 9 and not t.info["ended"]]  # some were cut
    assert any(len(t.action) > 1 for t in together)


def test_padding_is_never_said_and_scoring_knows(tmp_path) -> None:
    model = made(alphabet="ab", spread=0.02)  # nearly uniform, as a new model is
    contexts = [model.encode("ab")] * 400
    for sampling in (Sampling(max_new=6), Sampling(max_new=6, top_p=0.95), Sampling(max_new=6, ban=(1,), top=4)):
        batch = sampled(model, contexts, sampling)
        said = batch["action"][batch["mask"]]
        assert not (said == 0).any() and {1, 2, 3} == set(said.tolist())
        again = evaluate(batch, [LOGP], {"policy": model})[LOGP.key]
        torch.testing.assert_close(again, batch["logp"], atol=1e-5, rtol=0)
    for trace in model.sample(contexts, Sampling(max_new=6), noise=noise(400)):
        body = trace.action[:-1] if trace.info["ended"] else trace.action
        if len(body):  # its text is read as what was said
            assert model.encode(model.decode(trace.action)).tolist() == body.tolist()
    others = rows(*((model.encode("ab"), ids(token)) for token in range(4)))
    p = model(others).log_prob()[:, 0].exp()
    assert p[0] == 0 and float(p[1:].sum().detach()) == pytest.approx(1, abs=1e-6)
    grads = torch.autograd.grad(model(others).entropy().sum(), list(model.module.parameters()))
    assert all(bool(g.isfinite().all()) for g in grads)
    model.save(tmp_path)  # what is saved says so itself: to us, and to transformers
    again = Causal(path=str(tmp_path))
    again.build(SimpleNamespace())
    assert torch.equal(again(others).log_prob(), model(others).log_prob())
    lm = AutoModelForCausalLM.from_pretrained(tmp_path)
    row = torch.tensor([[2, 3]] * 100)
    with torch.random.fork_rng():
        out = lm.generate(row, attention_mask=torch.ones_like(row), max_new_tokens=1, do_sample=True, top_k=0)
    assert set(out[:, 2].tolist()) == {1, 2, 3}
    assert torch.equal(lm(input_ids=row).logits, model.module.lm(input_ids=row).logits)


def test_a_loaded_model_keeps_its_distribution(tmp_path) -> None:
    own = made()
    own.module.lm.generation_config.suppress_tokens = None  # as any other directory
    own.save(tmp_path)
    loaded = Causal(path=str(tmp_path))
    loaded.build(SimpleNamespace())
    got = evaluate(rows(*RAGGED), [LOGP], {"policy": loaded})[LOGP.key]
    for i, (c, a) in enumerate(RAGGED):
        torch.testing.assert_close(got[i, : len(a)], naive(own.module.lm, c, a, None).detach(), atol=1e-5, rtol=1e-5)


def test_rows_padded_on_the_right_raise_no_warning(monkeypatch) -> None:
    said: list[str] = []
    log = logging.getLogger("transformers.modeling_utils")
    monkeypatch.setattr(type(log), "warning_once", lambda self, text, *a, **k: said.append(text))
    other = made(architecture="gpt2")
    evaluate(rows(*RAGGED), [LOGP], {"policy": copy.deepcopy(other)})
    other.module.lm(input_ids=torch.tensor([[2, 0]]))
    assert not said


def test_alternatives_and_support_are_stamped_by_decision(model) -> None:
    traces = model.sample([ids(2, 3), ids(4)] * 10, Sampling(max_new=6, top_k=3, top=2), noise=noise(20))
    for t in traces:
        k = len(t.action)
        assert t.info["support"].shape == (k, 3) and t.info["top"].shape == (k, 2)
        assert all(a in s for a, s in zip(t.action, t.info["support"], strict=True))
        assert (t.info["top"] == t.info["support"][:, :2]).all()
        best = t.info["top"][:, 0] == t.action
        np.testing.assert_allclose(t.logp[best], t.info["top_logp"][best, 0], atol=1e-6)


def test_what_cannot_be_honoured_is_refused(model) -> None:
    with pytest.raises(ValueError, match=r"epsilon is 0\.1"):
        model.sample([ids(2)], Sampling(epsilon=0.1), noise=noise(1))
    with pytest.raises(ValueError, match=r"token 8: expected 0 to 7"):
        model.sample([ids(2)], Sampling(ban=(8,)), noise=noise(1))
    with pytest.raises(ValueError, match="a context of 0 tokens: expected 1 to 31"):
        model.sample([ids(2), ids()], Sampling(), noise=noise(2))
    assert model.sample([], Sampling(), noise=noise(0)) == []


def test_global_generators_are_untouched(model) -> None:
    before = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    sampled(model, [ids(2, 3)] * 4, Sampling(max_new=4))
    model(rows(*RAGGED)).log_prob()
    assert torch.equal(before[0], torch.get_rng_state())
    assert (before[1] == np.random.get_state()[1]).all()  # noqa: NPY002


# ------------------------------------------------------------------------------------------------ building and keeping


@pytest.mark.parametrize(
    ("architecture", "config"),
    [
        ("gpt2", {}),
        ("qwen3", {}),
        ("gpt_neox", {}),
        ("granite", {"logits_scaling": 3.0}),
        ("gemma2", {"sliding_window": 4, "final_logit_softcapping": 5.0}),
    ],
)
def test_other_architectures(architecture, config) -> None:
    other = made(architecture=architecture, config=config)
    pairs = RAGGED + GROUPED
    got = evaluate(rows(*pairs), [LOGP], {"policy": other})[LOGP.key]
    for i, (c, a) in enumerate(pairs):
        torch.testing.assert_close(got[i, : len(a)], naive(other.module.lm, c, a).detach(), atol=1e-4, rtol=1e-4)
    batch = sampled(other, [c for c, _ in pairs], Sampling(max_new=6))
    again = evaluate(batch, [LOGP], {"policy": other})[LOGP.key]
    torch.testing.assert_close(again, batch["logp"], atol=1e-4, rtol=0)


def test_saved_and_loaded_by_transformers_and_by_us(tmp_path) -> None:
    own = made(value_head=True)
    own.save(tmp_path)
    batch = rows(*RAGGED)
    again = Causal(path=str(tmp_path), value_head=True)
    again.build(SimpleNamespace())
    assert torch.equal(again(batch).log_prob(), own(batch).log_prob())
    assert torch.equal(again(batch).value(), own(batch).value()) and bool(own(batch).value().any())
    assert again.end == own.end and again.encode("abc").tolist() == own.encode("abc").tolist()
    lm, tokenizer = AutoModelForCausalLM.from_pretrained(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    for c, a in RAGGED:
        assert torch.equal(naive(lm, c, a), naive(own.module.lm, c, a))
    assert tokenizer.decode(own.encode("fade")) == "fade"


@pytest.mark.parametrize("tied", [True, False])
def test_the_state_has_each_weight_once_and_loads_bit_equal(tied) -> None:
    own = made(tied=tied)
    state = own.module.state_dict()
    assert len({t.data_ptr() for t in state.values()}) == len(state)
    assert sum(t.numel() for t in state.values()) == sum(p.numel() for p in own.module.parameters())
    other = Causal(hidden=16, layers=2, heads=2, intermediate=24, context=32, tied=tied)
    other.build(TASK)
    other.module.load_state_dict(state)
    assert torch.equal(other(rows(*RAGGED)).log_prob(), own(rows(*RAGGED)).log_prob())


def test_a_copy_is_a_model_of_its_own() -> None:
    own = made()
    other = copy.deepcopy(own)
    before = own(rows(*RAGGED)).log_prob()
    with torch.no_grad():
        for p in other.module.parameters():
            p.mul_(0.5)
    assert torch.equal(own(rows(*RAGGED)).log_prob(), before)
    got = other(rows(*RAGGED)).log_prob()[0]
    torch.testing.assert_close(got[:3], naive(other.module.lm, *RAGGED[0]), atol=1e-5, rtol=1e-5)
    assert not torch.allclose(got, before[0])


def test_tokenizers_of_the_task() -> None:
    assert made().module.vocabulary == 8
    assert made(alphabet="01").encode("10").tolist() == [3, 2]
    problems = [Problem("t", str(i), "one two three", answer="six") for i in range(3)]
    source = type("Source", (list,), {"size": lambda self: len(self)})(problems)
    own = Causal(hidden=16, layers=1, heads=2, intermediate=24, tokenizer="bpe", vocabulary=262)
    own.build(SimpleNamespace(problems=lambda split: source))
    assert own.module.vocabulary == 262 and own.decode(own.encode("two seven")) == "two seven"


def test_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match="no causal architecture 'lama'; did you mean 'llama'"):
        Causal(architecture="lama").build(TASK)
    with pytest.raises(ValueError, match="no key 'rms_eps'; did you mean 'rms_norm_eps'"):
        Causal(config={"rms_eps": 1.0}).build(TASK)


def test_a_value_behind_a_decision_is_the_one_before_the_next() -> None:
    """It has seen the decision; that of the last one is what a critic says where the row goes on."""
    before, after = (CausalValue(hidden=16, layers=1, heads=2, intermediate=24, after=x) for x in (False, True))
    for model in (before, after):
        torch.manual_seed(0)
        model.build(TASK)
        torch.nn.init.normal_(model.module.value.weight, generator=torch.Generator().manual_seed(1))
    longer = [(context, np.append(action, 3).astype(np.int32)) for context, action in RAGGED]
    v, w = before(rows(*longer)).value(), after(rows(*RAGGED)).value()
    for i, (_, action) in enumerate(RAGGED):
        torch.testing.assert_close(w[i, : len(action)], v[i, 1 : len(action) + 1])
        assert not w[i, len(action) :].any()
    other = [(context, np.full_like(action, 6)) for context, action in RAGGED]
    moved = (after(rows(*other)).value() != w) & rows(*RAGGED)["mask"]
    assert moved.sum() == sum(len(a) for _, a in RAGGED)


def test_a_critic_answers_before_and_after_and_of_several_outputs() -> None:
    one, two = (CausalValue(hidden=16, layers=1, heads=2, intermediate=24, outputs=n) for n in (1, 2))
    late = CausalValue(hidden=16, layers=1, heads=2, intermediate=24, after=True)
    for model in (one, two, late):
        torch.manual_seed(0)
        model.build(TASK)
        torch.nn.init.normal_(model.module.value.weight[:1], generator=torch.Generator().manual_seed(1))
    two.module.value.weight.data[1] = 2 * two.module.value.weight.data[0]
    batch = rows(*RAGGED)
    torch.testing.assert_close(one(batch).after(), late(batch).value())
    both = evaluate(batch, [Need(("critic",), "value"), Need(("critic",), "after")], {"critic": two})
    assert both["critic/value"].shape == (*batch["mask"].shape, 2)
    torch.testing.assert_close(both["critic/value"], one(batch).value()[..., None] * torch.tensor([1.0, 2.0]))
    torch.testing.assert_close(both["critic/after"], one(batch).after()[..., None] * torch.tensor([1.0, 2.0]))
    live = evaluate(batch, [Need(("critic",), "after", live=True)], {"critic": one}, ("critic",))["live/critic/after"]
    assert torch.autograd.grad(live.sum(), [one.module.value.weight])[0].abs().sum() > 0

    def picked(dists, action, column):
        return dists[0].after()

    found = evaluate(batch, [Need(("critic",), picked)], {"critic": one})["critic/picked"]
    torch.testing.assert_close(found, one(batch).after())
    for wrong in ({"value_head": False, "after": True}, {"value_head": False, "outputs": 2}):
        with pytest.raises(ValueError, match="set value_head"):
            CausalValue(**wrong)
    with pytest.raises(AttributeError, match="value_head"):
        made()(batch).after()


def test_registered_under_their_names() -> None:
    assert find("model", "causal") is Causal and find("model", "causal_value") is Causal
    assert make_component("model", {"use": "causal_value"}) == CausalValue() == Causal(value_head=True)
    assert not make_component("model", {"use": "causal_value", "value_head": False}).value_head
    critic = CausalValue(hidden=16, layers=1, heads=2, intermediate=24)
    critic.build(TASK)
    assert critic(rows(*RAGGED)).value().shape == (4, 4)


def test_bfloat16_scores_nearly_the_same_and_trains_float32_parameters() -> None:
    model, rough = made(spread=0.2), made(spread=0.2, dtype="bfloat16")
    batch = rows(*RAGGED, *GROUPED)
    exact, near = (evaluate(batch, [LIVE], {"policy": m}, ["policy"])[LIVE.key] for m in (model, rough))
    assert 0 < float((exact - near).abs().max()) < 0.1
    for m, x in ((model, exact), (rough, near)):
        x.sum().backward()
        assert all(p.dtype == p.grad.dtype == torch.float32 for p in m.module.parameters())
    a, b = (torch.cat([p.grad.flatten() for p in m.module.parameters()]) for m in (model, rough))
    assert torch.nn.functional.cosine_similarity(a, b, dim=0) > 0.99


def test_what_needs_a_lean_forward_says_so() -> None:
    with pytest.raises(ValueError, match=r"gradient_checkpointing needs a layout.*gpt_neox"):
        made(architecture="gpt_neox", gradient_checkpointing=True)
    with pytest.raises(ValueError, match=r"dtype needs a layout.*gpt_neox"):
        made(architecture="gpt_neox", dtype="bfloat16")
    with pytest.raises(ValueError, match=r"'bfloat61'.*bfloat16"):
        made(dtype="bfloat61")
    assert made().packs and not made(architecture="gpt_neox").packs


def test_a_decoder_that_there_is_not_has_no_settings() -> None:
    model = made(architecture="gpt_neox")
    assert model.decoder() is model.decoder(tokens=100) is None  # the engine bounds the tokens of a forward itself
    for name, value in (("slots", 1), ("chunk", 8), ("dtype", "bfloat16")):
        with pytest.raises(ValueError, match=rf"{name} is {value!r}: expected none.*'gpt_neox'"):
            model.decoder(**{name: value})


@pytest.mark.parametrize("architecture", ["llama", "gpt_neox"])
def test_a_ban_of_all_that_may_be_said_is_refused(architecture) -> None:
    model = made(architecture=architecture)
    left = [i for i in range(model.module.vocabulary) if i not in model.module.suppressed.tolist()]
    ids = np.array([2, 3], np.int32)
    with pytest.raises(ValueError, match=f"ban names {len(left)} tokens: expected one"):
        model.sample([ids], Sampling(ban=tuple(left)), noise=CounterNoise([1]))
    (trace,) = model.sample([ids], Sampling(max_new=1, ban=tuple(left[1:])), noise=CounterNoise([1]))
    assert trace.action.tolist() == left[:1] and abs(float(trace.logp[0])) < 1e-6


def test_sampling_copies_no_weights(monkeypatch) -> None:
    model = made()
    monkeypatch.setattr(type(model.module.lean), "frozen", lambda *_: pytest.fail("a copy of all weights"))
    (trace,) = model.sample([np.array([2, 3], np.int32)], Sampling(max_new=4), noise=CounterNoise([1]))
    assert 1 <= len(trace.action) <= 4


def test_checkpointed_layers_keep_less_for_the_gradient() -> None:
    kept = []
    for more in ({}, {"gradient_checkpointing": True}):
        model, size = made(**more), 0

        def pack_hook(x: torch.Tensor) -> torch.Tensor:
            nonlocal size
            size += 0 if isinstance(x, torch.nn.Parameter) else x.numel()
            return x

        with torch.autograd.graph.saved_tensors_hooks(pack_hook, lambda x: x):
            evaluate(rows(*RAGGED), [LIVE], {"policy": model}, ["policy"])
        kept.append(size)
    assert kept[1] < kept[0] / 2
