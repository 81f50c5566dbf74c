"""Policies whose decision differs from the environment's action: `steered` chooses the noise that a frozen base
denoises, `filtered` moves a base's action along the score of recorded data before it is taken.

Sources: DSRL (Wagenmaker et al. 2025, "Steering Your Diffusion Policy with Latent Space Reinforcement Learning", arXiv
2506.15799), also the online stage of GR-RL; CDSA ("Conservative Denoising Score-based Algorithm for Offline
Reinforcement Learning"). Left out: distilling critics of noise from critics of the base's actions (DSRL-NA); a replay
initially filled by the base's own noise, N(0, I) clamped to the bound (DSRL's release; here a rollout's `random` is
uniform within it); a penalty on long noise in place of its bounds (GR-RL); the correction of states through inverse
dynamics (CDSA).

Axes: `B` rows, `K` steps of denoising, `A` action dimensions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, Literal

import torch
from gymnasium import spaces
from torch import Tensor, nn

from shuhari.batch import Batch
from shuhari.bounds import AtLeast0, Length, Positive, Width, check
from shuhari.data import Sampling
from shuhari.events import Event
from shuhari.kernel.abilities import find_missing
from shuhari.kernel.registry import register
from shuhari.models.composite import Others
from shuhari.models.denoising import walk
from shuhari.models.gaussian import Squashed, SquashedPolicy
from shuhari.models.mlp import Activation
from shuhari.models.sampling import honour
from shuhari.models.spaces import box, spaces_of
from shuhari.needs import Noise, Traces, decisions
from shuhari.ports import Model, Task, ability


@register("model", "steered")
@dataclass
class Steered:
    """A policy that steers a frozen diffusion or flow policy by choosing its initial noise (DSRL); the environment gets
    the base's action, denoised without noise in the steps.

    The base gets no gradient. Supports greedy and epsilon (a uniform noise). The decision, which critics see and the
    column `action` holds, is the noise over `bound`, a normal squashed by tanh as in `squashed`. `info`: the columns of
    `squashed`, and `base` [B, 1, A], the base's decision. Raises TypeError for a base of another kind, ValueError for
    actions from elsewhere, whose noise is not known.
    """

    base: str = "base"
    """Role of the frozen base policy, a model `chain`."""
    bound: Positive = 1.5
    """Largest noise in each dimension, in standard deviations of the base's noise (DSRL's release: 1, 1.5 or 2.5); a
    larger one leaves the base's training distribution."""
    hidden: tuple[Width, ...] = (256, 256)
    """Widths of the hidden layers of the MLP; an empty list makes it linear."""
    activation: Activation = "relu"
    """Activation between the layers."""
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
        _expect_chain("steered", self.base, self.others.models[0])

    def build(self, task: Task) -> None:
        seen, does = spaces_of(task, "steered")
        noises = spaces.Box(-self.bound, self.bound, box(does, "action", "steered").shape)
        over_noise: Any = SimpleNamespace(spaces=lambda: (seen, noises))
        self._actor = SquashedPolicy(self.hidden, self.activation, normalise=self.normalise)
        self._actor.build(over_noise)
        self.module = self._actor.module

    def __call__(self, batch: Batch) -> Squashed:
        return self._actor(batch)

    def sample(self, contexts: Any, sampling: Sampling, *, noise: Noise) -> Traces:
        """Samples contexts [B, ...] -> action [B, A], logp [B, 1]; taken [B, A]."""
        honour(sampling, ("greedy", "epsilon"), "steered")
        traces, base = self._actor.sample(contexts, sampling, noise=noise), self.others.models[0]
        assert traces.taken is not None
        with torch.no_grad():
            _, made, _ = walk(base, base.features(contexts), traces.taken, None, None)
        return replace(traces, info={**traces.info, "base": made[:, None]}, taken=base.act(made))

    def decision(self, taken: Tensor) -> dict[str, Tensor]:
        message = f"nobody knows of which noise the role {self.base!r} would have made an action from elsewhere"
        raise ValueError(f"steered: {message}: train that role on such data instead")

    def observe(self, event: Event) -> None:
        self._actor.observe(event)


@register("model", "filtered")
@dataclass
class Filtered:
    """A policy whose action is moved towards recorded data before it is taken: a + rate score(a), repeated `steps`
    times (CDSA).

    score is the gradient of the log-density of a `chain`'s training data (fitted by `denoise`), blurred by the noise
    before its last steps, one after the other; a chain of few steps has a wide blur, known far from the data. Supports
    what the base supports; rate 0 is the base, bit for bit. The base's decision is what is scored and learnt from, so
    the correction acts as part of the environment.

    On normal data of deviation s a step ends at their mean if rate = s² + noise², overshoots above that, and diverges
    above twice that. Raises TypeError for a score of another kind; ValueError for one with law `consistency`, which
    predicts no means, or with fewer steps.
    """

    base: str = "base"
    """Role of the policy whose action is moved; its decisions are scored and learnt from."""
    score: str = "score"
    """Role of the model `chain` that was trained on the data and gives the score."""
    rate: AtLeast0 = 0.01
    """Step size along the score, in squared units of the chain's decisions; 0 leaves the base's action unchanged."""
    steps: Length = 1
    """Number of moves, one for each of the last steps of the `score` model."""
    module: nn.Module = field(init=False, repr=False)
    others: Others = field(init=False, repr=False, default_factory=Others)

    def __post_init__(self) -> None:
        check(self)

    @property
    def kind(self) -> Literal["exact", "chain", "bound"]:
        """The kind of the base."""
        found: Any = ability(self.others.models[0], "kind") if self.others.models else "exact"
        return found

    @property
    def roles(self) -> tuple[str, ...]:
        return (self.base, self.score)

    def bind(self, models: Mapping[str, Model]) -> None:
        self.others.take(self.roles, models)
        score = self.others.models[1]
        _expect_chain("filtered", self.score, score)
        if score.law == "consistency" or score.steps < self.steps:
            raise ValueError(f"filtered: the role {self.score!r} denoises by law {score.law!r} in {score.steps} steps: "
                             f"expected another law than 'consistency', and {self.steps} steps or more")  # fmt: skip

    def build(self, task: Task) -> None:
        self.module = nn.Module()  # no weights of its own

    def __call__(self, batch: Batch) -> Any:
        return self.others.models[0](batch)

    def sample(self, contexts: Any, sampling: Sampling, *, noise: Noise) -> Traces:
        """Samples as the base, with another `taken` [B, A]."""
        base, score = self.others.models
        traces: Traces = base.sample(contexts, sampling, noise=noise)
        if not self.rate:
            return traces
        with torch.no_grad():
            a = score.decision(traces.action if traces.taken is None else traces.taken)["action"]
            features = score.features(contexts)
            for k in range(score.steps - self.steps, score.steps):
                a = a + self.rate * score.gradient(features, a, k)
            return replace(traces, taken=score.act(a))

    def decision(self, taken: Tensor) -> Mapping[str, Tensor]:
        """Returns batch columns of decisions whose environment actions are `taken`: the base's, as if uncorrected."""
        return decisions(self.others.models[0], taken)


def _expect_chain(model: str, role: str, found: Any) -> None:
    if find_missing(found, "features", "act", "gradient"):
        raise TypeError(f"{model}: the model of role {role!r} is a {type(found).__name__}: expected one that denoises "
                        f"(models.{role}.use = 'chain')")  # fmt: skip
