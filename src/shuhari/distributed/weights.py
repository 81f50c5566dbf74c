"""The weights that workers must be sent: what may have changed since they were sent last, and no more.

Parameters that are trained, or follow others, are sent at each sync; frozen ones (the layers under adapters, a
reference) once, and again only if they were written to; buffers if they differ. With an adapter, only the adapter is
sent at each sync. `blobs` is what a new worker needs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from shuhari.distributed.messages import pack
from shuhari.kernel import state
from shuhari.ports.hooks import ability

Key = tuple[str, str]  # role, name of the tensor
MEMORY: Key = ("", "")  # stands for what models remember beside their weights


@dataclass(eq=False)
class Blob:
    """Weights as bytes, with the names of their tensors."""

    data: bytes
    keys: set[Key]
    sent: Any = None  # what the transport made of it


@dataclass(eq=False)
class Outbox:
    """The blobs that were sent, newest last."""

    blobs: list[Blob] = field(default_factory=list)
    _frozen: dict[Key, tuple[int, int]] = field(default_factory=dict)  # address and number of writes, as it was sent
    _buffers: dict[Key, Tensor] = field(default_factory=dict)
    _models: dict[str, Any] = field(default_factory=dict)

    def add(self, models: Mapping[str, Any], moved: Collection[str]) -> list[Blob]:
        """Return blobs of what has changed in the models since the last call. `moved`: roles whose weights follow those
        of others; changes of other frozen parameters are seen by torch's count of writes to them."""
        if (
            {r: id(m) for r, m in models.items()}
            != {r: id(m) for r, m in self._models.items()}
        ):
            self.blobs, self._frozen, self._buffers = [], {}, {}
        self._models = dict(models)
        moving: dict[str, dict[str, Tensor]] = {}
        still: dict[str, dict[str, Tensor]] = {}
        for role, model in {id(m): (r, m) for r, m in [*models.items()][::-1]}.values():
            for into, name, tensor in self._find(role, model, moves=role in moved):
                (moving if into else still).setdefault(role, {})[name] = tensor
        memory = state.memory({"models": dict(models)})
        new = [self._make(tree, memory if tree is moving else {}) for tree in (still, moving)
               if tree or (tree is moving and memory)]  # fmt: skip
        for blob in new:
            self.blobs = [b for b in self.blobs if not b.keys <= blob.keys]
            self.blobs.append(blob)
        return new

    def _find(self, role: str, model: Any, *, moves: bool) -> list[tuple[bool, str, Tensor]]:
        """Return (whether it is sent at each sync, name, tensor) of each tensor of a model that has to be sent now."""
        module = ability(model, "module")
        if module is None:
            return []
        parameters = dict(module.named_parameters(remove_duplicate=False))
        found = []
        for name, tensor in module.state_dict(keep_vars=True).items():
            key = (role, name)
            if name in parameters and (moves or tensor.requires_grad):
                found.append((True, name, tensor.detach()))
            elif name in parameters:
                mark = (tensor.data_ptr(), tensor._version)
                if self._frozen.get(key) != mark:
                    self._frozen[key] = mark
                    found.append((False, name, tensor.detach()))
            elif not _is_same(self._buffers.get(key), tensor):
                self._buffers[key] = tensor.detach().clone()
                found.append((False, name, tensor.detach()))
        return found

    def _make(self, tree: Mapping[str, Mapping[str, Tensor]], memory: Mapping[str, Any]) -> Blob:
        keys = {
            (role, name)
            for role, tensors in tree.items()
            for name in tensors
        } | ({MEMORY} if memory else set())
        return Blob(pack({"weights": tree, "memory": memory}), keys)


def _is_same(known: Tensor | None, now: Tensor) -> bool:
    return known is not None and known.shape == now.shape and torch.equal(known, now)
