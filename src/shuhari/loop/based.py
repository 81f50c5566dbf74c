"""Weights that a checkpoint stores by reference: those of a loaded model that still equal the file at its `path`.

With adapters these are the base's; for an untrained role, a teacher or the reference of DPO, all weights. They are
recognised by the digest of each tensor, both when they are left out and when they are restored. Left out: models from
scratch, and models that were merged, fetched from a hub or started from another run's weights; a checkpoint stores
these by value.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from shuhari.config.files import find_copy
from shuhari.data import EMPTY
from shuhari.ports import Model, ability
from shuhari.store import StoreError
from shuhari.store.names import BASED
from shuhari.store.tensors import find_digest

FEW = 64  # numbers of a tensor that are compared first: what is trained is told by these, nearly always


@dataclass(frozen=True)
class Start:
    """The source of a role's model: `path` as its setting has it, name -> digest of each weight that lies there
    unchanged, and name -> digest of its first few numbers."""

    path: str
    digests: Mapping[str, str]
    few: Mapping[str, str]


def find_start(model: Model) -> Start | None:
    """Return the start of a model that has just been built; None if a checkpoint must store all of it."""
    if not (found := ability(model, "on_disk")()) or not found[1]:
        return None
    path, names = found
    state = model.module.state_dict()
    digests = {n: find_digest(state[n]) for n in names}
    return Start(path, digests, {n: _few(state[n]) for n in names})


def leave_out(
    weights: Mapping[str, Mapping[str, Tensor]], starts: Mapping[str, Start | None]
) -> tuple[dict[str, dict[str, Tensor]], dict[str, dict[str, Any]]]:
    """Return (role -> the weights that a checkpoint must store, role -> where the others lie and their digests)."""
    kept, based = dict[str, dict[str, Tensor]](), dict[str, dict[str, Any]]()
    for role, tree in weights.items():
        start = starts.get(role)
        same = find_same(tree, start) if start else {}
        if start and same:
            place = str(Path(start.path).expanduser().absolute())
            based[role] = {"path": start.path, "place": place, "digests": same}
        kept[role] = {name: x for name, x in tree.items() if name not in same}
    return kept, based


def find_same(tree: Mapping[str, Tensor], start: Start) -> dict[str, str]:
    """Return name -> digest of the weights that still equal the start's."""
    return {
        name: digest
        for name, digest in start.digests.items()
        if name in tree and _few(tree[name]) == start.few[name] and find_digest(tree[name]) == digest
    }


def put_back(
    role: str, tree: Mapping[str, Tensor], entry: Mapping[str, Any], own: Mapping[str, Tensor], run: Path | None = None
) -> dict[str, Tensor]:
    """Return the weights of a role, including weights that its checkpoint stores by reference: they are looked up among
    `own`, the weights of a freshly loaded model, then at the path, then in the copy that the `run` keeps of a small
    model. Raises StoreError if they are missing, or have changed."""
    wanted: Mapping[str, str] = entry["digests"]
    found = {n: own[n] for n, digest in wanted.items() if n in own and find_digest(own[n]) == digest}
    if len(found) < len(wanted):
        found |= _read(role, {n: digest for n, digest in wanted.items() if n not in found}, entry, run)
    return {**found, **tree}


def read_whole(tree: Mapping[str, Any], run: Path) -> dict[str, dict[str, Tensor]]:
    """Return role -> its weights from a run's checkpoint, including weights stored by reference. Raises as `put_back`.
    """
    based = tree.get(BASED, EMPTY)
    return {
        role: put_back(role, saved, based[role], EMPTY, run) if role in based else dict(saved)
        for role, saved in tree["models"].items()
    }


def find_places(entry: Mapping[str, Any], run: Path | None = None) -> list[Path]:
    """Return the existing places of weights by reference: the path from here, the original path, the run's copy."""
    copy = None if run is None else find_copy(run, str(entry["path"]))
    places = [Path(str(entry["path"])).expanduser(), Path(str(entry["place"])), *([copy] if copy else [])]
    return [p for p in dict.fromkeys(places) if p.exists()]


def _few(x: Tensor) -> str:
    return find_digest(x.detach().reshape(-1)[:FEW])


def _read(role: str, wanted: Mapping[str, str], entry: Mapping[str, Any], run: Path | None) -> dict[str, Tensor]:
    """Read the `wanted` weights, name -> digest, from the first place that has them."""
    from shuhari.models.text.pretrained import read_weights

    what = f"{len(wanted)} weights of role {role!r} stand in the checkpoint by reference"
    if not (places := find_places(entry, run)):
        message = f"{what} to {entry['place']}, which is not there"
        raise StoreError(message, f"put back the model that the run began with ({_digests(wanted)})")
    told = ""
    for place in places:
        with suppress(ValueError, OSError):
            there = read_weights(str(place))
            plain = {n: n.replace(".base_layer.", ".") for n in wanted}
            found = {n: there[name] for n, name in plain.items() if name in there}
            wrong = [n for n, digest in wanted.items() if n not in found or find_digest(found[n]) != digest]
            if not wrong:
                return found
            told = told or _tell_wrong(place, wrong, wanted, found)
    raise StoreError(f"{what} to {places[0]}, {told or 'which cannot be read'}", "put back the model that it was")


def _tell_wrong(place: Path, wrong: list[str], wanted: Mapping[str, str], found: Mapping[str, Tensor]) -> str:
    name = min(wrong)
    file = single if (single := place / "model.safetensors").is_file() else place
    now = find_digest(found[name]) if name in found else "nothing"
    which = f"{len(wrong)} differ, such as {name}: digest {wanted[name]} expected, {now} found"
    return f"and {file} has changed since: {which}"


def _digests(wanted: Mapping[str, str]) -> str:
    name = min(wanted)
    return f"digest of {name}: {wanted[name]}"


