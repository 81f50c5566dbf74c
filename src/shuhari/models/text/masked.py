"""Masked (diffusion) language models: an answer starts as masks, which are filled in in any order.

Sources: LLaDA (Nie et al. 2025, "Large Language Diffusion Models", arXiv 2502.09992), whose equation 14 counts masked
tokens instead of drawing each; scoring: left to right (JustGRPO, arXiv 2601.15165), in one step (diffu-GRPO, arXiv
2504.12216), by bounds (BGPO, arXiv 2510.11683, and GDPO, arXiv 2510.08554). Left out: pretrained weights, guidance,
devices other than the CPU, entropies and divergences in closed form.

Axes: `B` rows, `K` positions of an action, `L` tokens of an answer, masks included, `n` draws of masks, `N` masked
answers that are evaluated, `M` tokens queried in them, `V` vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

from shuhari.batch import Batch
from shuhari.bounds import Depth, Length, Width, check
from shuhari.data import Array, Payload, Sampling
from shuhari.kernel.noise import CounterNoise
from shuhari.kernel.registry import register
from shuhari.models.sampling import honour
from shuhari.models.text.bidirectional import Bidirectional
from shuhari.models.text.choice import choose
from shuhari.models.text.made_tokenizers import character_tokenizer
from shuhari.models.text.tokens import NEVER
from shuhari.needs import Noise, Trace
from shuhari.ports.hooks import ability

Order: TypeAlias = Literal["left", "confidence", "random"]


@register("model", "masked")
@dataclass
class Masked:
    """A masked (diffusion) language model made from scratch over characters: it fills in masks after a prompt.

    It samples from left to right, one token a step, each given the tokens before it and masks after it, so its
    log-probability is exact, as in a causal model (JustGRPO). The text ends before the first end token, after which
    there are only end tokens. The model `unordered` fills in masks with the same weights in another order. `Answers`
    has other scores, for objectives that name one (`score`). Supports temperature and greedy. Raises ValueError for
    sizes that do not fit together.
    """

    length: Length = 16
    """Number of tokens of an answer, initially masks; the longest answer."""
    hidden: Width = 64
    """Width of the transformer's hidden states, a multiple of `heads`."""
    layers: Depth = 1
    """Number of transformer layers."""
    heads: Width = 4
    """Number of attention heads."""
    intermediate: Width = 256
    """Width of the feed-forward layers."""
    context: Length = 256
    """Longest row that it reads, in tokens; above `length`, to leave room for a prompt."""
    alphabet: str = ""
    """Characters of the tokenizer; empty uses the task's."""
    kind: Literal["exact", "chain", "bound"] = field(default="exact", init=False)
    module: Bidirectional = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check(self)
        if self.hidden % self.heads:
            raise ValueError(f"masked: hidden is {self.hidden} and heads {self.heads}: expected a multiple of heads")
        if self.context <= self.length:
            message = f"context is {self.context} and length {self.length}"
            raise ValueError(f"masked: {message}: expected a context above length, with room for a prompt")

    def build(self, task: Any) -> None:
        """Makes tokenizer and weights. Raises ValueError for a task of numbers."""
        if ability(task, "spaces")() is not None:
            raise ValueError("model 'masked' reads text, and this task has spaces of numbers: use another model")
        self.text = character_tokenizer(self.alphabet or ability(task, "alphabet"))
        self.module = Bidirectional(
            self.text.size, self.hidden, self.layers, self.heads, self.intermediate, self.context, self.length
        )

    # ---------------------------------------------------------------- text

    @property
    def end(self) -> int:
        """The id of the end token."""
        return self.text.end

    @property
    def blank(self) -> int:
        """The id of the mask token, which is never an output."""
        return self.text.size

    @property
    def limit(self) -> int:
        """The longest row that it reads, in tokens."""
        return self.context

    def encode(self, prompt: Payload) -> Array:
        """Returns [k] the token ids of a string or of messages."""
        return self.text.encode(prompt)

    def decode(self, ids: Array) -> str:
        """Returns the text of token ids, without a closing end token."""
        return self.text.decode(ids)

    # ---------------------------------------------------------------- decisions

    def __call__(self, batch: Batch) -> Answers:
        """Returns the scores of these answers, computed when needed. Raises ValueError for one longer than `length`."""
        return Answers(self, batch)

    def sample(self, contexts: Sequence[Array], sampling: Sampling, *, noise: Noise) -> list[Trace]:
        """Samples an answer for each context, filled in from left to right."""
        with torch.no_grad():
            y, logp = self.fill(contexts, sampling, noise)
        return self.trace(y, logp, sampling)

    def trace(self, y: Tensor, logp: Tensor, sampling: Sampling) -> list[Trace]:
        """Returns traces of the answers [B, L], with these log-probabilities, cut after the first end token and to at
        most `max_new`."""
        many = self.measure(y, sampling.max_new).tolist()
        answers = zip(y.numpy().astype(np.int32), logp.numpy(), many, strict=True)
        return [Trace(ids[:k], p[:k], 0, {"ended": bool(ids[k - 1] == self.end)}) for ids, p, k in answers]

    def fill(
        self, contexts: Sequence[Array], sampling: Sampling, noise: Noise, order: Order = "left", at_once: int = 1
    ) -> tuple[Tensor, Tensor]:
        """Returns ([B, L] answers, [B, L] log-probabilities with which each token was drawn), filling `at_once` tokens
        a step: the next from left to right, the most confident proposals (`confidence`, as LLaDA decodes), or any
        (`random`). From left to right it stops after `max_new` tokens, with masks after them."""
        honour(sampling, ("temperature", "greedy"), "masked")
        B, L = len(contexts), self.length
        prompts, heat = self._stack(contexts), torch.from_numpy(sampling.temperatures(L))
        y, logp = torch.full((B, L), self.blank), torch.zeros(B, L)
        for step in range(-(-(min(L, sampling.max_new) if order == "left" else L) // at_once)):
            rows = (y == self.blank).any(1).nonzero().squeeze(1)
            if not len(rows):
                break
            masked = y[rows] == self.blank
            logits = self._head(self.module(torch.cat([prompts[rows], y[rows]], 1)))
            u = noise.uniform(step, L)[rows]
            hot = heat.repeat(len(rows))[:, None]
            choice = choose(logits.flatten(0, 1), sampling, hot, u.flatten())
            ids, said = choice.ids.view(-1, L), choice.logp.view(-1, L)
            if order == "left":
                first = -torch.arange(L).double().expand(len(rows), L)
            elif order == "random":
                first = noise.uniform(L + step, L)[rows]
            else:  # its confidence in each proposal, at temperature 1
                first = logits.log_softmax(-1).gather(-1, ids[..., None]).squeeze(-1).double()
            best = first.masked_fill(~masked, -torch.inf).topk(min(at_once, L), 1).indices
            now = torch.zeros_like(masked).scatter(1, best, True) & masked
            new = torch.where(now, ids, y[rows])
            ends = new == self.end
            y[rows] = new.masked_fill(ends.cumsum(1) - ends.long() > 0, self.end)
            logp[rows] = torch.where(now, said, logp[rows])
        return y, logp

    def measure(self, y: Tensor, most: int) -> Tensor:
        """Returns [B] the number of tokens of answers [B, L] that count: up to and including the first end token, at
        most `most`."""
        ends = y == self.end
        return torch.where(ends.any(1), ends.long().argmax(1) + 1, self.length).clamp(max=most)

    def chain(self, contexts: Sequence[Array], y: Tensor, wanted: Tensor, heat: Tensor | None = None) -> Tensor:
        """Returns [M] the log-probabilities of the `wanted` [B, L] tokens of answers [B, L], row by row: each given the
        tokens before it and masks from there on. heat: temperatures [B, L]; None: 1."""
        rows, at = wanted.nonzero(as_tuple=True)
        seen = y[rows].masked_fill(torch.arange(self.length) >= at[:, None], self.blank)
        return self.ask(contexts, rows, seen, torch.arange(len(rows)), at, y[rows, at], heat)

    def ask(
        self, contexts: Sequence[Array], rows: Tensor, seen: Tensor, which: Tensor, at: Tensor, said: Tensor,
        heat: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """Returns [M] the log-probability of the token `said` [M] at place `at` [M] of the masked answer `which` [M]
        among `seen` [N, L], after the contexts `rows` [N]. Equal inputs are evaluated once."""
        if not len(which):
            return torch.zeros(0)
        ids = torch.cat([self._stack(contexts)[rows], seen], 1)
        distinct, place = ids.unique(dim=0, return_inverse=True)
        logits = self._head(self.module(distinct)[place[which], at])
        if heat is not None:
            logits = logits / heat[rows[which], at][:, None]
        return logits.log_softmax(-1).gather(-1, said[:, None]).squeeze(-1)

    def _head(self, hidden: Tensor) -> Tensor:
        """Returns [..., V] logits of hidden states; padding is never sampled."""
        return self.module.head(hidden).index_fill(-1, torch.tensor([self.text.pad]), NEVER)

    def _stack(self, contexts: Sequence[Array]) -> Tensor:
        """Returns [B, P] ids with padding, -1, on the left."""
        width = max(map(len, contexts), default=0)
        if width > self.context:
            raise ValueError(f"masked: a prompt of {width} tokens: expected at most {self.context} (models.*.context)")
        out = np.full((len(contexts), width), -1, np.int64)
        for row, ids in zip(out, contexts, strict=True):
            row[width - len(ids) :] = ids
        return torch.from_numpy(out)


class Answers:
    """The scores of a batch's answers under a model, each [B, K], 0 at positions without a decision.

    `log_prob`: from left to right. `one_step`: each token with all tokens masked, including itself (the mean-field
    estimate of diffu-GRPO; the prompt is not masked). `draws` [B, K, n]: a bound of the log-probability of the whole
    answer (all `length` tokens, including the end tokens after the first) on each draw of masks, times the weight of
    the draw: L over the number of masked tokens, times each masked token's log-probability given the unmasked ones;
    parts after the last decision are added to it. `elbo`: their sum, on average over draws a lower bound of log p. The
    draws are those of the columns `mask_key`, `mask_level` and `mask_weight` [B, n] (transform `draw_masks`).
    """

    def __init__(self, model: Masked, batch: Batch) -> None:
        self._model, self._batch = model, batch
        self._graded = torch.is_grad_enabled()
        self._contexts: Any = [step.context for step in batch.steps]
        sizes = torch.tensor([len(c) for c in self._contexts], dtype=torch.long)
        self._many = torch.where(batch["mask"].any(1), batch["length"] - sizes, 0)  # [B] tokens of each action
        L, longest = model.length, int(self._many.max()) if len(batch) else 0
        if longest > L:
            raise ValueError(f"masked: an answer of {longest} tokens: expected at most {L} (models.*.length)")
        self._y = self._wide(batch["action"], model.end)
        self._y = torch.where(torch.arange(L) < self._many[:, None], self._y, model.end)
        self._wanted = self._wide(batch["mask"], 0)
        heat = batch.get("temperature")
        self._heat = None if heat is None else self._wide(heat.nan_to_num(1.0), 1.0)

    def log_prob(self) -> Tensor:
        return self._scatter(lambda: self._model.chain(self._contexts, self._y, self._wanted, self._heat))

    def one_step(self) -> Tensor:
        rows, at = self._wanted.nonzero(as_tuple=True)
        seen = torch.full_like(self._y, self._model.blank)
        every, said = torch.arange(len(seen)), self._y[rows, at]
        return self._scatter(lambda: self._model.ask(self._contexts, every, seen, rows, at, said, self._heat))

    def draws(self) -> Tensor:
        batch, L = self._batch, self._model.length
        if "mask_key" not in batch:
            raise KeyError("a bound needs draws of masks, columns mask_key, mask_level and mask_weight: add the "
                           "transform 'draw_masks' to [collect]; of demonstrations, to [transform]")  # fmt: skip
        key, level, weight = (batch[f"mask_{name}"] for name in ("key", "level", "weight"))
        rows, j = self._wanted.any(1)[:, None].expand(key.shape).nonzero(as_tuple=True)
        count = (level[rows, j] * L).long().clamp(max=L - 1) + 1  # for level ~ U(0, 1), each of 1..L equally often
        masked = draw_masks(key[rows, j], count, L)
        which, at = masked.nonzero(as_tuple=True)
        seen, said = self._y[rows].masked_fill(masked, self._model.blank), self._y[rows[which], at]
        last = (self._many - 1)[rows[which]]
        with torch.set_grad_enabled(self._graded and torch.is_grad_enabled()):
            logs = self._model.ask(self._contexts, rows, seen, which, at, said, self._heat)
            logs = logs * (weight[rows, j] * L / count)[which].to(logs.dtype)
            out = logs.new_zeros(len(batch), batch.width, key.shape[1])
            return out.index_put((rows[which], torch.minimum(at, last), j[which]), logs, accumulate=True)

    def elbo(self) -> Tensor:
        return self.draws().sum(-1)

    def at(self, index: Tensor) -> Picked:
        """Returns the decisions `index` [N] of the flattened [B * K]."""
        return Picked(self, index)

    def _wide(self, x: Tensor, fill: float) -> Tensor:
        """Pads or cuts [B, K] to [B, L]."""
        out = x.new_full((len(x), self._model.length), fill)
        k = min(x.shape[1], self._model.length)
        out[:, :k] = x[:, :k]
        return out

    def _scatter(self, compute: Callable[[], Tensor]) -> Tensor:
        """Returns the result of `compute` at the decisions, [M], as [B, K]."""
        with torch.set_grad_enabled(self._graded and torch.is_grad_enabled()):
            logs = compute()
            return logs.new_zeros(self._batch["mask"].shape).index_put(self._wanted.nonzero(as_tuple=True), logs)


@dataclass(frozen=True, eq=False)
class Picked:
    """Some decisions of `whole`; each method returns [N]."""

    whole: Answers
    index: Tensor

    def log_prob(self) -> Tensor:
        return self.whole.log_prob().flatten()[self.index]

    def one_step(self) -> Tensor:
        return self.whole.one_step().flatten()[self.index]

    def elbo(self) -> Tensor:
        return self.whole.elbo().flatten()[self.index]


def draw_masks(key: Tensor, count: Tensor, length: int) -> Tensor:
    """Returns [N, length] bool: `count` [N] uniformly random places of each row, a function of `key` [N]."""
    ranks = CounterNoise(key.numpy().astype(np.uint64)).uniform(0, length).argsort(-1).argsort(-1)
    return ranks < count[:, None]
