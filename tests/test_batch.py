"""Batches: views, pointers, trees, joining. Trees are checked against a plain recursion."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shuhari.batch import Batch
from shuhari.data import Problem, Request, Step, Trajectory, code
from shuhari.kernel.columns import BRANCH, POLICY
from shuhari.kernel.join import cat
from shuhari.kernel.pack import pack
from shuhari.needs import Need
from shuhari.store.decode import from_tree
from shuhari.store.encode import to_tree

NAN = float("nan")


def tokens(*ids):
    return np.array(ids, np.int32)


@st.composite
def forests(draw, graded=True):
    """Trajectories of text steps with rewards, trees and chains mixed; no two steps join."""
    trajectories, at = [], 0
    for t in range(draw(st.integers(1, 3))):
        steps = []
        for i in range(draw(st.integers(1, 6))):
            k, at = draw(st.integers(1, 4)), at + 1
            parent = draw(st.integers(-1 if graded else 0, i - 1)) if i else -1
            value = draw(st.integers(-4, 4)) if graded or draw(st.booleans()) else NAN
            steps.append(
                Step.of(
                    tokens(1000 + at),
                    np.arange(1, k + 1, dtype=np.int32),
                    -np.arange(1, k + 1, dtype=np.float32),
                    parent=None if parent < 0 else parent,
                    reward={"r": float(value)},
                    info={"note": float(at), "each": np.arange(k, dtype=np.float32)},
                )
            )
        trajectories.append(Trajectory(Request(Problem("t", str(t), ""), key=str(t)), tuple(steps)))
    return trajectories


def same(a, b):
    assert a.names() == b.names() and len(a) == len(b)
    for name in a.names():
        torch.testing.assert_close(a[name], b[name], equal_nan=True)
    assert [s.context.tolist() for s in a.steps] == [s.context.tolist() for s in b.steps]


# ------------------------------------------------------------------------------------ reading


def test_columns_are_read_by_name_or_need_and_unknown_ones_name_the_nearest():
    need = Need(("policy",), "log_prob")
    batch = Batch({"mask": torch.ones(2, 1, dtype=torch.bool)}).put({need: torch.tensor([[1.0], [2.0]])})
    assert batch[need].equal(batch["policy/log_prob"]) and need in batch and "policy/log_prob" in batch
    with pytest.raises(KeyError, match="did you mean 'policy/log_prob'"):
        batch["policy/logprob"]
    with pytest.raises(ValueError, match="3 rows: expected 2"):
        batch.put({"x": torch.zeros(3)})
    assert batch.get("x") is None and batch.width == 1 and "2 rows" in repr(batch)


def test_derived_columns():
    batch = Batch({"mask": torch.ones(3, 2, dtype=torch.bool), "child": torch.tensor([1, -1, -1])})
    assert batch["parent"].tolist() == [-1, 0, -1] and batch["leaf"].tolist() == [False, True, True]
    assert batch["id"].tolist() == batch["episode"].tolist() == batch["group"].tolist() == [0, 1, 2]
    assert batch["cont"].tolist() == [1, 1, 1] and batch["segment"].shape == (3, 2)
    assert Batch({"mask": torch.ones(3, 1), "parent": torch.tensor([-1, 0, 0])})["child"].tolist() == [BRANCH, -1, -1]
    assert "cont" not in batch  # derived, not stored


def test_views_compose_and_gather_what_was_put():
    batch = Batch({"mask": torch.ones(5, 1, dtype=torch.bool), "x": torch.arange(5)}).put({"y": torch.arange(5) * 10})
    view = (
        batch.take(torch.tensor([4, 2, 0])).put({"z": torch.tensor([7, 8, 9])}).take(torch.tensor([True, False, True]))
    )
    assert [view[n].tolist() for n in "xyz"] == [[4, 0], [40, 0], [7, 9]] and len(view) == 2


def test_a_stamp_replaces_what_was_read_before():
    batch = Batch({"mask": torch.ones(2, 1, dtype=torch.bool), "x": torch.zeros(2)}).take(torch.tensor([1, 0]))
    assert batch["x"].tolist() == [0, 0]
    batch.stamp("x", torch.tensor([1.0, 2.0], requires_grad=True))
    assert batch["x"].tolist() == [1, 2] and not batch["x"].requires_grad
    assert batch.take(torch.tensor([1]))["x"].tolist() == [2] and batch.put({"y": torch.zeros(2)})["x"].tolist() == [
        1,
        2,
    ]


def test_weights_of_streams():
    batch = Batch({"mask": torch.tensor([[True, True], [True, False]])}, stream="rl")
    assert batch.weight("rl").tolist() == [[1, 1], [1, 0]]
    assert batch.put({"weight/rl": torch.tensor([0.5, 2.0])}).weight("rl").tolist() == [[0.5, 0.5], [2, 0]]
    with pytest.raises(KeyError, match=r"no row is in the stream 'cee' .*; did you mean 'ce'"):
        batch.put({"weight/ce": torch.zeros(2)}).weight("cee")


def test_ahead_finds_successors_from_any_view():
    child = torch.tensor([1, 2, -1, 4, -1])
    batch = Batch({"mask": torch.ones(5, 1, dtype=torch.bool), "child": child, "x": torch.arange(5)})
    assert batch.successors()["x"].tolist() == [1, 2, 2, 4, 4]
    assert batch.take(torch.tensor([3, 0]))["x"].tolist() == [3, 0]
    assert batch.take(torch.tensor([3, 0])).successors()["x"].tolist() == [4, 1]
    assert batch.put({"y": torch.arange(5) * 2}).successors()["y"].tolist() == [2, 4, 4, 8, 8]
    with pytest.raises(ValueError, match="by_depth"):
        Batch({"mask": torch.ones(3, 1), "child": torch.tensor([BRANCH, -1, -1])}).successors()


def test_links_keep_those_whose_members_are_all_taken():
    batch = Batch({"mask": torch.ones(4, 1, dtype=torch.bool)})
    batch = batch.link("pairs", torch.tensor([[0, 1], [3, 2], [1, 3]]), {"margin": torch.tensor([1.0, 2.0, 3.0])})
    index, columns = batch.take(torch.tensor([3, 1, 2])).links["pairs"]
    assert index.tolist() == [[0, 2], [1, 0]] and columns["margin"].tolist() == [2, 3]
    index, columns = cat([batch, batch]).links["pairs"]
    assert index.tolist() == [[0, 1], [3, 2], [1, 3], [4, 5], [7, 6], [5, 7]] and len(columns["margin"]) == 6


# ------------------------------------------------------------------------------------ trees


@given(forests())
@settings(max_examples=60, deadline=None)
def test_waves_yield_every_row_once_children_first(trajectories):
    batch = pack(trajectories)
    seen = []
    for rows in batch.by_depth():
        for row in rows.tolist():
            assert all(c in seen for c in range(len(batch)) if int(batch["parent"][c]) == row)
        seen += rows.tolist()
    assert sorted(seen) == list(range(len(batch)))


@given(forests(graded=False), st.randoms())
@settings(max_examples=80, deadline=None)
def test_outcome_is_the_path_sum_averaged_over_graded_leaves(trajectories, random):
    batch = pack(trajectories)
    wanted = []
    for t in trajectories:
        reward = [s.reward["r"] for s in t.steps]
        paths = t.paths()
        for i in range(len(t.steps)):
            sums = [sum(reward[j] for j in p) for p in paths if i in p]
            graded = [x for x in sums if x == x]
            wanted.append(sum(graded) / len(graded) if graded else NAN)
    wanted = torch.tensor(wanted)
    torch.testing.assert_close(batch.outcome("reward/r"), wanted, equal_nan=True)
    rows = torch.tensor(random.sample(range(len(batch)), random.randint(1, len(batch))))
    torch.testing.assert_close(batch.take(rows).outcome("reward/r"), wanted[rows], equal_nan=True)
    dirty = batch["reward/r"].masked_fill(batch["segment"] < 0, 1e9)
    torch.testing.assert_close(batch.put({"reward/r": dirty}).outcome("reward/r"), wanted, equal_nan=True)


def test_two_roots_in_one_trajectory_are_two_paths():
    steps = [Step.of(tokens(i), tokens(1), reward={"r": float(i)}) for i in (1, 2)]
    batch = pack([Trajectory(Request(Problem("t", "p", "")), tuple(steps))])
    assert batch.outcome("reward/r").tolist() == [1, 2]


# ------------------------------------------------------------------------------------ cutting and joining


@given(forests())
@settings(max_examples=40, deadline=None)
def test_flat_and_cat_keep_everything(trajectories):
    whole = pack(trajectories)
    same(whole.flat(), whole)
    parts, first = [], 0
    for t in trajectories:
        parts.append(pack([t], start=first))
        first += len(parts[-1])
    joined = cat(parts)
    order = sorted(whole.names())
    assert sorted(joined.names()) == order
    for name in order:
        torch.testing.assert_close(joined[name], whole[name], equal_nan=True, msg=name)
    assert [s.context.tolist() for s in joined.steps] == [s.context.tolist() for s in whole.steps]


@given(forests(), st.integers(1, 30), st.booleans())
@settings(max_examples=40, deadline=None)
def test_split_keeps_the_budget_and_every_row(trajectories, budget, packed):
    batch = pack(trajectories).put({"_row": torch.arange(sum(len(t.steps) for t in trajectories))})
    pieces = batch.split(budget, packed)
    for piece in pieces:
        size = int(piece["length"].sum()) if packed else len(piece) * int(piece["length"].max())
        assert piece.tokens(packed) == size and (len(piece) == 1 or size <= budget)
    if packed and len(pieces) > 1:
        groups = torch.cat([p["group"] for p in pieces])
        assert torch.equal(groups, groups.sort().values)
    assert sorted(torch.cat([p["_row"] for p in pieces]).tolist()) == list(range(len(batch)))
    joined = cat(pieces)
    back = joined.take(joined["_row"].argsort())
    for name in ("logp", "mask", "reward/r", "action", "each"):
        torch.testing.assert_close(back[name], batch[name])
    assert batch.split(None) == [batch]


def test_flat_of_a_view_points_within_itself():
    chain = [Step.of(tokens(i), tokens(1, 2), parent=i - 1 if i else None, reward={"r": 1.0}) for i in range(4)]
    batch = pack([Trajectory(Request(Problem("t", "p", "")), tuple(chain))])
    view = batch.take(torch.tensor([2, 1])).flat()
    assert view["parent"].tolist() == [1, -1] and view["child"].tolist() == [-1, 0]
    assert [s.context.tolist() for s in view.steps] == [[2], [1]] and len(view.arena) == 2


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 1, 0], [1, 0, 2]])
def test_cat_widens_and_fills_whatever_comes_first(order):
    def text(k, **info):
        step = Step.of(tokens(5), np.ones(k, np.int32), np.zeros(k, np.float32), info=info)
        return pack([Trajectory(Request(Problem("t", str(k), "")), (step,))], start=10 * k)

    one = text(1).put({"advantage": torch.tensor([[1.0]])})
    three = text(3, entropy=np.ones(3, np.float32)).put({"features": torch.ones(1, 3)})
    two = text(2).put({"advantage": torch.tensor([[1.0, 2.0]]), "features": torch.zeros(1, 3)})
    parts = [one, two, three]
    parts = [parts[i] for i in order]
    out = cat(parts)
    place = {int(i): n for n, i in enumerate(out["id"])}
    assert out["mask"][place[10]].tolist() == [True, False, False]
    assert out["advantage"][place[20]].tolist() == [1, 2, 0] and bool(out["advantage"][place[30]].isnan().all())
    assert out["entropy"].shape == (3, 3) and out["entropy"][place[10]].isnan().tolist() == [True, False, False]
    assert out["features"].shape == (3, 3) and out["segment"][place[20]].tolist() == [0, 0, -1]


def test_cat_fills_missing_weights_temperatures_and_streams():
    def plain(stream, **columns):
        return Batch({"mask": torch.ones(1, 2, dtype=torch.bool), **columns}, stream=stream)

    out = cat([plain("rl", temperature=torch.full((1, 2), 0.7)), plain("ce"), plain("rl", seen=torch.tensor([True]))])
    assert (
        out.stream is None
        and out.weight("rl")[:, 0].tolist() == [1, 0, 1]
        and out.weight("ce")[:, 0].tolist() == [0, 1, 0]
    )
    torch.testing.assert_close(out["temperature"][:, 0], torch.tensor([0.7, 1.0, 1.0]))
    assert out["seen"].tolist() == [False, False, True]
    alike = cat([plain("rl"), plain("rl")])
    assert alike.stream == "rl" and "weight/rl" not in alike
    part = cat([plain("rl", **{"weight/rl": torch.zeros(1, 2)}), plain("rl")])
    assert part.weight("rl")[:, 0].tolist() == [0, 1]  # lazily full is not missing


def test_padding_added_by_cat_is_neutral():
    text = [Step.of(tokens(5), np.ones(k, np.int32), np.full(k, -1.0, np.float32), reward={"r": 1.0}) for k in (1, 4)]
    out = cat([pack([Trajectory(Request(Problem("t", "p", "")), (s,))]) for s in text])
    assert out["logp"][0].tolist() == [-1, 0, 0, 0] and out["reward/r"][0].tolist() == [1, 0, 0, 0]
    assert out["version"][0].tolist() == [0, -1, -1, -1] and out["action"][0].tolist() == [1, 0, 0, 0]


def test_an_empty_batch_is_no_trouble():
    empty = pack([])
    assert len(empty) == 0 and list(empty.by_depth()) in ([], [torch.zeros(0)]) and empty.split(5) == [empty]
    full = Batch({"mask": torch.ones(2, 1, dtype=torch.bool)})
    assert cat([empty, full]) is full


def test_columns_that_differ_behind_the_positions_join_padded() -> None:
    """Kept ids of two rounds: [B, K, 2] with [B, K, 3]; -1 is no id."""

    def one(k: int, kept: int) -> Batch:
        ids = torch.ones(1, k, kept, dtype=torch.long)
        return Batch({"mask": torch.ones(1, k, dtype=torch.bool), "logp": torch.zeros(1, k), "support": ids})

    first, other = one(2, 2), one(1, 3)
    assert cat([first, other])["support"].tolist() == [[[1, 1, -1], [1, 1, -1]], [[1, 1, 1], [-1, -1, -1]]]


def test_a_role_sees_its_own_view_of_dense_rows() -> None:
    batch = Batch({"mask": torch.ones(2, 1, dtype=torch.bool), "context": torch.zeros(2), "view/critic": torch.ones(2)})
    assert batch.for_role("critic")["context"].tolist() == [1, 1]
    assert batch.for_role("policy") is batch


def test_a_role_sees_its_own_view_of_text() -> None:
    ids = [np.array(x, np.int32) for x in ([1, 2], [3], [7, 8, 9])]
    step = Step.of(ids[0], ids[1], np.zeros(1, np.float32), views={"critic": ids[2]})
    batch = pack([Trajectory(Request(Problem("t", "a", None)), (step,))])
    seen = batch.for_role("critic")
    assert seen.steps[0].context.tolist() == [7, 8, 9]
    assert (batch["length"].tolist(), seen["length"].tolist()) == ([3], [4])
    assert batch.steps[0].context.tolist() == [1, 2]


def test_a_reward_put_on_a_view_counts_for_its_rows():
    """Chains 0 -> 1 and 2 -> 3: rewards 1, 2, 4, 8; a draw that changes rows 3 and 0."""
    columns = {"child": torch.tensor([1, -1, 3, -1]), "episode": torch.tensor([0, 0, 2, 2])}
    columns["reward"] = torch.tensor([[1.0], [2], [4], [8]])
    whole = Batch({"mask": torch.ones(4, 1, dtype=torch.bool), **columns})
    view = whole.take(torch.tensor([3, 0]))
    assert view.outcome().tolist() == [12, 3]
    changed = view.put({"reward": torch.tensor([[80.0], [10.0]])})
    assert changed.outcome().tolist() == [84, 12]  # 4 + 80 and 10 + 2: the other rows keep their own
    assert changed.take(torch.tensor([1])).outcome().tolist() == [12]
    assert view.outcome().tolist() == [12, 3]
    extra = view.put({"reward/extra": torch.tensor([[1.0], [1.0]])}).outcome("reward/extra")
    assert bool(extra.isnan().all())  # what nobody said of rows 1 and 2 is unknown
    both = whole.take(torch.tensor([3, 2])).put({"reward/extra": torch.tensor([[1], [1]])})
    assert both.outcome("reward/extra").tolist() == [2, 2]
    view.stamp("reward", torch.tensor([[0.0], [0.0]]))
    assert view.outcome().tolist() == [4, 2]


def test_what_models_were_asked_is_remembered():
    plain = Batch({"mask": torch.ones(3, 1, dtype=torch.bool), "x": torch.arange(3)})
    batch = plain.put({"policy/log_prob": torch.zeros(3, 1)}, scored=True).put({"y": torch.zeros(3)})
    kept = frozenset({"policy/log_prob"})
    view = batch.take(torch.tensor([2, 0]))
    assert batch.scored == view.scored == view.put({"z": torch.zeros(2)}).scored == view.flat().scored == kept
    assert view.take(torch.tensor([0])).scored == cat([batch, batch]).scored == batch.successors().scored == kept
    assert batch.put({"policy/log_prob": torch.ones(3, 1)}).scored == frozenset()  # now somebody's own
    joined = cat([batch, plain])
    assert "policy/log_prob" not in joined and not joined.scored  # to be scored again, on all rows
    assert from_tree(to_tree(view)).scored == kept


def test_a_successor_has_the_place_of_the_row_before():
    """Noise depends on a row's place in the optimiser batch, so also that of its successor."""
    whole = Batch({"mask": torch.ones(4, 1, dtype=torch.bool), "child": torch.tensor([1, -1, 3, -1])})
    for batch in (whole, whole.take(torch.tensor([2, 0]))):
        placed = batch.put({"_row": torch.arange(len(batch))})
        assert placed.successors()["_row"].tolist() == list(range(len(batch)))
        assert placed.take(torch.tensor([1])).successors()["_row"].tolist() == [1]


def test_a_batch_is_full_where_every_position_decides():
    mask = torch.tensor([[True, True], [True, False], [True, True]])
    batch = Batch({"mask": mask, "x": torch.arange(3)})
    assert not batch.full and not batch.take(torch.tensor([0, 1])).full
    some = batch.take(torch.tensor([0, 2]))
    assert some.full and some.take(torch.tensor([1])).full and some.put({"y": torch.zeros(2)}).full
    assert not some.put({"mask": torch.tensor([[True, True], [False, True]])}).full


def test_views_of_the_same_rows_share_what_was_gathered_and_no_more():
    batch = Batch({"mask": torch.ones(3, 1, dtype=torch.bool), "x": torch.tensor([5, 6, 7])}).take(torch.tensor([2, 0]))
    other = batch.put({"y": torch.tensor([1, 2])})
    assert other["x"] is batch["x"] and batch["x"].tolist() == [7, 5]
    hidden = batch.put({"x": torch.tensor([0, 0])})
    assert hidden["x"].tolist() == [0, 0] and batch["x"].tolist() == [7, 5] == other["x"].tolist()
    assert "y" not in batch and other.take(torch.tensor([1]))["x"].tolist() == [5]


def test_the_tokens_of_a_forward_are_padded_or_packed():
    mask = torch.ones(3, 2, dtype=torch.bool)
    batch = Batch({"mask": mask, "length": torch.tensor([4, 9, 2])})
    assert batch.tokens() == 27 and batch.tokens(packed=True) == 15
    assert Batch({"mask": mask[:, :1]}).tokens() == 3  # of dense rows the decision is the token
    assert Batch({"mask": mask[:0], "length": torch.zeros(0, dtype=torch.long)}).tokens() == 0


def test_a_row_of_nobody_in_particular_is_the_policys() -> None:
    assert code("policy") == POLICY == int(Batch({"mask": torch.ones(1, 1, dtype=torch.bool)})["role"][0])


def test_a_stream_that_has_no_column_says_how_it_is_read() -> None:
    batch = Batch({"mask": torch.ones(1, 1, dtype=torch.bool)}, stream="rl")
    with pytest.raises(KeyError, match=r"a stream is read by batch\.weight\('rl'\)"):
        batch["weight/rl"]
    assert batch.weight("rl").tolist() == [[1.0]]
