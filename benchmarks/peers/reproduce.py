"""The runs of Stable-Baselines3 that `shuhari reproduce` shows beside ours: same settings, same environments and steps.

    benchmarks/.peers/bin/python benchmarks/peers/reproduce.py sac-hopper td3-hopper --seeds 3
    benchmarks/.peers/bin/python benchmarks/peers/reproduce.py all

Each seed trains for 100,000 steps on one thread; the last policy plays 20 episodes without noise. What a result file
has already is not trained again. Writes `peer` of results/reproduce/NAME.json: `by`, `version`, and `runs` like ours.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

OUT = Path(__file__).resolve().parents[2] / "results" / "reproduce"
STEPS, EPISODES, EVERY = 100_000, 20, 1_000
CASES = {
    f"{method}-{name}": (method, env)
    for method in ("sac", "td3")
    for name, env in {"hopper": "Hopper-v4", "halfcheetah": "HalfCheetah-v4"}.items()
}


def train(method: str, env: str, seed: int) -> dict[str, Any]:
    """One run: `seed`, `value`, `curve` [[steps, mean return of the last 100 episodes], ...], `wall_s`, `cpu_s`."""
    import numpy as np
    import torch
    from stable_baselines3 import SAC, TD3
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.noise import NormalActionNoise

    torch.set_num_threads(1)
    envs = make_vec_env(env, n_envs=1, seed=seed)
    curve: list[list[float]] = []

    class Record(BaseCallback):
        def _on_step(self) -> bool:
            ended = self.model.ep_info_buffer
            if self.num_timesteps % EVERY == 0 and ended:
                curve.append([self.num_timesteps, float(f"{np.mean([e['r'] for e in ended]):.6g}")])
            return True

    common: dict[str, Any] = {"learning_starts": 10_000, "batch_size": 256, "buffer_size": 1_000_000, "seed": seed,
                              "train_freq": 1, "gradient_steps": 1, "device": "cpu"}  # fmt: skip
    if method == "sac":
        model: Any = SAC("MlpPolicy", envs, learning_rate=3e-4, **common)
    else:
        n = int(envs.action_space.shape[0])
        model = TD3("MlpPolicy", envs, learning_rate=1e-3, policy_kwargs={"net_arch": [256, 256]},
                    action_noise=NormalActionNoise(np.zeros(n), 0.1 * np.ones(n)), **common)  # fmt: skip
    wall, cpu = time.monotonic(), time.process_time()
    model.learn(STEPS, callback=Record(), log_interval=None)
    spent = {"wall_s": round(time.monotonic() - wall, 1), "cpu_s": round(time.process_time() - cpu, 1)}
    value = evaluate_policy(model, make_vec_env(env, n_envs=1, seed=50_000 + seed), EPISODES, deterministic=True)[0]
    return {"seed": seed, "value": float(f"{value:.6g}"), "curve": curve, **spent}


def main() -> None:
    import stable_baselines3

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="+", choices=[*CASES, "all"])
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    OUT.mkdir(parents=True, exist_ok=True)
    for name in CASES if "all" in given.names else given.names:
        file = OUT / f"{name}.json"
        for seed in range(given.seeds):
            kept = json.loads(file.read_text()) if file.is_file() else {"format": 1, "name": name, "runs": []}
            peer = kept.get("peer") or {"by": "Stable-Baselines3", "version": stable_baselines3.__version__, "runs": []}
            if any(run["seed"] == seed for run in peer["runs"]):
                continue
            found = train(*CASES[name], seed)
            kept = json.loads(file.read_text()) if file.is_file() else kept  # ours may have been written meanwhile
            kept["peer"] = {**peer, "runs": [*peer["runs"], found]}
            file.write_text(json.dumps(kept, separators=(",", ":")) + "\n")
            print(f"{name} seed {seed}: {found['value']:,.0f}, {found['wall_s']:.0f} s", flush=True)


if __name__ == "__main__":
    main()
