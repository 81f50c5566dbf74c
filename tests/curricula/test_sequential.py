"""The sequential curriculum: order, epochs, and going on from saved state."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from shuhari.curricula.sequential import Sequential
from shuhari.data import Problem
from shuhari.tasks.source import Generated, Listed
from shuhari.testing import context


def ctx(size: int | None) -> Any:
    listed = Listed([Problem("t", str(i), i) for i in range(size or 0)])
    source = Generated(lambda i: Problem("t", str(i), i)) if size is None else listed
    return context(task=SimpleNamespace(problems=lambda split: source))


def take(curriculum: Sequential, n: int, size: int | None) -> list[Any]:
    return [r.problem.prompt for r in asyncio.run(curriculum.select(n, ctx(size)))]


def test_a_source_without_end_is_walked_in_order() -> None:
    curriculum = Sequential()
    assert take(curriculum, 3, None) + take(curriculum, 4, None) == list(range(7))
    assert curriculum.state == {"at": 7}
    request = asyncio.run(curriculum.select(1, ctx(None)))[0]
    assert (request.n, request.sampling, request.key) == (0, None, "")  # the run fills them in


def test_every_epoch_is_a_permutation_of_its_own() -> None:
    walked = take(Sequential(), 30, 10)
    epochs = [walked[i : i + 10] for i in (0, 10, 20)]
    assert all(sorted(e) == list(range(10)) for e in epochs)
    assert len({tuple(e) for e in [*epochs, list(range(10))]}) == 4
    assert walked == take(Sequential(), 30, 10) != take(Sequential(seed=1), 30, 10)
    assert take(Sequential(shuffle=False), 12, 5) == [*range(5), *range(5), 0, 1]


def test_going_on_from_state_equals_never_stopping() -> None:
    for size in (None, 7):
        whole = take(Sequential(), 25, size)
        first = Sequential()
        begun = [x for n in (1, 6, 4) for x in take(first, n, size)]
        second = Sequential()
        second.state = dict(first.state)
        assert begun + take(second, 14, size) == whole


def test_an_empty_task_says_so() -> None:
    with pytest.raises(ValueError, match="no problems in its split 'train'"):
        take(Sequential(), 1, 0)
