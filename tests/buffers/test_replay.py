"""Replay against a plain list of transitions, over wrap-around, resumed lanes and restores."""

import copy
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shuhari.batch import STATUS, Batch
from shuhari.buffers.replay import Replay
from shuhari.data import Problem, Request, Status, Step, Trajectory
from shuhari.events import Amended, Collected, Updated
from shuhari.kernel.pack import pack
from shuhari.store.codec import dumps, loads
from shuhari.testing import context


class Lanes:
    """Fragments of made-up lanes, as a vector rollout gives them: states and rewards are running numbers."""

    def __init__(self, lanes, seed=0):
        self.n, self.rng = lanes, np.random.default_rng(seed)
        self.state, self.next = np.arange(lanes), lanes
        self.open, self.ended = np.zeros(lanes, bool), np.zeros(lanes, int)
        self.transitions = []  # (state, reward, next state, its cont, serial of the fragment's first row)

    def fragment(self, T):
        N = self.n
        context, cont = np.empty((T + 1, N)), np.ones((T + 1, N))
        mask, reward = np.ones((T + 1, N), bool), np.zeros((T + 1, N))
        made = []
        for i in np.flatnonzero(self.ended):
            self._new(i)
        for t in range(T):
            context[t] = self.state
            for i in range(N):
                if self.ended[i]:
                    mask[t, i], cont[t, i] = False, self.ended[i] == 2
                    self._new(i)
                    continue
                reward[t, i] = self.rng.normal()
                before, self.state[i], self.next = self.state[i], self.next, self.next + 1
                self.ended[i] = self.rng.choice([0, 1, 2], p=[0.7, 0.15, 0.15])
                made.append([before, np.float32(reward[t, i]), self.state[i], float(self.ended[i] != 1)])
        context[T], mask[T], cont[T] = self.state, False, self.ended != 1
        resumes = np.zeros((T + 1, N), bool)
        resumes[0], self.open = self.open, self.ended == 0
        self.transitions += made
        rows = np.arange((T + 1) * N).reshape(T + 1, N)
        tensor = lambda x: torch.from_numpy(np.ascontiguousarray(x).reshape((T + 1) * N))  # noqa: E731
        return Batch(
            {
                "context": tensor(context).float()[:, None],
                "mask": tensor(mask)[:, None],
                "logp": torch.zeros((T + 1) * N, 1),
                "reward": tensor(reward).float()[:, None],
                "cont": tensor(cont).float(),
                "child": tensor(np.where(mask, rows + N, -1)),
                "lane": torch.arange(N).repeat(T + 1),
                "resumes": tensor(resumes),
            }
        )

    def _new(self, i):
        self.state[i], self.next, self.ended[i] = self.next, self.next + 1, 0


def transitions(batch):
    ahead = batch.successors()
    columns = batch["context"][:, 0], batch["reward"][:, 0], ahead["context"][:, 0], ahead["cont"]
    return {tuple(x.item() for x in row) for row in zip(*columns, strict=True)}


def stored(replay):
    """Every transition that the ring may draw."""
    return transitions(Batch(replay.state["ring"].columns, torch.from_numpy(replay._eligible.nonzero()[0])))


@settings(max_examples=60, deadline=None)
@given(
    lanes=st.integers(1, 4),
    spare=st.integers(0, 30),
    lengths=st.lists(st.integers(1, 6), min_size=1, max_size=30),
    seed=st.integers(0, 1000),
)
def test_a_ring_holds_the_latest_transitions_and_no_others(lanes, spare, lengths, seed):
    world, replay = Lanes(lanes, seed), Replay(capacity=lanes * 7 + lanes + spare, size=64)
    for step, T in enumerate(lengths):
        replay.observe(Collected(world.fragment(T)))
        have, made = stored(replay), [tuple(map(float, t)) for t in world.transitions]
        assert have <= set(made)  # nothing is made up: no pointer leads astray
        ring = replay.state["ring"]
        closing = ring.size - int(replay._eligible[: ring.size].sum())
        # transitions arrive in order: those that are there are the last ones, and fill all that closing rows leave
        assert len(have) == ring.size - closing
        if ring.written <= ring.capacity:
            assert len(have) == len(made)
        late = {t for t in made if t[0] >= min(h[0] for h in have)}
        assert len(late - have) <= 2 * lanes * 7  # only around the edge, within one fragment, does order differ
        for batch in replay.draw(context(step)):
            assert transitions(batch) <= have and bool(batch.decides.all())


def test_no_transition_is_lost_or_stored_twice_by_resuming():
    world, replay = Lanes(2), Replay(capacity=5000, size=8)
    rows = 0
    for _ in range(300):
        fragment = world.fragment(1)
        rows += len(fragment) - int(fragment["resumes"].sum())
        replay.observe(Collected(fragment))
    assert stored(replay) == {tuple(map(float, t)) for t in world.transitions}
    assert replay.state["ring"].written == rows == replay.state["ring"].size  # resumed rows took no new slot


def test_thousands_of_steps_of_one_lane():
    world, replay = Lanes(1, 5), Replay(capacity=97, size=32)
    for step in range(1500):
        replay.observe(Collected(world.fragment(1)))
        if step % 50 == 0:
            (batch,) = replay.draw(context(step))
            assert transitions(batch) <= {tuple(map(float, t)) for t in world.transitions[-97:]}
    have = stored(replay)
    assert have == {tuple(map(float, t)) for t in world.transitions[-len(have) :]} and len(have) > 60


def test_draws_are_uniform_over_decisions():
    world, replay = Lanes(3), Replay(capacity=64, size=20_000)
    for _ in range(12):
        replay.observe(Collected(world.fragment(4)))
    (batch,) = replay.draw(context())
    counts = np.unique(batch["context"].numpy(), return_counts=True)[1]
    n = int(replay._eligible.sum())
    assert len(counts) == n
    expected = 20_000 / n
    assert ((counts - expected) ** 2 / expected).sum() < n + 5 * (2 * n) ** 0.5  # chi square


def test_how_much_is_wanted_and_drawn():
    world, replay = Lanes(1), Replay(capacity=500, size=4, collect=10, ratio=0.5, warmup=30)
    assert replay.wanted() == 30  # the warm-up at once
    replay.observe(Collected(world.fragment(20)))
    done = replay.state["seen"]
    assert replay.wanted() == 30 - done and not list(replay.draw(context()))
    while replay.wanted():
        replay.observe(Collected(world.fragment(1)))
    beyond = replay.state["seen"] - 30
    drawn = len(list(replay.draw(context())))
    assert drawn == int(0.5 * beyond) and replay.wanted() == 10
    total = beyond
    for step in range(9):
        while replay.wanted():
            before = replay.state["seen"]
            replay.observe(Collected(world.fragment(3)))
            total += replay.state["seen"] - before
        drawn += len(list(replay.draw(context(step))))
    assert drawn == int(0.5 * total)  # over the steps nothing is lost to rounding
    assert len(list(Replay(draws=3).draw(context()))) == 0  # nothing there yet
    some = Replay(capacity=50, size=4, draws=3)
    some.observe(Collected(Lanes(1).fragment(3)))
    assert some.wanted() == 0
    batches = list(some.draw(context()))
    assert len(batches) == 3 and some.wanted() == 1 and batches[0].stream == "rl"
    assert not torch.equal(batches[0].rows, batches[1].rows)


def test_episodes_of_a_rollout_and_their_errors():
    def episode(status, reward):
        steps = [Step.of(np.float32([i]), i % 2, np.zeros(1, np.float32), parent=i - 1 if i else None,
                         reward={"task": reward}) for i in range(3)]  # fmt: skip
        cont = float(status != Status.FINISHED)
        steps.append(Step.closing(np.float32([9]), 2, cont))
        return Trajectory(Request(Problem("t", "p", None)), tuple(steps), status)

    batch = pack([episode(Status.FINISHED, 1.0), episode(Status.ERROR, 2.0), episode(Status.TRUNCATED, 3.0)])
    replay = Replay(capacity=64, size=100)
    replay.observe(Collected(batch.put({"reward": batch["reward/task"]})))
    (drawn,) = replay.draw(context())
    assert set(drawn["reward"][:, 0].tolist()) == {1.0, 3.0}
    assert (drawn["status"] != STATUS[Status.ERROR]).all()
    last = drawn["context"][:, 0] == 2
    ahead = drawn.successors()
    assert (ahead["context"][last] == 9).all()
    assert (ahead["cont"][last] == (drawn["reward"][last, 0] == 3).float()).all()
    view = batch.put({"reward": batch["reward/task"]}).take(torch.arange(4))  # a view is stored as well
    other = Replay(capacity=64, size=100)
    other.observe(Collected(view))
    assert int(other._eligible.sum()) == 3


def test_columns_that_come_later():
    world, replay = Lanes(1), Replay(capacity=64, size=200)
    first = world.fragment(5)
    replay.observe(Collected(first))
    second = world.fragment(5)
    replay.observe(Collected(second.put({"pre": torch.ones(6), "weight/rl": torch.ones(6, 1)})))
    replay.observe(Collected(world.fragment(5)))
    (batch,) = replay.draw(context())
    old = batch["context"][:, 0] < float(second["context"][0])
    assert old.any() and batch["pre"][old].isnan().all()
    assert (batch["weight/rl"] == 1).all()  # who had none carried the stream in full
    assert (batch["pre"] == 1).any() and transitions(batch) <= {tuple(map(float, t)) for t in world.transitions}


def test_resume_is_bit_equal():
    world, replay = Lanes(3), Replay(capacity=80, size=16, draws=2)
    for _ in range(13):
        replay.observe(Collected(world.fragment(3)))
    list(replay.draw(context()))
    other = Replay(capacity=80, size=16, draws=2)
    other.state = loads(dumps(replay.state))
    for step in range(12):
        fragment = world.fragment(2)
        for r in (replay, other):
            r.observe(Collected(fragment))
        for a, b in zip(replay.draw(context(step)), other.draw(context(step)), strict=True):
            assert all(torch.equal(a[n], b[n]) for n in a.names()) and torch.equal(a.rows, b.rows)
            assert torch.equal(a.successors()["context"], b.successors()["context"])
    assert dumps(replay.state) == dumps(other.state)


def test_mistakes_are_told():
    with pytest.raises(ValueError, match="capacity is 1"):
        Replay(capacity=1)
    with pytest.raises(ValueError, match="12 rows at once"):
        Replay(capacity=10).observe(Collected(Lanes(3).fragment(3)))
    tokens = Step.of(np.array([1, 2], np.int32), np.array([3], np.int32))
    text = pack([Trajectory(Request(Problem("t", "p", None)), (tokens,))])
    with pytest.raises(TypeError, match="text"):
        Replay().observe(Collected(text))
    backwards = Lanes(1).fragment(2)
    with pytest.raises(ValueError, match="row 1 has row 0 for its successor"):
        Replay().observe(Collected(backwards.put({"child": torch.tensor([-1, 0, 1])})))


def test_rows_without_the_streams_weight_are_not_drawn():
    world, replay = Lanes(1), Replay(capacity=64, size=200)
    first, second, third = world.fragment(6), world.fragment(6), world.fragment(6)
    odd = (second["context"][:, 0] % 2 == 1)[:, None]
    replay.observe(Collected(first))
    replay.observe(Collected(second.put({"weight/rl": 0.5 * odd * second["mask"]})))
    replay.observe(Collected(third.put({"weight/rl": torch.zeros(len(third))})))
    drawn = [f["context"][f["mask"].any(1), 0] for f in (first, second)]
    wanted = {*drawn[0].tolist(), *(x for x in drawn[1].tolist() if x % 2 == 1)}
    other = Replay(capacity=64, size=200)
    other.state = loads(dumps(replay.state))
    for r in (replay, other):
        (batch,) = r.draw(context())
        assert set(batch["context"][:, 0].tolist()) == wanted
        assert bool((batch.weight("rl") != 0).any(1).all())
    assert replay.state["seen"] == sum(int(f["mask"].sum()) for f in (first, second, third))
    elsewhere = world.fragment(3)
    elsewhere.stream = "ce"
    replay.observe(Collected(elsewhere))
    (batch,) = replay.draw(context())
    assert set(batch["context"][:, 0].tolist()) <= wanted


def test_one_eligible_row_among_many_is_found():
    batch = Lanes(1).fragment(400)
    weight = torch.zeros(len(batch), 1)
    weight[int(batch.decides.nonzero()[7])] = 1
    replay = Replay(capacity=1000, size=8)
    replay.observe(Collected(batch.put({"weight/rl": weight})))
    (drawn,) = replay.draw(context())
    assert (drawn["context"] == drawn["context"][0]).all() and (drawn["weight/rl"] == 1).all()


def test_what_models_were_asked_is_not_stored():
    batch, replay = Lanes(1).fragment(4), Replay(capacity=64, size=8)
    scored = batch.put({"policy/log_prob": torch.zeros(len(batch), 1)}, scored=True)
    replay.observe(Collected(scored.put({"advantage": torch.ones(len(batch), 1)})))
    (drawn,) = replay.draw(context())
    assert "policy/log_prob" not in drawn and "advantage" in drawn
    replay.observe(Collected(scored.take(torch.arange(2))))  # a view is flattened, and forgets nothing
    assert "policy/log_prob" not in replay.state["ring"].columns


# ---------------------------------------------------------------- by priority


class Named(Lanes):
    """Lanes whose rows have ids that are never given twice, as a run's do."""

    def fragment(self, T):
        batch = super().fragment(T)
        first, self.rows = getattr(self, "rows", 1000), getattr(self, "rows", 1000) + len(batch)
        return batch.put({"id": torch.arange(first, first + len(batch))}).flat()


class Lone(Named):
    """One lane whose fragment is of one open episode."""

    def __init__(self):
        super().__init__(1)
        self.rng = SimpleNamespace(normal=lambda: 0.0, choice=lambda *_, **__: 0)


def filled(world=None, T=30, **fields):
    replay, world = Replay(**{"capacity": 200, "size": 64, "by": "td_error", **fields}), world or Named(2)
    replay.observe(Collected(world.fragment(T)))
    return replay


def told(replay, ids, value):
    replay.observe(Updated("main", {}, ids, {"td_error": value, "other": value}))


def by_context(step=0, beta=1.0):
    return context(step, at=lambda x: beta if x == 1.0 else x)


def test_rows_are_drawn_as_often_as_their_priority_says_and_weigh_the_inverse():
    for power, beta in ((1.0, 1.0), (0.6, 0.4)):
        replay = filled(size=60_000, power=power)
        (batch,) = replay.draw(by_context())
        ids = batch["id"].unique()
        error = 0.1 + torch.rand(len(ids), generator=torch.Generator().manual_seed(1))
        told(replay, ids, -error)  # the size counts
        (batch,) = replay.draw(by_context(1, beta))
        p = error.double() ** power
        p /= p.sum()
        counts = torch.tensor([int((batch["id"] == i).sum()) for i in ids])
        assert float(((counts - 60_000 * p) ** 2 / (60_000 * p)).sum()) < len(ids) + 5 * (2 * len(ids)) ** 0.5
        weight = (len(ids) * p) ** -beta
        expected = (weight / weight.max())[torch.searchsorted(ids, batch["id"])]
        assert torch.allclose(batch.weight("rl")[:, 0], expected.float(), rtol=1e-4)


def test_new_rows_count_as_the_largest_and_rows_that_are_gone_as_none():
    world = Named(1)
    replay = filled(world, 20, capacity=40, size=4000)
    ids = next(replay.draw(by_context()))["id"].unique()
    told(replay, ids, torch.linspace(0.1, 1.0, len(ids)))
    replay.observe(Collected(world.fragment(10)))
    (batch,) = replay.draw(by_context(1))
    new = batch["id"] > ids.max()
    fresh = batch["id"][new].unique()
    share = float(len(fresh) / (torch.linspace(0.1, 1.0, len(ids)).sum() + len(fresh)))
    assert abs(float(new.float().mean()) - share) < 5 * (share * (1 - share) / 4000) ** 0.5
    for _ in range(5):
        replay.observe(Collected(world.fragment(10)))
    before = replay.state["ring"].columns["td_error"].clone()
    told(replay, ids, torch.full((len(ids),), 99.0))  # all have been overwritten
    assert torch.equal(replay.state["ring"].columns["td_error"].nan_to_num(), before.nan_to_num())


def test_nothing_left_to_learn_is_drawn_alike_and_beta_0_corrects_nothing():
    for least in (1e-6, 0.0):
        replay = filled(size=3000, least=least)
        ids = next(replay.draw(by_context()))["id"].unique()
        told(replay, ids, torch.zeros(len(ids)))
        (batch,) = replay.draw(by_context(1))
        assert len(batch["id"].unique()) == len(ids) and bool((batch.weight("rl") == 1).all())
    told(replay, ids, torch.rand(len(ids)))
    (batch,) = replay.draw(by_context(2, 0.0))
    assert f"weight/{batch.stream}" not in batch


def test_rows_without_an_error_are_drawn_now_and_then():
    """One row of ten has error 1, nine have none: at `least` 0.01 each of these has a share of 0.01 / 1.1."""
    replay = filled(Lone(), 10, size=20_000, least=0.01)
    (batch,) = replay.draw(by_context())
    ids = batch["id"].unique()
    told(replay, ids, (ids == ids[4]).float())
    (batch,) = replay.draw(by_context(1))
    share = torch.tensor([float((batch["id"] == i).float().mean()) for i in ids])
    expected = torch.full((10,), 0.01 / 1.1)
    expected[4] = 1.01 / 1.1
    assert bool(((share - expected).abs() < 5 * (expected * (1 - expected) / 20_000).sqrt()).all())


def test_late_news_is_written_where_the_rows_stand_and_survives_a_restore():
    replay = filled(by="", size=4000)
    (batch,) = replay.draw(by_context())
    ids = batch["id"].unique()
    label = torch.rand(len(ids), generator=torch.Generator().manual_seed(0))
    replay.observe(Amended(torch.cat([ids, torch.tensor([5])]), {"label": torch.cat([label, torch.ones(1)])}))
    again = Replay(capacity=200, size=4000)
    again.state = loads(dumps(replay.state))
    for r in (replay, again):
        (batch,) = r.draw(by_context(1))
        assert torch.equal(batch["label"], label[torch.searchsorted(ids, batch["id"])])
    replay.observe(Amended(ids[:3], {"label": torch.tensor([0.5, torch.nan, 0.25])}))
    columns = replay.state["ring"].columns
    of = dict(zip(columns["id"].tolist(), columns["label"].tolist(), strict=True))
    assert [of[int(i)] for i in ids[:3]] == pytest.approx([0.5, float(label[1]), 0.25])


def test_priorities_go_on_bit_by_bit_after_a_restore():
    def steps(replay, world, first, n):
        out = []
        for step in range(first, first + n):
            replay.observe(Collected(world.fragment(3)))
            for batch in replay.draw(by_context(step, 0.5)):
                error = (batch["context"][:, 0] * 0.37 + step).sin().abs()
                told(replay, batch["id"], error)
                out.append(torch.cat([batch["id"].double(), batch.weight("rl")[:, 0].double()]))
        return out

    a, b, world = Replay(60, 8, draws=2, by="td_error"), Replay(60, 8, draws=2, by="td_error"), Named(2)
    steps(a, world, 0, 12)
    b.state = loads(dumps(a.state))
    other = copy.deepcopy(world)
    assert all(torch.equal(x, y) for x, y in zip(steps(a, world, 12, 12), steps(b, other, 12, 12), strict=True))


def test_resumed_rows_keep_their_place_and_take_their_new_name():
    world, replay = Named(2), Replay(capacity=300, size=50, by="td_error")
    for step in range(40):
        replay.observe(Collected(world.fragment(2)))
        for batch in replay.draw(by_context(step)):
            told(replay, batch["id"], batch["context"][:, 0])
    ring = replay.state["ring"]
    known = ~ring.columns["td_error"].isnan()
    assert int(known.sum()) > 100
    assert torch.equal(ring.columns["td_error"][known], ring.columns["context"][known][:, 0])
