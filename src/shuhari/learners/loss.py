"""The loss of a part on one optimiser batch: whole or cut into micro-batches, with the same value and gradient.

Denominators and noise are those of the whole optimiser batch and are attached to its rows (`_w/<term>`, `_row`). For
losses that couple rows, the gradient with respect to detached columns is taken on the whole batch and propagated piece
by piece.

Axes: `B` rows, `K` positions, `P` links.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import lru_cache

import torch
from torch import Tensor, nn

from shuhari.batch import Batch
from shuhari.data import Info, nearest
from shuhari.kernel.reduce import weights
from shuhari.learners.parts import Part, Term
from shuhari.learners.pieces import Meters, Pieces, Work, flatten
from shuhari.needs import packs, remembers
from shuhari.ports import Ctx


class Loss:
    """The weighted loss of one optimiser batch, with the methods that optimisers call (the `Evaluate` port)."""

    def __init__(
        self,
        batch: Batch,
        part: Part,
        name: str,
        ctx: Ctx,
        params: list[nn.Parameter],
        tokens: int | None,
        info_terms: dict[str, list[str]] | None = None,
        place: tuple[str, str] | None = None,
    ) -> None:
        """`info_terms`: info -> the terms that ever gave it, kept by the learner, so that names do not come and go.
        `place`: (learner, part), by which a run's team of processes, if any, finds the part; then they all compute its
        gradient."""
        self.part, self.name, self.ctx, self.params = part, name, ctx, params
        self.info_terms = {} if info_terms is None else info_terms
        scale = {t: ctx.at(term.weight) for t, term in part.terms.items()}
        packed = packs(part.live, ctx.models)
        team = ctx.team if place is not None and ctx.team is not None and ctx.team.takes(batch, params) else None
        self.cut = team is not None or (tokens is not None and batch.tokens(packed) > tokens)
        if self.cut and remembers(part.live, ctx.models):
            raise ValueError(
                f"part {name!r} has a recurrent model, which reads whole episodes, and micro-batches (micro_batch, "
                "several learners) would cut them: set micro_batch = 0, and more minibatches"
            )
        found = {t: _weights(batch, term, plain=not self.cut) for t, term in part.terms.items()}
        cut = {f"_w/{t}": w for t, w in found.items() if w is not None} if self.cut else {}
        self.batch = batch = batch.put({"_row": _places(len(batch)), **cut})
        self.here = Pieces(
            batch, part, name, ctx, params, scale, found, cut=self.cut, tokens=tokens, packed=packed, into=batch
        )
        self.work: Work = self.here if team is None else team.spread(self.here, place)
        self.pieces = self.here.pieces

    # ---------------------------------------------------------------- what optimisers call

    def backward(self) -> Info:
        """Fills .grad of the part's parameters with the gradient of exactly the whole batch; returns mean loss and
        infos."""
        meter = Meters()
        grads = self._gradient(self.part.terms, meter)
        if meter.losses and self.params and all(g is None for g in grads):
            message = "no term has a gradient: what it learns from needs live=True, and no detach()"
            raise ValueError(f"part {self.name!r}: {message}")
        for p, g in zip(self.params, grads, strict=True):
            p.grad = g
        return meter.report(self.info_terms)

    def gradients(self) -> dict[str, Tensor]:
        """Returns term -> its flat gradient over the part's parameters."""
        return {t: flatten(self._gradient((t,), Meters()), self.params) for t in self.part.terms}

    def values(self) -> dict[str, float]:
        """Returns term -> its loss, without gradient."""
        with torch.no_grad():
            seen = self.batch.put(self.work.columns())
            return {t: float(self.here.term(t, seen, Meters())) for t in self.part.terms}

    def hvp(self, term: str, vector: Tensor) -> Tensor:
        """Returns the Hessian of one term times a flat vector, by differentiating the gradient's product with it. A
        term that couples rows takes the whole batch in one forward; otherwise the batch is cut into micro-batches."""
        if term not in self.part.terms:
            raise KeyError(f"part {self.name!r} has no term {term!r}; {nearest(term, self.part.terms)}")
        return (self.here.whole_hvp if self.part.terms[term].couples else self.work.hvp)(term, vector)

    def report(self) -> Info:
        """Returns mean loss and infos of the whole batch, without gradient."""
        meter = Meters()
        with torch.no_grad():
            seen = self.batch.put(self.work.columns())
            for term in self.part.terms:
                self.here.term(term, seen, meter)
        return meter.report(self.info_terms)

    # ---------------------------------------------------------------- how it is computed

    def _gradient(self, terms: Collection[str], meter: Meters) -> list[Tensor | None]:
        """Returns the gradient of the sum of some terms for each parameter, None for one that it does not depend on."""
        coupled = [t for t in terms if self.part.terms[t].couples] if self.cut else []
        return self.work.gradient(terms, self._upstream(coupled, meter) if coupled else None, meter)

    def _upstream(self, coupled: Sequence[str], meter: Meters) -> dict[str, Tensor]:
        """Returns the gradient of the coupled terms with respect to each live column of the whole optimiser batch."""
        leaves = {k: column.requires_grad_() for k, column in self.work.columns().items()}
        seen = self.batch.put(leaves)
        loss = torch.stack([self.here.term(t, seen, meter) for t in coupled]).sum()
        if not loss.requires_grad:  # no row carries their streams
            return {}
        if not leaves:
            message = "it couples rows and asks a model itself: its batch cannot be cut; expected no micro_batch"
            raise ValueError(f"part {self.name!r}, term {coupled[0]!r}: {message}, and one learner")
        grads = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
        return {k: g for k, g in zip(leaves, grads, strict=True) if g is not None}


@lru_cache(16)
def _places(n: int) -> Tensor:
    """Returns 0..n-1 as one cached tensor per size, so that its noise keys are computed once."""
    return torch.arange(n)


def _weights(batch: Batch, term: Term, *, plain: bool) -> Tensor | None:
    """Returns the reduction's weights [B, K]; None for a plain mean (one decision per row, all in the stream)."""
    if term.links:
        return None
    unweighted = batch.stream == term.stream and f"weight/{term.stream}" not in batch
    if plain and unweighted and batch.width == 1 and term.reduce in ("decision", "row") and batch.full:
        return None
    return weights(batch.weight(term.stream), batch, term.reduce)
