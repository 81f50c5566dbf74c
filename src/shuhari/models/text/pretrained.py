"""Loads and saves Hugging Face directories of causal language models, with checks before the first step (`folder.py`),
whose errors include the remedy.

Left out: quantised weights, pickles, and code that comes with weights, which is never run. Weights are read as float32.

Axes: `V` embeddings.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from shuhari.data import Array, nearest
from shuhari.models.text import gguf, stored
from shuhari.models.text.clean import checked_copy, forget
from shuhari.models.text.folder import (
    check_adapters,
    check_config,
    check_size,
    check_tokenizer,
    check_weights,
    has_tokenizer,
    holds_adapters,
    read_json,
    reading,
)
from shuhari.models.text.hub import fetch
from shuhari.models.text.tokenizers import Tokenizer
from shuhari.store.files import follow_umask

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
WITHIN = "base_model.model."  # prefix of the names of adapters
SHARD = "5GB"  # largest size of a weights file that is written
LORA = frozenset(  # keys of adapter_config.json that decide how adapters are merged
    "r lora_alpha target_modules exclude_modules fan_in_fan_out bias use_rslora use_dora rank_pattern alpha_pattern "
    "layers_to_transform layers_pattern modules_to_save task_type".split()
)


def load(path: str) -> tuple[Any, Tokenizer]:
    """Returns the model and the tokenizer of a directory (or a hub id, if the hub can be reached), of a directory of
    LoRA adapters, merged into their base, of a run that began with one of these, or of a .gguf file. Raises ValueError,
    naming the place, for one that cannot work; FileNotFoundError if there is nothing."""
    place = Path(path).expanduser()
    return _open(place if place.is_dir() or (place.suffix == ".gguf" and place.is_file()) else fetch(path, place), ())


def save(lm: Any, text: Tokenizer, directory: str | Path, *, dtype: str = "", shard: str = SHARD) -> None:
    """Writes configuration, safetensors and tokenizer. `dtype`: of the weights (default: unchanged); `shard`: the
    largest file, such as `2GB`."""
    if dtype and lm.dtype != (wanted := dtype_of(dtype)):
        lm = copy.deepcopy(lm).to(wanted)
    with silence():
        lm.save_pretrained(directory, max_shard_size=shard)
    follow_umask(Path(directory))
    text.save(str(directory))


@dataclass(frozen=True)
class Outline:
    """What an external engine needs to know of a model: the end tokens, the ids that are never sampled, the number of
    ids, the longest row, its `model_type`, and the conversions between ids and strings."""

    ends: tuple[int, ...]
    never: tuple[int, ...]
    vocabulary: int
    limit: int
    architecture: str
    decode: Callable[[Array], str]
    spell: Callable[[Sequence[str]], Sequence[Array] | None]  # see `Tokenizer.stops`


def export(lm: Any, directory: Path) -> None:
    """Writes only configuration and weights, for external engines, in one file. A head tied to the embeddings is
    written separately, untied: vLLM on a CPU packs the head's weights, and reloading tied ones would not update the
    packed copy."""
    from safetensors.torch import save_file

    directory.mkdir(parents=True, exist_ok=True)
    config = copy.deepcopy(lm.config)
    config.tie_word_embeddings, config.architectures, config.dtype = False, [type(lm).__name__], lm.dtype
    config.save_pretrained(directory)
    weights: dict[str, torch.Tensor] = {}
    seen: set[int] = set()
    for name, x in lm.state_dict().items():
        shared = x.data_ptr() in seen
        seen.add(x.data_ptr())
        weights[name] = x.detach().cpu().clone() if shared else x.detach().cpu().contiguous()
    save_file(weights, str(directory / "model.safetensors"), metadata={"format": "pt"})


def dtype_of(name: str) -> torch.dtype:
    """Returns the number type `name`. Raises ValueError with the nearest name if there is none."""
    if name not in DTYPES:
        raise ValueError(f"dtype is {name!r}; {nearest(name, DTYPES)}")
    return DTYPES[name]


def count_positions(lm: Any) -> int:
    """Returns the number of positions of a model; 0 if there is no limit."""
    return int(lm.config.to_dict().get("max_position_embeddings") or 0)


def find_digest(lm: Any) -> str:
    """Returns a digest that identifies a model, from its configuration and the sums of its weights."""
    digest = hashlib.blake2b(lm.config.to_json_string().encode(), digest_size=16)
    for name, x in lm.named_parameters():
        digest.update(f"{name} {tuple(x.shape)} {x.dtype} {float(x.detach().sum(dtype=torch.float64))!r}".encode())
    return digest.hexdigest()


def lies_at(place: Path) -> bool:
    """Whether a path holds the weights of a model directly: a directory of a model, or a .gguf file."""
    if place.suffix == ".gguf" and place.is_file():
        return True
    return (place / "config.json").is_file() and not (place / "adapter_config.json").exists()


def read_weights(path: str) -> dict[str, torch.Tensor]:
    """Returns the weights of the model at a path, by their names in a checkpoint, without adapters. Raises as
    `load`."""
    lm, _ = load(path)
    return stored.name_weights(lm)


def load_head(value: Any, file: Path) -> None:
    """Loads a linear value head from its file. Raises ValueError if it does not fit."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        value.load_state_dict(load_file(str(file)))
    except (SafetensorError, RuntimeError, OSError) as error:
        raise ValueError(f"{file} is not a value head of this model: {error}") from None


# ---------------------------------------------------------------- reading


def _load(place: Path, above: tuple[Path, ...]) -> tuple[Any, Tokenizer]:
    """Loads a directory; `above`: directories whose adapters it is the base of."""
    if (here := place.resolve()) in above:
        holds = "holds adapters of a base that holds adapters of it"
        what = "began with a run that began with it" if stored.is_run(place) else holds
        raise ValueError(f"{place} {what}: expected a base that is a model")
    with reading(place):
        if stored.is_run(place):
            return stored.read_run(place, lambda base: _open(base, (*above, here)))
        return _merge_adapters(place, (*above, here)) if holds_adapters(place) else _read(place)


def _open(place: Path, above: tuple[Path, ...]) -> tuple[Any, Tokenizer]:
    """Loads a directory or a .gguf file."""
    if place.suffix == ".gguf" and place.is_file():
        with reading(place), silence():
            place = gguf.unpack(place)
    return _load(place, above)


def _read(place: Path) -> tuple[Any, Tokenizer]:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    check_config(place)
    stored = check_weights(place, "model")
    check_tokenizer(place)
    how: dict[str, Any] = {"trust_remote_code": False, "local_files_only": True}
    with silence(), checked_copy(place) as copied:
        check_size(place, copied, stored)
        lm, found = AutoModelForCausalLM.from_pretrained(
            str(copied),
            ignore_mismatched_sizes=True,
            output_loading_info=True,
            dtype=torch.float32,
            use_safetensors=True,
            **how,
        )
        hf = AutoTokenizer.from_pretrained(str(copied), **how)
        forget(copied, place, lm, hf)
    if wrong := sorted(found["mismatched_keys"]):
        name, there, here = wrong[0]
        raise ValueError(f"{place}: {name} is {tuple(there)} in its weights, {tuple(here)} by its config.json")
    if missing := sorted(found["missing_keys"]):
        raise ValueError(f"{place}: {len(missing)} of the model's weights are not there, such as {missing[0]}: "
                         "expected those of a causal language model, with its head")  # fmt: skip
    return lm, _tokenizer(hf, lm, place)


def _tokenizer(hf: Any, lm: Any, place: Path) -> Tokenizer:
    """Returns the tokenizer with the end ids of the generation configuration: a list is used as it is; a single id,
    which may be an unintended default, only if it is an added token of the tokenizer."""
    configured = getattr(lm.generation_config, "eos_token_id", None)
    ends = list(configured) if isinstance(configured, list | tuple) else []
    if isinstance(configured, int) and (hf.eos_token_id is None or configured in hf.added_tokens_decoder):
        ends = [configured]
    try:
        return Tokenizer(hf, ends, int(lm.get_input_embeddings().num_embeddings))
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from None


def _merge_adapters(place: Path, above: tuple[Path, ...]) -> tuple[Any, Tokenizer]:
    """Loads a base with the adapters of a directory merged into it."""
    named = str(read_json(place / "adapter_config.json").get("base_model_name_or_path") or "")
    tensors = check_weights(place, "adapter_model")
    base = next((b for b in (Path(named).expanduser(), place / named) if named and b.is_dir()), None)
    if base is None or base.resolve() == place.resolve():
        raise ValueError(f"{place} holds adapters of {named!r}, which is not a directory: set base_model_name_or_path "
                         "in its adapter_config.json to the directory of the base model")  # fmt: skip
    try:
        from peft import LoraConfig, PeftModel
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError('adapters need peft: pip install "shuhari[lm]"') from error
    from transformers import AutoTokenizer

    table = check_adapters(place)
    config = LoraConfig(**{k: v for k, v in table.items() if k in LORA and v is not None})
    own = has_tokenizer(place)
    if own:
        check_tokenizer(place)
    lm, text = _load(base, above)
    layers = {name.removeprefix(WITHIN).rpartition(".lora_")[0] for name in tensors if ".lora_" in name}
    if lost := sorted(layers - {name for name, _ in lm.named_modules()}):
        raise ValueError(f"the adapters of {place} do not fit their base {base}: {len(lost)} of {len(layers)} layers "
                         f"are not there, such as {lost[0]}")  # fmt: skip
    try:
        with silence(), checked_copy(place) as copied:
            lm = PeftModel.from_pretrained(lm, str(copied), config=config).merge_and_unload(safe_merge=True)
            how: dict[str, Any] = {"trust_remote_code": False, "local_files_only": True}
            hf = AutoTokenizer.from_pretrained(str(copied), **how) if own else text.hf
            forget(copied, place, hf)
    except RuntimeError as error:  # of torch, if shapes differ
        raise ValueError(f"the adapters of {place} do not fit their base {base}: {error}") from None
    for parameter in lm.parameters():
        parameter.requires_grad_(True)
    return lm, _tokenizer(hf, lm, place)


@contextmanager
def silence() -> Iterator[None]:
    """Suppresses transformers' progress bars, which would mix with a run's, and its report of missing weights, which is
    an error here."""
    from transformers.utils import logging

    bars, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
