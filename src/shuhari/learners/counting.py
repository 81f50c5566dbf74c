"""Counts of a table with a finite horizon, for learners that plan by them: visits, rewards and next places by step.

State h * P + s is place s at step h. Axes: `B` rows, `H` steps, `P` places, `A` actions.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from shuhari.batch import Batch
from shuhari.learners.tables import sum_rewards


def make_counts(table: Tensor, horizon: int, learner: str) -> dict[str, Any]:
    """Returns the state of a learner of a table [(H + 1) P, A]: zeros `visits` and `earned`, sums of rewards, [H, P,
    A], `after` [H, P, A, P], visits of the next places, and `counted`, the ids of rows that have been counted. Raises
    ValueError if the states do not encode the step."""
    (S, A), H = table.shape, horizon
    P = S // (H + 1)
    if S != (H + 1) * P:
        message = f"expected a multiple of horizon + 1 = {H + 1}, as they encode the step"
        raise ValueError(f"{learner}: {S} states: {message}")
    shapes = {"visits": (H, P, A), "earned": (H, P, A), "after": (H, P, A, P)}
    return {
        **{name: torch.zeros(shape, dtype=torch.double) for name, shape in shapes.items()},
        "counted": torch.zeros(0, dtype=torch.long),
    }


def count_new(batch: Batch, state: dict[str, Any], learner: str) -> Batch:
    """Adds to the counts the decisions of a batch that were not counted before, and returns them, in order. Rows with
    an id below 0 are all new. The next place of a decision counts if the episode goes on. Raises ValueError if a state
    is not followed by one of the next step, and for rewards outside [0, 1]."""
    rows = batch.take(batch.decides)
    ids = rows["id"].numpy()
    first = np.sort(np.unique(np.where(ids < 0, -1 - np.arange(len(ids)), ids), return_index=True)[1])
    rows = rows.take(torch.from_numpy(first[~np.isin(ids[first], state["counted"].numpy())]))
    state["counted"] = torch.cat([state["counted"], rows["id"][rows["id"] >= 0]])
    if len(rows):
        _count(rows, state, learner)
    return rows


def split_states(states: Tensor, places: int) -> tuple[Tensor, Tensor]:
    """Returns (step, place) of states."""
    return states.long() // places, states.long() % places


def _count(rows: Batch, state: dict[str, Any], learner: str) -> None:
    behind = rows.successors()
    P = state["visits"].shape[1]
    h, s, on, there = *split_states(rows["context"], P), *split_states(behind["context"], P)
    if bool((on != h + 1).any()):
        raise ValueError(f"{learner}: a state of step h is not followed by one of step h + 1: expected states step * P "
                         "+ place")  # fmt: skip
    reward = sum_rewards(rows, learner)
    at = h, s, rows["action"].view(-1).long()
    state["visits"].index_put_(at, torch.ones_like(reward), accumulate=True)
    state["earned"].index_put_(at, reward, accumulate=True)
    goes_on = behind["cont"].view(len(rows), -1)[:, 0].double()
    state["after"].index_put_((*at, there), goes_on, accumulate=True)
