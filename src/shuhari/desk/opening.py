"""Open what is no run, yet holds a policy: an export (`tools.export`), a Hugging Face directory, or the state of a
session (`Session.save_state`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from shuhari.config.stage import Role
from shuhari.data import nearest
from shuhari.desk.export import CARD, WEIGHTS
from shuhari.loop.roles import take_weights
from shuhari.loop.sessions import session
from shuhari.needs import role_model
from shuhari.store import StoreError, checkpoint, tensors
from shuhari.store.files import read_file
from shuhari.store.schema import FILE


def find_kind(path: Path) -> str:
    """What a directory that is no run holds: `model` (of Hugging Face, or adapters; a .gguf file is one too),
    `controller`, `state`; "" where it holds none of these, or is a run."""
    if path.suffix == ".gguf" and path.is_file():
        return "model"
    if not path.is_dir() or (path / FILE).exists():
        return ""
    kinds = {"controller": CARD, "state": "tree.json", "model": "config.json", " model": "adapter_config.json"}
    return next((kind.strip() for kind, name in kinds.items() if (path / name).is_file()), "")


def open_model(path: Path, kind: str, role: str = "policy", task: Any = None) -> tuple[Any, Any, Any]:
    """(model, sampling, task) of what `find_kind` has found. task: what a language model is to solve, which may say how
    prompts are read. StoreError where it is damaged, or does not say how it was made; ValueError for a role that it has
    not."""
    if kind == "model":
        return _make(str(path), task)
    if kind == "controller":
        card = _read_card(path / CARD)
        if role != card["role"]:
            raise ValueError(f"{path} holds the role {card['role']!r}, not {role!r}")
        made = _make(_cut_role(card["models"][role]), card["task"])
        weights: Any = tensors.read(path / WEIGHTS)
    else:
        tree = checkpoint.read(path)
        given, roles = tree.get("made"), tree.get("models", {})
        if given is None:
            raise StoreError(f"{path}: the session was given components as objects, so its state does not say how it "
                             "was made: make one alike, and load_state")  # fmt: skip
        if role not in roles:
            raise ValueError(f"{path} has no role {role!r}; {nearest(role, roles)}")
        made = _make(given["models"].get(role, given["models"]["policy"]), given["task"])  # a clone is of the policy
        weights = roles[role]
    take_weights(made[0], weights, f"the weights of {path}")
    return made


def fetch_model(name: str, task: Any = None) -> Any:
    """The causal model of a hub's id. FileNotFoundError where there is none, or the hub cannot be reached."""
    return _make({"use": "causal", "path": name}, task)[0]


def _make(model: Any, task: Any) -> tuple[Any, Any, Any]:
    with session(model, task=task) as opened:
        return role_model(opened.models, "policy"), opened.ctx.sampling, opened.ctx.task


def _read_card(file: Path) -> dict[str, Any]:
    try:
        card = json.loads(read_file(file))
        if isinstance(card, dict) and card["role"] in card["models"] and isinstance(card["task"], dict):
            return card
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise StoreError(f"{file}: {error}") from error
    raise StoreError(f"{file}: not what export has written: expected `role`, `models` and `task`")


def _cut_role(table: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a model, without those of the role that it plays."""
    own = {f.name for f in fields(Role)} - {"model"}
    return {k: v for k, v in table.items() if k not in own}
