"""The micro-batches of an optimiser batch, or of one process's share of it, and what is computed from them.

Each carries the noise and the denominators of the whole optimiser batch with its rows (`_row`, `_w/<term>`), so results
do not depend on how the batch is cut.

Axes: `B` rows of the optimiser batch, `K` positions, `P` links.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from shuhari.batch import Batch
from shuhari.data import Info
from shuhari.kernel.columns import missing_value
from shuhari.kernel.reduce import reduced
from shuhari.learners.parts import Part
from shuhari.needs import evaluate, role_model
from shuhari.ports import Ctx, Model
from shuhari.ports.declares import declares

OWN = frozenset({"rows", "grad_norm", "lr"})  # numbers that a part itself reports


class Stamped(Protocol):
    """A batch, or its stand-in, that collects columns stamped on rows."""

    stamps: dict[str, Tensor]

    def __len__(self) -> int: ...


class Work(Protocol):
    """Computes on an optimiser batch piece by piece: in this process (`Pieces`), or in several."""

    def columns(self) -> dict[str, Tensor]: ...  # the live columns of all rows, without gradient
    def gradient(
        self, terms: Collection[str], upstream: Mapping[str, Tensor] | None, meter: Meters
    ) -> list[Tensor | None]: ...  # of the sum of some terms, for each parameter
    def hvp(self, term: str, vector: Tensor) -> Tensor: ...


class Team(Protocol):
    """Processes that share the updates of a run. `place`: (learner, part)."""

    def takes(self, batch: Batch, params: Sequence[nn.Parameter]) -> bool: ...  # whether it shares this optimiser batch
    def spread(self, pieces: Pieces, place: tuple[str, str]) -> Work: ...
    def settle(self) -> None: ...  # at an update's end: copies weights changed elsewhere into the models
    def close(self) -> None: ...


class Pieces:
    """The micro-batches of `batch`, of at most `tokens` if it is `cut` (None: one piece). `weights`: of the reductions,
    if it is not cut. `scale`: each term's current weight. Columns that pieces stamp go to `into`."""

    def __init__(
        self,
        batch: Batch,
        part: Part,
        name: str,
        ctx: Ctx,
        params: Sequence[nn.Parameter],
        scale: Mapping[str, float],
        weights: Mapping[str, Tensor | None],
        *,
        cut: bool,
        tokens: int | None,
        packed: bool,
        into: Stamped,
    ) -> None:
        self.batch, self.part, self.name, self.ctx, self.params = batch, part, name, ctx, params
        self.scale, self.weights, self.cut, self.into = scale, weights, cut, into
        self.tokens, self.packed = tokens, packed
        self.pieces = batch.split(tokens, packed) if cut else [batch]

    def share(self, rows: Tensor) -> Pieces:
        """Returns the pieces of some rows; requires `cut`."""
        return Pieces(
            self.batch.take(rows), self.part, self.name, self.ctx, self.params, self.scale, self.weights,
            cut=True, tokens=self.tokens, packed=self.packed, into=self.into,
        )  # fmt: skip

    # ---------------------------------------------------------------- the methods of `Work`

    @torch.no_grad()
    def columns(self) -> dict[str, Tensor]:
        """Returns the live columns (recomputed at each optimiser step) of all rows, in the order of the optimiser
        batch, without gradient."""
        scored = [self.live(p) for p in self.pieces]
        order = torch.cat([p["_row"] for p in self.pieces]).argsort()
        return {
            k: torch.cat([s[k] for s in scored])[order]
            for k in scored[0]
        }

    def gradient(
        self, terms: Collection[str], upstream: Mapping[str, Tensor] | None, meter: Meters
    ) -> list[Tensor | None]:
        """Returns the gradient of the sum of some terms for each parameter, None for one that it does not depend on.
        `upstream`: the coupled terms' gradient with respect to live columns [B, ...], propagated in their place."""
        grads: list[Tensor | None] = [None] * len(self.params)
        for piece in self.pieces:
            self.ctx.poll_rollouts()
            loss = self.piece(piece, terms, upstream, meter)
            if loss is not None:
                accumulate(grads, torch.autograd.grad(loss, self.params, allow_unused=True))
        return grads

    def hvp(self, term: str, vector: Tensor) -> Tensor:
        """Returns the Hessian of one term times a flat vector, by differentiating the gradient's product with it."""
        return self._hvp(self.pieces, term, vector)

    def whole_hvp(self, term: str, vector: Tensor) -> Tensor:
        """Returns the same with all rows in one forward, for a term that couples them."""
        return self._hvp([self.batch], term, vector)

    # ---------------------------------------------------------------- how

    def _hvp(self, pieces: Sequence[Batch], term: str, vector: Tensor) -> Tensor:
        out = torch.zeros_like(vector)
        for piece in pieces:
            loss = self.piece(piece, (term,), None, Meters())
            if loss is not None:
                found = torch.autograd.grad(loss, self.params, allow_unused=True, create_graph=True)
                flat = flatten(found, self.params)
                if flat.requires_grad:  # otherwise the loss is linear in the parameters
                    out += flatten(torch.autograd.grad(flat @ vector, self.params, allow_unused=True), self.params)
        return out

    def live(self, piece: Batch) -> dict[str, Tensor]:
        live = self.part.live
        return evaluate(piece, live, self.ctx.models, self.part.trains) if live else {}

    def piece(
        self, piece: Batch, terms: Collection[str], upstream: Mapping[str, Tensor] | None, meter: Meters,
        columns: Mapping[str, Tensor] | None = None,
    ) -> Tensor | None:  # fmt: skip
        """Returns the loss of a piece, None if no row has one. `columns`: its live ones, else computed here."""
        columns = self.live(piece) if columns is None else columns
        seen = piece.put(columns) if columns else piece
        coupled = upstream is not None
        total = None
        for t in terms:
            if coupled and self.part.terms[t].couples:
                continue
            value = self.term(t, seen, meter)
            total = value if total is None else total + value
        for key, g in (upstream or {}).items():
            if columns[key].requires_grad:
                value = (columns[key] * g[piece["_row"]]).sum()
                total = value if total is None else total + value
        if self.cut:
            scatter(piece.stamps, self.into, piece["_row"])
        return total if total is not None and total.requires_grad else None

    def term(self, name: str, batch: Batch, meter: Meters) -> Tensor:
        """Returns one term on one piece: weight x reduction, over the rows that carry its stream only (0 x NaN is NaN).
        Its noise depends on its name, so that no two terms share draws, and every evaluation repeats them."""
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
        with self.ctx.phase(self.part.labels[name]):  # a name in random streams, unchanged if terms are renamed
            found = term.objective(seen, self.ctx)
        loss, info = found if isinstance(found, tuple) and len(found) == 2 else (found, None)
        if not isinstance(loss, Tensor) or not isinstance(info, Mapping):
            kinds = ", ".join(type(x).__name__ for x in (found if isinstance(found, tuple) else (found,)))
            made = type(term.objective).__name__
            raise TypeError(f"term {name!r}: {made} returned {kinds}: expected (loss, info), a Tensor and a mapping")
        if places is not None:
            scatter(seen.stamps, batch, places)
        value = self._reduce(name, loss, w, seen)
        meter.add(self.part.labels[name], value.detach(), info, seen)
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
            if weight is None:
                return loss.mean()
            weight = weight.nan_to_num(1.0)  # links joined from parts, some without weights
            return (loss * weight).sum() / weight.sum().clamp(min=1e-8)
        return loss.mean() if w is None else reduced(loss, w)


class Meters:
    """Collects what the terms of a part report: each loss as a sum over the pieces, each info as a mean."""

    def __init__(self) -> None:
        self.losses: dict[str, Any] = {}  # numbers, or one-element tensors
        self.infos: dict[tuple[str, str], tuple[Any, Any]] = {}  # (term, info) -> (total, count)

    def add(self, term: str, loss: Tensor, info: Info, batch: Batch) -> None:
        self.losses[term] = self.losses[term] + loss if term in self.losses else loss
        for key, x in info.items():
            if not isinstance(x, Tensor | int | float | np.number):
                shown = " ".join(repr(x).split())
                raise TypeError(f"term {term!r}: its info {key!r} is {shown:.60}: expected a number, or a Tensor")
            found, known = _sum_info(x, batch), self.infos.get((term, key))
            self.infos[term, key] = found if known is None else (known[0] + found[0], known[1] + found[1])

    def join(self, losses: Mapping[str, float], infos: Iterable[tuple[str, str, float, float]]) -> None:
        """Adds the results of another process: the losses, and (term, info, total, count)."""
        for term, loss in losses.items():
            self.losses[term] = self.losses.get(term, 0.0) + loss
        for term, key, total, n in infos:
            known = self.infos.get((term, key), (0.0, 0.0))
            self.infos[term, key] = known[0] + total, known[1] + n

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
    """Yields all numbers as floats; one-element tensors are read all at once."""
    tensors = [x for x in numbers if isinstance(x, Tensor)]
    read = iter(torch.stack(tensors).tolist() if tensors else ())
    return (next(read) if isinstance(x, Tensor) else float(x) for x in numbers)


def _sum_info(x: Any, batch: Batch) -> tuple[Any, Any]:
    """Returns (total, count) of an info value: numbers count once per row, tensors are summed over decisions or
    rows."""
    x = x.detach() if isinstance(x, Tensor) and x.requires_grad else x
    if not isinstance(x, Tensor) or x.dim() == 0:
        return x * len(batch), len(batch)
    if x.shape == (len(batch), batch.width) and not batch.full:
        return torch.where(batch["mask"], x, 0.0).sum(), batch["mask"].sum()
    return x.sum(), x.numel()


def accumulate(grads: list[Any], new: tuple[Tensor | None, ...]) -> None:
    for i, g in enumerate(new):
        if g is not None:
            grads[i] = g if grads[i] is None else grads[i] + g


def flatten(grads: Sequence[Tensor | None], params: Sequence[nn.Parameter]) -> Tensor:
    return torch.cat([(torch.zeros_like(p) if g is None else g).flatten() for g, p in zip(grads, params, strict=True)])


def scatter(stamps: Mapping[str, Tensor], batch: Stamped, rows: Tensor) -> None:
    """Copies what a loss stamped on some rows of `batch`; other rows get `missing_value` (NaN, -1)."""
    for name, value in stamps.items():
        if name not in batch.stamps:
            batch.stamps[name] = value.new_full((len(batch), *value.shape[1:]), missing_value(name, value.dtype))
        batch.stamps[name][rows] = value


def trained_parameters(models: Mapping[str, Model], roles: Sequence[str], who: str) -> list[nn.Parameter]:
    """Returns the trainable parameters of `roles`, each once. Raises ValueError, naming `who` trains, if there are
    none."""
    found = {
        id(p): p
        for r in roles
        for p in role_model(models, r).module.parameters()
        if p.requires_grad
    }
    if not found:
        raise ValueError(f"{who} trains {', '.join(roles)}: no parameters to train there")
    return list(found.values())
