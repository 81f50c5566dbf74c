"""Critics and scalar models: V(s), Q(s, ·) over discrete actions, ensembles of Q(s, a), a positive scalar.

Axes: `B` rows, `K` positions (here 1), `A` discrete actions, `n` members of an ensemble, `m` bins (`readout`) or
quantiles (`quantiles`). A critic that remembers is part of `recurrent`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from shuhari.batch import Batch
from shuhari.bounds import AtLeast0, Length, Positive, Width, check
from shuhari.data import Sampling
from shuhari.events import Event, Updated
from shuhari.kernel.registry import register
from shuhari.models.action_values import Actions
from shuhari.models.mlp import Activation, Ensemble, Mlp
from shuhari.models.normaliser import Moments
from shuhari.models.quantiles import Quantiles
from shuhari.models.readout import Bins, Values
from shuhari.models.renorm import Pending, Renorm, Renormed
from shuhari.models.sampling import honour, uniform_share
from shuhari.models.spaces import FORBIDDEN, Inputs, Net, Seen, box, check_allowed, discrete, spaces_of
from shuhari.models.streams import Streams
from shuhari.needs import Noise, Traces
from shuhari.ports import Task


@register("model", "value")
@dataclass
class ValueCritic:
    """A value critic V(s): an MLP from observations to the expected return. `value()` is [B, 1]."""

    hidden: tuple[Width, ...] = (64, 64)
    """Widths of the hidden layers of the MLP; an empty list makes it linear."""
    activation: Activation = "tanh"
    """Activation between the layers."""
    orthogonal: bool = True
    """Initialise the weights orthogonally, as PPO does; false uses the default of `nn.Linear`."""
    gain: AtLeast0 = 1.0
    """Scale of the last layer's orthogonal weights (PPO: 1 for its critic). Only used with `orthogonal`."""
    normalise: bool = False
    """Normalise observations by the running mean and variance of the collected ones; set it if their scales differ."""
    returns: bool = False
    """Keep the running moments of the discounted return, by which the transform `scale_rewards` divides."""
    norm: bool = False
    """Put layer normalisation before the activation of each hidden layer, as critics that learn from recorded data
    often need (RLPD)."""
    see: tuple[str, ...] = ()
    """Keys of a Dict observation that are used; empty uses all. An `action_mask` always counts."""
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

    What an `action_mask` forbids is worth -1e9 and never done. A noisy net draws new noise for each sampled
    decision, whose log-probability is then unknown (NaN). Greedy decisions, scores and values are those of its means,
    except in a loss that draws noise (`with_noise`: `q_learning` with `noisy`). ValueError for bins beside
    quantiles."""

    hidden: tuple[Width, ...] = (64, 64)
    """Widths of the hidden layers of the MLP; an empty list makes it linear."""
    activation: Activation = "relu"
    """Activation between the layers."""
    normalise: bool = False
    """Normalise observations by the running mean and variance of the collected ones; set it if their scales differ."""
    returns: bool = False
    """Keep the running moments of the discounted return, by which the transform `scale_rewards` divides."""
    norm: bool = False
    """Put layer normalisation before the activation of each hidden layer, as critics that learn from recorded data
    often need (RLPD)."""
    see: tuple[str, ...] = ()
    """Keys of a Dict observation that are used; empty uses all. An `action_mask` always counts."""
    bins: Bins | None = None
    """Bins of a distribution over values, fitted by cross-entropy (HL-Gauss); None predicts one number by
    regression."""
    quantiles: Quantiles | None = None
    """Quantiles of a distribution over returns, fitted by quantile regression (QR-DQN); None has none. Not beside
    `bins`."""
    dueling: bool = False
    """Split the net into a stream for the value of a state and one for the advantages of its actions, each with the
    last hidden layer of its own (dueling networks)."""
    noisy: bool = False
    """Put learnt noise on the weights of all layers of the MLP, to explore without epsilon (noisy nets); its loss needs
    `noisy` too."""
    sigma0: AtLeast0 = 0.5
    """Size that the noise starts with, in units of 1 / sqrt(inputs of the layer). Only read with `noisy`."""
    kind: Literal["exact", "chain", "bound"] = field(default="exact", init=False)
    module: nn.Module = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check(self)
        if self.bins and self.quantiles:
            raise ValueError("q_discrete: bins and quantiles are both set: expected one of them")

    def build(self, task: Task) -> None:
        seen, does = spaces_of(task, "q_discrete")
        actions = discrete(does, "action", "q_discrete")
        self._start, self._n = int(actions.start), int(actions.n)
        self._inputs = Inputs(seen, "q_discrete", self.normalise, see=self.see)
        read = self.bins or self.quantiles
        m = read.n if read else 1
        if self.dueling or self.noisy:
            sizes, sigma = (self._inputs.size, *self.hidden), self.sigma0 if self.noisy else None
            self._streams = Streams(sizes, self._n, m, self.activation, self.norm, self.dueling, sigma)
            self.module = Net(self._inputs, self._streams)
        else:
            sizes = (self._inputs.size, *self.hidden, self._n * m)
            self.module = Net(self._inputs, Mlp(sizes, self.activation, norm=self.norm))
        if self.returns:
            self.module.returns = Moments()

    @property
    def return_statistic(self) -> Any:
        return self.module.returns if self.returns else None

    @property
    def with_noise(self) -> Callable[[torch.Generator], Callable[[Batch], Actions]] | None:
        """Returns a function (generator) -> the model with one draw of its noise for all rows, called as the model is.
        None if it is not noisy."""
        return self._draw_noise if self.noisy else None

    def _draw_noise(self, rng: torch.Generator) -> Callable[[Batch], Actions]:
        return partial(self._score, eps=torch.randn(self._streams.noise, generator=rng))

    def __call__(self, batch: Batch) -> Actions:
        return self._score(batch)

    def _score(self, batch: Batch, eps: Tensor | None = None) -> Actions:
        seen = self._inputs.of(batch)
        allowed = self._inputs.mask(seen)
        q, out = self._values(seen, eps)
        allowed, out = (None if x is None else x.unsqueeze(1) for x in (allowed, out))
        return Actions(q.unsqueeze(1), batch, allowed=allowed, out=out, read=self.bins or self.quantiles)

    def _values(self, seen: Seen, eps: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """[B, A], and the logits or quantiles [B, A, m] that they were read from, if they were. eps: the noise, [E] or
        [B, E]."""
        out: Tensor = self.module(seen) if eps is None else self._streams(self._inputs(seen), eps)
        if (read := self.bins or self.quantiles) is None:
            return out, None
        out = out.unflatten(-1, (self._n, read.n))
        return read.value(out), out

    def sample(self, contexts: Any, sampling: Sampling, *, noise: Noise) -> Traces:
        """Samples contexts [B, ...] -> action [B] in 0..A-1, logp [B, 1]; `info`: `epsilon` [B, 1]. Raises ValueError
        for a mask that allows nothing."""
        honour(sampling, ("greedy", "epsilon"), "q_discrete")
        e = uniform_share(sampling)
        with torch.no_grad():
            eps = noise.normal(0, self._streams.noise) if self.noisy and not sampling.greedy else None
            q, allowed = self._values(contexts, eps)[0], self._inputs.mask(contexts)
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
            logp = (logp if eps is None else torch.full_like(logp, math.nan)).unsqueeze(1)
            info = {"epsilon": torch.full_like(logp, e)}
        return Traces(action, logp, info=info, taken=action + self._start if self._start else None)

    def decide(self, contexts: Any) -> dict[str, Tensor]:
        """Returns for contexts [B, ...] the best `action` [B] as environments take it, and `values` [B,
        alternatives]."""
        q, allowed = self._values(contexts)[0], self._inputs.mask(contexts)
        q = q if allowed is None else q.masked_fill(~allowed, FORBIDDEN)
        return {"action": q.argmax(-1) + self._start, "values": q}

    def decision(self, taken: Tensor) -> dict[str, Tensor]:
        """Returns batch columns of the decisions whose environment actions are `taken` [B, ...]."""
        return {"action": taken - self._start}

    def observe(self, event: Event) -> None:
        self._inputs.observe(event)


def _log(p: float) -> float:
    return math.log(p) if p > 0 else -math.inf


def _nth(i: Tensor, allowed: Tensor | None) -> Tensor:
    """Returns [B] the i-th of the actions that `allowed` [B, A] marks, counted from 0."""
    if allowed is None:
        return i
    return (allowed & (allowed.cumsum(-1) == i.unsqueeze(-1) + 1)).int().argmax(-1)


@register("model", "q_continuous")
@dataclass
class ContinuousQ:
    """An ensemble of critics Q(s, a) for continuous actions [B, A], as the policy decided them (not as the environment
    takes them). `value()` is [B, 1, n]. ValueError for bins beside quantiles, and for layer beside batch
    normalisation."""

    n: Length = 2
    """Number of critics; the 2 of TD3 and SAC reduce overestimation, and REDQ has 10."""
    hidden: tuple[Width, ...] = (256, 256)
    """Widths of the hidden layers of the MLP; an empty list makes it linear."""
    activation: Activation = "relu"
    """Activation between the layers."""
    normalise: bool = False
    """Normalise observations by the running mean and variance of the collected ones; set it if their scales differ."""
    returns: bool = False
    """Keep the running moments of the discounted return, by which the transform `scale_rewards` divides."""
    norm: bool = False
    """Put layer normalisation before the activation of each hidden layer, as critics that learn from recorded data
    often need (RLPD)."""
    see: tuple[str, ...] = ()
    """Keys of a Dict observation that are used; empty uses all. An `action_mask` always counts."""
    bins: Bins | None = None
    """Bins of a distribution over values, fitted by cross-entropy (HL-Gauss); None predicts one number by
    regression."""
    quantiles: Quantiles | None = None
    """Quantiles of a distribution over returns, fitted by quantile regression (TQC: 25); None has none. Not beside
    `bins`."""
    renorm: Renorm | None = None
    """Batch renormalisation before every layer (CrossQ), which the loss `joint_td` trains; `{}` takes its defaults."""
    module: nn.Module = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check(self)
        if self.bins and self.quantiles:
            raise ValueError("q_continuous: bins and quantiles are both set: expected one of them")
        if self.norm and self.renorm:
            raise ValueError("q_continuous: norm and renorm are both set: expected one of them")

    def build(self, task: Task) -> None:
        seen, does = spaces_of(task, "q_continuous")
        actions = box(does, "action", "q_continuous")
        inputs = Inputs(seen, "q_continuous", self.normalise, see=self.see)
        m = read.n if (read := self.bins or self.quantiles) else 1
        sizes = (inputs.size + int(actions.shape[0]), *self.hidden, m)
        renormed = Renormed(self.n, sizes, self.activation, self.renorm) if self.renorm else None
        body = renormed or Ensemble(self.n, sizes, self.activation, self.norm)
        self._inputs, self._body, self.module, self._pending = inputs, body, Net(inputs, body), Pending(renormed)
        if self.returns:
            self.module.returns = Moments()

    @property
    def return_statistic(self) -> Any:
        return self.module.returns if self.returns else None

    @property
    def by_batch(self) -> Callable[..., tuple[Values, ...]] | None:
        """(batches) -> the values of each, all of them in one forward, normalised by the moments of all rows together;
        None without `renorm`."""
        return self._ask_together if self.renorm else None

    def __call__(self, batch: Batch) -> Values:
        return self._read(self._body(self._features(batch)))

    def _ask_together(self, *batches: Batch) -> tuple[Values, ...]:
        out = self._pending(torch.cat([self._features(batch) for batch in batches]))
        sizes = [len(batch) for batch in batches]
        return tuple(self._read(part) for part in out.split(sizes, 1))

    def _features(self, batch: Batch) -> Tensor:
        seen = self._inputs(self._inputs.of(batch))
        return torch.cat([seen, batch["action"].view(len(seen), -1)], 1)

    def _read(self, q: Tensor) -> Values:
        """q [n, B, 1], or [n, B, m]."""
        read = self.bins or self.quantiles
        return Values(q.transpose(0, 1).unsqueeze(1), read) if read else Values(q.permute(1, 2, 0))

    def observe(self, event: Event) -> None:
        self._inputs.observe(event)
        if isinstance(event, Updated):
            self._pending.settle()


class Scalar:
    """One number > 0, `value()`, that broadcasts against any column; `parameters()` is its logarithm."""

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
