"""Checks of components that learn from batches: transforms, objectives, optimisers, followers, learners.

A check takes a component that its user has made, and raises ConformanceError if the component breaks the rules of its
port; `inspect_...` checks one call in a run in the same way (`conformance.watch`).

Axes: `B` rows, `K` positions of a row, `P` links.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from shuhari.batch import Batch
from shuhari.data import Info
from shuhari.events import EVENTS, Committed, Evaluated, Event, StageStarted, Updated, event_kinds
from shuhari.kernel import state
from shuhari.loop.breaches import DRAWS, are_equal, copy_columns, generator_states
from shuhari.ports.declares import declares
from shuhari.ports.hooks import ability
from shuhari.store.codec import dumps, loads
from shuhari.testing.looking import (
    call_twice,
    check_repeats,
    copy_weights,
    have_same_weights,
    keep_unchanged,
    rebuild,
    require,
    require_memory,
    require_port,
    require_same,
    require_unchanged,
    to_tree,
)
from shuhari.testing.spying import watch_declared


def check_transform(transform: Any, batch: Batch, ctx: Any) -> Batch:
    """Call a transform and check its effect; returns its result.

    It must return a batch of the same rows in the same order, leave the batch that it was given unchanged, draw from no
    global generator, give the same result again from the same state, and keep no state elsewhere.
    """
    out = inspect_transform(transform, transform.__call__, batch, ctx)
    require_memory(transform, lambda mine: mine(batch, ctx), ctx)
    return out


def check_objective(objective: Any, batch: Batch, ctx: Any) -> tuple[Tensor, Info]:
    """Call an objective and check its effect; returns its (loss, info).

    The loss must be [B, K], [B] or [P], a scalar only if the objective declares that it couples the batch, and finite
    at every decision. Unless rows are coupled, half of the rows must give that half of the losses. The objective must
    draw from no global generator, leave the batch unchanged, give the same loss and info again from the same state, and
    keep no state elsewhere.
    """
    found = inspect_objective(objective, objective.__call__, batch, ctx)
    require_memory(objective, lambda mine: mine(batch, ctx)[0].detach(), ctx)
    return found


def check_optimiser(optimiser: Any, n: int = 6, terms: Sequence[str] = ()) -> None:
    """Let an optimiser step n times on a small least-squares problem, with further `terms` by name, each of which is
    half the squared distance from where a step begins, less 1.

    It must move the parameters that it is bound to, return numbers by name, let no gradient that is not finite into
    them (FloatingPointError, or unchanged parameters), repeat its results, and resume from its state.
    """
    require_port("optimiser", optimiser)
    inputs, outputs = _numbers(8, 3), _numbers(8, 2)

    def use(mine: Any, net: nn.Module, i: int) -> Any:
        info = inspect_optimiser(mine, mine.step, _Squares(net, inputs, outputs, terms), float(i))
        return {"info": {k: float(v) for k, v in info.items()}, "weights": columns(net)}

    def columns(net: nn.Module) -> dict[str, Tensor]:
        return {name: x.detach().clone() for name, x in net.named_parameters()}

    def bind(mine: Any, net: nn.Module) -> None:
        mine.bind(list(net.parameters()))

    check_repeats(optimiser, use, n=n, world=lambda: _net(3, 2), begin=bind)
    net, mine = _net(3, 2), rebuild(optimiser)
    bind(mine, net)
    before = columns(net)
    for i in range(n):
        use(mine, net, i)
    require(not have_same_weights(columns(net), before), optimiser, f"left all parameters as they were for {n} steps")
    with suppress(FloatingPointError):
        mine.step(_Squares(net, inputs, outputs * float("nan"), terms), float(n))
    require(all(bool(x.isfinite().all()) for x in columns(net).values()), optimiser, "let a gradient that is not "
            "finite into the parameters: expected FloatingPointError, with the parameters as they were")  # fmt: skip


def check_rule(rule: Any, models: Mapping[str, Any] | None = None, events: Sequence[Event] | None = None) -> None:
    """Send some events to a rule by which weights follow others (`Follow`).

    It must change the weights of one role only, and only at events that its `on` names, repeat its results, and resume
    from its state.

    models: role -> model, of which it gets copies; by default two small networks. events: the events that it gets in
    turn; by default several of each kind.
    """
    require_port("follow", rule)
    sent = list(events) if events is not None else _events(vars(rule).get("metric", "greedy"))
    roles = declares(rule).roles
    require(roles, rule, "names no `roles`: expected those whose weights it reads and moves")

    def world() -> dict[str, Any]:
        if models is None:
            return {role: SimpleNamespace(module=_net(3, 2, seed=i)) for i, role in enumerate(roles)}
        return {role: SimpleNamespace(module=copy.deepcopy(models[role].module)) for role in roles}

    moved: set[str] = set()

    def use(it: Any, played: Mapping[str, Any], i: int) -> Any:
        params = [
            p
            for model in played.values()
            for p in model.module.parameters()
        ]
        for j, p in enumerate(params):  # all learn on between two events
            p.data += 0.01 * _numbers(*p.shape, seed=1000 * i + j)
        before = copy_weights(played)
        inspect_follow(it, it, played, sent[i])
        after = copy_weights(played)
        moved.update(role for role in roles if not have_same_weights(after[role], before[role]))
        require(len(moved) < 2, rule, f"moved the weights of {', '.join(sorted(moved))}: expected those of one role")
        return after

    check_repeats(rule, use, n=len(sent), world=world)
    require(moved, rule, f"moved no weights at {len(sent)} events: expected those of one role")


def check_learner(learner: Any, batch: Batch, ctx: Any) -> Updated:
    """Have a learner learn from a batch, and check what it did; returns its report.

    It must report the rows that it has trained on, and numbers by name; change only roles that it trains, leave the
    batch unchanged, draw from no global generator, and do the same again from the same state. `ctx` has the models.
    """
    require_port("learner", learner)
    learner.bind(ctx.models)
    generators = generator_states()
    saved, ledger, weights = loads(dumps(state.memory(learner))), dict(ctx.ledger), copy_weights(ctx.models)
    report = inspect_update(learner, learner.update, batch, ctx)
    require(generator_states() == generators, learner, DRAWS)
    first = to_tree({"info": dict(report.info), "weights": copy_weights(ctx.models)})
    state.remember(learner, saved)
    ctx.ledger.clear()
    ctx.ledger.update(ledger)
    for role, tensors in weights.items():
        ctx.models[role].module.load_state_dict(tensors)
    again = learner.update(batch, ctx)
    second = to_tree({"info": dict(again.info), "weights": copy_weights(ctx.models)})
    require_same(first, second, learner, "did something else from the same state")
    return report


def inspect_transform(self: Any, call: Callable[..., Any], batch: Batch, ctx: Any) -> Batch:
    before = copy_columns(batch)
    out, again = call_twice(self, watch_declared(self, lambda: call(batch, ctx), batch), ctx)
    require(isinstance(out, Batch), self, f"returned {type(out).__name__}: expected the batch with columns added")
    message = f"returned {len(out)} rows of {len(batch)}: a filter sets weights to 0 and deletes none"
    require(len(out) == len(batch), self, message)
    require(torch.equal(out["id"], batch["id"]), self, "changed the order of the rows")
    require_unchanged(self, batch, before)
    other = ", ".join(sorted(out.names() ^ again.names()))
    require(not other, self, f"gave {other} only one time of two, when it was called again from the same state")
    for name in out.names():
        require(are_equal(out[name], again[name]), self, f"gave another {name!r} when it was called again: it keeps "
                 "something outside of `state`, or draws from elsewhere than ctx.rng or ctx.noise")  # fmt: skip
    return out


def inspect_objective(self: Any, call: Callable[..., Any], batch: Batch, ctx: Any) -> tuple[Tensor, Info]:
    before = copy_columns(batch)
    found, again = call_twice(self, watch_declared(self, lambda: call(batch, ctx)), ctx)
    require(isinstance(found, tuple) and len(found) == 2, self, "returned no pair: expected (loss, info)")
    loss, info = found
    require(isinstance(loss, Tensor) and isinstance(info, Mapping), self, "expected a Tensor and a mapping")
    couples, links = declares(self).couples, declares(self).links
    shape = tuple(loss.shape)
    allowed = [(len(batch), batch.width), (len(batch),)]
    if links:
        allowed.append((len(batch.links[links][0]),))
    require(shape in allowed or (not shape and couples == "batch"), self,
            f"returned a loss of shape {shape}: expected one of {', '.join(map(str, allowed))}, or one number where "
             "couples = 'batch'")  # fmt: skip
    decided = loss.detach()
    if shape == (len(batch), batch.width):
        decided = decided[batch["mask"]]
    require(bool(decided.isfinite().all()), self, "returned a loss that is not finite where something was decided")
    require(are_equal(loss, again[0]), self, "gave another loss when it was called again")
    require_same(to_tree(_detach(info)), to_tree(_detach(again[1])), self, "gave another info when it was called again")
    require_unchanged(self, batch, {k: v for k, v in before.items() if k not in batch.stamps})
    if couples == "row" and not links and len(batch) > 1 and shape:
        half = torch.arange(len(batch))[::2]
        with keep_unchanged(self, ctx):
            piece, _ = call(batch.take(half), ctx)
        close = torch.allclose(piece.detach(), loss.detach()[half], atol=1e-5, rtol=1e-4, equal_nan=True)
        require(close, self, "gave some rows alone another loss than beside the others: say couples = 'batch', and "
                 "read columns only")  # fmt: skip
    return loss, info


def _detach(info: Info) -> dict[str, Any]:
    return {name: x.detach() if isinstance(x, Tensor) else x for name, x in info.items()}


def inspect_update(self: Any, call: Callable[..., Any], batch: Batch, ctx: Any) -> Updated:
    """Check one call of a learner's `update`."""
    before = copy_columns(batch)
    weights = copy_weights(ctx.models)
    found = call(batch, ctx)
    require(isinstance(found, Updated), self, f"reported {type(found).__name__}: expected Updated")
    for name, value in found.info.items():
        number = isinstance(value, int | float | Tensor)
        require(isinstance(name, str) and number, self, f"reported {name!r} = {value!r}: expected a number")
    if found.ids is not None:
        known = set(batch["id"].tolist())
        require(set(found.ids.tolist()) <= known, self, "reported ids that are not in the batch: expected batch['id']")
        for name, column in found.columns.items():
            n = len(found.ids)
            require(len(column) == n, self, f"reported {len(column)} values of {name!r} for {n} ids")
    if trains := {
        role
        for part in ability(self, "parts").values()
        for role in part.trains
    }:
        mine = {
            id(p)
            for role in trains
            for p in ctx.models[role].module.parameters()
        }
        for role, tensors in copy_weights(ctx.models).items():
            same = have_same_weights(tensors, weights[role])
            free = same or any(id(p) in mine for p in ctx.models[role].module.parameters())
            require(free, self, f"changed the model of role {role!r}: it trains {', '.join(sorted(trains))}")
    require_unchanged(self, batch, {k: v for k, v in before.items() if k not in found.columns})
    return found


def inspect_optimiser(self: Any, call: Callable[..., Any], evaluate: Any, at: float) -> Info:
    """Check one step of an optimiser."""
    info: Info = call(evaluate, at)
    require(isinstance(info, Mapping), self, f"its step returned {type(info).__name__}: expected an info")
    for name, value in info.items():
        number = isinstance(value, int | float | Tensor)
        require(number, self, f"its step gave {name!r} = {value!r}: expected a number")
    return info


def inspect_follow(self: Any, call: Callable[..., Any], models: Mapping[str, Any], event: Event) -> None:
    """Check one event at a rule by which weights follow others."""
    before = copy_weights(models)
    call(models, event)
    moved = [role for role, tensors in copy_weights(models).items() if not have_same_weights(tensors, before[role])]
    hears = ", ".join(kind.__name__ for kind in event_kinds(self.on))
    message = f"moved {', '.join(moved)} at {type(event).__name__}, and hears only {hears}"
    require(not moved or isinstance(event, event_kinds(self.on)), self, message)
    require(len({id(models[role].module) for role in moved}) < 2, self, f"moved the weights of {', '.join(moved)}: "
            "expected those of one role")  # fmt: skip


# ---------------------------------------------------------------- what they are tried on


class _Squares:
    """The loss of a linear model with the interface that optimisers use (`Evaluate`), and terms that hold it in place.
    """

    def __init__(self, net: nn.Module, inputs: Tensor, outputs: Tensor, terms: Sequence[str]) -> None:
        self.net, self.inputs, self.outputs, self.terms = net, inputs, outputs, terms
        self.start = [p.detach().clone() for p in net.parameters()]

    def _losses(self) -> dict[str, Tensor]:
        moved = sum(((p - p0) ** 2).sum() for p, p0 in zip(self.net.parameters(), self.start, strict=True)) / 2 - 1
        return {"squares": ((self.net(self.inputs) - self.outputs) ** 2).mean(), **dict.fromkeys(self.terms, moved)}

    def _gradient(self, term: str, *, create_graph: bool = False) -> Tensor:
        found = torch.autograd.grad(self._losses()[term], list(self.net.parameters()), create_graph=create_graph)
        return torch.cat([g.flatten() for g in found])

    def backward(self) -> Info:
        self.net.zero_grad()
        loss = self._losses()["squares"]
        loss.backward()
        return {"loss/squares": float(loss.detach())}

    def gradients(self) -> dict[str, Tensor]:
        return {term: self._gradient(term) for term in ("squares", *self.terms)}

    def values(self) -> dict[str, float]:
        return {term: float(loss.detach()) for term, loss in self._losses().items()}

    def hvp(self, term: str, vector: Tensor) -> Tensor:
        first = self._gradient(term, create_graph=True)
        found = torch.autograd.grad(first @ vector, list(self.net.parameters()))
        return torch.cat([g.flatten() for g in found])


def _net(inputs: int, outputs: int, seed: int = 0) -> nn.Module:
    """Make a linear layer whose weights depend on the seed alone."""
    net: nn.Module = nn.utils.skip_init(nn.Linear, inputs, outputs)
    with torch.no_grad():
        for i, p in enumerate(net.parameters()):
            p.copy_(_numbers(*p.shape, seed=10 * seed + i))
    return net


def _numbers(*shape: int, seed: int = 7) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _events(metric: str) -> list[Event]:
    """Return some events of each kind that a rule may handle; the scores never improve, so that a plateau is reached.
    """
    some: list[Event] = []
    for i in range(8):
        some += [Updated("main", {}), Committed(i), Evaluated("test", {metric: 0.5})]
    some.insert(9, StageStarted("next"))
    assert {type(x) for x in some} == set(EVENTS.values())
    return some
