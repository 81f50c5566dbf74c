"""What other libraries call their settings, for the tables of the guides (`tables.py`): names by library, in the order
of a reader's interest, and what is not the same. What each is called here is what an error would say of it
(`shuhari.config.words`); a name that it does not know fails.

`benchmarks/peers/test_words.py` holds the names to those that TRL and Stable-Baselines3 have.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

from shuhari.config.words import find_meanings

reference: Any = import_module("reference")  # which stands beside this file

TRL = {
    "model": "a directory, or the id of a model of the hub; without one a model is made from scratch",
    "train_dataset": "`file/<path>`; rows in memory are `dataset=` of `shuhari.train`",
    "reward_funcs": "`rewards.py:function`; functions in memory are `reward=`",
    "reward_weights": "a table by name",
    "num_generations": "",
    "per_device_train_batch_size": "theirs counts samples, ours problems: a step has `buffer.size * rollout.n` samples",
    "gradient_accumulation_steps": "ours is a bound in tokens; it changes memory, and never the result",
    "steps_per_generation": "optimiser steps on what one step has collected",
    "num_iterations": "",
    "max_completion_length": "",
    "temperature": "",
    "top_p": "scored over the ids that were kept ([why](conformance/truncated-sampling.md))",
    "top_k": "as `top_p`",
    "min_p": "as `top_p`",
    "learning_rate": "a number or a schedule, `{from = 1e-5, to = 0, warm = 10}`",
    "max_grad_norm": "",
    "weight_decay": "",
    "epsilon": "with `low`; theirs is both",
    "epsilon_high": "",
    "delta": "",
    "beta": "0 by default here too; ours is not multiplied by the ratio (their `use_bias_correction_kl`)",
    "loss_type": "`row` for `grpo`, `decision` for `dapo`, `constant:N` for `dr_grpo`; `cispo` is `clips = \"weight\"`",
    "importance_sampling_level": "`decision` for their `token`, `sequence` for `sequence`",
    "scale_rewards": "`group`, `batch` and `none`; our `batch` is the deviation of centred rewards, theirs is `raw`",
    "entropy_coef": "a term",
    "sync_ref_model": "a table `follow.reference`",
    "ref_model_mixup_alpha": "",
    "ref_model_sync_steps": "in optimiser steps, as theirs",
    "max_tool_calling_iterations": "",
    "peft_config": "`rank`, `alpha`, `targets`",
    "max_steps": "of a recipe with stages, `stage.<name>.steps`",
    "eval_steps": "",
    "save_steps": "by default as often as costs a twentieth of the time",
    "save_total_limit": "",
}
SB3 = {
    "policy": "a role with a model of its own: `models.policy`",
    "env": "`gym/<id>`; a class, function or environment is `env=` of `shuhari.train`",
    "n_envs": "",
    "total_timesteps": "",
    "n_steps": "ours counts the decisions of all lanes: `n_steps * n_envs`",
    "batch_size": "of a replay. PPO's is the rows of a minibatch; ours is their number, `part.policy.minibatches`",
    "n_epochs": "",
    "learning_rate": "`{from = 3e-4, to = 0}` for a linear schedule",
    "gamma": "",
    "gae_lambda": "",
    "clip_range": "with `low`",
    "clip_range_vf": "",
    "normalize_advantage": "`batch`: once a step, and not once a minibatch",
    "ent_coef": "a term; SAC's `auto` is the role `temperature`",
    "vf_coef": "our loss is (V - R)² / 2, theirs (V - R)²: ours is twice theirs for the same gradient",
    "max_grad_norm": "",
    "buffer_size": "",
    "learning_starts": "with `rollout.random`, decisions that are drawn uniformly",
    "train_freq": "in decisions",
    "gradient_steps": "draws for each new decision; `draws` is a number of them a step",
    "tau": "",
    "target_update_interval": "in updates; theirs is in environment steps",
    "target_entropy": "",
    "exploration_fraction": "a schedule of `epsilon`: `{from = 1.0, to = 0.05, over = 0.1}`",
    "exploration_final_eps": "as above",
    "policy_kwargs": "`net_arch` is `hidden`, a list of widths",
    "eval_freq": "in steps of the loop; theirs is of a callback, in environment steps",
    "n_eval_episodes": "",
    "seed": "",
}
VERL = {
    "actor_rollout_ref.model.path": "",
    "data.train_files": "`file/<path>`",
    "data.train_batch_size": "in problems, as theirs",
    "data.max_prompt_length": "ours is the room of prompt and answer together",
    "data.max_response_length": "",
    "custom_reward_function.path": "`rewards.py:function`",
    "algorithm.adv_estimator": "or a recipe: `baselines/grpo`, `rloo`, `reinforce_pp`, `ppo`",
    "algorithm.norm_adv_by_std_in_grpo": "`group`, or `none`",
    "algorithm.use_kl_in_reward": "a table `collect.kl_in_reward`",
    "algorithm.gamma": "",
    "algorithm.lam": "",
    "actor_rollout_ref.rollout.n": "",
    "actor_rollout_ref.rollout.temperature": "",
    "actor_rollout_ref.rollout.top_p": "scored over the ids that were kept ([why](conformance/truncated-sampling.md))",
    "actor_rollout_ref.actor.optim.lr": "",
    "actor_rollout_ref.actor.ppo_mini_batch_size": "theirs counts problems, ours minibatches",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": "ours is a bound in tokens",
    "actor_rollout_ref.actor.ppo_max_token_len_per_gpu": "",
    "actor_rollout_ref.actor.ppo_epochs": "",
    "actor_rollout_ref.actor.clip_ratio_low": "",
    "actor_rollout_ref.actor.clip_ratio_high": "",
    "actor_rollout_ref.actor.clip_ratio_c": "0, off, by default here; theirs is 3",
    "actor_rollout_ref.actor.loss_agg_mode": "`decision` for `token-mean`, `row` for `seq-mean-token-mean`, "
    "`constant:1` for `seq-mean-token-sum`",
    "actor_rollout_ref.actor.entropy_coeff": "a term",
    "actor_rollout_ref.actor.kl_loss_coef": "",
    "trainer.total_training_steps": "",
    "trainer.test_freq": "",
    "trainer.save_freq": "",
    "trainer.max_actor_ckpt_to_keep": "",
    "trainer.v1.sampler.max_off_policy_threshold": "",
}
OPENRLHF = {
    "actor.model_name_or_path": "",
    "data.prompt_dataset": "`file/<path>`",
    "data.max_len": "prompt and answer together, as theirs",
    "reward.remote_url": "`rewards.py:function`",
    "rollout.batch_size": "in problems, as theirs",
    "rollout.n_samples_per_prompt": "",
    "rollout.max_new_tokens": "",
    "rollout.temperature": "",
    "rollout.top_p": "scored over the ids that were kept",
    "train.batch_size": "what an optimiser step sees; here `part.policy.minibatches` divides what was collected",
    "train.micro_batch_size": "ours is a bound in tokens",
    "train.max_epochs": "",
    "train.num_episodes": "ours counts steps of the loop",
    "train.async_queue_size": "versions of the weights, not batches",
    "actor.adam.lr": "",
    "actor.max_norm": "",
    "actor.eps_clip": "with `low`",
    "actor.dual_clip": "",
    "critic.value_clip": "",
    "algo.advantage.estimator": "or a recipe: `baselines/rloo`, `reinforce_pp`, `grpo`, `dr_grpo`, `ppo`",
    "algo.advantage.gamma": "",
    "algo.advantage.lambd": "",
    "algo.advantage.no_std_norm": "`none`",
    "algo.kl.init_coef": "in the loss; in the reward it is `collect.kl_in_reward.beta`",
    "actor.entropy_coef": "a term",
    "ds.lora.rank": "",
    "ds.lora.alpha": "",
    "eval.steps": "",
    "ckpt.save_steps": "",
    "ckpt.max_num": "",
}


def tell(names: Mapping[str, str]) -> Iterator[str]:
    """Names of one library, what they are called here, and what differs."""
    yield reference.row("theirs", "ours", "what is not the same")
    yield reference.row("---", "---", "---")
    for name, differs in names.items():
        ours = find_meanings(name.split(".")) or ((name,) if name in SHARED else ())
        if not ours:
            raise KeyError(f"{name}: shuhari.config.words does not know it")
        yield reference.row(f"`{name}`", ", ".join(f"`{key}`" for key in ours), differs)


SHARED = ("seed",)  # called the same, so no word of an error
TABLES = {f"settings of {name}": lambda names=names: tell(names) for name, names in
          {"TRL": TRL, "Stable-Baselines3": SB3, "verl": VERL, "OpenRLHF": OPENRLHF}.items()}  # fmt: skip
