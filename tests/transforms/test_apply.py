"""Transforms in order: what one may not do to the columns of another."""

from __future__ import annotations

from typing import Any

import pytest

from shuhari.batch import Batch
from shuhari.testing import context, groups
from shuhari.transforms import apply
from shuhari.transforms.advantage import Advantage


def flatten(batch: Batch, ctx: Any) -> Batch:
    return batch.put({"advantage": batch["advantage"].sum(1)})


def double(batch: Batch, ctx: Any) -> Batch:
    return batch.put({"advantage": 2 * batch["advantage"]})


def test_a_column_keeps_its_axes() -> None:
    batch = groups([[0.0, 1.0], [1.0, 0.0]])
    assert apply([Advantage(), double], batch, context())["advantage"].dim() == 2
    with pytest.raises(ValueError, match=r"gave column 'advantage' the shape \(4,\): expected \(4, \d+\), as before"):
        apply([Advantage(), flatten], batch, context())
