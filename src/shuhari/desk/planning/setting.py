"""What is simulated, and what comes of it.

sync      all devices sample, then all of them learn
async     some sample while others learn; for new weights all that has begun is finished first
partial   the same, but what has begun is interrupted, read again with the new weights, and goes on
"""

from __future__ import annotations

from dataclasses import dataclass

from shuhari.bounds import AtLeast0, Length, check

MODES = ("sync", "async", "partial")


@dataclass(frozen=True)
class Setting:
    """`sampling` and `training` devices, which are the same ones in mode `sync` unless they stand `apart`; `groups` a
    step; `staleness` versions; `stream`: in how many portions a batch is learnt from, each as soon as it is there;
    `shared`: one process on one machine does all of it, and halves its time while it learns; `early`: a row that comes
    within a step of the decoder is part of it (virtual time); `ends`: the run ends after `steps`, and asks for no more.
    `scale`: one device stands for so many alike, and one group for so many groups."""

    mode: str = "sync"
    sampling: Length = 1
    training: Length = 1
    groups: Length = 32
    staleness: AtLeast0 = 0.0
    apart: bool = False
    stream: Length = 1
    steps: Length = 12
    shared: bool = False
    early: bool = False
    ends: bool = False
    scale: float = 1.0

    def __post_init__(self) -> None:
        check(self)
        if self.mode not in MODES:
            raise ValueError(f"mode is {self.mode!r}: expected one of {', '.join(MODES)}")
        if self.staleness and self.mode == "sync":
            raise ValueError(f"staleness is {self.staleness}: expected 0 in mode sync")
        if self.mode == "sync" and not self.apart and self.sampling != self.training:
            raise ValueError(
                f"{self.sampling} sampling and {self.training} training devices: the same ones do both here"
            )

    @property
    def devices(self) -> int:
        together = self.shared or (self.mode == "sync" and not self.apart)
        return self.sampling if together else self.sampling + self.training


@dataclass
class Outcome:
    """What a simulated run was like; seconds, and shares of the time. Means are without the first steps, which fill
    the pipeline."""

    ends: list[float]  # when each step ended
    seconds: float  # a step
    tokens: float  # a second that were trained, prompts included
    answers: float  # a second
    staleness: float  # versions, of a group at the update, since it was begun: mean
    staleness_max: int
    sampling_idle: float  # share of the time that replicas have no row
    training_idle: float
    idle: float  # the same of all devices
    rows: float  # mean rows of a replica that has any
    driver: float  # share of the time that the driver is busy
    shares: dict[str, float]  # of the time: what the trainer did
