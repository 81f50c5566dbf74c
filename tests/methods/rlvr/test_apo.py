"""Right and wrong answers shaped apart: the paper's numbers by hand, what stays as it is, and the loss.

APO as its recipe says it: the gradient of the surrogate and of the KL term together, token by token, by hand.
"""

from __future__ import annotations

from math import e, exp, log
from typing import Any

import pytest
import torch

from built import answers, built, demonstrated, learnt, padded, same, table
from shuhari.kernel.reduce import weights
from shuhari.methods.rlvr.apo.asymmetric_weights import Asymmetric
from shuhari.testing import check_transform, context, groups, transitions
from shuhari.transforms.advantage import Advantage

NONE = None


def shaped(made: Asymmetric, rewards: Any, lengths: Any, **columns: Any) -> Any:
    batch = Advantage()(groups(rewards, lengths=lengths), context())
    return batch, check_transform(made, batch.put(columns), context())


def weight(rewards: list[float], **settings: Any) -> list[float]:
    _, out = shaped(Asymmetric(**settings), [rewards], 1)
    return out["weight/kl"][:, 0].tolist()  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("right", "kappa"),
    [(3, 0.8698), (2, 0.7431), (1, 0.4932)],  # difficulties .25, .5, .75
)
def test_the_weight_of_right_answers_by_difficulty(right: int, kappa: float) -> None:
    found = weight([1.0] * right + [0.0] * (4 - right))
    assert found == pytest.approx([kappa] * right + [1.0] * (4 - right), abs=1e-4)


def test_where_nothing_is_to_be_told_apart_it_weighs_one() -> None:
    assert weight([1.0] * 4) == weight([0.0] * 4) == [1.0] * 4
    assert weight([0.9, 0.1, 0.1, 0.1]) == [1.0] * 4  # above the others, and none is right
    assert weight([1.0, 0.0], shape="length") == [1.0, 1.0]


def test_partly_right_is_not_right() -> None:
    """One of four is; the second has an advantage above 0 as well, at the same difficulty."""
    hard = 1 - exp(-e / 4)
    assert weight([1.0, 0.9, 0.0, 0.0]) == pytest.approx([hard, hard, 1.0, 1.0])
    some = 1 - exp(-e / 2)
    assert weight([1.0, 0.9, 0.0, 0.0], solved=0.5) == pytest.approx([some, some, 1.0, 1.0])


def test_wrong_answers_longer_than_the_right_ones() -> None:
    """Right: 4 and 6 tokens, 5 on average. Of wrong ones with 3, 5, 7 and 15 the last two are longer, by 2 and 10."""
    before, out = shaped(Asymmetric(base=1.1), [[1.0, 1.0, 0.0, 0.0, 0.0, 0.0]], [[4, 6, 3, 5, 7, 15]])
    a, b = before["advantage"], out["advantage"]
    for row, factor in enumerate([1.0, 1.0, 1.0, 1.0, 2 - 1 / 1.21, 2 - 1.1**-10]):
        assert b[row].tolist() == pytest.approx((a[row] * factor).tolist(), rel=1e-5)
    assert torch.equal(b[:4], a[:4])


def test_the_paper_s_base() -> None:
    """A hundred tokens longer: 2 - 1.00001^-100 = 1.0009995."""
    before, out = shaped(Asymmetric(), [[1.0, 0.0]], [[1, 101]])
    assert (out["advantage"][1, 0] / before["advantage"][1, 0]).item() == pytest.approx(1.0009995, abs=2e-6)
    _, far = shaped(Asymmetric(base=9.0), [[1.0, 0.0]], [[1, 101]])
    assert (far["advantage"][1, 0] / before["advantage"][1, 0]).item() == pytest.approx(2.0)


def test_off_and_without_a_right_answer_nothing_changes() -> None:
    for rewards, settings in [([1.0, 0.0], {"shape": "kl"}), ([0.5, 0.0], {})]:
        before, out = shaped(Asymmetric(base=2.0, **settings), [rewards], [[1, 4]])  # type: ignore[arg-type]
        assert torch.equal(out["advantage"], before["advantage"])


def test_groups_apart_and_the_ungraded_count_nowhere() -> None:
    """The second group has one right answer of two graded ones; its ungraded one, of 9 tokens, is no wrong one."""
    rewards, lengths = [[1.0, 0.0], [1.0, 0.0, NONE]], [[1, 1], [2, 5, 9]]
    _, out = shaped(Asymmetric(base=1.5), rewards, lengths)
    half = 1 - exp(-e / 2)
    assert out["weight/kl"][:, 0].tolist() == pytest.approx([half, 1.0, half, 1.0, 0.0])
    assert out["advantage"][3, 0].item() == pytest.approx(-(2 - 1.5**-3) / 2**0.5, rel=1e-3)
    assert out["advantage"][4, 0].item() == 0.0


def test_the_stream_it_stamps_is_a_mean_of_rows_times_kappa() -> None:
    """The KL loss of two rows of 1 and 2 tokens: mean over tokens, times kappa, mean over rows."""
    _, out = shaped(Asymmetric(), [[1.0, 0.0]], [[1, 2]])
    kappa = 1 - exp(-e / 2)
    found = weights(out.weight("kl"), out, "row")
    assert found.tolist() == [pytest.approx([kappa / 2, 0.0]), pytest.approx([0.25, 0.25])]


def test_an_answer_of_several_rows_is_refused() -> None:
    with pytest.raises(ValueError, match="asymmetric: an answer has several rows"):
        Asymmetric()(transitions([[0.0, 1.0], [0.0, 0.0]]), context())


SAID, SCORE = ["ab", "c", "defg", "h"], [1.0, 0.0, 0.0, 0.0]
SCALE = 1 / (0.5 + 1e-4)  # the unbiased deviation of 1, 0, 0, 0 is 1/2


def test_gradients_by_hand() -> None:
    """One of four is right, with two tokens; of the wrong ones that with four is longer, by two. k3 to a reference that
    says of each token half of what the policy does has the gradient 1 - 1/2."""
    stage = demonstrated("rlvr/apo")
    assert stage.collect["asymmetric_weights"].base == 1.0357 and stage.models["reference"].init == "policy"
    log_prob = padded(*([0.0] * len(t) for t in SAID)).requires_grad_()
    reference = padded(*([-log(2)] * len(t) for t in SAID))
    batch = answers(stage, SAID, SCORE)
    (found,) = learnt(stage, batch, log_prob, policy=table(log_prob=log_prob), reference=table(log_prob=reference))
    advantages = [0.75 * SCALE, -0.25 * SCALE, -0.25 * SCALE * (2 - 1.0357**-2), -0.25 * SCALE]
    kappas = [1 - exp(-e / 4), 1.0, 1.0, 1.0]
    expected = [
        [(-a + 1e-3 * k * 0.5) / len(t) / 4] * len(t) for a, k, t in zip(advantages, kappas, SAID, strict=True)
    ]
    same(found, expected)


def test_the_paper_s_base_is_the_usual_one() -> None:
    stage = built("rlvr/apo", usual=True)
    term = stage.learners["main"].parts["policy"].terms["divergence"]
    assert stage.collect["asymmetric_weights"].base == 1.00001
    assert (term.weight, term.stream, term.reduce) == (1e-3, "kl", "row")
    assert list(stage.collect)[-2:] == ["advantage", "asymmetric_weights"]  # what it reads stands before it
