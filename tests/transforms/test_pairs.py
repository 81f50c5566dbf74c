"""Pairs and labels out of graded groups: who is linked with whom, and what is no longer learnt from."""


import numpy as np
import pytest
import torch

from shuhari.data import Problem, Request, Status, Step, Trajectory
from shuhari.kernel.pack import pack
from shuhari.testing import context
from shuhari.transforms.pairs import Labels, Pairs

NAN = float("nan")


def step(parent=None, **fields):
    return Step.of(np.array([7], np.int32), np.array([1, 2], np.int32), parent=parent, **fields)


def groups(*outcomes, status=Status.FINISHED):
    rows = []
    for i, group in enumerate(outcomes):
        request = Request(Problem("t", str(i), ""), key=str(i))
        rows += [Trajectory(request, (step(reward={"score": x}),), status) for x in group]
    batch = pack(rows)
    return batch.put({"reward": batch["reward/score"]})


def pairs(batch, ctx=None, **settings):
    out = Pairs(**settings)(batch, ctx or context())
    return sorted(map(tuple, out.links["pairs"][0].tolist())), out["weight/rl"][:, 0].tolist()


def test_right_beats_wrong_within_a_group_only():
    index, weight = pairs(groups([0, 1], [1, 1], [0, 0], [1, 0, 0]))
    assert index == [(1, 0), (6, 8)] and weight == [1, 1, 0, 0, 0, 0, 1, 0, 1]


def test_the_best_goes_with_the_worst_and_nobody_stands_twice():
    graded = [0.1, 0.9, 0.5, 0.5, 0.7, 0.2]
    assert pairs(groups(graded), per_group=1)[0] == [(1, 0)]
    assert pairs(groups(graded), per_group=2)[0] == [(1, 0), (4, 5)]
    assert pairs(groups(graded), per_group=9) == ([(1, 0), (4, 5)], [1, 1, 0, 0, 1, 1])  # 0.5 beats no 0.5
    assert pairs(groups([1, 0, 1, 1, 0, 1]), per_group=9)[0] == [(0, 4), (2, 1)]


def test_groups_that_lie_apart_are_one_group():
    batch = groups([0, 1], [1, 0])
    assert pairs(batch.take(torch.tensor([0, 2, 1, 3])))[0] == [(1, 3), (2, 0)]


def test_what_was_not_graded_or_broke_is_in_no_pair():
    ctx = context()
    assert pairs(groups([NAN, 0, 1], [NAN, 1]), ctx) == ([(2, 1)], [0, 1, 1, 0, 0]) and ctx.ledger == {"ungraded": 2}
    assert pairs(groups([0, 1], status=Status.ERROR)) == ([], [0, 0])


def test_an_episode_of_several_rows_is_linked_by_its_last_and_weighs_as_a_whole():
    request = Request(Problem("t", "0", ""), key="0")
    trajectories = [
        Trajectory(request, (step(cont=0.5), step(0, cont=0.5, reward={"score": x}))) for x in (0.0, 1.0, 1.0)
    ]
    batch = pack(trajectories)
    assert len(batch) == 6
    assert pairs(batch.put({"reward": batch["reward/score"]})) == ([(3, 1)], [1, 1, 1, 1, 0, 0])


def test_another_reward_may_decide():
    batch = groups([0, 1]).put({"reward/brief": torch.tensor([[0.0, 2.0], [0.0, 1.0]])})
    assert pairs(batch, reward="reward/brief")[0] == [(0, 1)]


def test_labels_are_outcomes_above_a_threshold():
    ctx = context()
    out = Labels(threshold=0.6)(groups([0.7, 0.6], [NAN, 1]), ctx)
    index, columns = out.links["labels"]
    assert index.tolist() == [[0], [1], [3]] and columns["label"].tolist() == [1, 0, 1]
    assert out["weight/rl"][:, 0].tolist() == [1, 1, 0, 1] and ctx.ledger == {"ungraded": 1}


def test_links_that_came_with_the_data_stay():
    batch = pack([Trajectory(Request(Problem("t", "0", "")), (step(),))] * 2)
    mine = batch.link("pairs", torch.tensor([[1, 0]])).link("labels", torch.tensor([[0]]))
    assert Pairs()(mine, context()) is mine and Labels()(mine, context()) is mine
    with pytest.raises(KeyError, match="no column 'reward'"):
        Pairs()(batch, context())


def test_at_least_one_pair_a_group():
    with pytest.raises(ValueError, match="per_group is 0"):
        Pairs(per_group=0)


@pytest.mark.parametrize(("transform", "there"), [(Labels(), "pairs"), (Pairs(), "labels")])
def test_data_of_the_other_kind_are_named(transform, there):
    batch = groups([0, 1])
    recorded = batch.put({}).link(there, torch.zeros(1, 1, dtype=torch.long))
    del recorded.own["reward"]
    with pytest.raises(ValueError, match=f"the data are {there}, and this loss wants"):
        transform(recorded, context())
