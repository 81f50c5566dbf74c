"""The cost of work: seconds of decoding, prefill, training, sending weights, and of what only the driver does."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from shuhari.bounds import AtLeast0, Length, Positive, check


@dataclass(frozen=True)
class Hardware:
    """Costs in seconds, tokens and bytes.

    A replica of the engine, on `replica` devices, decodes up to `slots` rows at once. A decoding step takes `step`,
    plus `row` for each row, `cached` for each token that a row attends to, and `read` for each prompt token. Training
    takes `update` a step and `train` a token on one device, divided among the training devices, which reduce gradients
    `updates` times a step. Sending weights of `weights` bytes to n replicas takes `latency` a hop and the time of their
    bytes at `bandwidth` a second: once, passed on by all who have them (`spread = "tree"`), or n times, by one sender
    (`spread = "star"`). `resume`: whether rows that continue with new weights are read again. `driver` is the time of a
    message (a request, an answer) in the one process that distributes them, `store` its seconds for each stored byte,
    `kept` the bytes of an answer; `fixed` is the remaining time of a step during which devices wait, `each` the same of
    an answer, `score` of a token. `price`: an hour of one device."""

    step: AtLeast0 = 0.02
    row: AtLeast0 = 0.0
    cached: AtLeast0 = 0.0
    read: AtLeast0 = 0.0
    slots: Length = 256
    replica: Length = 1
    update: AtLeast0 = 0.0
    train: AtLeast0 = 1e-4
    updates: Length = 1
    weights: AtLeast0 = 0.0
    bandwidth: Positive = 1e10
    latency: AtLeast0 = 1e-4
    spread: Literal["tree", "star"] = "tree"
    resume: bool = True
    driver: AtLeast0 = 0.0
    store: AtLeast0 = 0.0
    kept: AtLeast0 = 0.0
    fixed: AtLeast0 = 0.0
    each: AtLeast0 = 0.0
    score: AtLeast0 = 0.0
    price: AtLeast0 = 0.0

    def __post_init__(self) -> None:
        check(self)
        if not (self.step or self.row):
            raise ValueError("a step of decoding takes no time: expected step or row above 0")

    def broadcast(self, replicas: int) -> float:
        """Return the seconds until `replicas` have new weights."""
        sent = self.weights / self.bandwidth
        if self.spread == "star":
            return replicas * (sent + self.latency)
        return sent + self.latency * math.ceil(math.log2(replicas + 1)) if self.weights else 0.0

    def learn(self, tokens: float, devices: int) -> float:
        """Return the seconds of the updates of one step on that many tokens."""
        reduce = 0.0
        if devices > 1 and self.weights:  # a ring all-reduce sends the gradient twice
            reduce = 2 * self.weights / self.bandwidth + 2 * self.latency * math.ceil(math.log2(devices))
        return self.update + self.train * tokens / devices + self.updates * reduce

    def alone(self, answers: float, tokens: float) -> float:
        """Return the serial seconds of a step: what only the driver does once a batch is complete."""
        return self.fixed + answers * (self.each + self.store * self.kept) + self.score * tokens
