"""What work costs: seconds of decoding, reading, training, sending weights, and of what only the driver does."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from shuhari.bounds import AtLeast0, Length, Positive, check


@dataclass(frozen=True)
class Hardware:
    """Seconds, tokens and bytes.

    One replica of the engine, on `replica` devices, decodes up to `slots` rows at once; a step of it takes `step`,
    `row` more for each row, `cached` more for each token that a row attends to, and `read` for each token of a prompt
    that is read. Training takes `update` a step and `train` a token on one device, shared by the devices that train,
    which add up gradients `updates` times a step. Sent to n replicas, weights of `weights` bytes take `latency` a hop
    and the time of their bytes at `bandwidth` a second: once, passed on by all who have them (`spread = "tree"`), or n
    times, by one sender (`spread = "star"`). `resume`: whether rows that go on with new weights are read again.
    `driver` a message (an answer is asked for, an answer comes back) is the time of the one process that deals them
    out, `store` a second of it for each stored byte, `kept` bytes an answer; `fixed` is what a step takes besides,
    while devices wait for nothing but it, and `each` the same for an answer, `score` for a token. `price` an hour of
    one device."""

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
        """Seconds until `replicas` have new weights."""
        sent = self.weights / self.bandwidth
        if self.spread == "star":
            return replicas * (sent + self.latency)
        return sent + self.latency * math.ceil(math.log2(replicas + 1)) if self.weights else 0.0

    def learn(self, tokens: float, devices: int) -> float:
        """Seconds of the updates of one step on so many tokens."""
        reduce = 0.0
        if devices > 1 and self.weights:  # a ring passes the gradient on twice
            reduce = 2 * self.weights / self.bandwidth + 2 * self.latency * math.ceil(math.log2(devices))
        return self.update + self.train * tokens / devices + self.updates * reduce

    def alone(self, answers: float, tokens: float) -> float:
        """Seconds a step that nobody shares: what only the driver does once a batch is there."""
        return self.fixed + answers * (self.each + self.store * self.kept) + self.score * tokens
