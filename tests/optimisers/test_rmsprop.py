"""RMSprop against torch.optim step by step, and the other place of epsilon by hand. The frame's own tests (state,
refusals, bindings) are in `test_adamw`."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from test_adamw import Fixed, gradients, parameters, stepped
from torch import nn

from shuhari.data import Ramp
from shuhari.optimisers.rmsprop import RMSprop


@pytest.mark.parametrize("missing", [lambda k: set(), lambda k: {k % 4}], ids=["all", "some-without"])
@pytest.mark.parametrize("clip", [0.0, 1.0])
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_steps_are_those_of_torch(decay: float, clip: float, missing: Any) -> None:
    settings: dict[str, Any] = {"alpha": 0.9, "eps": 1e-3, "weight_decay": decay}
    mine, plain = parameters(), parameters()
    optimiser = RMSprop(lr=Ramp(1e-2, 1e-3, 10), clip=clip, **settings)
    optimiser.bind(mine)
    reference = torch.optim.RMSprop(plain, **settings)
    for k in range(12):
        info = stepped(optimiser, mine, range(k, k + 1), missing)[0]
        for i, (p, g) in enumerate(zip(plain, gradients(k), strict=True)):
            p.grad = None if i in missing(k) else g
        norm = nn.utils.clip_grad_norm_(plain, clip or float("inf"))
        reference.param_groups[0]["lr"] = info["lr"]
        reference.step()
        assert info["grad_norm"] == pytest.approx(float(norm), rel=1e-5)
        for a, b in zip(mine, plain, strict=True):
            torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("inside", [False, True])
def test_two_steps_by_hand(inside: bool) -> None:
    """alpha 0.5, eps 0.25, gradients 2 then 1: s is 2, then 1.5."""
    p = nn.Parameter(torch.tensor([1.0]))
    optimiser = RMSprop(lr=0.1, alpha=0.5, eps=0.25, eps_inside=inside)
    optimiser.bind([p])
    for g in (2.0, 1.0):
        optimiser.step(Fixed([p], [torch.tensor([g])]), 0)
    first, second = (2.25**0.5, 1.75**0.5) if inside else (2**0.5 + 0.25, 1.5**0.5 + 0.25)
    assert p.item() == pytest.approx(1 - 0.1 * 2 / first - 0.1 / second)
    assert optimiser.state["square"]["0"].item() == 1.5


def test_a_restored_optimiser_goes_on_bit_for_bit() -> None:
    mine, first, second = parameters(), RMSprop(lr=1e-2, clip=1.0), RMSprop(lr=1e-2, clip=1.0)
    first.bind(mine)
    stepped(first, mine, range(3), lambda k: {k})
    twin = [nn.Parameter(p.detach().clone()) for p in mine]
    tree = first.state
    second.state = {"steps": tree["steps"].clone(), "square": {k: x.clone() for k, x in tree["square"].items()}}
    second.bind(twin)
    for optimiser, params in ((first, mine), (second, twin)):
        stepped(optimiser, params, range(3, 7), lambda k: set())
    assert all(torch.equal(a, b) for a, b in zip(mine, twin, strict=True))


def test_mistakes_are_named() -> None:
    for settings, message in (
        ({"alpha": 1.0}, "alpha is 1.0"),
        ({"eps": -1.0}, "eps is -1.0"),
        ({"lr": -1}, "lr is -1"),
    ):
        with pytest.raises(ValueError, match=message):
            RMSprop(**settings)
