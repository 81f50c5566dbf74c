"""Value Gradient weighted Model-Based Reinforcement Learning (VaGraM, 2022), catalogue 183, on MBPO with SAC.

The world model is a role. Its loss weighs each state dimension by the value's gradient at the true next state
(`ValueGradient` stamps it, `Vaml` reads it); a curriculum asks for real episodes and for short imagined ones from
states seen in them; the rollout `episode` plays both, each in its own environment. Two learners share the models and
have buffers of their own.
Left out: growing horizons, elite members, a held-out set for early stopping.

Axes: `B` rows, `D` dimensions of a state, `A` of an action, `J` critics, `n` members of the world model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from shuhari.batch import Batch
from shuhari.data import Info, Payload, Problem, Request, Status
from shuhari.events import Collected, Event
from shuhari.models.mlp import Ensemble
from shuhari.needs import Need, Trace, role_model
from shuhari.ports import Ctx, Curriculum, Engine, Environment, Task


@dataclass
class WorldModel:
    """`n` deterministic nets that predict s' - s and r from a state and a decision, as the policy made it."""

    n: int = 7
    hidden: tuple[int, ...] = (200, 200, 200, 200)
    module: nn.Module = field(init=False, repr=False)

    def build(self, task: Task) -> None:
        spaces = task.spaces()
        assert spaces is not None
        d, a = (int(np.prod(s.shape, dtype=int)) for s in spaces)
        self.module = self._net = Ensemble(self.n, (d + a, *self.hidden, d + 1), "silu")

    def __call__(self, batch: Batch) -> Prediction:
        s = batch["context"]
        out = self._net(torch.cat([s, batch["action"].view(len(s), -1)], 1)).permute(1, 0, 2)  # [B, n, D + 1]
        return Prediction(s[:, None] + out[..., :-1], out[..., -1])


@dataclass
class Prediction:
    """Of each member: states [B, n, D], rewards [B, n]. What is imagined is their mean."""

    states: Tensor
    rewards: Tensor

    def state(self) -> Tensor:
        """[B, 1, D]"""
        return self.states.mean(1, keepdim=True)

    def reward(self) -> Tensor:
        """[B, 1]"""
        return self.rewards.mean(1, keepdim=True)


@dataclass
class ValueGradient:
    """Stamps `value_gradient` [B, J, D]: the gradient of V_j(s') = Q_j(s', mode of the policy) at the true successor,
    its norm held to the `clip` quantile of the batch; zero where the successor is worth nothing."""

    clip: float = 0.95
    policy: str = "policy"
    critic: str = "critic"
    needs: tuple[Need, ...] = field(default=(), init=False)

    def __call__(self, batch: Batch, ctx: Ctx) -> Batch:
        ahead = batch.successors()
        with torch.enable_grad():
            state = ahead["context"].detach().requires_grad_()
            ahead = ahead.put({"context": state})
            policy, critic = role_model(ctx.models, self.policy), role_model(ctx.models, self.critic)
            value = critic(ahead.put({"action": policy(ahead).mode()})).value()[:, 0]  # [B, J]
            grads = [torch.autograd.grad(v.sum(), state, retain_graph=True)[0] for v in value.unbind(1)]
        g = torch.stack(grads, 1) * ahead["cont"][:, None, None]
        norm = g.norm(dim=-1, keepdim=True)
        top = norm.flatten(1).quantile(self.clip, dim=0)[:, None]
        return batch.put({"value_gradient": g * (top / norm.clamp(min=1e-12)).clamp(max=1.0)})


@dataclass
class Vaml:
    """mean over j and members of Σ_d (g_jd (ŝ'_d - s'_d))² + (r̂ - r)², [B]; without the column g = 1: the MLE."""

    role: str = "world"
    needs: tuple[Need, ...] = field(default=(), init=False)
    couples: Literal["row", "batch"] = field(default="row", init=False)

    def __call__(self, batch: Batch, ctx: Ctx) -> tuple[Tensor, Info]:
        predicted = role_model(ctx.models, self.role)(batch)
        error = predicted.states - batch.successors()["context"][:, None]  # [B, n, D]
        g = batch.get("value_gradient")
        g = torch.ones_like(error[:, :1]) if g is None else g
        state = (g[:, None] * error[:, :, None]).square().sum(-1).mean((1, 2))  # over n and J
        reward = (predicted.rewards - batch["reward"]).square().mean(1)
        return state + reward, {"state_error": error.detach().square().sum(-1).mean(1), "reward_error": reward.detach()}


@dataclass
class World:
    """The world model as an environment: never ends, and takes the policy's decision as it is."""

    role: str = "world"
    seen: Payload = field(init=False, default=None)
    engine: Engine = field(init=False, repr=False)

    def bind(self, ctx: Ctx, key: Sequence[object]) -> None:
        self.engine = ctx.engine

    def takes(self, trace: Trace) -> Any:
        return trace.action

    def reset(self, problem: Problem) -> Payload:
        return self.restore(problem.start)

    async def step(self, action: Any) -> tuple[Payload, Mapping[str, float], Status | None]:
        told = await self.engine.score(self.role, self.seen, action, ("state", "reward"))
        self.seen = told["state"][0]
        return self.seen, {"task": float(told["reward"][0])}, None

    def snapshot(self) -> Payload:
        return self.seen

    def restore(self, snapshot: Payload) -> Payload:
        self.seen = snapshot
        return snapshot


@dataclass
class Dyna:
    """The task's environment, or, where the request says so, the learned one."""

    def environment(self, request: Request, ctx: Ctx) -> Environment | None:
        return World() if request.info["imagined"] else ctx.task.environment(request.problem)


@dataclass
class Branched:
    """`share` imagined requests of `horizon` decisions for each real one of `real`, from states that real episodes went
    through."""

    real: Curriculum
    share: int = 20
    horizon: int = 1
    capacity: int = 10_000
    state: dict[str, Any] = field(init=False, default_factory=dict)

    async def select(self, n: int, ctx: Ctx) -> list[Request]:
        requests = [Request(r.problem, info={"imagined": 0.0}) for r in await self.real.select(n, ctx)]
        starts = self.state.get("starts")
        if starts is None:
            return requests
        rows = torch.randint(len(starts), (n * self.share,), generator=ctx.rng("starts"))
        problems = [Problem("imagined", f"{ctx.step}/{i}", None, start=starts[j].numpy()) for i, j in enumerate(rows)]
        short = {"max_steps": self.horizon}
        return [*requests, *(Request(p, settings=short, info={"imagined": 1.0}) for p in problems)]

    def observe(self, event: Event) -> None:
        if isinstance(event, Collected):
            batch = event.batch
            new = batch["context"][(batch["imagined"] == 0) & batch.decides]
            old = self.state.get("starts", new[:0])
            self.state["starts"] = torch.cat([old, new])[-self.capacity :]


@dataclass
class Real:
    """The stream `real`: rows that the world itself gave."""

    needs: tuple[Need, ...] = field(default=(), init=False)

    def __call__(self, batch: Batch, ctx: Ctx) -> Batch:
        return batch.put({"weight/real": (batch["imagined"] == 0)[:, None] * batch["mask"].float()})
