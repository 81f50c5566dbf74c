"""What environments tell: costs, facts, successes, executed actions, vector rewards; in lanes here and in workers."""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from shuhari.data import Problem, Request, Sampling
from shuhari.engines.local import Local
from shuhari.kernel.pack import pack
from shuhari.models.deterministic import DeterministicPolicy
from shuhari.models.gaussian import SquashedPolicy
from shuhari.rollouts.episode import Episode
from shuhari.rollouts.vector.vector import VectorRollout
from shuhari.store.codec import dumps, loads
from shuhari.tasks.gym import Gym
from shuhari.testing import context as whole

sys.path.insert(0, str(Path(__file__).parents[1]))
ID = "worker_worlds:Telling-v7"
TELLS = {"cost": "reward", "success": "final", "busy": "column", "where": "column", "done": "action"}


def context(model: Any) -> Any:
    return whole(models={"policy": model})


def collected(task: Gym, model: Any, n: int = 60, **fields: Any) -> tuple[Any, dict[str, float]]:
    model.build(task)
    with closing(VectorRollout(lanes=3, **fields)) as rollout:
        rollout.open(task, 7)
        return rollout.collect(n, context(model)), rollout.report()


def policy(cls: Any = DeterministicPolicy) -> Any:
    torch.manual_seed(0)
    return cls((8,))


def test_costs_facts_and_successes_become_columns() -> None:
    batch, told = collected(Gym(ID, tells=TELLS), policy())
    ahead, decides = batch.successors(), batch.decides
    place = ahead["context"][:, 0]  # where the step led
    assert torch.allclose(batch["reward/cost"][decides, 0], place[decides].abs())
    assert torch.allclose(batch["where"][decides], torch.stack([place, torch.ones_like(place)], 1)[decides])
    ends = ahead["cont"] == 0
    assert int(ends.sum()) > 3
    assert torch.equal(batch["reward/success"][:, 0], (ends & decides & (place > 0)).float())
    assert batch["busy"].dtype == torch.int64 and set(batch["busy"][decides].tolist()) == set(range(1, 8))
    # what decides nothing tells nothing
    closes = ~decides
    assert not batch["reward/cost"][closes].any() and bool((batch["busy"][closes] == -1).all())
    assert bool(batch["where"][closes].isnan().all()) and not batch["replaced"][closes].any()
    # the report sums over episodes
    whole = {int(e) for e in batch["episode"][ends & decides]}
    sums = [float(batch["reward/cost"][batch["episode"] == e].sum()) for e in whole]
    assert told["rollout/cost"] == pytest.approx(np.mean(sums), rel=1e-5) and told["rollout/length"] == 7


@pytest.mark.parametrize("cls", [DeterministicPolicy, SquashedPolicy])
def test_an_executed_action_stands_in_the_place_of_the_decision(cls: Any) -> None:
    task = Gym(ID, tells=TELLS)
    batch, _ = collected(task, policy(cls))
    plain, _ = collected(Gym(ID), policy(cls))
    decides, replaced = batch.decides, batch["replaced"] == 1
    assert torch.equal(replaced, decides & (batch["busy"] % 3 == 0))
    moved = batch.successors()["context"] - batch["context"]
    assert torch.allclose(2 * batch["action"][decides], moved[decides], atol=1e-5)  # the Box is [-2, 2]
    assert bool(batch["logp"][replaced].isnan().all())
    assert torch.equal(batch["logp"][~replaced], plain["logp"][~replaced])
    assert torch.allclose(batch["action"][replaced], -0.5 * plain["action"][replaced], atol=1e-6)
    if cls is SquashedPolicy:  # what it would have drawn before squashing is not known either
        assert bool(batch["pre"][replaced].isnan().all()) and not batch["pre"][decides & ~replaced].isnan().any()


def test_nothing_told_is_nothing_changed() -> None:
    plain, report = collected(Gym(ID), policy())
    told, _ = collected(Gym(ID, tells={"cost": "reward"}), policy())
    assert told.names() - plain.names() == {"reward/cost"} and "rollout/cost" not in report
    assert all(torch.equal(plain[n], told[n]) for n in plain.names())


@pytest.mark.parametrize("fields", [{"workers": 2}, {"workers": 1, "ring": 3}])
def test_workers_tell_the_same(fields: dict[str, int]) -> None:
    here, told = collected(Gym(ID, tells=TELLS), policy(), ring=fields.get("ring", 1))
    there, told_there = collected(Gym(ID, tells=TELLS), policy(), **fields)
    assert told == told_there and here.names() == there.names()
    for name in here.names():
        assert torch.equal(here[name].nan_to_num(9.0), there[name].nan_to_num(9.0)), name


def test_sums_of_an_episode_outlive_a_pause() -> None:
    task, model = Gym(ID, tells={"cost": "reward"}), policy()
    model.build(task)
    with closing(VectorRollout(lanes=2)) as a, closing(VectorRollout(lanes=2)) as b:
        a.open(task, 7), b.open(task, 7)
        a.collect(8, context(model))
        b.state = loads(dumps(a.state))
        for rollout in (a, b):
            rollout.collect(20, context(model))
        assert a.report() == b.report() and a.report()["rollout/cost"] > 0


def test_a_vector_reward_becomes_named_ones() -> None:
    batch, told = collected(Gym(ID, {"two": True}, rewards=("place", "time")), policy())
    decides = batch.decides
    assert torch.allclose(batch["reward/place"][decides, 0], batch.successors()["context"][decides, 0])
    assert bool((batch["reward/time"][decides] == -1).all())
    assert torch.allclose(batch["reward/task"], batch["reward/place"] + batch["reward/time"])
    assert told["rollout/time"] == -7


def test_whole_episodes_name_them_too() -> None:
    task = Gym(ID, tells=TELLS)
    episode = task.environment(Problem("gym", "train/0", None))
    episode.reset(Problem("gym", "train/0", None))
    rewards = [episode.step(np.ones(1, np.float32))[1] for _ in range(7)]
    assert [set(r) for r in rewards] == [{"task", "cost", "success"}] * 7
    assert rewards[0]["cost"] == pytest.approx(abs(rewards[0]["task"]))
    assert [r["success"] for r in rewards] == [0.0] * 6 + [float(rewards[-1]["task"] > 0)]


@pytest.mark.parametrize("cls", [DeterministicPolicy, SquashedPolicy])
def test_whole_episodes_tell_what_lanes_do(cls: Any) -> None:
    """By an environment that does another thing each third step, as it says: see `worker_worlds`."""
    task, model = Gym(ID, tells=TELLS), policy(cls)
    model.build(task)
    ctx = whole(7, task=task, engine=Local(), models={"policy": model})
    ctx.engine.sync(ctx.models, 0)
    (played,) = ctx.wait(Episode().group(Request(task.problems("train")[0], 1, Sampling(), key="a#0"), ctx))
    batch = pack([played])
    decides = batch.decides
    assert int(decides.sum()) == 7
    assert batch["busy"][decides].tolist() == [1, 2, 3, 4, 5, 6, 7]
    replaced = batch["replaced"][decides] == 1
    assert torch.equal(replaced, batch["busy"][decides] % 3 == 0)
    place = batch.successors()["context"][decides][:, 0]
    assert torch.allclose(batch["where"][decides][:, 0], torch.stack([place, torch.ones_like(place)], 1))
    moved = (batch.successors()["context"] - batch["context"])[decides]
    assert torch.allclose(2 * batch["action"][decides], moved, atol=1e-5)
    assert torch.equal(batch["logp"][decides][:, 0].isnan(), replaced)
    if cls is SquashedPolicy:
        assert torch.equal(batch["pre"][decides].isnan().flatten(1).any(1), replaced)
    assert torch.equal(batch["reward/cost"][decides][:, 0], place.abs())


def test_what_cannot_be_told_is_refused() -> None:
    for tells, told in (
        ({"csot": "reward"}, "tells.csot: the environment reported none.*did you mean 'cost'"),
        ({"cost": "rewrd"}, "tells.cost is 'rewrd'.*did you mean 'reward'"),
        ({"where": "reward"}, r"tells.where = 'reward': it reports.*shape \\(2,\\)\\): expected one number"),
        ({"done": "action", "busy": "action"}, "several actions"),
    ):
        with pytest.raises(ValueError, match=told.replace("\\\\", "\\")):
            Gym(ID, tells=tells)
    with pytest.raises(ValueError, match="its reward has 2 entries, and `rewards` names 1"):
        Gym(ID, {"two": True}, rewards=("place",))
