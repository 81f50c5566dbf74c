"""Cards of the worlds: what chance, an untrained policy of a baseline and the expert, or the best policy, get of a task
as its recipe sets it. Those that are played by acting, whose return is success, are played; of tables, mixtures and
strings it is worked out. Bands leave room for learning above the start."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from shuhari.config.recipe import load
from shuhari.data import Array, Problem, Step
from shuhari.loop.run import train
from shuhari.models.tabular import Tabular
from shuhari.store import Run
from shuhari.tasks.clusters import Clusters
from shuhari.tasks.gym import Gym
from shuhari.tasks.strings import LETTERS, Strings
from shuhari.tasks.worlds.cmdp import Cmdp, solve
from shuhari.tasks.worlds.lock import Lock
from shuhari.tasks.worlds.riverswim import RiverSwim
from shuhari.tasks.worlds.sticky_maze import StickyMaze
from spoken import said

EPISODES = 60
CARDS = {  # baseline -> the most that chance gets, the most at the start, the least of the expert
    "rlpd_point": (0.15, 0.15, 1.0),
    "sac_merge": (0.15, 0.15, 0.95),
    "flow_bc_insert": (0.05, 0.05, 0.95),
}
SHORT = {"rlpd_point": {"env_steps": 50}, "sac_merge": {"env_steps": 50}, "flow_bc_insert": {"steps": 1}}


def task_of(recipe: str) -> Gym:
    given = load(recipe).tree["task"]
    return Gym(given["name"].removeprefix("gym/"), **{k: v for k, v in given.items() if k != "name"})


def play(task: Gym, act: Any) -> float:
    """The mean return of held-out episodes."""
    rng, total = np.random.default_rng(0), 0.0
    problems = task.problems("test")
    for i in range(EPISODES):
        episode = task.environment(problems[i])
        seen, status = episode.reset(problems[i]), None
        while status is None:
            seen, reward, status = episode.step(act(seen, rng))
            total += reward["task"]
    return total / EPISODES


@pytest.mark.parametrize("base", CARDS)
def test_chance_start_and_expert(base: str, tmp_path: Path) -> None:
    recipe = load(f"baselines/{base}")
    chance, start, best = CARDS[base]
    task = task_of(f"baselines/{base}")
    assert play(task, lambda _, rng: rng.uniform(-1, 1, 2).astype(np.float32)) <= chance
    assert play(task, task.expert) >= best
    list(train(recipe.with_settings({**SHORT[base], "evaluate.n": EPISODES}), tmp_path / "run"))
    summary = Run(tmp_path / "run").summary
    assert summary is not None and summary["before"]["greedy"] <= start


def settle(p: Array, r: Array, policy: Array) -> float:
    """The mean reward a step of a policy [S, A] that goes on for ever, whose places all lead to each other's."""
    S = len(r)
    flow = np.einsum("sa,sax->sx", policy, p)
    stays = np.linalg.lstsq(np.vstack([flow.T - np.eye(S), np.ones(S)]), np.r_[np.zeros(S), 1.0], rcond=None)[0]
    return float(stays @ (policy * r).sum(1))


def walk(p: Array, r: Array, first: Array, policy: Array) -> float:
    """The expected return of a policy [T, P, A] that begins at the places with the chances `first`. p [T, P, A, P]."""
    total = 0.0
    for t in range(len(policy)):
        does = first[:, None] * policy[t]
        total += float((does * r[t]).sum())
        first = np.einsum("sa,sax->x", does, p[t])
    return total


def worth(world: Any, policy: Array) -> tuple[float, float]:
    """(what a policy [S, A] is worth, the best there is)"""
    if isinstance(world, RiverSwim):
        every = [settle(world.p, world.r, np.eye(2)[[*does]]) for does in product((0, 1), repeat=world.states)]
        assert world.gain == pytest.approx(max(every), abs=1e-6)
        return settle(world.p, world.r, policy), world.gain
    if isinstance(world, Cmdp):
        T, S = world.limit, world.states
        p, r = np.stack([world.p] * T), np.stack([world.r] * T)
        start = np.full(S, 1 / S)
        best, _ = solve(world.p, world.r, world.c, start, T, 1e9)
        return walk(p, r, start, np.stack([policy] * T)), best
    if isinstance(world, Lock):
        by_step = policy.reshape(world.horizon + 1, world.places, -1)[:-1]
        return walk(world.p, world.r, np.array([0.5, 0.5, 0.0]), by_step), world.best
    assert isinstance(world, StickyMaze)
    T, P = world.horizon, world.places
    p, r = np.stack([world.p] * T), np.stack([world.r] * T)
    value = np.zeros(P)
    for _ in range(T):
        value = (world.r + world.p @ value).max(1)
    return walk(p, r, np.eye(P)[world.first], policy.reshape(T + 1, P, -1)[:-1]), float(value[world.first])


TABLES = {  # recipe -> (chance, the best), where they are known by hand; the most that chance gets of the best
    "baselines/lsvi_lock": (4**-8 + 0.1 * (1 - 4**-8), 1.0, 0.11),  # it falls once, or never
    "baselines/ucrl2_riverswim": (None, None, 0.01),
    "baselines/ppo_cmdp": (None, None, 0.6),
    "theory/sqirl": (None, None, 0.2),
}


@pytest.mark.parametrize("recipe", TABLES)
def test_chance_start_and_the_best_of_tables(recipe: str) -> None:
    by_hand, by_hand_best, most = TABLES[recipe]
    task, policy = task_of(recipe), Tabular()
    assert load(recipe).tree["models"]["policy"]["use"] == "tabular"
    world: Any = task.make().unwrapped
    S, A = (int(space.n) for space in task.spaces())  # type: ignore[attr-defined]
    chance, best = worth(world, np.full((S, A), 1 / A))
    assert 0 < chance <= most * best
    assert isinstance(world, Cmdp) or best <= 1 + 1e-9  # the others pay 1 once, or 1 a step
    if by_hand is not None:
        assert chance == pytest.approx(by_hand) and best == pytest.approx(by_hand_best)
    policy.build(task)
    with torch.no_grad():
        untrained = policy.decide(torch.arange(S))["logits"].double().softmax(1).numpy()
    assert worth(world, untrained)[0] == pytest.approx(chance)


def test_the_expert_of_the_lock_opens_it_each_time() -> None:
    task = task_of("baselines/lsvi_lock")
    assert play(task, task.expert) == 1.0
    assert play(task, lambda _, rng: int(rng.integers(4))) == pytest.approx(0.1)  # the lure, in all of these episodes


def test_chance_data_and_the_best_of_clusters() -> None:
    """A policy is taught the data first: there it starts. Chance: a normal point of deviation 1, as one that denoises
    begins with, whose score is in closed form too."""
    task = Clusters()
    source, rng = task.problems("test"), np.random.default_rng(0)
    prompts = [np.asarray(source[i].prompt, np.float64) for i in range(128)]
    wide = task.reach**2 + 1
    chance = np.mean([task.reach**2 / wide * np.exp(-(task.goal(x) ** 2).sum() / (2 * wide)) for x in prompts])
    start, *tilted = (float(np.mean([task.expected(x, strength) for x in prompts])) for strength in (0.0, 1.0, 64.0))
    assert chance < start < 0.3 and start < tilted[0] < 0.7 and tilted[1] > 0.95

    pairs = [*enumerate(prompts)] * 20

    def score(act: Any) -> float:
        return float(np.mean([task.grade(source[i], [Step.of(x, act(x))])["score"] for i, x in pairs]))

    # within four standard deviations of a mean of 2,560 numbers in [0, 1]
    assert score(lambda x: task.expert(x, rng)) == pytest.approx(start, abs=4 * 0.5 / 2560**0.5)
    assert score(lambda _: rng.normal(size=2)) == pytest.approx(chance, abs=4 * 0.5 / 2560**0.5)
    assert score(task.goal) == 1.0


def test_chance_demonstrations_and_the_best_of_strings() -> None:
    """Of all strings one is right. A demonstration of n steps is right where each letter ends as it should: slipped
    letters may slip back, of four letters by the chance 1/4 + 3/4 (1 - 4/3 slip)^n each."""
    given = {k: v for k, v in load("analysis/composition").tree["task"].items() if k not in ("name", "replace")}
    task = Strings(**{**given, "shares": tuple(given["shares"])})
    source = task.problems("test")
    for problem in (source[i] for i in range(6)):
        every = ["".join(letters) for letters in product(LETTERS, repeat=task.length)]
        assert sum(task.grade(problem, said(f"...{x}"))["score"] for x in every) == 1.0  # chance: 4^-4
        assert task.grade(problem, said(str(problem.answer))) == {"score": 1.0}

    def shown(problem: Problem) -> float:
        return float(task.grade(problem, said(str(problem.solution)))["score"])

    task = Strings(**{**given, "shares": (1.0, 1.0, 1.0), "on": 1.0, "slip": 0.1})
    train = task.problems("train")
    right: dict[int, list[float]] = {1: [], 2: [], 3: []}
    for i in range(1500):
        right[train[i].info["level"]].append(shown(train[i]))
    for n, scores in right.items():
        wanted = (0.25 + 0.75 * (1 - 4 / 3 * 0.1) ** n) ** task.length
        assert np.mean(scores) == pytest.approx(wanted, abs=4 * (wanted * (1 - wanted) / len(scores)) ** 0.5)
