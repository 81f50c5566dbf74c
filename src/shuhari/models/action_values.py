"""The output of a Q-network over discrete actions: the value of each, and the epsilon-greedy policy on them.

Axes: `B` rows, `K` positions (here 1), `A` discrete actions, `m` bins (`readout`) or quantiles (`quantiles`), `N`
decisions picked by `at`. The networks are in `critics`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from shuhari.batch import Batch
from shuhari.models.quantiles import Quantiles, existing_quantiles
from shuhari.models.readout import Bins, existing
from shuhari.models.sampling import epsilon
from shuhari.models.spaces import FORBIDDEN


class Actions:
    """Values q [B, K, A] of all discrete actions, and the epsilon-greedy policy on them; the methods of a policy are
    those of the mixture with the row's `epsilon` [B, K] (0 where None). `allowed` [B, K, A]: what a mask allows (None:
    everything); the rest is worth -1e9, is never done and has no uniform share. Methods answer [B, K]; after `at`, [N].
    `action`: the decisions, or the batch that has them, which is then read when they are needed. `out`: the logits or
    quantiles [B, K, A, m] that the values were read from, `read`: how. ValueError for what the values were not read
    from.
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
        return self.logits_of(self.action)

    def logits_of(self, action: Tensor) -> Tensor:
        """[B, K, m] of the actions [B, K]."""
        out = existing(self._out if isinstance(self._read, Bins) else None)
        return out.take_along_dim(action[..., None, None], -2).squeeze(-2)

    def quantiles(self) -> Tensor:
        """[B, K, m] of the action taken."""
        return self.quantiles_of(self.action)

    def quantiles_of(self, action: Tensor) -> Tensor:
        """[B, K, m] of the actions [B, K]."""
        out = existing_quantiles(self._out if isinstance(self._read, Quantiles) else None)
        return out.take_along_dim(action[..., None, None], -2).squeeze(-2)

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
