"""The conformance suite of components: check each call that a run makes of them against its port.

`check_recipe` runs a recipe for a few steps and looks at every call of every transform, objective, reward, rollout,
curriculum, buffer and metric in it; then it stops a second run half-way, resumes it, and compares the two bit by bit.
The checks of one call can be had alone. What fails raises ConformanceError, which names the component and what it did.

Axes: `B` rows, `K` positions of a row, `P` links.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

from shuhari.abilities import ability
from shuhari.batch import Batch
from shuhari.config.recipe import Recipe, load
from shuhari.data import Info, Request, Trajectory
from shuhari.loop.run import Run, loop, open_run
from shuhari.ports.declares import declares
from shuhari.testing.compare import contents, differences


class ConformanceError(AssertionError):
    """A component does what its port does not allow."""


def _require(holds: object, who: object, message: str) -> None:
    if not holds:
        raise ConformanceError(f"{type(who).__name__}: {message}")


# ---------------------------------------------------------------- one call


def check_transform(transform: Any, batch: Batch, ctx: Any) -> Batch:
    """Call a transform and check its effect; returns its result.

    It returns a batch of the same rows in the same order, leaves the batch that it was given as it was, draws from no
    global generator, and does the same again from the same state."""
    return _transform(transform, transform.__call__, batch, ctx)


def check_objective(objective: Any, batch: Batch, ctx: Any) -> tuple[Tensor, Info]:
    """Call an objective and check its effect; returns its (loss, info).

    The loss is [B, K], [B] or [P], a number only where the objective says that it couples the batch; it is finite
    where something was decided; a half of the rows has that half of the losses, unless rows are coupled; it draws from
    no global generator, leaves the batch as it was, and does the same again from the same state."""
    return _objective(objective, objective.__call__, batch, ctx)


def check_reward(reward: Any, group: Sequence[Trajectory], ctx: Any) -> list[Mapping[str, Any] | None]:
    """Have a group graded and look at the grades: one a leaf, each None or numbers by name. They are returned."""
    return list(ctx.wait(_reward(reward, reward.grade, group, ctx)))


def check_metric(metric: Any, ctx: Any) -> Mapping[str, float]:
    """Call a metric and check its effect; returns its numbers.

    They are numbers by name, the same when it is asked again; it leaves all models as they were, and draws from no
    global generator."""
    return _metric(metric, metric.__call__, ctx)


def _transform(self: Any, call: Callable[..., Any], batch: Batch, ctx: Any) -> Batch:
    before = _columns(batch)
    out, again = _twice(self, lambda: call(batch, ctx), ctx)
    _require(isinstance(out, Batch), self, f"returned {type(out).__name__}: expected the batch with columns added")
    message = f"returned {len(out)} rows of {len(batch)}: a filter sets weights to 0 and deletes none"
    _require(len(out) == len(batch), self, message)
    _require(torch.equal(out["id"], batch["id"]), self, "changed the order of the rows")
    _unchanged(self, batch, before)
    for name in out.names() & again.names():
        _require(_equal(out[name], again[name]), self, f"gave another {name!r} when it was called again: it keeps "
                 "something outside of `state`, or draws from elsewhere than ctx.rng or ctx.noise")  # fmt: skip
    return out


def _objective(self: Any, call: Callable[..., Any], batch: Batch, ctx: Any) -> tuple[Tensor, Info]:
    before = _columns(batch)
    found, again = _twice(self, lambda: call(batch, ctx), ctx)
    _require(isinstance(found, tuple) and len(found) == 2, self, "returned no pair: expected (loss, info)")
    loss, info = found
    _require(isinstance(loss, Tensor) and isinstance(info, Mapping), self, "expected a Tensor and a mapping")
    couples, links = declares(self).couples, declares(self).links
    shape = tuple(loss.shape)
    allowed = [(len(batch), batch.width), (len(batch),)]
    if links:
        allowed.append((len(batch.links[links][0]),))
    _require(shape in allowed or (not shape and couples == "batch"), self,
             f"returned a loss of shape {shape}: expected one of {', '.join(map(str, allowed))}, or one number where "
             "couples = 'batch'")  # fmt: skip
    decided = loss.detach()
    if shape == (len(batch), batch.width):
        decided = decided[batch["mask"]]
    _require(bool(decided.isfinite().all()), self, "returned a loss that is not finite where something was decided")
    _require(_equal(loss, again[0]), self, "gave another loss when it was called again")
    _unchanged(self, batch, before)
    if couples == "row" and not links and len(batch) > 1 and shape:
        half = torch.arange(len(batch))[::2]
        with _untouched(self, ctx):
            piece, _ = call(batch.take(half), ctx)
        close = torch.allclose(piece.detach(), loss.detach()[half], atol=1e-5, rtol=1e-4, equal_nan=True)
        _require(close, self, "gave some rows alone another loss than beside the others: say couples = 'batch', and "
                 "read columns only")  # fmt: skip
    return loss, info


def _metric(self: Any, call: Callable[..., Any], ctx: Any) -> Mapping[str, float]:
    before = _memory(self, ctx)["models"]
    found, again = _twice(self, lambda: call(ctx.fork(*ctx.within)), ctx)
    _require(isinstance(found, Mapping), self, f"gave a {type(found).__name__}: expected numbers by name")
    for name, value in found.items():
        number = isinstance(name, str) and isinstance(value, int | float | np.generic)
        _require(number, self, f"gave {name!r} = {value!r}: expected a number")
        same = name in again and np.array_equal(value, again[name], equal_nan=True)
        _require(same, self, f"gave another {name!r} when it was asked again")
    for role, tensors in _memory(self, ctx)["models"].items():
        same = all(torch.equal(x, before[role][name]) for name, x in tensors.items())
        _require(same, self, f"changed the model of role {role!r}: an evaluation changes nothing")
    return found


async def _reward(self: Any, call: Callable[..., Any], group: Sequence[Trajectory], ctx: Any) -> Any:
    leaves = sum(len(t.paths()) for t in group)
    grades = list(await call(group, ctx))
    _require(len(grades) == leaves, self, f"gave {len(grades)} grades for {leaves} leaves")
    for grade in grades:
        _require(grade is None or isinstance(grade, Mapping), self, f"gave the grade {grade!r}: expected None, or "
                 "numbers by name")  # fmt: skip
        for name, value in (grade or {}).items():
            number = isinstance(value, int | float | np.ndarray | np.generic)
            _require(isinstance(name, str) and number, self, f"gave {name!r} = {value!r}: expected a number, or one a "
                     "decision")  # fmt: skip
    return grades


async def _group(self: Any, call: Callable[..., Any], request: Request, ctx: Any) -> list[Trajectory]:
    found = list(await call(request, ctx))
    for trajectory in found:
        _require(isinstance(trajectory, Trajectory), self, f"gave a {type(trajectory).__name__}: expected trajectories")
        for step in trajectory.steps:
            k = len(step.mask)
            _require(len(step.version) == k, self, f"gave a step of {k} positions and {len(step.version)} versions")
            _require(step.logp is None or len(step.logp) == k, self, f"gave a step of {k} positions and "
                     f"{0 if step.logp is None else len(step.logp)} log-probabilities")  # fmt: skip
    return found


async def _select(self: Any, call: Callable[..., Any], n: int, ctx: Any) -> list[Request]:
    found = list(await call(n, ctx))
    _require(all(isinstance(r, Request) for r in found), self, "gave what is no request")
    _require(len(found) <= n, self, f"gave {len(found)} requests where {n} were asked for")
    return found


def _draw(self: Any, call: Callable[..., Any], ctx: Any) -> Iterator[Batch]:
    for batch in call(ctx):
        _require(isinstance(batch, Batch), self, f"drew a {type(batch).__name__}: expected a batch")
        yield batch


# ---------------------------------------------------------------- every call of a run


@contextmanager
def watched(run: Run) -> Iterator[None]:
    """A context manager in which every call of a component of the run is checked."""
    with ExitStack() as held:
        for component, name, check in _ports(run):
            held.enter_context(patch.object(component, name, _checked(getattr(component, name), check)))
        yield


def _ports(run: Run) -> Iterator[tuple[type, str, Callable[..., Any]]]:
    """(class, method, check) of what the run is made of, each class once."""
    seen: set[tuple[type, str]] = set()
    for stage in run.progress.stages:
        parts = [p for learner in stage.learners.values() for p in ability(learner, "parts").values()]
        found: list[tuple[Any, str, Callable[..., Any]]] = []
        found += [(t, "__call__", _transform) for t in stage.collect.values()]
        found += [(t, "__call__", _transform) for x in stage.learners.values() for t in x.transforms.values()]
        found += [(t.objective, "__call__", _objective) for p in parts for t in p.terms.values()]
        found += [(x.buffer, "draw", _draw) for x in stage.learners.values()]
        found += [(x, "grade", _reward) for x in stage.rewards.values()]
        found += [(m, "__call__", _metric) for m in (stage.evaluate.metrics if stage.evaluate else {}).values()]
        found += [(stage.curriculum, "select", _select), (stage.rollout, "group", _group)]
        for component, name, check in found:
            kind = type(component)
            if hasattr(kind, name) and (kind, name) not in seen:
                seen.add((kind, name))
                yield kind, name, check


def _checked(method: Callable[..., Any], check: Callable[..., Any]) -> Callable[..., Any]:
    def call(self: Any, *args: Any) -> Any:
        return check(self, lambda *given: method(self, *given), *args)

    return call


def check_recipe(recipe: Recipe | str | Path, path: Path) -> None:
    """Train a recipe below `path`, every call of its components looked at; then train it again, stopped half-way and
    resumed, and compare the two runs bit by bit. Give it a small recipe (`shrink` makes one). Raises ConformanceError,
    and what training raises."""
    found = recipe if isinstance(recipe, Recipe) else load(recipe)
    found = found.changed({"store.every": 1})
    run = open_run(found, path / "whole")
    made = 0
    with watched(run):
        for _ in loop(run):
            made += 1
    with closing(loop(open_run(found, path / "resumed"))) as cut:  # type: ignore[type-var]
        for _ in range(max(1, made // 2)):
            next(cut, None)
    for _ in loop(open_run(found, path / "resumed")):
        pass
    found_differences = differences(contents(path / "whole"), contents(path / "resumed"))
    if found_differences:
        listed = "\n  ".join(found_differences[:10])
        raise ConformanceError(f"a run that was stopped and resumed ended otherwise:\n  {listed}")


# ---------------------------------------------------------------- how it is looked at


def _twice(self: Any, call: Callable[[], Any], ctx: Any) -> tuple[Any, Any]:
    """Call twice from the same state; returns both results. ConformanceError where it draws from a global
    generator."""
    before, generators = _memory(self, ctx), global_generators()
    found = call()
    message = "drew from a global generator: draw from ctx.rng(name) or ctx.noise"
    _require(global_generators() == generators, self, message)
    with _untouched(self, ctx):
        _restore(self, ctx, before)
        again = call()
    return found, again


@contextmanager
def _untouched(self: Any, ctx: Any) -> Iterator[None]:
    """What is done inside leaves the run and the component as they were."""
    before, problems, tell = _memory(self, ctx), list(ctx.problems), ctx.tell
    ctx.tell = lambda event: None
    try:
        yield
    finally:
        ctx.tell = tell
        ctx.problems[:] = problems
        _restore(self, ctx, before)


def _memory(self: Any, ctx: Any) -> dict[str, Any]:
    """The state that a call may change: the state of the component, the ledger, and the statistics that models keep."""
    models = {role: {k: v.clone() for k, v in m.module.state_dict().items()} for role, m in ctx.models.items()}
    return {"state": copy.deepcopy(ability(self, "state")), "ledger": dict(ctx.ledger), "models": models}


def _restore(self: Any, ctx: Any, kept: Mapping[str, Any]) -> None:
    if kept["state"] is not None:
        self.state = copy.deepcopy(kept["state"])
    ctx.ledger.clear()
    ctx.ledger.update(kept["ledger"])
    with torch.no_grad():
        for role, tensors in kept["models"].items():
            now = ctx.models[role].module.state_dict()
            for name, value in tensors.items():
                if not torch.equal(now[name], value):
                    now[name].copy_(value)


def global_generators() -> tuple[Any, ...]:
    """The states of the generators that a whole process shares: torch's, numpy's and Python's."""
    numbers: Any = np.random.get_state()  # noqa: NPY002
    return torch.get_rng_state().numpy().tobytes(), numbers[1].tobytes(), numbers[2], random.getstate()


def _columns(batch: Batch) -> dict[str, Tensor]:
    return {name: batch[name].detach().clone() for name in batch.names()}


def _unchanged(self: Any, batch: Batch, before: Mapping[str, Tensor]) -> None:
    for name, column in before.items():
        _require(_equal(batch[name], column), self, f"changed the column {name!r} of the batch that it was given, in "
                 "place: columns are added with batch.put")  # fmt: skip


def _equal(a: Tensor, b: Tensor) -> bool:
    a, b = a.detach(), b.detach()
    return a.shape == b.shape and bool(torch.allclose(a, b, atol=0, rtol=0, equal_nan=True) if a.is_floating_point()
                                       else torch.equal(a, b))  # fmt: skip
