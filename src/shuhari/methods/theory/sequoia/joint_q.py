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
from shuhari.models.sampling import honour, uniform_share
from shuhari.models.spaces import box, spaces_of
from shuhari.needs import Noise, Traces
from shuhari.ports import Task, ability

CHUNK = 1 << 16  # pairs of a row and a listed action that are rated at once


@register("model", "joint_q")
@dataclass
class JointQ:
    """Q(s, a) of a joint action a of J bits, a ReLU network of both; as a policy greedy on it over all feasible a, or
    epsilon-greedy by `Sampling.epsilon`.

    The environment's `table` has the `Coupling` that says what is feasible. An exploring row takes the feasible action
    that is the best in a random direction (normal weights of the bits); its log-probability is unknown (NaN). With
    the objective `soft_td` (greedy, without entropy, `policy` = its target) this is deep Q-learning. Raises TypeError
    for other spaces and for a world without a coupling, ValueError to list actions that it has not listed.
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
        self._mlp = Mlp((coupling.bits + size, *self.hidden, 1), "relu")
        self.module = self._mlp

    def __call__(self, batch: Batch) -> Joint:
        return Joint(self, batch)

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
        now = b"".join(x.tobytes() for layer in layers for x in layer)
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
        actions = torch.from_numpy(self.coupling.listed).float()
        best = []
        for some in contexts.float().split(max(1, CHUNK // len(actions))):
            pairs = torch.cat([actions.repeat(len(some), 1), some.repeat_interleave(len(actions), 0)], 1)
            best.append(self.module(pairs).view(len(some), -1).argmax(1))
        return actions[torch.cat(best)].long()

    def explore(self, directions: Tensor) -> Tensor:
        """Returns [B, J] the feasible actions that are the best in directions [B, J]."""
        if self.by == "list":
            actions = torch.from_numpy(self.coupling.listed).float()
            return actions[(directions.float() @ actions.T).argmax(1)].long()
        found = [maximise([(x[None], np.zeros(1))], self.coupling)[0] for x in directions.double().numpy()]
        return torch.from_numpy(np.stack(found)).long()

    def sample(self, contexts: Any, sampling: Sampling, *, noise: Noise) -> Traces:
        """Samples contexts [B, D] -> action [B, J], logp [B, 1]; `info`: `epsilon` [B, 1]."""
        honour(sampling, ("greedy", "epsilon"), "joint_q")
        e = 0.0 if sampling.greedy else uniform_share(sampling)
        explores = noise.uniform(0, 1)[:, 0] < e
        action = torch.zeros(len(contexts), self.coupling.bits, dtype=torch.long)
        if bool(explores.any()):
            action[explores] = self.explore(noise.normal(1, self.coupling.bits)[explores])
        if not bool(explores.all()):
            action[~explores] = self.find_best(contexts[~explores])
        logp = torch.full((len(action), 1), math.nan if e else 0.0)
        return Traces(action, logp, info={"epsilon": torch.full_like(logp, e)})

    def decide(self, contexts: Any) -> dict[str, Tensor]:
        """Returns for contexts [B, D] the best `action` [B, J] and its `values` [B, 1]."""
        action = self.find_best(contexts)
        return {"action": action, "values": self.rate(contexts, action).unsqueeze(1)}


class Joint:
    """The decisions of a batch under a `joint_q`: methods answer [B, 1], `mode` [B, J]."""

    __slots__ = ("_batch", "_model")

    def __init__(self, model: JointQ, batch: Batch) -> None:
        self._model, self._batch = model, batch

    def value(self) -> Tensor:
        """Of the action taken."""
        seen = self._batch["context"]
        return self._model.rate(seen, self._batch["action"].view(len(seen), -1)).unsqueeze(1)

    def mode(self) -> Tensor:
        """The best feasible action."""
        return self._model.find_best(self._batch["context"])
