"""A Hugging Face language model as hidden states and the heads on them.

If many rows share a prompt, it is run once and its keys and values are shared, also for the gradient. A known layout is
run on packed tokens (`layouts`, `packing`), any other by the model's own forward.

Axes: `B` rows, `U` distinct contexts, `P` tokens of a context, `K` positions of an action, `T` tokens of a row, `b`
rows, `m` requested hidden states, `D` hidden, `V` vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from inspect import signature
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from shuhari.data import Array
from shuhari.models.text.layouts import Lean, Unknown, cap_logits, logit_shaping, tolerance
from shuhari.models.text.packing import pack_rows, pays_to_share
from shuhari.models.text.rows import WIDER
from shuhari.models.text.static import cut_mask, find_distinct, find_positions, make_growing_layer, pad_left


class Trunk(nn.Module):
    """`lm` as a module whose state dict has each tied weight once. `outputs`: of the value head; 0: none. `context`:
    the longest row; 0: the limit of `lm`. `suppressed` [m]: ids that are no decision, the `suppress_tokens` of its
    generation configuration; `logits` still includes them. `lean`: the fast forward (a given one is used unchecked), or
    None, and `why`. `recompute` keeps only the inputs of layers for the gradient, and `dtype` is the type in which
    their linear parts compute; both need the fast forward. `sure`: this very model had a fast forward before, so it is
    not compared again.

    Raises ValueError for an architecture whose logits are not a function of its last hidden state alone, and for
    settings that need a fast forward if there is none.
    """

    def __init__(
        self,
        lm: Any,
        outputs: int = 0,
        context: int = 0,
        recompute: bool = False,
        dtype: torch.dtype = torch.float32,
        lean: Lean | None = None,
        sure: bool = False,
    ) -> None:
        super().__init__()
        config, head = lm.config.get_text_config(), lm.get_output_embeddings()
        self.base = lm.base_model
        if self.base is lm or head is None:
            raise ValueError(f"architecture {config.model_type!r} has no trunk apart from its head: not supported")
        tied = head.weight is lm.get_input_embeddings().weight and getattr(head, "bias", None) is None
        if not tied:
            self.head = head
        self._hidden = (lm, head)  # a tuple: not registered a second time
        self.value = nn.Linear(config.hidden_size, outputs) if outputs else None
        if self.value is not None:
            nn.init.zeros_(self.value.weight)
            nn.init.zeros_(self.value.bias)
        self.stretch, self.cap = logit_shaping(config)
        self.vocabulary = int(head.weight.shape[0])
        self.limit = int(context or getattr(config, "max_position_embeddings", None) or 1 << 30)
        self.suppressed = torch.tensor(getattr(lm.generation_config, "suppress_tokens", None) or [], dtype=torch.long)
        known = signature(type(self.base).forward).parameters
        self._cached = "cache" if "cache" in known else "past_key_values"  # its name in older versions of transformers
        # Rows padded on the right need no mask: no warning, and no check of the ids at each forward.
        self.base.warn_if_padding_and_no_attention_mask = lm.warn_if_padding_and_no_attention_mask = _say_nothing
        self.eval()
        self.lean = lean
        self.why, self.recompute = "", recompute
        self.dtype = None if dtype == torch.float32 else dtype
        if lean is not None:
            return
        if not sure:
            self._check(config.model_type)
        try:
            self.lean = Lean(lm, self.limit, sure=sure)
        except Unknown as unknown:
            self.why = str(unknown)
            self._check_cache(config.model_type)
            if recompute or self.dtype is not None:
                setting = "gradient_checkpointing" if recompute else "dtype"
                raise ValueError(f"{setting} needs a layout that has a lean forward: {unknown}") from None

    @property
    def lm(self) -> Any:
        """The Hugging Face model that owns the weights."""
        return self._hidden[0]

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return self._hidden[1].weight.device

    @property
    def scalar(self) -> Any:
        """Function from hidden [n, D] to value [n], or [n, outputs] for several; None without a head."""
        value = self.value
        return None if value is None else lambda hidden: value(hidden).squeeze(-1)

    def logits(self, hidden: Tensor) -> Tensor:
        """Maps [..., D] -> [..., V] float32."""
        return cap_logits(self._hidden[1](hidden).float(), self.stretch, self.cap)

    @property
    def linear(self) -> tuple[Tensor, Tensor | None] | None:
        """weight [V, D] and bias of the head, if the logits are linear, up to `stretch`."""
        head = self._hidden[1]
        return (head.weight, head.bias) if type(head) is nn.Linear and self.cap is None else None

    def hidden(
        self, ids: Tensor, cache: Any = None, mask: Tensor | None = None, positions: Tensor | None = None
    ) -> Tensor:
        """Maps [b, T] ids -> [b, T, D]. Without a mask rows may be padded on the right: causal attention looks back
        only."""
        more = {"attention_mask": mask, "position_ids": positions, self._cached: cache}
        out = self.base(input_ids=ids, use_cache=cache is not None, **more)
        return out.last_hidden_state

    def new_cache(self, room: int = 0) -> Any:
        """Returns a cache of keys and values for new rows, `room` tokens each; 0: a cache that gradients run
        through."""
        from transformers.cache_utils import DynamicCache, DynamicLayer

        cache = DynamicCache(config=self.lm.config)
        for i, layer in enumerate(cache.layers):
            if room and type(layer) is DynamicLayer:
                cache.layers[i] = make_growing_layer()()
                cache.layers[i].room = room
        return cache

    def before(self, contexts: Sequence[Array], action: Tensor, taken: Array, seen: Tensor, pad: int) -> Tensor:
        """Returns [m, D] the hidden state before each position of action [B, K] that is `seen` [B, K], row by row. A
        row has `taken` [B] tokens of action; for 0 (a closing row) the context is cut to what the model reads. Raises
        ValueError for another row longer than the model reads, or one without context."""
        lengths = np.fromiter(map(len, contexts), np.int64, len(contexts))
        lengths = np.where(taken > 0, lengths, lengths.clip(max=self.limit))
        whole = int((lengths + taken).max(initial=0))
        if whole > self.limit or int(lengths.min(initial=1)) < 1:
            few = f"expected at most {self.limit}, of them 1 of context at least"
            raise ValueError(f"a row of {whole} tokens: {few} ({WIDER})")
        some = seen.any(1)
        if not bool(some.any()):
            return torch.zeros(0, self._hidden[1].weight.shape[1], device=self.device)
        rows = some.nonzero().squeeze(1)
        if len(rows) < len(contexts):
            contexts, action, seen = [contexts[r] for r in rows.tolist()], action[rows], seen[rows]
            lengths, taken = lengths[rows.numpy()], taken[rows.numpy()]
        contexts = [c[:n] for c, n in zip(contexts, lengths.tolist(), strict=True)]
        last = seen.shape[1] - 1 - seen.flip(1).int().argmax(1)  # there are no decisions after it
        action, seen = action[:, : int(last.max()) + 1], seen[:, : int(last.max()) + 1]
        unique, index = find_distinct(contexts)
        if self.lean is not None:
            p = pack_rows(unique, index.numpy(), action.numpy(), last.numpy(), seen.numpy(), self.device)
            attend = p.attention(self.lean.scale)
            return self.lean.hidden(self.lean.live(self.dtype), p.ids, p.positions, attend, p.keep, self.recompute)
        action = action.to(self.device)
        if pays_to_share(unique, index.numpy(), last.numpy()) and self._can_share():
            hidden = self._shared(unique, index.to(self.device), action, pad)
        else:
            hidden = self._plain(contexts, lengths, action, int((lengths + last.numpy()).max()), pad)
        return hidden[seen.to(self.device)]

    def _plain(self, contexts: Sequence[Array], lengths: Array, action: Tensor, width: int, pad: int) -> Tensor:
        """Runs context and action in one row, padded on the right to `width`, so that no mask is needed."""
        (B, K), longest = action.shape, int(lengths.max())
        ids = np.full((B, longest), pad, np.int64)
        ids[np.arange(longest) < lengths[:, None]] = np.concatenate(contexts)
        prompt = torch.from_numpy(ids).to(action.device)
        if int(lengths.min()) == longest:
            return self.hidden(torch.cat([prompt, action[:, :-1]], 1))[:, longest - 1 :]
        row = torch.cat([prompt, action.new_full((B, K - 1), pad)], 1)
        at = torch.from_numpy(lengths[:, None] + np.arange(K)).to(
            action.device
        )  # the place of each token of the action
        hidden = self.hidden(row.scatter_(1, at[:, :-1], action[:, :-1])[:, :width])
        return hidden.gather(1, (at - 1).clamp(max=width - 1)[..., None].expand(-1, -1, hidden.shape[-1]))

    def _shared(self, unique: Sequence[Array], index: Tensor, action: Tensor, pad: int) -> Tensor:
        """Runs each context once; rows continue from its keys and values, through which their gradients are summed."""
        K, cache = action.shape[1], self.new_cache()
        prompt, seen = pad_left(unique, pad, K - 1, action.device)
        P = prompt.shape[1]
        first = self.hidden(prompt, cache, cut_mask(seen, P), find_positions(seen, P))
        last = first[:, -1][index][:, None]
        if K == 1:
            return last
        cache.batch_select_indices(index)
        positions = None
        if seen is not None:
            positions = seen[:, :P].sum(1)[index][:, None] + torch.arange(K - 1, device=action.device)
            positions = positions.clamp(max=self.limit - 1)  # padding
            seen = seen[index]
        return torch.cat([last, self.hidden(action[:, :-1], cache, seen, positions)], 1)

    def _can_share(self) -> bool:
        from transformers.cache_utils import DynamicLayer

        return all(type(layer) is DynamicLayer for layer in self.new_cache().layers)

    @torch.no_grad()
    def _check(self, name: str) -> None:
        ids, off = torch.arange(3)[None] % self.vocabulary, tolerance(self.lm.dtype)
        hidden = self.hidden(ids)
        want = self.lm(input_ids=ids, use_cache=False).logits.float()
        if not torch.allclose(want, self.logits(hidden), atol=off, rtol=off):
            raise ValueError(describe_wreck(self.lm) or f"architecture {name!r} makes its logits in a way of its own: "
                             "not supported")  # fmt: skip
        if not torch.allclose(self.hidden(ids[:, :2]), hidden[:, :2], atol=off, rtol=off):
            raise ValueError(f"architecture {name!r} lets a token look ahead (is_decoder is false?): not supported")

    @torch.no_grad()
    def _check_cache(self, name: str) -> None:
        """Checks that rows continue from a left-padded cache as if alone. A recurrent state may not let rows leave."""
        ids, off = torch.arange(3)[None] % self.vocabulary, tolerance(self.lm.dtype)
        try:
            cache, seen = self.new_cache(4), torch.tensor([[1, 1, 1, 1], [0, 1, 1, 1]])
            prompt = torch.cat([ids, ids.roll(1, 1)])
            self.hidden(prompt, cache, cut_mask(seen, 3), find_positions(seen, 3))
            cache.batch_select_indices(torch.tensor([1]))
            got = self.hidden(ids[:, 2:], cache, seen[1:], torch.tensor([[2]]))
        except (AttributeError, IndexError, NotImplementedError, RuntimeError, TypeError, ValueError) as error:
            raise ValueError(f"architecture {name!r} has no cache from which rows can leave: not supported") from error
        if not torch.allclose(got[0, -1], self.hidden(ids)[0, -1], atol=off, rtol=off):
            raise ValueError(f"architecture {name!r} reads rows that are padded on the left otherwise: not supported")


def describe_wreck(lm: nn.Module) -> str:
    """Returns which weights of a model are not finite, as the message of an error; "" if all are."""
    bad = [name for name, w in lm.named_parameters() if not bool(w.detach().isfinite().all())]
    more = f" and {len(bad) - 1} more" if len(bad) > 1 else ""
    return f"the weights are damaged: {bad[0]}{more} has NaN or Inf: copy or export the model again" if bad else ""


def _say_nothing(*_: Any, **__: Any) -> None:
    """Replaces a warning function."""
