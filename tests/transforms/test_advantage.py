"""Group statistics by hand, by the published formulas in torch, and on trees."""

from dataclasses import replace
from itertools import chain, product

import numpy as np
import pytest
import torch

from shuhari.batch import Batch
from shuhari.data import Problem, Request, Status, Step, Trajectory
from shuhari.kernel.pack import pack
from shuhari.testing import context
from shuhari.transforms.advantage import Advantage
from shuhari.transforms.returns import Returns

NAN = float("nan")


def tokens(*ids):
    return np.array(ids, np.int32)


def step(reward=None, parent=None, context=(7,), **fields):
    reward = {} if reward is None else {"r": reward}
    return Step.of(tokens(*context), tokens(1, 2), np.zeros(2, np.float32), parent=parent, reward=reward, **fields)


def groups(*outcomes, status=Status.FINISHED):
    """One row a sample, one tuple of outcomes a group."""
    rows = []
    for i, group in enumerate(outcomes):
        request = Request(Problem("t", str(i), ""), key=str(i))
        rows += [Trajectory(request, (step(x),), status) for x in group]
    batch = pack(rows)
    return batch.put({"reward": batch["reward/r"]})


def test_grpo_is_the_published_formula():
    x = torch.tensor([[1.0, 0.0, 0.0, 1.0], [3.0, 2.0, 5.0, -1.0]])
    out = Advantage()(groups(*x.tolist()), context())["advantage"]
    wanted = (x - x.mean(1, keepdim=True)) / (x.std(1, keepdim=True) + 1e-4)
    torch.testing.assert_close(out, wanted.flatten()[:, None].expand(8, 2))
    verl = Advantage(eps=1e-6)(groups(*x.tolist()), context())["advantage"][:, 0]
    torch.testing.assert_close(verl, ((x - x.mean(1, keepdim=True)) / (x.std(1, keepdim=True) + 1e-6)).flatten())
    biased = Advantage(ddof=0, eps=0.0)(groups(*x.tolist()), context())["advantage"][:, 0]
    torch.testing.assert_close(biased, ((x - x.mean(1, keepdim=True)) / x.std(1, keepdim=True, correction=0)).flatten())


def test_leave_one_out_is_the_distance_to_the_mean_of_the_others():
    x = [[1.0, 4.0, 10.0], [2.0, 0.0, 1.0]]
    out = Advantage(centre="leave-one-out", scale="none")(groups(*x), context())["advantage"][:, 0]
    assert out.tolist() == pytest.approx([1 - 7, 4 - 5.5, 10 - 2.5, 2 - 0.5, 0 - 1.5, 1 - 1])


def test_batch_centre_and_batch_scale():
    x = torch.tensor([[1.0, 4.0], [10.0, 6.0]])
    both = Advantage(unit="batch", scale="batch", eps=0.0)(groups(*x.tolist()), context())["advantage"][:, 0]
    torch.testing.assert_close(both, ((x - x.mean()) / x.std()).flatten())
    centred = x - x.mean(1, keepdim=True)
    mixed = Advantage(scale="batch", eps=0.0)(groups(*x.tolist()), context())["advantage"][:, 0]
    torch.testing.assert_close(mixed, (centred / centred.std()).flatten())
    lite = Advantage(scale="raw", eps=0.0)(groups(*x.tolist()), context())["advantage"][:, 0]
    torch.testing.assert_close(lite, (centred / x.std()).flatten())
    raw = Advantage(centre="none", scale="none")(groups(*x.tolist()), context())["advantage"][:, 0]
    torch.testing.assert_close(raw, x.flatten())


@pytest.mark.parametrize("centre", ["mean", "leave-one-out"])
@pytest.mark.parametrize("scale", ["group", "batch", "raw", "none"])
def test_a_group_of_one_and_equal_outcomes_teach_nothing(centre, scale):
    out = Advantage(centre=centre, scale=scale)(groups([5.0], [2.0, 2.0], [0.0, 1.0]), context())["advantage"]
    assert out[:3].abs().max() == 0 and out[3, 0] == -out[4, 0] != 0


def test_groups_of_one_are_a_mistake_and_a_failing_grader_is_none():
    with pytest.raises(ValueError, match=r"set rollout\.n to 2 or more"):
        Advantage()(groups([1.0], [2.0]), context())
    ctx = context()
    out = Advantage()(groups([1.0, NAN], [NAN, 0.0]), ctx)
    assert out["advantage"].abs().max() == 0 and ctx.ledger == {"ungraded": 2}


def test_ungraded_samples_count_nowhere():
    batch = groups([1.0, NAN, 3.0], [NAN, NAN], [0.0, 4.0, 2.0])
    ctx = context()
    out = Advantage(scale="none")(batch, ctx)
    assert out["advantage"][:, 0].tolist() == [-1, 0, 1, 0, 0, -2, 2, 0]
    assert out["weight/rl"][:, 0].tolist() == [1, 0, 1, 0, 0, 1, 1, 1] and ctx.ledger == {"ungraded": 3}
    same = Advantage()(groups([1.0, 3.0], [0.0, 4.0, 2.0]), context())["advantage"]
    kept = Advantage()(batch, context())["advantage"][torch.tensor([0, 2, 5, 6, 7])]
    torch.testing.assert_close(kept, same)


def test_broken_episodes_do_not_count_and_are_not_called_ungraded():
    rows = [Trajectory(Request(Problem("t", "p", ""), key="a"), (step(x),)) for x in (1.0, 3.0)]
    rows.append(Trajectory(rows[0].request, (step(100.0),), Status.ERROR))
    batch = pack(rows)
    ctx = context()
    out = Advantage(scale="none")(batch.put({"reward": batch["reward/r"]}), ctx)
    assert out["advantage"][:, 0].tolist() == [-1, 1, 0] and ctx.ledger == {} and "weight/rl" not in out


def test_rows_without_weight_do_not_count_in_the_scale_of_the_batch():
    batch = groups([0.0, 1.0], [0.0, 50.0])
    batch = batch.put({"weight/rl": torch.tensor([1.0, 1.0, 0.0, 0.0])[:, None].expand(4, 2).contiguous()})
    out = Advantage(scale="batch", eps=0.0)(batch, context())["advantage"][:2, 0]
    torch.testing.assert_close(out, torch.tensor([-0.5, 0.5]) / torch.tensor([-0.5, 0.5]).std())


def test_padding_does_not_leak():
    rows = [Trajectory(Request(Problem("t", "p", ""), key="a"), (step(x),)) for x in (1.0, 3.0)]
    rows.append(Trajectory(rows[0].request, (Step.of(tokens(7), tokens(1), reward={"r": 2.5}),)))
    batch = pack(rows)
    clean = batch["reward/r"]
    dirty = clean.masked_fill(batch["segment"] < 0, 1e9)
    assert not dirty.equal(clean)
    a, b = (Advantage()(batch.put({"reward": r}), context())["advantage"] for r in (clean, dirty))
    assert a.equal(b) and a[2, 1] == 0


def test_on_a_tree_it_is_the_value_of_the_node_less_the_mean_of_the_leaves():
    # root -> (a, b); a -> (leaf 4, leaf 2); b is a leaf with 0: leaves 4, 2, 0, mean 2
    tree = (step(), step(parent=0), step(0.0, 0), step(4.0, 1), step(2.0, 1))
    batch = pack([Trajectory(Request(Problem("t", "p", "")), tree)])
    out = Advantage(scale="none")(batch.put({"reward": batch["reward/r"]}), context())["advantage"][:, 0]
    assert out.tolist() == pytest.approx([0, 3 - 2, 0 - 2, 4 - 2, 2 - 2])


def test_each_role_of_an_episode_has_its_own_statistics():
    """A proposer speaks, then a solver: the proposer's row is no leaf, and still counts once a path."""
    rows = []
    for outcome in (1.0, 3.0, 8.0):
        steps = (step(role="proposer"), step(outcome, 0, role="solver", context=(9,)))
        rows.append(Trajectory(Request(Problem("t", "p", ""), key="a"), steps))
    batch = pack(rows)
    out = Advantage(scale="none")(batch.put({"reward": batch["reward/r"]}), context())["advantage"][:, 0]
    assert out.tolist() == pytest.approx([-3, -3, -1, -1, 4, 4])


def test_unknown_settings_are_named():
    with pytest.raises(ValueError, match="did you mean 'leave-one-out'"):
        Advantage(centre="leave-one")
    with pytest.raises(ValueError, match="scale is 'row': did you mean 'raw'"):
        Advantage(scale="row")


def test_rows_apart_are_compared_with_the_others_and_are_nobodys_baseline():
    batch = groups((1.0, 0.0, 0.0, 1.0), (1.0, 1.0, 1.0, 1.0)).put({"demo": torch.tensor([0.0, 0.0, 0.0, 1.0] * 2)})
    own = torch.tensor([1.0, 0.0, 0.0])

    def made(**settings):
        return Advantage(exclude="demo", **settings)(batch, context())["advantage"][:, 0].tolist()

    assert made(scale="none") == pytest.approx([2 / 3, -1 / 3, -1 / 3, 2 / 3, 0, 0, 0, 0])
    spread = float(own.std()) + 1e-4
    assert made() == pytest.approx([x / spread for x in (2 / 3, -1 / 3, -1 / 3, 2 / 3)] + [0.0] * 4)
    loo = [1.0, -0.5, -0.5, 2 / 3, 0, 0, 0, 0]  # one's own outcome is not in the mean of the others anyway
    assert made(centre="leave-one-out", scale="none") == pytest.approx(loo)
    centre = 4 / 6  # of all own outcomes
    assert made(unit="batch", scale="none") == pytest.approx([x - centre for x in (1, 0, 0, 1, 1, 1, 1, 1)])


def test_a_virtual_sample_counts_in_every_group_and_is_not_learnt_from():
    """NGRPO, by its formula over the group and one perfect sample: all wrong, one right of 8, all right."""
    made = groups([0.0] * 8, [1.0] + [0.0] * 7, [1.0] * 8, [1.0, NAN, 0.0], [0.0])
    out = Advantage(virtual=1, eps=1e-6, into="calibrated")(made, context())
    a = out["calibrated"][:, 0].tolist()
    assert a[:8] == pytest.approx([-1 / 3] * 8, abs=1e-5)
    assert a[8:16] == pytest.approx([1.7638, *[-0.5040] * 7], abs=1e-4)
    assert a[16:24] == [0.0] * 8
    three = torch.tensor([1.0, 0.0, 1.0])
    assert a[24:27] == pytest.approx([(1 - 2 / 3) / float(three.std()), 0.0, -2 / 3 / float(three.std())], abs=1e-5)
    assert a[27] == pytest.approx(-0.5 / 0.5**0.5, abs=1e-5)
    assert "advantage" not in out
    far = Advantage(virtual=2, best=3.0, centre="leave-one-out", scale="none")(groups([0.0, 1.0]), context())
    assert far["advantage"][:, 0].tolist() == pytest.approx([0 - 7 / 3, 1 - 6 / 3])  # less the mean of all others
    with pytest.raises(ValueError, match="virtual samples are of a group"):
        Advantage(virtual=1, scale="batch")


def turns(*returns, key="0"):
    """One episode whose turns are rows of their own, and what is still earned from each on."""
    steps = [step(parent=i - 1 if i else None, context=(9 - i,)) for i in range(len(returns))]
    return Trajectory(Request(Problem("t", key, ""), key=key), tuple(steps)), returns


def pooled(*episodes, **fields):
    batch = pack([t for t, _ in episodes])
    batch = batch.put({"back": torch.tensor([x for _, xs in episodes for x in xs])[:, None] * batch["mask"]})
    batch = batch.put({"reward": torch.zeros(len(batch), 2)})
    return Advantage(column="back", **fields)(batch, context())["advantage"][:, 0]


def test_the_returns_of_all_turns_of_a_group_are_pooled():
    x, y = torch.tensor([0.25, 0.5, 1.0, 0.0, 0.5]), torch.tensor([3.0, 1.0])
    out = pooled(turns(0.25, 0.5, 1.0), turns(0.0, 0.5), turns(3.0, key="1"), turns(1.0, key="1"))
    torch.testing.assert_close(out[:5], (x - x.mean()) / (x.std() + 1e-4))
    torch.testing.assert_close(out[5:], (y - y.mean()) / (y.std() + 1e-4))
    alone = pooled(turns(0.25, 0.5, 1.0), scale="none")  # one episode, three to compare
    torch.testing.assert_close(alone, x[:3] - x[:3].mean())


def test_a_column_that_differs_within_a_row_is_refused():
    batch = groups([1.0, 0.0]).put({"back": torch.tensor([[1.0, 0.5], [1.0, 1.0]])})
    with pytest.raises(ValueError, match="column 'back' differs within a row"):
        Advantage(column="back")(batch, context())
    whole = groups([1.0, 0.0]).put({"back": torch.tensor([3.0, 1.0])})
    assert Advantage(column="back", scale="none")(whole, context())["advantage"].tolist() == [[1.0] * 2, [-1.0] * 2]


def talk(*rewards, key="0", given=()):
    """One episode that is one row: a turn of two decisions for each reward, of which those `given` are another's; the
    user says one token in between."""
    steps, context = [], [7]
    for i, x in enumerate(rewards):
        mine = i not in given
        made = step(x, parent=i - 1 if i else None, context=context)
        steps.append(made if mine else replace(made, mask=np.zeros(2, bool), logp=None))
        context = [*context, 1, 2, 9]
    return Trajectory(Request(Problem("t", key, ""), key=key), tuple(steps))


def by_turn(episodes, **fields):
    """The advantage of each turn, row by row, of a batch with its returns by segment."""
    batch = pack(episodes)
    ctx = context()
    batch = Returns(level="segment")(batch.put({"reward": batch["reward/r"]}), ctx)
    out = Advantage(level="turn", **fields)(batch, ctx)
    a, found = out["advantage"], []
    assert a.masked_fill(batch["mask"], 0.0).abs().max() == 0
    for row, mask, segment in zip(a, batch["mask"], batch["segment"], strict=True):
        own = [row[mask & (segment == i)] for i in range(int(segment.max()) + 1)]
        assert all(x.eq(x[0]).all() for x in own if len(x))  # all decisions of a turn share its number
        found.append([float(x[0]) for x in own if len(x)])
    return found, out, ctx


TALKS = [talk(1.0, 0.0, 2.0), talk(0.0, 1.0)]  # returns 3, 2, 2 and 1, 1


def test_turns_of_one_row_are_pooled_or_compared_by_their_number():
    assert len(pack(TALKS)) == 2
    got, *_ = by_turn(TALKS, column="return", scale="none")
    assert got == [pytest.approx([1.2, 0.2, 0.2]), pytest.approx([-0.8, -0.8])]  # the mean is 9 / 5
    got, *_ = by_turn(TALKS, column="return", turns="by-number", scale="none")
    assert got == [pytest.approx([1.0, 0.5, 0.0]), pytest.approx([-1.0, -0.5])]  # means 2 and 3 / 2; a third turn alone
    got, *_ = by_turn(TALKS, column="return", turns="by-number", centre="leave-one-out", eps=0.0)
    assert got == [pytest.approx([2 / 2**0.5, 1 / 0.5**0.5, 0.0]), pytest.approx([-2 / 2**0.5, -1 / 0.5**0.5])]
    spread = torch.tensor([3.0, 2, 2, 1, 1]).std().item() + 1e-4
    got, *_ = by_turn(TALKS, column="return")
    assert got == [pytest.approx([x / spread for x in (1.2, 0.2, 0.2)]), pytest.approx([-0.8 / spread] * 2)]


def test_a_turn_has_what_is_paid_in_it_where_no_column_is_named():
    got, *_ = by_turn(TALKS, scale="none")
    assert got == [pytest.approx([0.2, -0.8, 1.2]), pytest.approx([-0.8, 0.2])]  # 1, 0, 2 and 0, 1: the mean is 0.8
    same, *_ = by_turn(TALKS, column="reward/r", scale="none")
    assert same == got


def test_turns_are_those_of_every_cut_into_rows():
    """One row an episode, or one a turn: the same turns, so the same numbers; each turn is looked up by hand."""
    for fields in ({}, {"turns": "by-number"}, {"turns": "by-number", "unit": "batch", "scale": "batch"}):
        wide, *_ = by_turn([*TALKS, talk(5.0, 1.0, key="1"), talk(2.0, 2.0, key="1")], column="return", **fields)
        apart = []
        for i, rewards in enumerate(([1.0, 0.0, 2.0], [0.0, 1.0], [5.0, 1.0], [2.0, 2.0])):
            steps = [step(x, parent=j - 1 if j else None, context=(9 - j,)) for j, x in enumerate(rewards)]
            apart.append(Trajectory(Request(Problem("t", str(i // 2), ""), key=str(i // 2)), tuple(steps)))
        single, *_ = by_turn(apart, column="return", **fields)
        assert len(single) == 9 and [*chain(*single)] == pytest.approx([*chain(*wide)])


def test_a_turn_that_was_given_is_nobodys():
    """Its number is not counted: the first turn that is decided is compared with the first."""
    got, *_ = by_turn([talk(9.0, 4.0, 1.0, given=(0,)), talk(0.0, 3.0)], turns="by-number", scale="none")
    assert got == [pytest.approx([2.0, -1.0]), pytest.approx([-2.0, 1.0])]


def test_by_enumeration_turns_are_samples_of_their_own():
    """Every pattern of rewards 0 and 1 of two episodes of two turns: as `advantage` of four single answers."""
    for rewards in product((0.0, 1.0), repeat=4):
        got, *_ = by_turn([talk(*rewards[:2]), talk(*rewards[2:])])
        flat = Advantage()(groups(rewards), context())["advantage"][:, 0]
        assert [*chain(*got)] == pytest.approx(flat.tolist())


def test_ungraded_turns_and_rows_without_weight_count_nowhere():
    batch = pack([talk(1.0, 0.0), talk(3.0, 5.0), talk(9.0, 9.0)])
    worth = torch.where(batch["segment"] == 0, batch["reward/r"][:, 1:2], batch["reward/r"][:, 4:5])
    worth[1] = worth[1].masked_fill(batch["segment"][1] == 1, NAN)
    weight = batch["mask"].float()
    weight[2] = 0
    batch = batch.put({"worth": worth, "weight/rl": weight, "reward": batch["reward/r"]})
    ctx = context()
    out = Advantage(level="turn", column="worth", scale="none")(batch, ctx)
    first, second = out["advantage"][:2, 0], out["advantage"][:2, 3]
    assert first.tolist() == pytest.approx([1 - 4 / 3, 3 - 4 / 3])
    assert second.tolist() == pytest.approx([0 - 4 / 3, 0.0]) and ctx.ledger == {"ungraded": 1}
    assert out["weight/rl"][1].tolist() == [1, 1, 0, 0, 0] and out["weight/rl"][0].tolist() == [1, 1, 0, 1, 1]


def test_next_steps_of_a_state_are_compared_with_each_other():
    # root -> (a, b); a -> (4, 2); b -> (0, 1, 5): values 2.5 (of five leaves) at the root, a is worth 3, b 2
    leaves = [step(x, up) for x, up in ((4.0, 1), (2.0, 1), (0.0, 2), (1.0, 2), (5.0, 2))]
    tree = (step(), step(parent=0), step(parent=0), *leaves)
    batch = pack([Trajectory(Request(Problem("t", "p", "")), tree)])
    batch = batch.put({"reward": batch["reward/r"]})
    out = Advantage(unit="state", scale="none")(batch, context())["advantage"][:, 0]
    assert out.tolist() == pytest.approx([0, 0.5, -0.5, 1, -1, -2, -1, 3])
    scaled = Advantage(unit="state", scale="unit", eps=0.0)(batch, context())["advantage"][:, 0]
    three = torch.tensor([0.0, 1.0, 5.0])
    assert scaled[5:].tolist() == pytest.approx(((three - 2) / three.std()).tolist())
    assert scaled[1:5].tolist() == pytest.approx([0.5**0.5, -(0.5**0.5)] * 2)
    plain = groups([1.0, 0.0], [5.0, 2.0])  # plain samples are next steps of their prompt
    a, b = (Advantage(unit=u)(plain, context())["advantage"] for u in ("state", "group"))
    assert a.equal(b)


def test_a_column_of_whole_numbers_says_who_is_compared():
    batch = groups([1.0, 0.0], [4.0, 9.0], [3.0, NAN]).put({"user": torch.tensor([5.0, 7, 5, 7, 5, 7])})
    out = Advantage(unit="user", scale="none")(batch, context())["advantage"][:, 0]
    assert out.tolist() == pytest.approx([1 - 8 / 3, -4.5, 4 - 8 / 3, 4.5, 3 - 8 / 3, 0])
    wide = batch.put({"user": batch["user"].long()[:, None] * batch["mask"]})
    assert Advantage(unit="user", scale="none")(wide, context())["advantage"][:, 0].equal(out)
    scaled = Advantage(unit="user", scale="unit", eps=0.0)(batch, context())["advantage"][:, 0]
    assert scaled[1].item() == pytest.approx(-(0.5**0.5))  # of 0 and 9
    roles = batch.put({"role": torch.tensor([1, 1, 1, 1, 2, 2])})  # of one role
    assert Advantage(unit="user", scale="none")(roles, context())["advantage"][:, 0].tolist() == pytest.approx(
        [-1.5, -4.5, 1.5, 4.5, 0, 0]
    )


def test_the_unit_of_a_turn_may_be_a_column_of_turns():
    batch = pack(TALKS)
    tool = torch.where(batch["segment"] == 0, 3, 4)  # which tool the turn asked
    batch = batch.put({"reward": batch["reward/r"], "tool": tool})
    out = Advantage(level="turn", unit="tool", scale="none")(batch, context())["advantage"]
    assert out[0, 0].item() == pytest.approx(0.5) and out[1, 0].item() == pytest.approx(-0.5)  # 1 and 0
    assert [out[0, 3].item(), out[0, 6].item(), out[1, 3].item()] == pytest.approx([-1.0, 1.0, 0.0])  # 0, 2 and 1
    with pytest.raises(ValueError, match="column 'tool' differs within a row"):
        Advantage(unit="tool")(batch, context())


def test_units_and_levels_that_are_none_are_named():
    batch = groups([1.0, 0.0])
    single = Batch({"mask": torch.ones(2, 1, dtype=torch.bool), "reward": torch.ones(2, 1)})  # of lanes
    with pytest.raises(KeyError, match="no column 'grup'; did you mean 'group'"):
        Advantage(unit="grup")(batch, context())
    with pytest.raises(ValueError, match=r"unit is 'hard', a column that holds 0\.5: expected whole numbers"):
        Advantage(unit="hard")(batch.put({"hard": torch.tensor([1.0, 0.5])}), context())
    with pytest.raises(ValueError, match=r"turns is 'by-number', which needs turns.*: expected level = 'turn'"):
        Advantage(turns="by-number")
    with pytest.raises(ValueError, match="which compares rows, and level is 'turn': expected level = 'row'"):
        Advantage(unit="state", level="turn")
    with pytest.raises(ValueError, match=r"these rows have no turns .* expected level = 'row'"):
        Advantage(level="turn")(single, context())
    with pytest.raises(ValueError, match="column 'worth' differs within a turn: expected one number a turn"):
        Advantage(level="turn", column="worth")(batch.put({"worth": torch.tensor([[1.0, 2.0]] * 2)}), context())
    with pytest.raises(KeyError, match="no column 'wort'; did you mean 'worth'"):
        Advantage(level="turn", column="wort")(batch.put({"worth": torch.ones(2)}), context())
    with pytest.raises(ValueError, match=r"compares the turns of a group, and every group has one: set rollout\.n"):
        Advantage(level="turn")(groups([1.0], [2.0]), context())


@pytest.mark.parametrize("fields", [{}, {"level": "turn", "turns": "by-number"}, {"unit": "state"}, {"unit": "task"}])
def test_of_no_rows_nothing_is_made(fields):
    batch = groups([1.0, 0.0]).take(torch.tensor([], dtype=torch.long))
    assert Advantage(**fields)(batch, context())["advantage"].shape == (0, 2)


def test_what_is_compared_says_how_many_samples_it_needs():
    told = [Advantage(**x).least_n for x in ({}, {"level": "turn"}, {"level": "turn", "turns": "by-number"},
                                             {"unit": "state"}, {"unit": "problem"})]  # fmt: skip
    assert told == [2, 1, 2, 1, 1]
    assert Advantage(unit="user").reads == ("reward", "weight/rl", "user")
    assert Advantage(unit="state").reads == Advantage().reads == ("reward", "weight/rl")
