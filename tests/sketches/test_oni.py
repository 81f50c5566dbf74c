"""ONI: counts, the queue, the loss of ties and the reward by hand, and runs whose labels arrive late by a clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log
from typing import Any

import harness
import pytest
import torch
from oni import Annotations, BradleyTerry, Helpful, Intrinsic, Labeller, Messages, occurrences, paired

from shuhari import testing
from shuhari.batch import Batch
from shuhari.buffers.fresh import Fresh
from shuhari.engines.clock import Virtual
from shuhari.engines.local import Local
from shuhari.events import Amended, Collected
from shuhari.learners.gradient import GradientLearner
from shuhari.learners.parts import Term
from shuhari.models.critics import ValueCritic
from shuhari.models.tabular import Tabular
from shuhari.objectives.clip import Clip
from shuhari.objectives.value import Value
from shuhari.ports import Buffer, Model, Objective, Transform
from shuhari.rollouts.episode import Episode
from shuhari.tasks.gridworld import Gridworld
from shuhari.testing import check_resumed
from shuhari.transforms.returns import Gae

CELLS = ("S..G",)  # a corridor
SAYS = (1, 2, 3, 4)  # 1: at the start, 4: at the goal


@dataclass
class Rule:
    """Messages from `least` on are helpful."""

    least: int = 2

    def __call__(self, messages: Sequence[int]) -> list[float]:
        return [float(m >= self.least) for m in messages]


labeller: Labeller = Rule()
said: Transform = Messages(SAYS)
buffer: Buffer = Annotations(Rule())
model: Model = Helpful(5)
objective: Objective = BradleyTerry()
transform: Transform = Intrinsic()


def oni(steps: int, kind: str = "retrieval", **fields: Any) -> Any:
    annotations = {"delay": 2.5, "size": 2, "draws": 8, "pairs": 16, **fields.pop("annotations", {})}
    parts = {"policy": harness.part(clip=Term(Clip())), "critic": harness.part("critic", value=Term(Value()))}
    main = GradientLearner(Fresh(4), parts, {"intrinsic": Intrinsic(kind, **fields), "gae": Gae()})
    learners = {"main": main}
    if kind == "ranking":
        fit = harness.part("helpful", pair=Term(BradleyTerry(), stream="labels"))
        learners["helpful"] = GradientLearner(Annotations(Rule(), **annotations), {"helpful": fit}, name="helpful")
    else:
        learners["labels"] = GradientLearner(Annotations(Rule(), **{**annotations, "draws": 0}), {}, name="labels")
    run = harness.make(harness.stage(
        task=Gridworld(CELLS, limit=6), n=1, steps=steps, rollout=Episode(), collect={"message": Messages(SAYS)},
        models={"policy": Tabular(), "critic": ValueCritic((4,)), "helpful": Helpful(5)}, learners=learners,
        engine=Local(virtual=Virtual(decode=0.02, train=1.0)),
    ))  # fmt: skip
    return run


def test_counts_are_of_the_episode() -> None:
    episode = torch.tensor([0, 0, 0, 0, 1, 1])
    assert occurrences(episode, torch.tensor([2, 3, 2, 2, 2, 3])).tolist() == [1, 1, 2, 3, 1, 1]


def rows(**columns: torch.Tensor) -> Batch:
    n = len(next(iter(columns.values())))
    return Batch({"mask": torch.ones(n, 1, dtype=torch.bool), "logp": torch.zeros(n, 1), **columns})


def test_the_third_time_counts_a_twenty_seventh_and_the_next_episode_anew() -> None:
    batch = rows(
        message=torch.tensor([2, 2, 2, 0, 2]), episode=torch.tensor([0, 0, 0, 0, 1]),
        reward=torch.tensor([[0.0], [0.0], [1.0], [0.0], [0.0]]),
    )  # fmt: skip
    ctx = testing.context()
    intrinsic = Intrinsic(extrinsic=0.1, intrinsic=0.4)
    assert intrinsic(batch, ctx)["reward"][:, 0].tolist() == pytest.approx([0, 0, 0.1, 0, 0])  # no label yet
    intrinsic.observe(Amended(torch.tensor([2, 3]), {"helpful": torch.tensor([1.0, 0.0])}))
    expected = [0.4, 0.4 / 8, 0.1 + 0.4 / 27, 0, 0.4]
    assert intrinsic(batch, ctx)["reward"][:, 0].tolist() == pytest.approx(expected)
    plain = Intrinsic(extrinsic=1.0, intrinsic=0.0)
    plain.state["labels"] = {"2": 1.0}
    assert torch.equal(plain(batch, ctx)["reward"], batch["reward"])


def test_the_newest_messages_are_labelled_first() -> None:
    queue = Annotations(Rule(), size=2)
    queue.observe(Collected(rows(message=torch.tensor([7, 0, 8, 7, 9]))))
    assert queue.newest() == [8, 9]
    assert queue.newest() == [7]
    assert queue.newest() == []


def test_scores_far_below_the_mean_are_nothing() -> None:
    z = Intrinsic("ranking").standard(torch.tensor([0.0, 1.0, 2.0]), torch.ones(3, dtype=torch.bool))
    deviation = (2 / 3) ** 0.5
    assert z.tolist() == pytest.approx([0, 0, 1 / deviation])


def test_a_tie_of_equal_scores_costs_log_two() -> None:
    batch = paired({"3": 1.0, "4": 1.0}, 4, torch.Generator().manual_seed(0))
    index, columns = batch.links["pairs"]
    assert bool((index[:, 0] != index[:, 1]).all())
    assert columns["label"].tolist() == [0.5] * 4
    loss, _ = BradleyTerry()(batch.put({"live/helpful/value": torch.zeros(2, 1)}), testing.context())
    assert loss.tolist() == pytest.approx([log(2)] * 4)


def test_labels_arrive_by_the_clock_and_nothing_waits_for_them() -> None:
    run = oni(16, annotations={"delay": 3.5})
    steps, labelled = [], []
    queue = run.stage.learners["labels"].buffer
    for report in harness.train(run):
        steps.append(report["spent/virtual_seconds"])
        labelled.append(report.get("spent/labels", 0.0))
    arrived = [i for i, n in enumerate(labelled) if n > (labelled[i - 1] if i else 0)]
    assert len(arrived) >= 2
    asked = 0  # the first batch leaves with the first step's messages
    for i in arrived:
        assert steps[i] >= steps[asked] + 3.5
        assert all(t < steps[asked] + 3.5 for t in steps[asked:i])
        asked = i  # the next one leaves when one is back
    intrinsic = run.stage.learners["main"].transforms["intrinsic"]
    assert intrinsic.state["labels"] == queue.state["labels"]
    assert {m: float(int(m) >= 2) for m in queue.state["labels"]} == queue.state["labels"]


def test_the_ranking_learns_which_messages_help_and_the_policy_trains_on_it() -> None:
    run = oni(8, "ranking", annotations={"delay": 1.5, "size": 4, "draws": 32})
    reports = list(harness.train(run))
    scores = run.ctx.models["helpful"].module.weight[:, 0].detach()
    known = [int(m) for m in run.stage.learners["helpful"].buffer.state["labels"]]
    assert {1, 2} <= set(known)
    assert float(scores[[m for m in known if m >= 2]].min()) > float(scores[1])
    assert "helpful/loss/pair" not in reports[0]  # no label, no step
    assert any("helpful/loss/pair" in r for r in reports)
    assert all(r["policy/rows"] > 0 for r in reports)


@pytest.mark.parametrize("kind", ["retrieval", "ranking"])
def test_a_killed_run_ends_with_the_same_bits(kind: str) -> None:
    check_resumed(lambda: oni(8, kind, annotations={"delay": 1.5}), 3)
