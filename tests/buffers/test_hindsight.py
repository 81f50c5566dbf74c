"""Goals in hindsight: relabelled rows, their rewards and ends against an enumeration, over lanes, wrap-around and
resumed fragments; how often which goal comes; what is refused; and bits that are flipped to the goal with it and not
without."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from shuhari import testing
from shuhari.batch import Batch
from shuhari.buffers.hindsight import Hindsight, ask_rows
from shuhari.buffers.replay import Replay
from shuhari.config.recipe import load
from shuhari.events import Collected
from shuhari.loop.run import Run, loop, open_run, train
from shuhari.objectives.td import td_target
from shuhari.tasks.gym import Gym

HERE = f"gym/{__file__}"


class Walk(gymnasium.Env):
    """A place that grows by 1 or 2 a step, so that each row of an episode has achieved another goal than all others."""

    observation_space = spaces.Dict(
        {k: spaces.Box(-1e6, 1e6, (1,), np.float64) for k in ("observation", "achieved_goal", "desired_goal")}
    )
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at, self.goal = 0.0, float(self.np_random.integers(3, 12))
        return self.look(), {}

    def look(self):
        here = np.array([self.at])
        return {"observation": here, "achieved_goal": here, "desired_goal": np.array([self.goal])}

    def step(self, action):
        self.at += 1 + int(action)
        over = bool(self.np_random.random() < 0.1)
        return self.look(), float(self.compute_reward(np.array([self.at]), np.array([self.goal]), {})), over, False, {}

    def compute_reward(self, achieved_goal, desired_goal, info):
        return -(np.abs(achieved_goal - desired_goal)[..., 0] > 0.5).astype(np.float64)


class Ends(Walk):
    """Ends as the goal is passed; its functions take one goal at a time, and paid is a scalar."""

    def compute_reward(self, achieved_goal, desired_goal, info):
        return -1.0 if abs(float(achieved_goal[0]) - float(desired_goal[0])) > 0.5 else 0.0

    def compute_terminated(self, achieved_goal, desired_goal, info):
        return bool(achieved_goal[0] >= desired_goal[0])


class Reach(gymnasium.Env):
    """A point in a square that goes to a goal: action [2] in [-1, 1], -1 a step until it is within 0.15."""

    def __init__(self):
        place = spaces.Box(-1, 1, (2,), np.float32)
        self.observation_space = spaces.Dict(observation=place, achieved_goal=place, desired_goal=place)
        self.action_space = spaces.Box(-1, 1, (2,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.goal = self.np_random.uniform(-1, 1, (2, 2)).astype(np.float32)
        self.at = 0
        return self.look(), {}

    def look(self):
        return {"observation": self.place, "achieved_goal": self.place, "desired_goal": self.goal}

    def step(self, action):
        self.place, self.at = np.clip(self.place + 0.2 * action, -1, 1).astype(np.float32), self.at + 1
        done = bool(self.compute_terminated(self.place, self.goal, {}))
        return self.look(), float(self.compute_reward(self.place, self.goal, {})), done, self.at >= 20 and not done, {}

    def compute_reward(self, achieved_goal, desired_goal, info):
        return self.compute_terminated(achieved_goal, desired_goal, info) - 1.0

    def compute_terminated(self, achieved_goal, desired_goal, info):
        return np.linalg.norm(achieved_goal - desired_goal, axis=-1) < 0.15


def recipe_of(world: str = "Walk", lanes: int = 3, capacity: int = 10_000, **hindsight: Any) -> Any:
    return load("baselines/her_bitflip").with_settings({"remove": ["task.kwargs", "task.tells"]}).with_settings({
        "task.name": f"{HERE}:{world}", "steps": 12, "models.policy.hidden": [4],
        "evaluate.n": 0, "rollout.lanes": lanes, "buffer.capacity": capacity, "buffer.warmup": 0, "buffer.size": 200,
        "buffer.draws": 1,
        "buffer.hindsight": {"strategy": "future", "goals": 4.0, **hindsight},
    })  # fmt: skip


class History:
    """All rows of a run by episode, in order: what an open row said is said again as its lane goes on."""

    def __init__(self) -> None:
        self.achieved: dict[int, list[float]] = {}

    def take(self, batch: Batch) -> None:
        seen = batch["episode"].tolist(), batch["resumes"].tolist(), places(batch, "achieved_goal")
        for episode, again, place in zip(*seen, strict=True):
            if not again:
                self.achieved.setdefault(episode, []).append(place)


def drawn_along(recipe: Any) -> Iterator[tuple[Run, History, Batch]]:
    """A draw after each collection of a run, and all rows that were collected before."""
    history, hear = History(), Run.hear

    def heard(self: Any, event: Any) -> None:
        if isinstance(event, Collected):
            history.take(event.batch)
        hear(self, event)

    with patch.object(Run, "hear", heard), open_run(recipe) as run:
        buffer: Any = run.stage.learners["main"]
        for _ in loop(run):
            yield run, history, next(iter(buffer.buffer.draw(run.ctx)))


def places(batch: Batch, name: str) -> list[float]:
    return batch[f"context/{name}"][:, 0].tolist()


@pytest.mark.parametrize("lanes", [1, 3])
@pytest.mark.parametrize("capacity", [60, 10_000])
@pytest.mark.parametrize("strategy", ["future", "final", "episode"])
def test_goals_are_of_the_episode_and_rewards_the_environments_own(strategy: str, capacity: int, lanes: int) -> None:
    """The goal of a row tells where in its episode it was achieved, as no two places of an episode are alike."""
    changed = total = 0
    for run, history, batch in drawn_along(recipe_of(lanes=lanes, capacity=capacity, strategy=strategy)):
        ring, ahead = run.stage.learners["main"].buffer.state["ring"], batch.successors()
        goals = ring.arrays["context/desired_goal"][: ring.size, 0].tolist()
        was = dict(zip(ring.arrays["id"][: ring.size].tolist(), goals, strict=True))
        rows = zip(batch["id"].tolist(), batch["episode"].tolist(), places(batch, "achieved_goal"),
                   places(ahead, "achieved_goal"), places(batch, "desired_goal"), places(ahead, "desired_goal"),
                   batch["reward"][:, 0].tolist(), batch["reward/task"][:, 0].tolist(), strict=True)  # fmt: skip
        for key, episode, here, there, goal, goal_after, reward, task in rows:
            walked = history.achieved[episode]
            allowed = {"future": [x for x in walked if x > here], "final": walked[-1:], "episode": walked[1:]}[strategy]
            assert goal == goal_after and (goal == was[key] or goal in allowed)
            assert walked.index(there) == walked.index(here) + 1
            assert reward == task == (0.0 if there == goal else -1.0)
            changed += goal != was[key]
            total += 1
        assert torch.equal(batch["cont"], torch.ones(len(batch)))
    assert 0.6 < changed / total < 0.82  # 4 of 5, less those whose new goal is the old one


def fill(
    goals: float, strategy: str, size: int, lengths: tuple[int, ...] = (5,), world: Any = Walk
) -> tuple[Replay, Any]:
    """A buffer that holds one episode of each length, of places 0, 1, 2, .. from a hundred each, whose goal is -1."""
    buffer = Replay(capacity=100, size=size, hindsight=Hindsight(strategy, goals))  # type: ignore[arg-type]
    T = np.array(lengths)
    N, end = int((T + 1).sum()), np.cumsum(T + 1) - 1
    decides = ~np.isin(np.arange(N), end)
    place = np.concatenate([100 * i + np.arange(t + 1) for i, t in enumerate(lengths)])
    column = lambda x: torch.from_numpy(np.asarray(x, np.float32))[:, None]  # noqa: E731
    buffer.observe(Collected(Batch({
        "context/observation": column(place), "context/achieved_goal": column(place),
        "context/desired_goal": column(np.full(N, -1)), "action": torch.zeros(N, dtype=torch.long),
        "mask": torch.from_numpy(decides)[:, None], "logp": torch.zeros(N, 1), "reward": column(-1.0 * decides),
        "reward/task": column(-1.0 * decides), "cont": torch.from_numpy(np.where(decides, 1.0, 0.0)).float(),
        "child": torch.from_numpy(np.where(decides, np.arange(N) + 1, -1)), "id": torch.arange(N),
        "episode": torch.from_numpy(np.repeat(np.arange(len(T)), T + 1)),
    })))  # fmt: skip
    task = Gym(f"world/{__file__}:{world.__name__}")
    return buffer, testing.context(task=task, weights={"task": 1.0})


EXPECTED = {  # of the row at place 1 of an episode of 5 decisions: new goal -> how often
    "future": {2: 0.25, 3: 0.25, 4: 0.25, 5: 0.25},
    "final": {5: 1.0},
    "episode": {1: 0.2, 2: 0.2, 3: 0.2, 4: 0.2, 5: 0.2},
}


@pytest.mark.parametrize("strategy", EXPECTED)
def test_each_goal_comes_as_often_as_the_strategy_says(strategy: str) -> None:
    n = 40_000
    buffer, ctx = fill(3.0, strategy, n)
    batch = next(iter(buffer.draw(ctx)))
    at = Counter(zip(places(batch, "achieved_goal"), places(batch, "desired_goal"), strict=True))
    rows = sum(count for (here, _), count in at.items() if here == 1)
    assert abs(rows - n / 5) < 5 * (n * 0.16) ** 0.5
    shares = {-1: 0.25, **{goal: 0.75 * share for goal, share in EXPECTED[strategy].items()}}
    assert {goal for here, goal in at if here == 1} == shares.keys()
    chi = sum((at[1, goal] - rows * share) ** 2 / (rows * share) for goal, share in shares.items())
    assert chi < 25  # at most 5 degrees of freedom


def test_another_name_or_step_draws_other_goals_and_the_same_the_same() -> None:
    def goals(step: int, name: str = "replay") -> list[float]:
        buffer, ctx = fill(4.0, "future", 50)
        buffer.name, ctx.step = name, step
        return places(next(iter(buffer.draw(ctx))), "desired_goal")

    assert goals(3) == goals(3) != goals(4)
    assert goals(3) != goals(3, "other")


def test_ends_are_those_of_the_new_goal_where_the_environment_tells_them() -> None:
    """All rows have their own outcome for a goal (`final`, one decision), which ends the episode; without the function
    the recorded end stays."""
    for world, lengths, cont in ((Ends, (1, 3), 0.0), (Walk, (1, 3), None)):
        buffer, ctx = fill(1e9, "future", 400, lengths, world)
        batch = next(iter(buffer.draw(ctx)))
        ahead = batch.successors()
        hit = [a == g for a, g in zip(places(ahead, "achieved_goal"), places(batch, "desired_goal"), strict=True)]
        recorded = [place not in (1, 103) for place in places(ahead, "achieved_goal")]
        expected = [not h for h in hit] if cont is not None else recorded
        assert ahead["cont"].tolist() == [float(x) for x in expected] and 0 < sum(hit) < 400
        assert batch["reward"][:, 0].tolist() == [0.0 if h else -1.0 for h in hit]


def test_what_comes_of_several_decisions_is_of_one_goal() -> None:
    buffer, ctx = fill(1e9, "final", 300, (5, 2))
    buffer.hindsight.ahead = 3
    batch = next(iter(buffer.draw(ctx)))
    value = torch.full((300,), 7.0)
    target = td_target(batch, batch.successors(3), value, 0.5, 3)
    # the final goal is 5, or 102: -1 until it is reached, and nothing after the end, which was recorded as one
    by_place = {0: -1.75 + 7 / 8, 1: -1.75 + 7 / 8, 2: -1.5, 3: -1.0, 4: 0.0, 100: -1.0, 101: 0.0}
    assert target.tolist() == [by_place[int(p)] for p in places(batch, "achieved_goal")]
    buffer.hindsight.ahead = 1
    with pytest.raises(ValueError, match=r"or hindsight of a replay, .*set its ahead = 3"):
        next(iter(buffer.draw(ctx))).successors(3)


def test_weights_of_a_draw_by_priority_stay_with_its_rows() -> None:
    buffer, ctx = fill(1.0, "future", 64)
    buffer.by, buffer.beta = "reward", 0.5
    with_goals = next(iter(buffer.draw(ctx)))
    buffer.hindsight = None
    plain = next(iter(buffer.draw(ctx)))
    assert torch.equal(with_goals.weight("rl"), plain.weight("rl"))
    assert torch.equal(with_goals["id"], plain["id"]) and torch.equal(with_goals["cont"], plain["cont"])


def test_a_function_of_one_goal_is_asked_row_by_row() -> None:
    achieved, goal = np.array([[1.0, 2], [3, 4], [0, 0]]), np.array([[1.0, 2], [0, 0], [0, 1]])
    together = lambda a, g, info: -(np.linalg.norm(a - g, axis=-1) > 0.1).astype(float)  # noqa: E731
    alone = lambda a, g, info: -float(np.linalg.norm(a - g) > 0.1)  # noqa: E731
    for function in (together, alone, lambda a, g, info: -float((a != g).any()) if a.ndim == 1 else 1 / 0):
        assert ask_rows(function, achieved, goal, "compute_reward").tolist() == [0, -1, -1]
    with pytest.raises(KeyError) as told:
        ask_rows(lambda a, g, info: info["speed"], achieved, goal, "compute_reward")
    assert "compute_reward, asked for goals in hindsight with an empty info" in told.value.__notes__[0]
    with pytest.raises(ValueError, match="compute_reward gave nan"):
        ask_rows(lambda a, g, info: np.full(len(a), np.nan), achieved, goal, "compute_reward")


def test_what_has_no_goals_is_refused_in_words() -> None:
    bare = Replay(hindsight=Hindsight())
    for task, told in (
        (Gym("CartPole-v1"), r"observations are no Dict: expected a Dict of .*'observation' is missing"),
        (Gym(f"world/{__file__}:Walk", wrappers=({"use": "gymnasium.Wrapper"},)), "task.wrappers hide it"),
    ):
        with pytest.raises(ValueError, match=told):
            next(iter(bare.draw(testing.context(task=task))), None)
    buffer, ctx = fill(4.0, "future", 8)
    ctx.weights = {"task": 0.5}
    with pytest.raises(ValueError, match=r"is \[-1.0\], and \[reward.weights\] give \[-0.5\]: a transform"):
        next(iter(buffer.draw(ctx)))
    buffer.hindsight = Hindsight(reward="dense")
    with pytest.raises(ValueError, match="reward is 'dense', and the stored ones are task"):
        next(iter(buffer.draw(ctx)))


def test_a_resumed_run_goes_on_with_the_same_goals(tmp_path: Any) -> None:
    recipe = recipe_of("Ends", lanes=2, capacity=90).with_settings({"steps": 8})
    whole = list(train(recipe, tmp_path / "a"))
    part = train(recipe, tmp_path / "b")
    for _ in range(5):
        next(part)
    part.close()
    rest = list(train(recipe, tmp_path / "b"))
    keys = [k for k in whole[-1] if k.startswith(("policy/", "rollout/"))]
    assert len(rest) == 3 and [[r[k] for k in keys] for r in rest] == [[r[k] for k in keys] for r in whole[5:]]


SMALL = {"env_steps": 4_000, "evaluate.every": 0, "buffer.draws": 6}


def test_bits_are_flipped_to_the_goal_with_it_and_not_without() -> None:
    """The paper's figure 1, smaller. Training takes seconds a side."""

    def success(**settings: Any) -> float:
        recipe = load("baselines/her_bitflip").with_settings({**SMALL, **settings})
        with open_run(recipe) as run:
            list(loop(run))
            return run.scores.values["greedy.is_success"]

    assert success() > 0.8 > 0.3 > success(remove=["buffer.hindsight"])


def test_a_point_reaches_its_goals_sooner_with_it() -> None:
    """SAC with a Box of actions, after 2,000 decisions; -20 is never to arrive. Training takes seconds a side."""

    def value(**settings: Any) -> float:
        see = ["observation", "desired_goal"]
        recipe = load("baselines/sac_pendulum").with_settings({
            "task.name": f"{HERE}:Reach", "env_steps": 2000, "buffer.warmup": 500, "rollout.random": 500,
            "evaluate.n": 50, "models.policy.see": see, "models.critic.see": see,
            "part.critic.terms.soft_td.gamma": 0.95, "part.temperature.terms.temperature.target_entropy": -2.0,
            **settings,
        })  # fmt: skip
        with open_run(recipe) as run:
            list(loop(run))
            return run.scores.values["greedy"]

    assert value(**{"buffer.hindsight": {"goals": 4.0}}) > -15 > -17 > value()
