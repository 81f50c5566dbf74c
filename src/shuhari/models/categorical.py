"""Categorical decisions: the distribution, and the MLP policy over it.

Axes: `B` rows, `K` positions (here 1), `M` choices made at once, `A` alternatives, `N` decisions picked by `at`. The
log-probability of a row is at its sampling settings: softmax(logits / temperature), mixed with a uniform share
`epsilon` over the allowed actions. Joint choices are independent of each other, also in the mixture.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from shuhari.batch import Batch
from shuhari.bounds import AtLeast0, Width, check
from shuhari.data import Sampling
from shuhari.events import Event
from shuhari.kernel.registry import register
from shuhari.models.mlp import Activation, Mlp
from shuhari.models.sampling import epsilon, first_temperature, honour, temperature, uniform_share
from shuhari.models.spaces import FORBIDDEN, Choices, Inputs, Net, Seen, check_allowed, spaces_of
from shuhari.needs import Noise, Traces
from shuhari.ports import Task

SUPPORTED = frozenset({"temperature", "greedy", "epsilon"})


class Categorical:
    """Decisions among A: logits [B, K, A] as the model gives them, action, temperature and epsilon [B, K] or None.

    `allowed` (shape of the logits; None: all): the allowed actions; the others have a logit of -1e9. `joint`: a
    decision is M choices at once, logits [B, K, M, A] and action [B, K, M]; log-probability, entropy and KL are sums
    over them. Every method returns [B, K]; after `at`, [N].
    """

    __slots__ = ("_logs", "action", "allowed", "epsilon", "joint", "logits", "temperature")

    def __init__(
        self,
        logits: Tensor,
        action: Tensor,
        temperature: Tensor | None = None,
        epsilon: Tensor | None = None,
        allowed: Tensor | None = None,
        joint: bool = False,
    ) -> None:
        self.logits, self.action, self.temperature, self.epsilon = logits, action, temperature, epsilon
        self.allowed, self.joint = allowed, joint
        self._logs: Tensor | None = None

    def logs(self) -> Tensor:
        """Returns [B, K, A] log-probabilities at the sampling settings; [B, K, M, A] of joint choices."""
        if self._logs is None:
            t, e = (x if x is None or not self.joint else x.unsqueeze(-1) for x in (self.temperature, self.epsilon))
            logs = (self.logits if t is None else self.logits / t.unsqueeze(-1)).log_softmax(-1)
            self._logs = logs if e is None else _mix(logs, e.unsqueeze(-1), self.allowed)
        return self._logs

    def log_prob(self) -> Tensor:
        return self._sum(self.logs().gather(-1, self.action.unsqueeze(-1)).squeeze(-1))

    def entropy(self) -> Tensor:
        logs = self.logs()
        return self._sum(-(logs.exp() * logs).sum(-1))

    def kl(self, other: Categorical) -> Tensor:
        """Returns the exact KL(self || other), both at the sampling settings."""
        logs = self.logs()
        return self._sum((logs.exp() * (logs - other.logs())).sum(-1))

    def mode(self) -> Tensor:
        """Returns the most probable actions; [B, M] of joint choices, as the column `action` holds them."""
        best = self.logits.argmax(-1)
        return best.flatten(0, -2) if self.joint else best

    def parameters(self) -> Tensor:
        """Returns [B, K, A] logits, before temperature."""
        return self.logits

    def at(self, index: Tensor) -> Categorical:
        """Returns the decisions `index` [N] of the flattened [B * K]."""
        like = self.action[..., 0] if self.joint else self.action
        t, e = (None if x is None else x.expand_as(like).flatten()[index] for x in (self.temperature, self.epsilon))
        logits, action, allowed = (
            None if x is None else x.flatten(0, 1)[index] for x in (self.logits, self.action, self.allowed)
        )
        assert logits is not None and action is not None
        return Categorical(logits, action, t, e, allowed, self.joint)

    def _sum(self, x: Tensor) -> Tensor:
        return x.sum(-1) if self.joint else x


def _mix(logs: Tensor, e: Tensor, allowed: Tensor | None) -> Tensor:
    """Returns log-probabilities of the mixture (1 - e) p + e / (number of allowed alternatives)."""
    if allowed is None:
        return torch.logaddexp((-e).log1p() + logs, (e / logs.shape[-1]).log())
    uniform = (e / allowed.sum(-1, keepdim=True).clamp(min=1)).log()
    return torch.logaddexp((-e).log1p() + logs, uniform).where(allowed, FORBIDDEN)


def score_rows(logits: Tensor, batch: Batch, allowed: Tensor | None = None) -> Categorical:
    """Returns the decisions of a batch with one decision per row, from logits [B, A], or [B, M, A] of joint choices."""
    joint = logits.dim() == 3
    action = batch["action"].long().view(len(logits), 1, *logits.shape[1:-1])
    allowed = None if allowed is None else allowed.unsqueeze(1)
    return Categorical(logits.unsqueeze(1), action, temperature(batch), epsilon(batch), allowed, joint)


def sample_rows(
    logits: Tensor,
    sampling: Sampling,
    noise: Noise,
    start: int | Tensor | None = None,
    allowed: Tensor | None = None,
) -> Traces:
    """Samples one decision per row from logits [B, A] (of joint choices [B, M, A]), by the Gumbel-max trick, so that a
    row's draw depends only on its own noise.

    Log-probabilities are those of the sampled distribution; with `greedy` the action is the mode. `info`: `epsilon` [B,
    1] for a mixture; `taken` [B] or [B, M] if the environment counts actions from `start`.
    """
    t, e = first_temperature(sampling), uniform_share(sampling)
    logs = (logits if t == 1.0 else logits / t).log_softmax(-1)
    info: dict[str, Tensor] = {}
    if e:
        logs = _mix(logs, logs.new_full((1,) * logs.dim(), e), allowed)
        info["epsilon"] = logs.new_full((len(logs), 1), e)
    if sampling.greedy:
        action = logits.argmax(-1)
    else:
        action = (logs - (-noise.uniform(0, *logs.shape[1:]).log()).log()).argmax(-1)
    logp = logs.gather(-1, action.unsqueeze(-1))  # [B, 1], of joint choices [B, M, 1]
    taken = None if start is None else action + start
    return Traces(action, logp.sum(1) if logits.dim() == 3 else logp, info=info, taken=taken)


@register("model", "categorical")
@dataclass
class CategoricalPolicy:
    """A policy over discrete actions: an MLP gives the logits of a Discrete, MultiDiscrete or MultiBinary action space.

    For the latter two a decision is all choices at once, independent of each other. Supports temperature, greedy and
    epsilon (with joint choices, each is uniform with that probability). Actions forbidden by an `action_mask` have
    probability 0, in sampling and scoring.
    """

    hidden: tuple[Width, ...] = (64, 64)
    """Widths of the hidden layers of the MLP; an empty list makes it linear."""
    activation: Activation = "tanh"
    """Activation between the layers."""
    orthogonal: bool = True
    """Initialise the weights orthogonally, as PPO does; false uses the default of `nn.Linear`."""
    gain: AtLeast0 = 0.01
    """Scale of the last layer's orthogonal weights; a small one starts near the uniform policy (PPO: 0.01). Only used
    with `orthogonal`."""
    normalise: bool = False
    """Normalise observations by the running mean and variance of the collected ones; set it if their scales differ."""
    norm: bool = False
    """Put layer normalisation before the activation of each hidden layer, as critics that learn from recorded data
    often need (RLPD)."""
    see: tuple[str, ...] = ()
    """Keys of a Dict observation that are used; empty uses all. An `action_mask` always counts."""
    kind: Literal["exact", "chain", "bound"] = field(default="exact", init=False)
    module: nn.Module = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check(self)

    def build(self, task: Task) -> None:
        seen, does = spaces_of(task, "categorical")
        self._choices = Choices.of(does, "categorical")
        self._inputs = Inputs(seen, "categorical", self.normalise, self.orthogonal, see=self.see)
        sizes = (self._inputs.size, *self.hidden, self._choices.size)
        gain = self.gain if self.orthogonal else None
        self.module = Net(self._inputs, Mlp(sizes, self.activation, gain, self.norm))

    def __call__(self, batch: Batch) -> Categorical:
        logits, allowed = self._logits(self._inputs.of(batch))
        return score_rows(logits, batch, allowed)

    def sample(self, contexts: Any, sampling: Sampling, *, noise: Noise) -> Traces:
        """Samples contexts [B, ...] -> action [B] in 0..A-1, or [B, M] of joint choices; logp [B, 1]. Raises ValueError
        for a mask that allows nothing."""
        honour(sampling, SUPPORTED, "categorical")
        with torch.no_grad():
            logits, allowed = self._logits(contexts)
            check_allowed(allowed)
            return sample_rows(logits, sampling, noise, self._choices.start, allowed)

    def decide(self, contexts: Any) -> dict[str, Tensor]:
        """Returns for contexts [B, ...] the most probable `action` [B] or [B, M] as environments take it, and
        `logits`."""
        logits, _ = self._logits(contexts)
        action = logits.argmax(-1)
        return {"action": action if self._choices.start is None else action + self._choices.start, "logits": logits}

    def decision(self, taken: Tensor) -> dict[str, Tensor]:
        """Returns batch columns of the decisions whose environment actions are `taken` [B, ...]."""
        return {"action": taken if self._choices.start is None else taken - self._choices.start}

    def observe(self, event: Event) -> None:
        self._inputs.observe(event)

    def _logits(self, seen: Seen) -> tuple[Tensor, Tensor | None]:
        return self._choices.spread(self.module(seen), self._inputs.mask(seen))
