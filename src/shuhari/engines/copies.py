"""Models as they were at a sync: what an engine answers with while a trainer moves the weights step by step."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from shuhari.ports import ability


class Copies:
    """A copy of every model, taken at each sync. Whether weights have moved cannot be told: fused kernels hide it."""

    def __init__(self) -> None:
        self._made: dict[int, tuple[Any, Any]] = {}  # (model, its copy); a model that lives keeps its address

    def renew(self, models: Mapping[str, Any]) -> None:
        """Take the weights as they are now."""
        made = {}
        for model in {id(m): m for m in models.values() if ability(m, "module") is not None}.values():
            known = self._made.get(id(model))
            if known is None:
                made[id(model)] = model, copy.deepcopy(model)
            else:
                known[1].module.load_state_dict(model.module.state_dict())
                made[id(model)] = known
        self._made = made
        bound = {role: self.of(model) for role, model in models.items()}
        for twin in {id(m): m for m in bound.values()}.values():
            if ability(twin, "roles"):  # a copy is made of copies
                twin.bind(bound)

    def of(self, model: Any) -> Any:
        """The model as it was at the last sync; what has no weights, as it is."""
        return self._made[id(model)][1] if id(model) in self._made else model
