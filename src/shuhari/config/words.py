"""What other libraries (TRL, Stable-Baselines3, verl, OpenRLHF) call a setting, for the error of an unknown key."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from shuhari.config.overlay import format_path, split_path, walk_leaves
from shuhari.data import nearest

SAME: Mapping[str, tuple[str, ...]] = MappingProxyType({  # the key here -> what others call it
    "part.policy.optimiser.lr": ("lr", "learning_rate", "actor_lr", "actor_learning_rate"),
    "part.policy.optimiser.clip": ("max_grad_norm", "grad_clip", "gradient_clip"),
    "part.policy.optimiser.weight_decay": ("weight_decay",),
    "part.policy.epochs": ("n_epochs", "ppo_epochs", "num_iterations", "num_ppo_epochs", "epochs"),
    "part.policy.minibatches": ("num_mini_batches", "minibatches", "steps_per_generation", "ppo_mini_batch_size"),
    "part.policy.terms.clip.high": ("clip_range", "cliprange", "clip_ratio", "epsilon", "epsilon_high", "clip_eps"),
    "part.policy.terms.clip.low": ("epsilon_low",),
    "part.policy.terms.divergence.weight": ("beta", "kl_coef", "kl_beta", "init_kl_coef", "kl_loss_coef"),
    "part.policy.terms.entropy.weight": ("ent_coef", "entropy_coef", "entropy_coeff"),
    "part.critic.terms.value.weight": ("vf_coef", "value_coef"),
    "transform.gae.gamma": ("gamma", "discount", "discount_factor"),
    "transform.gae.lam": ("gae_lambda", "lam"),
    "collect.advantage.scale": ("scale_rewards", "normalize_advantage", "whiten_rewards"),
    "buffer.size": ("batch_size", "per_device_train_batch_size", "train_batch_size", "rollout_batch_size", "n_steps",
                    "generation_batch_size"),
    "buffer.capacity": ("buffer_size", "replay_size"),
    "buffer.warmup": ("learning_starts",),
    "buffer.collect": ("train_freq",),
    "micro_batch": ("micro_batch_size", "gradient_accumulation_steps", "micro_train_batch_size"),
    "rollout.n": ("n", "num_generations", "group_size", "n_samples_per_prompt"),
    "rollout.lanes": ("n_envs", "num_envs"),
    "rollout.sampling.max_new": ("max_new", "max_new_tokens", "max_tokens", "max_completion_length", "response_length",
                                 "max_response_length"),
    "rollout.sampling.temperature": ("temperature",),
    "rollout.sampling.top_p": ("top_p",),
    "rollout.sampling.top_k": ("top_k",),
    "rollout.sampling.epsilon": ("exploration_fraction", "exploration_final_eps"),
    "follow.target.rate": ("tau", "polyak"),
    "follow.target.every": ("target_update_interval",),
    "models.policy.path": ("model", "model_name", "model_name_or_path", "policy"),
    "models.policy.hidden": ("net_arch", "policy_kwargs", "hidden"),
    "models.policy.lora.r": ("lora_r", "lora_rank", "peft_config"),
    "task.name": ("env", "env_id", "dataset", "dataset_name", "train_dataset"),
    "reward.<name>.use": ("reward_funcs", "reward_fn", "reward_function"),
    "steps": ("max_steps", "num_train_epochs", "total_episodes", "num_steps"),
    "env_steps": ("total_timesteps", "timesteps"),
    "evaluate.every": ("eval_steps", "eval_freq", "eval_every"),
    "evaluate.n": ("n_eval_episodes",),
    "store.every": ("save_steps", "save_freq", "save_every"),
    "threads": ("num_threads", "n_threads"),
})  # fmt: skip
_MEANT = {name: key for key, names in SAME.items() for name in names}


def explain_unknown(key: str, tree: Mapping[str, Any], known: Iterable[str]) -> str:
    """What a key that no recipe has may mean: the settings of this recipe that others call so, as it names its parts,
    or the nearest known one."""
    meant = _MEANT.get(key)
    if meant is None:
        return nearest(key, known)
    path = split_path(meant) if "<" not in meant else ()
    leaves = [p for p, _ in walk_leaves(tree) if path and p[-2:] == path[-2:]]
    own = [p for p in leaves if p[0] != "stage"] or leaves
    return f"it is {' and '.join(map(format_path, own[:3])) if own else meant} here"
