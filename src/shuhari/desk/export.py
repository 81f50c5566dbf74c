"""Exports the trained model of a run: a Hugging Face directory, LoRA adapters for peft, or a controller's weights.

A directory is written completely or not at all: it is made under a temporary name and renamed, and may replace only an
export (`store.folders`). Of the code that a recipe names, only tasks and models are loaded, no graders or tools. Left
out: optimisers and everything else for resuming (`--init` starts another run from a run's weights).
"""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shuhari.config import recipe as recipes
from shuhari.data import nearest
from shuhari.ports.hooks import ability
from shuhari.store.folders import find_old, refuse_foreign, replace_folder

WEIGHTS, CARD = "model.safetensors", "model.json"  # of a controller
_MODEL = (
    "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
    "added_tokens.json", "vocab.json", "vocab.txt", "merges.txt", "chat_template.jinja", "model.safetensors",
    "model-?????-of-?????.safetensors", "model.safetensors.index.json", "value_head.safetensors",
)  # fmt: skip
OURS = (  # possible files of an export without a list of its files, as older versions wrote
    *_MODEL, *(f"base/{name}" for name in _MODEL), "adapter_config.json", "adapter_model.safetensors", "README.md",
    CARD,
)  # fmt: skip


@dataclass(frozen=True)
class Exported:
    """What `export` wrote. kind: `causal`, `adapter`, `reward model` or `controller`; `use`: Python code that loads
    it."""

    path: Path
    kind: str
    role: str
    step: int
    files: dict[str, int]  # name -> bytes
    use: str


def export(
    run: str | Path,
    directory: str | Path,
    *,
    role: str = "policy",
    dtype: str = "",
    shard: str = "5GB",
    adapter: bool = False,
    reward_model: bool = False,
    force: bool = False,
) -> Exported:
    """Write the model of a run for use outside of it. `run`: `RUN`, `RUN@step` or `RUN@best`.

    A language model is written for `AutoModelForCausalLM.from_pretrained` and `AutoTokenizer.from_pretrained`, with
    LoRA adapters merged; `adapter`: the adapters alone, for `PeftModel.from_pretrained`; `reward_model`: with its value
    head at the last token of a text, for `AutoModelForSequenceClassification.from_pretrained`, or, of a model with
    `after = true`, at each token, for `AutoModelForTokenClassification.from_pretrained`; both for the reward
    `reward_model`. Any other model is written as the state dict of its module (`model.safetensors`) and a description
    (`model.json`).

    `dtype`: float32 (the default), bfloat16 or float16; `shard`: the largest file of weights, such as `2GB`; `force`:
    replace an earlier export in the directory, whose files are listed in `written.json` (in older exports, recognised
    by name).

    Raises ValueError for an unknown role or incompatible settings, FileExistsError if the directory is not empty or,
    with `force`, holds files other than an export's, NoRunError or StoreError for the run and its step, StoreError if
    the directory cannot be written.
    """
    from shuhari.loop.opening import open_models
    from shuhari.models.text.pretrained import dtype_of
    from shuhari.needs import role_model
    from shuhari.store import Run, StoreError, find_checkpoint

    path, step = find_checkpoint(str(run))
    if dtype:
        dtype_of(dtype)
    if not re.fullmatch(r"[1-9]\d*(KB|MB|GB)", shard):
        raise ValueError(f"shard is {shard!r}: expected a size, such as 500MB or 2GB")
    target = Path(directory)
    _check_target(target, path, force)
    roles = {
        r
        for stage in recipes.load(path).stages
        for r in stage.get("models", {})
    }
    if role not in roles:
        raise ValueError(f"{path} has no role {role!r}; {nearest(role, roles)}")
    models, task = open_models(path, step)
    model, place = role_model(models, role), target.resolve()
    made = place.with_name(f".tmp-{place.name}")
    try:
        shutil.rmtree(made, ignore_errors=True)
        made.mkdir(parents=True)
        if adapter:
            _check_adapter(model, role, dtype)
            kind, use = "adapter", _adapter(model, made, place, _base(model, Run(path), role))
        elif reward_model:
            loaded = _save_scorer(model, made, role, dtype, shard)
            kind, use = "reward model", f"{loaded}.from_pretrained({str(target)!r})"
        elif ability(model, "save") is not None:
            model.save(made, dtype=dtype, shard=shard)
            kind, use = "causal", f"AutoModelForCausalLM.from_pretrained({str(target)!r})"
        else:
            if dtype not in ("", "float32"):
                raise ValueError(f"dtype is {dtype!r}: the model of {role!r} is not a language model; expected float32")
            kind, use = "controller", f"safetensors.torch.load_file({str(target / WEIGHTS)!r})"
            _controller(model, task, made, role, Run(path).recipe)
        replace_folder(place, made, OURS)
        files = {str(f.relative_to(place)): f.stat().st_size for f in sorted(place.rglob("*")) if f.is_file()}
    except FileExistsError:  # something was written there meanwhile
        raise
    except OSError as error:
        why = error.strerror or str(error)
        raise StoreError(f"{target} cannot be written: {why}: choose a directory of yours with room") from error
    finally:
        shutil.rmtree(made, ignore_errors=True)
    at = step if step is not None else int((Run(path).cursor or {"step": -1})["step"])
    return Exported(target, kind, role, at, files, use)


def export_replay(run: str | Path, directory: str | Path, *, place: str = "") -> Path:
    """Write the replay buffer of a run as a data set that the recording `file` reads, with a description in
    `card.json`. Returns the directory. `place`: which replay, if a run has several; an error names them.

    Raises ValueError for a run without a replay or with several, FileExistsError if the directory is not empty,
    NoRunError or StoreError for the run and its step."""
    from shuhari.buffers.recordings import save
    from shuhari.kernel import state
    from shuhari.loop.opening import open_checkpoint
    from shuhari.store import find_checkpoint

    path, step = find_checkpoint(str(run))
    target = Path(directory)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise FileExistsError(f"{target} is there already: choose another directory")
    with open_checkpoint(path, step) as opened:
        kept = {at: c for at, c in state.walk(dict(opened.stage.learners)) if ability(c, "recorded") is not None}
        if place and place not in kept:
            raise ValueError(f"{path} has no replay {place!r}; {nearest(place, kept)}")
        if len(kept) != 1 and not place:
            names = ", ".join(kept)
            message = f"several: {names}: name one as `place` (--place)" if kept else "none: its rows are used once"
            raise ValueError(f"{path} keeps {message}")
        columns = kept[place or next(iter(kept))].recorded()
        return save(columns, target, f"reward/{next(iter(opened.ctx.weights))}", str(run))


def _check_target(target: Path, run: Path, force: bool) -> None:
    if target.resolve().is_relative_to(run.resolve()):
        raise ValueError(f"{target} lies in the run {run}, which holds what the store writes: choose another directory")
    if target.is_dir() and any(target.iterdir()) and not force:
        raise FileExistsError(f"{target} is not empty: choose another directory, or replace an export with --force")
    for folder in (target, find_old(target.resolve())):
        refuse_foreign(folder, OURS)


def _base(model: Any, run: Any, role: str) -> str:
    """Return the directory with the base weights of the adapters; "" if there is none: the model was made from scratch,
    or started from the weights of another run or role, or with adapters that were merged."""
    path = Path(ability(model, "path")).expanduser()
    began = run.get("init", "") or run.recipe.get("models", {}).get(role, {}).get("init", "")
    return str(path.resolve()) if str(path) != "." and not began and (path / "config.json").is_file() else ""


def _save_scorer(model: Any, made: Path, role: str, dtype: str, shard: str) -> str:
    """Write a reward model; return the class of transformers that loads it."""
    if (save := ability(model, "save_scorer")) is None:
        raise ValueError(f"the model of {role!r} is not a language model: export it without --reward-model")
    try:
        save(made, dtype=dtype, shard=shard)
    except ValueError as error:
        raise ValueError(f"the model of {role!r} is not a reward model: {error}") from None
    (name,) = json.loads((made / "config.json").read_text(encoding="utf-8"))["architectures"]
    tokens = str(name).endswith("ForTokenClassification")
    return "AutoModelForTokenClassification" if tokens else "AutoModelForSequenceClassification"


def _check_adapter(model: Any, role: str, dtype: str) -> None:
    if ability(model, "lora") is None:
        raise ValueError(f"the model of {role!r} has no adapters ([models.{role}] lora): export it without --adapter")
    if dtype:
        raise ValueError(f"dtype is {dtype!r}: adapters alone are written as they were trained, float32")


def _adapter(model: Any, made: Path, place: Path, base: str) -> str:
    if not base:
        model.save_base(made / "base")
        base = str(place / "base")
    model.save_adapters(made, base)
    return f"PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained({base!r}), {str(place)!r})"


def _controller(model: Any, task: Any, made: Path, role: str, recipe: dict[str, Any]) -> None:
    from shuhari.store.files import write_file
    from shuhari.store.tensors import pack

    tensors = dict(model.module.state_dict())
    space, actions = task.spaces() or (None, None)
    write_file(made / WEIGHTS, pack(tensors))
    card = {
        "format": 1,
        "role": role,
        "class": f"{type(model).__module__}.{type(model).__qualname__}",
        "models": recipe.get("models", {}),
        "task": recipe.get("task", {}),
        "observations": str(space),
        "actions": str(actions),
        "tensors": {name: [str(x.dtype).removeprefix("torch."), list(x.shape)] for name, x in tensors.items()},
    }
    (made / CARD).write_text(json.dumps(card, indent=2) + "\n")
