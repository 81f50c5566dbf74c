"""Reduction and broadcast of tensors between processes, with torch.distributed: gloo for tensors on the CPU, NCCL on
CUDA. The processes meet in a folder of the machine and talk over its loopback.

Left out: several machines.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from torch import Tensor

dist: Any = torch.distributed  # not all of whose names are declared
TIMEOUT = 600.0  # seconds that one waits for the others
BUCKET = 2**24  # numbers that are sent at once


class Group:
    """One process's member of the group. Every call raises RuntimeError if another process has ended or does not come
    within TIMEOUT."""

    def __init__(self, folder: Path, rank: int, size: int, *, cuda: bool) -> None:
        self.rank = rank
        store, patience = dist.FileStore(str(folder / "gloo"), size), timedelta(seconds=TIMEOUT)
        self._of: dict[str, Any] = {"cpu": _gloo(store, rank, size, patience)}
        if cuda:
            store = dist.FileStore(str(folder / "nccl"), size)
            options = dist.ProcessGroupNCCL.Options()
            options._timeout = patience
            self._of["cuda"] = dist.ProcessGroupNCCL(store, rank, size, options)

    @torch.no_grad()
    def broadcast(self, tensors: Sequence[Tensor]) -> None:
        """Replace the tensors of all other processes by rank 0's."""
        options = dist.BroadcastOptions()
        options.rootRank = 0
        for kind, some in _buckets(tensors):
            flat = torch.cat([t.detach().reshape(-1) for t in some])
            self._of[kind].broadcast([flat], options).wait()
            if self.rank:
                _copy(flat, some)

    @torch.no_grad()
    def reduce(self, tensors: Sequence[Tensor]) -> None:
        """Sum the tensors of all processes into rank 0's."""
        options = dist.ReduceOptions()
        options.rootRank, options.reduceOp = 0, dist.ReduceOp.SUM
        for kind, some in _buckets(tensors):
            flat = torch.cat([t.reshape(-1) for t in some])
            self._of[kind].reduce([flat], options).wait()
            if not self.rank:
                _copy(flat, some)


def join_default(folder: Path, rank: int, size: int, gpu: int | None = None) -> None:
    """Initialise torch's default group in a folder: gloo listening on the loopback address alone (by default it would
    listen on the address of this machine's name). `gpu`: NCCL instead, with this GPU as the current device."""
    if gpu is not None:
        torch.cuda.set_device(gpu)
        torch.cuda.init()
        store, patience = dist.FileStore(str(folder / "shards"), size), timedelta(seconds=TIMEOUT)
        dist.init_process_group("nccl", store=store, rank=rank, world_size=size, timeout=patience)
        return
    dist.Backend.register_backend("loopback", _gloo, devices=["cpu"])
    store, patience = dist.FileStore(str(folder / "shards"), size), timedelta(seconds=TIMEOUT)
    dist.init_process_group("loopback", store=store, rank=rank, world_size=size, timeout=patience)


def _gloo(store: Any, rank: int, size: int, timeout: timedelta) -> Any:
    options = dist.ProcessGroupGloo._Options()
    options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
    options._timeout = timeout
    return dist.ProcessGroupGloo(store, rank, size, options)


def _buckets(tensors: Sequence[Tensor]) -> Iterator[tuple[str, list[Tensor]]]:
    """Yield (kind of device, some tensors of one device and type), in the same order in every process."""
    kinds: dict[tuple[str, torch.dtype], list[Tensor]] = {}
    for t in tensors:
        kinds.setdefault((t.device.type, t.dtype), []).append(t)
    for (device, _), own in kinds.items():
        some, size = list[Tensor](), 0
        for t in own:
            if some and size + t.numel() > BUCKET:
                yield device, some
                some, size = [], 0
            some.append(t)
            size += t.numel()
        if some:
            yield device, some


def _copy(flat: Tensor, to: Sequence[Tensor]) -> None:
    for t, x in zip(to, flat.split([t.numel() for t in to]), strict=True):
        t.copy_(x.view_as(t))
