"""What is kept of a step's groups: counts of problems, and the numbers of each decision."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from shuhari import testing
from shuhari.config.evaluation import Evaluation
from shuhari.config.stage import Checkpointing
from shuhari.data import Problem, Request, Status, Step, Trajectory
from shuhari.kernel.pack import pack
from shuhari.loop.kept import choose_rollouts, count_problems, decisions, name_tokens
from shuhari.loop.run import train
from shuhari.store import Run, Store
from small_runs import recipe


def test_problems_are_counted_as_evaluation_would_say() -> None:
    def sample(problem: str, **reward: Any) -> Trajectory:
        act = Step.of(np.ones(1, np.int32), np.ones(2, np.int32), np.zeros(2, np.float32), reward=reward)
        return Trajectory(Request(Problem("sums", problem, "p")), (act,))

    groups = [
        [sample("a", score=1.0), sample("a", score=0.4), sample("a", score=float("nan"))],
        [sample("b", score=np.array([0.5, 0.5]))],  # decision by decision
        [sample("a", score=1), sample("a")],  # asked twice in a step; nobody graded the last
    ]
    ctx = testing.context(groups=groups, reward_names={"score", "length"})
    assert count_problems(ctx, None) == [("sums", "a", 3, 2), ("sums", "b", 1, 1)]
    assert count_problems(ctx, Evaluation(solved=0.4)) == [("sums", "a", 3, 3), ("sums", "b", 1, 1)]


def test_problems_are_counted_by_the_weighted_sum_where_evaluation_reads_that() -> None:
    def sample(**reward: Any) -> Trajectory:
        act = Step.of(np.ones(1, np.int32), np.ones(1, np.int32), np.zeros(1, np.float32), reward=reward)
        return Trajectory(Request(Problem("sums", "a", "p")), (act,))

    groups = [[sample(odd=1.0, brief=0.0), sample(odd=1.0, brief=-0.5), sample(odd=1.0), sample(odd=0.0, brief=2.0)]]
    weights = {"odd": 1.0, "brief": 0.5}  # sums 1, 0.75, not graded (a name is missing), 1
    ctx = testing.context(groups=groups, reward_names={"odd", "brief"}, weights=weights)
    assert count_problems(ctx, None) == count_problems(ctx, Evaluation(measure="reward")) == [("sums", "a", 3, 2)]
    assert count_problems(ctx, Evaluation(measure="odd")) == [("sums", "a", 4, 3)]
    ctx.weights = {}
    assert count_problems(ctx, None) == [("sums", "a", 0, 0)]


def test_an_episode_that_ended_in_an_error_is_neither_counted_nor_averaged(tmp_path: Path) -> None:
    """Of a tree, each leaf is a sample: 1 and 0.5; the trajectory that broke was paid 1 before."""

    def act(parent: int | None = None, **reward: Any) -> Step:
        one = np.ones(1, np.int32)
        return Step.of(one, one, np.zeros(1, np.float32), parent=parent, reward=reward)

    request = Request(Problem("sums", "a", "p"), key="a#0")
    tree = Trajectory(request, (act(), act(0, score=1.0), act(0, score=0.5)))
    group = [Trajectory(request, (act(score=1.0),), Status.ERROR), tree]
    ctx = testing.context(groups=[group], reward_names={"score"}, weights={"score": 1.0})
    counts = count_problems(ctx, None)
    assert counts == [("sums", "a", 2, 1)]
    with Store.open(tmp_path / "run") as store:
        (kept,) = choose_rollouts(ctx, Checkpointing(groups=("all",)), store, counts)
    assert (kept["score"], kept["worst"], kept["best"]) == (0.75, 0.5, 1.0)


def ids(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def two_groups() -> tuple[list[Trajectory], list[Trajectory]]:
    """One of a row of two turns (the environment says 9 in between) and a row of one; another of one row."""

    def step(context: np.ndarray, action: np.ndarray, **more: Any) -> Step:
        return Step.of(context, action, np.zeros(len(action), np.float32), **more)

    a, b = (Request(Problem("t", name, "p"), 2, key=f"{name}#0") for name in "ab")
    turns = step(ids(1, 2), ids(3, 4)), step(ids(1, 2, 3, 4, 9), ids(5), parent=0)
    return [Trajectory(a, turns), Trajectory(a, (step(ids(1, 2), ids(6, 7, 8)),))], [
        Trajectory(b, (step(ids(1), ids(2)),))
    ]


def test_numbers_of_rows_are_handed_to_the_steps_they_came_from() -> None:
    first, second = two_groups()
    batch = pack([*second, *first], start=7)
    place = torch.arange(len(batch) * batch.width).view(len(batch), -1).float()  # row b: 0.., turns: 4.., single: 8..
    batch = batch.put({"advantage": place, "mine": place}).put({"reference/log_prob": -place}, scored=True)
    shuffled = batch.take(torch.tensor([2, 0, 1]))
    (one, two), (three,) = decisions(first, [shuffled])
    assert sorted(one) == ["advantage", "reference/log_prob"]
    assert one["advantage"].tolist() == [4, 5] and two["advantage"].tolist() == [7]  # position 6 is the environment's
    assert three["reference/log_prob"].tolist() == [-8, -9, -10]
    again = shuffled.put({"advantage": shuffled["advantage"] * 2})
    assert decisions(first, [shuffled, again])[1][0]["advantage"].tolist() == [16, 18, 20]
    assert decisions(first, [batch.take(torch.tensor([0, 1]))]) == (({}, {}), ({},))  # a row of the group is missing
    assert decisions(second, [batch])[0][0]["advantage"].tolist() == [0]


def test_what_is_stored_agrees_with_what_was_sampled(tmp_path: Path) -> None:
    """At the first step after the warm-up the reference is the policy that has sampled."""
    for report in train(recipe("text", tmp_path), tmp_path / "run"):
        if report["step"] == 13:
            break
    (group, *_) = Run(tmp_path / "run").rollouts(13)
    assert len(group["decisions"]) == len(group["trajectories"]) == 8
    for t, steps in zip(group["trajectories"], group["decisions"], strict=True):
        (step,), (told,) = t.steps, steps
        assert told["reference/log_prob"] == pytest.approx(step.logp, abs=1e-4)
        assert told["advantage"].shape == step.logp.shape and len(set(told["advantage"].tolist())) == 1


def test_tokens_are_spelt_as_they_stand_in_a_text() -> None:
    """Words keep the space before them, a special token has its name, a part of a character is U+FFFD."""
    from shuhari.models.text.made_tokenizers import bpe_tokenizer, character_tokenizer

    class Writer:
        def __init__(self, tokenizer: Any) -> None:
            self.encode, self.decode = tokenizer.encode, tokenizer.decode

    def sample(action: np.ndarray, role: str) -> Trajectory:
        return Trajectory(Request(Problem("t", "a", "p")), (Step.of(ids(1), action, role=role),))

    pairs, letters = bpe_tokenizer(["red red rose"] * 9, 270), character_tokenizer("ab ")
    written = np.append(pairs.encode("red rose é"), pairs.end).astype(np.int32)
    group = [sample(written, "policy"), sample(ids(2, 4, 3, 1, 0), "other"), sample(ids(7), "stranger")]
    found = name_tokens(group, {"policy": Writer(pairs), "other": Writer(letters), "stranger": object()})
    assert set(found) == {"policy", "other"}
    spelt = dict(zip(found["policy"]["ids"].tolist(), found["policy"]["texts"], strict=True))
    said = [spelt[i] for i in written.tolist()]
    assert said[-1] == "<end>" and said[-3:-1] == ["\ufffd"] * 2
    assert "".join(said[:-3]) == "red rose " and " ro" in "".join(said)
    assert found["other"] == {"ids": pytest.approx([0, 1, 2, 3, 4]), "texts": ("<pad>", "<end>", "a", "b", " ")}
