"""What is simulated, and the outcome.

sync      all devices sample, then all of them train
async     some sample while others train; new weights wait until all answers in progress are finished
partial   the same, but answers in progress are interrupted, read again with the new weights, and continue
"""

from __future__ import annotations

from dataclasses import dataclass

from shuhari.bounds import AtLeast0, Length, check

MODES = ("sync", "async", "partial")


@dataclass(frozen=True)
class Setting:
    """A run to simulate: `sampling` and `training` devices, the same ones in mode `sync` unless `apart`; `groups` a
    step; `staleness` in versions; `stream`: number of portions of a batch, each trained on as soon as it is complete;
    `shared`: one process on one machine does everything, and sampling and training each run at half speed while both
    do; `early`: a row that arrives during a decoding step joins it (virtual time); `ends`: the run ends after `steps`,
    and requests no further groups. `scale`: number of devices and groups that each simulated one represents."""

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
                f"{self.sampling} sampling and {self.training} training devices: expected equal numbers, as the same "
                "devices do both"
            )

    @property
    def devices(self) -> int:
        together = self.shared or (self.mode == "sync" and not self.apart)
        return self.sampling if together else self.sampling + self.training


@dataclass
class Outcome:
    """The outcome of a simulated run, in seconds and shares of the time. Means are without the first steps, which fill
    the pipeline."""

    ends: list[float]  # when each step ended
    seconds: float  # a step
    tokens: float  # trained per second, prompts included
    answers: float  # per second
    staleness: float  # mean versions between a group's start and its update
    staleness_max: int
    sampling_idle: float  # share of the time in which replicas have no row
    training_idle: float
    idle: float  # the same for all devices
    rows: float  # mean rows of a replica that has any
    driver: float  # share of the time in which the driver is busy
    shares: dict[str, float]  # of the time: what the trainer did
