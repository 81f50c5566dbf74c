"""Masked language models by enumeration: every answer, every order and every mask of a tiny vocabulary is listed."""

from __future__ import annotations

import itertools
from math import comb, factorial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from shuhari.batch import Batch
from shuhari.data import Problem, Ramp, Request, Sampling, Step, Trajectory
from shuhari.kernel.noise import CounterNoise, keys
from shuhari.kernel.pack import pack
from shuhari.models.text.masked import Masked, draw_masks
from shuhari.models.text.unordered import Unordered
from shuhari.needs import Need, evaluate
from shuhari.testing import ModelCase, check_model, context
from shuhari.transforms.masks import Masks

TASK = SimpleNamespace(alphabet="ab", spaces=lambda: None)
PROMPTS = [np.array(ids, np.int32) for ids in ([2], [3, 2, 3], [2, 2])]
L, END = 3, 1
SAID = (END, 2, 3)  # all that it can say: the end, a and b


def made(spread: float = 0.8, **fields: Any) -> Masked:
    """A small model whose distributions are far from uniform."""
    model = Masked(**{"length": L, "hidden": 16, "heads": 2, "intermediate": 24, "context": 12, **fields})
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model.build(TASK)
        for p in model.module.parameters():
            if p.dim() > 1:
                torch.nn.init.normal_(p, std=spread)
    return model


@pytest.fixture(scope="module")
def model() -> Masked:
    return made()


def noise(n: int, *name: object) -> CounterNoise:
    return CounterNoise(keys(0, *name, n=n))


def batch_of(answers: Any, prompt: Any = PROMPTS[1], **known: Any) -> Batch:
    """One row an answer."""
    steps = [Step.of(prompt, np.array(a, np.int32), **known) for a in answers]
    return pack([Trajectory(Request(Problem("t", str(i), None)), (s,)) for i, s in enumerate(steps)])


def texts() -> list[tuple[int, ...]]:
    """All answers as they are said: to the first end, or all of the length."""
    whole = itertools.product(SAID, repeat=L)
    return sorted({y[: y.index(END) + 1] if END in y else y for y in whole})


def look(model: Masked, prompt: Any, seen: tuple[int, ...]) -> Tensor:
    """[L, V] log-probabilities by a plain forward of one masked answer, without batching."""
    ids = torch.tensor([[*prompt.tolist(), *seen]])
    logits = model.module.head(model.module(ids))[0].clone()
    logits[:, 0] = -torch.inf  # padding
    return logits.log_softmax(-1)


def in_order(model: Masked, prompt: Any, y: tuple[int, ...], order: tuple[int, ...]) -> float:
    """The log-probability of an answer that is filled in in this order."""
    total, seen = 0.0, [model.blank] * L
    for i in order:
        total += float(look(model, prompt, tuple(seen))[i, y[i]].detach())
        seen[i] = y[i]
    return total


def filled(y: tuple[int, ...]) -> tuple[int, ...]:
    return (*y, *[END] * (L - len(y)))


@torch.no_grad()
def expected_bound(model: Masked, batch: Batch) -> Tensor:
    """[B] the bound, over all masks of all sizes, weighed by their law: any number of masks as often."""
    bound = torch.zeros(len(batch))
    for size in range(1, L + 1):
        for places in itertools.combinations(range(L), size):
            masked = torch.zeros(len(batch), L, dtype=torch.bool)
            masked[:, list(places)] = True
            bound += one_draw(model, batch, masked) / (L * comb(L, size))
    return bound


def one_draw(model: Masked, batch: Batch, masked: Tensor) -> Tensor:
    """[B] the bound on one draw of masks [B, L], by plain forwards."""
    out = []
    for step, mask in zip(batch.steps, masked.tolist(), strict=True):
        y = filled(tuple(np.asarray(step.action).tolist()))
        seen = tuple(model.blank if m else t for m, t in zip(mask, y, strict=True))
        logs = look(model, step.context, seen)
        out.append(sum(float(logs[i, y[i]].detach()) for i in range(L) if mask[i]) * L / sum(mask))
    return torch.tensor(out)


# ---------------------------------------------------------------- from left to right


def test_the_probabilities_of_all_answers_sum_to_one(model: Masked) -> None:
    for prompt in PROMPTS:
        with torch.no_grad():
            logp = model(batch_of(texts(), prompt)).log_prob().sum(1)
        assert float(logp.exp().sum()) == pytest.approx(1, abs=1e-5)


def test_from_left_to_right_it_is_the_chain_of_plain_forwards(model: Masked) -> None:
    with torch.no_grad():
        logp = model(batch_of(texts())).log_prob()
    for row, y in zip(logp.tolist(), texts(), strict=True):
        seen, wanted = [model.blank] * L, []
        for i, token in enumerate(y):
            wanted.append(float(look(model, PROMPTS[1], tuple(seen))[i, token].detach()))
            seen[i] = token
        assert row[: len(y)] == pytest.approx(wanted, abs=1e-5)
        assert not any(row[len(y) :])


def test_what_it_says_is_as_frequent_as_it_is_likely(model: Masked) -> None:
    n = 20_000
    said = model.sample([PROMPTS[1]] * n, Sampling(max_new=L), noise=noise(n))
    with torch.no_grad():
        p = model(batch_of(texts())).log_prob().sum(1).exp().numpy()
    found = {y: 0 for y in texts()}
    for trace in said:
        found[tuple(trace.action.tolist())] += 1
    share = np.array([found[y] / n for y in texts()])
    assert (np.abs(share - p) <= 4.5 * np.sqrt(p * (1 - p) / n) + 1e-4).all()


@pytest.mark.parametrize("temperature", [0.5, Ramp(0.5, 2.0, 3)])
def test_a_temperature_is_that_of_each_decision(model: Masked, temperature: Any) -> None:
    sampling = Sampling(temperature=temperature, max_new=L)
    traces = model.sample(PROMPTS, sampling, noise=noise(3))
    steps = [Step.of(c, t.action, t.logp, sampling=sampling) for c, t in zip(PROMPTS, traces, strict=True)]
    batch = pack([Trajectory(Request(Problem("t", str(i), None)), (s,)) for i, s in enumerate(steps)])
    with torch.no_grad():
        torch.testing.assert_close(model(batch).log_prob(), batch["logp"], atol=1e-5, rtol=0)
        plain = model(batch.put({"temperature": torch.ones(3, batch.width)})).log_prob()
        assert not torch.allclose(plain, batch["logp"])


def test_fewer_tokens_than_masks_may_be_said(model: Masked) -> None:
    traces = model.sample([PROMPTS[0]] * 50, Sampling(max_new=2), noise=noise(50))
    whole = model.sample([PROMPTS[0]] * 50, Sampling(max_new=L), noise=noise(50))
    for short, long in zip(traces, whole, strict=True):
        assert short.action.tolist() == long.action[:2].tolist()


# ---------------------------------------------------------------- other numbers of an answer


def test_one_step_is_what_masks_alone_say(model: Masked) -> None:
    with torch.no_grad():
        found = model(batch_of(texts())).one_step()
    logs = look(model, PROMPTS[1], (model.blank,) * L).detach()
    for row, y in zip(found.tolist(), texts(), strict=True):
        assert row[: len(y)] == pytest.approx([float(logs[i, t]) for i, t in enumerate(y)], abs=1e-5)


def test_the_bound_is_the_mean_over_all_orders_and_lies_below_the_probability(model: Masked) -> None:
    """Masks of all sizes, weighed, are the steps of all orders (an identity), so by Jensen the bound is below the log
    of the mean over orders of the answer's probability, and that below the best order's."""
    whole = list(itertools.product(SAID, repeat=L))
    whole = [y for y in whole if END not in y or set(y[y.index(END) :]) == {END}]
    batch = batch_of([y[: y.index(END) + 1] if END in y else y for y in whole])
    bound = expected_bound(model, batch)
    orders = [[in_order(model, PROMPTS[1], y, o) for o in itertools.permutations(range(L))] for y in whole]
    logs = torch.tensor(orders)
    torch.testing.assert_close(bound, logs.mean(1), atol=1e-4, rtol=1e-4)
    exact = logs.logsumexp(1) - np.log(factorial(L))
    assert bool((bound <= exact + 1e-5).all()) and bool((exact <= logs.amax(1) + 1e-5).all())
    assert float((exact - bound).max()) > 1e-3, "the bound is the probability: the check would be empty"


def test_draws_are_those_of_the_columns_and_weigh_as_they_say(model: Masked) -> None:
    batch = batch_of(texts())
    B, n = len(batch), 5
    g = torch.Generator().manual_seed(0)
    key = torch.randint(0, 2**53, (B, n), generator=g)
    level, weight = torch.rand(B, n, generator=g), torch.rand(B, n, generator=g)
    batch = batch.put({"mask_key": key, "mask_level": level, "mask_weight": weight})
    with torch.no_grad():
        draws, elbo = model(batch).draws(), model(batch).elbo()
    assert draws.shape == (B, batch.width, n)
    torch.testing.assert_close(elbo, draws.sum(-1))
    for j in range(n):
        masked = draw_masks(key[:, j], (level[:, j] * L).long() + 1, L)
        torch.testing.assert_close(draws[:, :, j].sum(1), one_draw(model, batch, masked) * weight[:, j])
    again = batch.take(torch.tensor([4])).put({})
    with torch.no_grad():
        torch.testing.assert_close(model(again).draws()[0], draws[4], atol=1e-5, rtol=0)


def test_random_draws_are_right_on_average_and_more_of_them_are_surer(model: Masked) -> None:
    batch = batch_of([(2, 3, 2)] * 4000)
    exact = expected_bound(model, batch.take(torch.tensor([0])))
    found = {n: sums(model, Masks(n), batch) for n in (1, 4)}
    for x in found.values():
        assert abs(float(x.mean() - exact)) < 4.5 * float(x.std()) / len(x) ** 0.5
    assert float(found[4].var()) == pytest.approx(float(found[1].var()) / 4, rel=0.15)


def test_nodes_of_a_quadrature_are_nearer_than_as_many_random_draws(model: Masked) -> None:
    """GDPO's claim: most of the variance is that of the level; with as many draws the error is smaller."""
    batch = batch_of([(2, 3, 2)] * 4000)
    exact = expected_bound(model, batch.take(torch.tensor([0])))
    random, fixed = (sums(model, Masks(3, law), batch) for law in ("random", "quadrature"))
    assert float(((fixed - exact) ** 2).mean()) < 0.9 * float(((random - exact) ** 2).mean())


def sums(model: Masked, masks: Masks, batch: Batch) -> Tensor:
    """[B] the bound of each row on the draws of this transform."""
    with torch.no_grad():
        return model(masks(batch, context())).elbo().sum(1)


def test_gauss_and_legendre_are_exact_for_polynomials() -> None:
    out = Masks(2, "quadrature")(batch_of(texts()), context())
    level, weight = out["mask_level"].double(), out["mask_weight"].double()
    for degree in range(4):
        assert (weight * level**degree).sum(1)[0] == pytest.approx(1 / (degree + 1), abs=1e-6)
    three = Masks(3, "quadrature")(batch_of(texts()), context())
    assert three["mask_level"][0].tolist() == pytest.approx([0.112702, 0.5, 0.887298], abs=1e-6)
    assert three["mask_weight"][0].tolist() == pytest.approx([5 / 18, 8 / 18, 5 / 18], abs=1e-6)


def test_any_number_of_tokens_is_masked_as_often_anywhere() -> None:
    n, length = 20_000, 5
    out = Masks(1)(batch_of([(2, 3, 2)] * n), context())
    count = (out["mask_level"][:, 0] * length).long() + 1
    masked = draw_masks(out["mask_key"][:, 0], count, length)
    assert torch.equal(masked.sum(1), count)
    sizes = torch.bincount(count, minlength=length + 1)[1:] / n
    assert sizes.tolist() == pytest.approx([1 / length] * length, abs=4.5 * 0.4 / n**0.5)
    assert masked.double().mean(0).tolist() == pytest.approx([0.6] * length, abs=4.5 * 0.5 / n**0.5)
    assert len(out["mask_key"].unique()) == n


def test_what_is_behind_the_end_is_counted_at_the_end(model: Masked) -> None:
    """An answer of one token bounds the whole: all masks, those behind it too."""
    batch = batch_of([(END,)]).put({
        "mask_key": torch.tensor([[1]]), "mask_level": torch.tensor([[0.99]]), "mask_weight": torch.tensor([[1.0]]),
    })  # fmt: skip
    logs = look(model, PROMPTS[1], (model.blank,) * L).detach()
    assert model(batch).elbo().detach().item() == pytest.approx(float(logs[:, END].sum()), abs=1e-4)


def test_gradients_are_those_of_plain_forwards(model: Masked) -> None:
    batch = Masks(3)(batch_of(texts()), context())
    for name in ("log_prob", "one_step", "elbo", "draws"):
        need = Need(("policy",), name, live=True)
        column = evaluate(batch, [need], {"policy": model}, trains=("policy",))[need.key]
        grads = torch.autograd.grad(column.sum(), [*model.module.parameters()], allow_unused=True)
        assert any(g is not None and bool(g.abs().sum() > 0) for g in grads)
        assert not evaluate(batch, [need], {"policy": model})[need.key].requires_grad
    weight = model.module.head.bias
    (got,) = torch.autograd.grad(model(batch_of([(2, 3, 2)])).log_prob().sum(), [weight])
    seen, wanted = [model.blank] * L, torch.zeros(())
    for i, token in enumerate((2, 3, 2)):
        wanted = wanted + look(model, PROMPTS[1], tuple(seen))[i, token]
        seen[i] = token
    torch.testing.assert_close(got, torch.autograd.grad(wanted, [weight])[0], atol=1e-5, rtol=1e-4)


# ---------------------------------------------------------------- other orders


def bound_to(model: Masked, **fields: Any) -> Unordered:
    other = Unordered(**fields)
    other.bind({"policy": model})
    return other


def test_left_is_what_the_model_says_itself(model: Masked) -> None:
    mine = model.sample(PROMPTS, Sampling(max_new=L), noise=noise(3))
    other = bound_to(model, order="left").sample(PROMPTS, Sampling(max_new=L), noise=noise(3))
    for a, b in zip(mine, other, strict=True):
        assert a.action.tolist() == b.action.tolist()
        np.testing.assert_allclose(a.logp, b.logp, atol=1e-5)


def test_by_confidence_the_surest_proposal_is_kept(model: Masked) -> None:
    """Greedily, by hand: of the most probable tokens of all masks the most probable one, again and again."""
    traces = bound_to(model).sample(PROMPTS, Sampling(max_new=L, greedy=True), noise=noise(3))
    for prompt, trace in zip(PROMPTS, traces, strict=True):
        seen = [model.blank] * L
        while model.blank in seen:
            p, ids = look(model, prompt, tuple(seen)).max(-1)
            best = max((i for i in range(L) if seen[i] == model.blank), key=p.tolist().__getitem__)
            seen[best] = int(ids[best])
            if END in seen:
                seen[seen.index(END) :] = [END] * (L - seen.index(END))
        assert trace.action.tolist() == (seen[: seen.index(END) + 1] if END in seen else seen)


def test_all_at_once_is_as_frequent_as_one_step_is_likely(model: Masked) -> None:
    n = 20_000
    other = bound_to(model, order="random", at_once=L)
    found = {y: 0 for y in texts()}
    for trace in other.sample([PROMPTS[1]] * n, Sampling(max_new=L), noise=noise(n)):
        found[tuple(trace.action.tolist())] += 1
    with torch.no_grad():
        p = model(batch_of(texts())).one_step().sum(1).exp().numpy()
    assert p.sum() == pytest.approx(1, abs=1e-5)
    share = np.array([found[y] / n for y in texts()])
    assert (np.abs(share - p) <= 4.5 * np.sqrt(p * (1 - p) / n) + 1e-4).all()


def test_a_random_order_is_the_mean_over_orders(model: Masked) -> None:
    """Answers without an end, which orders treat alike."""
    n, answers = 20_000, list(itertools.product((2, 3), repeat=L))
    found = {y: 0 for y in answers}
    for trace in bound_to(model, order="random").sample([PROMPTS[1]] * n, Sampling(max_new=L), noise=noise(n)):
        y = tuple(trace.action.tolist())
        if y in found:
            found[y] += 1
    for y in answers:
        p = float(np.mean([np.exp(in_order(model, PROMPTS[1], y, o)) for o in itertools.permutations(range(L))]))
        assert abs(found[y] / n - p) <= 4.5 * (p * (1 - p) / n) ** 0.5 + 1e-4


def test_what_it_traces_is_the_probability_from_left_to_right(model: Masked) -> None:
    other = bound_to(model)
    traces = other.sample(PROMPTS, Sampling(max_new=2), noise=noise(3))
    steps = [Step.of(c, t.action, t.logp) for c, t in zip(PROMPTS, traces, strict=True)]
    batch = pack([Trajectory(Request(Problem("t", str(i), None)), (s,)) for i, s in enumerate(steps)])
    with torch.no_grad():
        torch.testing.assert_close(other(batch).log_prob(), batch["logp"], atol=1e-5, rtol=0)
    assert other.kind == "bound" and model.kind == "exact"


# ---------------------------------------------------------------- contract and errors


@pytest.mark.parametrize("layers", [1, 2])
def test_it_is_a_policy_as_any_other(layers: int) -> None:
    def prompts(n: int) -> list[np.ndarray]:
        rng = np.random.default_rng(5)
        return [rng.integers(2, 4, size).astype(np.int32) for size in rng.integers(1, 6, n)]

    settings = (Sampling(max_new=L), Sampling(temperature=0.7, max_new=2))
    case = ModelCase("masked", lambda: Masked(L, 16, layers, 2, 16, 12), TASK, prompts, settings, rows=1000, nudge=0.05)
    check_model(case)


def test_what_it_cannot_do_is_refused(model: Masked) -> None:
    with pytest.raises(ValueError, match=r"hidden is 10 and heads 4"):
        Masked(hidden=10)
    with pytest.raises(ValueError, match="room for a prompt"):
        Masked(length=16, context=16)
    with pytest.raises(ValueError, match="an answer of 4 tokens: expected at most 3"):
        model(batch_of([(2, 2, 2, 2)])).log_prob()
    with pytest.raises(ValueError, match="a prompt of 13 tokens"):
        model.sample([np.full(13, 2, np.int32)], Sampling(), noise=noise(1))
    with pytest.raises(ValueError, match="top_p"):
        model.sample(PROMPTS, Sampling(top_p=0.5), noise=noise(3))
    with pytest.raises(KeyError, match="transform 'draw_masks'"):
        model(batch_of(texts())).elbo()
    with pytest.raises(TypeError, match="fills in masks"):
        Unordered().bind({"policy": SimpleNamespace(roles=())})  # type: ignore[dict-item]
    with pytest.raises(ValueError, match="reads text"):
        Masked().build(SimpleNamespace(spaces=lambda: (1, 2)))
