"""Adam and AdamW against torch.optim, step by step; state, clip and refusals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from shuhari.data import Ramp
from shuhari.events import Committed, Updated, When
from shuhari.optimisers.adamw import Adam, AdamW
from shuhari.optimisers.rmsprop import RMSprop

SHAPES = ((3, 4), (4,), (2, 3, 2), ())


def parameters() -> list[nn.Parameter]:
    g = torch.Generator().manual_seed(0)
    return [nn.Parameter(torch.randn(s, generator=g)) for s in SHAPES]


class Fixed:
    """An evaluation whose gradients are given."""

    def __init__(self, params: Sequence[nn.Parameter], grads: Sequence[Tensor | None]) -> None:
        self.params, self.grads = params, grads

    def backward(self) -> dict[str, Any]:
        for p, g in zip(self.params, self.grads, strict=True):
            p.grad = g
        return {"loss": 1.5}

    gradients: Any = None
    values: Any = None
    hvp: Any = None


def gradients(k: int) -> list[Tensor]:
    g = torch.Generator().manual_seed(100 + k)
    return [torch.randn(s, generator=g) for s in SHAPES]


def stepped(optimiser: Any, params: list[nn.Parameter], steps: range, missing: Callable[[int], set[int]]) -> list[Any]:
    infos = []
    for k in steps:
        grads = [None if i in missing(k) else g for i, g in enumerate(gradients(k))]
        infos.append(optimiser.step(Fixed(params, grads), float(k)))
    return infos


@pytest.mark.parametrize("missing", [lambda k: set(), lambda k: {k % 4}], ids=["all", "some-without"])
@pytest.mark.parametrize("clip", [0.0, 1.0, 1e6])
@pytest.mark.parametrize(("ours", "theirs"), [(Adam, torch.optim.Adam), (AdamW, torch.optim.AdamW)])
def test_steps_are_those_of_torch(ours: Any, theirs: Any, clip: float, missing: Any) -> None:
    settings: dict[str, Any] = {"betas": (0.8, 0.95), "eps": 1e-6, "weight_decay": 0.1}
    mine, plain = parameters(), parameters()
    optimiser = ours(lr=Ramp(1e-2, 1e-3, 10), clip=clip, **settings)
    optimiser.bind(mine)
    reference = theirs(plain, **settings)
    for k in range(12):
        info = stepped(optimiser, mine, range(k, k + 1), missing)[0]
        for i, (p, g) in enumerate(zip(plain, gradients(k), strict=True)):
            p.grad = None if i in missing(k) else g
        norm = nn.utils.clip_grad_norm_(plain, clip or float("inf"))
        reference.param_groups[0]["lr"] = 1e-2 - 9e-3 * min(k / 10, 1)
        reference.step()
        assert info["loss"] == 1.5
        assert info["grad_norm"] == pytest.approx(float(norm), rel=1e-5)
        assert info["lr"] == pytest.approx(reference.param_groups[0]["lr"])
        for a, b in zip(mine, plain, strict=True):
            torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-5)


def test_gradients_may_be_views_of_any_layout() -> None:
    """A transposed, an expanded and a shared gradient: autograd gives all three."""
    transposed, one = torch.randn(4, 3).t(), torch.tensor([0.5])
    grads = [transposed, one.expand(4), torch.randn(2, 2, 3).transpose(1, 2), one[0]]
    mine, plain = parameters(), parameters()
    optimiser = Adam(clip=0.1)
    optimiser.bind(mine)
    optimiser.step(Fixed(mine, grads), 0)
    reference = Adam(clip=0.1)
    reference.bind(plain)
    reference.step(Fixed(plain, [g.clone(memory_format=torch.contiguous_format) for g in grads]), 0)
    assert all(torch.equal(a, b) for a, b in zip(mine, plain, strict=True))
    assert one.item() == 0.5, "the clip changed a gradient that somebody else may hold"


@pytest.mark.parametrize("after", [0, 5])
@pytest.mark.parametrize("early", [False, True], ids=["restored-bound", "restored-unbound"])
def test_a_restored_optimiser_goes_on_bit_for_bit(after: int, early: bool) -> None:
    def some(k: int) -> set[int]:
        return {1} if k % 3 == 0 else set()

    mine, first = parameters(), AdamW(lr=1e-2, clip=1.0, weight_decay=0.01)
    first.bind(mine)
    stepped(first, mine, range(after), some)
    saved = _saved(first.state)
    twin, second = [nn.Parameter(p.detach().clone()) for p in mine], AdamW(lr=1e-2, clip=1.0, weight_decay=0.01)
    if early:
        second.state = saved
    second.bind(twin)
    if not early:
        second.state = saved
    stepped(first, mine, range(after, 9), some)
    stepped(second, twin, range(after, 9), some)
    assert all(torch.equal(a, b) for a, b in zip(mine, twin, strict=True))
    assert _flat(first.state) == _flat(second.state)
    assert AdamW().state == {}


def _saved(tree: dict[str, Any]) -> dict[str, Any]:
    return {k: _saved(v) if isinstance(v, dict) else v.clone() for k, v in tree.items()}


def _flat(tree: dict[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for k, v in tree.items():
        assert isinstance(k, str)
        out |= {f"{k}/{n}": x for n, x in _flat(v).items()} if isinstance(v, dict) else {k: v.tolist()}
    return out


def test_a_state_of_other_parameters_is_refused() -> None:
    first, second, third = AdamW(), AdamW(), AdamW()
    first.bind(parameters())
    second.bind(parameters()[:2])
    with pytest.raises(ValueError, match="of 4 parameters: this one has 2"):
        second.state = first.state
    third.bind([*parameters()[:3], nn.Parameter(torch.zeros(5))])
    with pytest.raises(ValueError, match=r"parameter 3 of shape \(\): expected \(5,\)"):
        third.state = first.state


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_gradient_that_is_not_finite_changes_nothing(bad: float) -> None:
    params, optimiser = parameters(), AdamW(weight_decay=0.1, clip=1.0)
    optimiser.bind(params)
    stepped(optimiser, params, range(2), lambda k: set())
    before, state = [p.detach().clone() for p in params], _flat(optimiser.state)
    grads = gradients(3)
    grads[2][0, 0, 0] = bad
    with pytest.raises(FloatingPointError, match=f"not finite \\(norm {bad}\\)"):
        optimiser.step(Fixed(params, grads), 0)
    assert all(torch.equal(a, b) for a, b in zip(params, before, strict=True))
    assert _flat(optimiser.state) == state


def test_nothing_to_learn_from_is_no_step() -> None:
    params, optimiser = parameters(), AdamW(weight_decay=0.5)
    optimiser.bind(params)
    info = optimiser.step(Fixed(params, [None] * 4), 0)
    assert info["grad_norm"] == 0
    assert all(torch.equal(a, b) for a, b in zip(params, parameters(), strict=True))


def test_mixed_precision_parameters_step_together() -> None:
    low, high = nn.Parameter(torch.ones(3, dtype=torch.bfloat16)), nn.Parameter(torch.ones(2))
    optimiser = AdamW(lr=0.5)
    optimiser.bind([low, high])
    norm = optimiser.step(Fixed([low, high], [torch.ones(3, dtype=torch.bfloat16), torch.ones(2)]), 0)["grad_norm"]
    assert norm == pytest.approx(5**0.5)
    assert low.tolist() == [0.5] * 3 and high.tolist() == pytest.approx([0.5] * 2)


def test_a_parameter_out_of_memory_order_is_refused() -> None:
    with pytest.raises(ValueError, match=r"parameter 1 of shape \(3, 2\) is not contiguous"):
        AdamW().bind([nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(2, 3).t())])


def test_a_new_binding_keeps_the_moments_of_parameters_that_stay() -> None:
    params, fresh = parameters(), nn.Parameter(torch.zeros(2))
    optimiser = AdamW()
    optimiser.bind(params)
    stepped(optimiser, params, range(3), lambda k: set())
    old = optimiser.state
    optimiser.bind([fresh, params[2], params[0]])
    new = optimiser.state
    assert new["steps"].tolist() == [0, 3, 3]
    assert new["mean"]["0"].tolist() == [0, 0]
    for name in ("mean", "square"):
        assert torch.equal(new[name]["1"], old[name]["2"])
        assert torch.equal(new[name]["2"], old[name]["0"])
    before = params[1].clone()
    optimiser.step(Fixed([fresh, params[2], params[0]], [torch.ones(2), *gradients(9)[2::-2]]), 3.0)
    assert optimiser.state["steps"].tolist() == [1, 4, 4]
    assert torch.equal(params[1], before)  # it is no longer owned


@pytest.mark.parametrize("make", [AdamW, Adam, RMSprop])
def test_a_reset_is_a_fresh_optimiser_at_the_same_weights(make: Any) -> None:
    """Its moments and counts are 0, so the bias correction starts again; the schedule of its rate goes on."""
    rate = Ramp(1e-2, 1e-3, 10)
    mine, first = parameters(), make(lr=rate, clip=1.0, reset=When(on="step", every=2))
    first.observe(Committed(0))
    first.bind(mine)
    stepped(first, mine, range(3), lambda k: set())
    first.observe(Updated("main", {}))
    kept = _flat(first.state)
    first.observe(Committed(1))
    assert kept["steps"] == [3] * 4 and not any(_leaves(_flat(first.state).values()))
    twin, fresh = [nn.Parameter(p.detach().clone()) for p in mine], make(lr=rate, clip=1.0)
    fresh.bind(twin)
    told = [stepped(o, p, range(3, 6), lambda k: set()) for o, p in ((first, mine), (fresh, twin))]
    assert told[0] == told[1] and all(torch.equal(a, b) for a, b in zip(mine, twin, strict=True))
    first.observe(Committed(2))
    assert first.state["steps"].tolist() == [3] * 4, "it comes every second step"


def _leaves(x: Any) -> list[float]:
    return [x] if isinstance(x, float | int) else [y for each in x for y in _leaves(each)]


def test_weights_are_rounded_and_steps_too_small_to_be_seen_add_up() -> None:
    """The exact weights are those of torch's own; what stands in the model is them, rounded."""
    mine, plain = parameters(), parameters()
    ours, theirs = AdamW(lr=1e-4, weight_decay=0.1, store="bfloat16"), torch.optim.AdamW(plain, 1e-4, weight_decay=0.1)
    ours.bind(mine)
    still = moved = 0
    for k in range(40):
        before = [p.detach().clone() for p in mine]
        stepped(ours, mine, range(k, k + 1), lambda k: set())
        for p, g in zip(plain, gradients(k), strict=True):
            p.grad = g
        theirs.step()
        for a, b, c in zip(mine, plain, before, strict=True):
            assert torch.equal(a, a.bfloat16().float())
            torch.testing.assert_close(a, b, rtol=2**-8, atol=1e-6)
            still += int((a == c).sum()) if k else 0
            moved += int((a != c).sum())
    assert still > 20 * moved > 0


def test_weights_that_somebody_else_sets_are_taken() -> None:
    mine, plain = parameters(), parameters()
    ours, other = AdamW(lr=1e-2, store="bfloat16"), AdamW(lr=1e-2)
    ours.bind(mine), other.bind(plain)
    stepped(ours, mine, range(1), lambda k: set())
    stepped(other, plain, range(1), lambda k: set())
    with torch.no_grad():
        for a, b in zip(mine, plain, strict=True):
            a.fill_(3.0), b.fill_(3.0)
    stepped(ours, mine, range(1, 2), lambda k: set())
    stepped(other, plain, range(1, 2), lambda k: set())
    assert all(torch.equal(a, b.bfloat16().float()) for a, b in zip(mine, plain, strict=True))
    again = AdamW(lr=1e-2, store="bfloat16")
    again.state = _saved(ours.state)
    twin = [nn.Parameter(p.detach().clone()) for p in mine]
    again.bind(twin)
    stepped(ours, mine, range(2, 9), lambda k: set())
    stepped(again, twin, range(2, 9), lambda k: set())
    assert all(torch.equal(a, b) for a, b in zip(mine, twin, strict=True))
