"""Predicts success rates from those of a few probed problems, by attention over embeddings of the prompts.

Source: "Improving Data Efficiency for LLM Reinforcement Fine-tuning Through Difficulty-targeted Online Data Selection
and Rollout Replay" (DOTS, arXiv 2506.05316), section 4.1. The paper fits the adapter once, on rollouts of earlier runs;
here it is fitted to the run's own earlier rollouts, with the same loss, before each prediction. Left out: the linear
regression on the references that the released code adds after the paper's calibration.

Axes: `Q` problems, `R` references, `D` features of an embedding, `h` those of the adapter.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import e, log
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy, softplus

from shuhari.bounds import Bounds, Count, Length, Positive, Seed, Size, check
from shuhari.curricula.target import count_successes, name_of
from shuhari.data import Problem, Request, code
from shuhari.events import Collected, Event
from shuhari.kernel.registry import register
from shuhari.ports import Ctx


class Adapter(nn.Module):
    """The attention network: z = embed(x); base = sum_k softmax_k(z . z_k / sqrt(h)) v_k; p = sigmoid(logit(base) / T +
    b), where (T, b) = (softplus, tanh) of an MLP on mean and deviation of v. It starts with T = 1 and b = 0."""

    def __init__(self, inputs: int, size: int) -> None:
        super().__init__()
        norms = nn.LayerNorm(inputs), nn.LayerNorm(size)
        self.embed = nn.Sequential(norms[0], nn.Linear(inputs, size), nn.GELU(), nn.Linear(size, size), norms[1])
        last = nn.Linear(10, 2)
        nn.init.zeros_(last.weight)
        with torch.no_grad():
            last.bias.copy_(torch.tensor([log(e - 1), 0.0]))
        self.calibrate = nn.Sequential(nn.Linear(2, 10), nn.ReLU(), last)

    def forward(self, x: Tensor, references: Tensor, v: Tensor, seen: Tensor | None = None) -> Tensor:
        """Maps x [Q, D], references [R, D], v [R] their mean rewards -> p [Q]; `seen` [Q, R]: the references that each
        may attend to, at least one."""
        seen = torch.ones(len(x), len(v), dtype=torch.bool) if seen is None else seen
        q, k = self.embed(x), self.embed(references)
        base = (q @ k.T / k.shape[1] ** 0.5).masked_fill(~seen, -torch.inf).softmax(1) @ v
        n = seen.sum(1)
        mean = (seen * v).sum(1) / n
        deviation = ((seen * (v - mean[:, None]) ** 2).sum(1) / n).sqrt()
        t, b = self.calibrate(torch.stack([mean, deviation], 1)).unbind(1)
        return (base.clamp(1e-4, 1 - 1e-4).logit() / softplus(t).clamp(1e-2, 10) + b.tanh()).sigmoid()


@register("predictor", "attention")
@dataclass
class Attention:
    """Predicts how often the policy solves each prompt, from samples of a few, by attention over embeddings (DOTS).

    Each prediction probes `references` random problems (charged as probes) and infers the others by an `Adapter`.
    Embeddings are mean hidden states of the prompts, computed once per problem. Before each prediction, the adapter is
    fitted with binary cross-entropy to the observations after each of the last `memory` probes: of the problems sampled
    then, and of each reference from the other ones.
    """

    references: Annotated[int, Bounds(2, most=10**8)] = 256
    """Number of problems sampled for each prediction; more predict better, at `n` samples each."""
    n: Count = 0
    """Number of samples of each of them; 0: as many as a group of the run has (`rollout.n`)."""
    role: str = "policy"
    """Role whose hidden states embed the prompts; choose one whose weights do not change, as each prompt is embedded
    once."""
    size: Size = 32
    """Width of the adapter, a small attention network."""
    fits: Count = 100
    """Number of Adam steps of the adapter before each prediction."""
    lr: Positive = 3e-3
    """Learning rate of the adapter."""
    memory: Length = 16
    """Number of latest probes that the adapter is fitted to."""
    reward: str = "reward"
    """Reward column, in [0, 1], whose mean is the success rate; `reward` is the weighted sum that is trained."""
    seed: Seed = 0
    """Seed of the adapter's initial weights."""
    state: dict[str, Any] = field(
        init=False, default_factory=lambda: {"place": {}, "x": torch.zeros(0), "rounds": [], "weights": {}}
    )

    @property
    def reads(self) -> tuple[str, ...]:
        return (self.reward,)

    def __post_init__(self) -> None:
        check(self)

    async def predict(self, problems: Sequence[Problem], ctx: Ctx) -> tuple[Tensor, Tensor]:
        x = await self._embed(problems, ctx)
        adapter = self._adapter()
        if self.state["rounds"]:
            self._fit(adapter)
        chosen = torch.randperm(len(problems), generator=ctx.rng("references"))[: self.references].tolist()
        batch = await ctx.probe([Request(problems[i], self.n) for i in chosen], tag="probe")
        probed = {name: s.rate for name, s in count_successes(batch, self.reward).items()}
        if not probed:
            raise ValueError("attention: none of the reference problems was graded: nothing to infer success from")
        self.state["rounds"] = [*self.state["rounds"], {"probed": probed, "asked": {}}][-self.memory :]
        with torch.no_grad():
            p = adapter(x, self._x(probed), torch.tensor(list(probed.values())))
        return p, p

    def observe(self, event: Event) -> None:
        if isinstance(event, Collected) and self.state["rounds"]:
            found = {name: s.rate for name, s in count_successes(event.batch, self.reward).items()}
            self.state["rounds"][-1]["asked"] |= {k: v for k, v in found.items() if k in self.state["place"]}

    def _fit(self, adapter: Adapter) -> None:
        """Minimises the binary cross-entropy on one round of observations per step, the latest first."""
        rounds = self.state["rounds"][::-1]
        optimiser = torch.optim.Adam(adapter.parameters(), self.lr)
        for i in range(self.fits):
            probed, asked = rounds[i % len(rounds)]["probed"], rounds[i % len(rounds)]["asked"]
            v = torch.tensor(list(probed.values()))
            others = ~torch.eye(len(v), dtype=torch.bool)  # a reference does not predict itself
            seen = torch.cat([others, torch.ones(len(asked), len(v), dtype=torch.bool)])
            rows = seen.any(1)
            x, observed = self._x([*probed, *asked]), torch.tensor([*probed.values(), *asked.values()])
            if not bool(rows.any()):
                continue
            optimiser.zero_grad()
            p = adapter(x[rows], x[: len(v)], v, seen[rows])
            binary_cross_entropy(p, observed[rows]).backward()
            optimiser.step()
        self.state["weights"] = {k: w.detach().clone() for k, w in adapter.state_dict().items()}

    def _adapter(self) -> Adapter:
        """Returns the adapter with the weights of the state, or with initial ones."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(code(self.seed, "adapter"))
            adapter = Adapter(self.state["x"].shape[1], self.size)
        if self.state["weights"]:
            adapter.load_state_dict(self.state["weights"])
        return adapter

    def _x(self, names: Iterable[str]) -> Tensor:
        """Returns [Q, D] the embeddings of problems that have one."""
        x: Tensor = self.state["x"]
        return x[[self.state["place"][name] for name in names]]

    async def _embed(self, problems: Sequence[Problem], ctx: Ctx) -> Tensor:
        """Returns [Q, D] mean hidden states over the tokens of each prompt."""
        place = self.state["place"]
        new = {name_of(p): p for p in problems if name_of(p) not in place}
        if new:
            ids: list[Any] = [ctx.encode(p.prompt, self.role) for p in new.values()]
            asked = (ctx.engine.score(self.role, x[:1], np.append(x[1:], x[-1:]), ["features"]) for x in ids)
            found = np.stack([f["features"].mean(0) for f in await asyncio.gather(*asked)])
            x = torch.from_numpy(found).float()
            self.state["x"] = torch.cat([self.state["x"], x]) if len(self.state["x"]) else x
            self.state["place"] = place | {name: i for i, name in enumerate(new, len(place))}
        return self._x([name_of(p) for p in problems])
