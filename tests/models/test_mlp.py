"""Nets against torch.nn with the same weights."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from shuhari.models.mlp import Ensemble, Mlp

MODULES = {"tanh": nn.Tanh, "relu": nn.ReLU, "silu": nn.SiLU, "gelu": nn.GELU, "elu": nn.ELU}


@pytest.mark.parametrize("activation", MODULES)
def test_an_mlp_is_linear_layers_and_activations(activation: str) -> None:
    torch.manual_seed(0)
    net = Mlp((3, 5, 4, 2), activation)
    a, b, c = net.layers
    plain = nn.Sequential(a, MODULES[activation](), b, MODULES[activation](), c)
    x = torch.randn(7, 3)
    torch.testing.assert_close(net(x), plain(x))
    assert list(net.state_dict()) == [f"layers.{i}.{w}" for i in range(3) for w in ("weight", "bias")]


def test_no_hidden_layer_is_a_linear_map() -> None:
    net = Mlp((3, 2))
    x = torch.randn(4, 3)
    torch.testing.assert_close(net(x), x @ net.layers[0].weight.T + net.layers[0].bias)


def test_orthogonal_weights_have_their_gains() -> None:
    net = Mlp((6, 16, 4), gain=0.01)
    hidden, last = (layer.weight for layer in net.layers)
    torch.testing.assert_close(hidden.T @ hidden, 2 * torch.eye(6), atol=1e-5, rtol=0)
    torch.testing.assert_close(last @ last.T, 1e-4 * torch.eye(4), atol=1e-8, rtol=0)
    assert all(not bool(layer.bias.any()) for layer in net.layers)


def test_replaced_weights_are_the_ones_used() -> None:
    """Loading by assignment, and a functional call, put other tensors where the old ones were."""
    net, other, x = Mlp((3, 4, 2)), Mlp((3, 4, 2)), torch.randn(5, 3)
    want = other(x)
    torch.testing.assert_close(torch.func.functional_call(net, dict(other.named_parameters()), (x,)), want)
    assert not torch.allclose(net(x), want)
    net.load_state_dict(other.state_dict(), assign=True)
    torch.testing.assert_close(net(x), want)


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_members_of_an_ensemble_are_independent_nets(activation: str) -> None:
    torch.manual_seed(0)
    net = Ensemble(3, (4, 6, 5, 1), activation)
    x = torch.randn(8, 4)
    out = net(x)
    assert out.shape == (3, 8, 1)
    for i in range(3):
        alone = Mlp((4, 6, 5, 1), activation)
        with torch.no_grad():
            for layer, w, b in zip(alone.layers, net.weights, net.biases, strict=True):
                layer.weight.copy_(w[i].T)
                layer.bias.copy_(b[i, 0])
        torch.testing.assert_close(out[i], alone(x))
        grads = torch.autograd.grad(out[i].sum(), list(net.weights), retain_graph=True)
        mine = torch.autograd.grad(alone(x).sum(), [layer.weight for layer in alone.layers])
        for g, m in zip(grads, mine, strict=True):
            torch.testing.assert_close(g[i], m.T)
            assert float(g[[j for j in range(3) if j != i]].abs().max()) == 0


def test_an_ensemble_starts_like_linear_layers() -> None:
    torch.manual_seed(0)
    net = Ensemble(4, (100, 50, 1))
    for w, b, k in zip(
        map(torch.detach, net.weights), map(torch.detach, net.biases), (0.1, 1 / math.sqrt(50)), strict=True
    ):
        assert float(w.abs().max()) <= k and float(b.abs().max()) <= k
        assert float(w.std()) == pytest.approx(k / math.sqrt(3), rel=0.1)
    assert not torch.equal(net.weights[0][0], net.weights[0][1])


def test_an_unknown_activation_gives_the_nearest() -> None:
    with pytest.raises(ValueError, match="did you mean 'relu'"):
        Mlp((1, 1), "rleu")


def test_hidden_layers_are_normalised_each_by_its_own():
    net, x = Mlp((3, 5, 4, 2), "relu", norm=True), torch.randn(6, 3)
    with torch.no_grad():
        for p in net.norms.parameters():
            p += 0.3 * torch.randn(p.shape)
    layers = []
    for layer, norm in zip(net.layers, net.norms, strict=False):
        layers += [layer, norm, nn.ReLU()]
    assert torch.allclose(net(x), nn.Sequential(*layers, net.layers[-1])(x), atol=1e-6)
    assert Mlp((3, 5, 2)).state_dict().keys() == {f"layers.{i}.{n}" for i in (0, 1) for n in ("weight", "bias")}


def test_members_of_an_ensemble_are_normalised_apart():
    net, x = Ensemble(3, (4, 6, 5, 1), "tanh", norm=True), torch.randn(7, 4)
    with torch.no_grad():
        for p in [*net.scales, *net.shifts]:
            p += 0.3 * torch.randn(p.shape)
    for i in range(3):
        y = x
        for w, b, scale, shift in zip(net.weights, net.biases, net.scales, net.shifts, strict=False):
            y = nn.functional.layer_norm(y @ w[i] + b[i], (w.shape[2],), scale[i, 0], shift[i, 0]).tanh()
        assert torch.allclose(net(x)[i], y @ net.weights[-1][i] + net.biases[-1][i], atol=1e-6)
    net(x).sum().backward()
    assert all(p.grad is not None and bool(p.grad.any()) for p in net.scales)
