"""Composite policies, whose action distribution combines models of other roles, referenced but not owned.

A composite names `roles`; the run passes them (`bind`) once all exist, and they are saved, copied and trained under
their own roles. Here: `residual` corrects a controller's action, `gated` draws one of several experts. Products of
distributions are in `product`; `steering` has bases with chosen noise or filtered actions. Left out: mixtures of texts,
action chunks.

Axes: `B` rows, `K` positions, `N` decisions picked by `at`, `n` experts, `A` action dimensions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from shuhari.batch import Batch
from shuhari.bounds import AtLeast0, Positive, Width, check
from shuhari.data import Sampling
from shuhari.events import Event
from shuhari.kernel.registry import register
from shuhari.models.deterministic import Clipped
from shuhari.models.mlp import Activation, Mlp
from shuhari.models.sampling import epsilon, honour, uniform_rows, uniform_share
from shuhari.models.spaces import Inputs, Net, Scale, Seen, box, spaces_of
from shuhari.needs import Noise, Traces, role_model
from shuhari.ports import Model, Task


class Others:
    """The models that a composite refers to, in the order of its roles. Copies refer to the same models."""

    def __init__(self) -> None:
        self.models: list[Any] = []

    def take(self, roles: Sequence[str], models: Mapping[str, Model]) -> None:
        self.models = [role_model(models, role) for role in roles]

    def __deepcopy__(self, memo: Any) -> Others:
        twin = Others()
        twin.models = list(self.models)
        return twin


def unknown_rows(contexts: Seen, does: Any) -> Batch:
    """Returns a batch of one-decision rows with only contexts [B, ...], for sampling."""
    seen = {f"context/{k}": v for k, v in contexts.items()} if isinstance(contexts, Mapping) else {"context": contexts}
    B = len(next(iter(seen.values())))
    action = torch.zeros(B, *does.shape, dtype=torch.float32 if does.dtype.kind == "f" else torch.long)
    return Batch({"mask": torch.ones(B, 1, dtype=torch.bool), "action": action, **seen})


# ---------------------------------------------------------------- corrections of an action


@register("model", "residual")
@dataclass
class Residual:
    """A correction of a base policy's action: a = clip(b + scale tanh f(s, b) + noise, -1, 1), b the base's action
    without noise.

    Sources: ResFiT (Ankile et al. 2025, "Residual Off-Policy RL for Finetuning Behavior Cloning Policies"), ResiP
    (Ankile et al. 2024, arXiv 2407.16677). The last layer of f starts at 0, so that it starts as the base. Supports
    greedy and epsilon.

    The base decides in [-1, 1] of a bounded Box (`squashed`, `deterministic`, another `residual`) and gets no gradient;
    the decision, which critics see, is all of a. `info`: `base` [B, 1, A].
    """

    base: str = "base"
    """Role of the policy whose action is corrected; it gets no gradient."""
    hidden: tuple[Width, ...] = (256, 256)
    """Widths of the hidden layers of the MLP; an empty list makes it linear."""
    activation: Activation = "relu"
    """Activation between the layers."""
    scale: AtLeast0 = 0.1
    """Largest correction in each dimension, in units of half the action range; small stays close to the base."""
    noise: Positive = 0.05
    """Standard deviation of the exploration noise, in units of half the action range."""
    learned: bool = False
    """Train the standard deviation, which then starts at `noise`."""
    normalise: bool = False
    """Normalise observations by the running mean and variance of the collected ones; set it if their scales differ."""
    kind: Literal["exact", "chain", "bound"] = field(default="exact", init=False)
    module: nn.Module = field(init=False, repr=False)
    others: Others = field(init=False, repr=False, default_factory=Others)

    def __post_init__(self) -> None:
        check(self)

    @property
    def roles(self) -> tuple[str, ...]:
        return (self.base,)

    def bind(self, models: Mapping[str, Model]) -> None:
        self.others.take(self.roles, models)

    def build(self, task: Task) -> None:
        seen, self._does = spaces_of(task, "residual")
        actions = box(self._does, "action", "residual", bounded=True)
        a = int(actions.shape[0])
        self._scale, self._inputs = Scale(actions), Inputs(seen, "residual", self.normalise)
        self._body = Mlp((self._inputs.size + a, *self.hidden, a), self.activation)
        nn.init.zeros_(self._body.layers[-1].weight)  # type: ignore[arg-type]
        nn.init.zeros_(self._body.layers[-1].bias)  # type: ignore[arg-type]
        self.module = Net(self._inputs, self._body)
        log_std = torch.full((a,), self.noise).log()
        self.module.register_parameter("log_std", nn.Parameter(log_std, requires_grad=self.learned))

    def __call__(self, batch: Batch) -> Clipped:
        mean, log_std, _ = self._law(batch)
        return Clipped(mean, log_std, batch["action"].view_as(mean), epsilon(batch))

    def sample(self, contexts: Any, sampling: Sampling, *, noise: Noise) -> Traces:
        """Samples contexts [B, ...] -> action [B, A], logp [B, 1]; taken [B, A]; `info`: `base` [B, 1, A], `epsilon`
        [B, 1]."""
        honour(sampling, ("greedy", "epsilon"), "residual")
        e = uniform_share(sampling)
        with torch.no_grad():
            mean, log_std, base = self._law(unknown_rows(contexts, self._does))
            action, std = mean[:, 0], log_std[:, 0].exp()
            if not sampling.greedy:
                action = action + std * noise.normal(0, action.shape[1])
            action = action.clamp(-1, 1)
            if e and not sampling.greedy:
                action = torch.where(*uniform_rows(noise, action.shape[1], e), action)
            share = action.new_full((len(action), 1), e)
            made = Clipped(mean, log_std, action[:, None], share if e else None)
            info = {"epsilon": share, "base": base[:, None]}
        return Traces(action, made.log_prob(), info=info, taken=self._scale(action))

    def observe(self, event: Event) -> None:
        self._inputs.observe(event)

    def _law(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the mean, possibly beyond the bounds, and log standard deviation [B, 1, A]; the base's action [B,
        A]."""
        with torch.no_grad():
            base = self.others.models[0](batch).mode()
        moved = self._body(torch.cat([self._inputs(self._inputs.of(batch)), base], 1)).tanh()
        mean = (base + self.scale * moved)[:, None]
        log_std: Tensor = self.module._parameters["log_std"]  # type: ignore[assignment]
        log_std = log_std if torch.is_grad_enabled() else log_std.detach()  # a view of a parameter requires a gradient
        return mean, log_std.expand_as(mean), base


# ---------------------------------------------------------------- mixtures of experts


class Mixture:
    """A mixture of n experts: `log_weights` [B, K, n], and the distribution of each, with the action taken. Methods
    return [B, K]; after `at`, [N]."""

    __slots__ = ("experts", "log_weights")

    def __init__(self, log_weights: Tensor, experts: Sequence[Any]) -> None:
        self.log_weights, self.experts = log_weights, experts

    def log_prob(self) -> Tensor:
        return (self.log_weights + torch.stack([d.log_prob() for d in self.experts], -1)).logsumexp(-1)

    def mode(self) -> Tensor:
        """Returns the mode of the most probable expert."""
        return _pick([d.mode() for d in self.experts], self.log_weights.flatten(0, -2).argmax(-1))

    def parameters(self) -> Tensor:
        """Returns [B, K, n] the log-probabilities of the experts."""
        return self.log_weights

    def at(self, index: Tensor) -> Mixture:
        """Returns the decisions `index` [N] of the flattened [B * K]."""
        return Mixture(self.log_weights.flatten(0, -2)[index], [d.at(index) for d in self.experts])


def _pick(each: Sequence[Tensor], which: Tensor) -> Tensor:
    """Returns [B, ...] row i of each[which[i]]."""
    return torch.stack(list(each))[which, torch.arange(len(which))]


@register("model", "gated")
@dataclass
class Gated:
    """A mixture of experts: a gating network samples the acting role, scored by the mixture's exact density (PMOE: Ren
    et al. 2021, arXiv 2104.09122).

    Supports the settings that its experts support; greedy is the mode of the most probable one. `parameters()` are the
    log-probabilities of the experts [B, 1, n], for objectives that train the gate by itself. `info`: `expert` [B], the
    acting expert. Experts that a part trains get gradients. Raises ValueError without experts.
    """

    experts: tuple[str, ...] = ()
    """Roles that the gate chooses from, one or more."""
    hidden: tuple[Width, ...] = (64, 64)
    """Widths of the hidden layers of the gate; an empty list makes it linear."""
    activation: Activation = "tanh"
    """Activation between the layers."""
    normalise: bool = False
    """Normalise observations by the running mean and variance of the collected ones; set it if their scales differ."""
    kind: Literal["exact", "chain", "bound"] = field(default="exact", init=False)
    module: nn.Module = field(init=False, repr=False)
    others: Others = field(init=False, repr=False, default_factory=Others)

    def __post_init__(self) -> None:
        check(self)
        if not self.experts:
            raise ValueError("gated: experts is empty: expected the roles that decide")

    @property
    def roles(self) -> tuple[str, ...]:
        return self.experts

    def bind(self, models: Mapping[str, Model]) -> None:
        self.others.take(self.roles, models)

    def build(self, task: Task) -> None:
        seen, self._does = spaces_of(task, "gated")
        self._inputs = Inputs(seen, "gated", self.normalise)
        self.module = Net(self._inputs, Mlp((self._inputs.size, *self.hidden, len(self.experts)), self.activation))

    def __call__(self, batch: Batch) -> Mixture:
        log_weights = self.module(self._inputs.of(batch)).log_softmax(-1)[:, None]
        return Mixture(log_weights, [model(batch) for model in self.others.models])

    def sample(self, contexts: Any, sampling: Sampling, *, noise: Noise) -> Traces:
        """Samples contexts [B, ...] -> the action of the drawn expert, logp [B, 1] of the mixture; `info` of that
        expert."""
        with torch.no_grad():
            logits = self.module(contexts)
            gumbel = 0.0 if sampling.greedy else -(-noise.uniform(1, logits.shape[1]).log()).log()
            which = (logits + gumbel).argmax(-1)  # noise number 1: the experts draw with number 0
            drawn = [model.sample(contexts, sampling, noise=noise) for model in self.others.models]
            action = _pick([t.action for t in drawn], which)
            info = {
                k: _pick([t.info[k] for t in drawn], which)
                for k in drawn[0].info
            }
            taken = [t.taken for t in drawn if t.taken is not None]
            heat = torch.full((len(which), 1), float(sampling.temperatures(1)[0]))
            rows = unknown_rows(contexts, self._does).put({**info, "action": action, "temperature": heat})
            extra = {**info, "expert": which}
            return Traces(action, self(rows).log_prob(), info=extra, taken=_pick(taken, which) if taken else None)

    def observe(self, event: Event) -> None:
        self._inputs.observe(event)
