"""`[distributed]` of a recipe: how the work of a run is spread over processes and machines, and nothing else.

So its settings may differ from one start of a run to the next, and are no part of what a recipe is compared by."""

from __future__ import annotations

import re
from dataclasses import dataclass

from shuhari.bounds import Processes, SomeProcesses, check

KINDS = ("llama", "mistral", "qwen2", "qwen3")  # layouts that can be in shards


@dataclass(frozen=True)
class Distributed:
    """workers: Ray actors that play and grade groups (0: this process does); address: of the Ray cluster to join,
    `auto` or `host:port`; "" starts a Ray of the run's own on this machine, which ends with the run.
    learners: processes of this machine that share each update, this one among them; where models are on CUDA, each has
    a GPU of its own. shard: the model that is trained lies in shards over the learners, which are then further
    processes beside this one; this one keeps a copy of the weights, to sample and score with."""

    workers: Processes = 0
    address: str = ""
    learners: SomeProcesses = 1
    shard: bool = False

    def __post_init__(self) -> None:
        check(self)
        if self.address and not self.workers:
            raise ValueError(f"address is {self.address!r}, and workers is 0, so none is joined: expected workers "
                             "of 1 or more, or no address")  # fmt: skip
        if self.address and self.address != "auto" and not re.fullmatch(r"[^/\s]+:\d{1,5}", self.address):
            raise ValueError(f"address is {self.address!r}: expected `auto`, or host:port of a cluster that this "
                             "machine is a node of, such as 10.0.0.1:6379")  # fmt: skip
        if self.shard and self.learners < 2:
            raise ValueError("shard is true, and learners is 1, which leaves nothing to divide: expected learners of 2 "
                             "or more, or shard = false")  # fmt: skip
