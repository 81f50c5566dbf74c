"""Models of models, on numbers worked out by hand: products of tables, a corrected action, a mixture's density."""

from __future__ import annotations

import copy
from math import log
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from shuhari.batch import Batch
from shuhari.data import Sampling
from shuhari.kernel.noise import CounterNoise, keys
from shuhari.models.composite import Gated, Residual
from shuhari.models.deterministic import DeterministicPolicy
from shuhari.models.gaussian import SquashedPolicy
from shuhari.models.product import Product
from shuhari.models.tabular import Tabular
from shuhari.models.text.causal import Causal
from shuhari.models.text.choice import choose, mark_kept
from shuhari.needs import Need, evaluate

STATE, TWO, FOUR = spaces.Discrete(1), spaces.Discrete(2), spaces.Discrete(4)
SEEN = spaces.Box(-np.inf, np.inf, (3,))
ARM = spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 4.0], np.float32))


def task(seen: Any, does: Any) -> Any:
    return SimpleNamespace(spaces=lambda: (seen, does))


def table(*p: float) -> Tabular:
    model = Tabular()
    model.build(task(STATE, spaces.Discrete(len(p))))
    with torch.no_grad():
        model.module.logits.copy_(torch.tensor(p).log().clamp(min=-60.0))  # type: ignore[operator]
    return model


def states(action: int = 0, n: int = 1) -> Batch:
    zeros = torch.zeros(n, dtype=torch.long)
    return Batch({"mask": torch.ones(n, 1, dtype=torch.bool), "context": zeros, "action": zeros + action})


def made(model: Any, of: Any, **models: Any) -> Any:
    model.build(of)
    model.bind(models)
    return model


def probabilities(model: Any, n: int) -> list[float]:
    with torch.no_grad():
        return [float(model(states(a)).log_prob().exp()) for a in range(n)]


@pytest.mark.parametrize(("coefficient", "p"), [(0.0, 0.5), (1.0, 0.75), (2.0, 0.9), (-1.0, 0.25)])
def test_what_training_changed_is_added(coefficient: float, p: float) -> None:
    """A large model of (.5, .5), and a small one that a reward of (log 3, 0) has moved from (.2, .8): RAST by hand."""
    small, tuned = table(0.2, 0.8), table(3 * 0.2 / 1.4, 0.8 / 1.4)
    of = {"large": 1.0, "tuned": coefficient, "small": -coefficient}
    model = made(Product(of), task(STATE, TWO), large=table(0.5, 0.5), tuned=tuned, small=small)
    assert probabilities(model, 2) == pytest.approx([p, 1 - p])
    drawn = model.sample(torch.zeros(4_000, dtype=torch.long), Sampling(), noise=CounterNoise(keys(0, n=4_000)))
    assert float((drawn.action == 0).float().mean()) == pytest.approx(p, abs=0.03)
    assert drawn.logp[0].item() == pytest.approx(log(p if drawn.action[0] == 0 else 1 - p))


def test_decisions_keep_to_the_support_of_another_role() -> None:
    """NLPO by hand: of (.5, .3, .15, .05) the first three reach .9, and .5 becomes .5 / .95."""
    p = (0.5, 0.3, 0.15, 0.05)
    model = made(Product({"actor": 1.0}, "mask", top_p=0.9), task(STATE, FOUR), actor=table(*p), mask=table(*p))
    assert probabilities(model, 4) == pytest.approx([x / 0.95 for x in p[:3]] + [0.0])
    drawn = model.sample(torch.zeros(500, dtype=torch.long), Sampling(), noise=CounterNoise(keys(0, n=500)))
    assert set(drawn.action.tolist()) == {0, 1, 2}
    logits = torch.tensor([[0.5, 0.3, 0.15, 0.05], [0.05, 0.15, 0.3, 0.5]]).log()
    for sampling, first in (
        (Sampling(top_k=2), [True, True, False, False]),
        (Sampling(top_k=2, top_p=0.6), [True, False, False, False]),  # of two, renormalised: .625
        (Sampling(min_p=0.29), [True, True, True, False]),
        (Sampling(top_p=0.9), [True, True, True, False]),
    ):
        assert mark_kept(logits, sampling).tolist() == [first, first[::-1]]
        kept = choose(logits, sampling, 1.0, torch.tensor([0.5, 0.5], dtype=torch.float64)).support
        assert kept is not None and [sorted(i for i in row if i >= 0) for row in kept.tolist()] == [
            [i for i in range(4) if there[i]] for there in (first, first[::-1])
        ]


def test_gradients_run_into_the_roles_that_a_part_trains() -> None:
    models = {"actor": table(0.5, 0.5), "mask": table(0.5, 0.5)}
    models["policy"] = made(Product({"actor": 2.0, "mask": 1.0}), task(STATE, TWO), **models)
    need = Need(("policy",), "log_prob", live=True)
    column = evaluate(states(), [need], models, trains=("actor",))[need.key]
    (slope,) = torch.autograd.grad(column.sum(), models["actor"].module.parameters())
    assert slope.flatten().tolist() == pytest.approx([2 * 0.5, -2 * 0.5])  # c (1 - p)
    assert not evaluate(states(), [need], models, trains=())[need.key].requires_grad
    assert not models["policy"].module.state_dict() and not list(models["policy"].module.parameters())


def test_a_copy_is_of_the_same_models() -> None:
    actor = table(0.5, 0.5)
    model = made(Product({"actor": 1.0}), task(STATE, TWO), actor=actor)
    twin = copy.deepcopy(model)
    with torch.no_grad():
        actor.module.logits[0, 0] += log(3)  # type: ignore[index, operator]
    assert probabilities(twin, 2) == pytest.approx([0.75, 0.25])
    twin.bind({"actor": table(0.9, 0.1)})
    assert probabilities(twin, 2) == pytest.approx([0.9, 0.1]) and probabilities(model, 2)[0] == pytest.approx(0.75)


WORDS = SimpleNamespace(alphabet="abc", spaces=lambda: None)


def lm(seed: int, **fields: Any) -> Causal:
    torch.manual_seed(seed)
    model = Causal(**{"hidden": 16, "layers": 1, "heads": 2, "intermediate": 24, **fields})
    model.build(WORDS)
    with torch.no_grad():
        for p in model.module.parameters():
            p += 0.3 * torch.randn(p.shape)
    return model


def test_a_product_of_texts_is_that_of_their_logits() -> None:
    large, tuned, small = lm(0), lm(1, architecture="gpt2"), lm(2, architecture="gpt2")
    model = made(Product({"large": 1.0, "tuned": 0.5, "small": -0.5}), WORDS, large=large, tuned=tuned, small=small)
    said = [np.array(x, np.int32) for x in ([2], [2, 3, 4])]
    (first, second) = model.sample(said, Sampling(max_new=3, temperature=0.8), noise=CounterNoise(keys(0, n=2)))
    for context, trace in zip(said, (first, second), strict=True):
        ids = torch.from_numpy(np.concatenate([context, trace.action]).astype(np.int64))[None]
        with torch.no_grad():
            whole = [m.module.lm(input_ids=ids, use_cache=False).logits for m in (large, tuned, small)]
        each = [x[0, len(context) - 1 : -1] for x in whole]
        logits = (each[0] + 0.5 * each[1] - 0.5 * each[2]) / 0.8
        logits[:, model.text.pad] = -torch.inf
        wanted = logits.log_softmax(-1).gather(-1, torch.from_numpy(trace.action.astype(np.int64))[:, None])[:, 0]
        torch.testing.assert_close(torch.from_numpy(trace.logp), wanted, atol=1e-4, rtol=0)
    assert model.limit == min(large.limit, tuned.limit) and model.encode("ab").tolist() == large.encode("ab").tolist()
    alone = made(Product({"large": 1.0}), WORDS, large=large)
    again = large.sample(said, Sampling(max_new=3), noise=CounterNoise(keys(1, n=2)))
    same = alone.sample(said, Sampling(max_new=3), noise=CounterNoise(keys(1, n=2)))
    assert [t.action.tolist() for t in same] == [t.action.tolist() for t in again]


def seen(n: int) -> Tensor:
    return torch.randn(n, 3, generator=torch.Generator().manual_seed(0))


def test_a_residual_begins_as_its_base() -> None:
    base = DeterministicPolicy((8,))
    base.build(task(SEEN, ARM))
    model = made(Residual("base", (8,), scale=0.5, noise=1e-6), task(SEEN, ARM), base=base)
    x = seen(6)
    with torch.no_grad():
        alone = base.sample(x, Sampling(greedy=True), noise=CounterNoise(keys(0, n=6)))
        drawn = model.sample(x, Sampling(), noise=CounterNoise(keys(0, n=6)))
        torch.testing.assert_close(drawn.action, alone.action, atol=1e-4, rtol=0)
        torch.testing.assert_close(drawn.taken, alone.taken, atol=1e-3, rtol=0)
        assert torch.equal(drawn.info["base"][:, 0], alone.action)
        model.module.body.layers[-1].bias.fill_(100.0)  # tanh 1
        moved = model.sample(x, Sampling(greedy=True), noise=CounterNoise(keys(0, n=6))).action
    torch.testing.assert_close(moved, (alone.action + 0.5).clamp(-1, 1))
    batch = Batch({"mask": torch.ones(6, 1, dtype=torch.bool), "context": x, "action": moved})
    for p in base.module.parameters():
        assert torch.autograd.grad(model(batch).mode().sum(), [p], allow_unused=True) == (None,)


def test_a_residual_behind_a_bound_is_pulled_back() -> None:
    """A base at its bound 1 and f > 0: the mean of 1 + 0.1 tanh 0.3, of which 0.9 lies 0.129 below."""
    unit = task(spaces.Box(-1, 1, (2,)), spaces.Box(-1, 1, (1,)))
    base = DeterministicPolicy((4,))
    base.build(unit)
    model = made(Residual("base", (4,), noise=0.5), unit, base=base)
    with torch.no_grad():
        base.module.body.layers[-1].bias.fill_(50.0)
        model.module.body.layers[-1].bias.fill_(0.3)
    x = torch.ones(1, 2)
    batch = Batch({"mask": torch.ones(1, 1, dtype=torch.bool), "context": x, "action": torch.full((1, 1), 0.9)})
    mean, slope = 1 + 0.1 * np.tanh(0.3), 0.1 * (1 - np.tanh(0.3) ** 2)
    dist = model(batch)
    (found,) = torch.autograd.grad(dist.log_prob().sum(), [model.module.body.layers[-1].bias])
    assert found.item() == pytest.approx((0.9 - mean) / 0.5**2 * slope, rel=1e-4)
    assert dist.mode().item() == 1.0 and dist.parameters().item() == pytest.approx(mean)
    assert model.sample(x, Sampling(greedy=True), noise=CounterNoise(keys(0, n=1))).action.item() == 1.0
    many = model.sample(x.expand(4_000, 2), Sampling(), noise=CounterNoise(keys(0, n=4_000)))
    inside = 1 - float(torch.special.ndtr(torch.tensor((mean - 1) / 0.5)))  # of the normal at that mean
    assert float((many.action < 1).float().mean()) == pytest.approx(inside, abs=0.03)


def test_the_density_of_a_mixture() -> None:
    """Weights (.7, .3): log p = logsumexp(log w + log p of each)."""
    a, b = SquashedPolicy((8,)), SquashedPolicy((8,))
    for i, expert in enumerate((a, b)):
        torch.manual_seed(i)
        expert.build(task(SEEN, ARM))
    model = made(Gated(("a", "b"), ()), task(SEEN, ARM), a=a, b=b)
    with torch.no_grad():
        model.module.body.layers[0].weight.zero_()
        model.module.body.layers[0].bias.copy_(torch.tensor([0.7, 0.3]).log())
        x = seen(2_000)
        drawn = model.sample(x, Sampling(), noise=CounterNoise(keys(0, n=2_000)))
        assert float((drawn.info["expert"] == 0).float().mean()) == pytest.approx(0.7, abs=0.04)
        batch = Batch({"mask": torch.ones(2_000, 1, dtype=torch.bool), "context": x, "action": drawn.action,
                       "pre": drawn.info["pre"]})  # fmt: skip
        each = [m(batch).log_prob().exp() for m in (a, b)]
        torch.testing.assert_close(drawn.logp.exp(), 0.7 * each[0] + 0.3 * each[1], rtol=1e-4, atol=1e-6)
        greedy = model.sample(x, Sampling(greedy=True), noise=CounterNoise(keys(0, n=2_000))).action
        torch.testing.assert_close(greedy, a(batch).mode())
        torch.testing.assert_close(model(batch).mode(), a(batch).mode())
        assert model(batch).parameters().exp()[5, 0].tolist() == pytest.approx([0.7, 0.3])


@pytest.mark.parametrize("wrong", [lambda: Product({}), lambda: Product({"a": 1.0}, "b"), lambda: Gated(),
                                   lambda: Product({"a": 1.0}, top_p=0.9), lambda: Residual(noise=0.0)])  # fmt: skip
def test_what_cannot_be_composed_is_told(wrong: Any) -> None:
    with pytest.raises(ValueError, match="expected"):
        wrong()
