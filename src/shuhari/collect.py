"""From requests to a graded batch: rollouts side by side, the task's grade, other rewards, one trained reward."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from shuhari.batch import Batch
from shuhari.data import Request, Trajectory, nearest
from shuhari.pack import pack

if TYPE_CHECKING:
    from shuhari.context import Context


async def groups(requests: Sequence[Request], ctx: Context, *, tag: str = "") -> Batch:
    """Roll out and grade each request, side by side; rows in request order. A rollout that raises is counted, shown,
    and leaves its group out."""
    stamped = [ctx.stamped(r, tag) for r in requests]
    finished = await asyncio.gather(*(_group(r, ctx) for r in stamped))
    if requests and not any(finished):
        raise RuntimeError(f"every rollout failed; {'; '.join(ctx.problems)}")
    if not tag:
        ctx.groups.extend(g for g in finished if g)
    return packed([t for group in finished for t in group], ctx)


def packed(trajectories: Sequence[Trajectory], ctx: Context) -> Batch:
    """Rows with ids of their own and the trained reward summed."""
    batch = pack(trajectories, start=ctx.next_row)
    ctx.next_row += len(batch)
    return rewarded(batch, ctx.weights, failing="failed_graders" in ctx.ledger)


def rewarded(batch: Batch, weights: Mapping[str, float], *, failing: bool = False) -> Batch:
    """With the column `reward`: the weighted sum of `reward/<name>`. Where graders are `failing`, a name that nothing
    graded is NaN; else it is a KeyError."""
    if not len(batch):
        return batch
    have = [n.removeprefix("reward/") for n in batch.names() if n.startswith("reward/")]
    total: Any = None
    for name, weight in weights.items():
        column = batch.get(f"reward/{name}")
        if column is None:
            if not failing:
                raise KeyError(f"[reward.weights] names {name!r}, which nothing grades; {nearest(name, have)}")
            column = torch.full(tuple(batch["mask"].shape), float("nan"))
        total = column if weight == 1 and total is None else weight * column + (0 if total is None else total)
    return batch.put({"reward": total})


async def _group(request: Request, ctx: Context) -> list[Trajectory]:
    assert ctx.rollout is not None
    unknown = set(request.settings) - set(ctx.rollout.accepts)
    if unknown:
        raise ValueError(f"the rollout takes no setting {min(unknown)!r}; {nearest(min(unknown), ctx.rollout.accepts)}")
    try:
        group = await ctx.rollout.group(request, ctx)
    except (MemoryError, FloatingPointError):
        raise
    except Exception as error:
        ctx.complain("failed_rollouts", error)
        return []
    return await graded(group, ctx)


async def graded(group: Sequence[Trajectory], ctx: Context) -> list[Trajectory]:
    """By the task, then by the rewards of the run; a grader that raises gives None, is counted and shown."""
    out = [t.graded([_by_task(t, path, ctx) for path in t.paths()]) for t in group]
    for reward in ctx.rewards.values():
        leaves = [len(t.paths()) for t in out]
        try:
            grades = list(await reward.grade(out, ctx))
        except Exception as error:
            ctx.complain("failed_graders", error)
            grades = [None] * sum(leaves)
        if len(grades) != sum(leaves):
            raise ValueError(f"{type(reward).__name__} gave {len(grades)} grades for {sum(leaves)} leaves")
        done, regraded = 0, []
        for t, n in zip(out, leaves, strict=True):
            regraded.append(t.graded(grades[done : done + n]))
            done += n
        out = regraded
    return out


def _by_task(trajectory: Trajectory, path: tuple[int, ...], ctx: Context) -> Mapping[str, Any] | None:
    try:
        grade = ctx.task.grade(trajectory.request.problem, [trajectory.steps[i] for i in path])
    except Exception as error:
        ctx.complain("failed_graders", error)
        return None
    return grade
