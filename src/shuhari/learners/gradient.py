"""The gradient learner: parts of weighted terms, stepped in order on the same batch.

A part is what one optimiser owns. Live needs are recomputed at each optimiser step, in one forward per role. `loss` has
the loss of one optimiser batch, also in micro-batches.

Axes: `B` rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any

import torch
from torch import Tensor, nn

from shuhari.batch import Batch
from shuhari.bounds import Length, check
from shuhari.data import EMPTY
from shuhari.events import Updated
from shuhari.kernel.measure import Meter, explain_returns
from shuhari.kernel.profile import spanned, work
from shuhari.kernel.reduce import units
from shuhari.kernel.registry import register
from shuhari.learners.loss import Loss
from shuhari.learners.parts import Part
from shuhari.learners.pieces import scatter, trained_parameters
from shuhari.needs import Need, gather, remembers
from shuhari.ports import Buffer, Ctx, Model, Transform, ability
from shuhari.transforms import apply


@register("learner", "gradient")
@dataclass
class GradientLearner:
    """The learner of all gradient methods: draws a batch, transforms it, and steps each part's optimiser on its losses.

    Micro-batches are counted without padding if the models pack (`needs.packs`), else with it. Reports for each part:
    `<part>/rows`, `<part>/loss/<term>` (before its weight), the optimiser's numbers, and the infos of the terms:
    `<part>/<info>`, or `<part>/<term>/<info>` if several terms have it. There, the term `loss` goes by its objective's
    name.
    """

    buffer: Buffer
    """Buffer that batches are drawn from; `[buffer]` of a recipe."""
    parts: Mapping[str, Part]
    """Parts by name, each with its optimiser, trained in this order on every batch; `[part.<name>]` of a recipe."""
    transforms: Mapping[str, Transform] = EMPTY
    """Transforms by name, applied in this order to every drawn batch; `[transform.<name>]` of a recipe."""
    tokens: Length | None = None
    """Largest micro-batch in tokens (gradient accumulation, which changes results only by rounding); None takes a
    minibatch whole. `micro_batch` in a recipe."""
    name: str = "main"
    """Name of the learner in its reports and events; `[learner.<name>]` in a recipe."""
    state: dict[str, Any] = field(init=False, default_factory=lambda: {"updates": 0, "infos": {}})

    def __post_init__(self) -> None:
        check(self)
        self._params: dict[str, list[nn.Parameter]] = {}

    def bind(self, models: Mapping[str, Model]) -> None:
        """Gives each optimiser its parameters, unless it has them already. Raises KeyError for a role that the run
        lacks."""
        _keep_memory()
        for name, part in self.parts.items():
            found = trained_parameters(models, part.trains, f"part {name!r}")
            if (
                {id(p) for p in found}
                != {id(p) for p in self._params.get(name, ())}
            ):
                self._params[name] = found
                part.optimiser.bind(found)

    @cached_property
    def needs(self) -> list[Need]:
        """The needs of the terms that are scored before the update."""
        return [
            n
            for p in self.parts.values()
            for n in p.needs
            if not n.live
        ]

    @spanned("update")
    def update(self, batch: Batch, ctx: Ctx) -> Updated:
        """Runs one pass of every part that is due over one drawn batch."""
        k, meter = self.state["updates"], Meter()
        meter.update(explain_returns(batch))
        for name, part in self.parts.items():
            if k < part.after or (k - part.after) % part.every:
                continue
            batch = gather(batch, part.needs, ctx.models, self.tokens)
            carried = _carried_rows(batch, part)
            rows = len(batch) if carried is None else int(carried.sum())
            meter.add(f"{name}/rows", float(rows))
            if not rows:  # every weight is 0: reported, not an error
                continue
            used = batch
            if rows < len(batch) or part.minibatches > 1:
                used = batch.put({"_used": torch.arange(len(batch))})
                used = used if carried is None or rows == len(batch) else used.take(carried)
            info_terms = self.state.setdefault("infos", {}).setdefault(name, {})
            for epoch in range(part.epochs):
                for i, mini in enumerate(_minibatches(used, part, ctx, self.name, name, k, epoch)):
                    work("trained", mini, part.trains)
                    try:
                        with ctx.phase(self.name, k, name, epoch, i, root=True):
                            params, place = self._params[name], (self.name, name)
                            loss = Loss(mini, part, name, ctx, params, self.tokens, info_terms, place)
                            meter.update(part.optimiser.step(loss, ctx.count), name)
                    except FloatingPointError as error:
                        message = f"step {ctx.step}, part {name!r}: {error}{_explain_unknown(mini, self.buffer)}"
                        raise FloatingPointError(message) from error
                    ctx.charge("updates", 1)
                    if mini is not batch:
                        scatter(mini.stamps, batch, mini["_used"])
        if ctx.team is not None:
            ctx.team.settle()
        self.state["updates"] = k + 1
        return Updated(self.name, meter.means(), batch["id"], dict(batch.stamps))

    def held_out(self, split: str, n: int, ctx: Ctx) -> dict[str, float]:
        """Returns losses and infos of the parts, `<part>/<name>`, on up to n recorded problems or episodes of `split`,
        if the buffer has some (`Recorded`); over several batches, the mean over rows. Nothing is learnt."""
        found = ability(self.buffer, "held_out")(split, n, ctx)
        meter, rows = Meter(), 0
        for batch in found:
            if not len(batch):
                continue
            rows = rows or len(batch)
            share = len(batch) / rows  # 1 for the first, so that a single batch keeps its bits
            batch = apply(self.transforms.values(), batch, ctx, self.needs)
            for name, part in self.parts.items():
                for key, value in Loss(batch, part, name, ctx, self._params[name], self.tokens).report().items():
                    meter.add(f"{name}/{key}", float(value) * share, share)
        return meter.means()


def _explain_unknown(batch: Batch, buffer: Any) -> str:
    """Returns the part of an error message about unknown rewards; "" if all are known."""
    lost = int(batch["reward"].isnan().any(1).sum()) if "reward" in batch else 0
    where = f": {told}" if (told := ability(buffer, "unknown")) else ""
    return f"; {lost} of the {len(batch)} rewards that it had are not known{where}" if lost else ""


@cache
def _keep_memory() -> None:
    """Makes the C library keep freed memory for the next update. The GNU one returns free memory beyond twice the
    largest block ever freed, and new pages cost more than the layers of a small net. Allocating and freeing a large
    block, whose pages are never touched, raises that limit."""
    torch.empty(28 << 20, dtype=torch.uint8)


def _carried_rows(batch: Batch, part: Part) -> Tensor | None:
    """Returns [B] the rows that carry a stream of the part; None for all."""
    streams = {t.stream for t in part.terms.values()}
    if streams == {batch.stream} and f"weight/{batch.stream}" not in batch:
        return None if batch.full else batch.decides
    return torch.stack([(batch.weight(s) != 0).any(1) for s in streams]).any(0) & batch.decides


def _minibatches(batch: Batch, part: Part, ctx: Ctx, *key: object) -> Iterator[Batch]:
    if part.minibatches == 1:
        yield batch
        return
    unit = part.unit
    if unit == "auto":
        unit = "group" if part.couples else "episode" if remembers(part.live, ctx.models) else "row"
    rng = ctx.rng("minibatch", *key)
    if unit == "row":
        for rows in torch.randperm(len(batch), generator=rng).chunk(part.minibatches):
            yield batch.take(rows)
        return
    inverse = units(batch, unit)
    n = int(inverse.max()) + 1
    parts = min(part.minibatches, n)  # no empty parts
    place = torch.empty(n, dtype=torch.long)
    place[torch.randperm(n, generator=rng)] = torch.arange(n) * parts // n
    for m in range(parts):
        yield batch.take((place[inverse] == m).nonzero().squeeze(1))
