"""The context of a test is that of a run, and the scripted engine gives its script."""

from __future__ import annotations

import numpy as np
import pytest

from shuhari.data import Ramp, Sampling
from shuhari.events import Committed
from shuhari.testing import ScriptedEngine, context


def test_schedules_stand_at_the_step_or_where_it_is_said() -> None:
    ramp = Ramp(0.0, 1.0, over=10)
    assert context(step=5).at(ramp) == context(count=5).at(ramp) == 0.5
    assert context(step=5, count=10).at(ramp) == 1.0


def test_streams_are_named_and_seeded() -> None:
    def draw(ctx: object, name: str = "a") -> int:
        return int(ctx.rng(name).initial_seed())  # type: ignore[attr-defined]

    assert draw(context(1)) == draw(context(1))
    assert len({draw(context(1)), draw(context(2)), draw(context(1, step=1)), draw(context(1), "b")}) == 4


def test_it_keeps_what_is_charged_and_told() -> None:
    told: list[object] = []
    ctx = context(tell=told.append)
    ctx.charge("judged", 2)
    ctx.charge("judged", 1)
    ctx.tell(Committed(3))
    assert ctx.ledger == {"judged": 3} and told == [Committed(3)]
    with pytest.raises(TypeError, match="no 'weight'"):
        context(weight={})


def test_a_script_is_read_in_order_and_what_was_asked_is_kept() -> None:
    one, two = np.array([1, 2], np.int32), np.array([3], np.int32)
    engine = ScriptedEngine({"policy": [one, two], "judge": lambda context, i: np.array([i], np.int32)},
                            {"log_prob": lambda context, action: -float(len(action))})  # fmt: skip
    ctx = context(engine=engine)
    found = ctx.wait(engine.sample("policy", "q", Sampling(), 2, key=("a",)))
    assert [t.action.tolist() for t in found] == [[1, 2], [3]] and [len(t.logp) for t in found] == [2, 1]
    assert [int(t.action[0]) for t in ctx.wait(engine.sample("judge", "j", Sampling(), 2, key=("b",)))] == [0, 1]
    assert ctx.wait(engine.score("policy", "q", one, ["log_prob"]))["log_prob"].tolist() == [-2.0]
    assert engine.asked == [("sample", "policy", "q"), ("sample", "judge", "j"), ("score", "policy", "q")]
    with pytest.raises(IndexError, match="role 'policy' was asked for answer 3: its script has 2"):
        ctx.wait(engine.sample("policy", "q", Sampling(), key=("c",)))
