"""Lanes that are stepped together beside the same lanes stepped one by one (docs/environments.md).

    python benchmarks/lanes.py           writes results/lanes.json and the table of more.md
    python benchmarks/lanes.py --quick   a look, which writes nothing
    python benchmarks/lanes.py --few     `steps` of 6 to 24 lanes of the world `point` alone: results/lanes_few.json

Environment steps a second of processor time of 64 lanes, on one thread: `steps`, of random actions; `collect`, of the
vector rollout with an MLP policy of the library's usual size; `train`, a PPO run, evaluation left out. The sides
alternate, who goes first too; a ratio is the median of those of the repeats. They give the same bits
(tests/rollouts/vector/test_together.py).
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from common import machine, publish, spread, table, write

from shuhari import testing
from shuhari.config import recipe
from shuhari.loop.run import loop, open_run
from shuhari.models.categorical import CategoricalPolicy
from shuhari.models.gaussian import GaussianPolicy
from shuhari.rollouts.vector.lanes import Inline, allocate
from shuhari.rollouts.vector.vector import VectorRollout
from shuhari.tasks.gym import Gym

LANES = 64
FEW = 6, 8, 10, 12, 16, 24
WORLDS: dict[str, dict[str, Any]] = {
    "point": {}, "point, noise and hazards": {"noise": 0.05, "hazards": ((2.0, 2.0, 1.0),)}, "insert": {}, "merge": {},
    "cmdp": {}, "riverswim": {}}  # fmt: skip
PPO: dict[str, Any] = {"remove": ["evaluate"], "rollout.lanes": LANES, "buffer.size": 4096,
                       "part.policy.minibatches": 16}  # fmt: skip
TRAINED = {  # world -> recipe, settings
    "point": ("baselines/ppo_pendulum", {**PPO, "remove": ["evaluate", "task"], "task": {"name": "gym/world/point"}}),
    "merge": ("baselines/ppo_pendulum", {**PPO, "remove": ["evaluate", "task"], "task": {"name": "gym/world/merge"}}),
    "cmdp": ("baselines/ppo_cmdp", {"remove": ["evaluate"], "rollout.lanes": LANES, "buffer.size": 2560}),
}  # fmt: skip
Side = Callable[[], float]  # environment steps a second


def step(world: str, rows: int, lanes: int = LANES) -> Side:
    task = Gym(f"world/{world.partition(',')[0]}", WORLDS[world])
    space, does = task.spaces()
    actor, seen, reward = Inline(task.make, range(lanes)), allocate(space, lanes), np.zeros(lanes)
    actor.start(range(lanes), seen)
    does.seed(0)
    drawn = [[does.sample() for _ in range(lanes)] for _ in range(32)]
    actions: list[Any] = [np.stack(x) if does.shape else [int(a) for a in x] for x in drawn]
    fresh: dict[int, Any] = {}

    def run() -> float:
        nonlocal fresh
        began = time.process_time()
        for t in range(rows):
            actor.post(slice(0, lanes), actions[t % len(actions)], fresh)
            fresh = {i: None for i, _ in actor.poll(slice(0, lanes), seen, reward, {})}
        return rows * lanes / (time.process_time() - began)

    run()  # the first observations of each are held against their bounds
    return run


def collect(world: str, rows: int) -> Side:
    task: Any = Gym(f"world/{world.partition(',')[0]}", WORLDS[world])
    model: Any = (GaussianPolicy if task.spaces()[1].shape else CategoricalPolicy)()
    model.build(task)
    ctx, rollout = testing.context(models={"policy": model}), VectorRollout(lanes=LANES)
    rollout.open(task, 0)

    def run() -> float:
        began = time.process_time()
        rollout.collect(rows * LANES, ctx)
        return rows * LANES / (time.process_time() - began)

    run()
    return run


def train(world: str, rows: int) -> Side:
    base, settings = TRAINED[world]

    def run() -> float:
        began = time.process_time()
        with open_run(recipe.load(base, settings={**settings, "env_steps": rows * LANES})) as made:
            spent = [r["spent/env_steps"] for r in loop(made)][-1]
        return float(spent) / (time.process_time() - began)

    return run


def compare(make: Callable[[str, int], Side], world: str, rows: int, repeats: int) -> dict[str, Any]:
    sides = {}
    for name, few in (("alone", LANES + 1), ("together", 1)):
        Inline.few, kept = few, Inline.few
        sides[name] = few, make(world, rows)
        Inline.few = kept
    found: dict[str, list[float]] = {name: [] for name in sides}
    for i in range(repeats):
        for name in list(sides)[:: 1 if i % 2 == 0 else -1]:
            few, run = sides[name]
            Inline.few, kept = few, Inline.few
            found[name].append(run())
            Inline.few = kept
    ratios = [b / a for a, b in zip(found["alone"], found["together"], strict=True)]
    name = getattr(make, "__name__", "few")
    print(f"{name} {world}: {statistics.median(found['together']):,.0f} steps/s, {spread(ratios)}", flush=True)
    return {name: spread(x) for name, x in found.items()} | {"ratio": spread(ratios)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a look, which writes nothing")
    parser.add_argument("--few", action="store_true", help="few lanes of one world alone")
    asked = parser.parse_args()
    quick = asked.quick
    torch.set_num_threads(1)
    torch.manual_seed(0)
    repeats = 3 if quick else 9
    if asked.few:
        few = {lanes: compare(partial(step, lanes=lanes), "point", 20_000 // lanes, repeats) for lanes in FEW}
        if not quick:
            write("lanes_few", {"machine": machine(1), "repeats": repeats, "lanes": few})
            rows = [[str(lanes), _show(x)] for lanes, x in few.items()]
            publish("lanes_few", table(["lanes of `point`", "random actions"], *rows))
        return
    found = {world: {"steps": compare(step, world, 200, repeats), "collect": compare(collect, world, 200, repeats)}
             for world in WORLDS}  # fmt: skip
    for world in TRAINED:
        found[world]["train"] = compare(train, world, 200 if quick else 640, 1 if quick else 5)
    if quick:
        return
    write("lanes", {"machine": machine(1), "lanes": LANES, "repeats": repeats, "worlds": found})
    rows = [[f"`{world}`", *(_show(x[what]) if what in x else "-" for what in ("steps", "collect", "train"))]
            for world, x in found.items()]  # fmt: skip
    publish("lanes", table(["world", "random actions", "an MLP policy", "a PPO run"], *rows))


def _show(x: dict[str, Any]) -> str:
    alone, together, ratio = x["alone"]["median"], x["together"]["median"], x["ratio"]
    return f"{alone:,.0f} → {together:,.0f} ({ratio['median']:.1f}x; {ratio['min']:.1f} to {ratio['max']:.1f})"


if __name__ == "__main__":
    main()
