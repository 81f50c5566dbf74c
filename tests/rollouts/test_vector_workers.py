"""Lanes in worker processes and in rings of slots: against a loop written out, against each other, and against the
books; what is told and what is left behind where things go wrong."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from shuhari import testing
from shuhari.config.recipe import load
from shuhari.data import Sampling, code
from shuhari.events import Collected
from shuhari.kernel.noise import CounterNoise, keys
from shuhari.loop.run import open_run
from shuhari.models.categorical import CategoricalPolicy
from shuhari.needs import Traces
from shuhari.rollouts.vector.vector import VectorRollout
from shuhari.rollouts.vector.workers import WorkerError
from shuhari.store.codec import dumps, loads
from shuhari.tasks.gym import Gym


class Elementwise:
    """A policy over two actions of which no row's numbers depend on the batch: there is no matrix product in it."""

    def sample(self, seen: Any, sampling: Sampling, *, noise: Any) -> Traces:
        p = torch.sigmoid(seen[:, 0].double() * 0.7 + seen[:, -1].double() * 0.2)
        action = (noise.uniform(0) < p).long()
        logp = torch.where(action > 0, p, 1 - p).log().float()
        return Traces(action, logp[:, None], info={"chance": p})


def context(model: Any) -> Any:
    return testing.context(models={"policy": model})


def opened(task: Any, **fields: Any) -> VectorRollout:
    rollout = VectorRollout(**fields)
    rollout.open(task, 7)
    return rollout


def unlike(a: Any, b: Any) -> list[str]:
    """The columns in which two batches differ by a bit."""
    assert a.names() == b.names()
    return [n for n in a.names() if not torch.equal(torch.nan_to_num(a[n].double()), torch.nan_to_num(b[n].double()))]


def test_one_actor_is_the_sequential_loop() -> None:
    """Observe, decide for all lanes at once, step them one after the other, reset those that end in the row after."""
    task, N, T = Gym("CartPole-v1", {"max_episode_steps": 15}), 3, 40
    model = CategoricalPolicy((8,), gain=3.0)
    torch.manual_seed(0)
    model.build(task)
    batch = opened(task, lanes=N).collect(N * T - 9, context(model))
    T = len(batch) // N - 1
    envs, noise = [task.make() for _ in range(N)], CounterNoise(keys(7, "lanes", n=N))
    now = np.stack([e.reset(seed=code(7, "lane", i) % 2**31)[0] for i, e in enumerate(envs)])
    ended, resets = [False] * N, 0
    for t in range(T):
        trace = model.sample(torch.from_numpy(now.copy()), Sampling(), noise=_At(noise, t))
        row = batch.take(torch.arange(t * N, (t + 1) * N))
        assert torch.equal(row["context"], torch.from_numpy(now)) and torch.equal(row["action"], trace.action)
        acts = torch.tensor([not e for e in ended])
        assert torch.equal(row["mask"][:, 0], acts)
        assert torch.equal(row["logp"], torch.where(acts[:, None], trace.logp, 0.0))
        for i, env in enumerate(envs):
            if ended[i]:
                now[i], ended[i], resets = env.reset()[0], False, resets + 1
            else:
                now[i], reward, terminated, truncated, _ = env.step(int(trace.action[i]))
                ended[i] = terminated or truncated
                assert float(row["reward/task"][i]) == reward
    assert resets > 3


@pytest.mark.parametrize("workers", [0, 1])
def test_one_lane_is_sequential_ppo(workers: int) -> None:
    """SRL's inline layout: at every step of a PPO run what is learnt from is, bit for bit, what one environment gives
    that is stepped action by action under the weights of that moment."""
    few = {"steps": 4, "buffer.size": 48, "rollout.lanes": 1, "rollout.workers": workers, "models.policy.hidden": [8]}
    run = open_run(load("baselines/ppo_cartpole").with_settings({**few, "evaluate.n": 0, "part.policy.minibatches": 2}))
    with run:
        run.enter_stage()  # which opens the lanes
        key, env = run.ctx.key("rollout", run.stage.name), Gym("CartPole-v1").make()
        noise, t, ended, weights = CounterNoise(keys(key, "lanes", n=1)), 0, False, []
        now = env.reset(seed=code(key, "lane", 0) % 2**31)[0]
        for _ in range(4):
            run.enter_stage()
            model: Any = run.ctx.models["policy"]
            weights.append(torch.cat([p.detach().flatten() for p in model.module.parameters()]))
            batch = run.collect(run.wanted())
            for i in range(len(batch) - 1):  # the last row only closes
                row, trace = (
                    batch.take(torch.tensor([i])),
                    model.sample(torch.tensor(now)[None], Sampling(), noise=_At(noise, t)),
                )
                assert torch.equal(row["context"][0], torch.tensor(now)) and bool(row["mask"]) is not ended
                if ended:
                    now, ended = env.reset()[0], False
                else:
                    assert torch.equal(row["action"], trace.action) and torch.equal(row["logp"], trace.logp)
                    now, reward, terminated, truncated, _ = env.step(int(trace.action[0]))
                    assert float(row["reward/task"]) == reward
                    ended = terminated or truncated
                t += 1
            run.tell(Collected(run.apply(run.stage.collect, batch)))
            for name, learner in run.stage.learners.items():
                for drawn in run.draws(name, learner):
                    run.tell(learner.update(run.apply(learner.transforms, drawn, learner.needs), run.ctx))
            run.commit()
    assert t > 4 * 48 and not any(torch.equal(a, b) for a, b in pairwise(weights))


class _At:
    def __init__(self, noise: CounterNoise, step: int) -> None:
        self.noise, self.step = noise, step

    def uniform(self, index: int, *shape: int) -> Any:
        return self.noise.uniform(self.step + index, *shape)


class Pushed:
    """Two numbers of a Box a lane, drawn and not rounded by any batch."""

    def sample(self, seen: Any, sampling: Sampling, *, noise: Any) -> Traces:
        action = seen + noise.normal(0, 2)
        return Traces(action, -(action**2).sum(1, keepdim=True))


WORLDS = {
    "worker_worlds:Rooms-v7": lambda: CategoricalPolicy((8,), gain=1.0),  # copied: a Dict, masks, choices from 1 on
    "worker_worlds:Lever-v7": Pushed,  # copied: actions of double precision, which it changes
    "small_runs:Delay-v0": Elementwise,  # replayed
}


@pytest.mark.parametrize(
    ("world", "workers", "ring"), [(w, n, k) for w, n, k in zip(WORLDS, (2, 1, 2), (2, 4, 1), strict=True)]
)
def test_any_number_of_workers_gives_the_same_lanes_also_over_a_resume(world: str, workers: int, ring: int) -> None:
    """Bit for bit at one ring; over rings too where the policy rounds every batch alike, and up to rounding where it
    does not."""
    task, model = Gym(world), WORLDS[world]()
    if hasattr(model, "build"):
        torch.manual_seed(0)
        model.build(task)
    sizes = (1, 30, 90, 5, 40)
    one, many = opened(task, lanes=12, ring=ring), opened(task, lanes=12, workers=workers, ring=ring)
    other = opened(task, lanes=12)
    with closing(many):
        for n in sizes[:3]:
            a, b, c = (r.collect(n, context(model)) for r in (one, many, other))
            assert unlike(a, b) == []
            assert set(unlike(a, c)) <= ({"logp"} if hasattr(model, "build") else set())
            torch.testing.assert_close(a["logp"], c["logp"], atol=1e-5, rtol=0)
        assert (~a["mask"][:-12]).any()  # some episodes have ended
        saved = [dumps(r.state) for r in (one, many)]
        assert saved[0] == saved[1] and one.report() == many.report()
        assert dumps({**other.state, "now": 0}) == dumps({**many.state, "now": 0})
        expected = [one.collect(n, context(model)) for n in sizes[3:]]
        back = opened(task, lanes=12, ring=ring)  # from the workers to this process
        back.state = loads(saved[1])
        many.collect(50, context(model))
        many.state = loads(saved[0])  # and the other way round
        for n, e in zip(sizes[3:], expected, strict=True):
            assert unlike(e, back.collect(n, context(model))) == [] == unlike(e, many.collect(n, context(model)))


class Patient(Elementwise):
    """Decides for the second of two slots only after the lanes of the first have taken the step that it decided."""

    def __init__(self, file: Path) -> None:
        self.file, self.decided, self.calls = file, 0, 0

    def sample(self, seen: Any, sampling: Sampling, *, noise: Any) -> Traces:
        until = time.monotonic() + 60
        while self.calls % 2 and self.file.stat().st_size < self.decided:
            assert time.monotonic() < until, "nobody steps the other slot meanwhile"
            time.sleep(1e-3)
        self.calls, self.decided = self.calls + 1, self.decided + len(seen)
        return super().sample(seen, sampling, noise=noise)


def test_slots_are_stepped_while_others_are_decided_for_and_every_step_is_accounted_for(tmp_path: Path) -> None:
    file = tmp_path / "steps"
    file.touch()
    task = Gym("worker_worlds:Counted-v7", {"file": str(file), "endless": True})
    with closing(opened(task, lanes=4, workers=1, ring=2)) as rollout:
        file.write_bytes(b"")
        batch = rollout.collect(40, context(Patient(file)))
    assert file.stat().st_size == 40 == int(batch.decides.sum())
    assert (batch["context"][:, 1:] == 1).all()  # one thread each
    ends = Gym("worker_worlds:Counted-v7", {"file": str(file)})
    with closing(opened(ends, lanes=4, workers=2, ring=2)) as rollout:
        file.write_bytes(b"")
        ctx, consumed = context(Elementwise()), 0
        for n in (1, 7, 30, 2, 60):
            batch = rollout.collect(n, ctx)
            consumed += int(batch.decides.sum())
            assert consumed == ctx.ledger["env_steps"] == file.stat().st_size  # nothing dropped, nothing queued
        assert rollout.report()["rollout/return"] == rollout.report()["rollout/length"] == 4


# ---------------------------------------------------------------- where things go wrong


def test_a_failure_is_told_with_lane_environment_and_cause(tmp_path: Path) -> None:
    file = tmp_path / "steps"
    task = Gym(
        "worker_worlds:Counted-v7",
        {"file": str(file), "endless": True, "seed": code(7, "lane", 3) % 2**31, "raises": 5},
    )
    rollout = opened(task, lanes=4, workers=2, ring=1)
    processes = [w.process for w in rollout._actor.workers]  # type: ignore[union-attr]
    with pytest.raises(WorkerError) as raised:
        rollout.collect(60, context(Elementwise()))
    told = str(raised.value)
    assert "worker 1 of 2 (lanes 2, 3 of worker_worlds:Counted-v7) failed while stepping lanes 2 to 3" in told
    assert "ArithmeticError: the door fell off" in told and "in lane 3" in told and "worker_worlds.py" in told
    assert all(p.returncode is not None for p in processes)
    with pytest.raises(RuntimeError, match="not open"):
        rollout.collect(1, context(Elementwise()))
    with pytest.raises(ArithmeticError, match="the door fell off") as inline:
        opened(task, lanes=4).collect(60, context(Elementwise()))
    assert inline.value.__notes__ == [
        "raised by step 6 of an episode of gym/worker_worlds:Counted-v7",
        "in lane 3, counted from 0",
    ]


def test_a_worker_that_dies_is_missed_at_once(tmp_path: Path) -> None:
    rollout = opened(Gym("CartPole-v1"), lanes=4, workers=2, ring=2)
    processes = [w.process for w in rollout._actor.workers]  # type: ignore[union-attr]
    rollout.collect(20, context(Elementwise()))
    processes[1].send_signal(signal.SIGKILL)
    told = r"worker 1 of 2 \(lanes 1, 3 of CartPole-v1\) died while (stepping|resetting) lane [13], with signal SIGKILL"
    with pytest.raises(WorkerError, match=told):
        rollout.collect(20, context(Elementwise()))
    assert [p.returncode for p in processes] == [0, -signal.SIGKILL]


PARENT = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # which what runs in the background lacks
from shuhari.rollouts.vector.vector import VectorRollout
from shuhari.tasks.gym import Gym
rollout = VectorRollout(lanes=2, workers=1)
rollout.open(Gym("CartPole-v1", wrappers=({"use": "shuhari.tasks.latency.Latency", "seconds": 0.0},)), 0)
class Idle:
    def sample(self, *_, **__):
        print("open", flush=True)
        while True:
            pass
from shuhari.testing import context
rollout.collect(1, context(models={"policy": Idle()}))
"""


def test_workers_end_with_their_parent_however_it_ends() -> None:
    """The worker holds the end of the pipe that the parent has: the pipe ends when both have."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", PARENT]
    parents = [subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) for _ in range(2)]
    for parent, number in zip(parents, (signal.SIGKILL, signal.SIGINT), strict=True):
        assert parent.stdout is not None and parent.stdout.readline() == b"open\n"
        parent.send_signal(number)
        assert parent.communicate(timeout=60)[0] == b"" and parent.returncode == -number


def test_mistakes_are_told_before_anything_starts() -> None:
    with pytest.raises(ValueError, match="workers is -1: expected a number of 0 or more"):
        VectorRollout(workers=-1)
    with pytest.raises(ValueError, match=r"8 lanes cannot be divided into .* 3 .*expected ring = 2, or .* multiple of "
    "3"):
        VectorRollout(ring=3)
    with pytest.raises(ValueError, match=r"3 workers, and a slot of 2 of the 8 lanes \(ring = 4\)"):
        VectorRollout(workers=3, ring=4)

    class Here(Gym):
        pass

    with pytest.raises(TypeError, match=r"Here cannot be made in a worker: .*; set workers = 0"):
        opened(Here("CartPole-v1"), lanes=2, workers=1)


def test_what_only_this_process_has_registered_is_told() -> None:
    import gymnasium

    gymnasium.register("Only-v0", "gymnasium.envs.classic_control:CartPoleEnv")
    try:
        with pytest.raises(
            WorkerError, match=r"(?s)gym/Only-v0: Gymnasium knows no such id.*put it in a module \(gym/mod"
        ):
            opened(Gym("Only-v0"), lanes=2, workers=1)
    finally:
        del gymnasium.registry["Only-v0"]
