"""A penalty on the reward implied by a language model's own logits: inverse soft Q-learning added to imitation.

The logits of a state are its Q-values, so V = log sum exp Q, pi = softmax Q, and the reward for which this Q is correct
is Q less the value of the next state. Source: "Imitating Language via Scalable Inverse Reinforcement Learning"
(Wulfmeier et al. 2024, arXiv 2409.01369): maximum likelihood with a penalty on that reward's square. A row is a whole
episode. Left out: its online form, with samples of the policy, and GAIL.

Axes: `B` rows, `K` positions, `N` decisions of a chunk.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from torch import Tensor

from shuhari.batch import Batch
from shuhari.bounds import Share, check
from shuhari.data import Info
from shuhari.kernel.registry import register
from shuhari.needs import Need
from shuhari.objectives.soft_q import next_values
from shuhari.ports import Ctx


@register("objective", "implied_reward")
@dataclass
class ImpliedReward:
    """A penalty on the squared reward that the policy's own logits imply, to be added to imitation (inverse soft
    Q-learning).

    r², [B, K], with r = Q(s, a) - discount V' = log pi(a|s) + V - discount V' in nats: V = log sum exp of the logits
    before the decision, V' before the next one, 0 after the last. The gradient runs through all three.

    A term to use with `nll` on the same stream and with its reduction; its weight is the paper's lambda. A constant
    added to all logits changes r only at the last decision (at discount 1). Info: `implied`, r. Raises ValueError for a
    row that continues in another. Over part of a vocabulary (top-p) V is that of the kept ids.
    """

    discount: Share = 1.0
    """Discount factor of the next value; 1 in the paper."""
    role: str = "policy"
    """Role of the policy that imitates."""
    couples: Literal["row", "batch"] = field(default="row", init=False)
    stamps = ()

    def __post_init__(self) -> None:
        check(self)

    @cached_property
    def needs(self) -> tuple[Need, ...]:
        """log pi and V."""
        names: tuple[str | Callable[..., Tensor], ...] = ("log_prob", soft_value)
        return tuple(Need((self.role,), name, live=True) for name in names)

    def __call__(self, batch: Batch, ctx: Ctx) -> tuple[Tensor, Info]:
        log_prob, value = (batch[n] for n in self.needs)
        reward = log_prob + value - self.discount * next_values(value, batch)
        return reward.square(), {"implied": reward.detach()}


def soft_value(dists: tuple[Any, ...], action: Tensor, column: Callable[[str], Tensor]) -> Tensor:
    """A functional: [N] log sum exp of the logits."""
    value: Tensor = dists[0].parameters().logsumexp(-1)
    return value
