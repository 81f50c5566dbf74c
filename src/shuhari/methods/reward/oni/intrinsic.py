"""An intrinsic reward for messages of an environment: a label, or a score that was fitted to labels.

Source: Zheng et al. 2024, "Online Intrinsic Rewards for Decision Making Agents from Large Language Model Feedback",
sections 3.2 and 3.3.

Axes: `B` rows, `K` positions.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from shuhari.batch import Batch
from shuhari.bounds import AtLeast0, Share, check
from shuhari.kernel.registry import register
from shuhari.needs import Need
from shuhari.ports import Ctx


@register("transform", "intrinsic")
@dataclass
class Intrinsic:
    """reward = extrinsic * reward + intrinsic * r(m) / N(m)^power, with N(m) how often the message m has come in
    the episode, this time counted.

    r by `kind`: `retrieval`, the label that `annotate` stamps, 0 without one; `classification`, 1 if sigmoid of the
    role's value is above `threshold`, else 0; `ranking`, the role's value by its running mean and deviation over all
    that came so far, 0 below `least`. Stamps `reward` [B, K] and `intrinsic` [B], the second summand. A transform
    of `[collect]`, behind `annotate`: each row passes once, also of episodes that go on in the next batch.
    """

    kind: Literal["retrieval", "classification", "ranking"] = "retrieval"
    """What r is: the label itself, or a number of `role`, which is fitted to labels."""
    extrinsic: float = 1.0
    """Weight of the environment's reward."""
    intrinsic: float = 0.1
    """Weight of the intrinsic reward; 0 leaves the environment's alone."""
    power: AtLeast0 = 3.0
    """How fast a message is worth less as an episode repeats it; 0 pays each time alike."""
    threshold: Share = 0.5
    """Probability above which `classification` counts a message as helpful."""
    least: float = -0.5
    """Standardised score below which `ranking` gives 0."""
    role: str = "helpful"
    """Role of the model that scores messages; unused by `retrieval`."""
    column: str = "message"
    """Column [B] with the number of the environment's message after a decision; 0 or less is none."""
    state: dict[str, Any] = field(
        init=False, default_factory=lambda: {"counts": {}, "n": 0, "mean": 0.0, "squares": 0.0}
    )
    stamps = ("reward", "intrinsic")

    def __post_init__(self) -> None:
        check(self)

    @property
    def needs(self) -> tuple[Need, ...]:
        return () if self.kind == "retrieval" else (Need((self.role,), "value"),)

    @property
    def reads(self) -> tuple[str, ...]:
        return self.column, "reward", *(("helpful",) if self.kind == "retrieval" else ())

    def __call__(self, batch: Batch, ctx: Ctx) -> Batch:
        message = batch[self.column].long().reshape(-1) * batch.decides
        said = message > 0
        if self.kind == "retrieval":
            r = batch["helpful"].nan_to_num(0.0)
        else:
            score = batch[self.needs[0]][:, 0]
            r = (score.sigmoid() > self.threshold).float() if self.kind == "classification" else self._rank(score, said)
        bonus = torch.where(said, r / self._count(batch["episode"], message) ** self.power, 0.0)
        last = batch["mask"] & (batch["mask"].cumsum(1) == batch["mask"].sum(1, keepdim=True))  # of a row's decisions
        reward = self.extrinsic * batch["reward"] + self.intrinsic * bonus[:, None] * last
        return batch.put({"reward": reward, "intrinsic": self.intrinsic * bonus})

    def _count(self, episode: Tensor, message: Tensor) -> Tensor:
        """Returns [B] how often the message has come in the episode, this time included; rows in order of time."""
        before, now, out = self.state["counts"], dict[str, dict[str, int]](), torch.ones(len(message))
        for i, (e, m) in enumerate(zip(map(str, episode.tolist()), map(str, message.tolist()), strict=True)):
            counts = now.setdefault(e, dict(before.get(e, {})))
            if m != "0":
                counts[m] = counts.get(m, 0) + 1
                out[i] = counts[m]
        self.state["counts"] = now  # an episode that is not here has ended
        return out

    def _rank(self, score: Tensor, said: Tensor) -> Tensor:
        """Returns [B] scores by the mean and the deviation of all that came so far; 0 if they lie below
        `least`."""
        state, x = self.state, score[said].double()
        if len(x):
            n = state["n"] + len(x)
            gap = float(x.mean()) - state["mean"]
            state["squares"] += float((x - x.mean()).square().sum()) + gap**2 * state["n"] * len(x) / n
            state |= {"n": n, "mean": state["mean"] + gap * len(x) / n}
        deviation = max(1e-8, state["squares"] / max(1, state["n"])) ** 0.5
        z = (score - state["mean"]) / deviation
        return torch.where(z < self.least, 0.0, z)
