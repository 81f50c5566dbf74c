"""SEC as its recipe says it: kinds of problems as arms of a bandit that is paid in advantages."""

from __future__ import annotations

from built import SCALED, holds, one_loss


def test_numbers_of_the_paper() -> None:
    stage = holds(
        "curriculum/sec",
        {
            "curriculum.alpha": 0.5,
            "curriculum.tau": 0.2,  # of 0.2, 0.4 and 1.0, by task
            "curriculum.column": "advantage",
            "n": 8,
            "collect": SCALED,
        },
    )
    one_loss(stage)
