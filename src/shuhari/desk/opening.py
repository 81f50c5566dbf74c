"""Opens policies that are not runs: an export (`desk.export`), a Hugging Face directory, or the state of a session
(`Session.save_state`).
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
from shuhari.store import StoreError, checkpoint, find_checkpoint, tensors
from shuhari.store.directory import NoRunError
from shuhari.store.files import read_file
from shuhari.store.schema import FILE

MEANT = "did you mean"  # begins what `nearest` returns if a name is near


def find_kind(path: Path) -> str:
    """Return what a path other than a run holds: `model` (of Hugging Face, adapters, or a .gguf file), `controller`,
    `state`; "" if none of these, or a run."""
    if path.suffix == ".gguf" and path.is_file():
        return "model"
    if not path.is_dir() or (path / FILE).exists():
        return ""
    kinds = {"controller": CARD, "state": "tree.json", "model": "config.json", " model": "adapter_config.json"}
    return next((kind.strip() for kind, name in kinds.items() if (path / name).is_file()), "")


def find_run(name: str) -> tuple[Path, int | None]:
    """Return (folder, step or None) of `RUN`, `RUN@step` or `RUN@best`. Raises NoRunError if there is none, with the
    nearest model in the same folder, if the name is a path."""
    try:
        return find_checkpoint(name)
    except NoRunError:
        path = Path(name)
        there = path.parent.iterdir() if len(path.parts) > 1 and path.parent.is_dir() else ()
        near = nearest(path.name, [p.name for p in there if find_kind(p)])
        if path.exists() or not near.startswith(MEANT):
            raise
        meant = path.with_name(near.removeprefix(f"{MEANT} '").removesuffix("'?"))
        raise NoRunError(f"no run and no model {name!r}; {MEANT} {str(meant)!r}?") from None


def open_model(path: Path, kind: str, role: str = "policy", task: Any = None) -> tuple[Any, Any, Any]:
    """Load (model, sampling, task) from a path of the kind found by `find_kind`. task: for a language model, which may
    determine how prompts are read. Raises StoreError if it is damaged or does not record how it was made, ValueError
    for an unknown role."""
    if kind == "model":
        return _make(str(path), task)
    if kind == "controller":
        card = _read_export(path / CARD)
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
        made = _make(given["models"].get(role, given["models"]["policy"]), given["task"])  # a clone: as the policy
        weights = roles[role]
    take_weights(made[0], weights, f"the weights of {path}")
    return made


def fetch_model(name: str, task: Any = None) -> Any:
    """Load the causal model of a hub's id. Raises FileNotFoundError if it does not exist, or the hub cannot be
    reached."""
    return _make({"use": "causal", "path": name}, task)[0]


def _make(model: Any, task: Any) -> tuple[Any, Any, Any]:
    with session(model, task=task) as opened:
        return role_model(opened.models, "policy"), opened.ctx.sampling, opened.ctx.task


def _read_export(file: Path) -> dict[str, Any]:
    try:
        card = json.loads(read_file(file))
        if isinstance(card, dict) and card["role"] in card["models"] and isinstance(card["task"], dict):
            return card
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise StoreError(f"{file}: {error}") from error
    raise StoreError(f"{file}: not what export has written: expected `role`, `models` and `task`")


def _cut_role(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a model, without those of its role."""
    own = {f.name for f in fields(Role)} - {"model"}
    return {k: v for k, v in table.items() if k not in own}
