"""Late advice: who is asked, when an answer arrives, whose row it is, and that a resumed run hears the same."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from shuhari.batch import Batch
from shuhari.buffers.replay import Replay
from shuhari.events import Collected
from shuhari.kernel.noise import CounterNoise, keys
from shuhari.tasks.gym import Gym
from shuhari.testing import context
from shuhari.transforms.advise import Advise

TASK = Gym("world/merge")


def rows(first: int, decides: list[bool]) -> Batch:
    """Rows whose observation is 0.1 times their id."""
    ids = torch.arange(first, first + len(decides))
    columns = {"id": ids, "context": 0.1 * ids[:, None].float().expand(-1, 7), "action": torch.zeros(len(ids), 2)}
    child = torch.full((len(ids),), -1)
    return Batch({**columns, "child": child, "mask": torch.tensor(decides)[:, None]})


def ctx_of(told: list) -> object:
    noise = lambda batch, name: CounterNoise(keys(3, name, n=len(batch)))  # noqa: E731
    return context(task=TASK, models={"policy": SimpleNamespace()}, tell=told.append, noise=noise)


def test_answers_arrive_after_so_many_decisions() -> None:
    """Three decisions and a closing row, then two and two more, at a delay of 3: of decisions 1 and 2 the answers are
    there after the fifth, of 3 and 4 after the seventh; nothing is known of what was just collected."""
    told: list = []
    ctx, advise, replay = ctx_of(told), Advise(delay=3, right=1.0), Replay(capacity=20, size=4)
    for batch in (rows(0, [True, True, True, False]), rows(4, [True, True]), rows(6, [True, True])):
        out = advise(batch, ctx)
        assert not out["advised"].any() and not out["advice"].any() and out["advice"].shape == (len(batch), 1, 2)
        replay.observe(Collected(out))
        for event in told[-1:] if len(batch) == 2 else ():
            replay.observe(event)
    assert [event.ids.tolist() for event in told] == [[0, 1], [2, 4]]
    kept = replay.state["ring"].columns
    assert kept["advised"][:8].tolist() == [True, True, True, False, True, False, False, False]
    for row in range(8):
        seen = np.full(7, 0.1 * row, np.float32)
        expected = TASK.expert(seen, None) if kept["advised"][row] else np.zeros(2)
        np.testing.assert_allclose(kept["advice"][row, 0], expected, atol=1e-6)


def test_without_a_delay_rows_carry_their_answers() -> None:
    told: list = []
    out = Advise(delay=0, right=1.0)(rows(0, [True, False]), ctx_of(told))
    assert out["advised"].tolist() == [True, False] and not told
    out = Advise(delay=1, right=1.0)(rows(0, [True, True, True]), ctx_of(told))
    assert out["advised"].tolist() == [True, True, False]


@pytest.mark.parametrize("right", [0.0, 0.8])
def test_how_often_the_advisor_is_right(right: float) -> None:
    """Of 400 answers a share within four standard deviations of 0.8; none for 0."""
    batch = rows(0, [True] * 400)
    said = Advise(delay=0, right=right)(batch, ctx_of([]))["advice"][:, 0].numpy()
    expert = np.stack([TASK.expert(x, None) for x in batch["context"].numpy()])
    assert np.isclose(said, expert, atol=1e-6).all(1).mean() == pytest.approx(right, abs=0.08 if right else 0.0)
