"""A running baseline for each problem, advantages shaped by entropy: numbers by hand, and a run of single answers."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from built import CLIP, holds, one_loss
from shuhari import testing
from shuhari.buffers.fresh import Fresh
from shuhari.curricula.sequential import Sequential
from shuhari.learners.parts import Term
from shuhari.methods.rlvr.mssr.entropy_shaping import EntropyShaping
from shuhari.methods.rlvr.mssr.tracked_advantage import Tracker
from shuhari.objectives.clip import Clip
from shuhari.testing import context, groups
from shuhari.transforms.advantage import Advantage
from sketches import harness
from sketches.toys import Echo


def single(rewards: list[float], names: list[int]) -> Any:
    """Answers of one token, each to the problem of that number."""
    return groups([[r] for r in rewards], lengths=1).put({"problem": torch.tensor(names)})


def test_the_baseline_is_what_was_known_before() -> None:
    """a = b = 1, keep = .9: the first answer is held to 1/2; a right one makes (1.9, 0.9), which says .6786."""
    tracker = Tracker(keep=0.9)
    first = tracker(single([1.0, 0.0], [7, 8]), context())
    assert first["surplus"].tolist() == pytest.approx([0.5, -0.5])
    assert tracker.state["trackers"] == {"7": pytest.approx([1.9, 0.9]), "8": pytest.approx([0.9, 1.9])}
    second = tracker(single([0.0, 1.0], [7, 9]), context())
    assert second["surplus"].tolist() == pytest.approx([-1.9 / 2.8, 0.5])  # .6786
    assert tracker.state["trackers"]["8"] == pytest.approx([0.9, 1.9])  # what was not visited stays


def test_nothing_is_forgotten_at_keep_1() -> None:
    tracker = Tracker(keep=1.0, prior=(2.0, 3.0))
    for reward in (1.0, 1.0, 0.0, 1.0):
        tracker(single([reward], [1]), context())
    assert tracker.state["trackers"]["1"] == [5.0, 4.0]


def test_several_answers_at_once_are_held_to_the_same_number_and_all_count() -> None:
    tracker = Tracker()
    batch = groups([[1.0, 1.0, 0.0, float("nan")]], lengths=2)
    out = tracker(batch, context())["surplus"]
    assert out[:3].tolist() == pytest.approx([0.5, 0.5, -0.5]) and bool(out[3].isnan())
    assert list(tracker.state["trackers"].values()) == [pytest.approx([2.9, 1.9])]


def test_whitened_over_the_batch() -> None:
    batch = Tracker()(single([1.0, 0.0, 0.0, float("nan")], [1, 2, 3, 4]), context())
    out = Advantage(column="surplus", unit="batch", scale="batch", ddof=0, eps=0.0)(batch, context())["advantage"]
    assert out.flatten().tolist() == pytest.approx([2**0.5, -(0.5**0.5), -(0.5**0.5), 0.0])


def test_rewards_that_are_no_rate_are_refused() -> None:
    with pytest.raises(ValueError, match="a success rate needs 0 to 1"):
        Tracker()(single([2.0], [1]), context())
    with pytest.raises(ValueError, match="keep is 0"):
        Tracker(keep=0.0)


# ---------------------------------------------------------------- entropy


def shaped(advantage: list[float], entropy: list[float], **settings: Any) -> Any:
    shaping = EntropyShaping(**settings)
    batch = groups([[0.0]], lengths=len(advantage))
    new = torch.tensor([entropy], requires_grad=True)
    batch = batch.put({"advantage": torch.tensor([advantage]), shaping.needs[0].key: new.detach()})
    return shaping(batch, context())["advantage"][0].tolist()


def test_the_bonus_by_hand() -> None:
    """alpha H = .4 is more than half of .6, and less than half of 2; nothing is added to 0."""
    assert shaped([0.6, 2.0, -0.6, -2.0, 0.0], [1.0] * 5) == pytest.approx([0.9, 2.4, -0.3, -1.6, 0.0])
    assert shaped([0.6, -2.0], [0.0, 5.0], kappa=4.0) == pytest.approx([0.6, -1.5])


def test_without_a_weight_nothing_changes_and_no_sign_ever_does() -> None:
    numbers = torch.randn(50, generator=torch.Generator().manual_seed(0))
    a, h = numbers.tolist(), (numbers.flip(0).abs() * 9).tolist()
    assert shaped(a, h, alpha=0.0) == pytest.approx(a)
    assert all(x * y > 0 and abs(x - y) <= abs(y) / 2 + 1e-6 for x, y in zip(shaped(a, h), a, strict=True))
    with pytest.raises(ValueError, match="kappa is 1"):
        EntropyShaping(kappa=1.0)


# ---------------------------------------------------------------- in a run


def run_of() -> Any:
    parts = {"policy": harness.part(clip=Term(Clip()))}
    collect = {
        "tracked_advantage": Tracker(),
        "advantage": Advantage(column="surplus", unit="batch", scale="batch"),
        "shaping": EntropyShaping(),
    }
    return harness.make(
        harness.stage(
            parts, task=Echo("abcdefgh"), buffer=Fresh(8), steps=3, curriculum=Sequential(), n=1, max_new=1,
            collect=collect,
        )
    )  # fmt: skip


def test_trackers_live_on_over_steps_and_a_restored_run_goes_on() -> None:
    run = run_of()
    list(harness.train(run))
    trackers = run.stage.collect["tracked_advantage"].state["trackers"]
    seen = 0.9 * (0.9 * (0.9 * 2 + 1) + 1) + 1  # eight problems, each three times
    assert [a + b for a, b in trackers.values()] == pytest.approx([seen] * 8)
    testing.check_resumed(run_of)


def test_numbers_of_the_paper() -> None:
    stage = holds(
        "rlvr/mssr",
        {
            "collect": {
                "tracked_advantage": Tracker(keep=0.9, prior=(1.0, 1.0)),
                "advantage": Advantage(column="surplus", centre="mean", unit="batch", scale="batch"),
                "entropy_shaping": EntropyShaping(alpha=0.4, kappa=2.0),
            },
            f"{CLIP}.objective": Clip(low=0.2, high=0.28),
        },
    )
    one_loss(stage)
