"""A verdict has one wording, wherever it stands."""

from __future__ import annotations

from typing import Any

import pytest

from shuhari.lab.claims import wording
from shuhari.lab.claims.wording import describe_verdict

RULED: dict[str, Any] = {"headline": {}, "guard": "holds", "because": "not asked", "premise": {"failing": []},
                         "kind": "trained", "exploratory": [], "verdict": "holds, small", "hashes": {}}  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "told", "beside"),
    [
        ({}, "holds, small", "holds, small"),
        ({"guard": "open", "verdict": "open"}, "open", "open"),
        ({"guard": "open", "verdict": "open", "headline": {"low": 0.1}},
         "open (its guard open)", "open (its guard open)"),
        ({"rivals": [{"name": "baseline", "word": "holds"}, {"name": "half", "word": "holds, small"}]},
         "holds, small (against half)", "holds, small (against half)"),
        ({"because": "not by it"}, "holds, small (not by it)", "holds, small"),
        ({"because": "open", "stale": "x"}, "holds, small (the reason open, stale)", "holds, small (stale)"),
        ({"exploratory": ["x"], "kind": "simulated"}, "holds, small (simulated, exploratory)",
         "holds, small (exploratory)"),
        ({"verdict": "not tested", "premise": {"failing": ["no room"]}}, "not tested (premise: no room)", "not tested"),
    ],
)  # fmt: skip
def test_what_belongs_to_a_verdict_stands_behind_it(changed: Any, told: str, beside: str) -> None:
    assert describe_verdict(RULED | changed) == told
    assert describe_verdict(RULED | changed, because=False) == beside  # as a table has columns for the rest


def test_what_is_older(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wording, "is_older", lambda hashes: True)
    assert describe_verdict(RULED, now=True) == "holds, small (earlier version of the code)"
    assert describe_verdict({**RULED, "stale": "its recipe"}, now=True) == "holds, small (stale)"
