"""What the arrays of D4RL's and OGBench's files mean: where episodes end, and what is expected after a transition.

D4RL: `terminals` marks episodes that ended by themselves, `timeouts` those that were cut. OGBench: `terminals` marks
the last observation of a recording, which was cut; data for one task also have `rewards` and `masks`. A mask of 0
marks a reached goal, after which no reward is expected although the recording goes on. Axes: `N` rows of the arrays.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import torch
from torch import Tensor

from shuhari.buffers.recording import RecordedEpisode
from shuhari.data import Array

LAYOUT = ("observations", "actions", "rewards", "terminals", "timeouts", "next_observations")
FLAGS = ("terminals", "timeouts")  # a 0 or 1 for each row


def settle_ends(arrays: dict[str, Array]) -> None:
    """Convert the ends of OGBench's arrays to D4RL's: all are timeouts. If `valids` marks the transitions (OGBench's
    compact form, which marks the last two rows of each recording), the ends are taken from it."""
    over = arrays["terminals"]
    if "valids" in arrays and _is_flag(arrays["valids"]):
        over = 1 - arrays.pop("valids").astype(np.int64)
    arrays |= {"timeouts": over, "terminals": np.zeros_like(over)}


def bootstrap_by_masks(columns: dict[str, Tensor]) -> dict[str, Tensor]:
    """Returns the columns with `cont` 0 after each transition whose mask is 0, and without `masks`. A column of that
    name with other values than 0 and 1 is left as it is."""
    masks, decides = columns.get("masks"), columns["mask"].any(1)
    if masks is None or not _is_flag(masks[decides].numpy()):
        return columns
    after, cont = columns["child"][decides], columns["cont"].clone()
    cont[after] = torch.minimum(cont[after], masks[decides].float())
    return {**{name: x for name, x in columns.items() if name != "masks"}, "cont": cont}


def _is_flag(x: Array) -> bool:
    return x.ndim == 1 and bool(np.isin(x, (0, 1)).all())


def split_episodes(arrays: Mapping[str, Array], reward: str) -> list[RecordedEpisode]:
    over, end = arrays["terminals"].astype(bool), _find_ends(arrays)
    end[-1] = True
    more = {k: x for k, x in arrays.items() if k not in LAYOUT}
    episodes, start = [], 0
    for stop in (np.flatnonzero(end) + 1).tolist():
        seen = arrays["observations"][start:stop]
        if "next_observations" in arrays:
            seen, stop_at = np.concatenate([seen, arrays["next_observations"][stop - 1 : stop]]), stop
        elif over[stop - 1]:
            seen, stop_at = np.concatenate([seen, seen[-1:]]), stop  # worth nothing, so anything may stand there
        else:
            stop_at = stop - 1
        rows = slice(start, stop_at)
        earned = {reward: arrays["rewards"][rows]} if "rewards" in arrays else {}
        columns, finished = {k: x[rows] for k, x in more.items()}, bool(over[stop - 1]) and stop_at == stop
        episodes.append(RecordedEpisode(seen, arrays["actions"][rows], earned, finished, columns))
        start = stop
    return episodes


def _find_ends(arrays: Mapping[str, Array]) -> Array:
    """[n] whether a row is marked as the last of its episode."""
    over: Array = arrays["terminals"].astype(bool)
    return over | arrays["timeouts"].astype(bool) if "timeouts" in arrays else over.copy()


def list_gaps(arrays: Mapping[str, Array]) -> Iterator[str]:
    """Yields messages about ends of episodes that are missing or contradictory in the arrays."""
    n, end, over = len(arrays["actions"]), _find_ends(arrays), arrays["terminals"].astype(bool)
    if n > 1 and not end[:-1].any():
        yield f"no row is marked as an end (terminals, timeouts): its {n} rows are one episode"
    if "masks" in arrays and _is_flag(masks := arrays["masks"]) and len(odd := np.flatnonzero(over & (masks == 1))):
        yield (f"row {odd[0]}: terminals says that the episode ended by itself, and masks that it goes on (so in "
               f"{len(odd)} of {n}): learnt from as ended; if it was cut there, set layout = 'ogbench'")  # fmt: skip
    if "next_observations" in arrays:
        seen, behind = (arrays[k].reshape(n, -1) for k in ("observations", "next_observations"))
        gap = np.flatnonzero(~np.isclose(behind[:-1], seen[1:], 1e-4, 1e-4).all(1) & ~end[:-1])
        if len(gap):
            yield (f"row {gap[0]}: its next observation is not the observation of row {gap[0] + 1} (so in {len(gap)} "
                   f"of {n}): learnt from as one episode; mark in `timeouts` where it was cut")  # fmt: skip
