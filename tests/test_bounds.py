"""Bounds and choices of settings: what each accepts, what it refuses and what it says."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Literal

import numpy as np
import pytest
import torch

from shuhari.bounds import AtLeast0, Bounds, Length, Positive, Ratio, Share, check, wrong
from shuhari.data import Number, Ramp


@dataclass
class Made:
    """One field of each kind."""

    rate: Annotated[Number, Bounds(0, 1)] = 0.5
    low: Ratio = 0.2
    size: Length = 1
    share: Share = 1.0
    weight: float = -3.0
    step: Positive = 1.0
    gap: AtLeast0 = 0.0
    scale: Literal["group", "none"] | float = "none"
    k: tuple[Length, ...] = ()
    maybe: Annotated[float, Bounds(0)] | None = None
    arm: Annotated[int, Bounds(1, off=-1)] = -1

    def __post_init__(self) -> None:
        check(self)


@pytest.mark.parametrize("given", [
    {}, {"rate": Ramp(1, 0)}, {"low": math.inf}, {"low": Ramp(0.1, 0.2)}, {"size": 9}, {"share": 0}, {"weight": 1e300},
    {"low": np.float32("inf")}, {"share": torch.tensor(0.5)}, {"size": np.int64(4)}, {"maybe": np.float32(2)},
    {"scale": "group"}, {"scale": 2.5}, {"k": (1, 2)}, {"maybe": 0.0}, {"arm": 3},
])  # fmt: skip
def test_what_is_within_is_taken(given) -> None:
    Made(**given)


@pytest.mark.parametrize(("given", "message"), [
    ({"rate": 1.5}, r"rate is 1.5: expected a number in \[0, 1\]"),
    ({"rate": math.nan}, "rate is nan"),
    ({"rate": Ramp(0.5, 2)}, r"rate is Ramp.*expected a number in \[0, 1\]"),
    ({"low": -1.0}, "low is -1.0: expected a number of 0 or more"),
    ({"low": math.nan}, "low is nan"),
    ({"size": 0}, "size is 0: expected a number of 1 or more"),
    ({"share": -0.1}, "share is -0.1"),
    ({"weight": math.nan}, "weight is nan: expected a number that is finite"),
    ({"weight": -math.inf}, "weight is -inf"),
    ({"step": 0.0}, "step is 0.0: expected a number above 0"),
    ({"step": math.inf}, "step is inf"),
    ({"gap": -1e-9}, "gap is -1e-09"),
    ({"scale": "grp"}, "scale is 'grp': did you mean 'group'"),
    ({"scale": math.nan}, "scale is nan"),
    ({"k": (1, 0)}, r"k is \(1, 0\): entry 1: expected a number of 1 or more"),
    ({"maybe": -1.0}, "maybe is -1.0: expected a number of 0 or more"),
    ({"arm": 0}, "arm is 0: expected a number of 1 or more, or -1"),
    ({"low": -math.inf}, "low is -inf: expected a number of 0 or more, or inf$"),
    ({"rate": np.float32(-1)}, r"expected a number in \[0, 1\]$"),
    ({"size": np.int64(-3)}, "expected a number of 1 or more"),
    ({"gap": torch.tensor(-1.0)}, r"gap is tensor\(-1.\): expected a number of 0 or more"),
    ({"weight": np.float32("nan")}, "expected a number that is finite"),
    ({"weight": torch.tensor(math.inf)}, "expected a number that is finite"),
    ({"maybe": np.float64(-1)}, "expected a number of 0 or more"),
    ({"maybe": np.float32(-1)}, "expected a number of 0 or more"),
    ({"share": Fraction(3, 2)}, r"expected a number in \[0, 1\]$"),
    ({"k": (1, np.int64(0))}, "entry 1: expected a number of 1 or more"),
])  # fmt: skip
def test_what_is_outside_is_refused_in_words(given, message) -> None:
    with pytest.raises(ValueError, match=message):
        Made(**given)


@pytest.mark.parametrize(("bounds", "text"), [
    (Bounds(0, infinite=True), "a number of 0 or more, or inf"), (Bounds(high=0, infinite=True),
    "a number of 0 or less, or -inf"), (Bounds(infinite=True), "a number, or an infinity"),
    (Bounds(0, 1, infinite=True), "a number in [0, 1]"), (Bounds(0, open="low"), "a number above 0"),
])  # fmt: skip
def test_bounds_in_words(bounds: Bounds, text: str) -> None:
    assert str(bounds) == text


@pytest.mark.parametrize("given", [(0.1, math.nan), [0.1, math.nan], [math.inf, 0.1]])
def test_numbers_of_a_sequence_are_held_to_their_bounds(given):
    """A list is as good as the tuple that the annotation names."""
    assert "that is finite" in wrong(tuple[float, float], given)
    assert wrong(tuple[float, ...], [0.1, 0.2, 0.3]) == "" != wrong(tuple[float, float], [0.1])
