"""Node-level credit: trees small enough to enumerate."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from shuhari.batch import Batch
from shuhari.data import Problem, Request, Status, Step, Trajectory
from shuhari.kernel.pack import pack
from shuhari.kernel.reduce import weights
from shuhari.testing import context
from shuhari.transforms.advantage import Advantage
from shuhari.transforms.tree import NodeAdvantage

NAN = float("nan")


def node(parent: int | None, k: int, q: float = NAN, at: int = 0) -> Step:
    """k tokens at a depth of its own: contexts that differ, so that only children stay rows of their own."""
    fields: dict[str, Any] = {} if np.isnan(q) else {"info": {"q": np.full(k, q, np.float32)}}
    action = np.arange(k, dtype=np.int32)
    return Step.of(np.full(3 + at, at, np.int32), action, np.zeros(k, np.float32), parent=parent, **fields)


def batch(*trees: tuple[list[Step], list[float | None]], status: Status = Status.FINISHED, key: str = "g") -> Batch:
    asked = Request(Problem("t", "p", "x"), key=key)
    made = [
        Trajectory(asked, tuple(steps), status).graded([None if s is None else {"score": s} for s in scores])
        for steps, scores in trees
    ]
    packed = pack(made)
    return packed.put({"reward": packed["reward/score"]})


def test_credit_is_q_minus_the_mean_answer() -> None:
    # root a (q .5) -> right (q 1, two tokens) and wrong, to which nothing was backed up; root b (q -1): wrong
    steps = [node(None, 1, 0.5, 1), node(0, 2, 1.0, 2), node(0, 1, at=3), node(None, 1, -1.0, 4)]
    out = NodeAdvantage()(batch((steps, [1.0, 0.0, 0.0])), context())
    mean = (1 - 1 - 1) / 3
    expected = [[0.5 - mean, 0], [1 - mean, 1 - mean], [-1 - mean, 0], [-1 - mean, 0]]
    torch.testing.assert_close(out["advantage"], torch.tensor(expected))


def test_without_q_a_tree_is_credited_by_enumeration() -> None:
    """A full binary tree of depth 3: every node's value is the mean over the answers below it."""
    steps, depth = [node(None, 1, at=i) for i in range(2)], {0: 1, 1: 1}
    for i in range(6):
        for _ in range(2):
            depth[len(steps)] = depth[i] + 1
            steps.append(node(i, 1, at=len(steps)))
    leaves = [i for i in range(14) if depth[i] == 3]
    score = dict(zip(leaves, [1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 0.0], strict=True))

    def below(i: int) -> list[float]:
        kids = [j for j in range(14) if steps[j].parent == i]
        return [x for j in kids for x in below(j)] if kids else [2 * score[i] - 1]

    mean = sum(2 * s - 1 for s in score.values()) / 8
    found = NodeAdvantage()(made := batch((steps, [score[i] for i in leaves])), context())["advantage"]
    assert found[:, 0].tolist() == pytest.approx([sum(below(i)) / len(below(i)) - mean for i in range(14)])
    plain = Advantage(scale="none")(made, context())["advantage"]  # node-level credit of means, in units of the score
    torch.testing.assert_close(found, 2 * plain)
    # and, weighed by the share of answers that pass, all levels sum to nothing
    shares = torch.tensor([len(below(i)) / 8 for i in range(14)])
    for d in (1, 2, 3):
        level = torch.tensor([depth[i] == d for i in range(14)])
        assert float((found[:, 0] * shares)[level].sum()) == pytest.approx(0, abs=1e-6)


def test_a_shared_step_weighs_once() -> None:
    steps = [node(None, 3, 0.5, 1), node(0, 1, 1.0, 2), node(0, 1, -1.0, 3), node(0, 1, -1.0, 4)]
    made = batch((steps, [1.0, 0.0, 0.0]))
    w = weights(made["mask"].float(), made, "decision")
    assert int(made["mask"].sum()) == 6 and float(w[0].sum()) == pytest.approx(3 / 6)  # three paths, one row


def test_nodes_of_one_row_keep_their_own_credit() -> None:
    """An only child continues its parent's text: one row, with the q of each node at its own positions."""
    first = Step.of(np.zeros(1, np.int32), np.array([1, 2], np.int32), np.zeros(2, np.float32),
                    info={"q": np.full(2, 0.25, np.float32)})  # fmt: skip
    second = Step.of(np.array([0, 1, 2], np.int32), np.array([3], np.int32), np.zeros(1, np.float32), parent=0,
                     info={"q": np.ones(1, np.float32)})  # fmt: skip
    out = NodeAdvantage()(batch(([first, second], [1.0])), context())
    assert out["advantage"].tolist() == [[-0.75, -0.75, 0.0]]


def test_less_the_parent_is_what_a_node_has_changed() -> None:
    # root a (q .5) -> right (q 1) and wrong (q missing: -1); root b (q -1); beside them one row of two nodes, .25 and 1
    steps = [node(None, 1, 0.5, 1), node(0, 2, 1.0, 2), node(0, 1, at=3), node(None, 1, -1.0, 4)]
    first = Step.of(np.zeros(1, np.int32), np.array([1, 2], np.int32), np.zeros(2, np.float32),
                    info={"q": np.full(2, 0.25, np.float32)})  # fmt: skip
    second = Step.of(np.array([0, 1, 2], np.int32), np.array([3], np.int32), np.zeros(1, np.float32), parent=0,
                     info={"q": np.ones(1, np.float32)})  # fmt: skip
    made = batch((steps, [1.0, 0.0, 0.0]), ([first, second], [1.0]))
    out = NodeAdvantage(less="parent", into="step")(made, context())
    mean = (1 - 1 - 1 + 1) / 4
    expected = [[0.5 - mean, 0, 0], [0.5, 0.5, 0], [-1.5, 0, 0], [-1 - mean, 0, 0], [0.25 - mean, 0.25 - mean, 0.75]]
    torch.testing.assert_close(out["step"], torch.tensor(expected))
    assert "advantage" not in out
    with pytest.raises(ValueError, match="did you mean 'parent'"):
        NodeAdvantage(less="parents")


def test_samples_beside_a_known_answer_are_compared_without_a_deviation() -> None:
    out = NodeAdvantage()(batch(*(([node(None, 1, at=i)], [s]) for i, s in enumerate((1.0, 0.0, 0.0, 0.0)))), context())
    assert out["advantage"][:, 0].tolist() == [1.5, -0.5, -0.5, -0.5]


def test_what_is_ungraded_or_broken_says_nothing() -> None:
    steps = [node(None, 1, 0.5, 1), node(0, 1, 1.0, 2), node(0, 1, 0.7, 3)]
    run = context()
    out = NodeAdvantage()(batch((steps, [1.0, None])), run)
    assert out["advantage"][:, 0].tolist() == pytest.approx([-0.5, 0.0, 0.0])
    assert out.weight("rl")[:, 0].tolist() == [1, 1, 0] and run.ledger == {"ungraded": 1}
    assert not NodeAdvantage()(batch((steps, [1.0, 0.0]), status=Status.ERROR), context())["advantage"].any()


def test_what_is_compared_with_what_is_the_group() -> None:
    asked = [Request(Problem("t", p, "x"), key=p) for p in "ab"]
    made = pack([Trajectory(r, (node(None, 1),)).graded([{"score": s}]) for r in asked for s in (1.0, 0.0)])
    made = made.put({"reward": made["reward/score"] * torch.tensor([[1.0], [1.0], [1.0], [2.0]])})
    assert NodeAdvantage()(made, context())["advantage"][:, 0].tolist() == [1, -1, 1, -1]
