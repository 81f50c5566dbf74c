"""Copies of models at their last sync: the engine serves them while the trainer updates the weights."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from shuhari.needs import bind_models
from shuhari.ports import ability


class Copies:
    """A copy of every model, taken at each sync, since fused kernels do not show whether weights have changed."""

    def __init__(self) -> None:
        self._made: dict[int, tuple[Any, Any]] = {}  # (model, its copy); a model that lives keeps its address

    def renew(self, models: Mapping[str, Any]) -> None:
        """Copy the current weights."""
        made = {}
        for model in {id(m): m for m in models.values() if ability(m, "module") is not None}.values():
            known = self._made.get(id(model))
            if known is None:
                made[id(model)] = model, copy.deepcopy(model)
            else:
                known[1].module.load_state_dict(model.module.state_dict())
                made[id(model)] = known
        self._made = made
        bind_models({role: self.of(model) for role, model in models.items()})  # a copy is made of copies

    def of(self, model: Any) -> Any:
        """Return the model as of the last sync, or `model` itself if it has no weights."""
        return self._made[id(model)][1] if id(model) in self._made else model
