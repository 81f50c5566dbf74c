"""A Q-network of a state and a joint action of bits, which acts by the best action of all that are feasible.

Source: Xu et al., "Reinforcement learning with combinatorial actions for coupled restless bandits" (2025), algorithm 1.
Left out: action masks, observations that are not a flat Box, action spaces other than bits.

Axes: `B` rows, `J` bits of an action, `F` listed actions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from shuhari.batch import Batch
from shuhari.bounds import Width, check
from shuhari.data import Array, Sampling
from shuhari.kernel.registry import register
from shuhari.methods.theory.sequoia.embedding import Coupling, Layer, maximise
from shuhari.models.mlp import Mlp
from shuhari.models.sampling import epsilon, honour, uniform_share
from shuhari.models.spaces import box, spaces_of
from shuhari.needs import Noise, Traces
from shuhari.ports import Task, ability

CHUNK = 1 << 16  # pairs of a row and a listed action that are rated at once


@register("model", "joint_q")
@dataclass
class JointQ:
    """Q(s, a) of a joint action a of J bits, a ReLU network of both; as a policy greedy on it over all feasible a, or
    epsilon-greedy by `Sampling.epsilon`.

    The environment's `table` has the `Coupling` that says what is feasible. An exploring row takes one of the listed
    actions, each as likely; where none are listed, the one that is the best in a random direction (normal weights of
    the bits), and log-probabilities are unknown (NaN). With the objective `soft_td` (greedy, without entropy, `policy`
    = its target) this is deep Q-learning. Raises TypeError for other spaces and for a world without a coupling,
    ValueError to list actions that it has not listed.
    """

    hidden: tuple[Width, ...] = (32,)
    """Widths of the hidden layers; an empty list makes it linear."""
    by: Literal["milp", "list"] = "milp"
    """How the best action is found: by a mixed-integer programme (`milp`), or by rating all feasible ones, if the world
    lists them (`list`); the action is the same."""
    kind: Literal["exact", "chain", "bound"] = field(default="exact", init=False)
    module: nn.Module = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check(self)

    def build(self, task: Task) -> None:
        seen, does = spaces_of(task, "joint_q")
        size = int(box(seen, "observation", "joint_q").shape[0])
        if not isinstance(does, spaces.MultiBinary) or len(does.shape) != 1:
            raise TypeError(f"the model 'joint_q' needs a MultiBinary action space of one axis: this task's is {does}")
        coupling = getattr(ability(task, "table"), "coupling", None)
        if not isinstance(coupling, Coupling) or coupling.bits != does.shape[0]:
            raise TypeError("the model 'joint_q' needs a world that says which actions are feasible: expected a "
                            f"`table` with a `coupling` of {does.shape[0]} bits, as `restless` has")  # fmt: skip
        if self.by == "list" and coupling.listed is None:
            raise ValueError("joint_q: by is 'list', and the world does not list its feasible actions: expected 'milp'")
        self.coupling, self._known = coupling, (b"", dict[bytes, Array]())
        self.listed = None if coupling.listed is None else torch.from_numpy(coupling.listed).long()  # [F, J]
        self._mlp = Mlp((coupling.bits + size, *self.hidden, 1), "relu")
        self.module = self._mlp

    def __call__(self, batch: Batch) -> Joint:
        contexts = batch["context"]
        return Joint(self, contexts, batch["action"].view(len(contexts), -1), epsilon(batch))

    def rate(self, contexts: Tensor, actions: Tensor) -> Tensor:
        """Returns [B] the values of actions [B, J] of bits in contexts [B, D]."""
        value: Tensor = self.module(torch.cat([actions.float(), contexts.float()], 1))
        return value.squeeze(1)

    @torch.no_grad()
    def find_best(self, contexts: Tensor) -> Tensor:
        """Returns [B, J] the feasible actions of the largest value in contexts [B, D]."""
        if self.by == "list":
            return self._rate_list(contexts)
        layers = self.read_layers()
        now = b"".join(weights.tobytes() + bias.tobytes() for weights, bias in layers)
        if self._known[0] != now:
            self._known = now, {}
        known, rows = self._known[1], contexts.double().numpy()
        for row in rows:
            if (key := row.tobytes()) not in known:
                known[key] = maximise(self.embed(layers, row), self.coupling)[0]
        return torch.from_numpy(np.stack([known[row.tobytes()] for row in rows])).long()

    def read_layers(self) -> list[Layer]:
        """Returns the (weights, biases) of the network's layers, as copies of double precision."""
        pairs: Any = self._mlp.layers
        return [(x.weight.detach().double().numpy(), x.bias.detach().double().numpy()) for x in pairs]

    def embed(self, layers: list[Layer], context: Array) -> list[Layer]:
        """Returns the layers of a network of actions alone, in a context [D]."""
        (weights, bias), J = layers[0], self.coupling.bits
        return [(weights[:, :J], bias + weights[:, J:] @ context), *layers[1:]]

    def _rate_list(self, contexts: Tensor) -> Tensor:
        assert self.listed is not None
        best, actions = [], self.listed.float()
        for some in contexts.float().split(max(1, CHUNK // len(actions))):
            pairs = torch.cat([actions.repeat(len(some), 1), some.repeat_interleave(len(actions), 0)], 1)
            best.append(self.module(pairs).view(len(some), -1).argmax(1))
        return self.listed[torch.cat(best)]

    def find_log_prob(self, contexts: Tensor, action: Tensor, e: Tensor) -> Tensor:
        """Returns [B] the log-probabilities of feasible actions [B, J] of the epsilon-greedy policy, with shares e [B];
        NaN for shares above 0 of actions that are not listed."""
        p = (1 - e) * (action == self.find_best(contexts)).all(1)
        if self.listed is None:
            return torch.where(e > 0, math.nan, p).log()
        return (p + e / len(self.listed)).log()

    def sample(self, contexts: Any, sampling: Sampling, *, noise: Noise) -> Traces:
        """Samples contexts [B, D] -> action [B, J], logp [B, 1]; `info`: `epsilon` [B, 1]."""
        honour(sampling, ("greedy", "epsilon"), "joint_q")
        e, n, J = 0.0 if sampling.greedy else uniform_share(sampling), len(contexts), self.coupling.bits
        explores = noise.uniform(0, 1)[:, 0] < e
        action, shares = torch.zeros(n, J, dtype=torch.long), torch.full((n,), e)
        if bool((~explores).any()):
            action[~explores] = self.find_best(contexts[~explores])
        if self.listed is not None:
            action[explores] = self.listed[(noise.uniform(1, 1)[:, 0] * len(self.listed)).long()[explores]]
        elif bool(explores.any()):
            rows = noise.normal(1, J)[explores].double().numpy()
            found = [maximise([(row[None], np.zeros(1))], self.coupling)[0] for row in rows]
            action[explores] = torch.from_numpy(np.stack(found)).long()
        known = self.listed is not None or e == 0
        logp = self.find_log_prob(contexts, action, shares) if known else torch.full((n,), math.nan)
        return Traces(action, logp.float().unsqueeze(1), info={"epsilon": shares.unsqueeze(1)})

    def decide(self, contexts: Any) -> dict[str, Tensor]:
        """Returns for contexts [B, D] the best `action` [B, J] and its `values` [B, 1]."""
        action = self.find_best(contexts)
        return {"action": action, "values": self.rate(contexts, action).unsqueeze(1)}


class Joint:
    """The decisions of rows under a `joint_q`: contexts [B, D], action [B, J], epsilon [B, 1] or None for 0. Methods
    answer [B, 1], `mode` [B, J]; after `at`, [N]."""

    __slots__ = ("_action", "_contexts", "_epsilon", "_model", "_picked")

    def __init__(
        self, model: JointQ, contexts: Tensor, action: Tensor, share: Tensor | None, picked: bool = False
    ) -> None:
        self._model, self._contexts, self._action, self._picked = model, contexts, action, picked
        self._epsilon = contexts.new_zeros(len(contexts), 1) if share is None else share

    def value(self) -> Tensor:
        """Of the action taken."""
        return self._shape(self._model.rate(self._contexts, self._action))

    def mode(self) -> Tensor:
        """The best feasible action."""
        return self._model.find_best(self._contexts)

    def log_prob(self) -> Tensor:
        """-inf for an action that the greedy policy does not take."""
        return self._shape(self._model.find_log_prob(self._contexts, self._action, self._epsilon[:, 0]))

    def at(self, index: Tensor) -> Joint:
        """The decisions `index` [N]."""
        rows = self._contexts[index], self._action[index], self._epsilon[index]
        return Joint(self._model, *rows, picked=True)

    def _shape(self, x: Tensor) -> Tensor:
        return x if self._picked else x.unsqueeze(1)
