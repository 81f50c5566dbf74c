"""From requests to a graded batch: rollouts side by side, the task's grade, other rewards, one trained reward."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import torch

from shuhari.batch import Batch
from shuhari.data import ContractError, Request, StalledError, Trajectory, copy_with, nearest
from shuhari.engines.clock import run_together
from shuhari.engines.time_limit import contained
from shuhari.kernel.measure import Meter
from shuhari.kernel.pack import pack
from shuhari.kernel.profile import span, spanned, stretches, work
from shuhari.ports import REPLAYING, Rollout
from shuhari.tasks.contract import explain_grade, find_overflow

if TYPE_CHECKING:
    from shuhari.loop.asks import LoopCtx

_UNGRADED = "neither the task (has a file answers?) nor a [reward.<name>] does, and buffers of data need neither"
ROUNDS = 20  # of collection in one step, before a filter that rejects nearly everything is an error
SILENT = 3  # of them, before graders that grade nothing are one


class AllFailedError(RuntimeError):
    """Every rollout of a batch has raised, so that there is nothing to learn from."""


async def collect_groups(requests: Sequence[Request], ctx: LoopCtx, *, tag: str = "") -> Batch:
    """Roll out and grade each request, side by side; rows in request order. A rollout that raises is counted, shown,
    and leaves its group out."""
    asked = [ctx.stamp_request(r, tag) for r in requests]
    assert ctx.rollout is not None
    finished = await run_together(collect_group(r, ctx.rollout, ctx) for r in asked)
    return pack_groups(finished, ctx, probe=bool(tag))


@spanned("pack")
def pack_groups(groups: Sequence[list[Trajectory]], ctx: LoopCtx, *, probe: bool = False) -> Batch:
    """Graded groups as the rows of a batch, in their order; an empty group is one whose rollout failed. Raises
    AllFailedError where all have failed."""
    if groups and not any(groups):
        raise AllFailedError(f"every rollout failed; {'; '.join(ctx.problems)}")
    if not probe:
        ctx.latest = [g for g in groups if g]
        ctx.groups.extend(ctx.latest)
    trajectories = [t for g in groups for t in g]
    batch = pack(trajectories, start=ctx.next_row)
    work("sampled", batch)
    ctx.next_row += len(batch)
    ctx.charge("decisions", int(batch["mask"].sum()))
    return add_reward(batch, ctx, silent=is_any_silent(trajectories), probe=probe)


def collect_decisions(n: int, ctx: LoopCtx) -> Batch:
    """At least n decisions of the rollout's lanes of environments, which write rows directly."""
    rollout: Any = ctx.rollout
    ctx.latest = []
    with span("generate"):
        batch = add_reward(rollout.collect(n, ctx), ctx)
    work("sampled", batch)
    ctx.charge("decisions", int(batch["mask"].sum()))
    return batch


def add_reward(batch: Batch, ctx: LoopCtx, *, silent: bool = False, probe: bool = False) -> Batch:
    """With the column `reward`: the sum of `reward/<name>`, weighted (by schedules, too); NaN (ungraded) where a name
    is missing.

    `silent`: a grader that was asked graded nothing of this batch, so that its names cannot be known. Where none was,
    a weight whose name nothing has graded in the whole run is a mistake: KeyError. A `probe` may find nothing graded at
    all: then it is one of a run without rewards (preferences, imitation), and measures nothing; and on a task of its
    own (`apart`) other names may be graded than those that are trained."""
    if not len(batch):
        return batch
    ctx.reward_names |= {n.removeprefix("reward/") for n in batch.names() if n.startswith("reward/")}
    unknown = (
        None
        if silent or ctx.apart or (probe and not ctx.reward_names)
        else next((n for n in ctx.weights if n not in ctx.reward_names), None)
    )
    if unknown is not None:
        near = nearest(unknown, ctx.reward_names) if ctx.reward_names else _UNGRADED
        message = f"[reward.weights] names {unknown!r}, which nothing grades; {near}"
        raise KeyError("; ".join([message, *ctx.problems]))
    ungraded = torch.full(tuple(batch["mask"].shape), float("nan"))
    missing = {f"reward/{n}": ungraded for n in ctx.weights if f"reward/{n}" not in batch}
    batch = batch.put(missing) if missing else batch
    total: Any = None
    for name, number in ctx.weights.items():
        column, weight = batch[f"reward/{name}"], ctx.at(number)
        total = column if weight == 1 and total is None else weight * column + (0 if total is None else total)
    return batch.put({"reward": ungraded if total is None else total})


def check_rounds(want: int, rounds: int, meter: Meter, ctx: LoopCtx) -> None:
    """StalledError where a step still wants something after so many rounds of collection that no more will help:
    after ROUNDS, or after SILENT where no sample of any round has a grade."""
    silent = meter.means().get("rollout/ungraded") == 1.0
    if rounds >= (SILENT if silent else ROUNDS):
        why = "; ".join(ctx.problems) or meter.why()
        raise StalledError(f"step {ctx.step}: {want} still wanted after {rounds} rounds of collection: {why}")


async def collect_group(request: Request, rollout: Rollout, ctx: LoopCtx) -> list[Trajectory]:
    """One stamped request rolled out and graded; empty where the rollout raised, which is counted and shown. One of the
    run's workers does it where there are some."""
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
    """By the task, then by the rewards of the run in their order, each asked of what it was not asked before; a grader
    that raises gives None, is counted and shown. ContractError for what is no grade (`explain_grade`).

    `until`: a reward's name. The later graders are not asked once something of the group has it, if none of them is
    called so: a rollout that looks at one reward on its way leaves what judges the whole group for the end."""
    with span("grade"):
        out = [t if "" in t.graded_by else _by_task(t, ctx) for t in group]
    names = list(ctx.rewards)
    for i, name in enumerate(names):
        if until and until not in names[i:] and any(until in s.reward for t in out for s in t.steps):
            break
        if new := [j for j, t in enumerate(out) if name not in t.graded_by]:
            for j, t in zip(new, await _by_reward([out[j] for j in new], name, ctx), strict=True):
                out[j] = t
    return out


def is_any_silent(trajectories: Iterable[Trajectory]) -> bool:
    """Whether somebody who was asked has graded nothing of them at all."""
    spoke: dict[str, bool] = {}
    for t in trajectories:
        for grader, gave in t.graded_by.items():
            spoke[grader] = spoke.get(grader, False) or gave
    return not all(spoke.values())


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
    """What its environment has paid counts as given by the task."""
    own = t.graded([_task_grade(t, path, ctx) for path in t.paths()], by="")
    paid = not own.graded_by[""] and any(s.reward for s in t.steps)
    return copy_with(own, graded_by={**own.graded_by, "": True}) if paid else own


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
    """A grade that can be learnt from; None for one that overflows, which is its grader's failure: counted, shown."""
    if wrong := find_overflow(grade):
        ctx.record_failure("failed_graders", OverflowError(f"it {wrong}"), whose)
        return None
    return grade
