"""MoPPS as its recipe says it: which problems are asked, by what is believed of them."""

from __future__ import annotations

from built import SCALED, holds, one_loss


def test_numbers_of_the_paper() -> None:
    stage = holds(
        "curriculum/mopps",
        {
            "curriculum.pick": "topk",
            "curriculum.of": 8,  # M' = 8 M
            "curriculum.target": 0.5,
            "curriculum.predictor.keep": 0.5,  # lambda
            "curriculum.predictor.prior": (1.0, 1.0),
            "curriculum.predictor.trials": 0,
            "n": 8,
            "collect": SCALED,
        },
    )
    one_loss(stage)
