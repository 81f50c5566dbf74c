"""What is told while something is being heard comes after it, for every listener."""

from __future__ import annotations

from typing import Any

import pytest

from shuhari.events import Committed, Evaluated, InOrder, StageStarted, Updated, When


def test_events_are_heard_in_the_order_in_which_they_were_told() -> None:
    heard: list[tuple[str, Any]] = []

    def first(event: Any) -> None:
        heard.append(("first", event))
        if event == "outer":
            tell("inner")
            tell("last")

    def hear(event: Any) -> None:
        for listener in (first, lambda e: heard.append(("second", e))):
            listener(event)

    tell: Any = InOrder(hear)
    tell("outer")
    assert heard == [(who, e) for e in ("outer", "inner", "last") for who in ("first", "second")]


def test_after_an_error_nothing_old_is_heard() -> None:
    heard: list[Any] = []

    def hear(event: Any) -> None:
        heard.append(event)
        if event == 1:
            tell(2)
            raise KeyError("broken")

    tell: Any = InOrder(hear)
    with pytest.raises(KeyError, match="broken"):
        tell(1)
    tell(3)
    assert heard == [1, 3]


SCORES = (0.1, 0.2, 0.2, 0.2, 0.2, 0.2, 0.3, 0.3, 0.2)


def test_a_plateau_is_evaluations_without_a_new_best() -> None:
    """With patience 2 the series .1 .2 .2 .2 is stuck at its fourth; the wait starts again, the best stays."""
    when = When(on="plateau", patience=2, metric="mean")
    acts = [when.due(Evaluated("test", {"mean": s})) for s in SCORES]
    assert acts == [False, False, False, True, False, True, False, False, True]
    assert not when.due(Committed(1)) and when.state["heard"] == 3
    with pytest.raises(KeyError, match="no score 'mean'; did you mean 'meant'"):
        when.due(Evaluated("test", {"meant": 1.0}))


def test_what_hears_the_same_acts_at_the_same_time_also_after_a_restore() -> None:
    first, second = When(on="plateau", patience=2, every=2), When(on="plateau", patience=2, every=2)
    acts = []
    for i, score in enumerate(SCORES):
        if i == 5:
            second = When(on="plateau", patience=2, every=2)
            second.state = dict(first.state)
        event = Evaluated("test", {"greedy": score})
        acts.append((first.due(event), second.due(event)))
    assert acts == [(i == 5,) * 2 for i in range(9)]


def test_several_kinds_count_together() -> None:
    when = When(on=("stage", "step"), every=2)
    events = [StageStarted("a"), Updated("main", {}), Committed(1), Committed(2), Evaluated("test", {}), Committed(3)]
    assert [when.due(e) for e in events] == [False, False, True, False, False, True]
    with pytest.raises(ValueError, match="entry 1: did you mean 'stage'"):
        When(on=("step", "stge"))  # type: ignore[arg-type]


def test_the_first_event_that_counts_and_every_one_of_its_distance_from_there() -> None:
    """By hand: 2, 5 and 8 of nine; without `first` 3, 6 and 9."""
    for first, wanted in ((2, [2, 5, 8]), (0, [3, 6, 9]), (7, [7])):
        rule = When(on="step", every=3, first=first)
        assert [n for n in range(1, 10) if rule.due(Committed(n))] == wanted
