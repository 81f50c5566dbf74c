"""Products of experts: policies over the weighted sum of the logits of several roles, for text or discrete actions.

Left out: continuous batching (texts are sampled a batch at a time).

Axes: `B` rows, `K` positions, `n` decisions of a chunk, `D` hidden, `V` vocabulary or alternatives.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from shuhari.batch import Batch
from shuhari.bounds import Count, PositiveShare, ShareBelow1, check
from shuhari.data import EMPTY, Sampling
from shuhari.kernel.registry import register
from shuhari.models.categorical import SUPPORTED, Categorical, sample_rows, score_rows
from shuhari.models.composite import Others, unknown_rows
from shuhari.models.sampling import honour
from shuhari.models.spaces import FORBIDDEN, Choices, check_allowed, spaces_of
from shuhari.models.text.choice import make_stops, mark_kept
from shuhari.models.text.static import generate
from shuhari.models.text.tokens import NEVER, TokenDist
from shuhari.needs import Noise, Trace, Traces
from shuhari.ports import Model, Task


class _Caches:
    """One key-value cache for each language model."""

    def __init__(self, parts: list[Any]) -> None:
        self.parts = parts

    def batch_select_indices(self, index: Tensor) -> None:
        for part in self.parts:
            part.batch_select_indices(index)


class _Joint(nn.Module):
    """Several language models as one, for the sampler: has the methods that it calls (`static.Cached`), and no weights
    of its own. Hidden states are concatenated; `logits` splits them and gives each model's logits to `combine`."""

    def __init__(self, others: Others, combine: Any) -> None:
        super().__init__()
        self._others, self._combine = others, combine

    @property
    def _parts(self) -> list[Any]:
        return [model.module for model in self._others.models]

    @property
    def limit(self) -> int:
        return min(int(part.limit) for part in self._parts)

    @property
    def vocabulary(self) -> int:
        return min(int(part.vocabulary) for part in self._parts)

    @property
    def suppressed(self) -> Tensor:
        suppressed: Tensor = self._parts[0].suppressed
        return suppressed

    @property
    def device(self) -> torch.device:
        device: torch.device = self._parts[0].device
        return device

    def new_cache(self, room: int) -> Any:
        return _Caches([part.new_cache(room) for part in self._parts])

    def hidden(
        self, ids: Tensor, cache: Any = None, mask: Tensor | None = None, positions: Tensor | None = None
    ) -> Tensor:
        caches = [None] * len(self._parts) if cache is None else cache.parts
        made = [p.hidden(ids, c, mask, positions) for p, c in zip(self._parts, caches, strict=True)]
        self._sizes = [x.shape[-1] for x in made]
        return torch.cat(made, -1)

    def logits(self, hidden: Tensor) -> Tensor:
        return self.joined(hidden, self._sizes, [part.logits for part in self._parts])

    def joined(self, hidden: Tensor, sizes: Sequence[int], heads: Sequence[Any]) -> Tensor:
        """Returns [..., V] the combined logits of hidden states [..., sum of sizes]."""
        V = self.vocabulary
        each = [head(x)[..., :V] for head, x in zip(heads, hidden.split(list(sizes), -1), strict=True)]
        combined: Tensor = self._combine(each, NEVER)[0]
        return combined


@register("model", "product")
@dataclass
class Product:
    """A product of experts: softmax of a weighted sum of the logits of several roles, for texts with one tokenizer or
    for discrete actions.

    {large = 1, tuned = 1, small = -1} adds the changes from training a small model to a large one (RAST: Ouyang et al.
    2025, "RAST: Reasoning Activation in LLMs via Small-model Transfer"; proxy tuning: Liu et al. 2024, arXiv
    2401.08565); {base = 1 - w, tuned = w} is guidance by w. Coefficients apply before the temperature.

    With `within`, decisions are restricted to that role's support (as in truncated sampling at its temperature 1),
    renormalised (NLPO: Ramamurthy et al. 2023, arXiv 2210.01241). Scoring evaluates that role again with its current
    weights: if they have changed, a sampled decision may be outside, with probability 0. Vocabularies are cut to the
    smallest. Roles that a part trains get gradients. Raises ValueError if nothing is combined, or for `within` without
    a truncation.
    """

    of: Mapping[str, float] = EMPTY
    """Role -> coefficient of its logits in the sum; a negative one subtracts."""
    within: str = ""
    """Role to whose truncated support decisions are restricted, by `top_p`, `top_k` or `min_p`; empty truncates
    nothing."""
    top_p: PositiveShare = 1.0
    """Probability of the smallest set of alternatives that is kept, as in nucleus sampling; 1 keeps all. Only with
    `within`."""
    top_k: Count = 0
    """Number of most probable alternatives that are kept; 0 keeps all. Only with `within`."""
    min_p: ShareBelow1 = 0.0
    """Lowest probability that is kept, relative to the highest; 0 keeps all. Only with `within`."""
    kind: Literal["exact", "chain", "bound"] = field(default="exact", init=False)
    module: nn.Module = field(init=False, repr=False)
    others: Others = field(init=False, repr=False, default_factory=Others)

    def __post_init__(self) -> None:
        check(self)
        if not self.of:
            raise ValueError("product: of is empty: expected roles and the coefficients of their logits")
        self._support = Sampling(top_p=self.top_p, top_k=self.top_k, min_p=self.min_p)
        if bool(self.within) != self._support.truncates:
            found = f"within = {self.within!r}, top_p = {self.top_p}, top_k = {self.top_k}, min_p = {self.min_p}"
            raise ValueError(f"product: {found}: expected a role and at least one of top_p, top_k and min_p, or none "
                             "of these")  # fmt: skip

    @property
    def roles(self) -> tuple[str, ...]:
        return (*self.of, *([self.within] if self.within else []))

    def bind(self, models: Mapping[str, Model]) -> None:
        self.others.take(self.roles, models)

    def build(self, task: Task) -> None:
        self.module = _Joint(self.others, self._combine)
        self._does = None if task.spaces() is None else spaces_of(task, "product")[1]
        self._start = None if self._does is None else Choices.of(self._does, "product").start

    def _combine(self, each: Sequence[Tensor], least: float) -> tuple[Tensor, Tensor]:
        """Returns (logits, allowed actions) from the logits of each role; forbidden actions get `least`."""
        weights = list(self.of.values())
        total = weights[0] * each[0]
        for c, logits in zip(weights[1:], each[1:], strict=False):
            total = total + c * logits
        never = each[0] <= least / 10
        keep = ~never if not self.within else ~never & mark_kept(each[-1].detach(), self._support)
        return total.masked_fill(~keep, least), keep

    def __call__(self, batch: Batch) -> Any:
        dists = [model(batch) for model in self.others.models]
        if self._does is None:
            return self._of_text(batch, dists)
        logits, keep = self._combine([d.parameters() for d in dists], FORBIDDEN)
        return score_rows(logits.squeeze(1), batch, keep.squeeze(1) if self.within or not bool(keep.all()) else None)

    def sample(self, contexts: Any, sampling: Sampling, *, noise: Noise) -> Traces | list[Trace]:
        """Samples as its member models do: one trace per text, or decisions [B, ...]."""
        joint: Any = self.module
        if self._does is None:
            stopped = make_stops(sampling.stop, self.text.stops(sampling.stop), self.text.decode)
            return generate(joint, contexts, sampling, noise, ends=self.text.ends, pad=self.text.pad, stopped=stopped)
        honour(sampling, tuple(SUPPORTED), "product")
        with torch.no_grad():
            made: Categorical = self(unknown_rows(contexts, self._does))
            allowed = None if made.allowed is None else made.allowed.squeeze(1)
            check_allowed(allowed)
            return sample_rows(made.logits.squeeze(1), sampling, noise, self._start, allowed)

    def _of_text(self, batch: Batch, dists: Sequence[TokenDist]) -> TokenDist:
        mask = batch["mask"].flatten()
        places = mask.nonzero().squeeze(1)
        parts, first = [d.at(places) for d in dists], dists[0]
        sizes, heads = (
            [p.hidden.shape[-1] for p in parts],
            [p.head for p in parts],
        )
        joint: Any = self.module
        return TokenDist(
            hidden=torch.cat([p.hidden for p in parts], -1),
            action=first.action,
            mask=first.mask,
            head=lambda hidden: joint.joined(hidden, sizes, heads),
            vocabulary=joint.vocabulary,
            shape=first.shape,
            temperature=first.temperature,
            support=first.support,
            ban=first.ban,
            suppressed=first.suppressed,
            seen=first.mask,
        )

    # ---------------------------------------------------------------- text, by the first role

    @property
    def text(self) -> Any:
        return self.others.models[0].text

    @property
    def end(self) -> int:
        return int(self.text.end)

    @property
    def limit(self) -> int | None:
        joint: Any = self.module
        return int(joint.limit) if self._does is None else None

    @property
    def encode(self) -> Any:
        """Function from a string or messages to ids [k]; None if it reads no text."""
        return self.text.encode if self._does is None else None

    @property
    def decode(self) -> Any:
        """Function from ids to their text, without a closing end token; None if it writes none."""
        return self.text.decode if self._does is None else None
