"""ReMix as its recipe says it: the shares of a batch, its passes, the moved bounds, and how the KL is divided."""

from __future__ import annotations

from typing import Any

import pytest

from shuhari.config.build import build_stage
from shuhari.config.recipe import load
from shuhari.data import Ramp
from shuhari.objectives.clip import Clip
from shuhari.objectives.divergence import Divergence


def stages() -> tuple[Any, Any]:
    """The two phases, as they are built."""
    shared: dict[str, Any] = {}
    _, first, second = (build_stage(table, shared) for table in load("rlvr/remix").stages)
    return first, second


def test_two_fifths_of_a_batch_are_groups_of_the_last_two_policies_gone_through_twice() -> None:
    learner = stages()[0].learners["main"]
    fresh, replay = (learner.buffer.buffers[name] for name in ("fresh", "replay"))
    assert replay.size / (fresh.size + replay.size) == 0.4 and replay.capacity == 2 * fresh.size
    part = learner.parts["policy"]
    assert (part.epochs, part.minibatches) == (2, 1)
    assert part.terms["loss"].objective == Clip(low=0.2, high=0.2, centre="old")
    assert part.terms["base"].objective == Divergence(to="reference") and set(part.terms) == {"loss", "base"}


def test_the_second_phase_is_on_policy_from_a_new_base() -> None:
    first, second = stages()
    learner = second.learners["main"]
    part = learner.parts["policy"]
    assert learner.buffer.size == first.learners["main"].buffer.buffers["fresh"].size
    assert part.epochs == 1 and part.terms["loss"].objective == Clip(low=0.2, high=0.2)
    assert {role: rule.of for role, rule in second.follows.items()} == {
        "reference": "policy",
        "previous": "last",
        "last": "policy",
    }
    assert list(second.follows).index("previous") < list(second.follows).index("last")
    assert second.follows["reference"].on == "stage"
    assert second.follows["previous"].on == second.follows["last"].on == ("stage", "step")


@pytest.mark.parametrize(("step", "share"), [(0, 0.9), (9, 0.9), (10, 0.8), (25, 0.7), (39, 0.6), (40, 0.5), (99, 0.5)])
def test_the_kl_is_divided_between_base_and_last_policy(step: int, share: float) -> None:
    """max(1 - 0.1 ceil(t / 10), 0.5), t the steps after the change from 1 on; the whole is what the first phase has."""
    base, last = (stages()[1].learners["main"].parts["policy"].terms[name].weight for name in ("base", "last"))
    whole = stages()[0].learners["main"].parts["policy"].terms["base"].weight
    assert isinstance(base, Ramp) and isinstance(last, Ramp)
    assert float(base(step)) == pytest.approx(share * whole) and float(base(step) + last(step)) == pytest.approx(whole)
