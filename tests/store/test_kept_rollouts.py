"""Which groups a person gets to see, and their bytes."""

from __future__ import annotations

import zlib
from math import nan

import pytest

from shuhari.store.codec import CodecError
from shuhari.store.rollouts import pack, pick, unpack


def test_best_worst_and_random() -> None:
    chosen = pick([0.5, 1.0, 0.0, 0.7, nan], 3, seed=4)
    assert chosen[:2] == [(1, "best"), (2, "worst")] and chosen[2][1] == "random" and chosen[2][0] in (0, 3, 4)
    assert pick([0.5, 1.0, 0.0, 0.7, nan], 3, seed=4) == chosen
    assert sorted(i for i, _ in pick([0.5, 1.0, 0.0, 0.7, nan], 9)) == [0, 1, 2, 3, 4]
    assert {pick([0.5, 1.0, 0.0, 0.7, 0.2], 3, seed=s)[2][0] for s in range(40)} == {0, 3, 4}


def test_few_groups() -> None:
    assert pick([], 3) == [] and pick([1.0], 3) == [(0, "best")] and pick([1.0, 2.0], 0) == []
    assert pick([nan], 3) == [(0, "random")] and pick([1.0, 2.0], 1) == [(1, "best")]
    assert pick([1.0, 1.0], 3) == [(1, "best"), (0, "worst")]


def test_the_one_that_changed_and_all() -> None:
    rules = ("best", "changed", "random")
    assert pick([0.5, 1.0, 0.0], 2, rules=rules, changes=[0.1, nan, 0.4]) == [(1, "best"), (2, "changed")]
    assert pick([0.5, 1.0, 0.0], 2, rules=rules, changes=[nan, 0.2, nan])[0] == (1, "best")
    assert pick([0.5, 1.0], 1, rules=("changed",), changes=[nan, nan]) == []
    assert pick([0.5, nan], 1, rules=("all",)) == [(0, "all"), (1, "all")]


def test_bytes() -> None:
    group = {"group": "a", "text": "x" * 1000, "reasons": (None, "late")}
    data = pack(group)
    assert unpack(data) == group and len(data) < 300


@pytest.mark.parametrize("data", [b"", b"nonsense", pack({"a": 1})[:-6], zlib.compress(b"x"), pack({"a": 1})[:9]])
def test_damage(data: bytes) -> None:
    with pytest.raises(CodecError):
        unpack(data)
