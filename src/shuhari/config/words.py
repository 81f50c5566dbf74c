"""Names of settings in other libraries (TRL, Stable-Baselines3, CleanRL, d3rlpy, verl, OpenRLHF): for the error of an
unknown key, and for the tables of the guides. Nested settings are known by the last parts of their names
(`model.path`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from shuhari.config.overlay import SCALARS, format_path, split_path, walk_leaves
from shuhari.data import nearest

SAME: Mapping[str, tuple[str, ...]] = MappingProxyType({  # the key here -> what others call it
    "part.policy.optimiser.lr": ("lr", "learning_rate", "actor_lr", "actor_learning_rate", "policy_lr"),
    "part.value.terms.expectile.tau": ("expectile",),
    "part.value.terms.expectile.temperature": ("weight_temp",),
    "part.policy.terms.deterministic_bc.alpha": ("alpha",),
    "part.critic.terms.conservative_sampled.weight": ("conservative_weight", "cql_alpha", "alpha"),
    "models.policy.window": ("context_size", "context_len"),
    "models.policy.target": ("target_return",),
    "part.policy.terms.q_learning.gamma": ("gamma", "discount", "discount_factor"),
    "part.policy.optimiser.clip": ("max_grad_norm", "grad_clip", "gradient_clip", "clip_grad", "max_norm"),
    "part.policy.optimiser.weight_decay": ("weight_decay",),
    "part.policy.epochs": ("n_epochs", "ppo_epochs", "num_iterations", "num_ppo_epochs", "epochs", "max_epochs",
                              "update_epochs"),
    "part.policy.minibatches": ("num_mini_batches", "minibatches", "steps_per_generation", "ppo_mini_batch_size",
                                   "num_minibatches"),
    "part.policy.terms.loss.high": ("clip_range", "cliprange", "clip_ratio", "epsilon", "epsilon_high", "clip_eps",
                                      "clip_ratio_high", "eps_clip", "clip_coef"),
    "part.policy.terms.loss.low": ("epsilon_low", "clip_ratio_low", "clip_range", "cliprange", "clip_ratio", "epsilon",
                                     "clip_eps", "eps_clip", "clip_coef"),
    "part.policy.terms.loss.dual": ("delta", "clip_ratio_c", "dual_clip"),
    "part.policy.terms.loss.level": ("importance_sampling_level",),
    "part.policy.terms.loss.reduce": ("loss_type", "loss_agg_mode"),
    "part.policy.terms.divergence.weight": ("beta", "kl_coef", "kl_beta", "init_kl_coef", "kl_loss_coef",
                                           "kl.init_coef"),
    "part.policy.terms.entropy.weight": ("ent_coef", "entropy_coef", "entropy_coeff"),
    "part.policy.terms.value.weight": ("vf_coef", "value_coef"),
    "part.policy.terms.value.clip": ("clip_range_vf", "clip_vloss"),
    "part.critic.terms.value.clip": ("cliprange_value", "value_clip"),
    "part.critic.terms.smoothed_td.noise": ("target_policy_noise", "policy_noise", "target_smoothing_sigma"),
    "part.critic.terms.smoothed_td.clip": ("target_noise_clip", "noise_clip", "target_smoothing_clip"),
    "part.critic.optimiser.lr": ("q_lr", "critic_lr", "critic_learning_rate"),
    "part.policy.every": ("policy_delay", "policy_frequency", "update_actor_interval"),
    "part.critic.terms.soft_td.gamma": ("gamma", "discount", "discount_factor"),
    "part.temperature.terms.temperature.target_entropy": ("target_entropy",),
    "transform.gae.gamma": ("gamma", "discount", "discount_factor"),
    "transform.gae.lam": ("gae_lambda", "lam", "lambd"),
    "transform.gae.scale": ("normalize_advantage", "norm_adv"),
    "collect.advantage.scale": ("scale_rewards", "normalize_advantage", "whiten_rewards", "norm_adv_by_std_in_grpo",
                                "no_std_norm"),
    "collect.advantage.centre": ("adv_estimator", "advantage.estimator", "advantage_estimator"),
    "collect.kl_in_reward.beta": ("use_kl_in_reward", "kl_ctrl.kl_coef"),
    "buffer.size": ("batch_size", "per_device_train_batch_size", "train_batch_size", "rollout_batch_size", "n_steps",
                    "generation_batch_size", "rollout.batch_size"),
    "buffer.capacity": ("buffer_size", "replay_size"),
    "buffer.warmup": ("learning_starts",),
    "buffer.collect": ("train_freq", "train_frequency"),
    "buffer.ratio": ("gradient_steps",),
    "micro_batch": ("micro_batch_size", "gradient_accumulation_steps", "micro_train_batch_size",
                    "ppo_micro_batch_size_per_gpu", "ppo_max_token_len_per_gpu"),
    "engine.staleness": ("max_off_policy_threshold", "async_queue_size"),
    "rollout.n": ("n", "num_generations", "group_size", "n_samples_per_prompt"),
    "rollout.lanes": ("n_envs", "num_envs"),
    "rollout.max_steps": ("max_tool_calling_iterations", "max_turns", "max_assistant_turns"),
    "rollout.sampling.max_new": ("max_new", "max_new_tokens", "max_tokens", "max_completion_length", "response_length",
                                 "max_response_length"),
    "rollout.sampling.temperature": ("temperature",),
    "rollout.sampling.top_p": ("top_p",),
    "rollout.sampling.top_k": ("top_k",),
    "rollout.sampling.min_p": ("min_p",),
    "rollout.sampling.epsilon": ("exploration_fraction", "exploration_final_eps", "exploration_initial_eps", "start_e",
                                 "end_e"),
    "follow.target.rate": ("tau", "polyak"),
    "follow.target.every": ("target_update_interval", "target_network_frequency"),
    "follow.reference.rate": ("ref_model_mixup_alpha",),
    "follow.reference.every": ("sync_ref_model", "ref_model_sync_steps"),
    "models.mixture.of.reference": ("mixture_coef",),
    "models.policy.path": ("model", "model_name", "model_name_or_path", "model.path", "policy"),
    "models.policy.context": ("max_prompt_length", "max_model_len", "data.max_len"),
    "models.policy.hidden": ("net_arch", "policy_kwargs", "hidden"),
    "models.policy.noise": ("action_noise", "exploration_noise"),
    "models.policy.bins.n": ("n_atoms",),
    "models.policy.bins.low": ("v_min",),
    "models.policy.bins.high": ("v_max",),
    "models.policy.lora.rank": ("lora_r", "lora_rank", "lora.rank", "peft_config"),
    "models.policy.lora.alpha": ("lora_alpha", "lora.alpha"),
    "task.name": ("env", "env_id", "dataset", "dataset_name", "train_dataset", "train_files", "prompt_dataset"),
    "reward.<name>.use": ("reward_funcs", "reward_fn", "reward_function", "custom_reward_function",
                          "custom_reward_function.path", "remote_url"),
    "reward.weights": ("reward_weights",),
    "steps": ("max_steps", "num_train_epochs", "total_episodes", "num_steps", "total_training_steps", "total_epochs",
              "num_episodes"),
    "env_steps": ("total_timesteps", "timesteps"),
    "evaluate.every": ("eval_steps", "eval_freq", "eval_every", "test_freq", "eval.steps"),
    "evaluate.n": ("n_eval_episodes",),
    "store.every": ("save_steps", "save_freq", "save_every"),
    "store.keep": ("save_total_limit", "max_actor_ckpt_to_keep", "ckpt.max_num"),
    "threads": ("num_threads", "n_threads"),
})  # fmt: skip

_SCHEDULE = "of a schedule {from = 1.0, to = 0.05, over = 0.1}"
REMARKS: Mapping[str, str] = MappingProxyType({  # a name above -> what is not the same
    "alpha": "SAC's is the role `temperature`",
    "batch_size": "of a replay; that of PPO's minibatches is here their number, part.policy.minibatches",
    "ent_coef": "but SAC's, with 'auto', is the role `temperature` of its recipe",
    "end_e": f"it is `to` {_SCHEDULE}",
    "exploration_final_eps": f"it is `to` {_SCHEDULE}",
    "exploration_fraction": f"it is `over` {_SCHEDULE}",
    "exploration_initial_eps": f"it is `from` {_SCHEDULE}",
    "exploration_noise": "in units of half the range of an action",
    "gradient_steps": "draws for each new decision: theirs of -1 is 1",
    "lr": "every part that is trained has its own",
    "learning_rate": "every part that is trained has its own",
    "n_steps": "it counts the decisions of all lanes: n_steps times rollout.lanes",
    "num_steps": "of the whole run; CleanRL's, of one rollout, is buffer.size, which counts the decisions of all lanes",
    "start_e": f"it is `from` {_SCHEDULE}",
    "weight_temp": "1 / weight_temp",
    "target_network_frequency": "in updates; theirs is in environment steps",
    "target_update_interval": "in updates; theirs is in environment steps",
    "train_freq": "in decisions",
    "v_max": "the end of the last bin, half a bin above its atom (51 atoms to 10: 10.2); with bins.sigma = 0",
    "v_min": "the start of the first bin, half a bin below its atom (51 atoms from -10: -10.2); with bins.sigma = 0",
    "train_frequency": "in decisions",
})  # fmt: skip

TOO: Mapping[str, tuple[str, ...]] = MappingProxyType({  # key -> others of the same name, if a recipe has them
    "part.policy.terms.divergence.weight": ("part.policy.terms.preference.beta", "part.policy.terms.loss.beta"),
    "part.critic.terms.soft_td.gamma": ("part.critic.terms.smoothed_td.gamma", "part.critic.terms.value_td.gamma"),
})  # fmt: skip
OF_ONE = ("actor_lr", "actor_learning_rate", "policy_lr", "q_lr", "critic_lr", "critic_learning_rate")  # of one part
OF_BUFFER: Mapping[str, str] = MappingProxyType({  # a name, of a recipe with a buffer -> what it is there
    "n_steps of replay": "the rewards before a bootstrap are `n` of the term (part.policy.terms.q_learning.n); steps "
                         "in all are env_steps",
    "n_steps of offline": "steps=.., each of which makes buffer.draws updates",
})  # fmt: skip

_FOLDER = "the folder of a run is `path`, the second argument of shuhari.train, and --run on the command line"
_SINKS = "observe=shuhari.TensorBoard(..) of shuhari.train, --log-to on the command line, are called with each report"
_ALONE = "settings are arguments of their own: steps=100, **{'rollout.n': 8}"
ARGUMENTS: Mapping[tuple[str, ...], str] = MappingProxyType({  # what no setting is: names elsewhere -> what to do
    ("run", "run_dir", "run_name", "run_path", "output_dir", "out_dir", "out", "output", "log_dir", "logdir",
     "save_dir", "save_path", "folder", "directory"): _FOLDER,
    ("reward_funcs", "reward_func", "reward_fn", "reward_fns", "reward_function", "reward_functions", "rewards",
     "reward_model", "reward_models"): "reward=, a function, a list of such, name -> function or the directory of a "
                                       "reward model, of shuhari.train; reward.<name>.use=file.py:function in a recipe",
    ("train_dataset", "training_data", "train_data", "data", "rows", "train_set"):
        "dataset=, rows to train on, of shuhari.train; task.name=file/<path> in a recipe",
    ("eval_dataset", "eval_data", "test_dataset", "validation_dataset", "val_dataset"):
        "dataset={'train': rows, 'test': rows} of shuhari.train; a column `split` in a file",
    ("environment", "environments", "env_fn", "env_cls", "env_class", "make_env", "vec_env", "envs"):
        "env=, a class, a function or an environment, of shuhari.train; task.name=gym/<id> in a recipe",
    ("tool", "functions"): "tools=, a list of functions, of shuhari.train; rollout.environments.tools in a recipe",
    ("method", "with"): "methods=, a list of names, of shuhari.train, and --with on the command line",
    ("callback", "callbacks"): "progress=, or observe=, of shuhari.train is called with each step's report",
    ("early_stopping", "early_stopping_patience", "early_stop", "patience", "stop_reward", "reward_threshold"):
        "stop_when, such as 'evaluate/greedy not better for 5' or 'evaluate/greedy >= 200'",
    ("report_to", "log_to", "logger", "logging", "tensorboard_log", "wandb", "use_wandb"): _SINKS,
    ("args", "config", "cfg", "settings", "training_args", "hyperparameters", "hparams", "kwargs"): _ALONE,
    ("tokenizer", "processing_class", "processor"): "one comes with the model: models.policy.path=<directory>",
    ("peft_config", "lora", "lora_config", "use_lora", "use_peft"):
        "adapters are models.policy.lora.rank, .alpha and so on",
    ("verbose", "progress_bar", "disable_tqdm"): "progress=True or False of shuhari.train",
    ("resume", "resume_from_checkpoint", "resume_from"): "no need: the same call with the same folder goes on",
    ("pretrained", "init_from", "load_from"): "init=, a run whose weights this one starts from, and --init",
    ("device", "device_map"): "models.policy.device",
    ("bf16", "fp16", "dtype", "torch_dtype"): "models.policy.dtype, such as 'bfloat16'",
    ("gradient_checkpointing",): "models.policy.gradient_checkpointing",
    ("max_length", "max_seq_length", "max_seq_len", "cutoff_len"):
        "models.policy.context, prompt and answer together; rollout.sampling.max_new for answers alone; "
        "task.too_long = 'cut' or 'leave_out' for rows that are longer",
    ("warmup_ratio", "warmup_steps", "num_warmup_steps", "lr_scheduler_type", "lr_scheduler"):
        "a schedule as the rate, such as part.policy.optimiser.lr = {from = 1e-5, to = 0, warm = 10}",
    ("logging_steps", "logging_strategy", "logging_first_step", "log_every"): "no need: each step is reported",
    ("eval_strategy", "evaluation_strategy", "do_eval"): "evaluate.every, in steps; 0: only at both ends of a run",
    ("save_strategy",): "store.every, in steps",
    ("use_vllm", "vllm_mode", "vllm_gpu_memory_utilization"): "engine.use = 'vllm'",
    ("packing", "padding_free"): "no need: rows are packed if the model's layout allows it",
    ("optimize_memory_usage", "handle_timeout_termination"): "no need: each observation is kept once, and a time limit "
                                                             "bootstraps",
    ("remove_unused_columns", "dataloader_num_workers", "ddp_find_unused_parameters"): "no need: leave it out",
    ("optimizer", "optimizers", "optim"): "part.policy.optimiser, with `use` and its settings",
    ("normalize", "normalise", "vec_normalize", "normalize_env", "norm_obs", "norm_reward", "observation_scaler",
     "normalize_observations", "normalize_rewards"):
        "observations: models.policy.normalise=true, and that of the critic; rewards: collect.scale_rewards.gamma=0.99 "
        "with models.critic.returns=true",
    ("reward_scaler",): "reward.weights.task=0.1, or collect.scale_rewards.gamma=0.99 with models.critic.returns=true",
    ("encoder_factory", "features_extractor_class", "features_extractor_kwargs"):
        "the widths of a network are models.policy.hidden; a model of your own is models.policy.use=file.py:Class",
    ("use_sde", "sde_sample_freq"): "we have none: a policy explores by its deviation, or by models.policy.noise",
    ("target_kl",): "we have none: no epoch is left out; part.policy.epochs and the clip bound an update",
    ("n_quantiles",): "quantiles.n of the model with them: models.policy of qr_dqn, models.critic of tqc",
    ("top_quantiles_to_drop_per_net",): "part.critic.terms.soft_td.drop",
    ("n_critics",): "models.critic.n",
    ("replay_buffer_class", "replay_buffer_kwargs", "n_sampled_goal", "goal_selection_strategy"):
        "new goals in hindsight are buffer.hindsight={strategy = 'future', goals = 4}; baselines/her_bitflip has them",
    ("anneal_lr",): "a schedule as the rate, such as part.policy.optimiser.lr = {from = 3e-4, to = 0}",
    ("autotune", "alpha_lr", "temp_learning_rate"): "the role `temperature` of SAC's recipes, part.temperature",
    ("random_steps",): "rollout.random, and buffer.warmup for what is collected before the first update",
    ("n_steps_per_epoch",): "evaluate.every, in steps of the loop",
})  # fmt: skip
POLICIES = MappingProxyType({  # a policy of Stable-Baselines3 -> what to do
    "MlpPolicy": "a recipe has its network: models.policy.hidden and .layers are its sizes; leave `policy` out",
    "CnnPolicy": "recipes for images have theirs (baselines/ppo_minigrid, reproduce/ppo_atari); leave `policy` out",
    "MultiInputPolicy": "dictionaries of observations are read as they are; leave `policy` out",
    "MlpLstmPolicy": "policies with memory are those of baselines/recurrent_ppo_cartpole; leave `policy` out",
})
_HINTS = MappingProxyType({
    name: hint
    for names, hint in ARGUMENTS.items()
    for name in names
})


def explain_option(name: str) -> str:
    """Return what an unknown option of the command line (`--max-new`) may mean as a setting; "" if nothing is known."""
    key = name.lstrip("-").replace("-", "_")
    if key in SCALARS:
        return f"a setting is --set {key}=..."
    if found := find_meanings((key,)):
        return f"a setting is --set {found[0]}=..."
    return f"here: {_HINTS[key]}" if key in _HINTS else ""


def find_meanings(path: Iterable[str]) -> tuple[str, ...]:
    """Return our keys for another library's name. A dotted name is looked up whole, then without its first part, and so
    on."""
    parts = tuple(path)
    ends = (".".join(parts[i:]) for i in range(len(parts)))
    return next(
        (
            found
            for end in ends
            if (found := tuple(k for k, names in SAME.items() if end in names))
        ),
        (),
    )


def explain_unknown(key: str, tree: Mapping[str, Any], known: Iterable[str]) -> str:
    """Return what an unknown key may mean: the settings of this recipe that others call so, by its part names, or the
    nearest known key. For a table, what its entries may mean."""
    if key == "policy" and str(tree.get(key)) in POLICIES:
        return f"here: {POLICIES[str(tree[key])]}"
    if key in _HINTS and not isinstance(tree.get(key), Mapping):
        return f"here: {_HINTS[key]}"
    buffer = tree.get("buffer")
    if isinstance(buffer, Mapping) and (there := OF_BUFFER.get(f"{key} of {buffer.get('use')}")):
        return f"here: {there}"
    inner, near = tree.get(key), nearest(key, known)
    paths = [(key, *path) for path, _ in walk_leaves(inner)] if isinstance(inner, Mapping) else [(key,)]
    meant = {path: found for path in paths if (found := find_meanings(path))}
    sections = {found[0].partition(".")[0] for path, found in meant.items() if len(path) > 1}
    if not meant or any(near.startswith(f"did you mean {section!r}") for section in sections):
        return near  # a section of ours, misspelt
    rest = {k: v for k, v in tree.items() if k != key}
    ours = {path: " and ".join(_localise(found, rest, path[-1] in OF_ONE)) for path, found in meant.items()}
    if (key,) in ours:
        remark = REMARKS.get(key.rpartition(".")[2], "")
        return f"it is {ours[key,]} here{': ' * bool(remark)}{remark}"
    return ", ".join(f"{format_path(path)} is {own}" for path, own in ours.items()) + " here"


def _localise(meanings: Sequence[str], tree: Mapping[str, Any], one: bool) -> list[str]:
    """Return the intended settings by the part names of a recipe, which may leave them at their defaults; if it has no
    place for them, the usual names. one: it is of one part, the one of the usual name if a recipe has it."""
    every = [
        key
        for meaning in meanings
        for key in (meaning, *TOO.get(meaning, ()))
    ]
    paths = [split_path(key) for key in every if "<" not in key]
    there = dict.fromkeys(  # tables, too: a schedule is one
        p[:i]
        for p, _ in walk_leaves(tree)
        for i in range(2, len(p) + 1)
    )
    if one and (exact := [path for path in paths if path in there]):
        return list(map(format_path, exact))
    ends = {path[-2:] for path in paths}
    leaves = [p for p in there if p[-2:] in ends]
    if not leaves:
        usual = {path[-3:-1]: path[-1] for path in map(split_path, meanings)}
        leaves = [(*table, usual[table[-2:]]) for table in there if table[-2:] in usual]
    own = [p for p in leaves if p[0] != "stage"] or leaves
    return [format_path(p) for p in own[:3]] or list(meanings)
