"""The runs of Stable-Baselines3 that `shuhari reproduce` shows beside ours: same settings, same environments and steps.

    benchmarks/.peers/bin/python benchmarks/peers/reproduce.py sac-hopper td3-hopper --seeds 3
    benchmarks/.peers/bin/python benchmarks/peers/reproduce.py all

Each seed trains on one thread. SAC and TD3: 100,000 steps, then the last policy plays 20 episodes without noise; TD3's
10,000 random actions have no noise, as ours and the authors' have none (its default adds some, and clips). DQN on
MinAtar (`pip install minatar` there): 1M frames, the mean return of the last 100 training episodes. DQN on CartPole and
Acrobot: the zoo's settings and steps, then 100 episodes of the greedy policy. What a result file has already is not
trained again. Writes `peer` of results/reproduce/NAME.json: `by`, `version`, and `runs`.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "src"))  # the peers' environment need not have us
OUT = ROOT / "results" / "reproduce"
STEPS = {"sac": 100_000, "td3": 100_000, "dqn": 1_000_000, "CartPole-v1": 50_000, "Acrobot-v1": 100_000}
EPISODES = {"sac": 20, "td3": 20, "zoo": 100}
ENVS = {"hopper": "Hopper-v4", "halfcheetah": "HalfCheetah-v4"}
ZOO = {"cartpole": "CartPole-v1", "acrobot": "Acrobot-v1"}
GAMES = {"minatar-breakout": "MinAtar/Breakout-v1", "minatar-space-invaders": "MinAtar/SpaceInvaders-v1"}
CASES = {
    f"{method}-{name}": (method, env)
    for method, tasks in {"sac": ENVS, "td3": ENVS, "dqn": GAMES}.items()
    for name, env in tasks.items()
} | {f"dqn-{name}": ("zoo", env) for name, env in ZOO.items()}
OF_ZOO: dict[str, dict[str, Any]] = {  # dqn.yml of rl-zoo3
    "CartPole-v1": {"learning_rate": 2.3e-3, "batch_size": 64, "buffer_size": 100_000, "learning_starts": 1000,
                    "target_update_interval": 10, "train_freq": 256, "gradient_steps": 128,
                    "exploration_fraction": 0.16, "exploration_final_eps": 0.04},
    "Acrobot-v1": {"learning_rate": 6.3e-4, "batch_size": 128, "buffer_size": 50_000, "learning_starts": 0,
                   "target_update_interval": 250, "train_freq": 4, "gradient_steps": -1,
                   "exploration_fraction": 0.12, "exploration_final_eps": 0.1},
}  # fmt: skip


def make_model(method: str, env: str, envs: Any, seed: int) -> Any:
    """The learner of Stable-Baselines3 with the settings of our recipe."""
    import numpy as np
    from stable_baselines3 import DQN, SAC, TD3
    from stable_baselines3.common.noise import NormalActionNoise

    common: dict[str, Any] = {"seed": seed, "device": "cpu"}
    if method == "zoo":
        return DQN("MlpPolicy", envs, gamma=0.99, policy_kwargs={"net_arch": [256, 256]}, **OF_ZOO[env], **common)
    if method == "dqn":
        return DQN("CnnPolicy", envs, learning_rate=2.5e-4, buffer_size=100_000, learning_starts=5_000, batch_size=128,
                   train_freq=4, gradient_steps=1, target_update_interval=1_000, exploration_fraction=0.1,
                   exploration_final_eps=0.1, max_grad_norm=10, gamma=0.99,
                   policy_kwargs={"features_extractor_class": make_extractor(), "net_arch": [],
                                  "normalize_images": False}, **common)  # fmt: skip
    common |= {"learning_starts": 10_000, "batch_size": 256, "buffer_size": 1_000_000, "train_freq": 1,
               "gradient_steps": 1}  # fmt: skip
    if method == "sac":
        return SAC("MlpPolicy", envs, learning_rate=3e-4, **common)
    n = int(envs.action_space.shape[0])

    class Later(NormalActionNoise):  # once actions are the policy's
        drawn = 0

        def __call__(self) -> Any:
            self.drawn += 1
            return super().__call__() if self.drawn > common["learning_starts"] else np.zeros(n, np.float32)

    return TD3("MlpPolicy", envs, learning_rate=1e-3, policy_kwargs={"net_arch": [256, 256]},
               action_noise=Later(np.zeros(n), 0.1 * np.ones(n)), **common)  # fmt: skip


def make_extractor() -> type:
    """The class of a net for MinAtar like ours: the small layers of `shuhari.models.convolution`."""
    from stable_baselines3.common.torch_layers import BaseFeaturesExtractor

    from shuhari.models.convolution import SMALL, Convolution

    class Extractor(BaseFeaturesExtractor):
        def __init__(self, space: Any) -> None:
            super().__init__(space, SMALL[1])
            self.net = Convolution(space.shape)

        def forward(self, x: Any) -> Any:
            return self.net(x)

    return Extractor


def make_envs(env: str, seed: int) -> Any:
    """One environment as Stable-Baselines3 takes it; MinAtar's pictures [10, 10, C] of bool become uint8."""
    import gymnasium
    import numpy as np
    from stable_baselines3.common.env_util import make_vec_env

    if env not in GAMES.values():
        return make_vec_env(env, n_envs=1, seed=seed)
    from minatar.gym import register_envs

    from shuhari.tasks.atari import Unstuck  # with which ours begin, too

    register_envs()

    def make() -> Any:
        game = Unstuck(gymnasium.make(env))
        space = gymnasium.spaces.Box(0, 1, game.observation_space.shape, np.uint8)
        return gymnasium.wrappers.TransformObservation(game, lambda x: x.astype(np.uint8), space)

    return make_vec_env(make, n_envs=1, seed=seed)


def train(method: str, env: str, seed: int) -> dict[str, Any]:
    """One run: `seed`, `value`, `curve` [[steps, mean return of the last 100 episodes], ...], `wall_s`, `cpu_s`."""
    import numpy as np
    import torch
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.evaluation import evaluate_policy

    torch.set_num_threads(1)
    curve: list[list[float]] = []
    steps = STEPS.get(method) or STEPS[env]
    every = steps // 100

    class Record(BaseCallback):
        def _on_step(self) -> bool:
            ended = self.model.ep_info_buffer
            if self.num_timesteps % every == 0 and ended:
                curve.append([self.num_timesteps, float(f"{np.mean([e['r'] for e in ended]):.6g}")])
            return True

    model = make_model(method, env, make_envs(env, seed), seed)
    wall, cpu = time.monotonic(), time.process_time()
    model.learn(steps, callback=Record(), log_interval=None)
    spent = {"wall_s": round(time.monotonic() - wall, 1), "cpu_s": round(time.process_time() - cpu, 1)}
    if method == "dqn":
        value = curve[-1][1]
    else:
        value = evaluate_policy(model, make_envs(env, 50_000 + seed), EPISODES[method], deterministic=True)[0]
    return {"seed": seed, "value": float(f"{value:.6g}"), "curve": curve, **spent}


def make_missing(name: str, by: str, version: str, seeds: Iterable[int], make: Callable[[int], dict[str, Any]]) -> None:
    """Make the runs that a result lacks, by seed, and keep each as soon as it is done. SystemExit if it has runs of
    another version."""
    file = OUT / f"{name}.json"
    for seed in seeds:
        peer = _read(file, name).get("peer") or {"by": by, "version": version, "runs": []}
        if peer["version"] != version:
            sys.exit(f"{file.name} has runs of {by} {peer['version']}, and this is {version}")
        if any(run["seed"] == seed for run in peer["runs"]):
            continue
        found = make(seed)
        kept = _read(file, name)  # ours may have been written meanwhile
        kept["peer"] = {**peer, "runs": [*peer["runs"], found]}
        file.write_text(json.dumps(kept, separators=(",", ":")) + "\n")
        print(f"{name} seed {seed}: {found['value']:,.0f}, {found['wall_s']:.0f} s", flush=True)


def _read(file: Path, name: str) -> dict[str, Any]:
    kept: dict[str, Any] = json.loads(file.read_text()) if file.is_file() else {"format": 1, "name": name, "runs": []}
    return kept


def main() -> None:
    import stable_baselines3

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="+", choices=[*CASES, "all"])
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    OUT.mkdir(parents=True, exist_ok=True)
    for name in CASES if "all" in given.names else given.names:
        make_missing(name, "Stable-Baselines3", stable_baselines3.__version__, range(given.seeds),
                     partial(train, *CASES[name]))  # fmt: skip


if __name__ == "__main__":
    main()
