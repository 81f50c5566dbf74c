"""Short names of algorithms, as a user of TRL or Stable-Baselines3 types them: `grpo`, `ppo`, `sac`. No torch.

One name may mean several recipes: the other settings decide, a trained model (`models.policy.path`) or an environment.
If they do not, an error lists all of them, and none is chosen.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shuhari.config.overlay import RecipeError, look_up
from shuhari.data import EMPTY

TRAINED, SCRATCH, DISCRETE, CONTINUOUS, IMAGES, DATA = (
    "trained", "scratch", "discrete", "continuous", "images", "data"
)  # fmt: skip
WORDS = {
    TRAINED: "for a trained model of yours (--set models.policy.path=DIR)",
    SCRATCH: "for a small language model that starts from random weights",
    DISCRETE: "for an environment with discrete actions (--env ID)",
    CONTINUOUS: "for an environment with continuous actions (--env ID)",
    IMAGES: "for an environment that shows images (--env ID)",
    DATA: "from recorded episodes",
}
LAID = " --with "  # between a recipe and the method that is laid over it
_ENDS = {TRAINED: "pretrained/grpo --with rlvr/{}", SCRATCH: "baselines/{}"}
NAMES: Mapping[str, Mapping[str, str]] = {  # name -> what is at hand -> recipe
    "grpo": {TRAINED: "pretrained/grpo", SCRATCH: "baselines/grpo"},
    **{name: {at: text.format(name) for at, text in _ENDS.items()}
       for name in ("dr_grpo", "dapo", "gspo", "rloo", "cispo")},
    "reinforce": {SCRATCH: "baselines/reinforce"},
    "reinforce++": {SCRATCH: "baselines/reinforce_pp"},
    "sft": {TRAINED: "pretrained/sft", SCRATCH: "baselines/sft_arithmetic"},
    "dpo": {TRAINED: "pretrained/dpo", SCRATCH: "baselines/dpo"},
    "kto": {SCRATCH: "baselines/kto"},
    "opd": {TRAINED: "pretrained/opd", SCRATCH: "baselines/opd"},
    "gkd": {TRAINED: "pretrained/opd", SCRATCH: "baselines/opd"},
    "reward": {TRAINED: "pretrained/reward_model"},
    "reward_model": {TRAINED: "pretrained/reward_model"},
    "ppo": {DISCRETE: "baselines/ppo_cartpole", CONTINUOUS: "baselines/ppo_pendulum", IMAGES: "baselines/ppo_minigrid",
            SCRATCH: "baselines/ppo"},
    "maskable_ppo": {DISCRETE: "baselines/ppo_taxi"},
    "recurrent_ppo": {DISCRETE: "baselines/recurrent_ppo_cartpole"},
    "a2c": {DISCRETE: "baselines/a2c_cartpole"},
    "dqn": {DISCRETE: "baselines/dqn_cartpole"},
    "qr_dqn": {DISCRETE: "baselines/qr_dqn_cartpole"},
    "rainbow": {DISCRETE: "baselines/rainbow_cartpole"},
    "sac": {CONTINUOUS: "baselines/sac_pendulum"},
    "td3": {CONTINUOUS: "baselines/td3_pendulum"},
    "tqc": {CONTINUOUS: "baselines/tqc_pendulum"},
    "crossq": {CONTINUOUS: "baselines/crossq_pendulum"},
    "her": {DISCRETE: "baselines/her_bitflip"},
    "bc": {DISCRETE: "baselines/bc_cartpole", CONTINUOUS: "baselines/bc_pendulum"},
    "awr": {DATA: "baselines/awr_cartpole"},
    "iql": {DATA: "baselines/iql_pendulum"},
    "td3_bc": {DATA: "baselines/td3_bc_pendulum"},
    "rebrac": {DATA: "baselines/rebrac_pendulum"},
    "awac": {DATA: "baselines/awac_pendulum"},
    "decision_transformer": {DATA: "baselines/decision_transformer_pendulum"},
    "cql": {DISCRETE: "baselines/cql_cartpole", CONTINUOUS: "baselines/cql_pendulum"},
}  # fmt: skip
ALSO = {"reinforce_pp": "reinforce++", "qrdqn": "qr_dqn", "drgrpo": "dr_grpo", "ppo_mask": "maskable_ppo",
        "ppo_lstm": "recurrent_ppo", "ppo_recurrent": "recurrent_ppo", "recurrentppo": "recurrent_ppo",
        "maskableppo": "maskable_ppo", "td3plusbc": "td3_bc", "td3_plus_bc": "td3_bc", "dt": "decision_transformer",
        "decisiontransformer": "decision_transformer", "rm": "reward_model"}  # fmt: skip


def find_meant(reference: str, settings: Mapping[str, Any] = EMPTY) -> tuple[str, list[str]]:
    """Return (recipe, methods to lay over it) of a short name, depending on the model and the task in `settings` (a
    tree); the reference itself, and no method, if it is no short name. RecipeError, with the possible recipes, if the
    settings do not decide."""
    if (name := find_name(reference)) is None or (Path(reference) / "recipe.toml").is_file():
        return reference, []
    meant = NAMES[name]
    at = next(iter(meant)) if len(meant) == 1 else _find_kind(settings)
    if at == IMAGES and at not in meant:
        at = DISCRETE if DISCRETE in meant else CONTINUOUS
    if at not in meant:
        lacks = f"no recipe of {name!r} is {WORDS[at].partition(' (')[0]}; " if at else ""
        raise RecipeError("", f"{lacks}{describe(name)}")
    recipe, _, method = meant[at].partition(LAID)
    return recipe, [method] if method else []


def find_name(reference: str) -> str | None:
    """Return the short name that a text is, in any case, with `-` for `_`; None if it is none."""
    name = reference.lower().replace("-", "_")
    name = ALSO.get(name, name)
    return name if name in NAMES else None


def describe(name: str) -> str:
    """Describe what a short name may mean."""
    told = "; ".join(f"`{recipe}` {WORDS[at]}" for at, recipe in NAMES[name].items())
    return f"{name!r} names {'several recipes' if len(NAMES[name]) > 1 else 'a recipe'}: {told}"


def _find_kind(settings: Mapping[str, Any]) -> str:
    """Return what the settings have: a trained model, an environment by its spaces, or `scratch` if a model or a task
    of text is set; "" if they decide nothing."""
    path = look_up(settings, ("models", "policy", "path"))
    if path is not None:
        return TRAINED if path else SCRATCH
    task = look_up(settings, ("task",))
    spaces = _find_spaces(task) if isinstance(task, Mapping) and "name" in task else None
    if spaces is not None:
        seen, acts = spaces
        if type(acts).__name__ == "Box":
            return CONTINUOUS
        return IMAGES if len(getattr(seen, "shape", None) or ()) > 1 else DISCRETE
    return SCRATCH if look_up(settings, ("models", "policy", "use")) == "causal" else ""


def _find_spaces(task: Mapping[str, Any]) -> tuple[Any, Any] | None:
    """Return (observation space, action space) of an environment; None for any other task. RecipeError for an
    environment that does not exist."""
    if not str(task["name"]).startswith(("gym", "world")):
        return None
    from shuhari.config.settings import Settings  # of environments alone

    found: tuple[Any, Any] | None = Settings().make_task(task).spaces()
    return found
