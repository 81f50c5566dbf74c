"""Our goals in hindsight beside Stable-Baselines3's HerReplayBuffer, from the same episodes with `future` and four new
goals for each recorded one: how many rows get a goal, which goals, how often each, their rewards and ends.

Axes: `N` drawn rows, `L` decisions of an episode, `k` pairs of a row and its new goal.
"""

from __future__ import annotations

from collections import Counter

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3.common.vec_env import DummyVecEnv
from stable_baselines3.her import HerReplayBuffer

from shuhari import testing
from shuhari.batch import Batch
from shuhari.buffers.hindsight import Hindsight
from shuhari.buffers.replay import Replay
from shuhari.events import Collected
from shuhari.tasks.gym import Gym

LENGTHS, CUT, N = (1, 7, 4, 12), 3, 200_000  # the episode CUT was truncated, all others ended
DEVIATIONS = 5


class Line(gymnasium.Env):
    """Places on a line, no two of them alike, so that a goal tells where it was achieved."""

    place = spaces.Box(-1e6, 1e6, (1,), np.float32)
    observation_space = spaces.Dict(observation=place, achieved_goal=place, desired_goal=place)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        return self.observation_space.sample(), 0.0, True, False, {}

    def compute_reward(self, achieved_goal, desired_goal, info):
        return -np.abs(achieved_goal - desired_goal)[..., 0] ** 0.5


def list_places():
    """[L + 1] the places of each episode, and its goal, which no place is."""
    return [(np.float32(100 * i) + np.arange(n + 1, dtype=np.float32) ** 1.5, -1.0 - i) for i, n in enumerate(LENGTHS)]


def pay(place, goal):
    return Line().compute_reward(np.float32([place]), np.float32([goal]), {})


def draw_theirs(unfinished=False):
    env = DummyVecEnv([Line])
    buffer = HerReplayBuffer(100, env.observation_space, env.action_space, env, device="cpu", n_sampled_goal=4,
                             goal_selection_strategy="future")  # fmt: skip
    for i, (places, goal) in enumerate(list_places()):
        seen = [{"observation": x, "achieved_goal": x, "desired_goal": np.float32([[goal]])}
                for x in places[:, None, None]]  # fmt: skip
        for t in range(LENGTHS[i]):
            done = t == LENGTHS[i] - 1 and not (unfinished and i == CUT)
            infos = [{"TimeLimit.truncated": done and i == CUT}]
            reward = np.array([pay(places[t + 1], goal)])
            buffer.add(seen[t], seen[t + 1], np.zeros((1, 1)), reward, np.array([done]), infos)
    np.random.seed(0)  # noqa: NPY002 (theirs draws from it)
    found = buffer.sample(N)
    after = found.next_observations
    assert torch.equal(found.observations["desired_goal"], after["desired_goal"])
    columns = found.observations["achieved_goal"], after["achieved_goal"], after["desired_goal"]
    return [x.flatten().tolist() for x in (*columns, found.rewards, found.dones)]


def draw_ours():
    """An episode that goes on is stored as one that was truncated: its last row may have any value."""
    L = np.array(LENGTHS) + 1
    rows, end = np.arange(L.sum()), np.repeat(np.cumsum(L) - 1, L)
    decides, episode = rows < end, np.repeat(np.arange(len(L)), L)
    place, goal = np.concatenate([x for x, _ in list_places()]), np.repeat([g for _, g in list_places()], L)
    paid = [pay(place[i + 1], goal[i]) if decides[i] else 0.0 for i in rows]
    column = lambda x: torch.from_numpy(np.asarray(x, np.float32))[:, None]  # noqa: E731
    buffer = Replay(capacity=100, size=N, hindsight=Hindsight("future", 4))
    buffer.observe(Collected(Batch({
        "context/observation": column(place), "context/achieved_goal": column(place),
        "context/desired_goal": column(goal), "action": torch.zeros(len(rows), dtype=torch.long),
        "mask": torch.from_numpy(decides)[:, None], "logp": torch.zeros(len(rows), 1), "reward": column(paid),
        "reward/task": column(paid), "cont": column(decides | (episode == CUT))[:, 0], "id": torch.from_numpy(rows),
        "child": torch.from_numpy(np.where(decides, rows + 1, -1)), "episode": torch.from_numpy(episode),
    })))  # fmt: skip
    ctx = testing.context(task=Gym(f"world/{__file__}:Line"), weights={"task": 1.0})
    batch = next(iter(buffer.draw(ctx)))
    ahead = batch.successors()
    assert torch.equal(batch["context/desired_goal"], ahead["context/desired_goal"])
    assert torch.equal(batch["reward"], batch["reward/task"])
    columns = batch["context/achieved_goal"], ahead["context/achieved_goal"], batch["context/desired_goal"]
    return [x.flatten().tolist() for x in (*columns, batch["reward"], 1 - ahead["cont"])]


@pytest.fixture(scope="module")
def sides():
    return {"ours": draw_ours(), "theirs": draw_theirs()}


def count_new(side):
    """(place, new goal) -> how often it was drawn."""
    return Counter((here, goal) for here, _, goal, _, _ in zip(*side, strict=True) if goal >= 0)


def list_chances():
    """(place, new goal) -> its chance among rows with a new goal: rows alike, then all that is achieved after the
    decision alike, its own outcome included."""
    out = {}
    for places, _ in list_places():
        for t in range(len(places) - 1):
            after = places[t + 1 :]
            out |= {(float(places[t]), float(x)): 1 / sum(LENGTHS) / len(after) for x in after}
    return out


def test_four_of_five_rows_get_a_new_goal(sides):
    """Theirs cuts each batch there; ours asks chance for each row, so that the share of N has a deviation of
    sqrt(0.8 · 0.2 / N)."""
    share = {who: count_new(side).total() / N for who, side in sides.items()}
    assert share["theirs"] == 0.8
    assert abs(share["ours"] - 0.8) < DEVIATIONS * (0.8 * 0.2 / N) ** 0.5


def test_new_goals_are_what_the_same_episode_achieved_after_the_decision(sides):
    """All of it, and nothing else, on both sides. The rarest pair is expected 555 times."""
    allowed = list_chances().keys()
    assert count_new(sides["ours"]).keys() == count_new(sides["theirs"]).keys() == allowed


def test_each_distance_to_a_goal_comes_as_often(sides):
    """Pearson's statistic over the k pairs, of each side against the chances, and of the sides against each other: if
    they agree, it is about chi-squared of k - 1 degrees of freedom, with mean k - 1 and variance 2 (k - 1). Then also
    over the distances alone."""
    row = {float(x): i for i, x in enumerate(np.concatenate([places for places, _ in list_places()]))}
    counts = [count_new(sides["ours"]), count_new(sides["theirs"])]
    for key in (lambda pair: pair, lambda pair: row[pair[1]] - row[pair[0]]):
        chance, ours, theirs = (merge_counts(x, key) for x in (list_chances(), *counts))
        most = len(chance) - 1 + DEVIATIONS * (2 * (len(chance) - 1)) ** 0.5
        for found in (ours, theirs):
            n = found.total()
            assert sum((found[x] - n * p) ** 2 / (n * p) for x, p in chance.items()) < most
        ratio = (theirs.total() / ours.total()) ** 0.5
        assert sum((ratio * ours[x] - theirs[x] / ratio) ** 2 / (ours[x] + theirs[x]) for x in chance) < most


def merge_counts(counts, key):
    out = Counter()
    for x, n in counts.items():
        out[key(x)] += n
    return out


def test_rewards_and_ends_are_the_same(sides):
    """Of every row and goal, the reward in single precision. The environment does not say when a goal ends an episode,
    so the recorded ends stay."""
    ours, theirs = ({(here, goal): (there, paid, end) for here, there, goal, paid, end in zip(*side, strict=True)}
                    for side in (sides["ours"], sides["theirs"]))  # fmt: skip
    assert ours == theirs
    for (_, goal), (there, paid, _) in ours.items():
        assert paid == np.float32(pay(there, goal))
    last = {float(places[-1]) for i, (places, _) in enumerate(list_places()) if i != CUT}
    assert {there for there, _, end in ours.values() if end} == last


def test_rows_of_an_episode_that_goes_on_are_drawn_here_alone():
    """With the goals that it has reached so far; theirs waits for its end."""
    begun = [float(x) for x in list_places()[CUT][0]]
    here, *_ = draw_theirs(unfinished=True)
    assert not set(begun) & set(here)
    assert set(begun[:-1]) <= set(draw_ours()[0])
