"""Replayed groups: whole, with what they had, the newest of each problem, mixed ones alone, first in first out."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from shuhari import testing
from shuhari.batch import Batch
from shuhari.buffers.fresh import Fresh
from shuhari.buffers.groups import Groups
from shuhari.buffers.mixture import Mixture
from shuhari.data import code
from shuhari.events import Collected, Event
from shuhari.learners.parts import Term
from shuhari.objectives.clip import Clip
from shuhari.ports import Buffer
from shuhari.testing import context
from shuhari.transforms.advantage import Advantage
from sketches import harness
from sketches.toys import Echo, Watch

replay: Buffer = Groups()


def collected(step: int, samples: dict[str, list[float]], **columns: Any) -> Batch:
    """A step's batch of single decisions: problem -> outcomes of its samples."""
    names = [name for name, outcomes in samples.items() for _ in outcomes]
    n, outcome = len(names), torch.tensor([x for outcomes in samples.values() for x in outcomes])
    whole = {
        "mask": torch.ones(n, 1, dtype=torch.bool),
        "logp": torch.full((n, 1), -float(step)),
        "problem": torch.tensor([code(name) for name in names]),
        "group": torch.tensor([code(name, step) for name in names]),
        "episode": 100 * step + torch.arange(n),
        "reward": outcome[:, None],
    }
    return Batch(whole | columns)


def stepped(buffer: Groups, *batches: Batch, seed: int = 0) -> Batch | None:
    """One step: what was collected, and what is drawn."""
    for batch in batches:
        buffer.observe(Collected(batch))
    return next(iter(buffer.draw(context(seed))), None)


def names(batch: Batch | None) -> list[tuple[str, int]]:
    """(problem, step) of the groups, in order."""
    if batch is None:
        return []
    letters = {code(x): x for x in "abcdefghij"}
    pairs = zip(batch["problem"].tolist(), batch["logp"][:, 0].tolist(), strict=True)
    return list(dict.fromkeys((letters[p], -int(s)) for p, s in pairs))


MIXED, RIGHT, WRONG = [1.0, 0.0], [1.0, 1.0], [0.0, 0.0]


def test_groups_of_earlier_steps_come_back_whole_and_mixed_ones_alone() -> None:
    buffer = Groups(size=8)
    assert buffer.wanted() == 0
    assert stepped(buffer, collected(0, {"a": MIXED, "b": RIGHT, "c": WRONG, "d": [0.0, 1.0, 1.0]})) is None
    drawn = stepped(buffer, collected(1, {"e": MIXED}))
    assert names(drawn) == [("a", 0), ("d", 0)]
    assert drawn is not None and drawn["reward"][:, 0].tolist() == [1, 0, 0, 1, 1]
    assert drawn.weight("rl")[:, 0].tolist() == [1] * 5
    assert names(stepped(buffer)) == [("a", 0), ("d", 0), ("e", 1)]  # also where a step collects nothing


def test_of_a_problem_the_newest_group_counts_and_never_beside_an_older_one() -> None:
    buffer = Groups(size=8)
    stepped(buffer, collected(0, {"a": MIXED, "b": MIXED, "c": MIXED}))
    assert names(stepped(buffer, collected(1, {"a": MIXED, "b": RIGHT}))) == [("c", 0)]
    assert names(stepped(buffer)) == [("c", 0), ("a", 1)]  # b is all right by now
    twice = Groups(size=8)
    stepped(twice, collected(0, {"a": MIXED}), collected(1, {"a": MIXED}))
    assert names(stepped(twice)) == [("a", 1)]


def test_the_first_in_are_the_first_out() -> None:
    buffer = Groups(size=8, capacity=3)
    for step, letters in enumerate(("ab", "c", "de")):
        stepped(buffer, collected(step, dict.fromkeys(letters, MIXED)))
    assert names(stepped(buffer)) == [("c", 1), ("d", 2), ("e", 2)]


def test_a_draw_is_random_and_without_replacement() -> None:
    seen = set()
    for seed in range(30):
        buffer = Groups(size=2)
        stepped(buffer, collected(0, dict.fromkeys("abc", MIXED)))
        found = names(stepped(buffer, seed=seed))
        assert len(found) == 2
        seen.add(tuple(found))
    assert len(seen) == 3


def test_weights_are_kept_and_answers_of_models_are_not() -> None:
    batch = collected(0, {"a": MIXED, "b": MIXED}, advantage=torch.tensor([[1.0], [-1.0], [2.0], [-2.0]]))
    batch = batch.put({"weight/rl": torch.tensor([[1.0], [0.5], [0.0], [0.0]])})
    batch = batch.put({"reference/log_prob": torch.ones(4, 1)}, scored=True)
    buffer = Groups(size=2)
    stepped(buffer, batch)
    drawn = stepped(buffer)
    assert drawn is not None and names(drawn) == [("a", 0)]  # b weighs nothing
    assert drawn.weight("rl")[:, 0].tolist() == [1, 0.5] and drawn["advantage"][:, 0].tolist() == [1, -1]
    assert "reference/log_prob" not in drawn


# ---------------------------------------------------------------- in a run


def run_of(buffer: Buffer, steps: int = 3, seed: int = 3, **more: Any) -> Any:
    parts = {"policy": harness.part(clip=Term(Clip()))}
    return harness.make(
        harness.stage(
            parts, task=Echo("abcdefgh"), buffer=buffer, steps=steps, n=8, max_new=1,
            collect={"advantage": Advantage()}, **more,
        ),
        seed=seed,
    )  # fmt: skip


def test_replayed_rows_have_the_behaviour_and_the_advantage_of_their_own_step() -> None:
    heard: list[Batch] = []

    class Listen(Groups):
        def observe(self, event: Event) -> None:
            super().observe(event)
            if isinstance(event, Collected):
                heard.append(event.batch)

    watch = Watch()
    run = run_of(Mixture({"fresh": Fresh(2), "replay": Listen(2)}), transforms={"watch": watch})
    reports = list(harness.train(run))
    last = watch.seen[-1]
    old = last["version"][:, 0] < 2
    assert int(old.sum()) in (8, 16) and int((~old).sum()) == 16
    assert not set(last["problem"][old].tolist()) & set(last["problem"][~old].tolist())
    stored = {int(i): (b, r) for b in heard for r, i in enumerate(b["id"])}
    for row in old.nonzero().squeeze(1).tolist():
        batch, r = stored[int(last["id"][row])]
        assert last["logp"][row, 0] == batch["logp"][r, 0]
        assert last["advantage"][row, 0] == batch["advantage"][r, 0] != 0
    for g in last["group"][old].unique():
        rows = last["group"] == g
        assert int(rows.sum()) == 8 and float(last["advantage"][rows].sum()) == pytest.approx(0.0, abs=1e-5)
    assert reports[-1]["policy/approx_kl"] > 0.0  # the ratio is over the policy that sampled them


def test_a_replay_of_no_group_is_no_replay_at_all() -> None:
    runs = [run_of(b) for b in (Fresh(2), Mixture({"fresh": Fresh(2), "replay": Groups(0)}))]
    for run in runs:
        list(harness.train(run))
    assert torch.equal(*(harness.weights(run) for run in runs))


def test_a_restored_run_goes_on_as_if_never_stopped() -> None:
    testing.check_resumed(lambda: run_of(Mixture({"fresh": Fresh(2), "replay": Groups(2)})))
