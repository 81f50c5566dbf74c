"""Group statistics by hand, by the published formulas in torch, and on trees."""


import numpy as np
import pytest
import torch

from shuhari.data import Problem, Request, Status, Step, Trajectory
from shuhari.kernel.pack import pack
from shuhari.testing import context
from shuhari.transforms.advantage import Advantage

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
