"""Q-networks of two streams and with noise on their weights: the identity of dueling, moments of noise in closed form,
who shares a draw, and a layer against weights made one by one."""

import copy
import math
from types import SimpleNamespace

import pytest
import torch
from gymnasium import spaces

from shuhari.batch import Batch
from shuhari.data import Sampling
from shuhari.kernel.noise import CounterNoise, keys
from shuhari.models.critics import DiscreteQ
from shuhari.models.quantiles import Quantiles
from shuhari.models.readout import Bins
from shuhari.models.streams import Layer, Streams, shrink
from shuhari.testing.models import perturb

TASK = SimpleNamespace(spaces=lambda: (spaces.Box(-9, 9, (2,)), spaces.Discrete(3)))


def made(**settings):
    torch.manual_seed(0)
    model = DiscreteQ((8, 6), **settings)
    model.build(TASK)
    return perturb(model, 0.5)


def observed(n, seed=0):
    return torch.randn(n, 2, generator=torch.Generator().manual_seed(seed))


def batch_of(contexts):
    n = len(contexts)
    decided = {"mask": torch.ones(n, 1, dtype=torch.bool), "logp": torch.zeros(n, 1)}
    return Batch({"context": contexts, "action": torch.zeros(n, dtype=torch.long), **decided})


def draw(seed):
    return torch.Generator().manual_seed(seed)


# ---------------------------------------------------------------- dueling


@pytest.mark.parametrize("read", [{}, {"bins": Bins(-1, 1, 5)}, {"quantiles": Quantiles(5)}])
def test_dueling_is_value_plus_advantages_less_their_mean(read):
    """By the layers, one by one, of each stream; the mean over actions of what comes out is the value stream."""
    model, x = made(dueling=True, **read), observed(7)
    body = model.module.body

    def through(layers, x):
        for layer in layers[:-1]:
            x = (x @ layer.mean.weight.T + layer.mean.bias).relu()
        return x @ layers[-1].mean.weight.T + layers[-1].mean.bias

    m = 5 if read else 1
    shared = (x @ body.trunk[0].mean.weight.T + body.trunk[0].mean.bias).relu()
    assert [len(s) for s in (body.trunk, body.actions, body.value)] == [1, 2, 2]
    value, advantage = through(body.value, shared), through(body.actions, shared).view(7, 3, m)
    found = model.module(x).view(7, 3, m)
    torch.testing.assert_close(found, value[:, None] + advantage - advantage.mean(1, keepdim=True))
    torch.testing.assert_close(found.mean(1), value)
    q = model(batch_of(x)).all()[:, 0]
    expected = found[..., 0] if not read else (model.bins or model.quantiles).value(found)
    torch.testing.assert_close(q, expected)


def test_what_is_added_to_all_advantages_changes_nothing():
    model, x = made(dueling=True), observed(7)
    before = model.module(x)
    with torch.no_grad():
        model.module.body.actions[-1].mean.bias += 3.0
    torch.testing.assert_close(model.module(x), before)


def test_linear_streams():
    """Without hidden layers both streams are linear in the features."""
    body = Streams((4,), 3, dueling=True)
    assert len(body.trunk) == 0 and body(torch.randn(5, 4)).shape == (5, 3)


# ---------------------------------------------------------------- noise


def test_a_noisy_layer_is_one_with_the_weights_of_its_draw():
    layer, x = Layer(4, 3, sigma=0.5), observed(5).repeat(1, 2)
    g = draw(1)
    with torch.no_grad():
        layer.spread += 0.1 * torch.randn(3, 4, generator=g)
    before, behind = torch.randn(4, generator=g), torch.randn(3, generator=g)
    rows, columns = shrink(behind), shrink(before)
    weight = torch.stack([
        torch.stack([layer.mean.weight[i, j] + layer.spread[i, j] * rows[i] * columns[j] for j in range(4)])
        for i in range(3)
    ])  # fmt: skip
    bias = layer.mean.bias + layer.spread_bias * rows
    torch.testing.assert_close(layer(x, columns, rows), x @ weight.T + bias)
    assert shrink(torch.tensor([-4.0, 0.0, 9.0])).tolist() == [-2.0, 0.0, 3.0]


def test_it_begins_as_the_paper_says():
    layer = Layer(16, 3, sigma=0.5)
    assert bool((layer.mean.weight.abs() <= 1 / 4).all()) and bool((layer.mean.bias.abs() <= 1 / 4).all())
    for spread in (layer.spread, layer.spread_bias):
        assert torch.equal(spread, torch.full_like(spread, 0.125))


def test_mean_and_variance_of_the_noise_in_closed_form():
    """E f(e) = 0 and E f(e)² = E|e| = sqrt(2 / pi) = c: the variance of an output is c² Σ_j (spread_j x_j)² and c times
    the bias' spread², and two outputs of one draw have the covariance 0."""
    n, layer = 400_000, Layer(4, 2, sigma=0.5)
    x = torch.tensor([[0.5, -1.0, 2.0, 0.0]])
    g, c = draw(3), math.sqrt(2 / math.pi)
    with torch.no_grad():
        layer.spread += 0.1 * torch.randn(2, 4, generator=g)
        y = layer(x.expand(n, 4), *(shrink(torch.randn(n, size, generator=g)) for size in (4, 2)))
        variance = c**2 * (layer.spread * x).square().sum(1) + c * layer.spread_bias.square()
        torch.testing.assert_close(y.mean(0), layer(x)[0], atol=5 * float(variance.max() / n) ** 0.5, rtol=0)
        torch.testing.assert_close(y.var(0), variance, rtol=0.02, atol=0)
    assert abs(float(torch.corrcoef(y.T)[0, 1])) < 0.01


@pytest.mark.parametrize("dueling", [False, True])
def test_a_draw_is_shared_by_all_rows_and_another_is_another(dueling):
    model, x = made(noisy=True, dueling=dueling), observed(6)
    net = model.with_noise(draw(1))
    whole, means = net(batch_of(x)).all(), model(batch_of(x)).all()
    for i in range(6):
        torch.testing.assert_close(net(batch_of(x[i : i + 1])).all(), whole[i : i + 1])
    assert torch.equal(net(batch_of(x)).all(), whole)
    assert torch.equal(model.with_noise(draw(1))(batch_of(x)).all(), whole)
    assert bool((whole != means).all()) and bool((model.with_noise(draw(2))(batch_of(x)).all() != whole).all())
    torch.testing.assert_close(means[:, 0], model.module(x))


def test_every_layer_is_noisy_and_its_spread_is_learnt():
    model = made(noisy=True, dueling=True)
    model.with_noise(draw(1))(batch_of(observed(6))).value().sum().backward()
    spread = {n: p.grad for n, p in model.module.named_parameters() if "spread" in n}
    assert len(spread) == 2 * (1 + 2 + 2) and all(bool((g != 0).any()) for g in spread.values())
    assert made(dueling=True).with_noise is None


def test_decisions_draw_noise_of_their_own_and_greedy_ones_none():
    """A row's decision is that of the net under the row's noise; what its neighbours are changes nothing."""
    model, n = made(noisy=True, dueling=True), 500
    x, row_keys = observed(1).expand(n, 2).contiguous(), keys(0, n=n)
    noise = CounterNoise(row_keys)
    traces = model.sample(x, Sampling(), noise=noise)
    assert bool(traces.logp.isnan().all()) and len(traces.action.unique()) > 1
    eps = noise.normal(0, model.module.body.noise)
    for i in (0, 7, 499):
        alone = model.module.body(x[i : i + 1], eps[i])
        assert int(alone.argmax()) == int(traces.action[i])
        again = model.sample(x[i : i + 1], Sampling(), noise=CounterNoise(row_keys[i : i + 1]))
        assert int(again.action) == int(traces.action[i])
    greedy = model.sample(x, Sampling(greedy=True), noise=noise)
    assert len(greedy.action.unique()) == 1 and bool((greedy.logp == 0).all())
    assert int(greedy.action[0]) == int(model(batch_of(x[:1])).mode()) == int(model.decide(x[:1])["action"])


def test_a_copy_has_weights_of_its_own():
    model = made(noisy=True)
    twin = copy.deepcopy(model)
    perturb(twin, 1.0)
    x = batch_of(observed(4))
    assert not torch.equal(twin.with_noise(draw(1))(x).all(), model.with_noise(draw(1))(x).all())
    assert torch.equal(twin.module(observed(4)), twin(x).all()[:, 0])
