"""Checks of components that make and grade episodes: rewards, metrics, curricula, rollouts, windows, engines.

Environments are checked in `acting`. A check takes a component that its user has made, and raises ConformanceError if
it breaks the rules of its port; `inspect_...` checks one call in a run in the same way (`conformance.watch`).

Axes: `K` positions of an answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from shuhari.batch import Batch
from shuhari.data import Array, Payload, Problem, Request, Sampling, Step, Trajectory, read_first
from shuhari.events import Collected
from shuhari.kernel import state
from shuhari.kernel.abilities import find_missing
from shuhari.loop.breaches import DRAWS, generator_states
from shuhari.needs import Trace
from shuhari.ports import Engine, ability, is_vector
from shuhari.testing.context import context
from shuhari.testing.looking import (
    call_twice,
    check_repeats,
    copy_weights,
    have_same_weights,
    rebuild,
    require,
    require_memory,
    require_port,
    require_same,
    to_tree,
)


def check_reward(reward: Any, group: Sequence[Trajectory], ctx: Any, *, repeats: bool = True) -> list[Any]:
    """Have a group graded and look at the grades: one a leaf, each None or numbers by name. They are returned. repeats:
    whether it gives the same grades again from the same state; False for one that calls a judge elsewhere."""
    found = list(ctx.wait(inspect_grades(reward, reward.grade, group, ctx)))
    if repeats:
        require_memory(reward, lambda mine: list(ctx.wait(mine.grade(group, ctx))), ctx)
    return found


def check_metric(metric: Any, ctx: Any) -> Mapping[str, float]:
    """Call a metric and check its effect; returns its numbers.

    They must be numbers by name, the same in a second call; it must leave all models unchanged and draw from no global
    generator. `ctx` has the task, and the models and the engine that it uses.
    """
    _serve(ctx)
    return inspect_metric(metric, metric.__call__, ctx)


def check_curriculum(curriculum: Any, ctx: Any, n: int = 4, steps: int = 4) -> None:
    """Request n groups from a curriculum at each of some steps; if the context has models and a rollout that plays
    groups, they are played, and the curriculum gets the events.

    It must request at most n groups, of existing problems, repeat its results and resume from its state. `ctx` has the
    task.
    """
    require_port("curriculum", curriculum)
    _serve(ctx)

    def use(mine: Any, world: None, i: int) -> Any:
        now = _at(ctx, i)
        asked = now.wait(inspect_requests(mine, mine.select, n, now))
        require(asked, curriculum, f"asked for nothing where {n} groups were wanted")
        if now.models and not is_vector(now.rollout):
            batch = now.wait(now.probe(asked, tag=f"check{i}"))
            for listener in state.listeners(mine):
                listener.observe(Collected(batch))
        return [[r.problem.task, r.problem.id, r.n, dict(r.settings), dict(r.info), len(r.prefix)] for r in asked]

    check_repeats(curriculum, use, n=steps)


def check_predictor(predictor: Any, ctx: Any, n: int = 8, steps: int = 4) -> None:
    """Have a predictor predict how often the first n training problems are solved, at each of some steps; if the
    context has models, they are played, and the predictor gets the events.

    It must return two tensors [n] in [0, 1], repeat its results, and resume from its state. `ctx` has the task.
    """
    require_port("predictor", predictor)
    _serve(ctx)
    problems = read_first(ctx.task.problems("train"), n)

    def use(mine: Any, world: None, i: int) -> Any:
        now = _at(ctx, i)
        found = now.wait(mine.predict(problems, now))
        pair = isinstance(found, tuple) and len(found) == 2 and all(isinstance(x, torch.Tensor) for x in found)
        require(pair, predictor, f"gave {type(found).__name__}: expected two tensors, the rates to choose by and those "
                "expected")  # fmt: skip
        for rates in found:
            shape = f"gave rates of {tuple(rates.shape)}: expected ({len(problems)},), one a problem"
            require(rates.shape == (len(problems),), predictor, shape)
            inside = bool(((rates >= 0) & (rates <= 1)).all())
            require(inside, predictor, f"gave {rates.tolist()}: expected rates in [0, 1]")
        if now.models:
            batch = now.wait(now.probe([Request(p, 2) for p in problems], tag=f"check{i}"))
            for listener in state.listeners(mine):
                listener.observe(Collected(batch))
        return list(found)

    check_repeats(predictor, use, n=steps)


def check_rollout(rollout: Any, ctx: Any, request: Request | None = None, n: int = 4) -> Any:
    """Have a group played, or at least n decisions of lanes, and look at it; returns the trajectories, or the batch.

    Each step must have a version and a log-probability for each of its positions; the same key must give the same bits;
    no global generator may be drawn from. Lanes must continue from their state. `ctx` has task, models and engine;
    `request`: by default the task's first problem, n samples.
    """
    if is_vector(rollout):
        return _check_lanes(rollout, ctx, n)
    require(not find_missing(rollout, "group"), rollout, "has no group(request, ctx)")
    _serve(ctx)
    asked = request or Request(ctx.task.problems("train")[0], n, ctx.sampling)
    asked = ctx.fork().stamp_request(asked, "check")
    generators = generator_states()
    found = _at(ctx, 0).wait(inspect_group(rollout, rollout.group, asked, _at(ctx, 0)))
    require(generator_states() == generators, rollout, DRAWS)
    require(found, rollout, "gave no trajectory")
    again = rebuild(rollout)
    second = _at(ctx, 0).wait(again.group(asked, _at(ctx, 0)))
    require_same(to_tree([_played(t) for t in found]),
                 to_tree([_played(t) for t in second]), rollout,
                 "gave other trajectories for the same request")  # fmt: skip
    return found


def _played(t: Trajectory) -> list[Any]:
    """Return everything that an episode recorded, as a list."""
    return [list(t.steps), t.status.value, dict(t.info), dict(t.graded_by)]


def _check_lanes(rollout: Any, ctx: Any, n: int) -> Batch:
    drawn: list[Batch] = []

    def use(mine: Any, world: None, i: int) -> Any:
        batch = inspect_lanes(mine, mine.collect, n, _at(ctx, i))
        drawn.append(batch)
        return batch

    held: list[Any] = []

    def begin(mine: Any, world: None) -> None:
        mine.open(ctx.task, 7)
        held.append(mine)

    try:
        check_repeats(rollout, use, begin=begin)
    finally:
        for mine in held:
            mine.close()
    return drawn[0]


def check_window(window: Any, ctx: Any = None, answers: Sequence[Sequence[int]] = ((7, 8, 9), (4, 5))) -> Payload:
    """Show an episode of two turns through a window; returns what is seen of it.

    It must return token ids, the same in a second call, and leave the episode unchanged apart from its own requests
    (`play.ask`). `ctx`: the context that it uses; `answers`: token ids of the answers that it gets in turn, the last
    one repeated.
    """
    require_port("window", window)
    run = context() if ctx is None else ctx
    scripted = [np.array(a, np.int32) for a in answers]

    def seen() -> tuple[Any, _Shown]:
        play = _Shown(run, scripted)
        return run.wait(rebuild(window)(play)), play

    (found, play), (again, _) = seen(), seen()
    whole = _Shown(run, scripted)
    for name in ("start", "turns"):
        require_same(to_tree(getattr(whole, name)), to_tree(getattr(play, name)), window, f"changed `{name}` of the "
                     "episode: expected a new context to be returned")  # fmt: skip
    ids = isinstance(found, np.ndarray) and found.ndim == 1 and found.dtype.kind in "iu"
    require(ids, window, f"gave {type(found).__name__}: expected token ids [K], as the context of this episode is")
    require_same(to_tree(found), to_tree(again), window, "gave something else when it was asked again")
    return found


def check_engine(
    engine: Any,
    models: Mapping[str, Any],
    contexts: Sequence[Any],
    *,
    role: str = "policy",
    sampling: Sampling | None = None,
    n: int = 2,
) -> list[list[Trace]]:
    """Request n answers to each of some contexts from an engine, all at once, and return them.

    Each call must give n traces with the version of the weights. A draw must depend on seed and key alone, not on other
    calls or their order. The engine must score an action as it was sampled, and draw from no global generator.
    `contexts`: as the role's model reads them.
    """
    settings = Sampling() if sampling is None else sampling
    run = context(models=models, engine=engine)

    def serve() -> Any:
        mine: Engine = rebuild(engine)
        ability(mine, "open")(3, lambda what, amount: None)
        mine.sync(models, 1)
        return mine

    async def ask(mine: Any, order: Sequence[int]) -> dict[int, list[Trace]]:
        calls = [mine.sample(role, contexts[i], settings, n, key=("check", i)) for i in order]
        return dict(zip(order, await asyncio.gather(*calls), strict=True))

    generators, order = generator_states(), list(range(len(contexts)))
    mine = serve()
    found = run.wait(ask(mine, order))
    require(generator_states() == generators, engine, DRAWS)
    for traces in found.values():
        require(len(traces) == n, engine, f"gave {len(traces)} traces where {n} were asked for")
        for trace in traces:
            require(bool((np.asarray(trace.version) == 1).all()), engine, f"gave a trace of version {trace.version!r}: "
                    "expected 1, as of the last sync")  # fmt: skip
    for i, traces in run.wait(ask(serve(), order[::-1])).items():
        for a, b in zip(found[i], traces, strict=True):
            _require_alike(a, b, engine, "to the same key among the same calls in another order")
    alone = run.wait(ask(serve(), order[:1]))
    for a, b in zip(found[0], alone[0], strict=True):
        _require_alike(a, b, engine, "to a call alone than beside others")
    for i, traces in found.items():
        for trace in traces:
            scored = run.wait(mine.score(role, contexts[i], trace.action, ["log_prob"]))["log_prob"]
            if settings == Sampling() and trace.logp is not None:
                require(np.allclose(scored, trace.logp, atol=1e-4), engine, f"scored {scored} what it had sampled with "
                        f"{trace.logp}")  # fmt: skip
    return [found[i] for i in order]


def _require_alike(a: Trace, b: Trace, engine: Any, when: str) -> None:
    """Raise ConformanceError unless two traces are one answer, up to the rounding of numbers computed in another batch.
    """
    require(np.array_equal(a.action, b.action), engine, f"gave another answer {when}")
    require(np.array_equal(a.version, b.version), engine, f"gave another version {when}")
    require_same(to_tree(a.taken), to_tree(b.taken), engine, f"gave another `taken` {when}")
    named = sorted(a.info.keys() ^ b.info.keys())
    require(not named, engine, f"gave info {', '.join(named)} only at one time {when}")
    require((a.logp is None) == (b.logp is None), engine, f"gave a log-probability only at one time {when}")
    infos = [(f"info {name!r}", x, b.info[name]) for name, x in a.info.items()]
    for name, x, y in infos + ([] if a.logp is None else [("log-probability", a.logp, b.logp)]):
        number = np.asarray(x).dtype.kind in "biufc"
        close = np.shape(x) == np.shape(y) and np.allclose(x, y, atol=1e-4, equal_nan=True) if number else x == y
        require(close, engine, f"gave another {name} {when}: {x} and {y}")


def inspect_metric(self: Any, call: Callable[..., Any], ctx: Any) -> Mapping[str, float]:
    before = copy_weights(ctx.models)
    found, again = call_twice(self, lambda: call(ctx.fork(*ctx.within)), ctx)
    require(isinstance(found, Mapping), self, f"gave a {type(found).__name__}: expected numbers by name")
    for name, value in found.items():
        number = isinstance(name, str) and isinstance(value, int | float | np.generic)
        require(number, self, f"gave {name!r} = {value!r}: expected a number")
        same = name in again and np.array_equal(value, again[name], equal_nan=True)
        require(same, self, f"gave another {name!r} when it was asked again")
    for role, tensors in copy_weights(ctx.models).items():
        same = have_same_weights(tensors, before[role])
        require(same, self, f"changed the model of role {role!r}: an evaluation changes nothing")
    return found


async def inspect_grades(self: Any, call: Callable[..., Any], group: Sequence[Trajectory], ctx: Any) -> Any:
    leaves = sum(len(t.paths()) for t in group)
    grades = list(await call(group, ctx))
    require(len(grades) == leaves, self, f"gave {len(grades)} grades for {leaves} leaves")
    for grade in grades:
        require(grade is None or isinstance(grade, Mapping), self, f"gave the grade {grade!r}: expected None, or "
                 "numbers by name")  # fmt: skip
        for name, value in (grade or {}).items():
            number = isinstance(value, int | float | np.ndarray | np.generic)
            require(isinstance(name, str) and number, self, f"gave {name!r} = {value!r}: expected a number, or one a "
                     "decision")  # fmt: skip
    return grades


async def inspect_group(self: Any, call: Callable[..., Any], request: Request, ctx: Any) -> list[Trajectory]:
    found = list(await call(request, ctx))
    for trajectory in found:
        require(isinstance(trajectory, Trajectory), self, f"gave a {type(trajectory).__name__}: expected trajectories")
        for step in trajectory.steps:
            k = len(step.mask)
            require(len(step.version) == k, self, f"gave a step of {k} positions and {len(step.version)} versions")
            require(step.logp is None or len(step.logp) == k, self, f"gave a step of {k} positions and "
                     f"{0 if step.logp is None else len(step.logp)} log-probabilities")  # fmt: skip
    return found


def inspect_lanes(self: Any, call: Callable[..., Any], n: int, ctx: Any) -> Batch:
    """Check one call of `collect` of a rollout of decisions."""
    batch = call(n, ctx)
    require(isinstance(batch, Batch), self, f"collected a {type(batch).__name__}: expected a batch")
    made = int(batch["mask"].sum())
    require(made >= n, self, f"collected {made} decisions where {n} were wanted")
    parent, rows = batch.local(batch["parent"]), torch.arange(len(batch))
    require(bool((parent < rows).all()), self, "collected a row before the one that it follows")
    return batch


async def inspect_requests(self: Any, call: Callable[..., Any], n: int, ctx: Any) -> list[Request]:
    found = list(await call(n, ctx))
    require(all(isinstance(r, Request) for r in found), self, "gave what is no request")
    require(len(found) <= n, self, f"gave {len(found)} requests where {n} were asked for")
    return found


# ---------------------------------------------------------------- what they are tried on


@dataclass
class _Shown:
    """An episode of two turns, for a window (`Play`)."""

    ctx: Any
    answers: Sequence[Array]
    request: Request = field(default_factory=lambda: Request(Problem("check", "0", None), 1, key="0#0"))
    start: Any = field(default_factory=lambda: np.array([1, 2], np.int32))
    context: Any = None
    turns: list[tuple[Array, Array]] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    role: str = "policy"
    asked: int = 0

    def __post_init__(self) -> None:
        turns = [([3], [4, 5]), ([6, 7], [8])]
        self.turns = [(np.array(a, np.int32), np.array(o, np.int32)) for a, o in turns]
        self.context = np.concatenate(
            [
                self.start,
                *(
                    x
                    for turn in self.turns
                    for x in turn
                ),
            ]
        )

    async def ask(self, context: Payload) -> Trace:
        self.asked += 1
        answer = self.answers[min(self.asked, len(self.answers)) - 1]
        return Trace(answer, np.zeros(len(answer), np.float32))


def _serve(ctx: Any) -> None:
    """Give the engine of a context its models, once, as a run does before it uses the engine."""
    if ctx.models and not ctx.served:
        ctx.serve()


def _at(ctx: Any, step: int) -> Any:
    """Return the context at a step of its own, with random streams and tickets that depend on the step alone."""
    now = ctx.fork(ticket=1000 * step)
    now.step = step
    return now
