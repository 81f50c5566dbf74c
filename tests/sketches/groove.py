"""Discovering General RL Algorithms with Adversarial Environment Design (GROOVE, 2023), catalogue 144.

A learned policy gradient (LPG: a network that reads a rollout backwards and says where the agent's policy and its
prediction y should move) is trained through the agent's own updates, on levels with high algorithmic regret: what an
antagonist trained by plain A2C earns there more than the agent. One step of the loop is one rollout; the tape of an
inner loop is replayed with a graph when it is full.
Left out: the critic and the normalised advantages of the outer loss, mutated levels, lifetimes of several lengths.

Axes: `B` rows, `M` width of y, `H` of the network.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from shuhari.batch import Batch
from shuhari.data import EMPTY, Info, Request, Trajectory, code
from shuhari.events import Collected, Event, Updated
from shuhari.models.categorical import Categorical, sample_rows, score_rows
from shuhari.needs import Need, Noise, Traces
from shuhari.ports import Buffer, Ctx, Model, Optimiser, Task, Transform
from shuhari.rollouts.episode import Episode

Weights = dict[str, Tensor]


# ------------------------------------------------------------------------------------------------ models


@dataclass
class Agent:
    """A table of logits and of predictions y over `width` categories, which mean what the network makes them mean."""

    width: int = 8
    kind: Literal["exact", "chain", "bound"] = field(default="exact", init=False)
    module: nn.Module = field(init=False, repr=False)

    def build(self, task: Task) -> None:
        spaces = task.spaces()
        assert spaces is not None
        self.module = self._table = _Table(int(spaces[0].n), int(spaces[1].n), self.width)

    def __call__(self, batch: Batch) -> Predicting:
        states = batch["context"].reshape(-1)
        decided = score_rows(self._table.logits[states], batch)
        return Predicting(decided.logits, decided.action, self._table.y[states].log_softmax(-1))

    def sample(self, contexts: Any, sampling: Any, *, noise: Noise) -> Traces:
        with torch.no_grad():
            return sample_rows(self._table.logits[contexts.reshape(-1)], sampling, noise)


class _Table(nn.Module):
    def __init__(self, states: int, actions: int, width: int) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.zeros(states, actions))
        self.y = nn.Parameter(torch.zeros(states, width))


class Predicting(Categorical):
    """Categorical decisions, and log y [B, M]."""

    def __init__(self, logits: Tensor, action: Tensor, y: Tensor) -> None:
        super().__init__(logits, action)
        self.y = y


@dataclass
class Lpg:
    """Reads columns `agent/pi` [B] and `agent/y` [B, M] (log y) backwards in time; says π̂ [B] and log ŷ [B, M]."""

    width: int = 8
    hidden: int = 256
    module: nn.Module = field(init=False, repr=False)

    def build(self, task: Task) -> None:
        phi = nn.Sequential(nn.Linear(self.width, 16), nn.ReLU(), nn.Linear(16, 1))
        self.module = self._net = nn.ModuleDict({
            "phi": phi, "gru": nn.GRUCell(5, self.hidden), "pi": nn.Linear(self.hidden, 1),
            "y": nn.Linear(self.hidden, self.width),
        })  # fmt: skip

    def __call__(self, batch: Batch) -> tuple[Tensor, Tensor]:
        ahead, child, net = batch.successors(), batch["child"], self._net
        over = (ahead["cont"] == 0) | (child < 0)
        facts = [batch["reward"].sum(1), over.float(), batch["agent/pi"]]
        seen = [net["phi"](b["agent/y"].exp()).squeeze(-1) for b in (batch, ahead)]
        x = torch.stack([*facts, *seen], 1)
        h = [x.new_zeros(self.hidden)] * len(batch)  # one state a row: written once, so that gradients run through
        for rows in batch.by_depth():  # latest first
            later = torch.stack([h[c] if c >= 0 else x.new_zeros(self.hidden) for c in child[rows].tolist()])
            for row, state in zip(rows.tolist(), net["gru"](x[rows], later), strict=True):
                h[row] = state
        states = torch.stack(h)
        return net["pi"](states).squeeze(-1), net["y"](states).log_softmax(-1)


class _Call(nn.Module):
    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model, self.module = model, model.module

    def forward(self, batch: Batch) -> Any:
        return self.model(batch)


def called(model: Model, weights: Weights, batch: Batch) -> Any:
    """`model(batch)`, as if its parameters were `weights`, with a graph back to them."""
    return torch.func.functional_call(_Call(model), {f"module.{k}": w for k, w in weights.items()}, (batch,))


# ------------------------------------------------------------------------------------------------ the learned rule


def moved(theta: Weights, batch: Batch, agent: Model, lpg: Model, lr: float) -> tuple[Weights, Tensor, Tensor]:
    """One update of the agent: θ - lr ∇ [mean of π̂ log π(a|s) + KL(y ‖ ŷ) / 2], and π̂, log ŷ. The gradient takes π̂ and
    ŷ as they are; that of the outer loop runs through them, also by way of what they read."""
    told = called(agent, theta, batch)
    batch = batch.put({"agent/pi": told.log_prob()[:, 0].exp(), "agent/y": told.y})
    pi, y = lpg(batch)
    direct = {k: w.clone() for k, w in theta.items()}
    here = called(agent, direct, batch)
    loss = pi * here.log_prob()[:, 0] + 0.5 * (here.y.exp() * (here.y - y)).sum(-1)
    grads = torch.autograd.grad(loss[batch.decides].mean(), list(direct.values()), create_graph=True)
    return {k: w - lr * g for (k, w), g in zip(theta.items(), grads, strict=True)}, pi, y


def outer(theta: Weights, tape: Sequence[Batch], agent: Model, lpg: Model, lr: float) -> Tensor:
    """The loss of the rule: the tape but for its last rollout moves the agent; the last one says how good that was."""
    penalty = torch.zeros(())
    for batch in tape[:-1]:
        theta, pi, y = moved(theta, batch, agent, lpg, lr)
        decides = batch.decides
        entropy = -(y.exp() * y).sum(-1)
        each = 0.005 * pi.square() - 0.001 * entropy + 0.001 * y.exp().square().sum(-1)
        penalty = penalty + each[decides].mean() / (len(tape) - 1)
    last = tape[-1]
    told = called(agent, theta, last)
    gain = told.log_prob() * last["advantage"] + 0.05 * told.entropy()
    return penalty - gain[last["mask"]].mean()


@dataclass
class Closure:
    """Any loss of some parameters, as an optimiser may ask for it."""

    loss: Callable[[], Tensor]
    params: Sequence[nn.Parameter]

    def backward(self) -> Info:
        value = self.loss()
        for p, g in zip(self.params, torch.autograd.grad(value, self.params), strict=True):
            p.grad = g
        return {"loss": float(value.detach())}

    def gradients(self) -> dict[str, Tensor]:
        return {"loss": torch.cat([g.flatten() for g in torch.autograd.grad(self.loss(), self.params)])}

    def values(self) -> dict[str, float]:
        return {"loss": float(self.loss().detach())}

    def hvp(self, term: str, vector: Tensor) -> Tensor:
        grads = torch.autograd.grad(self.loss(), self.params, create_graph=True)
        flat = torch.cat([g.flatten() for g in grads])
        return torch.cat([g.flatten() for g in torch.autograd.grad(flat @ vector, self.params)])


@dataclass
class MetaLearner:
    """`inner` rollouts move the agent by the rule; the one after them moves the rule. An agent lives for `lifetime`
    moves of the rule, then starts anew."""

    buffer: Buffer
    optimiser: Optimiser
    transforms: Mapping[str, Transform] = field(default_factory=lambda: EMPTY)
    inner: int = 5
    lr: float = 1.0
    lifetime: int = 50
    needs: tuple[Need, ...] = field(default=(), init=False)
    name: str = "lpg"
    state: dict[str, Any] = field(
        init=False, default_factory=lambda: {"tape": [], "theta": None, "born": None, "moves": 0}
    )

    def bind(self, models: Mapping[str, Model]) -> None:
        self.params = list(models["lpg"].module.parameters())
        self.optimiser.bind(self.params)
        self.state["born"] = weights(models["agent"])

    def update(self, batch: Batch, ctx: Ctx) -> Updated:
        agent, lpg, s = ctx.models["agent"], ctx.models["lpg"], self.state
        rows = batch.take(batch["role"] == code("agent")).flat()
        s["tape"].append(rows)
        info: Info = {"lpg/tape": float(len(s["tape"]))}
        if len(s["tape"]) == 1:
            s["theta"] = weights(agent)
        if len(s["tape"]) <= self.inner:
            theta = {k: w.requires_grad_() for k, w in weights(agent).items()}
            assign(agent, moved(theta, rows, agent, lpg, self.lr)[0])
            return Updated(self.name, info, rows["id"])
        theta = {k: w.requires_grad_() for k, w in s["theta"].items()}
        closure = Closure(lambda: outer(theta, s["tape"], agent, lpg, self.lr), self.params)
        info |= {f"lpg/{k}": x for k, x in self.optimiser.step(closure, ctx.count).items()}
        s["tape"], s["moves"] = [], s["moves"] + 1
        if s["moves"] % self.lifetime == 0:
            assign(agent, s["born"])
        return Updated(self.name, info, rows["id"])


def weights(model: Model) -> Weights:
    return {k: w.detach().clone() for k, w in model.module.named_parameters()}


@torch.no_grad()
def assign(model: Model, to: Weights) -> None:
    for k, w in model.module.named_parameters():
        w.copy_(to[k])


# ------------------------------------------------------------------------------------------------ levels


@dataclass
class Duel:
    """n episodes of the agent and n of its rival on one level."""

    accepts: Mapping[str, Any] = field(init=False, default_factory=lambda: EMPTY)

    async def group(self, request: Request, ctx: Ctx) -> list[Trajectory]:
        both = await asyncio.gather(*(Episode(role).group(request, ctx) for role in ("agent", "rival")))
        return [t for group in both for t in group]


@dataclass
class Regret:
    """Levels by algorithmic regret: with probability `replay` one of the `top` levels scored so far, else a new one. A
    level's score is what the rival earned there more than the agent; the lowest are forgotten beyond `capacity`."""

    replay: float = 0.5
    top: int = 100
    capacity: int = 4000
    split: str = "train"
    state: dict[str, Any] = field(init=False, default_factory=lambda: {"at": 0, "scores": {}})

    async def select(self, n: int, ctx: Ctx) -> list[Request]:
        source, rng, best = ctx.task.problems(self.split), ctx.rng("levels"), self.ranked()
        requests = []
        for u in torch.rand(n, generator=rng).tolist():
            again = bool(best) and u < self.replay
            level = best[int(torch.randint(len(best), (), generator=rng))] if again else self.state["at"]
            self.state["at"] += not again
            requests.append(Request(source[level], info={"level": float(level), "replayed": float(again)}))
        return requests

    def ranked(self) -> list[int]:
        """The `top` levels, highest regret first."""
        scores = self.state["scores"]
        return [int(k) for k in sorted(scores, key=lambda k: -scores[k])[: self.top]]

    def observe(self, event: Event) -> None:
        if not isinstance(event, Collected):
            return
        batch, scores = event.batch, self.state["scores"]
        outcome = batch.outcome()
        for level in batch["level"].unique():
            here = (batch["level"] == level) & batch["leaf"]
            rival, agent = (outcome[here & (batch["role"] == code(r))].mean() for r in ("rival", "agent"))
            scores[str(int(level))] = float(rival - agent)
        for worst in sorted(scores, key=lambda k: scores[k])[: -self.capacity]:
            del scores[worst]
