"""ONI: counts, the queue, late labels, scores and the reward by hand, and the ranking by its closed form."""

from __future__ import annotations

from math import log, sqrt
from typing import Any

import pytest
import torch
from torch import Tensor

from shuhari.batch import Batch
from shuhari.config.build import build_stage
from shuhari.config.recipe import load
from shuhari.data import ContractError
from shuhari.methods.reward.oni.annotate import Annotate
from shuhari.methods.reward.oni.intrinsic import Intrinsic
from shuhari.methods.reward.oni.labellers import find_progress
from shuhari.methods.reward.oni.message_scores import MessageScores
from shuhari.methods.reward.oni.pair_messages import PairMessages
from shuhari.objectives.preference import Preference
from shuhari.tasks.worlds.key_door import MESSAGES
from shuhari.testing import context

FIND = "shuhari.methods.reward.oni.labellers.find_progress"


def rows(message: list[int], episode: Any = None, **columns: Any) -> Batch:
    n = len(message)
    found = {"mask": torch.ones(n, 1, dtype=torch.bool), "logp": torch.zeros(n, 1), "message": torch.tensor(message)}
    found |= {"reward": torch.zeros(n, 1), "episode": torch.tensor(episode or [0] * n), **columns}
    return Batch(found)


def bonus(
    intrinsic: Intrinsic, message: list[int], helpful: list[float], episode: list[int] | None = None
) -> list[float]:
    batch = rows(message, episode, helpful=torch.tensor(helpful))
    out: list[float] = intrinsic(batch, context())["reward"][:, 0].tolist()
    return out


def test_the_third_time_counts_a_twenty_seventh_and_the_next_episode_anew() -> None:
    found = bonus(Intrinsic(intrinsic=0.4), [2, 2, 2, 0, 2, 3], [1, 1, 1, 1, 1, 0.5], [7, 7, 7, 7, 8, 8])
    assert found == pytest.approx([0.4, 0.4 / 8, 0.4 / 27, 0, 0.4, 0.2])


def test_an_episode_that_goes_on_in_the_next_batch_keeps_its_counts_and_one_that_ended_loses_them() -> None:
    intrinsic = Intrinsic(intrinsic=1.0, power=1.0)
    assert bonus(intrinsic, [2, 2, 2], [1, 1, 1], [1, 2, 1]) == pytest.approx([1, 1, 1 / 2])
    assert bonus(intrinsic, [2], [1], [1]) == pytest.approx([1 / 3])
    assert bonus(intrinsic, [2, 2], [1, 1], [2, 1]) == pytest.approx([1, 1 / 4])  # 2 was gone meanwhile


def test_what_is_not_labelled_and_rows_without_a_decision_pay_the_environment_alone() -> None:
    batch = rows([2, 3, 2], helpful=torch.tensor([torch.nan, 1.0, 1.0]), reward=torch.tensor([[1.0], [1.0], [1.0]]))
    batch = batch.put({"mask": torch.tensor([[True], [True], [False]])})
    found = Intrinsic(extrinsic=10.0, intrinsic=0.5)(batch, context())
    assert found["reward"][:, 0].tolist() == pytest.approx([10.0, 10.5, 10.0])
    plain = Intrinsic(extrinsic=1.0, intrinsic=0.0)(batch, context())
    assert torch.equal(plain["reward"], batch["reward"])


def test_the_newest_messages_are_labelled_first() -> None:
    annotate = Annotate(FIND, size=2, delay=100)
    annotate(rows([7, 0, 8, 7, 9]), context())
    assert annotate.state["asked"] == [8, 9] and annotate.take_newest() == [7] and annotate.take_newest() == []


def test_labels_arrive_after_so_many_decisions_and_nothing_waits() -> None:
    """Messages 2 (helpful) and 6 of four decisions are asked about; the answer is due after ten more."""
    annotate, ctx = Annotate(FIND, size=2, delay=10), context()
    first = annotate(rows([6, 2, 6, 2]), ctx)["helpful"]
    assert bool(first.isnan().all())
    assert bool(annotate(rows([2] * 9), ctx)["helpful"].isnan().all())
    last = annotate(rows([2, 6, 4, 0]), ctx)["helpful"]
    assert last[:2].tolist() == [1.0, 0.0] and bool(last[2:].isnan().all())
    assert annotate.state["asked"] == [4] and annotate.state["due"] == 17 + 10


def test_without_delay_all_is_labelled_at_once() -> None:
    annotate = Annotate(FIND, size=2, delay=0)
    assert annotate(rows([1, 2, 3, 4, 5]), context())["helpful"].tolist() == [0, 1, 0, 1, 1]


def test_an_annotator_errs_as_often_as_set_and_always_alike() -> None:
    n = 2000
    labels = [
        Annotate(FIND, size=n, delay=0, wrong=0.2)(rows(list(range(10, 10 + n))), context())["helpful"]
        for _ in range(2)
    ]
    assert torch.equal(*labels) and abs(float(labels[0].mean()) - 0.2) < 4 * sqrt(0.16 / n)


def short(messages: list[int]) -> list[float]:
    return [1.0]


def large(messages: list[int]) -> list[float]:
    return [2.0 for _ in messages]


@pytest.mark.parametrize("name", ["short", "large"])
def test_an_annotator_that_does_not_answer_each_in_range_is_refused(name: str) -> None:
    with pytest.raises(ContractError, match=r"gave .* for 2 messages: expected a number in \[0, 1\] for each"):
        Annotate(f"{__file__}:{name}", delay=0)(rows([1, 2]), context())


def test_the_program_finds_progress() -> None:
    told = [MESSAGES[m] for m, y in enumerate(find_progress(range(len(MESSAGES)))) if y]
    assert told == ["You find a key and take it.", "You unlock the door.", "You reach the goal."]


def test_scores_are_standardised_over_all_that_was_said_and_far_below_are_nothing() -> None:
    """0, 1, 2: mean 1, deviation sqrt(2/3); then 4 and 5 as well: mean 2.4, deviation sqrt(17.2 / 5)."""
    intrinsic = Intrinsic("ranking", intrinsic=1.0, power=0.0)
    key = intrinsic.needs[0].key
    first = intrinsic(rows([1, 2, 3], **{key: torch.tensor([[0.0], [1.0], [2.0]])}), context())
    assert first["reward"][:, 0].tolist() == pytest.approx([0, 0, 1 / sqrt(2 / 3)])
    second = intrinsic(rows([4, 5, 0], **{key: torch.tensor([[4.0], [5.0], [9.0]])}), context())
    assert second["reward"][:, 0].tolist() == pytest.approx([1.6 / sqrt(3.44), 2.6 / sqrt(3.44), 0], rel=1e-5)


def test_classification_pays_one_above_the_threshold() -> None:
    intrinsic = Intrinsic("classification", intrinsic=1.0, threshold=0.75)
    batch = rows([1, 2, 3], **{intrinsic.needs[0].key: torch.tensor([[log(2)], [log(4)], [-5.0]])})
    assert intrinsic(batch, context())["reward"][:, 0].tolist() == [0, 1, 0]  # 2/3, 4/5, less than 1/100


def test_labelled_messages_become_rows_and_pairs_each_once() -> None:
    helpful = torch.tensor([0.0, torch.nan, 0.0, 1.0, 1.0, 1.0])
    batch = PairMessages(size=300)(rows([3, 9, 3, 5, 8, 5], helpful=helpful), context())
    assert batch["label"][:, 0].nan_to_num(-1).tolist() == [0, -1, -1, 1, 1, -1]
    index, columns = batch.links["pairs"]
    value = helpful[index]
    assert set(index.flatten().tolist()) == {0, 3, 4}
    assert torch.equal(columns["label"], 0.5 + (value[:, 0] - value[:, 1]) / 2)


def test_without_labels_a_row_is_paired_with_itself() -> None:
    batch = PairMessages(size=4)(rows([3, 9], helpful=torch.full((2,), torch.nan)), context())
    index, columns = batch.links["pairs"]
    assert index.tolist() == [[0, 0]] * 4 and columns["label"].tolist() == [0.5] * 4
    assert bool(batch["label"].isnan().all())


def test_a_tie_of_equal_scores_costs_log_two_and_the_ranking_is_least_at_the_log_odds() -> None:
    """Two messages of which one is preferred with .8 have scores log 4 apart at the minimum; a tie wants them equal."""
    term = Preference(role="helpful", score="value", reference_free=True, beta=1.0)
    live = term.needs[0].key

    def lose(gap: Tensor, label: float) -> Tensor:
        batch = Batch({"mask": torch.ones(2, 1, dtype=torch.bool), live: torch.stack([gap, gap * 0])[:, None]})
        batch = batch.link("pairs", torch.tensor([[0, 1]]), {"label": torch.tensor([label], dtype=torch.float64)})
        return term(batch, context())[0].sum()

    assert float(lose(torch.tensor(0.0, dtype=torch.float64), 0.5)) == pytest.approx(log(2))
    gap = torch.tensor(log(4), dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(lose(gap, 0.8), gap)
    assert float(gradient) == pytest.approx(0, abs=1e-12)


def test_scores_of_messages_are_a_table() -> None:
    model: Any = MessageScores(messages=4)
    model.build(None)
    model.module.weight.data = torch.tensor([[0.0], [1.0], [2.0], [3.0]])
    assert model(rows([3, -1, 1])).value().tolist() == [[3.0], [0.0], [1.0]]
    with pytest.raises(ValueError, match="has 4: expected less than messages, which is 4"):
        model(rows([4]))


def test_the_recipe_labels_before_it_pays() -> None:
    stage: Any = build_stage(load("reward/oni").stages[0], {})
    assert list(stage.collect) == ["annotate", "intrinsic"]
    assert (stage.collect["annotate"].delay, stage.collect["intrinsic"].kind) == (1000, "retrieval")
