"""A run that is killed and begun again elsewhere, beside one that never stopped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import harness
import torch

from shuhari.loop.resume import restore, tree_of
from shuhari.loop.run import Run
from shuhari.store import codec


def twice(make: Callable[[], Run], at: int) -> None:
    """Assert that what `make` gives ends with the same bits if it goes on after step `at` from its checkpoint alone."""
    run = make()
    reports = harness.train(run)
    for _ in range(at):
        next(reports)
    value, tensors = codec.encode(tree_of(run))
    tree = codec.decode(codec.from_json(codec.to_json(value)), {k: v.clone() for k, v in tensors.items()})
    last: Any = [*reports][-1]
    again = make()
    restore(again, tree)
    end: Any = [*harness.train(again)][-1]
    for role in run.ctx.models:
        assert torch.equal(harness.weights(run, role), harness.weights(again, role)), role
    timed = {"seconds"}
    assert {k: v for k, v in end.items() if k not in timed} == {k: v for k, v in last.items() if k not in timed}
