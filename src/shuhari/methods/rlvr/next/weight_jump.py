"""Extrapolates the path of the weights: predicts how far their main directions will move.

Source: "Low-rank Optimization Trajectories Modeling for LLM RLVR Acceleration" (NExt) and its code. The change of each
matrix is represented by its first singular vectors and value; one small net per vector length is fitted to their past
continuation. Left out: LoRA, whose changes the paper records; the choice of `scale` on validation problems.

Axes: `k` records, `I` vectors of one length `d`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from shuhari.bounds import Length, Positive, Seed, check
from shuhari.data import code
from shuhari.events import Event, On, StageStarted
from shuhari.kernel.registry import register
from shuhari.needs import role_model
from shuhari.ports import Model

Weights = Mapping[str, Tensor]


@register("follow", "jump")
@dataclass
class Jump:
    """Moves the weights ahead, once in a stage, by the change predicted from their path so far (NExt).

    After step `at`: role <- role + scale x the change predicted for the next `ahead` steps. Trained weights are
    recorded at the start of the stage and every `every` steps. With `fit` "learnt", each record's change since the
    start of the stage and since the previous record predict the change over the next `ahead` steps, for matrices by
    their first singular triple, for vectors as they are; each net is fitted by AdamW on the sum of absolute errors.
    Raises ValueError unless `at` and `ahead` are multiples of `every`, and some record after the first lies `ahead`
    steps before `at`.
    """

    role: str = "policy"
    """Role whose weights jump."""
    at: Length = 100
    """Step of the stage after which the weights jump; a multiple of `every`, at least `ahead` + `every`."""
    every: Length = 10
    """Number of steps between two records of the weights."""
    ahead: Length = 50
    """Number of training steps whose change is predicted; a multiple of `every`."""
    scale: float = 1.0
    """Factor of the predicted change; 0 is no jump, and the paper tries 0.5 to 4."""
    fit: Literal["learnt", "linear"] = "learnt"
    """Prediction of the change: "learnt" by small nets, as in the paper; "linear" repeats that of the last `ahead`
    steps."""
    size: Length = 256
    """Width of the small nets."""
    epochs: Length = 1000
    """Number of AdamW steps that fit each small net."""
    lr: Positive = 2e-5
    """Learning rate of the small nets, which falls to a tenth along a cosine; 2e-5 in the paper, a small model needs
    more."""
    seed: Seed = 0
    """Seed of the small nets' initial weights."""
    on: tuple[On, ...] = field(init=False, default=("stage", "step"))
    state: dict[str, Any] = field(init=False, default_factory=lambda: {"step": 0, "records": []})

    def __post_init__(self) -> None:
        check(self)
        if self.at % self.every or self.ahead % self.every or self.at < self.ahead + self.every:
            found = f"at, every, ahead are {self.at}, {self.every}, {self.ahead}"
            raise ValueError(f"jump: {found}: expected multiples of every, and at of ahead + every or more")

    @property
    def roles(self) -> tuple[str, ...]:
        return (self.role,)

    def __call__(self, models: Mapping[str, Model], event: Event) -> None:
        module = role_model(models, self.role).module
        weights = {name: w for name, w in module.named_parameters() if w.requires_grad}
        if isinstance(event, StageStarted):
            self.state = {"step": 0, "records": [_copy(weights)]}
        elif self.state["records"]:
            self.state["step"] += 1
            if self.state["step"] % self.every == 0:
                self.state["records"].append(_copy(weights))
            if self.state["step"] == self.at:
                change = self.predict(self.state["records"])
                with torch.no_grad():
                    for name, w in weights.items():
                        w += (self.scale * change[name]).to(w)
                self.state["records"] = []  # done for this stage

    def predict(self, records: Sequence[Weights]) -> Weights:
        """Returns the predicted change of each parameter over the `ahead` steps after the last record."""
        h = self.ahead // self.every
        if self.fit == "linear":
            return _subtract(records[-1], records[-1 - h])
        whole, local, future = list[Weights](), list[Weights](), list[Weights]()
        for k in range(1, len(records)):
            whole.append(split(_subtract(records[k], records[0]), whole[-1] if whole else None))
            local.append(split(_subtract(records[k], records[k - 1]), whole[-1]))
            if k + h < len(records):
                future.append(split(_subtract(records[k + h], records[k]), whole[-1]))
        out: dict[str, Tensor] = {}
        for d in sorted({len(x) for x in whole[0].values()}):
            names = [name for name, x in whole[0].items() if len(x) == d]
            x, y, z = (
                torch.stack(
                    [
                        torch.stack([p[n] for n in names])
                        for p in of
                    ]
                )
                for of in (whole, local, future)
            )
            out |= dict(zip(names, self._extrapolate(x, y, z), strict=True))
        return join(out, records[0])

    def _extrapolate(self, whole: Tensor, local: Tensor, future: Tensor) -> Tensor:
        """Returns [I, d] the predicted change after the last record, from changes [k, I, d] each; `future` of the first
        of them."""
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            torch.manual_seed(code(self.seed, "jump", whole.shape[2]))
            net = Predictor(whole.shape[2], self.size)
            optimiser = torch.optim.AdamW(net.parameters(), self.lr)
            fall = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, self.epochs, self.lr / 10)
            n = len(future)
            for _ in range(self.epochs):
                optimiser.zero_grad()
                ((net(whole[:n], local[:n]) - future).abs().sum() / n).backward()
                optimiser.step()
                fall.step()
        with torch.no_grad():
            found: Tensor = net(whole[-1], local[-1])
        return found


class Predictor(nn.Module):
    """A net: (change since the beginning, latest change) [.., d] each -> the predicted change [.., d]."""

    def __init__(self, d: int, size: int) -> None:
        super().__init__()
        self.whole, self.local, self.both = _stack(d, d, size), _stack(d, d, size), _stack(2 * d, d, size)

    def forward(self, whole: Tensor, local: Tensor) -> Tensor:
        out: Tensor = self.both(torch.cat([self.whole(whole), self.local(local)], -1))
        return out


def _stack(d: int, out: int, size: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(d, size), nn.Linear(size, d), nn.ReLU(), nn.Linear(d, size), nn.Linear(size, out)
    )  # fmt: skip


def split(change: Weights, like: Weights | None = None) -> dict[str, Tensor]:
    """Returns vectors as they are, and for a matrix its first singular triple, `<name>/u`, `/s`, `/v`, with the signs
    of u and v that agree with `like`."""
    out: dict[str, Tensor] = {}
    for name, x in change.items():
        if x.dim() < 2:
            out[name] = x.reshape(-1)
            continue
        left, values, right = torch.linalg.svd(x.reshape(len(x), -1), full_matrices=False)
        u, v = left[:, 0], right[0]
        if like is not None and float(u @ like[f"{name}/u"] + v @ like[f"{name}/v"]) < 0:
            u, v = -u, -v
        out |= {f"{name}/u": u, f"{name}/s": values[:1], f"{name}/v": v}
    return out


def join(parts: Weights, like: Weights) -> dict[str, Tensor]:
    """Returns the changes in `parts`, in the shapes of `like`: for a matrix s u v', with u and v normalised."""
    out: dict[str, Tensor] = {}
    for name, w in like.items():
        if w.dim() < 2:
            out[name] = parts[name].reshape(w.shape)
            continue
        u, v = (nn.functional.normalize(parts[f"{name}/{x}"], dim=0) for x in "uv")
        out[name] = (parts[f"{name}/s"] * u[:, None] * v).reshape(w.shape)
    return out


def _copy(weights: Weights) -> dict[str, Tensor]:
    """Returns copies in float32 on the CPU, where singular vectors of any weights can be computed."""
    return {name: w.detach().to("cpu", torch.float32, copy=True) for name, w in weights.items()}


def _subtract(a: Weights, b: Weights) -> dict[str, Tensor]:
    return {name: a[name] - b[name] for name in a}
