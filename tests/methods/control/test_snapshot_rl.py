"""S3RL: classes against an independent library and by hand, and snapshots along what its environment does."""

import asyncio

import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans

from shuhari import testing
from shuhari.batch import Batch
from shuhari.config.recipe import load
from shuhari.methods.control.snapshot_rl.snapshot_starts import Starts, classify
from shuhari.models.critics import ContinuousQ
from shuhari.models.deterministic import DeterministicPolicy
from shuhari.store.codec import dumps, loads
from shuhari.tasks.gym import Gym


def test_classes_are_the_best_that_k_means_finds():
    rng = np.random.default_rng(0)
    for k in (1, 2, 4, 6):
        f = rng.normal(size=60) * rng.choice([0.1, 3.0], size=60)
        found = classify(f, k)
        assert sorted(np.concatenate(found).tolist()) == list(range(60))
        ours = sum(((f[c] - f[c].mean()) ** 2).sum() for c in found)
        theirs = KMeans(k, n_init=200, random_state=0).fit(f[:, None]).inertia_
        assert ours <= theirs * (1 + 1e-9) and ours == pytest.approx(theirs, rel=1e-6)


def test_classes_by_hand():
    parts = [c.tolist() for c in classify(np.array([5.0, 0.0, 0.1, 5.2, 9.0, 0.0]), 3)]
    assert parts == [[1, 2, 5], [0, 3], [4]]
    assert [c.tolist() for c in classify(np.array([1.0, 1.0, 2.0]), 6)] == [[0, 1], [2]]  # no more than values


def made(**fields):
    task = Gym("Pendulum-v1", {"max_episode_steps": 25})
    torch.manual_seed(0)
    models = {"teacher": DeterministicPolicy((8,)), "teacher_critic": ContinuousQ(2, (8,))}
    for model in models.values():
        model.build(task)
    return Starts(**{"episodes": 2, **fields}), testing.context(models=models, task=task)


def select(starts, n, ctx):
    return asyncio.run(starts.select(n, ctx))


def test_snapshots_are_those_of_the_teachers_episodes():
    starts, ctx = made(classes=1)
    requests = select(starts, 64, ctx)
    assert ctx.ledger["starts/env_steps"] == 50 and len(starts.state["f"]) == 6  # steps 0, 10, 20 of two episodes
    task, policy, critic = ctx.task, ctx.models["teacher"], ctx.models["teacher_critic"]
    states, values = [], []
    for i in range(2):
        env = task.environment(None)
        seen = env.reset(task.problems("train")[i])
        for t in range(25):
            row = torch.as_tensor(seen)[None]
            mean = policy.decide(row)["mean"]
            if t % 10 == 0:
                states.append(seen)
                batch = Batch({"context": row, "action": mean.detach(), "mask": torch.ones(1, 1, dtype=torch.bool)})
                values.append(critic(batch).value()[0, 0, 0].item())
            seen = env.step(policy.decide(row)["action"][0].detach().numpy())[0]
    np.testing.assert_allclose(starts.state["f"], values, rtol=1e-5)
    begun = [task.environment(None).restore(r.problem.start) for r in requests]
    assert {tuple(np.round(b, 4)) for b in begun} == {tuple(np.round(s, 4)) for s in states}
    assert all(r.settings == {"limit": 100} for r in requests)


def test_a_class_is_uniform_then_a_snapshot_in_it():
    """Of classes of 1 and 9 snapshots each has half of the starts: one 0.5, the others 0.0556."""
    starts, ctx = made(classes=2, episodes=1)
    select(starts, 1, ctx)
    begin = loads(starts.state["starts"].numpy().tobytes())[0]
    tagged = [{**begin, "last": np.full(3, float(i))} for i in range(10)]
    starts.state |= {"starts": torch.frombuffer(bytearray(dumps(tagged)), dtype=torch.uint8)}
    starts.state["f"] = [10.0] + [float(x) / 10 for x in range(9)]
    found = np.bincount([int(r.problem.start["last"][0]) for r in select(starts, 6000, ctx)], minlength=10) / 6000
    assert found[0] == pytest.approx(0.5, abs=0.03)
    assert found[1:] == pytest.approx(np.full(9, 0.5 / 9), abs=0.02)


def test_episodes_begin_where_the_task_does_once_the_phase_is_over():
    starts, ctx = made(until=100)
    ctx.ledger["env_steps"] = 1000.0
    assert all(r.problem.start is not None for r in select(starts, 3, ctx))
    ctx.ledger["env_steps"] = 1099.0
    assert select(starts, 1, ctx)[0].problem.start is not None and starts.report() == {"curriculum/snapshots": 1.0}
    ctx.ledger["env_steps"] = 1100.0
    late = select(starts, 2, ctx)
    assert all(r.problem.start is None and not r.settings for r in late)
    assert starts.report() == {"curriculum/snapshots": 0.0}


def test_without_a_phase_it_is_the_base_bit_for_bit():
    """Also with the teacher never asked; the run that has no curriculum at all is the other one."""
    settings = {"stage.student.env_steps": 1100, "stage.teacher.steps": 1, "stage.teacher.buffer.draws": 2,
                "stage.student.evaluate.n": 0, "stage.teacher.evaluate.n": 0}  # fmt: skip
    ends = []
    for more in (
        {"stage.student.curriculum.until": 0},
        {"remove": ["stage.student.curriculum"], "stage.student.rollout.asks": False},
    ):
        run = testing.open_run(load("control/snapshot_rl", settings={**settings, **more}))
        list(testing.loop(run))
        ends.append(run.ctx.models["policy"].module.state_dict())
    assert all(torch.equal(ends[0][k], ends[1][k]) for k in ends[0])
