"""Categorical decisions: the distribution, and the MLP policy over it.

Axes: `B` rows, `K` positions (here 1), `A` alternatives, `N` decisions picked by `at`. The log-probability of a row is
that at its sampling settings: softmax(logits / temperature), mixed with a uniform share `epsilon`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from shuhari.batch import Batch
from shuhari.data import Sampling
from shuhari.models.mlp import Mlp
from shuhari.models.sampling import epsilon, first_temperature, honour, temperature, uniform_share
from shuhari.models.spaces import Inputs, discrete, spaces_of
from shuhari.needs import Noise, Traces
from shuhari.ports import Task
from shuhari.registry import register

SUPPORTED = frozenset({"temperature", "greedy", "epsilon"})


class Categorical:
    """Decisions among A: logits [B, K, A] as the model gives them, action, temperature and epsilon [B, K] or None.

    Every method answers [B, K]; after `at`, [N]."""

    __slots__ = ("_logs", "action", "epsilon", "logits", "temperature")

    def __init__(
        self, logits: Tensor, action: Tensor, temperature: Tensor | None = None, epsilon: Tensor | None = None
    ) -> None:
        self.logits, self.action, self.temperature, self.epsilon = logits, action, temperature, epsilon
        self._logs: Tensor | None = None

    def logs(self) -> Tensor:
        """[B, K, A] log-probabilities at the sampling settings."""
        if self._logs is None:
            t, e = self.temperature, self.epsilon
            logs = (self.logits if t is None else self.logits / t.unsqueeze(-1)).log_softmax(-1)
            self._logs = logs if e is None else _mixed(logs, e.unsqueeze(-1))
        return self._logs

    def log_prob(self) -> Tensor:
        return self.logs().gather(-1, self.action.unsqueeze(-1)).squeeze(-1)

    def entropy(self) -> Tensor:
        logs = self.logs()
        return -(logs.exp() * logs).sum(-1)

    def kl(self, other: Categorical) -> Tensor:
        """KL(self || other), exact, both at the sampling settings."""
        logs = self.logs()
        return (logs.exp() * (logs - other.logs())).sum(-1)

    def mode(self) -> Tensor:
        return self.logits.argmax(-1)

    def parameters(self) -> Tensor:
        """[B, K, A] logits, before temperature."""
        return self.logits

    def at(self, index: Tensor) -> Categorical:
        """The decisions `index` [N] of the flattened [B * K]."""
        t, e = (
            None if x is None else x.expand_as(self.action).flatten()[index] for x in (self.temperature, self.epsilon)
        )
        return Categorical(self.logits.flatten(0, -2)[index], self.action.flatten()[index], t, e)


def _mixed(logs: Tensor, e: Tensor) -> Tensor:
    """Log-probabilities of the mixture (1 - e) p + e / A."""
    return torch.logaddexp((-e).log1p() + logs, (e / logs.shape[-1]).log())


def scored(logits: Tensor, batch: Batch) -> Categorical:
    """The decisions of a batch of one decision a row, from logits [B, A]."""
    action = batch["action"].long().view(-1, 1)
    return Categorical(logits.unsqueeze(1), action, temperature(batch), epsilon(batch))


def sampled(logits: Tensor, sampling: Sampling, noise: Noise, start: int = 0) -> Traces:
    """One decision a row from logits [B, A], by the Gumbel-max trick, so that a row's draw is its own noise's alone.

    Log-probabilities are those of the distribution sampled; with `greedy` the action is the mode. `info`: `epsilon`
    [B, 1] where there is a mixture; `environment` [B] where the environment counts actions from `start`."""
    t, e = first_temperature(sampling), uniform_share(sampling)
    logs = (logits if t == 1.0 else logits / t).log_softmax(-1)
    info: dict[str, Tensor] = {}
    if e:
        logs = _mixed(logs, logs.new_full((1, 1), e))
        info["epsilon"] = logs.new_full((len(logs), 1), e)
    if sampling.greedy:
        action = logits.argmax(-1)
    else:
        action = (logs - (-noise.uniform(0, logs.shape[-1]).log()).log()).argmax(-1)
    if start:
        info["environment"] = action + start
    return Traces(action, logs.gather(1, action.unsqueeze(1)), info=info)


@register("model", "categorical")
@dataclass
class CategoricalPolicy:
    """An MLP from Box or Discrete observations to a Discrete action space. Honours temperature, greedy and epsilon.

    `orthogonal`: PPO's initialisation, with `gain` in the last layer; else that of `nn.Linear`."""

    hidden: tuple[int, ...] = (64, 64)
    activation: str = "tanh"
    orthogonal: bool = True
    gain: float = 0.01
    kind: Literal["exact", "chain", "bound"] = field(default="exact", init=False)
    module: nn.Module = field(init=False, repr=False)

    def build(self, task: Task) -> None:
        seen, does = spaces_of(task, "categorical")
        actions = discrete(does, "action", "categorical")
        self._inputs, self._start = Inputs(seen, "categorical"), int(actions.start)
        sizes = (self._inputs.size, *self.hidden, int(actions.n))
        self.module = self._net = Mlp(sizes, self.activation, self.gain if self.orthogonal else None)

    def __call__(self, batch: Batch) -> Categorical:
        return scored(self._net(self._inputs(batch["context"])), batch)

    def sample(self, contexts: Any, sampling: Sampling, *, noise: Noise) -> Traces:
        """contexts [B, ...] -> action [B] in 0..A-1, logp [B, 1]."""
        honour(sampling, SUPPORTED, "categorical")
        with torch.no_grad():
            return sampled(self._net(self._inputs(contexts)), sampling, noise, self._start)
