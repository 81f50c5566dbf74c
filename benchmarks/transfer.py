"""Returns of policies of every context in every context, on which rules for choosing contexts are replayed.

    python benchmarks/transfer.py 0-5 1008-1019    # adds these seeds to what is stored, half a minute each

Each context of `curriculum/mbtl` is trained in as that study would, by the library. What a policy reaches is measured
apart from it, all policies in all contexts at once: the likeliest action in EPISODES episodes to choose by and in as
many others, in Gymnasium's vectorised CartPole, whose pole lengths are those of the contexts, lane by lane. Policies
are linear, so that one product is all of them. Stored: the share of 500 steps that the pole stood, to four digits.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import time
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import HERE, machine
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv

from shuhari.config.recipe import Recipe, load
from shuhari.loop.run import loop, open_run

RECIPE, EPISODES, STEPS = "curriculum/mbtl", 16, 500
STORE = HERE.parent / "src" / "shuhari" / "methods" / "curriculum" / "mbtl" / "transfer_cartpole.json"


def trained(recipe: Recipe, settings: dict[str, float]) -> np.ndarray:
    """[5] what decides between the two actions, a weight of each observation and a bias, after a training."""
    run = open_run(recipe.with_settings(settings))
    for _ in loop(run):
        pass
    weight, bias = (p.detach().numpy() for p in run.ctx.models["policy"].module.parameters())
    return np.append(weight[1] - weight[0], bias[1] - bias[0])


def measured(policies: np.ndarray, lengths: np.ndarray, seed: int) -> np.ndarray:
    """[2, n, n] the share of STEPS that policy a [n, 5] stands in the pole lengths b [n]: of episodes that choose, and
    of others. The same starts for all pairs."""
    n = len(lengths)
    shape = (2, n, n, EPISODES)  # which episodes, policy, context, episode
    env = CartPoleVectorEnv(num_envs=2 * n * n * EPISODES, max_episode_steps=STEPS)
    env.reset(seed=seed)
    env.length = np.broadcast_to(lengths[:, None], shape).ravel()
    env.polemass_length = env.masspole * env.length
    starts = np.random.default_rng(seed).uniform(env.low, env.high, (4, 2, 1, 1, EPISODES))
    env.state = np.broadcast_to(starts, (4, *shape)).reshape(4, -1).copy()
    weights = np.broadcast_to(policies.T[:, None, :, None, None], (5, *shape)).reshape(5, -1)
    stood, up = np.zeros(env.num_envs), np.ones(env.num_envs, bool)
    while up.any():
        seen = env.state.astype(np.float32)
        *_, fallen, over, _ = env.step(((weights[:4] * seen).sum(0) + weights[4] > 0).astype(np.int64))
        stood += up
        up &= ~(fallen | over)
    return (stood / STEPS).reshape(shape).mean(-1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("seeds", nargs="+", help="such as 3 or 1008-1019")
    parser.add_argument("--out", type=Path, default=STORE)
    args = parser.parse_args()
    torch.set_num_threads(1)
    whole = load(RECIPE)
    contexts: dict[str, Any] = {k: list(v) for k, v in whole.tree["study"]["contexts"].items()}
    recipe = Recipe(whole.name, {k: v for k, v in whole.tree.items() if k not in ("study", "claim")}, whole.sources)
    lengths = np.array(contexts["task.attributes.length"])
    table = {"recipe": RECIPE, "env_steps": whole.tree["env_steps"], "contexts": contexts}
    table |= {"episodes": EPISODES, "steps": STEPS}
    empty = {**table, "seeds": [], "made": [], "choose": [], "held": []}
    there = json.loads(args.out.read_text()) if args.out.is_file() else empty
    if changed := [key for key in table if table[key] != there[key]]:
        raise SystemExit(f"{args.out} was made with another {changed[0]}: give another --out")
    for seed in [s for part in args.seeds for s in numbers(part)]:
        began, run = time.process_time(), recipe.with_settings({"seed": seed, "evaluate.n": 0})
        policies = [trained(run, {key: values[a] for key, values in contexts.items()}) for a in range(len(lengths))]
        both = measured(np.array(policies), lengths, seed).round(4).tolist()
        made = {"cpu_s": round(time.process_time() - began), "date": date.today().isoformat(), "machine": machine(1)}
        for key, value in zip(("seeds", "made", "choose", "held"), (seed, made, *both), strict=True):
            there[key].append(value)
        text = json.dumps(there, separators=(",", ":")) + "\n"
        args.out.write_text(text, encoding="utf-8")  # after each: what was made stays
        print(f"seed {seed}: digest {hashlib.blake2b(text.encode(), digest_size=8).hexdigest()}", flush=True)


def numbers(part: str) -> range:
    first, _, last = part.partition("-")
    return range(int(first), int(last or first) + 1)


if __name__ == "__main__":
    main()
