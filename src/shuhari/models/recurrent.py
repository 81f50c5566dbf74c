"""A recurrent policy with its critic: an LSTM or a GRU whose hidden state, its *memory*, is passed from decision to
decision.

Source: the recurrent PPO of sb3-contrib (`MlpLstmPolicy`): cores for actor and critic, training on stretches of rows
that begin at stored states. The model itself stores no memory: it gets it with each observation, and the batch has the
memory that each row was decided from (see `kernel.recall`). Left out: several layers, and cores other than these.

Axes: `B` rows, `D` features, `A` alternatives or action dimensions, `H` numbers that a core gives, `S` of a memory,
`P` stretches of rows, `N` decisions picked by `at`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from shuhari.batch import Batch
from shuhari.bounds import AtLeast0, Length, Width, check
from shuhari.data import Sampling
from shuhari.events import Event
from shuhari.kernel.recall import ALONE, MEMORY, Stretches, find_stretches, part_memory
from shuhari.kernel.registry import register
from shuhari.models.categorical import SUPPORTED, Categorical, sample_rows, score_rows
from shuhari.models.gaussian import Gaussian, draw_normal
from shuhari.models.mlp import Activation, Mlp, activation_of
from shuhari.models.normaliser import Moments
from shuhari.models.sampling import honour
from shuhari.models.spaces import Choices, Inputs, Seen, bounds_of, box, check_allowed, spaces_of
from shuhari.needs import Noise, Traces
from shuhari.ports import Task

CORES: dict[str, tuple[Any, int]] = {"lstm": (nn.LSTM, 2), "gru": (nn.GRU, 1)}  # the module, and its states of H
METHODS = frozenset({"log_prob", "entropy", "kl", "mode", "parameters", "at"})


class Recalled:
    """Decisions of a policy that remembers, and the values of its critic; each is computed when it is needed.
    Methods answer [B, K]; after `at`, [N]."""

    __slots__ = ("_decisions", "_policy", "_value")

    def __init__(self, policy: Callable[[], Categorical | Gaussian], value: Callable[[], Tensor]) -> None:
        self._policy, self._value = policy, value
        self._decisions: Any = None

    def whole(self, valued: bool) -> Recalled:
        """The same with everything computed, also the values if there are any."""
        decisions = self.decisions
        if not valued:
            return Recalled(lambda: decisions, self._value)
        values = self._value()
        return Recalled(lambda: decisions, lambda: values)

    @property
    def decisions(self) -> Any:
        """The distribution of the decisions alone, a `Categorical` or a `Gaussian`."""
        if self._decisions is None:
            self._decisions = self._policy()
        return self._decisions

    def log_prob(self) -> Tensor:
        out: Tensor = self.decisions.log_prob()
        return out

    def entropy(self) -> Tensor:
        out: Tensor = self.decisions.entropy()
        return out

    def kl(self, other: Recalled) -> Tensor:
        """KL(self || other), exact, each from its own memory of the rows before."""
        out: Tensor = self.decisions.kl(other.decisions)
        return out

    def mode(self) -> Tensor:
        out: Tensor = self.decisions.mode()
        return out

    def parameters(self) -> Tensor:
        out: Tensor = self.decisions.parameters()
        return out

    def value(self) -> Tensor:
        """Before the decision, from the critic's memory."""
        return self._value()

    def at(self, index: Tensor) -> Recalled:
        """The decisions `index` [N] of the flattened [B * K]."""
        return Recalled(lambda: self.decisions.at(index), lambda: self._value().flatten()[index])


class Core(nn.Module):
    """A recurrence over features, with layers before it."""

    def __init__(
        self, kind: str, size: int, features: int, before: tuple[int, ...], activation: str, gain: float | None
    ) -> None:
        super().__init__()
        made, self.states = CORES[kind]
        self.before = Mlp((features, *before), activation, gain) if before else None
        self._activation = activation_of(activation)
        self.cell = made((features, *before)[-1], size)

    def __call__(self, x: Tensor, sizes: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        """x [n, D] as `Stretches` orders them, memory [P, S] before their first rows -> [n, H], and the memory [P, S]
        behind their last ones."""
        if self.before is not None:
            x = self._activation(self.before(x))
        state = tuple(s.contiguous() for s in memory.unsqueeze(0).chunk(self.states, -1))
        out, after = self.cell(PackedSequence(x, sizes), state if self.states > 1 else state[0])
        return out.data, (torch.cat(after, -1) if self.states > 1 else after)[0]

    forward = __call__


class Body(nn.Module):
    """The parts of the model: `inputs`, the cores of `actor` and `critic` (None: that of the actor) and the `heads`."""

    def __init__(self, inputs: Inputs, actor: Core, critic: Core | None, **heads: Mlp) -> None:
        super().__init__()
        self.inputs, self.actor, self.critic = inputs, actor, critic
        self.heads = nn.ModuleDict(heads)


@register("model", "recurrent")
@dataclass
class RecurrentPolicy:
    """A policy with a recurrent core, an LSTM or a GRU, for partly observed environments; with a value critic.

    Discrete, MultiDiscrete and MultiBinary actions are drawn as by `categorical` (it honours temperature, greedy and
    epsilon, and an `action_mask`), those of a Box as by `gaussian` (it honours greedy). With `[models.critic] same_as =
    "policy"` its critic plays the role `critic`; that role may also be a separate `value` model, without a memory.

    The rollouts `vector` and `episode` pass its memory on, from zeros at the start of each episode. A row is scored
    after the rows before it in the batch, the first of which starts from its stored memory; gradients run back as far.
    Minibatches keep episodes whole (`part.<part>.unit`). Raises ValueError for micro-batches, and for observations
    without a memory.
    """

    core: Literal["lstm", "gru"] = "lstm"
    """Recurrence that remembers: `lstm` (as in sb3-contrib), or `gru`, which is smaller (and on processors slower)."""
    size: Width = 64
    """Number of units of a core (sb3-contrib: 256)."""
    before: tuple[Width, ...] = ()
    """Widths of layers between the observation and the core; an empty list shows the core the observation itself."""
    hidden: tuple[Width, ...] = (64,)
    """Widths of the hidden layers between a core and what it decides or values; an empty list makes that linear."""
    activation: Activation = "tanh"
    """Activation between the layers."""
    critic: Literal["own", "shared", "none"] = "own"
    """Core that the critic reads: one of its `own` (as in sb3-contrib), the policy's (`shared`, with the gradients of
    both), or `none`, for a policy without a critic."""
    stretch: Length | None = None
    """Largest number of rows that gradients run back over; the rows behind begin at their stored memory. None sets no
    bound but the episode's rows in the batch."""
    orthogonal: bool = True
    """Initialise the layers orthogonally, as PPO does, and leave the cores as PyTorch has them; false does so with
    all."""
    gain: AtLeast0 = 0.01
    """Scale of the policy's last layer's orthogonal weights; a small one starts near the uniform policy (PPO: 0.01).
    Only read with `orthogonal`."""
    log_std: float = 0.0
    """Logarithm of the standard deviation that every dimension of a Box starts with; 0 is a deviation of 1."""
    normalise: bool = False
    """Normalise observations by the running mean and variance of what was collected; set it if their scales differ."""
    returns: bool = False
    """Keep the running moments of the discounted return, by which the transform `scale_rewards` divides."""
    see: tuple[str, ...] = ()
    """Keys of a Dict observation that are read; empty reads all. An `action_mask` always counts."""
    kind: Literal["exact", "chain", "bound"] = field(default="exact", init=False)
    chains = True
    module: nn.Module = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check(self)

    @property
    def memory(self) -> int:
        """S, how many numbers it carries: the states of its cores, the policy's first."""
        return CORES[self.core][1] * self.size * (2 if self.critic == "own" else 1)

    @property
    def offers(self) -> Collection[str]:
        return METHODS if self.critic == "none" else METHODS | {"value"}

    @property
    def return_statistic(self) -> Any:
        return self.module.returns if self.returns else None

    def build(self, task: Task) -> None:
        seen, does = spaces_of(task, "recurrent")
        if isinstance(seen, spaces.Dict) and not {MEMORY, ALONE}.isdisjoint(seen):
            raise TypeError(f"the model 'recurrent': the observations have a part {MEMORY!r} or '', which is the name "
                            "of what it remembers itself: call that part otherwise")  # fmt: skip
        self._inputs = Inputs(seen, "recurrent", self.normalise, self.orthogonal, see=self.see)
        self._choices: Choices | None = None
        self._bounds: tuple[Tensor, Tensor] | None = None
        if isinstance(does, spaces.Box):
            actions = box(does, "action", "recurrent")
            n, self._bounds = int(actions.shape[0]), bounds_of(actions)
        else:
            self._choices = Choices.of(does, "recurrent")
            n = self._choices.size

        def make_core() -> Core:
            gain = math.sqrt(2) if self.orthogonal else None
            return Core(self.core, self.size, self._inputs.size, self.before, self.activation, gain)

        def make_head(out: int, gain: float) -> Mlp:
            return Mlp((self.size, *self.hidden, out), self.activation, gain if self.orthogonal else None)

        actor, heads = make_core(), {"policy": make_head(n, self.gain)}
        critic = make_core() if self.critic == "own" else None
        if self.critic != "none":
            heads["value"] = make_head(1, 1.0)
        self.module = Body(self._inputs, actor, critic, **heads)
        if self._choices is None:
            self.module.log_std = nn.Parameter(torch.full((n,), float(self.log_std)))
        if self.returns:
            self.module.returns = Moments()

    # ---------------------------------------------------------------- scoring

    def __call__(self, batch: Batch) -> Recalled:
        """ValueError for rows whose memory is not there, not known, or of another size."""
        if MEMORY not in batch:
            raise ValueError(
                "recurrent: the rows have no column 'memory', which the rollouts 'vector' and 'episode' write if the "
                'acting policy is recurrent; for its critic set same_as = "policy"'
            )
        if "role" in batch and len(batch["role"].unique()) > 1:
            raise ValueError("recurrent: the rows belong to several roles in turn, and the memory would mix them: "
                             "expected one acting role")  # fmt: skip
        seen, rows = self._inputs.of(batch), find_stretches(batch, self.stretch)
        memory = batch[MEMORY].flatten(1)[rows.firsts]
        self._check(memory, "the rows")
        if bool(memory.isnan().any()):
            raise ValueError("recurrent: some rows have no memory (NaN): expected rows that a recurrent policy sampled")
        x = self._inputs(seen)[rows.order]

        def decide() -> Categorical | Gaussian:
            out = rows.restore(self._heads["policy"](self._read("policy", x, rows, memory)))
            if self._choices is not None:
                logits, allowed = self._choices.spread(out, self._inputs.mask(seen))
                return score_rows(logits, batch, allowed)
            parts = out, self._log_std(out), batch["action"].view_as(out)
            return Gaussian(*(part.unsqueeze(1) for part in parts))

        def value() -> Tensor:
            if self.critic == "none":
                raise ValueError("recurrent: critic is 'none', and a loss needs values: set critic = 'own' or 'shared'")
            out: Tensor = self._heads["value"](self._read("value", x, rows, memory))
            return rows.restore(out)

        made = Recalled(decide, value)
        if torch.is_grad_enabled():  # now: what is computed again for a gradient (of a functional) must not begin it
            made = made.whole(self.critic != "none")
        return made

    def _read(self, whose: str, x: Tensor, rows: Stretches, memory: Tensor) -> Tensor:
        """[B, H] what a core gives of rows in reading order."""
        core, part = self._core(whose)
        out: Tensor = core(x, rows.sizes, memory[:, part])[0]
        return out

    def _core(self, whose: str) -> tuple[Core, slice]:
        """A core, and which numbers of the memory are its own."""
        body: Any = self.module
        own = self.memory // (2 if self.critic == "own" else 1)
        if whose == "policy" or self.critic != "own":
            return body.actor, slice(own)
        return body.critic, slice(own, None)

    # ---------------------------------------------------------------- sampling

    def sample(self, contexts: Any, sampling: Sampling, *, noise: Noise) -> Traces:
        """contexts [B, ...] with the memory [B, S] of each (`kernel.recall.with_memory`) -> what `categorical` or
        `gaussian` give, and the `memory` [B, S] after the decision. ValueError for contexts without a memory, and a
        mask that allows nothing."""
        honour(sampling, SUPPORTED if self._choices is not None else ("greedy",), "recurrent")
        seen, memory = part_memory(contexts)
        if memory is None:
            raise ValueError(
                "recurrent: it got no memory, so that it would forget everything at each decision: use it in the "
                "rollouts 'vector' or 'episode', or by `predict` of a loaded policy"
            )
        self._check(memory, "a context")
        with torch.no_grad():
            x, sizes = self._inputs(seen), torch.tensor([len(memory)])
            core, part = self._core("policy")
            latent, after = core(x, sizes, memory[:, part])
            if self.critic == "own":
                core, part = self._core("value")
                after = torch.cat([after, core(x, sizes, memory[:, part])[1]], 1)
            return replace(self._draw(seen, latent, sampling, noise), memory=after)

    def _draw(self, seen: Seen, latent: Tensor, sampling: Sampling, noise: Noise) -> Traces:
        out = self._heads["policy"](latent)
        if self._choices is not None:
            logits, allowed = self._choices.spread(out, self._inputs.mask(seen))
            check_allowed(allowed)
            return sample_rows(logits, sampling, noise, self._choices.start, allowed)
        return draw_normal(out, self._log_std(out), self._bounds, sampling, noise)

    def decision(self, taken: Tensor) -> dict[str, Tensor]:
        """Batch columns of the decisions whose environment actions are `taken` [B, ...]."""
        start = None if self._choices is None else self._choices.start
        return {"action": taken if start is None else taken - start}

    def observe(self, event: Event) -> None:
        self._inputs.observe(event)

    # ---------------------------------------------------------------- parts

    @property
    def _heads(self) -> Any:
        return self.module.heads

    def _log_std(self, like: Tensor) -> Tensor:
        log_std: Tensor = self.module._parameters["log_std"]  # type: ignore[assignment]
        log_std = log_std if torch.is_grad_enabled() else log_std.detach()  # a view of a parameter asks for a gradient
        return log_std.expand_as(like)

    def _check(self, memory: Tensor, whose: str) -> None:
        if memory.shape[-1] != self.memory:
            raise ValueError(
                f"recurrent: the memory of {whose} has {memory.shape[-1]} numbers: expected {self.memory}, of a "
                f"{self.core} of {self.size} units with critic = {self.critic!r}"
            )
