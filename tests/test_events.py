"""What is told while something is being heard comes after it, for every listener."""

from __future__ import annotations

from typing import Any

import pytest

from shuhari.events import InOrder


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
