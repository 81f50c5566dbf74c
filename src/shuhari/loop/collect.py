"""Collection, from requests to a graded batch: concurrent rollouts, the task's grade, other rewards, one trained
reward."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Any

import torch

from shuhari.batch import Batch
from shuhari.data import PAID, ContractError, Request, StalledError, Trajectory, nearest
from shuhari.engines.clock import run_together
from shuhari.engines.time_limit import contained
from shuhari.kernel.measure import Meter
from shuhari.kernel.pack import pack
from shuhari.kernel.profile import span, spanned, stretches, work
from shuhari.loop.reward_names import fill_unpaid, is_any_silent, note_names, note_paid
from shuhari.ports import REPLAYING, Rollout
from shuhari.ports.declares import declares
from shuhari.tasks.contract import explain_grade, find_overflow

if TYPE_CHECKING:
    from shuhari.loop.asks import LoopCtx

LOG = logging.getLogger("shuhari")
_UNGRADED = "neither the task (has a file answers?) nor a [reward.<name>] does, and buffers of data need neither"
ROUNDS = 20  # of collection in one step, before a filter that rejects nearly everything is an error
SILENT = 3  # of them, before graders that grade nothing are one


class AllFailedError(RuntimeError):
    """The error if every rollout of a batch has raised, so that there is nothing to train on."""


async def collect_groups(requests: Sequence[Request], ctx: LoopCtx, *, tag: str = "") -> Batch:
    """Roll out and grade the requests concurrently; rows are in request order. A rollout that raises is counted and
    reported, and its group is left out."""
    asked = [ctx.stamp_request(r, tag) for r in requests]
    assert ctx.rollout is not None
    finished = await run_together(collect_group(r, ctx.rollout, ctx) for r in asked)
    return pack_groups(finished, ctx, probe=bool(tag))


@spanned("pack")
def pack_groups(groups: Sequence[list[Trajectory]], ctx: LoopCtx, *, probe: bool = False) -> Batch:
    """Convert graded groups to the rows of a batch, in order; an empty group is one whose rollout failed. Raises
    AllFailedError if all have failed."""
    if groups and not any(groups):
        raise AllFailedError(f"every rollout failed; {'; '.join(ctx.problems)}")
    given = list(chain.from_iterable(groups))
    note_names(ctx.reward_names, given)
    unnamed = [] if is_any_silent(given) else _list_unnamed(given, ctx, probe=probe)
    groups = fill_unpaid(groups, ctx.reward_names, unnamed)
    if not probe:
        note_paid(ctx.reward_names, unnamed)
        ctx.latest = [g for g in groups if g]
        ctx.groups.extend(ctx.latest)
    elif ctx.probed is not None:
        ctx.probed.extend(g for g in groups if g)
    trajectories = list(chain.from_iterable(groups))
    batch = pack(trajectories, start=ctx.next_row)
    work("sampled", batch)
    ctx.next_row += len(batch)
    ctx.charge("decisions", int(batch["mask"].sum()))
    return add_reward(batch, ctx)


def collect_decisions(n: int, ctx: LoopCtx) -> Batch:
    """Collect at least n decisions of the rollout's lanes of environments, which write rows directly."""
    rollout: Any = ctx.rollout
    ctx.latest = []
    with span("generate"):
        batch = rollout.collect(n, ctx)
        note_paid(ctx.reward_names, (c.removeprefix("reward/") for c in batch.names() if c.startswith("reward/")))
        if unnamed := [name for name in ctx.weights if name not in ctx.reward_names]:
            raise _ungraded(unnamed[0], nearest(unnamed[0], ctx.reward_names), ctx)
        batch = add_reward(batch, ctx)
    work("sampled", batch)
    ctx.charge("decisions", int(batch["mask"].sum()))
    return batch


def add_reward(batch: Batch, ctx: LoopCtx) -> Batch:
    """Return the batch with the column `reward`: the sum of `reward/<name>`, weighted (weights may be schedules), over
    the names whose weight is not 0. It is NaN (ungraded) if one of them is missing, or if no name has a weight."""
    if not len(batch):
        return batch
    ungraded = torch.full(tuple(batch["mask"].shape), float("nan"))
    missing = {f"reward/{n}": ungraded for n in ctx.weights if f"reward/{n}" not in batch}
    batch = batch.put(missing) if missing else batch
    total: Any = None
    for name, number in ctx.weights.items():
        if weight := ctx.at(number):
            column = batch[f"reward/{name}"]
            total = column if weight == 1 and total is None else weight * column + (0 if total is None else total)
    if total is None:
        total = torch.zeros_like(ungraded) if ctx.weights else ungraded
    return batch.put({"reward": total})


def _list_unnamed(given: Sequence[Trajectory], ctx: LoopCtx, *, probe: bool) -> list[str]:
    """List the names with a weight that nobody has given in the whole run. For training data, raises KeyError if
    nothing is graded at all, and for a name that no component declares and that resembles a graded one. A `probe` may
    use another rollout than training, and a task of its own (`apart`) has other graders."""
    if ctx.apart:
        return []
    unnamed = [name for name in ctx.weights if name not in ctx.reward_names]
    if probe or not unnamed:
        return unnamed
    said = {
        column
        for c in (ctx.task, ctx.rollout, *ctx.rewards.values())
        for column in declares(c).stamps or ()
    }
    graded = ctx.reward_names or any(PAID in t.graded_by for t in given)
    for name in (name for name in unnamed if f"reward/{name}" not in said):
        near = nearest(name, ctx.reward_names) if graded else _UNGRADED
        if not graded or near.startswith("did you mean"):
            raise _ungraded(name, near, ctx)
        LOG.warning("[reward.weights] names %r, which nothing has given so far: it is 0 until something does", name)
    return unnamed


def _ungraded(name: str, near: str, ctx: LoopCtx) -> KeyError:
    message = f"[reward.weights] names {name!r}, which nothing grades; {near}"
    return KeyError("; ".join([message, *ctx.problems]))


def check_rounds(want: int, rounds: int, meter: Meter, ctx: LoopCtx) -> None:
    """Raise StalledError if a step still wants groups after so many rounds of collection that more will not help: after
    ROUNDS, or after SILENT if no sample of any round has a grade."""
    silent = meter.means().get("rollout/ungraded") == 1.0
    if rounds >= (SILENT if silent else ROUNDS):
        why = "; ".join(ctx.problems) or meter.why()
        raise StalledError(f"step {ctx.step}: {want} still wanted after {rounds} rounds of collection: {why}")


async def collect_group(request: Request, rollout: Rollout, ctx: LoopCtx) -> list[Trajectory]:
    """Roll out and grade one stamped request; empty if the rollout raised, which is counted and reported. If the run
    has workers, one of them does it."""
    unknown = set(request.settings) - set(rollout.accepts)
    if unknown:
        raise ValueError(f"the rollout takes no setting {min(unknown)!r}; {nearest(min(unknown), rollout.accepts)}")
    if ctx.crew is not None and (graded := await ctx.crew.play(request, rollout, ctx)) is not None:
        return list(graded)
    try:
        with contained():
            found = await rollout.group(request, ctx)
    except (MemoryError, FloatingPointError, ContractError):
        raise
    except Exception as error:
        REPLAYING.set(False)  # a group that had failed before is not asked for again
        ctx.record_failure("failed_rollouts", error)
        return []
    REPLAYING.set(False)
    return await grade_group(found, ctx)


async def grade_group(group: Sequence[Trajectory], ctx: LoopCtx, until: str = "") -> list[Trajectory]:
    """Grade a group by the task, then by the run's rewards in order, each at most once. A grader that raises gives
    None, and is counted and reported. Raises ContractError for what is no grade (`explain_grade`).

    `until`: a reward's name. Later graders are skipped once something in the group has it, if none of them has that
    name: a rollout that needs one reward on its way leaves judges of the whole group for the end.
    """
    with span("grade"):
        out = [t if "" in t.graded_by else _by_task(t, ctx) for t in group]
    names = list(ctx.rewards)
    for i, name in enumerate(names):
        if (
            until
            and until not in names[i:]
            and any(
                until in s.reward
                for t in out
                for s in t.steps
            )
        ):
            break
        if new := [j for j, t in enumerate(out) if name not in t.graded_by]:
            for j, t in zip(new, await _by_reward([out[j] for j in new], name, ctx), strict=True):
                out[j] = t
    return out


async def _by_reward(group: Sequence[Trajectory], name: str, ctx: LoopCtx) -> list[Trajectory]:
    reward, leaves = ctx.rewards[name], [len(t.paths()) for t in group]
    try:
        with contained():
            grades = list(await stretches("grade", reward.grade(group, ctx)))
    except ContractError:
        raise
    except Exception as error:
        ctx.record_failure("failed_graders", error, f"reward {name!r}")
        grades = [None] * sum(leaves)
    if len(grades) != sum(leaves):
        raise ValueError(f"{type(reward).__name__} gave {len(grades)} grades for {sum(leaves)} leaves")
    for grade in grades:
        if wrong := explain_grade(grade):
            raise ContractError(f"{type(reward).__name__}.grade (reward {name!r}) {wrong}")
    grades = [_without_overflow(grade, ctx, f"reward {name!r}") for grade in grades]
    ends = list(accumulate(leaves))
    return [t.graded(grades[end - n : end], by=name) for t, n, end in zip(group, leaves, ends, strict=True)]


def _by_task(t: Trajectory, ctx: LoopCtx) -> Trajectory:
    return t.graded([_task_grade(t, path, ctx) for path in t.paths()], by="")


def _task_grade(trajectory: Trajectory, path: tuple[int, ...], ctx: LoopCtx) -> Mapping[str, Any] | None:
    problem = trajectory.request.problem
    try:
        with contained(awaited=False):
            grade = ctx.task.grade(problem, [trajectory.steps[i] for i in path])
    except Exception as error:
        ctx.record_failure("failed_graders", error, f"task {problem.task!r}")
        return None
    if wrong := explain_grade(grade, own=True):
        raise ContractError(f"{type(ctx.task).__name__}.grade (problem {problem.id!r}) {wrong}")
    return _without_overflow(grade, ctx, f"task {problem.task!r}")


def _without_overflow(grade: Mapping[str, Any] | None, ctx: LoopCtx, whose: str) -> Mapping[str, Any] | None:
    """Return a grade that can be trained on; None for one that overflows, which is counted and reported as its grader's
    failure."""
    if wrong := find_overflow(grade):
        ctx.record_failure("failed_graders", OverflowError(f"it {wrong}"), whose)
        return None
    return grade
