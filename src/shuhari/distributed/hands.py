"""What a run needs of its workers: a process to call (`Hand`), a source of workers (`Yard`), and the record of one
(`Worker`)."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Protocol

MOST = 500  # groups at one worker
LOG = logging.getLogger("shuhari")


class Hand(Protocol):
    """One worker's process."""

    def send(self, method: str, message: bytes, blobs: Sequence[Any] = ()) -> Future[bytes]: ...
    def tell(self) -> str: ...  # the last lines of its log, "" where they are not known
    def close(self) -> None: ...


class Yard(Protocol):
    """A source of workers."""

    def hire(self, index: int) -> Hand: ...
    def put(self, data: bytes) -> Any: ...  # what `Hand.send` takes as a blob
    def explain_loss(self) -> str: ...  # "" while it is there
    def restart(self) -> None: ...  # LostWorkerError where it cannot be
    def close(self) -> None: ...


@dataclass(eq=False)
class Worker:
    """A worker as the run knows it; `asked`: number of groups that it has now."""

    index: int
    hand: Hand
    started: Future[bytes]
    at: float
    asked: int = 0
    dead: bool = False
    reached: list[Future[bytes]] = field(default_factory=list)  # weights on their way, or lost on it
