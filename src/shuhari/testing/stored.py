"""Checks of the sources of batches other than rollouts: buffers, and recorded data.

Axes: `B` rows, `N` rows of a data set.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from gymnasium.spaces import Box
from torch import Tensor

from shuhari.batch import POINTERS, Batch
from shuhari.events import Collected, Event, Updated
from shuhari.kernel import state
from shuhari.kernel.pack import CORE
from shuhari.loop.breaches import DRAWS, copy_columns, generator_states
from shuhari.ports.declares import declares, is_among
from shuhari.ports.hooks import ability
from shuhari.testing.batches import groups, transitions
from shuhari.testing.context import context
from shuhari.testing.looking import check_repeats, require, require_port, require_same, require_unchanged, to_tree
from shuhari.testing.spying import watch_declared

Offer = Callable[[int, int], Batch]
"""(number of the offer, how much is wanted) -> a batch as it is collected, with row ids of its own"""
ROUNDS = 20  # offers that a buffer may go on wanting more after
LEFT_OUT = (*POINTERS, "leaf", "step", "length", "resumes")  # of the batch alone


def check_buffer(
    buffer: Any,
    ctx: Any = None,
    *,
    offers: Offer | None = None,
    unit: Literal["group", "decision"] = "group",
    n: int = 4,
) -> None:
    """Offer a buffer what it wants and draw from it, n times.

    It must stop wanting more at some point, draw batches that carry a stream and whose rows are as they were offered,
    leave an offered batch unchanged, repeat its results, and resume from its state (and by `restart`).

    ctx: for a buffer that reads a task or uses models. offers: the collected batches; by default groups of texts or,
    with `unit` "decision", transitions. If it declares that it hears of losses (`hears`), they are made up.
    """
    require_port("buffer", buffer)
    made = offers or (_groups if unit == "group" else partial(_decisions, task=None if ctx is None else ctx.task))
    run, drew = context() if ctx is None else ctx, list[int]()

    def at(i: int) -> Any:
        own = run.fork()
        own.step, own.tell = i, lambda event: None
        return own

    def use(mine: Any, given: dict[str, Any], i: int) -> Any:
        for _ in range(ROUNDS):
            wanted = mine.wanted()
            require(isinstance(wanted, int) and wanted >= 0, buffer, f"wants {wanted!r}: expected a count")
            if given["step"] == i and not wanted:
                break
            batch = made(given["offers"], wanted)
            given["step"], given["offers"] = i, given["offers"] + 1
            for listener in state.listeners(mine):
                inspect_observing(listener, listener.observe, Collected(batch))
            given["rows"] |= _rows(batch)
        require(not mine.wanted(), buffer, f"still wants {mine.wanted()} after {ROUNDS} offers of what it wanted")
        now, out = at(i), []
        drawn = inspect_draws(mine, mine.draw, now)
        for j in range(ROUNDS):
            with now.phase("check", j):
                if (found := next(drawn, None)) is None:
                    break
                out.append(_compare_rows(buffer, found, given["rows"]))
                drew.append(len(found))
            if heard := declares(mine).hears:
                news = {name: torch.linspace(0.1, 1.0, len(found)) for name in heard}
                for listener in state.listeners(mine):
                    listener.observe(Updated("main", {}, found["id"], news))
        return out

    def resume(mine: Any, given: Any) -> None:
        for _, part in state.walk(mine):
            ability(part, "restart")(at(given["step"]))

    check_repeats(buffer, use, n=n, world=lambda: {"offers": 0, "step": -1, "rows": {}}, resume=resume)
    require(any(drew), buffer, f"drew nothing in {n} steps")


def check_recording(recording: Any, task: Any, seed: int = 0) -> Mapping[str, Tensor]:
    """Read recorded episodes and look at their columns, which are returned.

    They must be whole columns of one length in episode order, each episode's decisions and then its closing row, and
    the same when read again. Columns beyond the usual ones of a recording must be declared, if it declares `stamps`. No
    global generator may be drawn from.
    """
    require_port("recording", recording)
    before = generator_states()
    found = recording.read(task, seed)
    require(generator_states() == before, recording, DRAWS)
    require_same(to_tree(dict(found)), to_tree(dict(recording.read(task, seed))), recording, "read something else "
                 "when it was asked again with the same seed")  # fmt: skip
    for name in ("mask", "cont", "child", "last", "episode"):
        require(name in found, recording, f"gave no column {name!r}: make them by buffers.recording.columns_of")
    require("taken" in found or "action" in found, recording, "gave no actions: expected a column 'taken'")
    require(any(x.partition("/")[0] == "context" for x in found), recording, "gave no observations: expected 'context'")
    n = len(found["mask"])
    stamps = declares(recording).stamps
    own = None if stamps is None else (*CORE, "taken", "last", "context", "context/*", *stamps)
    for name, column in found.items():
        require(len(column) == n, recording, f"gave {len(column)} rows of {name!r}: expected {n}")
        known = own is None or is_among(name, own)
        require(known, recording, f"gave the column {name!r}, which its `stamps` leave out: {', '.join(stamps or ())}")
    decides, last, child, episode = found["mask"].any(1), found["last"], found["child"], found["episode"]
    rows = torch.arange(n)
    require(torch.equal(decides, last != rows), recording, "gave a closing row that decides, or an episode without one")
    require(bool((child == torch.where(decides, rows + 1, -1)).all()), recording, "gave rows that are not in the order "
            "of their episodes: expected `child` to be the next row")  # fmt: skip
    require(bool((episode[last] == episode).all()), recording, "gave an episode that ends in another one (`last`)")
    return found


def inspect_draws(self: Any, call: Callable[..., Any], ctx: Any) -> Iterator[Batch]:
    """Yield the batches of a call of `draw`, each checked."""
    drawn = iter(call(ctx))
    while (batch := watch_declared(self, lambda: next(drawn, None), keeps=True)()) is not None:
        require(isinstance(batch, Batch), self, f"drew a {type(batch).__name__}: expected a batch")
        yield batch


def inspect_observing(self: Any, call: Callable[..., Any], event: Event) -> None:
    """Check one event at a component: a collected batch must be left unchanged."""
    before = copy_columns(event.batch) if isinstance(event, Collected) else {}
    watch_declared(self, lambda: call(event), keeps=True)()
    if isinstance(event, Collected):
        require_unchanged(self, event.batch, before)


def _compare_rows(buffer: Any, batch: Any, offered: Mapping[int, Mapping[str, Any]]) -> Any:
    """Return a drawn batch as a tree, after comparing its rows with the offered ones."""
    require(isinstance(batch, Batch), buffer, f"drew a {type(batch).__name__}: expected a batch")
    streams = [name for name in batch.names() if name.startswith("weight/")]
    require(batch.stream or streams, buffer, "drew rows that carry no stream: expected batch.stream, or a "
            "column 'weight/<stream>'")  # fmt: skip
    for i, own in _rows(batch).items():
        for name, value in offered.get(i, {}).items():
            require(name not in own or _same(own[name], value), buffer, f"drew row {i} with another {name!r} than it "
                    "was offered with")  # fmt: skip
    return {"stream": batch.stream, "columns": {name: batch[name] for name in sorted(batch.names())}}


def _rows(batch: Batch) -> dict[int, dict[str, Any]]:
    """Return id -> the columns of that row, as they must come back; for text also its action."""
    names = [n for n in batch.names() if n not in LEFT_OUT and not n.startswith("weight/")]
    actions = {"tokens": [torch.from_numpy(s.action) for s in batch.steps]} if "length" in batch else {}
    columns: dict[str, Any] = {**{n: batch[n] for n in names}, **actions}
    return {
        i: {n: x[j] for n, x in columns.items()}
        for j, i in enumerate(batch["id"].tolist())
    }


def _same(a: Tensor, b: Tensor) -> bool:
    """Whether two rows are the same, up to padding."""
    if a.dim() and b.dim() and a.shape != b.shape:
        k = min(len(a), len(b))
        a, b = a[:k], b[:k]
    return bool(torch.equal(torch.nan_to_num(a.double(), 7e7), torch.nan_to_num(b.double(), 7e7)))


def _groups(k: int, wanted: int) -> Batch:
    rewards = [[1.0, 0.0], [0.0, 0.5]] * max(1, (wanted + 1) // 2)
    return groups(rewards, start=10_000 * k)


def _decisions(k: int, wanted: int, task: Any = None) -> Batch:
    """Make transitions; if the task's observations and actions are flat Boxes, as wide as these."""
    rewards = [[0.0, 0.5, 1.0], [1.0]] * max(1, -(-wanted // 4))
    found = ability(task, "spaces")() or (None, None)
    seen, does = (s.shape[0] if isinstance(s, Box) and len(s.shape) == 1 else 0 for s in found)
    actions = [[np.zeros(does, np.float32)] * len(episode) for episode in rewards] if does else None
    return transitions(rewards, start=10_000 * k, width=seen or 2, actions=actions)


