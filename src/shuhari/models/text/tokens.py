"""The distribution of a batch's tokens over a vocabulary, computed lazily: [B, K, V] is never held whole.

Axes: `B` rows, `K` positions, `N` = B * K flattened, `m` hidden states, `n` decisions of a chunk, `D` hidden, `V`
vocabulary, `S` kept ids.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from shuhari.models.text.fused import taken_log_prob

NEVER = -1e30  # logit of an id that could not be taken: finite, so that 0 x logit is 0 and gradients are not NaN
ENTRIES = 1 << 24  # largest number of logits held at once; more are computed in chunks, and again for the gradient


@dataclass(eq=False)
class TokenDist:
    """Categorical over V tokens at each decision; all tensors are flattened, `shape` is [B, K] (or [N] after `at`).

    `head`: hidden [n, D] -> logits [n, V], a new tensor. `linear`: weight [V, D] and bias, if `head` is linear, times
    `stretch`. `seen` [N]: the positions that have a hidden state, in order (None: all); every decision has one. `mask`
    [N]: the decisions; results are 0 elsewhere. `temperature` [N]. `support` [N, S] kept ids and `ban` [N, S] forbidden
    ids, -1 padded, restrict the distribution as in sampling; a position whose `support` is all -1 is unrestricted.
    `suppressed` [m] ids have probability 0 at every decision. Results are on the CPU.
    """

    hidden: Tensor  # [m, D]
    action: Tensor  # [N]
    mask: Tensor  # [N] bool
    head: Callable[[Tensor], Tensor]
    vocabulary: int  # V
    shape: tuple[int, ...]
    temperature: Tensor | None = None
    support: Tensor | None = None
    ban: Tensor | None = None
    suppressed: Tensor | None = None
    scalar: Callable[[Tensor], Tensor] | None = None  # hidden [n, D] -> value [n]
    seen: Tensor | None = None  # [N] bool
    linear: tuple[Tensor, Tensor | None] | None = None
    stretch: float = 1.0
    behind: Callable[[], Tensor] | None = None  # -> [B, K] or [N], the value after each decision

    def __post_init__(self) -> None:
        self._graded = torch.is_grad_enabled()  # a role that is not trained ran without gradient, and stays so
        self._kept: Tensor | None = None
        self._where = None if bool(self.mask.all()) else self.mask.nonzero().squeeze(1)
        self._place = None if self.seen is None else self.seen.cumsum(0) - 1  # [N] index of each hidden state

    # ---------------------------------------------------------------- results

    def log_prob(self) -> Tensor:
        """Returns [B, K] log-probabilities of the tokens taken, at the temperature and within the support of their
        sampling."""
        if self.linear is None or self._kept is not None:
            return self._map_decisions(lambda action, p: p.gather(-1, action[:, None]).squeeze(-1))
        where = self._where
        action, temperature = self._rows(self.action, where), self.temperature
        scale = None if temperature is None else self.stretch / self._rows(temperature, where)[:, None]
        if temperature is None and self.stretch != 1:
            scale = action.new_full((len(action), 1), self.stretch, dtype=torch.float32)

        def restrict(logits: Tensor, s: slice) -> Tensor:
            return self._restrict(logits, s if where is None else where[s])

        with torch.set_grad_enabled(self._graded and torch.is_grad_enabled()):
            chunk = max(1, ENTRIES // self.vocabulary)
            return self._scatter(taken_log_prob(self._states(where), *self.linear, action, restrict, scale, chunk))

    def entropy(self) -> Tensor:
        """Returns [B, K] in nats."""
        return self._map_decisions(lambda action, p: -(p.exp() * p).sum(-1))

    def kl(self, other: TokenDist) -> Tensor:
        """Returns [B, K] KL(self || other), exact."""
        return self._map_decisions(lambda action, p, q: (p.exp() * (p - q)).sum(-1), other)

    def value(self) -> Tensor:
        """Returns [B, K] the value head before each decision; [B, K, n] with several outputs."""
        if self.scalar is None:
            raise AttributeError("this model has no value head: set value_head = true")
        with torch.set_grad_enabled(self._graded and torch.is_grad_enabled()):
            return self._scatter(self.scalar(self.hidden), self.seen)

    def after(self) -> Tensor:
        """Returns [B, K] the value head after each decision, of a state that includes it: by a separate forward."""
        if self.scalar is None or self.behind is None:
            raise AttributeError("this model has no value head: set value_head = true")
        with torch.set_grad_enabled(self._graded and torch.is_grad_enabled()):
            return self.behind()

    def mode(self) -> Tensor:
        """Returns [B, K] the most probable tokens."""
        return self._map_decisions(lambda action, p: p.argmax(-1))

    def parameters(self) -> Tensor:
        """Returns [B, K, V] logits over the temperature, NEVER if restricted: all at once, so use it on a chunk
        (`at`)."""
        at = torch.arange(len(self.action), device=self.action.device) if self.seen is None else self.seen.nonzero()
        return self._scatter(self._logits(at.flatten()), self.seen)

    def features(self) -> Tensor:
        """Returns [B, K, D] the hidden states before each decision."""
        return self._scatter(self.hidden, self.seen)

    def at(self, index: Tensor) -> TokenDist:
        """Returns the decisions `index` [n] of the flattened [B * K]."""
        i = index.to(self.hidden.device)

        def rows(x: Tensor | None) -> Tensor | None:
            return None if x is None else x[i]

        with torch.set_grad_enabled(self._graded and torch.is_grad_enabled()):
            return replace(
                self,
                hidden=self._states(i),
                seen=None,
                action=self.action[i],
                mask=self.mask[i],
                shape=tuple(index.shape),
                temperature=rows(self.temperature),
                support=rows(self.support),
                ban=rows(self.ban),
                behind=None if self.behind is None else lambda: self.after().flatten(0, 1)[index],
            )

    # ---------------------------------------------------------------- how it is computed

    def _map_decisions(self, f: Callable[..., Tensor], *others: TokenDist) -> Tensor:
        """Maps f(action [n], log-probabilities [n, V] of self and of others) -> [n], at the decisions; 0 elsewhere."""
        dists, where = (self, *others), self._where
        for other in others:
            if other.vocabulary != self.vocabulary:
                raise ValueError(
                    f"distributions over {self.vocabulary} and {other.vocabulary} tokens: expected one vocabulary"
                )
        action = self.action if where is None else self.action[where]
        if len(action) * self.vocabulary <= ENTRIES:
            out = f(action, *(d._whole() for d in dists))
        else:
            out = self._map_chunks(f, dists)
        return self._scatter(out)

    def _scatter(self, x: Tensor, at: Tensor | None = None) -> Tensor:
        """Maps [n, ...] at the positions `at` [N] bool (None: the decisions) -> [B, K, ...], 0 elsewhere."""
        where = self._where if at is None else at
        if where is not None and len(x) < len(self.action):
            x = x.new_zeros(len(self.action), *x.shape[1:]).index_put((where,), x)
        return x.cpu().view(*self.shape, *x.shape[1:])

    def _map_chunks(self, f: Callable[..., Tensor], dists: tuple[TokenDist, ...]) -> Tensor:
        index = torch.arange(len(self.action), device=self.action.device) if self._where is None else self._where

        def one(i: Tensor) -> Tensor:
            return f(self.action[i], *(d._log_probabilities(i) for d in dists))

        pieces = index.split(max(1, ENTRIES // (self.vocabulary * len(dists))))
        if not (torch.is_grad_enabled() and any(d._graded for d in dists)):
            return torch.cat([one(i) for i in pieces])
        return torch.cat([checkpoint(one, i, use_reentrant=False, preserve_rng_state=False) for i in pieces])

    def _whole(self) -> Tensor:
        """Returns [n, V] log-probabilities at all decisions, cached for the next call."""
        live = self._graded and torch.is_grad_enabled()
        if self._kept is None or (live and not self._kept.requires_grad):
            self._kept = self._log_probabilities(self._where)
        return self._kept

    def _log_probabilities(self, i: Tensor | None) -> Tensor:
        with torch.set_grad_enabled(self._graded and torch.is_grad_enabled()):
            return self._logits(i).log_softmax(-1)

    def _logits(self, i: Tensor | None) -> Tensor:
        logits = self.head(self._states(i))
        if self.temperature is not None:
            logits = logits / self._rows(self.temperature, i)[:, None]
        return self._restrict(logits, i)

    def _restrict(self, logits: Tensor, i: Tensor | slice | None) -> Tensor:
        """Returns [n, V] logits of the positions i, NEVER if restricted; in place."""
        if self.support is not None:
            support = self._rows(self.support, i)
            logits.masked_fill_(~(_member(support, logits) | (support < 0).all(1, keepdim=True)), NEVER)
        if self.ban is not None:
            logits.masked_fill_(_member(self._rows(self.ban, i), logits), NEVER)
        return logits if self.suppressed is None else logits.index_fill_(-1, self.suppressed, NEVER)

    def _states(self, i: Tensor | None) -> Tensor:
        """Returns [n, D] the hidden states of the positions i; None: of all, which are then the decisions."""
        if i is None or (i is self._where and len(i) == len(self.hidden)):
            return self.hidden
        return self.hidden[i if self._place is None else self._place[i]]

    @staticmethod
    def _rows(x: Tensor, i: Tensor | slice | None) -> Tensor:
        return x if i is None else x[i]


def _member(ids: Tensor, logits: Tensor) -> Tensor:
    """Returns [n, V] bool: the ids named in ids [n, S], -1 for none."""
    n, width = logits.shape
    out = torch.zeros(n, width + 1, dtype=torch.bool, device=logits.device)
    return out.scatter_(1, torch.where(ids < 0, width, ids), True)[:, :width]
