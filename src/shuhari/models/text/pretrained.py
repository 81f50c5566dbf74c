"""Load and save Hugging Face directories of causal language models, with checks that run before
the first step, whose errors say what to do.

Left out: quantised weights, pickles, and code that comes with weights, which is never run. Weights are read as float32.

Axes: `V` embeddings.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from shuhari.data import nearest
from shuhari.models.text.tokenizers import Tokenizer

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
SHARD = "5GB"  # of a file of weights that is written
WORDS = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model", "tekken.json")
CONVERT = (
    "write it anew as safetensors, from a source that you trust: AutoModelForCausalLM.from_pretrained(OLD)"
    ".save_pretrained(NEW), and its tokenizer"
)


def load(path: str) -> tuple[Any, Tokenizer]:
    """The model and the tokenizer of a directory (a hub id, where the hub can be reached), or of a directory of LoRA
    adapters, merged into their base. ValueError for what cannot work, FileNotFoundError where nothing is there."""
    place = Path(path).expanduser()
    if not place.is_dir():
        return _from_hub(path, place)
    if (place / "adapter_config.json").is_file() and not (place / "config.json").is_file():
        return _merge_adapters(place)
    _check_config(place)
    _check_weights(place, "model")
    if not _has_tokenizer(place):
        raise ValueError(f"{place} has no tokenizer: copy tokenizer.json and tokenizer_config.json there, from the "
                         "model that it was made of")  # fmt: skip
    return _read(str(place))


def save(lm: Any, text: Tokenizer, directory: str | Path, *, dtype: str = "", shard: str = SHARD) -> None:
    """Write configuration, safetensors and tokenizer. `dtype`: of the weights (default: as they are); `shard`: the
    largest file, as `2GB`."""
    if dtype and lm.dtype != (wanted := dtype_of(dtype)):
        lm = copy.deepcopy(lm).to(wanted)
    with _silence():
        lm.save_pretrained(directory, max_shard_size=shard)
    text.save(str(directory))


def dtype_of(name: str) -> torch.dtype:
    """The type of numbers called `name`; ValueError with the nearest for one that there is not."""
    if name not in DTYPES:
        raise ValueError(f"dtype is {name!r}; {nearest(name, DTYPES)}")
    return DTYPES[name]


# ---------------------------------------------------------------- reading


def _read(place: str) -> tuple[Any, Tokenizer]:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    how: dict[str, Any] = {"dtype": torch.float32, "use_safetensors": True, "trust_remote_code": False}
    with _silence():
        lm, found = AutoModelForCausalLM.from_pretrained(
            place, ignore_mismatched_sizes=True, output_loading_info=True, **how
        )
        hf = AutoTokenizer.from_pretrained(place, trust_remote_code=False)
    if wrong := sorted(found["mismatched_keys"]):
        name, there, here = wrong[0]
        raise ValueError(f"{place}: {name} is {tuple(there)} in its weights, {tuple(here)} by its config.json")
    if missing := sorted(found["missing_keys"]):
        raise ValueError(f"{place}: {len(missing)} of the model's weights are not there, such as {missing[0]}: "
                         "expected those of a causal language model, with its head")  # fmt: skip
    if getattr(lm, "_hf_peft_config_loaded", False):
        raise ValueError(f"{place} holds adapters: fetch it, and give its directory as `path`")
    return lm, _tokenizer(hf, lm, place)


def _tokenizer(hf: Any, lm: Any, place: str) -> Tokenizer:
    """With every id that ends a text by the generation configuration: a list of it counts as it is, a single id, which
    may be a default that nobody chose, where the tokenizer has it as a token of its own kind."""
    said = getattr(lm.generation_config, "eos_token_id", None)
    ends = list(said) if isinstance(said, list | tuple) else []
    if isinstance(said, int) and (hf.eos_token_id is None or said in hf.added_tokens_decoder):
        ends = [said]
    try:
        return Tokenizer(hf, ends, int(lm.get_input_embeddings().num_embeddings))
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from None


def _merge_adapters(place: Path) -> tuple[Any, Tokenizer]:
    """A base with the adapters of a directory merged into it."""
    named = _json(place / "adapter_config.json").get("base_model_name_or_path") or ""
    _check_weights(place, "adapter_model")
    base = next((b for b in (Path(named).expanduser(), place / named) if named and b.is_dir()), None)
    if base is None or base.resolve() == place.resolve():
        raise ValueError(f"{place} holds adapters of {named!r}, which is no directory: set base_model_name_or_path in "
                         "its adapter_config.json to the directory of the base model")  # fmt: skip
    try:
        from peft import PeftModel
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError('adapters need peft: pip install "shuhari[lm]"') from error
    from transformers import AutoTokenizer

    lm, text = load(str(base))
    try:
        with _silence():
            lm = PeftModel.from_pretrained(lm, str(place)).merge_and_unload(safe_merge=True)
            hf = AutoTokenizer.from_pretrained(place, trust_remote_code=False) if _has_tokenizer(place) else text.hf
    except RuntimeError as error:  # of torch, where shapes differ
        raise ValueError(f"the adapters of {place} do not fit their base {base}: {error}") from None
    for parameter in lm.parameters():
        parameter.requires_grad_(True)
    return lm, _tokenizer(hf, lm, str(place))


def _from_hub(path: str, place: Path) -> tuple[Any, Tokenizer]:
    there = [p.name for p in place.parent.iterdir() if p.is_dir()] if place.parent.is_dir() else []
    near = _suggest(place.name, there)
    if path.startswith(("/", ".", "~")):  # no name of the hub
        raise FileNotFoundError(f"no directory {path!r} (looked in {Path.cwd()}{near})")
    try:
        return _read(path)
    except OSError as error:
        first = str(error).strip().partition("\n")[0]
        raise FileNotFoundError(
            f"no directory {path!r} (looked in {Path.cwd()}{near}), and no model of the hub: {first}"
        ) from None


# ---------------------------------------------------------------- what cannot work


def _check_config(place: Path) -> None:
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as KNOWN

    if not (place / "config.json").is_file():
        raise ValueError(f"{place} is no model: it has no config.json{_guess_kind(place)}")
    config = _json(place / "config.json")
    name = str(config.get("model_type", ""))
    if name not in KNOWN:
        own = ", and brings code of its own, which is never run" if "auto_map" in config else ""
        raise ValueError(
            f"{place}: model_type {name!r} is no causal architecture of transformers{own}{_suggest(name, KNOWN)}"
        )
    if isinstance(quantised := config.get("quantization_config"), Mapping):
        raise ValueError(f"{place} is quantised ({quantised.get('quant_method')}): expected weights of float32, "
                         "bfloat16 or float16")  # fmt: skip


def _guess_kind(place: Path) -> str:
    """Guess what a directory without config.json is, for an error message."""
    if (place / "run.sqlite").is_file():
        return f" (it is a run: start from it by `--init {place}`, or give what `shuhari export {place} DIR` writes)"
    if any(place.glob("*.gguf")):
        return " (GGUF files are not read: give the model that they were made of)"
    inner = sorted(
        p.parent.name for p in place.glob("*/*config.json") if p.name in ("config.json", "adapter_config.json")
    )
    return f" (but {', '.join(inner[:3])} in it {'has' if len(inner) == 1 else 'have'})" if inner else ""


def _check_weights(place: Path, name: str) -> None:
    """Check that the files `name`.safetensors, whole or in shards, exist."""
    index = place / f"{name}.safetensors.index.json"
    if index.is_file():
        files = sorted(set(_json(index).get("weight_map", {}).values()))
        if lost := [f for f in files if not (place / f).is_file()]:
            raise ValueError(f"{place}: {len(lost)} of {len(files)} files of weights are missing, such as {lost[0]}")
    elif not (place / f"{name}.safetensors").is_file():
        pickles = sorted(p.name for kind in ("*.bin", "*.pt", "*.pth", "*.ckpt") for p in place.glob(kind))
        if pickles:
            raise ValueError(f"{place}: its weights ({pickles[0]}) are a pickle, which can run code and is not read: "
                             f"{CONVERT}")  # fmt: skip
        raise ValueError(f"{place} has no weights: expected {name}.safetensors, or shards and {index.name}")


def _has_tokenizer(place: Path) -> bool:
    return any((place / name).is_file() for name in WORDS) or any(place.glob("*.tiktoken"))


def _json(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise ValueError(f"{file}: {error}") from None
    if not isinstance(found, dict):
        raise ValueError(f"{file}: expected a table")
    return found


def _suggest(name: str, known: Iterable[str]) -> str:
    """The nearest name, where one is near: there are too many to list."""
    near = nearest(name, known)
    return f"; {near}" if near.startswith("did you mean") else ""


@contextmanager
def _silence() -> Iterator[None]:
    """Without the progress bars of transformers, which would cross those of a run, and its report of what is missing,
    which is an error here."""
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
