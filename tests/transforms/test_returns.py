"""Credit against algebra, the textbook recursions, and brute force over trees."""


import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shuhari.batch import STATUS, Batch
from shuhari.data import Problem, Request, Status, Step, Trajectory
from shuhari.kernel.pack import pack
from shuhari.testing import context
from shuhari.transforms.returns import Gae, Returns, credit


def sb3_gae(rewards, values, starts, last_values, dones, gamma, lam):
    """Stable-Baselines3's recursion: [T, N] arrays; starts[t] says that an episode begins at t."""
    advantages = np.zeros_like(rewards)
    last = 0
    for t in reversed(range(len(rewards))):
        alive = 1.0 - (dones if t == len(rewards) - 1 else starts[t + 1])
        following = last_values if t == len(rewards) - 1 else values[t + 1]
        delta = rewards[t] + gamma * following * alive - values[t]
        last = delta + gamma * lam * alive * last
        advantages[t] = last
    return advantages


def chain_of_one(rewards, values, *, last_value=0.0, cont=0.0):
    """One episode as environment rows with a closing row."""
    T = len(rewards)
    return Batch(
        {
            "mask": torch.tensor([[True]] * T + [[False]]),
            "logp": torch.zeros(T + 1, 1),
            "child": torch.tensor([*range(1, T + 1), -1]),
            "episode": torch.zeros(T + 1, dtype=torch.long),
            "cont": torch.tensor([1.0] * T + [cont]),
            "reward": torch.tensor([*rewards, 0.0])[:, None],
            "critic/value": torch.tensor([*values, last_value])[:, None],
        }
    )


def as_tokens(rewards, values, gap_at=None):
    """The same decisions as the tokens of one row; `gap_at` puts two positions that decide nothing before it."""
    r, v, m, seg = list(rewards), list(values), [True] * len(rewards), [0] * len(rewards)
    if gap_at is not None:
        r[gap_at:gap_at], v[gap_at:gap_at], m[gap_at:gap_at] = [0.0, 0.0], [9.0, -7.0], [False, False]
        seg = [0] * (gap_at + 2) + [1] * (len(rewards) - gap_at)
    return Batch(
        {
            "mask": torch.tensor([m]),
            "logp": torch.zeros(1, len(m)),
            "segment": torch.tensor([seg]),
            "length": torch.tensor([len(m)]),
            "reward": torch.tensor([r]),
            "critic/value": torch.tensor([v]),
        }
    )


numbers = st.floats(-2, 2, width=32)


@given(
    st.lists(st.tuples(numbers, numbers), min_size=1, max_size=9), st.floats(0, 1), st.floats(0, 1), st.integers(0, 8)
)
@settings(max_examples=60, deadline=None)
def test_gae_of_token_rows_is_gae_of_environment_rows(pairs, gamma, lam, gap):
    rewards, values = map(list, zip(*pairs, strict=True))
    gae = Gae(gamma=gamma, lam=lam)
    dense = gae(chain_of_one(rewards, values, last_value=3.0), context())
    text = gae(as_tokens(rewards, values), context())
    gapped = as_tokens(rewards, values, gap_at=gap % len(rewards))
    holes = gae(gapped, context())
    for name in ("advantage", "return"):
        wanted = dense[name][:-1, 0]
        torch.testing.assert_close(text[name][0], wanted)
        torch.testing.assert_close(holes[name][gapped["mask"]], wanted)
        assert bool((holes[name][~gapped["mask"]] == 0).all())


def test_rectangular_batch_against_stable_baselines():
    g = torch.Generator().manual_seed(0)
    T, N, gamma, lam = 37, 5, 0.97, 0.9
    reward, value = torch.randn(T, N, generator=g), torch.randn(T + 1, N, generator=g)
    done = torch.rand(T, N, generator=g) < 0.15  # the episode ends with the reward of this row
    expected = sb3_gae(
        reward.numpy(),
        value[:-1].numpy(),
        np.concatenate([np.zeros((1, N)), done[:-1].numpy()]),
        value[-1].numpy(),
        done[-1].numpy(),
        gamma,
        lam,
    )
    # our layout: after an end the next row of the lane closes it with cont 0, and the new episode begins behind that
    rows, where = [], {}
    for n in range(N):
        for t in range(T):
            where[t, n] = len(rows)
            rows.append((True, float(reward[t, n]), float(value[t, n]), 1.0, len(rows) + 1))
            if done[t, n] or t == T - 1:
                rows.append((False, 0.0, float(value[t + 1, n]), 0.0 if done[t, n] else 1.0, -1))
    mask, r, v, cont, child = zip(*rows, strict=True)
    columns = {
        "mask": torch.tensor(mask)[:, None],
        "logp": torch.zeros(len(rows), 1),
        "child": torch.tensor(child),
        "cont": torch.tensor(cont),
        "reward": torch.tensor(r)[:, None],
        "critic/value": torch.tensor(v)[:, None],
    }
    out = Gae(gamma=gamma, lam=lam)(Batch(columns), context())
    index = torch.tensor([[where[t, n] for n in range(N)] for t in range(T)])
    torch.testing.assert_close(
        out["advantage"][index, 0], torch.as_tensor(expected, dtype=torch.float32), rtol=1e-4, atol=1e-5
    )
    torch.testing.assert_close(
        out["return"][index, 0], torch.as_tensor(expected, dtype=torch.float32) + value[:-1], rtol=1e-4, atol=1e-5
    )


def test_lambda_zero_is_td_and_one_is_monte_carlo():
    r, v, gamma = [1.0, 2.0, 4.0], [0.5, -1.0, 3.0], 0.5
    batch = chain_of_one(r, v, last_value=8.0, cont=1.0)  # cut: the last value counts
    td = Gae(gamma=gamma, lam=0.0)(batch, context())["advantage"][:3, 0]
    assert td.tolist() == [1 + 0.5 * -1 - 0.5, 2 + 0.5 * 3 - -1, 4 + 0.5 * 8 - 3]
    mc = Gae(gamma=gamma, lam=1.0)(batch, context())
    returns = [1 + 0.5 * 2 + 0.25 * 4 + 0.125 * 8, 2 + 0.5 * 4 + 0.25 * 8, 4 + 0.5 * 8]
    assert mc["return"][:3, 0].tolist() == pytest.approx(returns)
    assert mc["advantage"][:3, 0].tolist() == pytest.approx([a - b for a, b in zip(returns, v, strict=True)])
    assert mc["advantage"][3, 0] == 0 and mc["return"][3, 0] == 0


def test_a_closing_row_counts_times_its_cont_only():
    for cont in (0.0, 0.25, 1.0):
        out = Gae(gamma=1.0, lam=0.7)(chain_of_one([0.0], [0.0], last_value=4.0, cont=cont), context())
        assert out["advantage"][0, 0] == 4.0 * cont


def test_duration_is_the_exponent_of_the_discount():
    batch = chain_of_one([1.0, 1.0], [0.0, 5.0], last_value=2.0, cont=1.0).put({"duration": torch.tensor([3, 2, 1])})
    out = Gae(gamma=0.5, lam=1.0, level="row")(batch, context())
    assert out["return"][:2, 0].tolist() == [1 + 0.5**3 * (1 + 0.5**2 * 2), 1 + 0.5**2 * 2]


def test_levels_by_hand():
    # one row: turn 0 has decisions with rewards 1, 2; then a tool position paid 10; turn 1 has 4
    batch = Batch(
        {
            "mask": torch.tensor([[True, True, False, True]]),
            "logp": torch.zeros(1, 4),
            "segment": torch.tensor([[0, 0, 0, 1]]),
            "length": torch.tensor([4]),
            "reward": torch.tensor([[1.0, 2.0, 10.0, 4.0]]),
            "critic/value": torch.tensor([[0.5, 0.25, 99.0, 0.75]]),
        }
    )

    def of(level):
        return Gae(gamma=0.5, lam=1.0, level=level)(batch, context())

    decision = of("decision")
    assert decision["return"][0].tolist() == [1 + 0.5 * (12 + 0.5 * 4), 12 + 0.5 * 4, 0, 4]
    assert decision["advantage"][0].tolist() == [8 - 0.5, 14 - 0.25, 0, 4 - 0.75]
    assert of("auto")["return"].equal(decision["return"])
    segment = of("segment")
    assert segment["return"][0].tolist() == [13 + 0.5 * 4, 15, 0, 4]
    assert segment["advantage"][0].tolist() == [14.5, 14.5, 0, 3.25]
    for level in ("row", "episode"):
        assert of(level)["return"][0].tolist() == [17, 17, 0, 17]
        assert of(level)["advantage"][0].tolist() == [16.5, 16.5, 0, 16.5]


def test_an_episode_is_one_node_over_its_rows():
    batch = chain_of_one([1.0, 2.0, 3.0], [0.5, 7.0, 7.0], last_value=8.0, cont=1.0)
    out = Gae(gamma=0.5, lam=0.3, level="episode")(batch, context())
    assert out["return"][:, 0].tolist() == [10, 10, 10, 0]  # 1 + 2 + 3 + 0.5 x 8
    assert out["advantage"][:, 0].tolist() == [9.5, 9.5, 9.5, 0]


def test_a_row_in_between_that_decides_nothing_is_passed_through():
    """A forced prefix, one decision, another's forced move paid 5, one decision, a closing row paid 3."""
    columns = {
        "mask": torch.tensor([[False], [True], [False], [True], [False]]),
        "logp": torch.zeros(5, 1),
        "child": torch.tensor([1, 2, 3, 4, -1]),
        "episode": torch.zeros(5, dtype=torch.long),
        "cont": torch.tensor([1.0, 1.0, 1.0, 1.0, 1.0]),
        "reward": torch.tensor([[100.0], [1.0], [5.0], [2.0], [3.0]]),
        "critic/value": torch.tensor([[50.0], [0.5], [60.0], [0.25], [8.0]]),
    }
    direct = chain_of_one([6.0, 5.0], [0.5, 0.25], last_value=8.0, cont=1.0)
    for level in ("row", "decision", "episode"):
        for lam in (0.0, 0.6, 1.0):
            gae = Gae(gamma=0.5, lam=lam, level=level)
            a, b = gae(Batch(columns), context()), gae(direct, context())
            torch.testing.assert_close(a["advantage"][[1, 3]], b["advantage"][:2])
            torch.testing.assert_close(a["return"][[1, 3]], b["return"][:2])
            assert bool((a["advantage"][[0, 2, 4]] == 0).all())


@st.composite
def trees(draw):
    """A trajectory over tokens that branches, with every position's reward and value."""
    n = draw(st.integers(1, 7))
    steps, columns = [], []
    for i in range(n):
        parent = draw(st.integers(-1, i - 1)) if i else -1
        k = draw(st.integers(1, 3))
        decided = [draw(st.booleans()) or j == 0 for j in range(k)]
        reward = np.array([draw(numbers) for _ in range(k)], np.float32)
        columns.append([draw(numbers) for _ in range(k)])
        steps.append(
            Step(
                np.array([i], np.int32),
                np.arange(k, dtype=np.int32),
                np.array(decided),
                np.zeros(k, np.int64),
                np.zeros(k, np.float32),
                None if parent < 0 else parent,
                {"r": reward},
                cont=draw(st.sampled_from([1.0, 0.5])),
            )
        )
    return Trajectory(Request(Problem("t", "p", "")), tuple(steps)), columns


@given(trees(), st.floats(0, 1), st.floats(0, 1))
@settings(max_examples=80, deadline=None)
def test_trees_against_brute_force(tree, gamma, lam):
    trajectory, values = tree
    batch = pack([trajectory])
    V = torch.full(batch["mask"].shape, 77.0)  # garbage on padding
    for i, v in enumerate(values):
        V[i, : len(v)] = torch.tensor(v)
    batch = batch.put({"reward": batch["reward/r"], "critic/value": V})
    steps = trajectory.steps
    children = [[j for j, s in enumerate(steps) if s.parent == i] for i in range(len(steps))]

    def advantage(i, k):
        """Of decision k of step i: recursion in the definition's own words."""
        end = k + 1
        while end < len(steps[i].mask) and not steps[i].mask[end]:
            end += 1
        reward = steps[i].reward["r"][k:end].sum(dtype=np.float64)
        if end < len(steps[i].mask):
            following, onward = values[i][end], advantage(i, end)
        else:
            nexts = [(steps[j].cont * values[j][0], steps[j].cont * advantage(j, 0)) for j in children[i]]
            following, onward = np.mean(nexts, axis=0) if nexts else (0.0, 0.0)
        return reward + gamma * following - values[i][k] + gamma * lam * onward

    got, target = credit(batch, V, gamma, lam)
    for i, step in enumerate(steps):
        for k in range(len(step.mask)):
            wanted = advantage(i, k) if step.mask[k] else 0.0
            assert float(got[i, k]) == pytest.approx(wanted, abs=1e-4)
            assert float(target[i, k]) == pytest.approx(wanted + values[i][k] if step.mask[k] else 0.0, abs=1e-4)


@given(st.integers(0, 2**31))
@settings(max_examples=25, deadline=None)
def test_padding_and_positions_that_decide_nothing_do_not_leak(seed):
    g = torch.Generator().manual_seed(seed)
    B, K = 4, 6
    length = torch.randint(1, K + 1, (B,), generator=g)
    segment = torch.where(torch.arange(K) < length[:, None], 0, -1)
    mask = (segment == 0) & ((torch.rand(B, K, generator=g) < 0.7) | (torch.arange(K) == 0))
    r, v = torch.randn(B, K, generator=g), torch.randn(B, K, generator=g)

    def batch(reward, value):
        columns = {"mask": mask, "logp": torch.zeros(B, K), "segment": segment, "length": length}
        return Batch({**columns, "reward": reward, "critic/value": value})

    pad = segment < 0
    clean = batch(r.masked_fill(pad, 0.0), v.masked_fill(~mask, 0.0))
    dirty = batch(r.masked_fill(pad, float("nan")), v.masked_fill(~mask, 1e6))
    for level in ("decision", "row", "segment", "episode"):
        gae = Gae(gamma=0.9, lam=0.8, level=level, scale=True)
        a, b = gae(clean, context()), gae(dirty, context())
        assert a["advantage"].equal(b["advantage"]) and a["return"].equal(b["return"])


def test_none_scales_nothing():
    batch = chain_of_one([2.0, -1.0], [0.5, 0.25])
    plain, none = (Gae(scale=s)(batch, context())["advantage"] for s in (False, "none"))
    assert torch.equal(plain, none) and not torch.equal(plain, Gae(scale="batch")(batch, context())["advantage"])


def test_scaled_advantages_have_mean_zero_and_deviation_one_over_decisions():
    g = torch.Generator().manual_seed(1)
    batch = chain_of_one(torch.randn(20, generator=g).tolist(), torch.randn(20, generator=g).tolist())
    raw = Gae()(batch, context())["advantage"][:-1, 0]
    out = Gae(scale=True)(batch, context())["advantage"]
    torch.testing.assert_close(out[:-1, 0], (raw - raw.mean()) / raw.std(), rtol=1e-4, atol=1e-5)
    assert out[-1, 0] == 0
    alone = Gae(scale="batch")(chain_of_one([2.0], [0.5]), context())
    assert alone["advantage"][0, 0] == 1.5  # one number has no deviation


def test_ungraded_rows_lose_their_weight_and_are_counted():
    batch = Batch(
        {
            "mask": torch.ones(3, 2, dtype=torch.bool),
            "logp": torch.zeros(3, 2),
            "length": torch.full((3,), 2),
            "reward": torch.tensor([[0.0, 1.0], [float("nan")] * 2, [0.0, 3.0]]),
            "critic/value": torch.zeros(3, 2),
        }
    )
    ctx = context()
    out = Gae(gamma=1.0, lam=1.0, scale=True)(batch, ctx)
    assert out["weight/rl"].tolist() == [[1, 1], [0, 0], [1, 1]] and ctx.ledger == {"ungraded": 1}
    assert out["advantage"][1].tolist() == [0, 0]
    kept = torch.tensor([1.0, 1.0, 3.0, 3.0])
    torch.testing.assert_close(out["advantage"][[0, 2]].flatten(), (kept - 2) / kept.std())
    again = Gae(gamma=1.0, lam=1.0)(out, ctx)
    assert ctx.ledger == {"ungraded": 1} and again["weight/rl"].equal(out["weight/rl"])  # counted once


def test_an_ungraded_branch_does_not_count_in_the_mean_of_its_siblings():
    def step(parent, **reward):
        return Step.of(
            np.array([7], np.int32), np.array([1], np.int32), np.zeros(1, np.float32), parent=parent, reward=reward
        )

    tree = Trajectory(
        Request(Problem("t", "p", "")), (step(None), step(0, r=4.0), step(0, r=float("nan")), step(0, r=2.0))
    )
    batch = pack([tree])
    batch = batch.put({"reward": batch["reward/r"]})
    out = Returns()(batch, context())
    assert out["return"][:, 0].tolist() == [3, 4, 0, 2]
    assert out["weight/rl"][:, 0].tolist() == [1, 1, 0, 1]


def test_text_that_reached_its_limit_ends_in_zero_unless_asked():
    batch = as_tokens([0.0, 1.0], [0.5, 0.25]).put({"status": torch.tensor([STATUS[Status.TRUNCATED]])})
    plain = Gae(gamma=0.5, lam=0.0)(batch, context())
    boot = Gae(gamma=0.5, lam=0.0, bootstrap_truncated=True)(batch, context())
    assert plain["advantage"][0].tolist() == [-0.375, 0.75]
    assert boot["advantage"][0].tolist() == [-0.375, 1 + 0.5 * 0.25 - 0.25]
    ended = Gae(gamma=0.5, lam=0.0, bootstrap_truncated=True)(as_tokens([0.0, 1.0], [0.5, 0.25]), context())
    assert ended["advantage"].equal(plain["advantage"])


def test_returns_without_a_critic():
    batch = chain_of_one([1.0, 2.0, 3.0], [9.0, 9.0, 9.0], last_value=9.0, cont=1.0)
    out = Returns(gamma=0.5)(batch, context())
    assert out["return"][:, 0].tolist() == [1 + 1 + 0.75, 3.5, 3, 0]
    assert out["advantage"].equal(out["return"]) and Returns().needs == ()


def test_an_ensemble_counts_by_its_mean():
    batch = chain_of_one([1.0], [0.5])
    pair = batch.put({"critic/value": torch.tensor([[[0.0, 1.0]], [[5.0, 5.0]]])})
    assert Gae()(pair, context())["advantage"].equal(Gae()(batch, context())["advantage"])


def test_what_cannot_be_done_is_refused():
    batch = chain_of_one([1.0, 2.0], [0.0, 0.0])
    with pytest.raises(ValueError, match="whole chains"):
        Gae()(batch.take(torch.tensor([0])), context())
    with pytest.raises(ValueError, match="did you mean 'decision'"):
        Gae(level="decisions")
    with pytest.raises(ValueError, match="scale is 'group'"):
        Returns(scale="group")

    def step(parent):
        return Step.of(np.array([7], np.int32), np.array([1], np.int32), parent=parent, reward={"r": 1.0})

    tree = pack([Trajectory(Request(Problem("t", "p", "")), (step(None), step(0), step(0)))])
    with pytest.raises(ValueError, match="episode"):
        Returns(level="episode", reward="reward/r")(tree, context())


def test_two_critics_stamp_columns_of_their_own():
    batch = chain_of_one([1.0, 2.0], [0.5, 0.5])
    batch = batch.put({"price/value": torch.tensor([[1.0], [2.0], [0.0]]), "cost": batch["reward"] * 3})
    plain = Gae(1.0, 1.0)(batch, context())
    both = Gae(1.0, 1.0, critic="price", reward="cost", into="cost/advantage", target="cost/return")(plain, context())
    assert both["cost/return"][:, 0].tolist() == [9, 6, 0] and both["cost/advantage"][:, 0].tolist() == [8, 4, 0]
    assert both["return"][:, 0].tolist() == [3, 2, 0] and both["advantage"][:, 0].tolist() == [2.5, 1.5, 0]
    some = Returns(reward="cost", into="a", target="b")(batch, context())
    assert some["a"][:, 0].tolist() == some["b"][:, 0].tolist() == [9, 6, 0] and "return" not in some


def test_a_column_that_is_no_reward_is_refused_by_name():
    batch = chain_of_one([1.0, 2.0], [0.0, 0.0], last_value=0.0)
    batch = batch.put({"task": torch.zeros(len(batch), dtype=torch.long)})
    with pytest.raises(ValueError, match="the column 'task', which has no number for each decision"):
        Gae(reward="task")(batch, context())
