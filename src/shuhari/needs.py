"""The interface to models: their distributions and traces, and needs, the columns that components want from them.

Axes: `B` rows, `K` positions of a row, `N` decisions of a chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from shuhari.batch import Batch
from shuhari.data import EMPTY, Array, nearest
from shuhari.kernel.abilities import ability
from shuhari.kernel.columns import is_of_rows
from shuhari.kernel.profile import span


class Noise(Protocol):
    """Counter-based noise, one stream a row: what a row draws depends on that row's key and on `index` only."""

    def uniform(self, index: int, *shape: int) -> Tensor: ...  # [rows, *shape] in (0, 1)
    def normal(self, index: int, *shape: int) -> Tensor: ...  # [rows, *shape]

    @property
    def keys(self) -> Array | None: ...  # [rows] uint64, of which each row's stream is a function; None where not alone


class Dist(Protocol):
    """The decisions of a batch under a model: lazy, one forward behind all of it. A model implements the methods that
    it supports."""

    def log_prob(self) -> Tensor: ...  # [B, K] of the actions taken, at the sampling settings of the rows
    def entropy(self) -> Tensor: ...  # [B, K]
    def kl(self, other: Any) -> Tensor: ...  # [B, K] KL(self || other), exact
    def value(self) -> Tensor: ...  # [B, K], or [B, K, n] of an ensemble: before the decision (Q-functions: of it)
    def after(self) -> Tensor: ...  # [B, K], or [B, K, n]: of the state behind the decision, which has seen it
    def mode(self) -> Tensor: ...
    def rsample(self, noise: Noise) -> tuple[Tensor, Tensor]: ...  # reparameterised actions, their log_prob [B, K]
    def parameters(self) -> Tensor: ...  # logits, means and scales, velocities
    def features(self) -> Tensor: ...
    def at(self, index: Tensor) -> Dist: ...  # the decisions `index` [N] of the flattened [B * K]: for functionals


Functional = Callable[[tuple[Any, ...], Tensor, Callable[[str], Tensor]], Tensor]
"""(dists of the roles, action [N], columns: name -> [N]) -> [N] or [N, D]; applied to chunks, so that logits are never
kept. A value of a row (its context, its dense action: for a chain the whole one) is repeated at each of its decisions.
"""


@dataclass(frozen=True)
class Need:
    """A column that somebody wants: a functional of one or more roles' decision distributions.

    `name`: a method of `Dist` (`log_prob`, `entropy`, `value`, `kl` of two roles) or a `Functional`. Live needs are
    differentiable and recomputed at each optimiser step; the others are scored once before the update. `exact`: the
    value must be a log-probability, not a bound of one (an importance ratio reads it): a model whose `kind` is `bound`
    is then refused before the first step. The column is `key`: `[live/]first role/name[:other roles]`, so a functional
    needs a name of its own: a function defined with `def`, or a dataclass that is called (its fields are part of the
    name). Raises ValueError for one without.
    """

    roles: tuple[str, ...]
    name: str | Functional
    live: bool = False
    exact: bool = field(default=False, compare=False, repr=False)
    key: str = field(init=False, compare=False)

    def __post_init__(self) -> None:
        if isinstance(self.roles, str):
            raise TypeError(f"a need's roles are {self.roles!r}: expected a tuple, ({self.roles!r},)")
        name = self.name if isinstance(self.name, str) else getattr(self.name, "__name__", repr(self.name))
        if name == "<lambda>" or " at 0x" in name:
            raise ValueError(
                f"the functional {name} of a need has no name, and its column is named after it: "
                "define it with def, or as a dataclass that is called"
            )
        others = f":{','.join(self.roles[1:])}" if len(self.roles) > 1 else ""
        object.__setattr__(self, "key", f"{'live/' * self.live}{self.roles[0]}/{name}{others}")


@dataclass(frozen=True, eq=False)
class Trace:
    """What a policy did in one context: action, logp [K], the weights' version, what it knows (`info`: `support`,
    `entropy`, `text`, ...), the action as an environment takes it (`taken`), where that is not the decision, and what
    it carries on (`memory` [S], see `kernel.recall`), if it remembers."""

    action: Any
    logp: Array | None
    version: Any = 0
    info: Mapping[str, Any] = EMPTY
    taken: Any = None
    memory: Any = None


@dataclass(frozen=True, eq=False)
class Traces(Sequence[Trace]):
    """Traces of dense decisions kept together: action [B, ...], logp [B, K] tensors, info, `taken` and `memory` of
    [B, ...]."""

    action: Tensor
    logp: Tensor
    version: int = 0
    info: Mapping[str, Any] = EMPTY
    taken: Tensor | None = None
    memory: Tensor | None = None

    def __len__(self) -> int:
        return len(self.action)

    def __getitem__(self, i: Any) -> Any:
        info = {k: v[i].numpy() for k, v in self.info.items()}
        taken, memory = (None if x is None else x[i].numpy() for x in (self.taken, self.memory))
        return Trace(self.action[i].numpy(), self.logp[i].numpy(), self.version, info, taken, memory)


def distinct(needs: Iterable[Need]) -> list[Need]:
    """Return each need once. Raises ValueError if two different ones would share a column: two functionals of one name.
    """
    found: dict[str, Need] = {}
    for need in needs:
        other = found.setdefault(need.key, need)
        if other is not need and other != need:
            raise ValueError(
                f"two needs share the column {need.key!r}, but their functionals are not the same: {other.name!r} and "
                f"{need.name!r}; give them different names, and make each of them once"
            )
    return list(found.values())


def decisions(policy: Any, taken: Tensor) -> Mapping[str, Tensor]:
    """The columns of decisions that environments got as `taken` [B, ...]: `action`, and what else the policy would have
    traced. A policy that decides in the environment's own terms need not implement `decision`."""
    found = ability(policy, "decision")
    return {"action": taken} if found is None else found(taken)


CHUNK = 4096  # decisions a functional sees at once


def evaluate(
    batch: Batch, needs: Iterable[Need], models: Mapping[str, Any], trains: Collection[str] = ()
) -> dict[str, Tensor]:
    """The columns of `needs` on one piece: one forward a model however many needs, gradients only into `trains`.

    Columns are 0 on positions without a decision, except the value of a row without decisions (a closing row), which
    the row before it needs. Raises KeyError for a role that the run lacks, AttributeError for a method that the model's
    distribution lacks, both with the nearest name; ValueError if two functionals share a column.
    """
    dists: dict[tuple[int, int], Any] = {}
    trained = _find_reached(models, trains)

    def dist(role: str) -> Any:
        model, seen = role_model(models, role), batch.for_role(role)
        key = id(model), 0 if seen is batch else hash(role)
        if key not in dists:
            with torch.set_grad_enabled(torch.is_grad_enabled() and id(model) in trained):
                dists[key] = model(seen)
        return dists[key]

    out = {}
    for need in distinct(needs):
        roles = [dist(r) for r in need.roles]
        if callable(need.name):
            value = _map_chunks(need.name, tuple(roles), batch)
        else:
            method = getattr(roles[0], need.name, None)
            if method is None:
                have = [m for m in dir(roles[0]) if not m.startswith("_")]
                raise AttributeError(
                    f"{need.key}: the model of role {need.roles[0]!r} has no {need.name!r}; {nearest(need.name, have)}"
                )
            trains_any = torch.is_grad_enabled() and any(id(role_model(models, r)) in trained for r in need.roles)
            with torch.set_grad_enabled(trains_any):  # a lazy distribution may run its forward only now
                value = method(*roles[1:])
        if not batch.full or value.shape[:2] != (len(batch), batch.width):
            mask = batch["mask"]
            if need.name == "value" and not need.live:
                mask = mask.clone()
                mask[:, 0] |= ~batch.decides
            value = torch.where(mask[(..., *[None] * (value.dim() - 2))], value, 0.0)
        out[need.key] = value
    return out


def _find_reached(models: Mapping[str, Any], trains: Collection[str]) -> set[int]:
    """Return the ids of the models that gradients reach: trained ones, and models made of them."""
    reached = {id(role_model(models, r)) for r in trains}
    made = [
        (id(m), [id(models[r]) for r in m.roles])
        for m in models.values()
        if ability(m, "roles")
    ]
    for _ in made:  # as deep as they may be nested
        reached |= {model for model, parts in made if not reached.isdisjoint(parts)}
    return reached


def bind_models(models: Mapping[str, Any]) -> None:
    """Hand each model of models, by role, those that it is made of (`Model.roles`)."""
    for model in {id(m): m for m in models.values()}.values():
        if ability(model, "roles"):
            model.bind(models)


def packs(needs: Iterable[Need], models: Mapping[str, Any]) -> bool:
    """Whether all models that `needs` use run rows without padding (`Model.packs`)."""
    return all(
        ability(role_model(models, r), "packs")
        for n in needs
        for r in n.roles
    )


def remembers(needs: Iterable[Need], models: Mapping[str, Any]) -> bool:
    """Whether one of the models that `needs` use is recurrent: it scores rows one after the other (`Model.chains`)."""
    return any(
        ability(role_model(models, r), "chains")
        for n in needs
        for r in n.roles
    )


def role_model(models: Mapping[str, Any], role: str) -> Any:
    """The model that plays `role`."""
    try:
        return models[role]
    except KeyError:
        raise KeyError(f"no role {role!r} among the models; {nearest(role, models)}") from None


def _map_chunks(functional: Functional, dists: tuple[Any, ...], batch: Batch) -> Tensor:
    """Apply a functional to the decisions, a chunk at a time; its intermediate values are recomputed for a gradient."""
    mask = batch["mask"]
    where = mask.flatten().nonzero().squeeze(1)

    def one(index: Tensor) -> Tensor:
        def column(name: str) -> Tensor:
            x = batch[name]
            by_position = x.shape[:2] == mask.shape and not is_of_rows(name, batch)
            return x.flatten(0, 1)[index] if by_position else x[index // mask.shape[1]]

        return functional(tuple(d.at(index) for d in dists), column("action"), column)

    grad = torch.is_grad_enabled()
    pieces = [checkpoint(one, i, use_reentrant=False) if grad else one(i) for i in where.split(CHUNK)]
    values = torch.cat(pieces)
    out = values.new_zeros(mask.numel(), *values.shape[1:]).index_put((where,), values)
    return out.view(*mask.shape, *values.shape[1:])


def gather(batch: Batch, needs: Iterable[Need], models: Mapping[str, Any], tokens: int | None = None) -> Batch:
    """With every missing column of `needs` that is not live, a micro-batch of at most `tokens` at a time. The batch
    remembers which columns these are (`Batch.scored`), so that a buffer does not keep outdated scores."""
    missing = [n for n in distinct(needs) if not n.live and n not in batch]
    if not missing or not len(batch):
        return batch
    pieces = batch.put({"_row": torch.arange(len(batch))}).split(tokens, packs(missing, models))
    with span("score"), torch.no_grad():
        scored = [evaluate(p, missing, models) for p in pieces]
    if len(pieces) == 1:
        return batch.put(scored[0], scored=True)
    order = torch.cat([p["_row"] for p in pieces]).argsort()
    return batch.put(
        {
            n.key: torch.cat([s[n.key] for s in scored])[order]
            for n in missing
        },
        scored=True,
    )
