"""Imagined transitions: short rollouts of the policy in a learned dynamics model, from observed states.

Source: Janner et al. 2019, "When to Trust Your Model: Model-Based Policy Optimization". Axes: `B` rows of a draw, `n`
members of the model.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from shuhari.batch import Batch
from shuhari.bounds import Length, Share, check
from shuhari.buffers.mixture import join_draws
from shuhari.kernel.registry import register
from shuhari.needs import role_model
from shuhari.ports import Buffer, Ctx
from shuhari.ports.declares import together


@register("buffer", "imagined")
@dataclass
class Imagined:
    """Adds short rollouts of the policy in a learned dynamics model to each batch of real transitions (MBPO).

    To each draw of `of`, B real transitions, it adds `horizon` times B imagined ones: from each state the policy's
    action and the prediction of a random member of the model `world`, then again from the predicted state. Imagined
    rows carry `stream`, as do the first `real` share of the real ones; all real rows carry `seen`. No imagined episode
    ends.
    """

    of: Buffer
    """Buffer of the real transitions, such as `replay`."""
    horizon: Length = 1
    """Number of imagined steps from each real state."""
    real: Share = 0.05
    """Share of the real transitions that actor and critic learn from in addition to the imagined ones; 0.05 in MBPO."""
    world: str = "world"
    """Role of the dynamics model, which predicts the next state and the reward."""
    policy: str = "policy"
    """Role of the policy that acts in the imagined rollouts."""
    stream: str = "rl"
    """Name of the weights that mark the rows for actor and critic: the imagined ones, and the share `real`."""
    seen: str = "world"
    """Name of the weights that mark the real rows, from which the dynamics model learns."""

    def __post_init__(self) -> None:
        check(self)

    @property
    def roles(self) -> tuple[str, ...]:
        return self.world, self.policy

    @property
    def stamps(self) -> tuple[str, ...] | None:
        return together((f"weight/{self.stream}", f"weight/{self.seen}"), self.of)

    def wanted(self) -> int:
        return self.of.wanted()

    def draw(self, ctx: Ctx) -> Iterator[Batch]:
        for i, batch in enumerate(self.of.draw(ctx)):
            mask = batch["mask"].float()
            keep = torch.arange(len(batch)) < round(self.real * len(batch))
            found = batch.put({f"weight/{self.stream}": mask * keep[:, None], f"weight/{self.seen}": mask})
            yield join_draws([found, self._imagine(batch["context"], ctx, i)])

    @torch.no_grad()
    def _imagine(self, state: Tensor, ctx: Ctx, draw: int) -> Batch:
        """Returns [horizon B] transitions, each followed by its successor."""
        policy: Any = role_model(ctx.models, self.policy)
        world: Any = role_model(ctx.models, self.world)
        B, every = len(state), torch.arange(len(state))
        states, actions, rewards = [state], [], []
        for t in range(self.horizon):
            now = Batch({"context": states[-1], "mask": torch.ones(B, 1, dtype=torch.bool)})
            action, _ = policy(now).rsample(ctx.noise(now, f"imagined/{draw}/{t}"))
            after = world(now.put({"action": action}))
            member = torch.randint(after.reward().shape[1], (B,), generator=ctx.rng("imagined", draw, t))
            states.append(after.state()[every, member])
            actions.append(action)
            rewards.append(after.reward()[every, member])
        n = self.horizon * B
        mask = (torch.arange(n + B) < n)[:, None]
        whole = {
            "context": torch.cat(states),
            "action": torch.cat([*actions, torch.zeros_like(actions[0])]),
            "reward": torch.cat([*rewards, torch.zeros_like(rewards[0])])[:, None],
            "mask": mask,
            "logp": torch.where(mask, torch.nan, 0.0),
            "child": torch.where(mask[:, 0], torch.arange(B, n + 2 * B), -1),
            "id": torch.full((n + B,), -1),  # no id: later results about them concern no stored row
            f"weight/{self.stream}": mask.float(),
            f"weight/{self.seen}": torch.zeros(n + B, 1),
        }
        return Batch(whole, torch.arange(n), stream=self.stream)
