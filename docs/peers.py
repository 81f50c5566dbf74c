"""What other libraries call things, for the tables of the guides (`tables.py`): settings by library, in the order of a
reader's interest, and what is not the same. What each is called here is what an error would name
(`shuhari.config.words`); a name that it does not know fails. Trainers and concepts come with recipes that must exist,
and what the guides deny (`LACKS`) must not.

`benchmarks/peers/test_words.py` holds the names to those that TRL and Stable-Baselines3 have.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from shuhari.config.words import REMARKS, SAME, find_meanings

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
    "epsilon": "theirs is both",
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
    "gamma": "a short name has that of its own environment: a run on another one says so",
    "gae_lambda": "",
    "clip_range": "theirs is both",
    "clip_range_vf": "",
    "normalize_advantage": "`batch`: once a step, and not once a minibatch",
    "ent_coef": "a term; SAC's `auto` is the role `temperature`",
    "vf_coef": "our loss is (V - R)² / 2, theirs (V - R)²: ours is twice theirs for the same gradient",
    "max_grad_norm": "",
    "buffer_size": "",
    "learning_starts": "with `rollout.random`, decisions that are drawn uniformly",
    "train_freq": "",
    "gradient_steps": "draws for each new decision; `draws` is a number of them a step",
    "tau": "",
    "target_update_interval": "",
    "target_entropy": "`auto` by default, minus the numbers of an action",
    "exploration_fraction": "a schedule of `epsilon`: `{from = 1.0, to = 0.05, over = 0.1}`",
    "exploration_final_eps": "as above",
    "policy_kwargs": "`net_arch` is `hidden`, a list of widths",
    "eval_freq": "in steps of the loop; theirs is of a callback, in environment steps",
    "n_eval_episodes": "",
    "seed": "",
}
CLEANRL = {
    "env_id": "`gym/<id>`",
    "seed": "",
    "total_timesteps": "",
    "num_envs": "",
    "num_steps": ("buffer.size", "ours counts the decisions of all lanes: `num_steps * num_envs`"),
    "num_minibatches": "",
    "update_epochs": "",
    "learning_rate": "`{from = 3e-4, to = 0}` is theirs with `anneal_lr`",
    "gamma": "a short name has that of its own environment: a run on another one says so",
    "gae_lambda": "",
    "norm_adv": "`batch`: once a step, and not once a minibatch",
    "clip_coef": "theirs is both",
    "clip_vloss": "the bound itself: `clip_coef`, or 0 for none",
    "ent_coef": "a term",
    "vf_coef": "",
    "max_grad_norm": "",
    "buffer_size": "",
    "batch_size": "of a replay; PPO's is computed, there and here",
    "learning_starts": "with `rollout.random`, decisions that are drawn uniformly",
    "train_frequency": "",
    "tau": "",
    "target_network_frequency": "",
    "start_e": "",
    "end_e": "",
    "exploration_fraction": "",
    "n_atoms": "",
    "v_min": "",
    "v_max": "",
    "policy_lr": "",
    "q_lr": "",
    "policy_frequency": "",
    "policy_noise": "of actions in [-1, 1], theirs scaled by the range",
    "noise_clip": "as `policy_noise`",
    "exploration_noise": "",
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
    "actor.eps_clip": "theirs is both",
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

TRAINERS = {  # of TRL; recipes by their full names
    "`GRPOTrainer`": "`pretrained/grpo`; from scratch `baselines/grpo`, `baselines/dr_grpo`, `baselines/dapo`, "
    "`baselines/gspo`, `baselines/cispo`",
    "`RLOOTrainer`": "`baselines/rloo` ([definitions differ between libraries](conformance/rloo.md))",
    "`SFTTrainer`": "`pretrained/sft`, `baselines/sft_arithmetic`; before RL, a stage of the same run",
    "`DPOTrainer`, `KTOTrainer`": "`pretrained/dpo` on recorded pairs; `baselines/dpo`, `baselines/kto` on answers "
    "that "
    "the policy has just given, on recorded pairs with `buffer.use = \"preferences\"`; [all "
    "losses](#losses-of-preferences)",
    "`OnlineDPOTrainer`": "`baselines/dpo`, with a reward or a judge; `preference/online_rlhf` in rounds",
    "`XPOTrainer`, which 1.16 no longer has": "`preference/xpo`, the same loss",
    "`NashMDTrainer`, which 1.16 no longer has": "`preference/nash_md`; [its page]("
    "../src/shuhari/methods/preference/nash_md/README.md#as-released-as-here) has the settings that make the "
    "gradient theirs",
    "`CPOTrainer`, `ORPOTrainer`; SimPO": "`pretrained/cpo`, `pretrained/orpo`, `pretrained/simpo`",
    "`DistillationTrainer`": "`pretrained/opd`, `baselines/opd`",
    "PPO, which 1.16 no longer has": "`baselines/ppo`",
    "`RewardTrainer`": "`pretrained/reward_model` ([reward models](reward-models.md)), or a recipe of a few lines: [a "
    "reward model](tasks.md#a-reward-model)",
    "`PRMTrainer`": "`pretrained/process_reward_model` ([its rows and "
    "rewards](reward-models.md#4-from-labels-of-steps)); of whole answers `pretrained/outcome_reward_model`",
    "judges (`OpenAIPairwiseJudge`, `HfPairwiseJudge`, one of yours)": "`reward.judge.url`, `.role` or `.function`, "
    "which takes `judge(prompts, completions)` as it is; pairs are asked about in both orders: [judges](judges.md)",
}
LOSSES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    # a loss of TRL's DPOConfig -> its other settings, and ours of an objective `preference`; compared with theirs by
    # benchmarks/peers/test_trl_dpo.py
    "sigmoid": ({}, {}),
    "hinge": ({}, {"form": "hinge"}),
    "ipo": ({}, {"form": "ipo", "level": "sequence"}),
    "exo_pair": ({"label_smoothing": 0.1}, {"form": "exo", "label_smoothing": 0.1}),
    "nca_pair": ({}, {"form": "nca"}),
    "robust": ({"label_smoothing": 0.1}, {"form": "robust", "label_smoothing": 0.1}),
    "bco_pair": ({}, {"form": "bco"}),
    "sppo_hard": ({}, {"form": "sppo"}),
    "aot": ({"label_smoothing": 0.1}, {"form": "aot", "label_smoothing": 0.1}),
    "aot_unpaired": ({}, {"form": "aot_unpaired"}),
    "apo_zero": ({}, {"form": "apo_zero"}),
    "apo_down": ({}, {"form": "apo_down"}),
    "discopop": ({}, {"form": "discopop"}),
    "sft": ({}, {"form": "nll"}),
    "sigmoid_norm": ({}, {"level": "sequence"}),
    "f_divergence_type = forward_kl": (
        {"loss_type": ["sigmoid"], "f_divergence_type": "forward_kl"}, {"divergence": "forward_kl"}
    ),
    "f_divergence_type = js_divergence": (
        {"loss_type": ["sigmoid"], "f_divergence_type": "js_divergence"}, {"divergence": "js"}
    ),
    "f_divergence_type = alpha_divergence": (
        {"loss_type": ["sigmoid"], "f_divergence_type": "alpha_divergence", "f_alpha_divergence_coef": 0.5},
        {"divergence": "alpha", "alpha": 0.5},
    ),
    "ld_alpha": ({"loss_type": ["sigmoid"], "ld_alpha": 0.5}, {"tail": 0.5}),
}  # fmt: skip
CONCEPTS = {  # of verifiers
    "`Taskset.load`, lazily or without an end": "`problems(split)`, a source by index; `Generated` makes problems on "
    "demand",
    "`TaskData`": "`Problem`: prompt, answer, solution, further columns",
    "`@vf.reward`, with a `weight`": "`grade` for the score; `[reward.<name>]` and `[reward.weights]` for further ones",
    "`@vf.metric`": "a reward of weight 0: reported by name and not trained on; "
    "[metrics](evaluation.md#a-metric-of-your-own) of an evaluation",
    "`@vf.stop`": "the environment ends an episode; `rollout.max_steps` bounds it",
    "tools, `Toolset`": "plain functions: `tools=[function]` ([tasks.md](tasks.md#tools))",
    "user simulators": "`step` of the environment, which may be a coroutine",
    "`Env` of several agents": "`rollout.acts`: roles take turns, or the environment decides whose turn it is "
    "(`turn`); "
    "each with its own credit",
    "`vf.Judge`": "the reward [`judge`](judges.md): a server, a model of the run, or a function, which may be `async`; "
    "`rollout.timeout` bounds tools",
    "clients of models": "`engine.use = \"openai\"`: [a server by its address](scale.md#a-server-by-its-address), "
    "for roles "
    "that are not trained",
    "harnesses, runtimes, MCP, sandboxes": "none",
    "`eval`": "`shuhari eval RUN`, `[evaluate]`",
    "Hub of environments": "entry points of packages ([recipes.md](recipes.md#recipes-of-other-packages)); the "
    "generators "
    "of reasoning-gym",
}
LACKS = {  # page -> words in it of what does not exist: in no name of a component, setting, recipe, command or extra
    "from-trl": ("deepspeed", "quantised", "vespo"),
    "from-verl": ("deepspeed", "megatron", "sglang"),
    "from-verifiers": ("container", "harness", "mcp", "runtime", "sandbox"),
}


def list_known() -> dict[str, str]:
    """Each word of a name of the library -> such a name: components and their settings, recipes, commands, extras."""
    import typer

    from shuhari.config.library import list_names
    from shuhari.desk.cli import app
    from shuhari.kernel import registry

    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = [*list_names(), *typer.main.get_group(app).commands, *project["optional-dependencies"]]
    for (kind, name), cls in registry.entries().items():
        names += [f"{kind} {name}", *(f"{kind} {name} {field}" for field in getattr(cls, "__dataclass_fields__", ()))]
    return {word: name for name in names for word in re.findall(r"[a-z0-9]+", name.lower())}


def check_absent(page: str, known: Mapping[str, str]) -> None:
    """Raises KeyError if something exists that a page denies; `known` as from `list_known`."""
    for word in LACKS[page]:
        if found := next((known[name] for name in (word, f"{word}s", f"{word}es") if name in known), ""):
            raise KeyError(f"{page}.md denies {word!r}, which is there: {found}")


def pair(page: str, head: str, rows: Mapping[str, str]) -> Iterator[str]:
    """What one library has, and what stands for it here: recipes are looked up, and what the page denies too."""
    from shuhari.config.library import list_names

    check_absent(page, list_known())
    families = {name.partition("/")[0] for name in list_names()}
    yield reference.row(head, "here")
    yield reference.row("---", "---")
    for theirs, ours in rows.items():
        for name in re.findall(r"`(\w+/\w+)`", ours):
            if name.partition("/")[0] in families and name not in list_names():
                raise KeyError(f"{theirs}: no recipe {name!r}")
        yield reference.row(theirs, ours)


def tell(names: Mapping[str, str | tuple[str, str]]) -> Iterator[str]:
    """Names of one library, what they are called here, and what differs: by default what the error of an unknown key
    adds. A pair has our name, too, if the error would name the one of another library."""
    yield reference.row("theirs", "ours", "what is not the same")
    yield reference.row("---", "---", "---")
    for name, told in names.items():
        own, differs = told if isinstance(told, tuple) else ("", told)
        ours = (own,) if own in SAME else find_meanings(name.split(".")) or ((name,) if name in SHARED else ())
        if not ours:
            raise KeyError(f"{name}: shuhari.config.words does not know it")
        yield reference.row(f"`{name}`", ", ".join(f"`{key}`" for key in ours), differs or REMARKS.get(name, ""))


def list_losses() -> Iterator[str]:
    """Losses of TRL's DPOConfig, and the settings that give them here."""
    from shuhari.objectives.preference import Preference

    yield reference.row("`loss_type` of `DPOConfig`", "settings of `part.policy.terms.preference`")
    yield reference.row("---", "---")
    for name, (_, ours) in LOSSES.items():
        Preference(**ours)
        texts = (f"`{key} = {json.dumps(value)}`" for key, value in ours.items())
        yield reference.row(f"`{name}`", ", ".join(texts) or "as it stands")


SHARED = ("seed",)  # called the same, so no word of an error
TABLES = {
    **{f"settings of {name}": lambda names=names: tell(names) for name, names in
       {"TRL": TRL, "Stable-Baselines3": SB3, "CleanRL": CLEANRL, "verl": VERL, "OpenRLHF": OPENRLHF}.items()},
    "losses of DPOTrainer": list_losses,
    "trainers of TRL": lambda: pair("from-trl", "trainer", TRAINERS),
    "concepts of verifiers": lambda: pair("from-verifiers", "verifiers", CONCEPTS),
}  # fmt: skip
