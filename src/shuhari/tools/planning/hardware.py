"""What work costs: seconds of decoding, reading, training, sending weights, and of what only the driver does."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

from shuhari.data import nearest


@dataclass(frozen=True)
class Hardware:
    """Seconds, tokens and bytes; all are at least 0.

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

    step: float = 0.02
    row: float = 0.0
    cached: float = 0.0
    read: float = 0.0
    slots: int = 256
    replica: int = 1
    update: float = 0.0
    train: float = 1e-4
    updates: int = 1
    weights: float = 0.0
    bandwidth: float = 1e10
    latency: float = 1e-4
    spread: str = "tree"
    resume: bool = True
    driver: float = 0.0
    store: float = 0.0
    kept: float = 0.0
    fixed: float = 0.0
    each: float = 0.0
    score: float = 0.0
    price: float = 0.0

    def __post_init__(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            if f.name == "spread":
                if value not in ("tree", "star"):
                    raise ValueError(f"spread is {value!r}: expected 'tree' or 'star'")
            elif not value >= (least := 1 if f.name in ("slots", "replica", "updates") else 0) or math.isinf(value):
                raise ValueError(f"{f.name} is {value!r}: expected a number of at least {least}")
        if not (self.step or self.row) or not self.bandwidth:
            raise ValueError(
                "a step of decoding takes no time, or bandwidth is 0: expected step, row and bandwidth above 0"
            )

    def changed(self, settings: Mapping[str, str]) -> Hardware:
        """With settings laid over, as `--set` gives them. ValueError names the setting and the nearest one."""
        known: dict[str, type] = {f.name: type(getattr(self, f.name)) for f in fields(self)}
        found: dict[str, object] = {}
        for key, text in settings.items():
            if key not in known:
                raise ValueError(f"there is no setting {key!r}; {nearest(key, list(known))}")
            try:
                kind = known[key]
                if kind is bool:
                    found[key] = {"true": True, "false": False}[text]
                else:
                    found[key] = int(text) if kind is int else float(text) if kind is float else text
            except (ValueError, KeyError):
                raise ValueError(f"{key}={text}: expected {known[key].__name__}") from None
        return replace(self, **found)  # type: ignore[arg-type]

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
