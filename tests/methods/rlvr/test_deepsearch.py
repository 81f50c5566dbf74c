"""The cache of solutions: which are kept, as what, and how they come back."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from built import CLIP, demonstrated, holds, one_loss
from shuhari.batch import Batch
from shuhari.curricula.sequential import Sequential
from shuhari.data import Problem, Request, Step, Trajectory, code
from shuhari.events import Collected
from shuhari.kernel.pack import pack
from shuhari.methods.rlvr.deepsearch.cached_solutions import Cache, solution
from shuhari.objectives.clip import Clip
from shuhari.rollouts.single import Single
from shuhari.rollouts.tree import TreeSearch
from shuhari.store import codec
from shuhari.tasks.source import Listed
from shuhari.testing import context
from shuhari.transforms.filters import Mixed
from shuhari.transforms.tree import NodeAdvantage


def ctx(size: int = 4) -> Any:
    problems = Listed([Problem("t", str(i), f"{i}") for i in range(size)])
    return context(task=SimpleNamespace(problems=lambda split: problems))


def step(*ids: int, logp: float = -1.0, parent: int | None = None, context: Sequence[int] = (0,)) -> Step:
    action, said = np.array(ids, np.int32), np.full(len(ids), logp, np.float32)
    return Step.of(np.array(context, np.int32), action, said, 7, parent=parent)


def samples(problem: str, scores: Sequence[float | None], logps: Sequence[float] = (), key: str = "") -> Batch:
    asked = Request(Problem("t", problem, "x"), key=key or problem)
    given = logps or [-1.0] * len(scores)
    return pack([
        Trajectory(asked, (step(i, 9, logp=p),)).graded([None if s is None else {"score": s}])
        for i, (s, p) in enumerate(zip(scores, given, strict=True))
    ])  # fmt: skip


def kept(cache: Cache) -> set[str]:
    names = {str(code("t", str(i))): str(i) for i in range(9)}
    return {names[key] for key in cache.state}


def cached(*batches: Batch, **fields: Any) -> Cache:
    cache = Cache(Sequential(shuffle=False), **fields)
    for batch in batches:
        cache.observe(Collected(batch))
    return cache


def test_what_is_solved_but_seldom_is_kept() -> None:
    one_in_four, never, half, always = [1.0, 0, 0, 0], [0.0] * 4, [1.0, 1, 0, 0], [1.0] * 4
    batches = [samples(str(i), s) for i, s in enumerate((one_in_four, never, half, always))]
    assert kept(cached(*batches)) == {"0"}
    assert kept(cached(*batches, rate=0.5)) == {"0", "2"}
    assert kept(cached(*batches, rate=1.0)) == {"0", "2", "3"}
    assert kept(cached(samples("0", [0.5, 0, 0, 0]), solved=0.5)) == {"0"}
    assert kept(cached(samples("0", [0.5, 0, 0, 0]))) == set()


def test_an_ungraded_answer_counts_neither_way() -> None:
    assert kept(cached(samples("0", [1.0, 0, 0, None]))) == set()  # one in three
    assert kept(cached(samples("0", [1.0, 0, 0, 0, None]))) == {"0"}


def test_the_surest_right_answer_is_kept_and_stays() -> None:
    scores, logps = [1.0, 0, 1, 0, 0, 0, 0, 0], [-2.0, -0.1, -1.5, -1, -1, -1, -1, -1]
    cache = cached(samples("0", scores, logps))
    found = cache.state[str(code("t", "0"))]
    assert found["action"].tolist() == [2, 9] and found["logp"].tolist() == [-1.5, -1.5]
    cache.observe(Collected(samples("0", [0, 1.0, 0, 0], [-1.0] * 4, key="again")))
    assert cache.state[str(code("t", "0"))]["action"].tolist() == [2, 9]


def test_a_solution_of_a_tree_is_its_path() -> None:
    # 1 -> (2 3 right; 4 wrong), and two more wrong answers: one of four leaves
    asked = Request(Problem("t", "0", "x"), key="k")
    tree = Trajectory(
        asked, (step(1), step(2, 3, parent=0, logp=-2.0, context=(0, 1)), step(4, parent=0), step(5), step(6))
    )
    batch = pack([tree.graded([{"score": 1.0}, {"score": 0.0}, {"score": 0.0}, {"score": 0.0}])])
    (found,) = cached(batch).state.values()
    assert {k: v.tolist() for k, v in found.items()} == {
        "action": [1, 2, 3], "mask": [True] * 3, "logp": [-1, -2, -2], "version": [7] * 3
    }  # fmt: skip
    some = batch.take(torch.tensor([3, 1, 0]))  # a view, in another order
    assert solution(some, torch.tensor(1))["action"].tolist() == [1, 2, 3]


def test_a_solved_problem_comes_with_its_solution() -> None:
    cache = cached(samples("2", [0, 0, 1.0, 0]))
    requests = asyncio.run(cache.select(4, ctx()))
    assert [r.problem.id for r in requests] == ["0", "1", "2", "3"]
    assert [r.settings for r in requests if r.problem.id != "2"] == [{}] * 3
    known = requests[2].settings["known"]
    assert {k: (v.tolist(), v.dtype) for k, v in known.items()} == {
        "action": ([2, 9], np.int32), "mask": ([True, True], np.bool_),
        "logp": ([-1, -1], np.float32), "version": ([7, 7], np.int64),
    }  # fmt: skip
    codec.dumps(requests[2])  # it can be in flight when a run is saved


def test_state_goes_round() -> None:
    cache = cached(samples("2", [0, 0, 1.0, 0]))
    again = Cache(Sequential(shuffle=False))
    again.state = codec.loads(codec.dumps(cache.state))
    first, second = (asyncio.run(c.select(4, ctx()))[2].settings["known"] for c in (cache, again))
    assert all(np.array_equal(first[k], second[k]) and first[k].dtype == second[k].dtype for k in first)


def test_what_it_refuses() -> None:
    batch = samples("0", [1.0, 0, 0, 0])
    with pytest.raises(ValueError, match="sampling is truncated"):
        cached(batch.put({"support": torch.zeros(4, 2, 3)}))
    assert kept(cached(pack([Trajectory(Request(Problem("t", "0", "x")), (step(1),))]))) == set()  # nothing graded


def test_numbers_of_the_paper() -> None:
    stage = holds(
        "rlvr/deepsearch",
        {
            "rollout.width": 8,
            "rollout.explore": 2.0,
            "rollout.weights": (0.4, 0.4, 0.01),
            "rollout.select": "frontier",
            "rollout.backup": "signed",
            "rollout.every": False,  # of the answers of an expansion one is backed up
            "n": 8,
            "curriculum.rate": 0.25,
            "collect": {"drop_uniform_groups": Mixed(), "advantage": NodeAdvantage()},
            f"{CLIP}.objective": Clip(low=0.2, high=0.28, behaviour="old"),
            f"{CLIP}.reduce": "decision",
        },
        usual=True,  # where it is shown, no group is drawn again
    )
    one_loss(stage)


def test_help_is_for_training_alone() -> None:
    stage = demonstrated("rlvr/deepsearch")
    assert isinstance(stage.rollout, TreeSearch)
    assert isinstance(stage.evaluation_rollout, Single)
