"""The table of what is held out: chance, before, after; what is not known has no column."""

from __future__ import annotations

import io
import math
from typing import Any

from shuhari.desk.ends import draw, find_unit, tabulate_ends

ENDS = {
    "chance": {"greedy": 0.25},
    "before": {"greedy": 0.5, "length": 8.0},
    "after": {"greedy": 0.75, "length": math.nan},
}


def test_a_row_for_each_score_and_a_column_for_what_is_known() -> None:
    assert tabulate_ends(ENDS) == (
        ("held-out", "chance", "before", "after", "change"),
        [("greedy", 0.25, 0.5, 0.75, "+0.25"), ("length", None, 8.0, None, None)],
    )
    assert tabulate_ends({**ENDS, "chance": {}})[0] == ("held-out", "before", "after", "change")
    assert tabulate_ends({"before": {}, "after": {"greedy": 1.0}}) == (("held-out", "after"), [("greedy", 1.0)])
    assert tabulate_ends({"chance": {"greedy": 0.25}})[1] == tabulate_ends({})[1] == []


def test_a_picture_is_over_what_was_budgeted() -> None:
    columns: dict[str, Any] = {"step": [1, 2], "spent/env_steps": [10, 20], "rollout/return": [1.0, 2.0]}
    assert find_unit({"env_steps": 20}, columns) == "spent/env_steps"
    assert find_unit({"steps": 2}, columns) == find_unit({"tokens": 9}, columns) == "step"
    stream = io.BytesIO()
    draw({"name": "mine", "env_steps": 20}, columns, ENDS, stream)
    assert stream.getvalue().startswith(b"\x89PNG")
