"""The vector rollout against environments stepped by hand with the same actions, and against itself after a resume."""

from itertools import pairwise
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
import torch

from shuhari import testing
from shuhari.batch import Batch
from shuhari.data import Ramp, Sampling, code
from shuhari.models.categorical import CategoricalPolicy
from shuhari.models.critics import DiscreteQ
from shuhari.models.gaussian import GaussianPolicy, SquashedPolicy
from shuhari.needs import Need, evaluate
from shuhari.rollouts.vector.vector import VectorRollout
from shuhari.store.codec import dumps, loads
from shuhari.tasks.arithmetic import Arithmetic
from shuhari.tasks.gym import Gym


def built(model, task):
    torch.manual_seed(0)
    model.build(task)
    return model


def context(model, **fields):
    return testing.context(step=3, models={"policy": model}, **fields)


def opened(task, seed=7, **fields):
    rollout = VectorRollout(**fields)
    rollout.open(task, seed)
    return rollout


def lanes_of(batch, lanes):
    """name -> [T + 1, N, ...] of a fragment."""
    return {n: batch[n].reshape(-1, lanes, *batch[n].shape[1:]).numpy() for n in batch.names()}


def by_hand(name, kwargs, seed, lane, actions):
    """What an environment does with the given rows of actions: it resets, which takes a row, after each end."""
    env = gymnasium.make(name, disable_env_checker=True, **kwargs)
    seen, ended = [env.reset(seed=code(seed, "lane", lane) % 2**31)[0]], ""
    rows = []
    for action in actions:
        if ended:
            rows.append((False, 0.0, float(ended == "truncated")))
            seen.append(env.reset()[0])
            ended = ""
            continue
        o, r, terminated, truncated, _ = env.step(action)
        rows.append((True, r, 1.0))
        seen.append(o)
        ended = "terminated" if terminated else "truncated" if truncated else ""
    rows.append((False, 0.0, float(ended != "terminated")))
    return np.array(seen, np.float32), *map(np.array, zip(*rows, strict=True))


def as_taken(name, action):
    return int(action) if name == "CartPole-v1" else np.clip(2 * action, -2, 2).astype(np.float32)


@pytest.mark.parametrize(
    ("name", "limit", "model"),
    [
        ("CartPole-v1", 15, CategoricalPolicy()),
        ("Pendulum-v1", 9, SquashedPolicy((8,))),
    ],
)
def test_a_fragment_is_what_the_environments_do(name, limit, model):
    kwargs = {"max_episode_steps": limit}
    task = Gym(name, kwargs)
    rollout = opened(task, lanes=3)
    batch = rollout.collect(120, context(built(model, task)))
    x = lanes_of(batch, 3)
    T = len(x["mask"]) - 1
    assert 120 <= int(batch["mask"].sum()) < 123 and T > 40  # some rows went to resets
    for lane in range(3):
        actions = [as_taken(name, a) for a in x["action"][:T, lane]]
        seen, mask, reward, cont = by_hand(name, kwargs, 7, lane, actions)
        np.testing.assert_array_equal(x["context"][:, lane], seen)
        np.testing.assert_array_equal(x["mask"][:, lane, 0], mask)
        np.testing.assert_array_equal(x["reward/task"][:, lane, 0], reward.astype(np.float32))
        np.testing.assert_array_equal(x["cont"][:, lane], cont)
        rows = np.arange(T + 1) * 3 + lane
        np.testing.assert_array_equal(x["child"][:, lane], np.where(mask, rows + 3, -1))
    if name == "CartPole-v1":
        closing = ~x["mask"][:-1, :, 0]
        assert {0.0, 1.0} == set(x["cont"][:-1][closing])  # both kinds of ends were there
    assert (x["logp"][~x["mask"]] == 0).all() and (x["version"] == 3).all()
    changes = (x["episode"][1:] != x["episode"][:-1]) == ~x["mask"][:-1, :, 0]
    assert changes.all() and len(set(x["id"].ravel())) == x["id"].size
    starts = {e for e in x["episode"].ravel()}
    assert len(starts) == 3 + int((~x["mask"][:-1]).sum())  # an episode has one lane and one number


def test_log_probabilities_are_those_of_the_model():
    task = Gym("CartPole-v1")
    for sampling in (Sampling(), Sampling(temperature=2.0), Sampling(epsilon=0.3)):
        model = built(CategoricalPolicy(gain=3.0), task)
        batch = opened(task, lanes=2, sampling=sampling).collect(30, context(model))
        scored = evaluate(batch, [Need(("policy",), "log_prob")], {"policy": model})["policy/log_prob"]
        torch.testing.assert_close(batch["logp"], scored, atol=1e-5, rtol=0)


def test_a_lane_cut_by_the_end_of_a_fragment_resumes():
    task = Gym("CartPole-v1", {"max_episode_steps": 8})
    rollout, ctx = opened(task, lanes=2), context(built(CategoricalPolicy(), task))
    parts = [rollout.collect(n, ctx) for n in (1, 7, 2, 30, 5, 5)]
    assert not parts[0]["resumes"].any()
    went_on = []
    for before, after in pairwise(parts):
        b, a = lanes_of(before, 2), lanes_of(after, 2)
        resumes = a["resumes"][0]
        assert not a["resumes"][1:].any()
        # an open lane goes on from its last row; one that ended has its closing row there, and starts anew
        np.testing.assert_array_equal((b["context"][-1] == a["context"][0]).all(1), resumes)
        np.testing.assert_array_equal(b["episode"][-1] == a["episode"][0], resumes)
        assert (b["cont"][-1][resumes] == 1).all() and a["mask"][0].all()
        went_on += resumes.tolist()
    assert any(went_on) and not all(went_on)
    assert sum(int(p.decides.sum()) for p in parts) == ctx.ledger["env_steps"]


def test_fragments_join_to_what_one_piece_is():
    task = Gym("Pendulum-v1")
    model = built(SquashedPolicy((8,)), task)
    whole = lanes_of(opened(task, lanes=2).collect(40, context(model)), 2)
    rollout = opened(task, lanes=2)
    parts = [lanes_of(rollout.collect(n, context(model)), 2) for n in (2, 8, 30)]
    for name in ("context", "action", "logp", "reward/task", "episode"):
        joined = np.concatenate([p[name][:-1] for p in parts])
        np.testing.assert_array_equal(joined, whole[name][:-1])


@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1"])
def test_resume_is_bit_equal(name):
    task = Gym(name, {"max_episode_steps": 13})
    model = built(CategoricalPolicy() if name == "CartPole-v1" else SquashedPolicy((8,)), task)
    rollout, ctx = opened(task, lanes=3, random=20), context(model)
    for n in (1, 16, 25):
        rollout.collect(n, ctx)
    saved = dumps(rollout.state)
    more = [rollout.collect(n, ctx) for n in (5, 40)]
    other = opened(task, lanes=3, random=20)
    other.state = loads(saved)
    for expected in more:
        got = other.collect(len(expected.decides.nonzero()), ctx)
        assert got.names() == expected.names()
        for column in expected.names():
            assert torch.equal(torch.nan_to_num(got[column].double()), torch.nan_to_num(expected[column].double()))
    assert dumps(other.state) == dumps(rollout.state) and other.report() == rollout.report()
    assert not opened(task, lanes=3).state["finished"] and VectorRollout().state == {}
    with pytest.raises(ValueError, match="3 lanes for a rollout of 2"):
        opened(task, lanes=2).state = loads(saved)


def test_lanes_do_not_know_of_each_other():
    task = Gym("CartPole-v1")
    model = built(CategoricalPolicy(), task)
    many = opened(task, lanes=4).collect(80, context(model))
    one = opened(task, lanes=1).collect(20, context(model))
    mine = many["context"][many["lane"] == 0]
    n = min(len(mine), len(one))
    np.testing.assert_array_equal(mine[:n], one["context"][:n])
    assert not torch.equal(many["context"][many["lane"] == 1][:5], mine[:5])


def test_the_first_decisions_are_random():
    task = Gym("Pendulum-v1")
    rollout = opened(task, lanes=2, random=400)
    batch = rollout.collect(600, context(built(SquashedPolicy((8,)), task)))
    decided = batch.decides.nonzero().squeeze(1)
    first, rest = decided[:400], decided[400:]
    torch.testing.assert_close(batch["logp"][first], torch.full((400, 1), -np.log(2.0), dtype=torch.float32))
    a = batch["action"][first]
    assert abs(float(a.mean())) < 0.1 and abs(float(a.var()) - 1 / 3) < 0.05
    assert (batch["epsilon"][first] == 1).all() and (batch["epsilon"][rest].nan_to_num() == 0).all()
    assert not torch.allclose(batch["logp"][rest], torch.tensor(-np.log(2.0), dtype=torch.float32))


def test_epsilon_follows_its_schedule():
    task = Gym("CartPole-v1")
    ctx = context(built(DiscreteQ((8,)), task), sampling=Sampling(epsilon=Ramp(1.0, 0.0, 10)))
    rollout = opened(task, lanes=2)
    for step, expected in ((0, 1.0), (5, 0.5), (10, 0.0)):
        ctx.count = step
        e = rollout.collect(4, ctx)["epsilon"]
        assert (e[:4] == expected).all()


def test_actions_out_of_bounds_are_held_within_them_and_stored_as_decided():
    task = Gym("Pendulum-v1")
    model = built(GaussianPolicy(log_std=2.0), task)
    batch = opened(task, lanes=1).collect(50, context(model))
    x = lanes_of(batch, 1)
    assert np.abs(x["action"]).max() > 2
    actions = [np.clip(a, -2, 2) for a in x["action"][:-1, 0]]
    np.testing.assert_array_equal(by_hand("Pendulum-v1", {}, 7, 0, actions)[0], x["context"][:, 0])


def test_a_chain_of_decisions_a_step_has_its_reward_at_the_last():
    task = Gym("CartPole-v1")
    inner = built(CategoricalPolicy(), task)

    def sample(contexts, sampling, *, noise):
        trace = inner.sample(contexts, sampling, noise=noise)
        again = noise.uniform(1)  # a second index: the lanes' counter must move past both
        assert again.shape == (2,)
        return SimpleNamespace(action=trace.action, logp=trace.logp.expand(-1, 3), info={}, taken=None)

    rollout = opened(task, lanes=2)
    batch = rollout.collect(10, context(SimpleNamespace(sample=sample)))
    assert batch["mask"].shape == batch["logp"].shape == batch["reward/task"].shape == (12, 3)
    assert (batch["reward/task"][batch.decides] == torch.tensor([0.0, 0.0, 1.0])).all()
    assert rollout.state["noise"] == 2 * 5


def test_the_report_counts_finished_episodes():
    task = Gym("CartPole-v1", {"max_episode_steps": 10})
    rollout = opened(task, lanes=2)
    assert rollout.report() == {"rollout/episodes": 0.0}
    model = built(CategoricalPolicy(), task)
    batch = rollout.collect(400, context(model))
    returns = []
    for e in batch["episode"].unique().tolist():
        rows = batch["episode"] == e
        if not bool(((batch["child"] < 0) & (batch["id"] >= batch["id"].max() - 1))[rows].any()):
            returns.append(float(batch["reward/task"][rows].sum()))
    report = rollout.report()
    assert report["rollout/episodes"] - len(returns) in (0, 1, 2)  # those that end with the fragment count too
    assert 5 < report["rollout/return"] == report["rollout/length"] <= 10


def test_mistakes_are_told():
    task = Gym("CartPole-v1")
    with pytest.raises(ValueError, match="lanes is 0"):
        VectorRollout(lanes=0)
    with pytest.raises(TypeError, match="Arithmetic makes none"):
        VectorRollout().open(Arithmetic(), 0)
    with pytest.raises(RuntimeError, match="not open"):
        VectorRollout().collect(1, context(built(CategoricalPolicy(), task)))
    with pytest.raises(ValueError, match="cannot honour"):
        opened(task, sampling=Sampling(top_p=0.5)).collect(1, context(built(CategoricalPolicy(), task)))
    with pytest.raises(KeyError, match="polcy"):
        opened(task, role="polcy").collect(1, context(built(CategoricalPolicy(), task)))
    assert isinstance(opened(task).collect(1, context(built(CategoricalPolicy(), task))), Batch)
