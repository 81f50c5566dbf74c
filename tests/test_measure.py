"""Means with their own counts, and what a report says of a collected batch."""

from __future__ import annotations

import math

import torch

from shuhari.batch import STATUS, Batch
from shuhari.data import Status, code
from shuhari.kernel.measure import Meter, count_decisions, count_turns, summarise_batch


def test_a_meter_weighs_by_counts() -> None:
    meter = Meter()
    meter.add("loss", 6.0, 3)
    meter.add("loss", torch.tensor(2.0), 1)
    meter.update({"lr": 0.1}, "policy")
    meter.update({"lr": 0.3}, "policy")
    meter.add("none", 0.0, 0)
    means = meter.means()
    assert means["loss"] == 2.0 and round(means["policy/lr"], 6) == 0.2 and math.isnan(means["none"])


def rows(**columns: torch.Tensor) -> Batch:
    """Two episodes of two decisions and one of one decision, which ended in an error, each a row."""
    mask = torch.tensor([[True, True], [True, True], [True, False]])
    status = torch.tensor([STATUS[s] for s in (Status.FINISHED, Status.TRUNCATED, Status.ERROR)])
    logp = torch.tensor([[-1.0, -2.0], [-3.0, float("nan")], [-4.0, 0.0]])
    return Batch({"mask": mask, "status": status, "logp": logp, "episode": torch.arange(3), **columns})


def test_what_is_told_of_a_batch_by_hand() -> None:
    score = torch.tensor([[0.0, 1.0], [0.0, float("nan")], [0.0, 0.0]])
    info = summarise_batch(rows(**{"reward/score": score, "reward": 2 * score}))
    assert info["rollout/episodes"] == 3 and round(info["rollout/length"], 6) == round(5 / 3, 6)
    assert info["rollout/truncated"] == info["rollout/errors"] == 1 / 3
    assert info["rollout/entropy"] == (1 + 2 + 3 + 4) / 4
    assert info["reward/score"] == 1.0 and info["reward/mean"] == 2.0  # of the first alone: see `find_usable`
    assert round(info["rollout/ungraded"], 6) == round(2 / 3, 6)


def test_columns_that_are_not_there_are_not_told() -> None:
    assert "reward/score" not in summarise_batch(rows())
    assert summarise_batch(Batch({"mask": torch.zeros(0, 1, dtype=torch.bool)})) == {"rollout/episodes": 0.0}


def test_turns_are_the_calls_of_a_policy_that_decided_something() -> None:
    """Three turns with what was observed between; a forced turn, then one; no decision; one turn, and padding."""
    yes, no = True, False
    mask = torch.tensor([[yes, no, yes, yes, yes], [no, no, no, yes, yes], [no] * 5, [yes, yes, no, no, no]])
    segment = torch.tensor([[0, 0, 1, 1, 2], [0, 0, 0, 1, 1], [0, -1, -1, -1, -1], [0, 0, -1, -1, -1]])
    batch = Batch({"mask": mask, "segment": segment, "logp": torch.zeros(4, 5), "episode": torch.arange(4)})
    assert count_turns(batch).tolist() == [3, 1, 0, 1]
    status = torch.full((4,), STATUS[Status.FINISHED])
    assert summarise_batch(batch.put({"status": status}))["rollout/turns"] == 5 / 4
    assert "rollout/turns" not in summarise_batch(rows())  # where nobody is called twice, it says nothing


def test_of_several_tasks_each_is_told_of() -> None:
    score = torch.tensor([[0.0, 1.0], [0.0, 0.0], [0.0, 0.25]])
    task = torch.tensor([code("sums"), code("words"), code("sums")])
    batch = rows(**{"reward/score": score, "reward": score, "task": task})
    info = summarise_batch(batch, ["sums", "words", "sums"])
    assert info["reward/mean"] == 0.5 and info["rollout/episodes"] == 3  # the last ended in an error
    assert info["reward/mean@sums"] == info["reward/score@sums"] == 1.0 and info["rollout/episodes@sums"] == 2
    assert info["rollout/length@sums"] == 1.5 and info["rollout/truncated@words"] == 1.0
    assert not any("@" in name for name in summarise_batch(batch.take(task == code("sums")), ["sums"]))


def test_how_much_the_samples_of_a_group_differ() -> None:
    def told(scores: list[float], groups: list[int]) -> dict[str, float]:
        n = len(scores)
        mask, status = torch.ones(n, 1, dtype=torch.bool), torch.full((n,), STATUS[Status.FINISHED])
        reward = torch.tensor(scores)[:, None]
        columns = {"mask": mask, "status": status, "logp": torch.zeros(n, 1), "reward": reward}
        return summarise_batch(Batch({**columns, "episode": torch.arange(n), "group": torch.tensor(groups)}))

    info = told([1.0, 0.0, 0.0, 0.0, 0.1, 0.1, 0.1, 1.0], [7, 7, 7, 7, 2, 2, 2, 5])
    assert math.isclose(info["reward/std"], math.sqrt(0.25 * 0.75) / 2, rel_tol=1e-6) and info["rollout/alike"] == 0.5
    assert told([1.0, math.nan, 0.0], [1, 1, 1])["reward/std"] == 0.5  # what nobody graded is no difference
    assert not {"reward/std", "rollout/alike"} & told([1.0, 0.0], [1, 2]).keys()


def test_what_graded_nothing_is_named() -> None:
    meter = Meter()
    numbers = {"rollout/ungraded": 1.0, "reward/mean": math.nan, "reward/mine": math.nan, "reward/other": 1.0}
    meter.update(numbers)
    assert meter.why() == "no sample was graded: every reward was None or NaN, of 'mine'"


def test_steps_of_denoising_are_one_decision() -> None:
    """The same rows as steps of a chain: each episode has one decision."""
    batch = rows(chain=torch.zeros(3, 2, 1))
    assert count_decisions(batch).tolist() == [1, 1, 1] and count_decisions(rows()).tolist() == [2, 2, 1]
    assert summarise_batch(batch)["rollout/length"] == 1.0
    nothing = batch.put({"mask": torch.zeros(3, 2, dtype=torch.bool)})
    assert count_decisions(nothing).tolist() == [0, 0, 0]
