"""DeepSearch: backups and node credit by hand, the cache of hard problems, and a step of training on trees."""

from __future__ import annotations

from typing import Any

import harness
import numpy as np
import pytest
import torch
from deepsearch import HardCache, NodeAdvantage, TreeSearch, backup
from searchtree import Tree
from toys import Echo

from shuhari.buffers.fresh import Fresh
from shuhari.curricula.sequential import Sequential
from shuhari.data import Problem, Request
from shuhari.learners.gradient import Term
from shuhari.needs import Trace
from shuhari.objectives.clip import Clip
from shuhari.pack import pack
from shuhari.ports import Collected, Curriculum, Rollout, Transform

rollout: Rollout = TreeSearch()
credit: Transform = NodeAdvantage()
cache: Curriculum = HardCache(Sequential())


def trace(*ids: int, ended: bool = False) -> Trace:
    return Trace(np.array(ids, np.int32), np.full(len(ids), -1.0, np.float32), 0, {"ended": ended, "text": "x"})


def search(seed: int = 0, **fields: Any) -> Any:
    task = Echo(length=2)
    parts = {"policy": harness.part(clip=Term(Clip(high=0.28)))}
    rollout = TreeSearch(**{"width": 3, "chunk": 1, "depth": 3, "budget": 25, **fields})
    common: dict[str, Any] = {
        "rollout": rollout,
        "curriculum": HardCache(Sequential()),
        "collect": {"node": NodeAdvantage()},
    }
    return harness.make(harness.stage(parts, task=task, buffer=Fresh(4), steps=2, **common), seed=seed)


def test_backups_are_discounted_and_a_failure_does_not_undo_a_success() -> None:
    tree = Tree(Request(Problem("t", "p", None)), np.array([5], np.int32))
    node = tree.nodes[0]
    for _ in range(3):
        node = tree.add(node, [trace(1)])[0]
    backup(node, +1.0)
    assert [n.value for n in node.path] == [0.25, 0.5, 0.75, 1.0]
    backup(node, -1.0)
    assert [n.value for n in node.path] == [0.25, 0.5, 0.75, 1.0]
    other = tree.add(tree.nodes[1], [trace(2)])[0]
    backup(other, -1.0)
    assert other.value == -1
    backup(other, +1.0)  # V > 0 > v: v <- gamma V
    assert other.value == 1


def test_the_score_of_a_frontier_node() -> None:
    assert TreeSearch(depth=64).score(0.5, 16) == pytest.approx(0.18985, abs=1e-5)


def test_node_credit_is_q_minus_the_mean_leaf() -> None:
    # root -> a (q .5) -> two leaves, right (q 1) and wrong (not backed up); root -> b, wrong (q -1)
    tree = Tree(Request(Problem("t", "p", None), key="g"), np.array([5], np.int32))
    a, b = tree.add(tree.nodes[0], [trace(1), trace(2, ended=True)])
    tree.add(a, [trace(3, 4, ended=True), trace(6, ended=True)])
    for node, q in zip((a, b, a.kids[0]), (0.5, -1.0, 1.0), strict=True):
        node.value, node.visits = q, 1
    trajectory = tree.trajectory(q=lambda n: n.value if n.visits else None)
    batch = pack([trajectory.graded([{"score": 0.0}, {"score": 1.0}, {"score": 0.0}])])
    batch = NodeAdvantage()(batch.put({"reward": batch["reward/score"]}), harness.make(harness.stage()).ctx)
    mean = (-1 + 1 - 1) / 3
    expected = torch.tensor([[0.5 - mean, 0], [-1 - mean, 0], [1 - mean, 1 - mean], [-1 - mean, 0]])
    torch.testing.assert_close(batch["advantage"], expected)


def test_a_step_of_training_on_trees_of_a_language_model() -> None:
    run = search()
    reports = harness.train(run)
    first = next(reports)
    assert first["policy/rows"] > first["rollout/episodes"]  # inner nodes are rows too
    assert first["policy/approx_kl"] < 1e-6  # re-scoring a tree of chunks reproduces what was sampled
    moved = harness.weights(run)
    next(reports)
    assert not torch.equal(moved, harness.weights(run))


def test_a_solved_hard_problem_comes_with_its_solution() -> None:
    run = search(width=6, budget=120, seed=3)  # a run in which a problem is solved
    run.enter_stage()
    batch = run.collect(4)
    run.tell(Collected(batch))
    kept = set(run.stage.curriculum.state)
    right = batch.outcome("reward/score") == 1
    assert kept and kept <= {str(int(p)) for p in batch["problem"][right]}
    again = run.collect(4)
    rows = torch.tensor([str(int(p)) in kept for p in again["problem"]])
    assert bool((again["parent"][rows] == -1).all())  # plain samples, no tree
    solved = rows & (again.outcome("reward/score") == 1)
    assert {str(int(p)) for p in again["problem"][solved]} == kept


def test_a_restored_run_goes_on_as_if_never_stopped() -> None:
    assert harness.resumes(lambda: search(width=6, budget=60))
