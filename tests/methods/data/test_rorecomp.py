"""Recomposed batches: which answers go now and which later, by hand; nothing is lost or doubled; alike in a run."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch

from shuhari.batch import Batch
from shuhari.buffers.fresh import Fresh
from shuhari.data import Ramp
from shuhari.events import Collected
from shuhari.learners.parts import Term
from shuhari.methods.data.rorecomp.recomposed import Recomposed
from shuhari.objectives.clip import Clip
from shuhari.ports import Buffer
from shuhari.testing import context, groups
from shuhari.transforms.advantage import Advantage
from sketches import harness
from sketches.toys import Echo

buffer: Buffer = Recomposed(Fresh())


def collected(start: int = 0) -> Batch:
    """Right answers of 3, 9, 5 and 7 tokens, wrong ones of 4, 8, 6 and 2, in two groups; an advantage a row."""
    batch = groups([[1.0, 0.0] * 2] * 2, [[3, 4, 9, 8], [5, 6, 7, 2]], start=start, stream=None)
    return batch.put({"advantage": start + torch.arange(8.0)[:, None] * batch["mask"]})


def stepped(of: Recomposed, batch: Batch | None, seed: int = 0, count: float = 0.0) -> list[Batch]:
    if batch is not None:
        of.of.observe(Collected(batch))  # type: ignore[attr-defined]
    return list(of.draw(context(seed, count=count)))


def made(**settings: Any) -> Recomposed:
    return Recomposed(Fresh(2), **settings)


def answers(batch: Batch) -> list[tuple[float, int]]:
    """(outcome, length), in order."""
    return [(float(r), int(m.sum())) for r, m in zip(batch.outcome(), batch["mask"], strict=True)]


def test_short_right_and_long_wrong_answers_go_now() -> None:
    of = made(share=0.5)
    (now,) = stepped(of, collected())
    assert sorted(answers(now)) == [(0.0, 6), (0.0, 8), (1.0, 3), (1.0, 5)]
    assert sorted(answers(of.state["kept"])) == [(0.0, 2), (0.0, 4), (1.0, 7), (1.0, 9)]


def test_lengths_compare_over_all_groups_and_shares_round_up() -> None:
    (now,) = stepped(made(share=0.3), collected())  # 1.2 of 4: two
    assert sorted(answers(now)) == [(0.0, 6), (0.0, 8), (1.0, 3), (1.0, 5)]
    (one,) = stepped(made(share=0.25), collected())
    assert sorted(answers(one)) == [(0.0, 8), (1.0, 3)]
    (alone,) = stepped(made(share=0.1), groups([[1.0, 0.0, 0.0]], [[7, 2, 3]], stream=None))
    assert sorted(answers(alone)) == [(0.0, 3), (1.0, 7)]


def test_equally_long_ones_in_order() -> None:
    (now,) = stepped(made(share=0.5), groups([[1.0] * 4], 3, stream=None))
    assert now["id"].tolist() == [0, 1]


def test_nothing_is_lost_or_doubled_and_what_waits_keeps_its_numbers() -> None:
    of, seen = made(share=0.5, size=4, again=1.0, oldest=9), Counter[tuple[float, ...]]()
    told = Counter(tuple(row) for s in (0, 8) for row in rows(collected(s)))
    for start in (0, 8):
        now, later = stepped(of, collected(start))
        seen.update(rows(now) + rows(later))
        assert {i // 8 for i in later["id"].tolist()} == {start // 8}  # the oldest come first
    assert of.state["kept"] is None and of.state["ages"] == []
    assert seen == told


def rows(batch: Batch) -> list[tuple[float, ...]]:
    columns = (batch["id"].tolist(), batch["advantage"][:, 0].tolist(), batch["logp"][:, 0].tolist())
    return list(zip(*columns, batch["group"].tolist(), strict=True))


def test_the_oldest_leave_first_and_too_old_ones_are_forgotten() -> None:
    of = made(share=0.5, size=6, again=1.0, oldest=1)
    assert len(stepped(of, collected(0))) == 1  # four wait, six are wanted
    _, later = stepped(of, collected(8))
    assert [i // 8 for i in later["id"].tolist()] == [0, 0, 0, 0, 1, 1]
    stepped(of, None)
    assert len(of.state["kept"]) == 2 and of.state["ages"] == [1, 1]
    stepped(of, None)
    assert of.state["kept"] is None


def test_a_whole_batch_of_what_was_left_over() -> None:
    """Eight answers a step of which four are left over: every second step there are eight."""
    of, found = made(share=0.5), []
    for start in range(0, 48, 8):
        found.append([len(b) for b in stepped(of, collected(start))])
    assert found == [[4], [4, 8]] * 3


def test_a_share_of_one_changes_nothing() -> None:
    plain, of = Fresh(2), made(share=1.0)
    batch = collected()
    plain.observe(Collected(batch))
    (theirs,) = plain.draw(context())
    (ours,) = stepped(of, batch)
    assert rows(ours) == rows(theirs) and of.state["kept"] is None


def test_the_chance_of_a_second_draw() -> None:
    """0: never; 1: always; between them as often as it says, and by a schedule."""

    def count(again: float | Ramp, at: float = 0.0) -> int:
        return sum(len(stepped(made(share=0.5, size=4, again=again), collected(), s, at)) - 1 for s in range(200))

    assert count(0.0) == 0 and count(1.0) == 200
    assert 30 <= count(0.2) <= 52  # 40, by twice the binomial deviation of 5.7
    ramp = Ramp(1.0, 0.0, over=10)
    assert count(ramp, 0.0) == 200 and count(ramp, 10.0) == 0


def test_what_is_ungraded_or_weighs_nothing_is_neither() -> None:
    batch = groups([[1.0, None, 0.0, 0.0]], [[2, 3, 4, 5]], stream=None)
    batch = batch.put({"weight/rl": torch.tensor([1.0, 1.0, 1.0, 0.0])[:, None] * batch["mask"]})
    of = made(share=0.1)
    (now,) = stepped(of, batch)
    assert now["id"].tolist() == [0, 2] and of.state["kept"] is None


def test_at_random_as_many() -> None:
    found = {tuple(stepped(made(share=0.5, pick="random"), collected(), seed)[0]["id"].tolist()) for seed in range(20)}
    assert len(found) > 5
    for ids in found:
        assert sum(i % 2 == 0 for i in ids) == 2 and len(ids) == 4  # right answers have even numbers


def test_links_are_refused() -> None:
    batch = collected().link("pair", torch.tensor([[0, 1]]))
    with pytest.raises(ValueError, match=r"linked .pair."):
        stepped(made(), batch)


@pytest.mark.parametrize("settings", [{"share": 1.0}, {"share": 0.5, "again": 0.0}])
def test_in_a_run(settings: dict[str, Any]) -> None:
    """A share of 1 trains the very weights that `fresh` does; a share of a half trains others."""
    plain, ours = weights(Fresh(2)), weights(Recomposed(Fresh(2), **settings))
    assert (plain == ours) is (settings["share"] == 1.0)


def weights(of: Buffer) -> list[float]:
    parts = {"policy": harness.part(clip=Term(Clip()))}
    stage = harness.stage(
        parts, task=Echo("abcdefgh"), buffer=of, steps=2, n=8, max_new=1, collect={"advantage": Advantage()}
    )
    run = harness.make(stage, seed=3)
    list(harness.train(run))
    return [float(p.detach().sum()) for p in run.ctx.models["policy"].module.parameters()]
