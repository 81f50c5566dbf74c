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
