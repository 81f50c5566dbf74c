"""What learners without gradients write their plans into: the logits of a `tabular` policy."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from shuhari.needs import role_model
from shuhari.ports import Model

SURE = 50.0  # the logit of what is planned, above 0 of all else


def find_table(models: Mapping[str, Model], role: str, learner: str) -> Tensor:
    """Logits [S, A], a row for each state, of the `tabular` model of `role`. TypeError for a policy without them."""
    model = role_model(models, role)
    weights: dict[str, Tensor] = dict(model.module.named_parameters())
    if weights.keys() != {"logits"}:
        raise TypeError(f"{learner}: the model of {role!r} is {type(model).__name__}: expected a tabular one")
    return weights["logits"]
