"""Mixtures: streams stay apart, successors come along."""

from dataclasses import dataclass, field

import pytest
import torch

from shuhari.batch import Batch
from shuhari.buffers.fresh import Fresh
from shuhari.buffers.mixture import Mixture
from shuhari.events import Collected
from shuhari.kernel.state import memory, walk


@dataclass
class Fixed:
    """Yields what it is given."""

    batches: list
    wants: int = 0
    state: dict = field(init=False, default_factory=dict)

    def wanted(self):
        return self.wants

    def draw(self, ctx):
        yield from self.batches


def rows(ids, stream, **columns):
    n = len(ids)
    whole = {"mask": torch.ones(n, 1, dtype=torch.bool), "logp": torch.zeros(n, 1), "id": torch.tensor(ids), **columns}
    return Batch(whole, stream=stream)


def test_each_stream_weighs_on_its_own_rows_only():
    a, b = rows([1, 2], "rl", advantage=torch.ones(2, 1)), rows([7], "ce")
    (batch,) = Mixture({"rl": Fixed([a]), "ce": Fixed([b])}).draw(None)
    assert batch["id"].tolist() == [1, 2, 7]
    assert batch.weight("rl")[:, 0].tolist() == [1, 1, 0] and batch.weight("ce")[:, 0].tolist() == [0, 0, 1]
    assert bool(batch["advantage"][2].isnan().all())


def test_the_longer_member_goes_on_alone():
    buffer = Mixture({"a": Fixed([rows([1], "rl"), rows([2], "rl")], wants=3), "b": Fixed([rows([7], "ce")], wants=5)})
    assert [b["id"].tolist() for b in buffer.draw(None)] == [[1, 7], [2]] and buffer.wanted() == 5
    assert list(Mixture({"a": Fixed([])}).draw(None)) == []


def test_successors_of_replayed_rows_come_along():
    whole = rows(list(range(6)), "rl", child=torch.tensor([1, 2, -1, 4, 5, -1]), value=torch.arange(6.0) * 10)
    drawn = whole.take(torch.tensor([4, 0, 0, 1]))
    drawn = drawn.put({"priority": torch.tensor([0.4, 0.0, 0.0, 0.1]), "seen": torch.tensor([4, 0, 0, 1])})
    other = rows([10, 11], "rl", child=torch.tensor([1, -1]), value=torch.tensor([100.0, 110.0]))
    (batch,) = Mixture({"a": Fixed([drawn]), "b": Fixed([other])}).draw(None)
    assert batch["id"].tolist() == [4, 0, 0, 1, 10, 11] and batch.weight("rl").sum() == 6
    assert batch.successors()["id"].tolist() == [5, 1, 1, 2, 11, 11]
    assert batch.successors()["value"].tolist() == [50, 10, 10, 20, 110, 110]
    assert batch["priority"][:4].tolist() == [*drawn["priority"].tolist()]
    assert batch["seen"].tolist() == [4, 0, 0, 1, -1, -1]
    assert batch.successors()["seen"][3] == -1  # of a row that was not drawn nothing is known
    assert (batch["child"] >= 0).tolist() == [True] * 5 + [False]


def test_members_hear_and_are_saved_on_their_own():
    buffer = Mixture({"a": Fresh(size=2), "b": Fresh(size=1, stream="other")})
    found = dict(walk(buffer, "buffer"))
    assert set(found) == {"buffer", "buffer/buffers/a", "buffer/buffers/b"}
    for component in found.values():
        if hasattr(component, "observe"):
            component.observe(Collected(rows([1], None)))
    assert buffer.wanted() == 1 and set(memory(buffer)) == {"buffers/a", "buffers/b"}
    (batch,) = buffer.draw(None)
    assert batch["id"].tolist() == [1, 1] and batch.weight("other")[:, 0].tolist() == [0, 1]


def test_successors_of_several_decisions_come_along_where_they_are_asked_for():
    mask = torch.ones(7, 1, dtype=torch.bool)
    mask[6] = False
    chain = {"child": torch.tensor([1, 2, 3, 4, 5, 6, -1]), "reward": 2.0 ** torch.arange(7)[:, None], "mask": mask}
    drawn = rows(list(range(7)), "rl", **chain).take(torch.tensor([4, 0, 3]))
    other = rows([10], "ce")

    def mixed(ahead):
        return next(Mixture({"a": Fixed([drawn]), "b": Fixed([other])}, ahead).draw(None))

    batch = mixed(3)
    assert batch["id"].tolist() == [4, 0, 3, 10]
    ids = lambda at: [batch.whole["id"][i].item() if i >= 0 else -1 for i in at]  # noqa: E731
    assert [ids(at) for at in batch.path(3)] == [[4, 0, 3, 10], [5, 1, 4, -1], [-1, 2, 5, -1]]
    assert batch.successors(3)["id"].tolist() == [6, 3, 6, 10]
    assert torch.equal(batch.successors(2)["id"][:3], drawn.successors(2)["id"])
    with pytest.raises(ValueError, match="set its ahead = 3"):
        mixed(1).path(3)
    assert mixed(1).successors()["id"].tolist() == [5, 1, 4, 10]
