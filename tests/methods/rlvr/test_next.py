"""Jumps along a path: rank one rebuilt, a target that never changes, the line by hand, and when it happens."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from shuhari.events import Committed, StageStarted
from shuhari.methods.rlvr.next.weight_jump import Jump, join, split
from shuhari.ports import Follow
from shuhari.testing import check_rule

rule: Follow = Jump()


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_rank_one_is_rebuilt_and_of_more_the_largest_part_is() -> None:
    u, v, b = numbers(5), numbers(3, seed=1), numbers(4, seed=2)
    change = {"w": u[:, None] * v, "b": b}
    torch.testing.assert_close(join(split(change), change), change, atol=1e-6, rtol=1e-5)
    diagonal = {"w": torch.diag(torch.tensor([3.0, -7.0, 2.0]))}
    torch.testing.assert_close(join(split(diagonal), diagonal)["w"], torch.diag(torch.tensor([0.0, -7.0, 0.0])))


def test_signs_agree_with_those_before() -> None:
    change = {"w": numbers(4)[:, None] * numbers(3, seed=1)}
    first = split(change)
    flipped = {name: x if name.endswith("s") else -x for name, x in first.items()}
    for like in (first, flipped):
        torch.testing.assert_close(split(change, like), like)
    torch.testing.assert_close(join(flipped, change), change)  # two signs are none


def path(n: int, step: Any) -> list[dict[str, torch.Tensor]]:
    w, b = numbers(4)[:, None] * numbers(3, seed=1), numbers(6, seed=2)
    return [{"w": 1 + step(k) * w, "b": step(k) * b} for k in range(n)]


def test_a_future_that_is_always_the_same_is_predicted() -> None:
    """Weights that move evenly: the change over three records is three times that of one, whatever the record."""
    records = path(9, lambda k: 0.1 * k)
    expected = {name: records[3][name] - records[0][name] for name in records[0]}
    nets = Jump(at=8, every=1, ahead=3, lr=3e-3, epochs=300, size=64)
    for made in (nets, Jump(at=8, every=1, ahead=3, fit="linear")):
        found = made.predict(records)
        for name, change in expected.items():
            error = (found[name] - change).norm() / change.norm()
            assert float(error) < (0.1 if made.fit == "learnt" else 1e-5)


def moved(made: Jump, steps: int) -> list[float]:
    """The one weight after each step, that learning moves by its number."""
    module = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(module.weight)
    models: Any = {"policy": SimpleNamespace(module=module)}
    made(models, StageStarted("rl"))
    out = []
    for i in range(1, steps + 1):
        module.weight.data += i
        made(models, Committed(i))
        out.append(float(module.weight.detach()))
    return out


def test_it_jumps_once_along_the_line() -> None:
    """1, 3, 6, 10 | 15, 21: over the two steps to 10 it has risen by 7."""
    assert moved(Jump(at=4, every=2, ahead=2, fit="linear"), 6) == [1, 3, 6, 17, 22, 28]
    assert moved(Jump(at=4, every=1, ahead=3, fit="linear", scale=0.5), 5) == [1, 3, 6, 14.5, 19.5]
    assert moved(Jump(at=4, every=1, ahead=1, scale=0.0, epochs=1), 5) == [1, 3, 6, 10, 15]


def test_it_keeps_to_its_port() -> None:
    check_rule(Jump(at=2, every=1, ahead=1, epochs=2))
    check_rule(Jump(at=2, every=1, ahead=1, fit="linear"))


@pytest.mark.parametrize("wrong", [{"at": 7, "every": 2, "ahead": 2}, {"at": 8, "every": 2, "ahead": 3}, {"at": 50}])
def test_what_cannot_be_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="expected multiples of every, and at of ahead"):
        Jump(**wrong)  # type: ignore[arg-type]


def test_what_is_frozen_stays_and_half_precision_jumps() -> None:
    module = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2)).to(torch.bfloat16)
    module[0].requires_grad_(False)
    frozen = [p.clone() for p in module[0].parameters()]
    made, models = Jump(at=4, every=1, ahead=2, epochs=2, size=4), {"policy": SimpleNamespace(module=module)}
    made(models, StageStarted("rl"))
    for step in range(1, 5):
        with torch.no_grad():
            module[1].weight += 0.1 * step
        before = module[1].weight.clone()
        made(models, Committed(step))
    assert all(torch.equal(a, b) for a, b in zip(frozen, module[0].parameters(), strict=True))
    assert not torch.equal(before, module[1].weight) and module[1].weight.isfinite().all()
