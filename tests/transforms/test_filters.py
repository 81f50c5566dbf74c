"""Dynamic sampling: which groups keep their weight, and that nothing is deleted."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from shuhari.data import Problem, Request, Status, Step, Trajectory
from shuhari.kernel.join import cat
from shuhari.kernel.pack import pack
from shuhari.testing import context
from shuhari.transforms.advantage import Advantage
from shuhari.transforms.filters import Finished, Latest, Mixed, Only
from shuhari.transforms.streams import find_carried, whiten, zero_ungraded, zero_weight

NAN = float("nan")


def groups(*outcomes, role="policy", status=()):
    rows = []
    for i, group in enumerate(outcomes):
        request = Request(Problem("t", str(i), ""), key=str(i))
        for x in group:
            step = Step.of(np.array([7], np.int32), np.array([1, 2], np.int32), reward={"score": x}, role=role)
            rows.append(Trajectory(request, (step,), status[len(rows)] if status else Status.FINISHED))
    batch = pack(rows)
    return batch.put({"reward": batch["reward/score"]})


def test_only_mixed_groups_keep_their_weight():
    ctx = context()
    batch = groups([0, 0, 0], [1, 0, 1], [1, 1], [NAN, 1], [NAN, 0, 1], [3])
    out = Mixed()(batch, ctx)
    weight = out["weight/rl"]
    assert len(out) == len(batch) and weight[:, 0].equal(weight[:, 1])
    assert weight[:, 0].tolist() == [0, 0, 0, 1, 1, 1, 0, 0, 0, 0, 0, 1, 1, 0]
    assert ctx.ledger == {"ungraded": 2}


def test_it_compares_the_named_reward():
    batch = groups([1, 1], [0, 1]).put({"reward": torch.tensor([[0.0, 0.3], [0, 0.9], [0, 0.5], [0, 0.5]])})
    assert Mixed()(batch, context())["weight/rl"][:, 0].tolist() == [1, 1, 0, 0]
    assert Mixed(reward="reward/score")(batch, context())["weight/rl"][:, 0].tolist() == [0, 0, 1, 1]
    assert Mixed(tolerance=0.7)(batch, context())["weight/rl"].sum() == 0


def test_other_streams_are_left_alone():
    batch = groups([1, 1], [0, 1]).put({"weight/ce": torch.ones(4, 2)})
    out = Mixed(stream="pg")(batch, context())
    assert out["weight/pg"][:, 0].tolist() == [0, 0, 1, 1] and out["weight/ce"].sum() == 8 and "weight/rl" not in out


def test_weights_multiply_rather_than_overwrite():
    batch = groups([0, 1], [0, 1]).put(
        {"weight/rl": torch.tensor([0.5, 0.5, 0.0, 2.0])[:, None].expand(4, 2).contiguous()}
    )
    out = Mixed()(batch, context())  # the second group has one counted sample left: nothing to compare
    assert out["weight/rl"][:, 0].tolist() == [0.5, 0.5, 0, 0]


def test_cut_answers_are_no_lesson_but_count_in_their_group():
    ends = (Status.FINISHED, Status.TRUNCATED, Status.FINISHED, Status.CUT, Status.ERROR)
    out = Finished()(groups([1, 0, 0], [1, 0], status=ends), context())
    assert out["weight/rl"].tolist() == [[1, 1], [0, 0], [1, 1], [0, 0], [0, 0]]
    advantage = Advantage(scale="none")(out, context())["advantage"][:3, 0]
    torch.testing.assert_close(advantage, torch.tensor([2 / 3, -1 / 3, -1 / 3]))  # the mean is that of all three
    assert Finished("pg")(out, context())["weight/rl"].equal(out["weight/rl"])


def test_helpers():
    batch = groups([0, 1])
    assert find_carried(batch).tolist() == [True, True] and find_carried(batch, "ce").tolist() == [True, True]
    batch.stream = "rl"
    assert find_carried(batch, "ce").tolist() == [False, False]
    less = zero_weight(batch, torch.tensor([True, False]))
    assert less["weight/rl"].tolist() == [[0, 0], [1, 1]] and find_carried(less).tolist() == [False, True]
    assert zero_ungraded(less, torch.tensor([True, False]), context()) is less
    x = torch.tensor([[1.0, 5.0], [3.0, 99.0]])
    where = torch.tensor([[True, True], [True, False]])
    y = whiten(x, where)
    torch.testing.assert_close(y, torch.tensor([[-1.0, 1.0], [0.0, 0.0]]))  # 1, 5, 3: mean 3, deviation 2


def test_what_was_said_under_older_weights_is_no_decision():
    def said(*versions, mask=None):
        k = len(versions)
        step = Step.of(np.array([7], np.int32), np.arange(k, dtype=np.int32), np.full(k, -1, np.float32))
        step = replace(step, version=np.array(versions), mask=np.ones(k, bool) if mask is None else np.array(mask))
        return Trajectory(Request(Problem("t", "0", "")), (step,))

    rows = [said(3, 3, 5, 5), said(4, 4), said(2, 6, 9, mask=[True, True, False])]
    out = Latest()(pack(rows), context())
    assert out["mask"].tolist() == [[False, False, True, True], [True, True, False, False], [False, True, False, False]]
    assert out["version"].tolist() == pack(rows)["version"].tolist() and bool(out.decides.all())


def test_only_what_a_column_says_carries_a_stream():
    batch = cat([groups([0, 1], role="prover"), groups([1], role="solver")])
    token = torch.tensor([[1.0, 2.0], [2.0, 2.0], [1.0, 1.0]])
    batch = batch.put({"demo": torch.tensor([1.0, 0.0, NAN]), "token": token})
    ctx = context()
    cut = Only("role", "prover", "prover", of="rl")(Only("demo", 1.0)(batch, ctx), ctx)
    assert cut["weight/rl"].tolist() == [[1, 1], [0, 0], [0, 0]]
    assert cut["weight/prover"].tolist() == [[1, 1], [0, 0], [0, 0]]
    cut = Only("role", "solver", "solver", of="rl")(batch, ctx)
    assert cut["weight/solver"].tolist() == [[0, 0], [0, 0], [1, 1]]
    half = batch.put({"weight/rl": torch.full((3, 2), 0.5)})
    assert Only("token", 2.0)(half, ctx)["weight/rl"].tolist() == [[0, 0.5], [0.5, 0.5], [0, 0]]
    assert Only("role", "prover").roles == ("prover",) and Only("demo").roles == ()
    with pytest.raises(ValueError, match="'yes', and the column 'demo' is of numbers"):
        Only("demo", "yes")(batch, ctx)
