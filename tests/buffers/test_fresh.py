"""Fresh: what it still wants, what it yields, what it remembers."""

import numpy as np
import pytest
import torch

from shuhari.batch import Batch
from shuhari.buffers.fresh import Fresh
from shuhari.data import Problem, Request, Status, Step, Trajectory
from shuhari.events import Collected, Committed
from shuhari.kernel.pack import pack
from shuhari.store import codec


def collected(*names, n=2, k=2, start=0, status=Status.FINISHED):
    rows = []
    for name in names:
        request = Request(Problem("t", name, ""), key=name)
        for i in range(n):
            step = Step.of(np.array([5, 6], np.int32), np.arange(k, dtype=np.int32), np.zeros(k, np.float32))
            rows.append(Trajectory(request, (step,), status if i == 0 else Status.FINISHED))
    return pack(rows, start=start)


def draw(buffer):
    return list(buffer.draw(None))


def test_it_wants_groups_yields_them_once_and_empties():
    buffer = Fresh(size=3)
    buffer.observe(Committed(1))
    assert buffer.wanted() == 3 and draw(buffer) == []
    first, second = collected("a", "b"), collected("c", k=3, start=4)
    buffer.observe(Collected(first))
    assert buffer.wanted() == 1
    buffer.observe(Collected(second))
    assert buffer.wanted() == 0
    (batch,) = draw(buffer)
    assert batch["id"].tolist() == [0, 1, 2, 3, 4, 5] and batch.stream == "rl" and "weight/rl" not in batch
    assert batch.weight("rl").tolist() == [[1, 1, 0]] * 4 + [[1, 1, 1]] * 2
    assert buffer.wanted() == 3 and draw(buffer) == [] and first.stream is None


def test_groups_without_weight_do_not_count_and_are_left_out():
    buffer = Fresh(size=2)
    batch = collected("a", "b", "c")
    weight = torch.tensor([1.0, 0, 0, 0, 0, 1])[:, None].expand(6, 2).contiguous()
    buffer.observe(Collected(batch.put({"weight/rl": weight})))
    assert buffer.wanted() == 0
    buffer = Fresh(size=4)
    buffer.observe(Collected(batch.put({"weight/rl": weight})))
    assert buffer.wanted() == 2
    buffer.observe(Collected(collected("d", "e", start=6)))  # no weights there: all of it counts
    assert buffer.wanted() == 0
    (drawn,) = draw(buffer)
    assert drawn["id"].tolist() == [0, 1, 4, 5, 6, 7, 8, 9]
    assert drawn.weight("rl")[:, 0].tolist() == [1, 0, 0, 1, 1, 1, 1, 1]


def test_what_another_stream_wants_and_what_links_need_stays():
    batch = collected("a", "b")
    none = torch.zeros(4, 2)
    both = batch.put({"weight/rl": none, "weight/ce": torch.tensor([0.0, 1, 0, 0])[:, None].expand(4, 2)})
    buffer = Fresh(size=1)
    buffer.observe(Collected(both))
    assert buffer.wanted() == 1
    assert draw(buffer)[0]["id"].tolist() == [0, 1]
    buffer.observe(Collected(batch.put({"weight/rl": none}).link("pairs", torch.tensor([[0, 2]]))))
    assert len(draw(buffer)[0]) == 4


def test_errors_weigh_nothing():
    buffer = Fresh(size=2)
    buffer.observe(Collected(collected("a", "b", status=Status.ERROR)))
    assert buffer.wanted() == 0
    (batch,) = draw(buffer)
    assert batch["weight/rl"][:, 0].tolist() == [0, 1, 0, 1]
    buffer.observe(Collected(collected("a", n=1, status=Status.ERROR)))
    assert buffer.wanted() == 2


def test_decisions_as_the_unit():
    mask = torch.tensor([[True], [True], [False], [True]])
    buffer = Fresh(size=5, unit="decision")
    buffer.observe(Collected(Batch({"mask": mask, "logp": torch.zeros(4, 1)})))
    assert buffer.wanted() == 2
    assert len(draw(buffer)[0]) == 4 and buffer.wanted() == 5


def test_pending_batches_survive_saving():
    buffer, other = Fresh(size=3), Fresh(size=3)
    buffer.observe(Collected(collected("a", "b")))
    other.state = codec.loads(codec.dumps(buffer.state))
    assert other.wanted() == 1
    for b in (buffer, other):
        b.observe(Collected(collected("c", start=4)))
    (x,), (y,) = draw(buffer), draw(other)
    assert x.names() == y.names() and x.stream == y.stream
    for name in x.names():
        torch.testing.assert_close(x[name], y[name], equal_nan=True)
    assert [s.context.tolist() for s in x.steps] == [s.context.tolist() for s in y.steps]


def test_wrong_settings_are_named():
    with pytest.raises(ValueError, match="did you mean 'group'"):
        Fresh(unit="groups")
    with pytest.raises(ValueError, match="size is 0"):
        Fresh(size=0)
