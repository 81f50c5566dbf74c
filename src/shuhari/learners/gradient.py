"""The gradient learner: parts of weighted terms, stepped in order on the same batch.

A part is what one optimiser owns. Live needs are recomputed at each optimiser step, one forward a role; denominators
are those of the whole optimiser batch, so that cutting it into micro-batches changes nothing, also for losses that
couple rows: their gradient with respect to detached columns is taken on the whole and pushed back piece by piece.

Axes: `B` rows, `K` positions, `P` links.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from shuhari.batch import Batch
from shuhari.data import EMPTY, Info, Number, nearest
from shuhari.measure import Meter
from shuhari.needs import Need, evaluate, gather, role_model
from shuhari.ports import Buffer, Ctx, Model, Objective, Optimiser, Transform, Updated
from shuhari.reduce import reduced, units, weights
from shuhari.registry import register


@dataclass
class Term:
    """One loss of a part: `weight` times the reduction `reduce` of `objective` over the rows of `stream`."""

    objective: Objective
    stream: str = "rl"
    weight: Number = 1.0
    reduce: str = "decision"


@dataclass
class Part:
    """What one optimiser owns: the roles it trains, its terms, and when it steps.

    `minibatches` per epoch keep a `unit` whole (`row`, `group`, `episode`; auto: `group` where a term couples the
    batch). The part acts on every `every`-th update, from update `after` on.
    """

    trains: tuple[str, ...]
    terms: Mapping[str, Term]
    optimiser: Optimiser
    epochs: int = 1
    minibatches: int = 1
    unit: str = "auto"
    every: int = 1
    after: int = 0

    @property
    def needs(self) -> list[Need]:
        return list(dict.fromkeys(n for t in self.terms.values() for n in t.objective.needs))

    @property
    def couples(self) -> bool:
        return any(t.objective.couples == "batch" for t in self.terms.values())


@register("learner", "gradient")
@dataclass
class GradientLearner:
    """Draws from `buffer`, applies `transforms`, steps `parts`. `tokens`: largest padded micro-batch (None: whole)."""

    buffer: Buffer
    parts: Mapping[str, Part]
    transforms: Mapping[str, Transform] = EMPTY
    tokens: int | None = None
    name: str = "main"
    state: dict[str, Any] = field(init=False, default_factory=lambda: {"updates": 0})

    def bind(self, models: Mapping[str, Model]) -> None:
        """Give each optimiser its parameters. Raises KeyError for a role that the run lacks."""
        self._params: dict[str, list[nn.Parameter]] = {}
        for name, part in self.parts.items():
            found = {
                id(p): p for r in part.trains for p in role_model(models, r).module.parameters() if p.requires_grad
            }
            if not found:
                raise ValueError(f"part {name!r} trains {', '.join(part.trains)}: no parameters to train there")
            self._params[name] = list(found.values())
            part.optimiser.bind(self._params[name])

    @property
    def needs(self) -> list[Need]:
        """What the terms want scored before the update."""
        return [n for p in self.parts.values() for n in p.needs if not n.live]

    def update(self, batch: Batch, ctx: Ctx) -> Updated:
        """One pass of every part that is due over one drawn batch."""
        k = self.state["updates"]
        meter = Meter()
        for name, part in self.parts.items():
            if k < part.after or (k - part.after) % part.every:
                continue
            batch = gather(batch, part.needs, ctx.models, self.tokens)
            carried = _carried(batch, part)
            rows = int(carried.sum())
            meter.add(f"{name}/rows", float(rows))
            if not rows:  # every weight is 0: reported, not an error
                continue
            used = batch
            if rows < len(batch) or part.minibatches > 1:
                used = batch.put({"_used": torch.arange(len(batch))})
                used = used if rows == len(batch) else used.take(carried)
            for epoch in range(part.epochs):
                for i, mini in enumerate(_minibatches(used, part, ctx, self.name, name, k, epoch)):
                    ctx.salt = (self.name, k, name, epoch, i)
                    loss = Loss(mini, part, name, ctx, self._params[name], self.tokens)
                    try:
                        meter.update(part.optimiser.step(loss, ctx.count), name)
                    except FloatingPointError as error:
                        raise FloatingPointError(f"step {ctx.step}, part {name!r}: {error}") from error
                    ctx.charge("updates", 1)
                    if mini is not batch:
                        _scatter(mini.stamps, batch, mini["_used"])
        self.state["updates"] = k + 1
        return Updated(self.name, meter.means(), batch["id"], dict(batch.stamps))


def _carried(batch: Batch, part: Part) -> Tensor:
    """[B] rows that carry a stream of the part."""
    streams = {t.stream for t in part.terms.values()}
    if streams == {batch.stream} and f"weight/{batch.stream}" not in batch:
        return batch.decides
    return torch.stack([(batch.weight(s) != 0).any(1) for s in streams]).any(0) & batch.decides


def _minibatches(batch: Batch, part: Part, ctx: Ctx, *key: object) -> Iterator[Batch]:
    if part.minibatches == 1:
        yield batch
        return
    unit = ("group" if part.couples else "row") if part.unit == "auto" else part.unit
    rng = ctx.rng("minibatch", *key)
    if unit == "row":
        for rows in torch.randperm(len(batch), generator=rng).chunk(part.minibatches):
            yield batch.take(rows)
        return
    inverse = units(batch, unit)
    n = int(inverse.max()) + 1
    place = torch.empty(n, dtype=torch.long)
    place[torch.randperm(n, generator=rng)] = torch.arange(n) * part.minibatches // n
    for m in range(min(part.minibatches, n)):
        yield batch.take((place[inverse] == m).nonzero().squeeze(1))


def _scatter(stamps: Mapping[str, Tensor], batch: Batch, rows: Tensor) -> None:
    """Hand on what a loss stamped on some rows of `batch`: NaN on the rows that it did not see."""
    for name, value in stamps.items():
        whole = batch.stamps.setdefault(name, value.new_full((len(batch), *value.shape[1:]), float("nan")))
        whole[rows] = value


class Loss:
    """The weighted loss of one optimiser batch, as an optimiser may ask for it (the `Evaluate` port)."""

    def __init__(
        self, batch: Batch, part: Part, name: str, ctx: Ctx, params: list[nn.Parameter], tokens: int | None
    ) -> None:
        self.part, self.name, self.ctx, self.params = part, name, ctx, params
        self.live = [n for n in part.needs if n.live]
        self.scale = {t: ctx.at(term.weight) for t, term in part.terms.items()}
        self.cut = tokens is not None and len(batch) * int(batch["length"].max()) > tokens
        self.weights = {t: _weights(batch, term, plain=not self.cut) for t, term in part.terms.items()}
        if self.cut:
            columns = {f"_w/{t}": w for t, w in self.weights.items() if w is not None}
            batch = batch.put({"_row": torch.arange(len(batch)), **columns})
        self.batch = batch
        self.pieces = batch.split(tokens) if self.cut else [batch]

    # ---------------------------------------------------------------- what optimisers call

    def backward(self) -> Info:
        """Fill .grad of the part's parameters; mean loss and infos, with a gradient of exactly the whole batch."""
        meter, grads = Meter(), [None] * len(self.params)
        upstream = self._upstream(meter) if self.cut and self.part.couples else None
        for piece in self.pieces:
            loss = self._piece(piece, upstream, meter)
            if loss is not None:
                _accumulate(grads, torch.autograd.grad(loss, self.params, allow_unused=True))
        for p, g in zip(self.params, grads, strict=True):
            p.grad = g
        return meter.means()

    def gradients(self) -> dict[str, Tensor]:
        """term -> its flat gradient over the part's parameters, terms apart."""
        return {t: _flat(self._gradient(t), self.params) for t in self.part.terms}

    def values(self) -> dict[str, float]:
        """term -> its loss, without gradient."""
        with torch.no_grad():
            return {t: float(self._whole(t)) for t in self.part.terms}

    def hvp(self, term: str, vector: Tensor) -> Tensor:
        """The Hessian of one term times a flat vector, by differentiating the gradient's product with it."""
        if term not in self.part.terms:
            raise KeyError(f"part {self.name!r} has no term {term!r}; {nearest(term, self.part.terms)}")
        flat = _flat(self._gradient(term, create_graph=True), self.params)
        return _flat(torch.autograd.grad(flat @ vector, self.params, allow_unused=True), self.params)

    # ---------------------------------------------------------------- how it is computed

    def _whole(self, term: str) -> Tensor:
        columns = self._live(self.batch)
        return self._term(term, self.batch.put(columns) if columns else self.batch, Meter())

    def _gradient(self, term: str, create_graph: bool = False) -> tuple[Tensor | None, ...]:
        return torch.autograd.grad(self._whole(term), self.params, allow_unused=True, create_graph=create_graph)

    def _live(self, piece: Batch) -> dict[str, Tensor]:
        return evaluate(piece, self.live, self.ctx.models, self.part.trains) if self.live else {}

    def _piece(self, piece: Batch, upstream: dict[str, Tensor] | None, meter: Meter) -> Tensor | None:
        columns = self._live(piece)
        seen = piece.put(columns) if columns else piece
        coupled = upstream is not None
        total = None
        for t, term in self.part.terms.items():
            if coupled and term.objective.couples == "batch":
                continue
            value = self._term(t, seen, meter)
            total = value if total is None else total + value
        for key, g in (upstream or {}).items():
            if columns[key].requires_grad:
                value = (columns[key] * g[piece["_row"]]).sum()
                total = value if total is None else total + value
        if self.cut:
            _scatter(piece.stamps, self.batch, piece["_row"])
        return total if total is not None and total.requires_grad else None

    def _upstream(self, meter: Meter) -> dict[str, Tensor]:
        """The gradient of the coupled terms with respect to each live column of the whole optimiser batch."""
        with torch.no_grad():
            scored = [self._live(p) for p in self.pieces]
        order = torch.cat([p["_row"] for p in self.pieces]).argsort()
        leaves = {k: torch.cat([s[k] for s in scored])[order].requires_grad_() for k in scored[0]}
        seen = self.batch.put(leaves)
        coupled = [t for t, term in self.part.terms.items() if term.objective.couples == "batch"]
        loss = torch.stack([self._term(t, seen, meter) for t in coupled]).sum()
        grads = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
        return {k: g for k, g in zip(leaves, grads, strict=True) if g is not None}

    def _term(self, name: str, batch: Batch, meter: Meter) -> Tensor:
        """One term on one piece: weight x reduction, over the rows that carry its stream only (0 x NaN is NaN)."""
        term, scale = self.part.terms[name], self.scale[name]
        w = batch.get(f"_w/{name}") if self.cut else self.weights[name]
        seen, rows = batch, batch["mask"]
        if w is not None and not getattr(term.objective, "links", None):
            rows = (w != 0).any(1)
            if not bool(rows.all()):
                if not bool(rows.any()):
                    return torch.zeros(())
                seen, w = batch.take(rows), w[rows]
        loss, info = term.objective(seen, self.ctx)
        if seen is not batch:
            _scatter(seen.stamps, batch, rows.nonzero().squeeze(1))
        value = self._reduced(name, loss, w, seen)
        meter.add(name, value.detach(), len(batch) / len(self.batch))
        for key, x in info.items():
            meter.add(key, *_summed(x, seen))
        return value if scale == 1.0 else scale * value

    def _reduced(self, name: str, loss: Tensor, w: Tensor | None, batch: Batch) -> Tensor:
        objective = self.part.terms[name].objective
        if loss.dim() == 0:
            if objective.couples != "batch":
                raise ValueError(f"term {name!r} returned one number but couples rows singly: return a loss a row")
            return loss
        links = getattr(objective, "links", None)
        if links:
            if not len(loss):  # no links: the mean of nothing is NaN
                return loss.sum()
            weight = batch.links[links][1].get("weight")
            return loss.mean() if weight is None else (loss * weight).sum() / weight.sum().clamp(min=1e-8)
        return loss.mean() if w is None else reduced(loss, w)


def _weights(batch: Batch, term: Term, *, plain: bool) -> Tensor | None:
    """[B, K] of the reduction; None where it is a plain mean (one decision a row, all of them in the stream)."""
    if getattr(term.objective, "links", None):
        return None
    mask = batch["mask"]
    unweighted = batch.stream == term.stream and f"weight/{term.stream}" not in batch
    if plain and unweighted and mask.shape[1] == 1 and term.reduce in ("decision", "row") and bool(mask.all()):
        return None
    return weights(batch.weight(term.stream), batch, term.reduce)


def _summed(x: Any, batch: Batch) -> tuple[Any, Any]:
    """(total, count) of an info value: numbers count once a row, tensors are summed over decisions or rows."""
    if not isinstance(x, Tensor) or x.dim() == 0:
        return (x.detach() if isinstance(x, Tensor) else x) * len(batch), len(batch)
    x = x.detach()
    if x.dim() == 2 and x.shape == batch["mask"].shape:
        return torch.where(batch["mask"], x, 0.0).sum(), batch["mask"].sum()
    return x.sum(), x.numel()


def _accumulate(grads: list[Any], new: tuple[Tensor | None, ...]) -> None:
    for i, g in enumerate(new):
        if g is not None:
            grads[i] = g if grads[i] is None else grads[i] + g


def _flat(grads: tuple[Tensor | None, ...], params: list[nn.Parameter]) -> Tensor:
    return torch.cat([(torch.zeros_like(p) if g is None else g).flatten() for g, p in zip(grads, params, strict=True)])
