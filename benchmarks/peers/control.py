"""Control, ours beside Stable-Baselines3: PPO and DQN on CartPole, SAC on Pendulum; steps and updates a second.

Networks, lanes, batches, epochs, learning rates and update counts are the same on both sides; nothing is logged,
evaluated or stored. A tick is one round of the algorithm: collect, then learn. `fused`: theirs with torch's fused Adam.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gate import Gate

RANDOM = 1000  # steps before the first update of SAC and DQN: outside of the clock on both sides


def ours(case: dict[str, Any], gate: Gate) -> None:
    from shuhari.config import recipe
    from shuhari.loop.run import loop, open_run

    width, lr = [case["width"]] * 2, case["lr"]
    common: dict[str, Any] = {"threads": case["threads"], "env_steps": 10**9, "remove": ["evaluate"]}
    own: dict[str, dict[str, Any]] = {
        "ppo": {
            "models.policy.hidden": width,
            "models.critic.hidden": width,
            "rollout.lanes": 8,
            "buffer.size": 1024,
            "part.policy.epochs": 10,
            "part.policy.minibatches": 8,
            "part.policy.optimiser.lr": lr,
        },
        "sac": {
            "models.policy.hidden": width,
            "models.critic.hidden": width,
            "rollout.random": RANDOM,
            "buffer.warmup": RANDOM,
            "buffer.size": 256,
            "buffer.collect": 50,
            "buffer.ratio": 1.0,
            **{f"part.{part}.optimiser.lr": lr for part in ("critic", "policy", "temperature")},
        },
        "dqn": {
            "models.policy.hidden": width,
            "rollout.sampling.epsilon": 0.05,
            "buffer.warmup": RANDOM,
            "buffer.size": 128,
            "buffer.collect": 16,
            "buffer.draws": 8,
            "part.policy.terms.q_learning.double": False,
            "part.policy.optimiser.lr": lr,
        },
    }
    run = open_run(recipe.load(f"baselines/{case['recipe']}", settings={**common, **own[case["method"]]}))
    steps = loop(run)
    if case["method"] != "ppo":
        next(steps)  # the random steps
    if not gate.wait():
        return
    spent = dict(run.ctx.ledger)
    for _ in steps:
        now = dict(run.ctx.ledger)
        gate.count(
            env_steps=now["env_steps"] - spent.get("env_steps", 0),
            updates=(now["updates"] - spent.get("updates", 0)) / case["parts"],  # every part steps at each update
        )
        spent = now
        if not gate.tick():
            return


def theirs(case: dict[str, Any], gate: Gate) -> None:
    import torch
    from stable_baselines3.common.env_util import make_vec_env

    method = case["method"]
    env = make_vec_env("Pendulum-v1" if method == "sac" else "CartPole-v1", n_envs=8 if method == "ppo" else 1, seed=0)
    policy: dict[str, Any] = {"net_arch": [case["width"]] * 2}
    if case.get("fused"):
        policy["optimizer_kwargs"] = {"fused": True}
        if method == "ppo":
            policy["optimizer_kwargs"]["eps"] = 1e-5  # its own, which the first key replaces
    torch.manual_seed(0)
    model = MODELS[method](env, policy, case["lr"], 0)
    model.learn(10**9, callback=_gated(gate, 0 if method == "ppo" else RANDOM), log_interval=None)


def _ppo(env: Any, policy: dict[str, Any], lr: float, seed: int) -> Any:
    from stable_baselines3 import PPO

    return PPO("MlpPolicy", env, learning_rate=lr, n_steps=128, batch_size=128, n_epochs=10, gae_lambda=0.95,
               policy_kwargs=policy, seed=seed, device="cpu")  # fmt: skip


def _sac(env: Any, policy: dict[str, Any], lr: float, seed: int) -> Any:
    from stable_baselines3 import SAC

    return SAC("MlpPolicy", env, learning_rate=lr, buffer_size=50_000, learning_starts=RANDOM, batch_size=256,
               train_freq=50, gradient_steps=50, policy_kwargs=policy, seed=seed, device="cpu")  # fmt: skip


def _td3(env: Any, policy: dict[str, Any], lr: float, seed: int) -> Any:
    import numpy as np
    from stable_baselines3 import TD3
    from stable_baselines3.common.noise import NormalActionNoise

    noise = NormalActionNoise(np.zeros(1), 0.1 * np.ones(1))  # in units of the decision, as ours
    return TD3("MlpPolicy", env, learning_rate=lr, buffer_size=50_000, learning_starts=RANDOM, batch_size=256,
               train_freq=50, gradient_steps=50, action_noise=noise, policy_kwargs=policy, seed=seed,
               device="cpu")  # fmt: skip


def _dqn(env: Any, policy: dict[str, Any], lr: float, seed: int) -> Any:
    from stable_baselines3 import DQN

    # its target moves by environment steps: every second one, so 8 times in a round of 16 steps and 8 updates, as ours
    return DQN("MlpPolicy", env, learning_rate=lr, buffer_size=60_000, learning_starts=RANDOM, batch_size=128,
               tau=0.01, target_update_interval=2, train_freq=16, gradient_steps=8, gamma=0.98,
               exploration_initial_eps=0.05, exploration_final_eps=0.05, policy_kwargs=policy, seed=seed,
               device="cpu")  # fmt: skip


MODELS: dict[str, Callable[[Any, dict[str, Any], float, int], Any]] = {
    "ppo": _ppo,
    "sac": _sac,
    "td3": _td3,  # for returns.py
    "dqn": _dqn,
}


def _gated(gate: Gate, start: int) -> Any:
    """A callback that ticks when a round of collecting begins, after `start` steps."""
    from stable_baselines3.common.callbacks import BaseCallback

    class Gated(BaseCallback):
        seen: tuple[int, int] | None = None
        go = True

        def _on_rollout_start(self) -> None:
            if self.model.num_timesteps <= start and start:
                return
            now = self.model.num_timesteps, self._updates()
            if self.seen is None:
                self.go = gate.wait()
            else:
                gate.count(env_steps=now[0] - self.seen[0], updates=now[1] - self.seen[1])
                self.go = gate.tick()
            self.seen = now

        def _updates(self) -> int:
            """Optimiser steps so far; PPO counts epochs, each of 8 minibatches."""
            return int(self.model._n_updates) * (8 if hasattr(self.model, "rollout_buffer") else 1)

        def _on_step(self) -> bool:
            return self.go

    return Gated()
