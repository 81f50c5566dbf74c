"""Lanes and episodes over a world stepped by hand: autoreset, truncation, Dict and masked observations, several choices
at once; whole runs with masks, images and normalisers, resumed bit for bit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

import shuhari
from shuhari import testing
from shuhari.config.recipe import load
from shuhari.data import Sampling
from shuhari.events import Collected
from shuhari.kernel.noise import CounterNoise, keys
from shuhari.loop.run import loop, open_run, train
from shuhari.models.categorical import CategoricalPolicy
from shuhari.models.critics import DiscreteQ
from shuhari.needs import Need, Traces, evaluate
from shuhari.objectives.td import td_target
from shuhari.rollouts.vector.vector import VectorRollout
from shuhari.tasks.gym import Gym
from shuhari.testing.compare import contents, differences
from shuhari.transforms.returns import credit
from small_runs import often


class Line(gymnasium.Env[Any, Any]):
    """Seen is the place, the reward of a step ten times the place it leaves plus the action. Action 1 at place 2 ends
    the episode; `max_episode_steps` cuts it."""

    observation_space, action_space = spaces.Box(0, 99, (1,), np.float32), spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.place = 0
        return np.array([0], np.float32), {}

    def step(self, action: Any) -> Any:
        reward, ends = 10 * self.place + int(action), self.place == 2 and int(action) == 1
        self.place += 1
        return np.array([self.place], np.float32), float(reward), ends, False, {}


class Doors(gymnasium.Env[Any, Any]):
    """Two of four doors are open, told in `info`; a closed one raises. Dict observations of every kind."""

    observation_space = spaces.Dict(
        {
            "seen": spaces.Box(-9, 9, (2,), np.float32),
            "view": spaces.Box(0, 255, (4, 4, 3), np.uint8),
            "at": spaces.Discrete(4),
        }
    )
    action_space = spaces.Discrete(4, start=1)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        return self._seen()

    def step(self, action: Any) -> Any:
        if not self.open[action - 1]:
            raise ValueError(f"door {action} is closed")
        self.t += 1
        reward = float(int(action) == 1 + int(np.flatnonzero(self.open)[0]))
        return (*self._seen()[:1], reward, self.t == 5, False, {"action_mask": self.open})

    def _seen(self) -> Any:
        self.open = np.zeros(4, np.int8)
        self.open[self.np_random.choice(4, 2, replace=False)] = 1
        view = self.np_random.integers(0, 256, (4, 4, 3)).astype(np.uint8)
        seen = self.np_random.normal(3, 2, 2).astype(np.float32)
        return {"seen": seen, "view": view, "at": int(self.np_random.integers(4))}, {"action_mask": self.open}


class Switches(gymnasium.Env[Any, Any]):
    """Three choices of different sizes at once; the reward counts the zeros."""

    observation_space, action_space = spaces.MultiDiscrete([2, 3]), spaces.MultiDiscrete([2, 3, 4], start=[0, 1, 0])

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        return np.array([0, 1]), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), action
        self.t += 1
        zeros = int((action == np.array([0, 1, 0])).sum())
        action += 100  # what is given is the environment's to change
        return np.array([self.t % 2, self.t % 3]), float(zeros), False, self.t == 6, {}


class Lever(Line):
    """Of double precision and bounded on one side; what it is given is its own to change."""

    action_space: Any = spaces.Box(np.array([0.0]), np.array([np.inf]), dtype=np.float64)

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action) and action.dtype == np.float64, action
        seen, reward, *rest = super().step(action[0])
        action += 100
        return seen, reward, *rest


class Bits(Switches):
    action_space: Any = spaces.MultiBinary(3)

    def step(self, action: Any) -> Any:
        assert action.dtype == np.int8
        return super().step(action)


MADE = {"Line-v0": Line, "Doors-v0": Doors, "Switches-v0": Switches, "Lever-v0": Lever, "Bits-v0": Bits}


@pytest.fixture(autouse=True)
def ours() -> Iterator[None]:
    for name, entry in MADE.items():
        gymnasium.register(name, entry_point=entry)
    yield
    for name in MADE:
        del gymnasium.registry[name]


class Scripted:
    """A policy that does what it is told, step by step."""

    def __init__(self, actions: list[list[int]]) -> None:
        self.actions, self.t = actions, 0

    def sample(self, contexts: Any, sampling: Any, *, noise: Any) -> Traces:
        action, self.t = torch.tensor(self.actions[self.t]), self.t + 1
        return Traces(action, torch.full((len(action), 1), -0.5))


def context(model: Any, **fields: Any) -> Any:
    return testing.context(models={"policy": model}, **fields)


def opened(task: Any, lanes: int) -> VectorRollout:
    rollout = VectorRollout(lanes=lanes)
    rollout.open(task, 7)
    return rollout


def test_resets_are_no_transitions_and_truncation_bootstraps_from_the_final_observation() -> None:
    """One lane cut at four steps, one that ends at its third."""
    task = Gym("Line-v0", {"max_episode_steps": 4})
    actions = [[0, 0], [1, 0], [0, 1], [0, 7], [7, 0], [1, 0]]  # 7: the step that resets, whose action nobody takes
    batch = opened(task, 2).collect(10, context(Scripted(actions)))
    place = batch["context"].view(-1, 2).tolist()
    assert place == [[0, 0], [1, 1], [2, 2], [3, 3], [4, 0], [0, 1], [1, 2]]
    assert batch["mask"].view(-1, 2).tolist() == [[True] * 2] * 3 + [
        [True, False],
        [False, True],
        [True] * 2,
        [False] * 2,
    ]
    assert batch["reward/task"].view(-1, 2).tolist() == [[0, 0], [11, 10], [20, 21], [30, 0], [0, 0], [1, 10], [0, 0]]
    assert batch["cont"].view(-1, 2).tolist() == [[1, 1], [1, 1], [1, 1], [1, 0], [1, 1], [1, 1], [1, 1]]
    assert batch["child"].view(-1, 2).tolist() == [[2, 3], [4, 5], [6, 7], [8, -1], [-1, 11], [12, 13], [-1, -1]]
    batch = batch.put({"reward": batch["reward/task"]})
    value = 1 + batch["context"]  # V(place) = place + 1; gamma = lambda = 1/2
    advantage = credit(batch, value, 0.5, 0.5)[0].view(-1, 2)
    cut = 30 + 0.5 * 5 - 4  # the time limit: bootstraps from place 4, which the reset left behind
    assert advantage[3, 0] == cut
    assert advantage[2, 0] == (20 + 0.5 * 4 - 3) + 0.25 * cut
    assert advantage[2, 1] == 21 - 3  # an end: nothing follows
    assert advantage[1, 1] == (10 + 0.5 * 3 - 2) + 0.25 * (21 - 3)
    assert advantage[5, 0] == 1 + 0.5 * 2 - 1  # the fragment's end: bootstraps from where the lane stands
    ahead = batch.successors()
    y = td_target(batch, ahead, 1 + ahead["context"][:, 0], 0.5).view(-1, 2)
    assert (y[3, 0], y[2, 1], y[5, 0], y[0, 0]) == (30 + 2.5, 21, 1 + 1, 0 + 1)


@pytest.mark.parametrize("model", [CategoricalPolicy((8,), gain=1.0), DiscreteQ((8,))])
@pytest.mark.parametrize("epsilon", [0.0, 0.5, 1.0])
def test_masks_act_in_sampling_and_in_scoring(model: Any, epsilon: float) -> None:
    """The world raises for what is forbidden, so that every decision of the run was allowed."""
    task = Gym("Doors-v0")
    torch.manual_seed(0)
    model.build(task)
    rollout = opened(task, 3)
    rollout.sampling = Sampling(epsilon=epsilon)
    batch = rollout.collect(60, context(model))
    assert {n for n in batch.names() if n.startswith("context")} == {
        f"context/{k}" for k in ("seen", "view", "at", "action_mask")
    }
    assert batch["context/view"].dtype == torch.uint8 and batch["context/action_mask"].dtype == torch.int8
    allowed, rows = batch["context/action_mask"] > 0, batch.decides
    assert bool(allowed[rows].gather(1, batch["action"][rows].view(-1, 1)).all())
    dist = model(batch)
    logp = evaluate(batch, [Need(("policy",), "log_prob")], {"policy": model})["policy/log_prob"]
    torch.testing.assert_close(logp[rows], batch["logp"][rows], atol=1e-5, rtol=0)
    probs = dist.probs() if isinstance(model, DiscreteQ) else dist.logs().exp()
    assert not bool(probs[:, 0][rows][~allowed[rows]].any())
    torch.testing.assert_close(probs[:, 0][rows].sum(1), torch.ones(int(rows.sum())))
    if epsilon == 1.0:
        assert torch.allclose(batch["logp"][rows], torch.tensor(0.5).log())  # of two doors
    if isinstance(model, DiscreteQ):  # what a target takes the maximum of
        best = dist.all()[:, 0].argmax(1)
        assert bool(allowed[rows].gather(1, best[rows].view(-1, 1)).all())
    contexts = {k: batch[f"context/{k}"][:2].clone() for k in ("seen", "view", "at", "action_mask")}
    contexts["action_mask"][1] = 0
    with pytest.raises(ValueError, match="action_mask: row 1 allows no action"):
        model.sample(contexts, Sampling(), noise=rollout._noise)


def test_several_choices_at_once_are_one_decision() -> None:
    task = Gym("Switches-v0")
    model = CategoricalPolicy((8,), gain=1.0)
    torch.manual_seed(0)
    model.build(task)
    batch = opened(task, 2).collect(40, context(model))
    assert batch["action"].shape[1:] == (3,) and batch["logp"].shape[1:] == (1,)
    zeros = (batch["action"] == 0).sum(1).float()
    rows = batch.decides
    assert torch.equal(batch["reward/task"][rows, 0], zeros[rows])  # stored from 0, taken from each start
    logits = model.module(batch["context"])
    parts = [torch.distributions.Categorical(logits=x) for x in logits.split([2, 3, 4], 1)]
    want = sum(p.log_prob(a) for p, a in zip(parts, batch["action"].T, strict=True))
    dist = model(batch)
    torch.testing.assert_close(dist.log_prob()[:, 0], want, atol=1e-5, rtol=0)
    torch.testing.assert_close(dist.entropy()[:, 0], sum(p.entropy() for p in parts), atol=1e-5, rtol=0)


@pytest.mark.parametrize("masked", [False, True])
def test_the_uniform_share_of_choices_of_different_sizes_is_over_what_each_allows(masked: bool) -> None:
    """A choice of two and one of three; under the mask the second of the two, the first and the third of the three."""
    seen: Any = spaces.Box(-1, 1, (2,))
    x: Any = torch.zeros(4000, 2)
    bits = torch.tensor([0, 1, 1, 0, 1] if masked else [1] * 5, dtype=torch.int8).expand(4000, 5)
    if masked:
        seen, x = spaces.Dict(action_mask=spaces.MultiBinary(5), x=seen), {"action_mask": bits, "x": x}
    model = CategoricalPolicy((8,), gain=1.0)
    torch.manual_seed(0)
    model.build(SimpleNamespace(spaces=lambda: (seen, spaces.MultiDiscrete([2, 3]))))
    traces = model.sample(x, Sampling(epsilon=0.5), noise=CounterNoise(keys(0, n=4000)))
    logits = model.module(x)[0].masked_fill(bits[0] == 0, -torch.inf)
    total = torch.zeros(4000)
    for i, part in enumerate((slice(0, 2), slice(2, 5))):
        allowed = bits[0, part] > 0
        p = 0.5 * logits[part].softmax(0) + 0.5 * allowed / allowed.sum()
        found = traces.action[:, i].bincount(minlength=len(p)) / 4000
        torch.testing.assert_close(found, p, atol=0.04, rtol=0)  # five standard errors
        total += p[traces.action[:, i]].log()
    torch.testing.assert_close(traces.logp[:, 0], total)
    if masked:
        x["action_mask"] = bits * torch.tensor([0, 0, 1, 1, 1], dtype=torch.int8)  # nothing for the shorter choice
        with pytest.raises(ValueError, match="row 0 allows no action"):
            model.sample(x, Sampling(), noise=CounterNoise(keys(0, n=4000)))


def test_environments_get_actions_of_their_own_type_within_their_bounds_and_may_change_them() -> None:
    actions = [[[-2.5]], [[3.5]], [[0.0]]]
    batch = opened(Gym("Lever-v0", {"max_episode_steps": 9}), 1).collect(3, context(Scripted(actions)))
    assert batch["action"][:3].tolist() == [[-2.5], [3.5], [0.0]]  # as decided
    batch = opened(Gym("Bits-v0"), 1).collect(2, context(Scripted([[[0, 1, 1]], [[1, 0, 1]]])))
    assert batch["action"][:2].tolist() == [[0, 1, 1], [1, 0, 1]]


# ---------------------------------------------------------------- whole runs

RUN = """
steps = 6
[task]
name = "gym/Doors-v0"
[models.policy]
use = "categorical"
hidden = [8]
normalise = true
[models.critic]
use = "value"
hidden = [8]
normalise = true
returns = true
[rollout]
use = "vector"
lanes = 2
[buffer]
size = 24
[collect.scale_rewards]
[transform.gae]
[part.policy]
trains = ["policy", "critic"]
minibatches = 2
terms.loss = {use = "clip"}
terms.value = {}
optimiser.lr = 1e-2
[evaluate]
every = 2
n = 3
"""


def recipe(tmp_path: Path, text: str = RUN, **settings: Any) -> Any:
    (tmp_path / "run.toml").write_text(text)
    return often(load(tmp_path / "run.toml")).with_settings(settings)


def test_a_run_with_masks_images_and_normalisers_resumes_bit_for_bit(tmp_path: Path) -> None:
    plan = recipe(tmp_path)
    list(train(plan, tmp_path / "whole"))
    steps = train(plan, tmp_path / "cut")
    for _ in range(3):
        next(steps)
    steps.close()
    list(train(plan, tmp_path / "cut"))
    assert differences(contents(tmp_path / "whole"), contents(tmp_path / "cut")) == []
    policy = shuhari.load(tmp_path / "whole")
    moments = policy.model.module.inputs.moments
    assert 6 * 24 <= float(moments.count) < 6 * 24 + 12 and abs(float(moments.mean[0]) - 3) < 1
    before = moments.mean.clone()
    seen, info = gymnasium.make("Doors-v0", disable_env_checker=True).reset(seed=1)
    for _ in range(5):
        action = policy.act({**seen, **info}, greedy=False)
        assert info["action_mask"][action - 1]
    many = {k: np.stack([v] * 3) for k, v in {**seen, **info}.items()}
    assert policy.act(many).shape == (3,)
    assert torch.equal(moments.mean, before)
    with pytest.raises(ValueError, match="expected action_mask, at, seen, view"):
        policy.act(seen)


def test_the_ratio_of_the_first_minibatch_is_one(tmp_path: Path) -> None:
    """The moments stand still within a step, and evaluation does not move them."""
    run = open_run(recipe(tmp_path))
    counts, model = [], None
    with run:
        for _ in range(3):
            run.enter_stage()
            model = run.ctx.models["policy"]
            counts.append(float(model.module.inputs.moments.count))
            batch = run.collect(run.wanted())
            run.tell(Collected(run.apply(run.stage.collect, batch)))
            assert float(model.module.inputs.moments.count) == counts[-1]
            logp = evaluate(batch, [Need(("policy",), "log_prob")], run.ctx.models)["policy/log_prob"]
            torch.testing.assert_close(logp, batch["logp"] * batch["mask"], atol=1e-6, rtol=0)
            for name, learner in run.stage.learners.items():
                for drawn in run.draws(name, learner):
                    run.tell(learner.update(run.apply(learner.transforms, drawn, learner.needs), run.ctx))
            assert float(model.module.inputs.moments.count) == counts[-1]  # until the step is committed
            run.commit()
    assert counts[0] == pytest.approx(1e-4) and counts[1] > 20 and counts[2] > counts[1] + 20


def test_a_target_has_the_moments_of_its_net_and_a_frozen_copy_keeps_its_own(tmp_path: Path) -> None:
    text = """
steps = 4
[task]
name = "gym/Doors-v0"
[models.policy]
use = "q_discrete"
hidden = [8]
normalise = true
[models.target]
init = "policy"
[models.reference]
init = "policy"
[rollout]
use = "vector"
lanes = 2
sampling.epsilon = 0.5
[buffer]
use = "replay"
capacity = 60
size = 8
collect = 8
[part.policy]
terms.q_learning = {}
optimiser.lr = 1e-2
[follow.target]
rate = 0.1
on = "step"
"""
    run = open_run(recipe(tmp_path, text))
    for _ in loop(run):
        pass
    policy, target_, reference = (run.ctx.models[r].module.inputs.moments for r in ("policy", "target", "reference"))
    assert torch.equal(policy.mean, target_.mean) and float(policy.count) > 30
    assert float(reference.count) == pytest.approx(1e-4)


def test_an_image_task_and_joint_choices_train(tmp_path: Path) -> None:
    pytest.importorskip("minigrid")
    plain = RUN.replace("normalise = true", "").replace(
        '"gym/Doors-v0"', '"gym/minigrid:MiniGrid-Empty-5x5-v0"\nwrappers = ["minigrid.wrappers.ImgObsWrapper"]'
    )
    reports = list(
        train(
            recipe(tmp_path, plain, steps=2).with_settings({"evaluate.n": 1, "evaluate.settings.max_steps": 5}),
            tmp_path / "image",
        )
    )
    assert len(reports) == 2
    act = shuhari.load(tmp_path / "image").act
    assert act(np.zeros((7, 7, 3), np.uint8)) in range(7) and act(np.zeros((2, 7, 7, 3), np.uint8)).shape == (2,)
    joint = RUN.replace("normalise = true", "").replace("Doors", "Switches")
    list(train(recipe(tmp_path, joint, steps=2), tmp_path / "joint"))
    action = shuhari.load(tmp_path / "joint").act(np.array([0, 1]))
    assert Switches.action_space.contains(action)
