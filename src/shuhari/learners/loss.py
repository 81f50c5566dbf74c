"""The loss of a part on one optimiser batch: whole or cut into micro-batches, the same number and gradient.

Denominators and noise are those of the whole optimiser batch and travel with its rows (`_w/<term>`, `_row`). Of losses
that couple rows the gradient with respect to detached columns is taken on the whole and pushed back piece by piece.

Axes: `B` rows, `K` positions, `P` links.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from shuhari.batch import Batch
from shuhari.columns import missing_value
from shuhari.data import Info, nearest
from shuhari.learners.parts import Part, Term
from shuhari.needs import evaluate, packs
from shuhari.ports import Ctx
from shuhari.ports.declares import declares
from shuhari.reduce import reduced, weights

OWN = frozenset({"rows", "grad_norm", "lr"})  # what a part reports of itself


class Loss:
    """The weighted loss of one optimiser batch, as an optimiser may ask for it (the `Evaluate` port)."""

    def __init__(
        self,
        batch: Batch,
        part: Part,
        name: str,
        ctx: Ctx,
        params: list[nn.Parameter],
        tokens: int | None,
        info_terms: dict[str, list[str]] | None = None,
    ) -> None:
        """`info_terms`: info -> the terms that ever gave it, kept by the learner, so that names do not come and go."""
        self.part, self.name, self.ctx, self.params = part, name, ctx, params
        self.info_terms = {} if info_terms is None else info_terms
        self.scale = {t: ctx.at(term.weight) for t, term in part.terms.items()}
        packed = packs(self.part.live, ctx.models)
        self.cut = tokens is not None and batch.tokens(packed) > tokens
        self.weights = {t: _weights(batch, term, plain=not self.cut) for t, term in part.terms.items()}
        cut = {f"_w/{t}": w for t, w in self.weights.items() if w is not None} if self.cut else {}
        self.batch = batch = batch.put({"_row": _places(len(batch)), **cut})
        self.pieces = batch.split(tokens, packed) if self.cut else [batch]

    # ---------------------------------------------------------------- what optimisers call

    def backward(self) -> Info:
        """Fill .grad of the part's parameters; mean loss and infos, with a gradient of exactly the whole batch."""
        meter = Meters()
        grads = self._gradient(self.part.terms, meter)
        if meter.losses and self.params and all(g is None for g in grads):
            message = "no term has a gradient: what it learns from needs live=True, and no detach()"
            raise ValueError(f"part {self.name!r}: {message}")
        for p, g in zip(self.params, grads, strict=True):
            p.grad = g
        return meter.report(self.info_terms)

    def gradients(self) -> dict[str, Tensor]:
        """term -> its flat gradient over the part's parameters, terms apart."""
        return {t: _flatten(self._gradient((t,), Meters()), self.params) for t in self.part.terms}

    def values(self) -> dict[str, float]:
        """term -> its loss, without gradient."""
        with torch.no_grad():
            seen = self.batch.put(self._columns())
            return {t: float(self._term(t, seen, Meters())) for t in self.part.terms}

    def hvp(self, term: str, vector: Tensor) -> Tensor:
        """The Hessian of one term times a flat vector, by differentiating the gradient's product with it. A term that
        couples rows takes the whole batch in one forward; all else here is cut into micro-batches."""
        if term not in self.part.terms:
            raise KeyError(f"part {self.name!r} has no term {term!r}; {nearest(term, self.part.terms)}")
        out = torch.zeros_like(vector)
        for piece in [self.batch] if self.part.terms[term].couples else self.pieces:
            loss = self._piece(piece, (term,), None, Meters())
            if loss is not None:
                found = torch.autograd.grad(loss, self.params, allow_unused=True, create_graph=True)
                flat = _flatten(found, self.params)
                if flat.requires_grad:  # else the loss is linear in the parameters
                    out += _flatten(torch.autograd.grad(flat @ vector, self.params, allow_unused=True), self.params)
        return out

    def report(self) -> Info:
        """Mean loss and infos of the whole batch, without gradient."""
        meter = Meters()
        with torch.no_grad():
            seen = self.batch.put(self._columns())
            for term in self.part.terms:
                self._term(term, seen, meter)
        return meter.report(self.info_terms)

    # ---------------------------------------------------------------- how it is computed

    def _gradient(self, terms: Collection[str], meter: Meters) -> list[Tensor | None]:
        """The gradient of the sum of some terms with respect to each parameter, None where none reaches it."""
        grads: list[Tensor | None] = [None] * len(self.params)
        coupled = [t for t in terms if self.part.terms[t].couples] if self.cut else []
        upstream = self._upstream(coupled, meter) if coupled else None
        for piece in self.pieces:
            self.ctx.poll_rollouts()
            loss = self._piece(piece, terms, upstream, meter)
            if loss is not None:
                _accumulate(grads, torch.autograd.grad(loss, self.params, allow_unused=True))
        return grads

    def _live(self, piece: Batch) -> dict[str, Tensor]:
        live = self.part.live
        return evaluate(piece, live, self.ctx.models, self.part.trains) if live else {}

    def _piece(
        self, piece: Batch, terms: Collection[str], upstream: dict[str, Tensor] | None, meter: Meters
    ) -> Tensor | None:
        columns = self._live(piece)
        seen = piece.put(columns) if columns else piece
        coupled = upstream is not None
        total = None
        for t in terms:
            if coupled and self.part.terms[t].couples:
                continue
            value = self._term(t, seen, meter)
            total = value if total is None else total + value
        for key, g in (upstream or {}).items():
            if columns[key].requires_grad:
                value = (columns[key] * g[piece["_row"]]).sum()
                total = value if total is None else total + value
        if self.cut:
            scatter(piece.stamps, self.batch, piece["_row"])
        return total if total is not None and total.requires_grad else None

    @torch.no_grad()
    def _columns(self) -> dict[str, Tensor]:
        """The live columns of the whole optimiser batch, scored piece by piece, without gradient."""
        scored = [self._live(p) for p in self.pieces]
        order = torch.cat([p["_row"] for p in self.pieces]).argsort()
        return {k: torch.cat([s[k] for s in scored])[order] for k in scored[0]}

    def _upstream(self, coupled: Sequence[str], meter: Meters) -> dict[str, Tensor]:
        """The gradient of the coupled terms with respect to each live column of the whole optimiser batch."""
        leaves = {k: column.requires_grad_() for k, column in self._columns().items()}
        seen = self.batch.put(leaves)
        loss = torch.stack([self._term(t, seen, meter) for t in coupled]).sum()
        if not loss.requires_grad:  # no row carries their streams
            return {}
        grads = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
        return {k: g for k, g in zip(leaves, grads, strict=True) if g is not None}

    def _term(self, name: str, batch: Batch, meter: Meters) -> Tensor:
        """One term on one piece: weight x reduction, over the rows that carry its stream only (0 x NaN is NaN). Its
        noise depends on its name, so that no two terms draw the same, and no evaluation of it draws anew."""
        term, scale = self.part.terms[name], self.scale[name]
        w = batch.get(f"_w/{name}") if self.cut else self.weights[name]
        seen, places = batch, None
        if w is not None and not term.links:
            rows = (w != 0).any(1)
            if not bool(rows.all()):
                if not bool(rows.any()):
                    return torch.zeros(())
                places = rows.nonzero().squeeze(1)
                seen, w = batch.take(places), w[places]
        with self.ctx.phase(name):
            found = term.objective(seen, self.ctx)
        loss, info = found if isinstance(found, tuple) and len(found) == 2 else (found, None)
        if not isinstance(loss, Tensor) or not isinstance(info, Mapping):
            kinds = ", ".join(type(x).__name__ for x in (found if isinstance(found, tuple) else (found,)))
            made = type(term.objective).__name__
            raise TypeError(f"term {name!r}: {made} returned {kinds}: expected (loss, info), a Tensor and a mapping")
        if places is not None:
            scatter(seen.stamps, batch, places)
        value = self._reduce(name, loss, w, seen)
        meter.add(name, value.detach(), info, seen)
        return value if scale == 1.0 else scale * value

    def _reduce(self, name: str, loss: Tensor, w: Tensor | None, batch: Batch) -> Tensor:
        term = self.part.terms[name]
        if loss.dim() and not term.links and loss.shape not in ((len(batch),), (len(batch), batch.width)):
            made, shape = type(term.objective).__name__, tuple(loss.shape)
            expected = f"expected ({len(batch)}, {batch.width}), or a number a row"
            read = [f"{c} {tuple(batch[c].shape)}" for c in declares(term.objective).reads if c in batch]
            seen = f"; it reads {', '.join(read)}" if read else ""
            raise ValueError(f"part {self.name!r}, term {name!r}: {made} returned a loss of {shape}: {expected}{seen}")
        if loss.dim() == 0:
            if not term.couples:
                raise ValueError(f"term {name!r} returned one number but couples rows singly: return a loss a row")
            return loss
        if links := term.links:
            if not len(loss):  # no links: the mean of nothing is NaN
                return loss.sum()
            weight = batch.links[links][1].get("weight")
            return loss.mean() if weight is None else (loss * weight).sum() / weight.sum().clamp(min=1e-8)
        return loss.mean() if w is None else reduced(loss, w)


@lru_cache(16)
def _places(n: int) -> Tensor:
    """One tensor a size, so that the keys of its noise are worked out once."""
    return torch.arange(n)


def _weights(batch: Batch, term: Term, *, plain: bool) -> Tensor | None:
    """[B, K] of the reduction; None where it is a plain mean (one decision a row, all of them in the stream)."""
    if term.links:
        return None
    unweighted = batch.stream == term.stream and f"weight/{term.stream}" not in batch
    if plain and unweighted and batch.width == 1 and term.reduce in ("decision", "row") and batch.full:
        return None
    return weights(batch.weight(term.stream), batch, term.reduce)


class Meters:
    """What the terms of a part report: each loss, the sum over the pieces; each info, a mean."""

    def __init__(self) -> None:
        self.losses: dict[str, Tensor] = {}
        self.infos: dict[tuple[str, str], tuple[Any, Any]] = {}  # (term, info) -> (total, count)

    def add(self, term: str, loss: Tensor, info: Info, batch: Batch) -> None:
        self.losses[term] = self.losses[term] + loss if term in self.losses else loss
        for key, x in info.items():
            if not isinstance(x, Tensor | int | float | np.number):
                shown = " ".join(repr(x).split())
                raise TypeError(f"term {term!r}: its info {key!r} is {shown:.60}: expected a number, or a Tensor")
            found, known = _sum_info(x, batch), self.infos.get((term, key))
            self.infos[term, key] = found if known is None else (known[0] + found[0], known[1] + found[1])

    def report(self, info_terms: dict[str, list[str]]) -> Info:
        for term, key in self.infos:
            if term not in (of := info_terms.setdefault(key, [])):
                of.append(term)
        numbers = _read_floats([*self.losses.values(), *chain(*self.infos.values())])
        out = {f"loss/{t}": next(numbers) for t in self.losses}
        for term, key in self.infos:
            total, n = next(numbers), next(numbers)
            alone = len(info_terms[key]) == 1 and key not in OWN
            out[key if alone else f"{term}/{key}"] = total / n if n else float("nan")
        return out


def _read_floats(numbers: list[Any]) -> Iterator[float]:
    """Tensors of one number among them are read all at once."""
    tensors = [x for x in numbers if isinstance(x, Tensor)]
    read = iter(torch.stack(tensors).tolist() if tensors else ())
    return (next(read) if isinstance(x, Tensor) else float(x) for x in numbers)


def _sum_info(x: Any, batch: Batch) -> tuple[Any, Any]:
    """(total, count) of an info value: numbers count once a row, tensors are summed over decisions or rows."""
    x = x.detach() if isinstance(x, Tensor) and x.requires_grad else x
    if not isinstance(x, Tensor) or x.dim() == 0:
        return x * len(batch), len(batch)
    if x.shape == (len(batch), batch.width) and not batch.full:
        return torch.where(batch["mask"], x, 0.0).sum(), batch["mask"].sum()
    return x.sum(), x.numel()


def _accumulate(grads: list[Any], new: tuple[Tensor | None, ...]) -> None:
    for i, g in enumerate(new):
        if g is not None:
            grads[i] = g if grads[i] is None else grads[i] + g


def _flatten(grads: Sequence[Tensor | None], params: list[nn.Parameter]) -> Tensor:
    return torch.cat([(torch.zeros_like(p) if g is None else g).flatten() for g, p in zip(grads, params, strict=True)])


def scatter(stamps: Mapping[str, Tensor], batch: Batch, rows: Tensor) -> None:
    """Hand on what a loss stamped on some rows of `batch`; rows that it did not see: `missing_value` (NaN, -1)."""
    for name, value in stamps.items():
        if name not in batch.stamps:
            batch.stamps[name] = value.new_full((len(batch), *value.shape[1:]), missing_value(name, value.dtype))
        batch.stamps[name][rows] = value
