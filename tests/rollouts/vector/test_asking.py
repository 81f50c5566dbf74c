"""Lanes that ask a curriculum where they begin: against environments stepped by hand from the same snapshot, against
lanes that do not ask, and against workers and a resumed rollout."""

from contextlib import closing
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from shuhari import testing
from shuhari.data import ContractError, Problem, Request, Sampling, Step
from shuhari.models.deterministic import DeterministicPolicy
from shuhari.rollouts.vector.vector import VectorRollout
from shuhari.store.codec import dumps, loads
from shuhari.tasks.gym import Gym


class Scripted:
    """Gives the n-th start of a list to the n-th episode, and the task's own beyond it."""

    def __init__(self, starts=(), limit=0, **fields):
        self.starts, self.limit, self.fields, self.asked = starts, limit, fields, 0

    async def select(self, n, ctx):
        out = []
        for i in range(self.asked, self.asked + n):
            start = self.starts[i] if i < len(self.starts) else None
            problem = Problem("gym", f"{i}", None, start=start)
            out.append(Request(problem, settings={"limit": self.limit}, info={"which": float(i)}, **self.fields))
        self.asked += n
        return out


def walk(task, steps, seed=0):
    """The snapshots after each step of an episode of random actions."""
    env, rng = task.environment(None), np.random.default_rng(seed)
    env.reset(Problem("gym", f"train/{seed}", None))
    found = []
    for _ in range(steps):
        env.step(rng.uniform(-1, 1, env.action.shape).astype(np.float32))
        found.append(env.snapshot())
    return found


def collected(task, n, curriculum, rollout=None, **fields):
    torch.manual_seed(0)
    model = DeterministicPolicy((8,))
    model.build(task)
    ctx = testing.context(models={"policy": model}, curriculum=curriculum)
    if rollout is None:
        rollout = VectorRollout(**fields)
        rollout.open(task, 7)
    return rollout, rollout.collect(n, ctx), ctx


@pytest.mark.parametrize("name", ["Pendulum-v1", "Reacher-v5"])
def test_an_episode_goes_on_from_its_start_as_the_environment_does(name):
    task = Gym(name)
    starts = [walk(task, 20, seed)[-1] for seed in (0, 1)]
    rollout, batch, _ = collected(task, 30, Scripted(starts, limit=15), lanes=2, asks=True)
    rollout.close()
    x = {n: batch[n].reshape(-1, 2, *batch[n].shape[1:]).numpy() for n in ("context", "action", "reward/task", "mask")}
    for lane, start in enumerate(starts):
        env = task.environment(None)
        assert np.array_equal(x["context"][0, lane], env.restore(start))
        for t in range(15):
            assert x["mask"][t, lane]
            bound = task.spaces()[1].high  # the decision lies in [-1, 1]
            seen, reward, _ = env.step(np.clip(x["action"][t, lane] * bound, -bound, bound).astype(np.float32))
            assert np.array_equal(x["context"][t + 1, lane], seen)
            assert np.isclose(x["reward/task"][t, lane, 0], reward["task"], atol=1e-6)


def test_the_limit_truncates_and_the_value_counts():
    task = Gym("Pendulum-v1")
    _, batch, _ = collected(task, 20, Scripted(limit=4), lanes=1, asks=True)
    decides, cont = batch["mask"][:, 0].tolist(), batch["cont"].tolist()
    assert decides[:10] == [True] * 4 + [False] + [True] * 4 + [False]
    assert cont == [1.0] * len(cont)  # a truncated episode is bootstrapped
    assert batch["which"].tolist()[:10] == [0.0] * 5 + [1.0] * 5


def test_without_starts_the_bits_are_those_of_lanes_that_do_not_ask():
    task = Gym("Pendulum-v1", {"max_episode_steps": 9})
    rollout, asked, ctx = collected(task, 50, Scripted(), lanes=3, asks=True)
    other, plain, _ = collected(task, 50, None, lanes=3)
    for _ in range(2):
        for n in plain.names():
            assert torch.equal(asked[n], plain[n])
        asked, plain = rollout.collect(50, ctx), other.collect(50, ctx)


def test_workers_and_a_resumed_rollout_do_the_same():
    task = Gym("Pendulum-v1", {"max_episode_steps": 30})
    starts = walk(task, 20) * 2
    inline, first, ctx = collected(task, 40, Scripted(starts, limit=7), lanes=4, asks=True)
    saved, asked = loads(dumps(inline.state)), ctx.curriculum.asked
    then = inline.collect(60, ctx)
    with closing(VectorRollout(lanes=4, asks=True, workers=2, ring=2)) as spread:
        spread.open(task, 7)
        again = Scripted(starts, limit=7)
        _, batch, ctx = collected(task, 40, again, spread)
        assert again.asked == asked
        for n in ("context", "cont", "which", "lane", "mask"):
            torch.testing.assert_close(batch[n], first[n], rtol=1e-5, atol=1e-5)
    resumed = VectorRollout(lanes=4, asks=True)
    resumed.open(task, 7)
    resumed.state = saved
    ctx.curriculum = Scripted(starts, limit=7)
    ctx.curriculum.asked = asked
    same = resumed.collect(60, ctx)
    for n in then.names():
        assert torch.equal(same[n], then[n]), n


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"n": 2}, "n = 2"),
        ({"prefix": (Step.of(0, 0),)}, "a prefix"),
        ({"sampling": Sampling()}, "a sampling of its own"),
    ],
)
def test_what_lanes_cannot_play_is_refused(fields, message):
    with pytest.raises(ContractError, match=message):
        collected(Gym("Pendulum-v1"), 5, Scripted(**fields), lanes=1, asks=True)


def test_an_unknown_setting_and_a_missing_request_are_refused():
    async def odd(n, ctx):
        return [Request(Problem("gym", "0", None), settings={"limits": 3})] * n

    async def few(n, ctx):
        return []

    for select, message in ((odd, "no setting 'limits'; did you mean 'limit'"), (few, "0 requests: expected 1")):
        with pytest.raises(ContractError, match=message):
            collected(Gym("Pendulum-v1"), 5, SimpleNamespace(select=select), lanes=1, asks=True)
