"""Casting: which model plays which role, when it comes to life, and with what weights."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from shuhari.data import code, nearest
from shuhari.ports import Model, Task


@dataclass(frozen=True, eq=False)
class Role:
    """`model`: to be built (None: like the role it copies); `init`: the role whose weights it starts with; `same_as`:
    the role whose model, weights and all, plays this one too."""

    model: Any = None
    init: str = ""
    same_as: str = ""


def cast_roles(
    roles: Mapping[str, Role], models: dict[str, Model], task: Task, seed: int, init: Mapping[str, Any]
) -> None:
    """Bring to life the roles that do not live yet, in order; a role lives from the first stage that lists it.
    `init`: role -> state dict to start from. Raises KeyError where a role names another that does not live."""
    for name, role in roles.items():
        other = role.same_as or role.init
        if other and other not in models:
            raise KeyError(
                f"[models.{name}] names the role {other!r}, which is not there before it; {nearest(other, models)}"
            )
        if role.same_as:
            models[name] = models[role.same_as]
        elif name not in models:
            models[name] = _born(name, role, models, task, seed)
            if name in init:
                _load(models[name], init[name], f"the weights given for role {name!r}")


def _born(name: str, role: Role, models: Mapping[str, Model], task: Task, seed: int) -> Model:
    if role.model is None:
        return copy.deepcopy(models[role.init])
    model: Model = role.model
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(code(seed, "model", name))
        model.build(task)
    if role.init:
        _load(model, models[role.init].module.state_dict(), f"the weights of role {role.init!r} for role {name!r}")
    return model


def _load(model: Model, weights: Mapping[str, Any], what: str) -> None:
    """Take over what fits by name and shape; a head that one of them lacks stays as it is."""
    own = model.module.state_dict()
    fit = {k: v for k, v in weights.items() if k in own and own[k].shape == v.shape}
    if not fit:
        raise ValueError(f"{what} fit nowhere: no name and shape in common")
    model.module.load_state_dict(fit, strict=False)


def weights(models: Mapping[str, Model]) -> dict[str, dict[str, torch.Tensor]]:
    """role -> state dict, each model once, under its first role."""
    seen: set[int] = set()
    out = {}
    for role, model in models.items():
        if id(model) not in seen:
            seen.add(id(model))
            out[role] = dict(model.module.state_dict())
    return out


def load_weights(models: Mapping[str, Model], saved: Mapping[str, Mapping[str, torch.Tensor]]) -> None:
    """The inverse of `weights`, exactly."""
    for role, tree in saved.items():
        if role not in models:
            raise KeyError(f"the checkpoint has weights for role {role!r}; {nearest(role, models)}")
        models[role].module.load_state_dict(dict(tree))
