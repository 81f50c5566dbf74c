"""`[distributed]` of a recipe: how the work of a run is distributed over processes and machines, and nothing else.

So its settings may differ from one start of a run to the next, and are ignored when recipes are compared."""

from __future__ import annotations

import re
from dataclasses import dataclass

from shuhari.bounds import Processes, SomeProcesses, check

KINDS = ("llama", "mistral", "qwen2", "qwen3")  # layouts that can be in shards


@dataclass(frozen=True)
class Distributed:
    """How the work of a run is distributed over processes and machines.

    With `shard`, the run's own process keeps a copy of the weights, to sample and score with. ValueError for settings
    that do not fit together."""

    workers: Processes = 0
    """Number of Ray actors that play and grade groups; 0 plays in the run's own process. Set it if tools, judges or
    environments wait."""
    address: str = ""
    """Address of the Ray cluster to join, `auto` or `host:port`; empty starts a Ray of the run's own on this
    machine."""
    learners: SomeProcesses = 1
    """Number of processes of this machine that share each update, the run's own among them; with models on CUDA each
    has a GPU of its own."""
    shard: bool = False
    """Shard the trained model over the learners (FSDP), if its weights and moments do not fit into one process; all
    learners are then further processes."""

    def __post_init__(self) -> None:
        check(self)
        if self.address and not self.workers:
            raise ValueError(f"address is {self.address!r}, and workers is 0, so no cluster is used: expected workers "
                             "of 1 or more, or no address")  # fmt: skip
        if self.address and self.address != "auto" and not re.fullmatch(r"[^/\s]+:\d{1,5}", self.address):
            raise ValueError(f"address is {self.address!r}: expected `auto`, or host:port of a cluster that this "
                             "machine is a node of, such as 10.0.0.1:6379")  # fmt: skip
        if self.shard and self.learners < 2:
            raise ValueError("shard is true, and learners is 1, so the model cannot be divided: expected learners of 2 "
                             "or more, or shard = false")  # fmt: skip
