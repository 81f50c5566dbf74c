"""Needs: keys, one forward a model, gradients where they belong, chunks, closing rows."""

from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import shuhari.needs
from shuhari.batch import Batch
from shuhari.needs import Need, Traces, distinct, evaluate, gather, role_model

MASK = torch.tensor([[True, True, False], [True, False, False], [False, False, False]])


def batch(**columns):
    whole = {
        "mask": MASK,
        "action": torch.arange(9).view(3, 3),
        "length": torch.tensor([3, 2, 1]),
        "x": torch.arange(3.0),
    }
    return Batch({**whole, **columns})


class Model:
    """A number a position; counts its forwards."""

    def __init__(self, scale):
        self.module = nn.Linear(1, 3, bias=False)
        nn.init.constant_(self.module.weight, scale)
        self.forwards = 0

    def __call__(self, batch):
        self.forwards += 1
        x = self.module(batch["x"][:, None] + 1)  # [B, K]

        def at(index):
            return SimpleNamespace(x=x.flatten()[index])

        return SimpleNamespace(log_prob=lambda: x, value=lambda: x * 10, kl=lambda other: x - other.x, x=x, at=at)


def models():
    return {"policy": Model(1.0), "reference": Model(0.5)}


def scaled(dists, action, column):
    """The difference of two roles times the action plus the row's x."""
    return (dists[0].x - dists[1].x) * action + column("x") + column("wide")


def test_keys():
    assert Need(("policy",), "log_prob", live=True).key == "live/policy/log_prob"
    assert Need(("policy", "reference"), "kl").key == "policy/kl:reference"
    assert Need(("policy", "a", "b"), scaled).key == "policy/scaled:a,b"
    with pytest.raises(TypeError, match=r"\('policy',\)"):
        Need("policy", "log_prob")


def test_one_forward_a_model_and_zero_where_nothing_was_decided():
    ms = models()
    needs = [
        Need(("policy",), "log_prob"),
        Need(("policy", "reference"), "kl"),
        Need(("reference",), "value", live=True),
    ]
    out = evaluate(batch(), needs, ms)
    assert ms["policy"].forwards == ms["reference"].forwards == 1
    assert out["policy/log_prob"].tolist() == [[1, 1, 0], [2, 0, 0], [0, 0, 0]]
    assert out["policy/kl:reference"].tolist() == [[0.5, 0.5, 0], [1, 0, 0], [0, 0, 0]]
    assert out["live/reference/value"].tolist() == [[5, 5, 0], [10, 0, 0], [0, 0, 0]]


def test_the_value_of_a_closing_row_is_scored():
    out = evaluate(batch(), [Need(("policy",), "value")], models())
    assert out["policy/value"].tolist() == [[10, 10, 0], [20, 0, 0], [30, 0, 0]]


def test_gradients_flow_only_into_the_roles_trained():
    ms = models()
    out = evaluate(batch(), [Need(("policy", "reference"), "kl", live=True)], ms, ("policy",))
    out["live/policy/kl:reference"].sum().backward()
    assert ms["policy"].module.weight.grad.abs().sum() > 0 and ms["reference"].module.weight.grad is None
    assert not evaluate(batch(), [Need(("reference",), "log_prob")], ms, ("policy",))[
        "reference/log_prob"
    ].requires_grad


def test_two_roles_may_be_one_model():
    model = Model(1.0)
    evaluate(batch(), [Need(("policy", "twin"), "kl")], {"policy": model, "twin": model})
    assert model.forwards == 1


@pytest.mark.parametrize("chunk", [1, 2, 100])
@pytest.mark.parametrize("grad", [True, False])
def test_functionals_see_decisions_in_chunks(monkeypatch, chunk, grad):
    monkeypatch.setattr(shuhari.needs, "CHUNK", chunk)
    ms, data = models(), batch(wide=torch.arange(9.0).view(3, 3) * 100)
    need = Need(("policy", "reference"), scaled, live=grad)
    with torch.set_grad_enabled(grad):
        out = evaluate(data, [need], ms, ("policy",))[need.key]
    # (1 - 0.5)(x + 1) action + x + wide
    assert out.tolist() == [[0, 0.5 + 100, 0], [3 + 1 + 300, 0, 0], [0, 0, 0]]
    if grad:
        out.sum().backward()  # d/dw_k of (x + 1) w_k action
        assert ms["policy"].module.weight.grad.flatten().tolist() == [0 + 2 * 3, 1, 0]


def test_what_a_run_lacks_is_named():
    with pytest.raises(KeyError, match="no role 'polcy' among the models; did you mean 'policy'"):
        role_model(models(), "polcy")
    with pytest.raises(AttributeError, match="has no 'logprob'; did you mean 'log_prob'"):
        evaluate(batch(), [Need(("policy",), "logprob")], models())


@pytest.mark.parametrize("tokens", [None, 1, 3, 6])
def test_gathering_in_pieces_changes_nothing(tokens):
    ms = models()
    needs = [Need(("policy",), "log_prob"), Need(("policy",), "value"), Need(("policy",), "log_prob", live=True)]
    out = gather(batch(), needs, ms, tokens)
    assert out["policy/log_prob"].tolist() == [[1, 1, 0], [2, 0, 0], [0, 0, 0]]
    assert out["policy/value"][:, 0].tolist() == [10, 20, 30] and needs[2] not in out
    before = ms["policy"].forwards
    assert gather(out, needs, ms, tokens) is out and ms["policy"].forwards == before


def test_traces_are_a_sequence_of_traces():
    traces = Traces(
        torch.tensor([[1.0], [2.0]]), torch.tensor([[-1.0], [-2.0]]), 3, {"entropy": torch.tensor([0.1, 0.2])}
    )
    assert len(traces) == 2 and [float(t.action[0]) for t in traces] == [1, 2]
    assert traces[1].version == 3 and float(traces[1].info["entropy"]) == pytest.approx(0.2)


def named(name, value):
    def functional(dists, action, column):
        return dists[0].x * value

    functional.__name__ = name
    return functional


@dataclass(frozen=True)
class Times:
    value: float

    def __call__(self, dists, action, column):
        return dists[0].x * self.value


def test_functionals_have_names_of_their_own():
    with pytest.raises(ValueError, match="<lambda> of a need has no name"):
        Need(("policy",), lambda dists, action, column: action)
    with pytest.raises(ValueError, match="define it with def"):
        Need(("policy",), partial(scaled, 1))
    two, three = Need(("policy",), named("f", 2)), Need(("policy",), named("f", 3))
    for call in (evaluate, gather):
        with pytest.raises(ValueError, match="share the column 'policy/f'"):
            call(batch(), [two, three], models())
    assert distinct([two, two, Need(("policy",), two.name)]) == [two]
    out = gather(batch(), [Need(("policy",), Times(2.0)), Need(("policy",), Times(3.0))], models())
    assert out["policy/Times(value=2.0)"][1, 0] == 4 and out["policy/Times(value=3.0)"][1, 0] == 6


@pytest.mark.parametrize("tokens", [None, 3])
def test_what_is_gathered_is_remembered(tokens):
    out = gather(batch(), [Need(("policy",), "log_prob")], models(), tokens)
    assert out.scored == {"policy/log_prob"}


def test_a_dense_action_stands_whole_at_each_decision_of_its_row():
    """Of three denoising steps that made an action of three numbers; one number in one step is no token either."""

    def taken(dists, action, column):
        assert action.shape == (len(column("wide")), 3) and column("context/x").shape == action.shape
        return action.sum(1) + column("wide")

    wide = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    action = torch.tensor([[10.0, 20.0, 30.0], [0.0, 1.0, 0.0]])
    mask = torch.tensor([[True, True, True], [True, False, False]])
    chain = Batch({"mask": mask, "action": action, "wide": wide, "context/x": action, "x": torch.arange(2.0)})
    need = Need(("policy",), taken)
    out = gather(chain, [need], models())[need]
    assert out.tolist() == [[61, 62, 63], [5, 0, 0]]

    def single(dists, action, column):
        assert action.shape == (2, 1)
        return action[:, 0]

    one = Batch({"mask": mask[:, :1], "action": action[:, :1], "x": torch.arange(2.0)})
    assert gather(one, [Need(("policy",), single)], models())["policy/single"].tolist() == [[10], [0]]
