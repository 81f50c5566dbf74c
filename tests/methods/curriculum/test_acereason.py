"""AceReason as its recipe says it: the gradient of REINFORCE over all tokens, and one domain after the other."""

from __future__ import annotations

from typing import Any

from built import answers, built, demonstrated, learnt, padded, same, table


def test_on_policy_the_gradient_is_reinforce_s_whatever_bound_there_is() -> None:
    """Rewards 1, 0, 0 of 1, 2 and 3 tokens: less 1/3, over the unbiased deviation of the root of 1/3, over 6 tokens."""
    stage = built("curriculum/acereason")
    part = stage.learners["main"].parts["policy"]
    assert part.minibatches == 1 and list(part.terms) == ["loss"] and "reference" not in stage.models
    for moved in (0.0, 3.0):  # far beyond any bound of a ratio
        log_prob = padded(*([moved] * n for n in (1, 2, 3))).requires_grad_()
        batch = answers(stage, ["a", "bc", "def"], [1.0, 0.0, 0.0])
        (found,) = learnt(stage, batch, log_prob, policy=table(log_prob=log_prob))
        scale = 1 / (3**-0.5 + 1e-4) / 6
        same(found, [[-2 / 3 * scale], [1 / 3 * scale] * 2, [1 / 3 * scale] * 3])


def test_domains_in_order() -> None:
    shown: Any = demonstrated("curriculum/acereason").curriculum
    assert shown.order == (("A",), ("C",)) and (shown.key, shown.again) == ("domain", 0.0)
    usual: Any = built("curriculum/acereason", usual=True).curriculum
    assert usual.order == (("math",), ("code",)) and usual.key == ""
