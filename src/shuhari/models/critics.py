"""Critics and scalar models: V(s), Q(s, ·) over discrete actions, ensembles of Q(s, a), a positive scalar.

Axes: `B` rows, `K` positions (here 1), `A` discrete actions, `n` members of an ensemble, `m` bins (`readout`) or
quantiles (`quantiles`). Leaves out recurrent critics.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from shuhari.batch import Batch
from shuhari.bounds import AtLeast0, Length, Positive, Width, check
from shuhari.data import Sampling
from shuhari.events import Event
from shuhari.kernel.registry import register
from shuhari.models.mlp import Activation, Ensemble, Mlp
from shuhari.models.normaliser import Moments
from shuhari.models.quantiles import Quantiles
from shuhari.models.readout import Bins, Values, existing
from shuhari.models.sampling import epsilon, honour, uniform_share
from shuhari.models.spaces import FORBIDDEN, Inputs, Net, Seen, box, check_allowed, discrete, spaces_of
from shuhari.needs import Noise, Traces
from shuhari.ports import Task


class Actions:
    """Values q [B, K, A] of all discrete actions, and the epsilon-greedy policy on them; the methods of a policy are
    those of the mixture with the row's `epsilon` [B, K] (0 where None). `allowed` [B, K, A]: what a mask allows (None:
    everything); the rest is worth -1e9, is never done and has no uniform share. Methods answer [B, K]; after `at`, [N].
    `action` may be the batch whose decisions are meant, read once they are asked for. `out`: the logits or quantiles
    [B, K, A, m] that the values were read from, `read`: how. ValueError for what the values were not read from.
    """

    __slots__ = ("_action", "_epsilon", "_out", "_read", "allowed", "q")

    def __init__(
        self, q: Tensor, action: Tensor | Batch, epsilon: Tensor | None = None, allowed: Tensor | None = None,
        out: Tensor | None = None, read: Bins | Quantiles | None = None,
    ) -> None:  # fmt: skip
        self.q = q if allowed is None else q.masked_fill(~allowed, FORBIDDEN)
        self.allowed, self._action, self._epsilon, self._out, self._read = allowed, action, epsilon, out, read

    @property
    def action(self) -> Tensor:
        of = self._action
        return of["action"].long().view(self.q.shape[:-1]) if isinstance(of, Batch) else of

    @property
    def epsilon(self) -> Tensor | None:
        of = self._action
        return epsilon(of) if isinstance(of, Batch) else self._epsilon

    def all(self) -> Tensor:
        """[B, K, A] the value of every action."""
        return self.q

    def value(self) -> Tensor:
        """Of the action taken."""
        return self.q.gather(-1, self.action.unsqueeze(-1)).squeeze(-1)

    def logits(self) -> Tensor:
        """[B, K, m] of the action taken."""
        out = existing(self._out if isinstance(self._read, Bins) else None)
        return out.take_along_dim(self.action[..., None, None], -2).squeeze(-2)

    def quantiles(self) -> Tensor:
        """[B, K, m] of the action taken."""
        return self.quantiles_of(self.action)

    def quantiles_of(self, action: Tensor) -> Tensor:
        """[B, K, m] of the actions [B, K]."""
        if self._out is None or not isinstance(self._read, Quantiles):
            raise ValueError("loss = 'quantile' fits quantiles of the return, and this net has none: set "
                             "quantiles = {n = ..} of the model of each role that the loss reads")  # fmt: skip
        return self._out.take_along_dim(action[..., None, None], -2).squeeze(-2)

    def mode(self) -> Tensor:
        """The greedy action."""
        return self.q.argmax(-1)

    def probs(self) -> Tensor:
        """[B, K, A]: 1 - epsilon for the greedy action, and epsilon shared evenly by all that is allowed."""
        e = self.epsilon
        e = self.q.new_zeros(()) if e is None else e.unsqueeze(-1)
        if self.allowed is None:
            rest = (e / self.q.shape[-1]).expand_as(self.q)
        else:
            rest = e * self.allowed / self.allowed.sum(-1, keepdim=True).clamp(min=1)
        return rest.scatter_add(-1, self.mode().unsqueeze(-1), (1 - e).expand(*self.q.shape[:-1], 1))

    def log_prob(self) -> Tensor:
        """-inf for an action that the greedy policy never takes."""
        return self.probs().gather(-1, self.action.unsqueeze(-1)).squeeze(-1).log()

    def entropy(self) -> Tensor:
        return torch.special.entr(self.probs()).sum(-1)

    def kl(self, other: Actions) -> Tensor:
        """KL(self || other), exact; inf where `other` never does what this one does."""
        p, q = self.probs(), other.probs()
        return torch.where(p > 0, p * (p.log() - q.log()), 0.0).sum(-1)

    def parameters(self) -> Tensor:
        return self.q

    def at(self, index: Tensor) -> Actions:
        """The decisions `index` [N] of the flattened [B * K]."""
        action, e = self.action, self.epsilon
        e = None if e is None else e.expand_as(action).flatten()[index]
        allowed, out = (None if x is None else x.flatten(0, 1)[index] for x in (self.allowed, self._out))
        return Actions(self.q.flatten(0, -2)[index], action.flatten()[index], e, allowed, out, self._read)


@register("model", "value")
@dataclass
class ValueCritic:
    """A value critic V(s): an MLP from observations to the expected return. `value()` is [B, 1]."""

    hidden: tuple[Width, ...] = (64, 64)
    """Widths of the hidden layers of the MLP; an empty list makes it linear."""
    activation: Activation = "tanh"
    """Activation between the layers."""
    orthogonal: bool = True
    """Initialise the weights orthogonally, as PPO does; false takes the default of `nn.Linear`."""
    gain: AtLeast0 = 1.0
    """Scale of the last layer's orthogonal weights (PPO: 1 for its critic). Only read with `orthogonal`."""
    normalise: bool = False
    """Normalise observations by the running mean and variance of what was collected; set it if their scales differ."""
    returns: bool = False
    """Keep the running moments of the discounted return, by which the transform `scale_rewards` divides."""
    norm: bool = False
    """Put layer normalisation before the activation of each hidden layer, as critics that learn from recorded data
    often need (RLPD)."""
    see: tuple[str, ...] = ()
    """Keys of a Dict observation that are read; empty reads all. An `action_mask` always counts."""
    bins: Bins | None = None
    """Bins of a distribution over values, fitted by cross-entropy (HL-Gauss); None predicts one number by
    regression."""
    module: nn.Module = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check(self)

    def build(self, task: Task) -> None:
        inputs = Inputs(spaces_of(task, "value")[0], "value", self.normalise, self.orthogonal, see=self.see)
        gain = self.gain if self.orthogonal else None
        body = Mlp((inputs.size, *self.hidden, self.bins.n if self.bins else 1), self.activation, gain, self.norm)
        self._inputs, self.module = inputs, Net(inputs, body)
        if self.returns:
            self.module.returns = Moments()

    @property
    def return_statistic(self) -> Any:
        return self.module.returns if self.returns else None

    def __call__(self, batch: Batch) -> Values:
        out = self.module(self._inputs.of(batch))
        return Values(out.unsqueeze(1) if self.bins else out, self.bins)

    def observe(self, event: Event) -> None:
        self._inputs.observe(event)


@register("model", "q_discrete")
@dataclass
class DiscreteQ:
    """A Q-network Q(s, .) over discrete actions, an MLP; as a policy greedy on it, or epsilon-greedy by
    `Sampling.epsilon` (DQN).

    What an `action_mask` forbids is worth -1e9 and never done. ValueError for bins beside quantiles."""

    hidden: tuple[Width, ...] = (64, 64)
    """Widths of the hidden layers of the MLP; an empty list makes it linear."""
    activation: Activation = "relu"
    """Activation between the layers."""
    normalise: bool = False
    """Normalise observations by the running mean and variance of what was collected; set it if their scales differ."""
    returns: bool = False
    """Keep the running moments of the discounted return, by which the transform `scale_rewards` divides."""
    norm: bool = False
    """Put layer normalisation before the activation of each hidden layer, as critics that learn from recorded data
    often need (RLPD)."""
    see: tuple[str, ...] = ()
    """Keys of a Dict observation that are read; empty reads all. An `action_mask` always counts."""
    bins: Bins | None = None
    """Bins of a distribution over values, fitted by cross-entropy (HL-Gauss); None predicts one number by
    regression."""
    quantiles: Quantiles | None = None
    """Quantiles of a distribution over returns, fitted by quantile regression (QR-DQN); None has none. Not beside
    `bins`."""
    kind: Literal["exact", "chain", "bound"] = field(default="exact", init=False)
    module: nn.Module = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check(self)
        if self.bins and self.quantiles:
            raise ValueError("q_discrete: it has bins and quantiles: expected one of them")

    def build(self, task: Task) -> None:
        seen, does = spaces_of(task, "q_discrete")
        actions = discrete(does, "action", "q_discrete")
        self._start, self._n = int(actions.start), int(actions.n)
        self._inputs = Inputs(seen, "q_discrete", self.normalise, see=self.see)
        read = self.bins or self.quantiles
        sizes = (self._inputs.size, *self.hidden, self._n * (read.n if read else 1))
        self.module = Net(self._inputs, Mlp(sizes, self.activation, norm=self.norm))
        if self.returns:
            self.module.returns = Moments()

    @property
    def return_statistic(self) -> Any:
        return self.module.returns if self.returns else None

    def __call__(self, batch: Batch) -> Actions:
        seen = self._inputs.of(batch)
        allowed = self._inputs.mask(seen)
        q, out = self._values(seen)
        allowed, out = (None if x is None else x.unsqueeze(1) for x in (allowed, out))
        return Actions(q.unsqueeze(1), batch, allowed=allowed, out=out, read=self.bins or self.quantiles)

    def _values(self, seen: Seen) -> tuple[Tensor, Tensor | None]:
        """[B, A], and the logits or quantiles [B, A, m] that they were read from, if they were."""
        out: Tensor = self.module(seen)
        if (read := self.bins or self.quantiles) is None:
            return out, None
        out = out.unflatten(-1, (self._n, read.n))
        return read.value(out), out

    def sample(self, contexts: Any, sampling: Sampling, *, noise: Noise) -> Traces:
        """contexts [B, ...] -> action [B] in 0..A-1, logp [B, 1]; `info`: `epsilon` [B, 1]. ValueError for a mask that
        allows nothing."""
        honour(sampling, ("greedy", "epsilon"), "q_discrete")
        e = uniform_share(sampling)
        with torch.no_grad():
            q, allowed = self._values(contexts)[0], self._inputs.mask(contexts)
            check_allowed(allowed)
            action = best = (q if allowed is None else q.masked_fill(~allowed, FORBIDDEN)).argmax(-1)
            n: Any = self._n if allowed is None else allowed.sum(-1)
            p = 1 - e + e / n
            logp = q.new_full((len(q),), _log(p)) if allowed is None else p.log()
            if e and not sampling.greedy:
                u = noise.uniform(0, 2)
                if bool((uniform := u[:, 0] < e).any()):
                    action = torch.where(uniform, _nth((u[:, 1] * n).long(), allowed), best)
                    p = e / n
                    logp = torch.where(action == best, logp, _log(p) if allowed is None else p.log())
            logp = logp.unsqueeze(1)
            info = {"epsilon": torch.full_like(logp, e)}
        return Traces(action, logp, info=info, taken=action + self._start if self._start else None)

    def decide(self, contexts: Any) -> dict[str, Tensor]:
        """contexts [B, ...] -> the best `action` [B] as environments take it, and `values` [B, alternatives]."""
        q, allowed = self._values(contexts)[0], self._inputs.mask(contexts)
        q = q if allowed is None else q.masked_fill(~allowed, FORBIDDEN)
        return {"action": q.argmax(-1) + self._start, "values": q}

    def decision(self, taken: Tensor) -> dict[str, Tensor]:
        """Batch columns of the decisions whose environment actions are `taken` [B, ...]."""
        return {"action": taken - self._start}

    def observe(self, event: Event) -> None:
        self._inputs.observe(event)


def _log(p: float) -> float:
    return math.log(p) if p > 0 else -math.inf


def _nth(i: Tensor, allowed: Tensor | None) -> Tensor:
    """[B] the i-th of the actions that `allowed` [B, A] marks, counted from 0."""
    if allowed is None:
        return i
    return (allowed & (allowed.cumsum(-1) == i.unsqueeze(-1) + 1)).int().argmax(-1)


@register("model", "q_continuous")
@dataclass
class ContinuousQ:
    """An ensemble of critics Q(s, a) for continuous actions [B, A], as the policy decided them (not as the environment
    takes them). `value()` is [B, 1, n]."""

    n: Length = 2
    """Number of critics; the 2 of TD3 and SAC curb overestimation, and REDQ takes 10."""
    hidden: tuple[Width, ...] = (256, 256)
    """Widths of the hidden layers of the MLP; an empty list makes it linear."""
    activation: Activation = "relu"
    """Activation between the layers."""
    normalise: bool = False
    """Normalise observations by the running mean and variance of what was collected; set it if their scales differ."""
    returns: bool = False
    """Keep the running moments of the discounted return, by which the transform `scale_rewards` divides."""
    norm: bool = False
    """Put layer normalisation before the activation of each hidden layer, as critics that learn from recorded data
    often need (RLPD)."""
    see: tuple[str, ...] = ()
    """Keys of a Dict observation that are read; empty reads all. An `action_mask` always counts."""
    bins: Bins | None = None
    """Bins of a distribution over values, fitted by cross-entropy (HL-Gauss); None predicts one number by
    regression."""
    module: nn.Module = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check(self)

    def build(self, task: Task) -> None:
        seen, does = spaces_of(task, "q_continuous")
        actions = box(does, "action", "q_continuous")
        inputs = Inputs(seen, "q_continuous", self.normalise, see=self.see)
        sizes = (inputs.size + int(actions.shape[0]), *self.hidden, self.bins.n if self.bins else 1)
        body = Ensemble(self.n, sizes, self.activation, self.norm)
        self._inputs, self._body, self.module = inputs, body, Net(inputs, body)
        if self.returns:
            self.module.returns = Moments()

    @property
    def return_statistic(self) -> Any:
        return self.module.returns if self.returns else None

    def __call__(self, batch: Batch) -> Values:
        seen = self._inputs(self._inputs.of(batch))
        q = self._body(torch.cat([seen, batch["action"].view(len(seen), -1)], 1))  # [n, B, 1], or [n, B, m]
        return Values(q.transpose(0, 1).unsqueeze(1), self.bins) if self.bins else Values(q.permute(1, 2, 0))

    def observe(self, event: Event) -> None:
        self._inputs.observe(event)


class Scalar:
    """`value()` > 0, one number that broadcasts against any column; `parameters()` is its logarithm."""

    __slots__ = ("_log",)

    def __init__(self, log: Tensor) -> None:
        self._log = log

    def value(self) -> Tensor:
        return self._log.exp()

    def parameters(self) -> Tensor:
        return self._log

    def at(self, index: Tensor) -> Scalar:
        return self


class _Log(nn.Module):
    def __init__(self, value: float) -> None:
        super().__init__()
        self.log = nn.Parameter(torch.tensor(math.log(value)))


@register("model", "scalar")
@dataclass
class ScalarModel:
    """One positive trained number, exp of its parameter: SAC's temperature, a dual variable."""

    initial: Positive = 1.0
    """Value that the number starts with."""
    module: nn.Module = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check(self)

    def build(self, task: Task) -> None:
        self.module = _Log(self.initial)

    def __call__(self, batch: Batch) -> Scalar:
        log: Tensor = self.module._parameters["log"]  # type: ignore[assignment]
        return Scalar(log if torch.is_grad_enabled() else log.detach())
