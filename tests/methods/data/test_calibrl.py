"""CalibRL's guided term by the catalogue's numbers, and the demonstration's log-probabilities beside each answer."""

from __future__ import annotations

import pytest
import torch

from built import demonstrated
from shuhari.methods.data.calibrl.calibrated_imitation import Calibrated
from shuhari.methods.data.calibrl.expert_logp import Beside
from shuhari.objectives.clip import Clip
from shuhari.testing import check_objective, check_transform, context, groups
from shuhari.transforms.advantage import Advantage


@pytest.mark.parametrize(
    ("reward", "says", "expected"),
    [(1.0, -2.0, 1.0), (1.0, -0.5, -0.25), (0.0, -0.5, 0.5), (0.0, -2.0, -0.5), (0.1, -0.5, 0.5)],
)
def test_an_answer_and_a_demonstration_at_minus_one(reward: float, says: float, expected: float) -> None:
    """|A| times 1, -0.25, 0.5 and -0.5; a reward of 0.1 is no success."""
    made = Calibrated()
    batch = groups([[reward]], lengths=2)
    columns = {"expert": -torch.ones(1, 2), "advantage": torch.full((1, 2), -0.75)}
    batch = batch.put(columns | {made.needs[0].key: torch.full((1, 2), says)})
    loss, info = check_objective(made, batch, context())
    assert loss.tolist() == [pytest.approx([0.75 * expected] * 2)]
    assert info["passed"].bool().all() == (expected < 0)


def test_a_slope_of_one_is_linear_and_uniform_groups_teach_nothing() -> None:
    new = torch.linspace(-5, 0, 8)[None].requires_grad_()
    made = Calibrated(slope=1.0)
    batch = groups([[1.0]], lengths=8).put({"expert": torch.full((1, 8), -2.0), "advantage": torch.full((1, 8), 0.5)})
    loss, _ = made(batch.put({made.needs[0].key: new}), context())
    torch.testing.assert_close(loss, 0.5 * (-2.0 - new))
    none, _ = made(batch.put({"advantage": torch.zeros(1, 8), made.needs[0].key: new}), context())
    assert not none.any()


def test_the_demonstration_stands_beside_each_answer_place_by_place() -> None:
    """Groups of three and two; the last of the first is a demonstration of two tokens, the second group has none."""
    made = Beside()
    batch = groups([[1.0, 0.0, 1.0], [1.0, 0.0]], lengths=[[3, 1, 2], [2, 3]])
    said = -torch.arange(15.0).view(5, 3)
    batch = batch.put({"demo": torch.tensor([0.0, 0.0, 1.0, 0.0, 0.0]), made.needs[0].key: said})
    found = check_transform(made, batch, context())["expert"]
    assert found.tolist() == [[-6.0, -7.0, 0.0]] * 3 + [[0.0] * 3] * 2


def test_it_has_a_tenth_of_the_guided_term_and_no_deviation() -> None:
    stage = demonstrated("data/calibrl")
    terms = stage.learners["main"].parts["policy"].terms
    assert terms["guided"].objective == Calibrated(slope=0.5, above=0.1) and terms["guided"].weight == 0.1
    assert terms["loss"].objective == Clip(low=0.2, high=0.2, dual=3.0)
    assert {t.reduce for t in terms.values()} == {"decision"} and set(terms) == {"loss", "guided"}
    assert stage.collect["advantage"] == Advantage(centre="mean", scale="none", exclude="demo")
