"""Batches for tests, packed as a run packs them: groups of answers with their rewards, and chains of transitions.

Axes: `B` rows, `K` positions of a row, `T` steps of an episode.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shuhari.batch import Batch
from shuhari.data import Problem, Request, Status, Step, Trajectory
from shuhari.kernel.pack import pack


def groups(
    rewards: Sequence[Sequence[float | None]],
    lengths: Sequence[Sequence[int]] | int = 3,
    *,
    name: str = "score",
    logp: float = -1.0,
    vocabulary: int = 5,
    start: int = 0,
    stream: str | None = "rl",
    columns: Mapping[str, Tensor] | None = None,
) -> Batch:
    """Groups of answers: one row a sample, in order, with columns `reward` and `reward/<name>`, its value on the last
    token (None: ungraded, NaN).

    `lengths`: tokens of each answer, or one number for all. Token ids count through the vocabulary, prompts have one
    token. `logp`: log-probability of every token, as sampled. `start`: the id of the first row and the number of the
    first problem. `stream`: the stream that all rows carry, as in a batch drawn from a buffer; None: none, as
    collected. `columns` are added to the batch, or replace its own.
    """
    trajectories = []
    for g, group in enumerate(rewards):
        request = Request(Problem("test", str(start + g), None), len(group), key=f"{start + g}#0")
        for i, reward in enumerate(group):
            k = lengths if isinstance(lengths, int) else lengths[g][i]
            answer = (np.arange(k) + g + i).astype(np.int32) % vocabulary
            step = Step.of(np.array([g % vocabulary], np.int32), answer, np.full(k, logp, np.float32))
            graded = Trajectory(request, (step,)).graded([{name: float("nan") if reward is None else reward}])
            trajectories.append(graded)
    batch = pack(trajectories, start=start)
    batch.stream = stream
    return batch.put({"reward": batch[f"reward/{name}"], **(columns or {})})


def transitions(
    rewards: Sequence[Sequence[float]],
    *,
    width: int = 2,
    actions: Sequence[Sequence[Any]] | None = None,
    finished: Sequence[bool] | bool = True,
    logp: float | None = -1.0,
    start: int = 0,
    stream: str | None = "rl",
    columns: Mapping[str, Tensor] | None = None,
) -> Batch:
    """Episodes of an environment: one row a decision, and a closing row an episode, in order; columns `reward`,
    `reward/task` and, as recorded data have it, `last` [B], the row where the episode ends.

    rewards: one per step of each episode. Observations [width] are drawn from a fixed seed; actions are 0 unless they
    are given. `finished`: whether an episode (or each of them) was finished; else it was truncated, and its closing row
    has `cont` 1. `logp` None: the log-probability of the actions is unknown. `start`, `stream`: as in `groups`.
    """
    rng = np.random.default_rng(0)
    trajectories = []
    for e, episode in enumerate(rewards):
        ended = finished if isinstance(finished, bool) else finished[e]
        steps: list[Step] = []
        for t, reward in enumerate(episode):
            action = np.asarray(0 if actions is None else actions[e][t])
            likely = None if logp is None else np.full(1, logp, np.float32)
            seen = rng.normal(size=width).astype(np.float32)
            steps.append(Step.of(seen, action, likely, parent=t - 1 if t else None, reward={"task": reward}))
        final = rng.normal(size=width).astype(np.float32)
        steps.append(Step.closing(final, len(episode) - 1, 0.0 if ended else 1.0))
        status = Status.FINISHED if ended else Status.TRUNCATED
        request = Request(Problem("test", str(start + e), None), 1, key=f"{start + e}#0")
        trajectories.append(Trajectory(request, tuple(steps), status))
    batch = pack(trajectories, start=start)
    batch.stream = stream
    lengths = torch.tensor([len(episode) + 1 for episode in rewards])
    last = (lengths.cumsum(0) - 1).repeat_interleave(lengths)
    return batch.put({"reward": torch.nan_to_num(batch["reward/task"]), "last": last, **(columns or {})})
