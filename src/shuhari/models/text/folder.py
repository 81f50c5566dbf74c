"""Reads and checks a Hugging Face directory before anything of it is built or run.

The directory is untrusted. Only regular JSON and safetensors files with plain names in it are read: no pickle in any
form, no code, no regular expression that can take forever, and no model larger than its own weights. Left out: the
quality of the weights.

Axes: none; sizes are numbers of parameters.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch

from shuhari.data import nearest
from shuhari.store import sizes
from shuhari.store.files import find_memory

WORDS = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model", "tekken.json")
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")
TEXT = 1 << 29  # bytes of a JSON file
AUTO = {  # what a directory is to be -> the class of transformers that loads it
    "": "AutoModelForCausalLM",
    "text": "AutoModelForSequenceClassification",
    "tokens": "AutoModelForTokenClassification",
}
Reads = Literal["", "text", "tokens"]  # what a directory is to be: a language model, or a classifier of these
ELEMENTS = 1 << 24  # of a JSON file; a vocabulary has some for each token and merge
EXPERTS, ADAPTED = 4096, 1 << 16  # in one layer; entries of a list of adapters
SLACK = 10_000_000  # parameters that a model may have in addition to those stored, or twice those
CONVERT = (
    "write it anew as safetensors, from a source that you trust: AutoModelForCausalLM.from_pretrained(OLD)"
    ".save_pretrained(NEW), and its tokenizer"
)
PLAIN = frozenset(  # keys of adapter_config.json that are read, or do not affect how adapters apply
    "peft_type base_model_name_or_path r lora_alpha target_modules exclude_modules lora_dropout fan_in_fan_out bias "
    "use_rslora use_dora rank_pattern alpha_pattern layers_to_transform layers_pattern init_lora_weights "
    "modules_to_save inference_mode task_type revision auto_mapping peft_version".split()
)
NAMES = (  # their entries are names of layers; peft would match some as expressions
    "target_modules exclude_modules layers_pattern modules_to_save rank_pattern alpha_pattern".split()
)


@contextmanager
def reading(place: Path) -> Iterator[None]:
    """Turns any error of a library on a directory's content into a ValueError with its path and the cause."""
    try:
        yield
    except (ModuleNotFoundError, FileNotFoundError, MemoryError):
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":  # of a library in Rust
            raise
        text = str(error).strip()
        if isinstance(error, ValueError) and str(place) in text:
            raise
        message = f"{type(error).__name__}: {text[:500]}".rstrip(": ")
        raise ValueError(f"{place} cannot be read: {message}") from error


def holds_adapters(place: Path) -> bool:
    """Whether a directory holds adapters. Raises ValueError if it is a model too: transformers would load them into it,
    unchecked."""
    adapters = (place / "adapter_config.json").exists()
    if adapters and (place / "config.json").exists():
        raise ValueError(f"{place} holds a model and adapters (config.json and adapter_config.json): expected one")
    return adapters


def read_json(file: Path) -> dict[str, Any]:
    """Returns the object in a regular file. Raises ValueError, naming the file."""
    if not file.is_file():
        raise ValueError(f"{file}: expected a regular file")
    if (size := file.stat().st_size) > TEXT:
        raise ValueError(f"{file} has {size} bytes: expected JSON of at most {TEXT}")
    try:
        found = sizes.read_json(file.read_text(encoding="utf-8"), ELEMENTS)
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{file}: {str(error) or type(error).__name__}") from None
    if not isinstance(found, dict):
        raise ValueError(f"{file}: expected a table, found {type(found).__name__}")
    return found


def check_config(place: Path, reads: Reads = "") -> None:
    """Raises ValueError unless config.json is that of a causal language model, or the classifier that `reads` names,
    with weights of plain numbers."""
    from transformers.models.auto import modeling_auto as auto

    known, what = {
        "": (auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, "causal architecture"),
        "text": (auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES, "classifier of texts"),
        "tokens": (auto.MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES, "classifier of tokens"),
    }[reads]

    if not (place / "config.json").is_file():
        raise ValueError(f"{place} is no model: it has no config.json{_guess_kind(place)}")
    config = read_json(place / "config.json")
    name = str(config.get("model_type", ""))
    if name not in known:
        own = ", and brings code of its own, which is never run" if "auto_map" in config else ""
        near = nearest(name, known)
        near = f"; {near}" if near.startswith("did you mean") else ""  # there are too many to list
        raise ValueError(f"{place}: model_type {name!r} is no {what} of transformers{own}{near}")
    if isinstance(quantised := config.get("quantization_config"), Mapping):
        raise ValueError(f"{place} is quantised ({quantised.get('quant_method')}): expected weights of float32, "
                         "bfloat16 or float16")  # fmt: skip
    for key, value in config.items():
        if isinstance(value, int | float) and (value != value or (_counts(key) and value < 0)):
            raise ValueError(f"{place / 'config.json'}: {key} is {value}: expected a number of 0 or more")


def check_weights(place: Path, name: str) -> dict[str, tuple[int, ...]]:
    """Returns {tensor: shape} of the files `name`.safetensors, whole or in shards, from their headers. Raises
    ValueError if they are missing or of another form."""
    index, whole = place / f"{name}.safetensors.index.json", place / f"{name}.safetensors"
    files = [whole.name]
    if index.exists() and not whole.is_file():
        table = read_json(index).get("weight_map")
        if not isinstance(table, dict) or not table or not all(isinstance(f, str) for f in table.values()):
            raise ValueError(f"{index}: weight_map is {str(table)[:60]}: expected names of tensors and their files")
        files = sorted(set(table.values()))
        for file in files:
            if os.path.basename(file) != file or "\\" in file or not file.endswith(".safetensors"):
                raise ValueError(f"{index}: weight_map names {file!r}: expected files *.safetensors beside it")
        if lost := [f for f in files if not (place / f).is_file()]:
            raise ValueError(f"{place}: {len(lost)} of {len(files)} files of weights are missing, such as {lost[0]}")
    elif not whole.is_file():
        pickles = sorted(
            p.name
            for kind in PICKLES
            for p in place.glob(kind)
        )
        if pickles:
            raise ValueError(f"{place}: its weights ({pickles[0]}) are a pickle, which can run code and is not read: "
                             f"{CONVERT}")  # fmt: skip
        raise ValueError(f"{place} has no weights: expected {name}.safetensors, or shards and {index.name}")
    return {
        tensor: shape
        for file in files
        for tensor, shape in _read_header(place / file)
    }


def check_size(place: Path, copy: Path, stored: Mapping[str, tuple[int, ...]], reads: Reads = "") -> None:
    """Raises ValueError if the model that config.json describes is larger than its weights, or than this machine.
    `copy`: of the directory, see `clean.checked_copy`."""
    import transformers
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(copy, trust_remote_code=False, local_files_only=True)
    there = sum(math.prod(shape) for shape in stored.values())
    text = config.get_text_config()
    layers = getattr(text, "num_hidden_layers", 1)
    if not isinstance(layers, int) or not 1 <= layers <= len(stored):
        raise ValueError(f"{place}: num_hidden_layers is {layers!r} by its config.json: expected 1 to {len(stored)}, "
                         "the tensors that its weights have")  # fmt: skip
    for key, value in text.to_dict().items():
        if "experts" in key and isinstance(value, int) and value > EXPERTS:
            raise ValueError(f"{place}: {key} is {value} by its config.json: expected at most {EXPERTS}")
    with torch.device("meta"):  # shapes only
        kind: Any = getattr(transformers, AUTO[reads])
        made = kind.from_config(config, trust_remote_code=False)
    wanted = sum(x.numel() for x in (*made.parameters(), *made.buffers()))
    if wanted > 2 * there + SLACK:
        raise ValueError(f"{place}: a model of {wanted:,} parameters by its config.json, and {there:,} in its weights")
    room = find_memory()
    if room and 4 * there > room:
        raise ValueError(f"{place} has {there:,} parameters, {4 * there / 2**30:.1f} GiB as float32: this machine has "
                         f"{room / 2**30:.1f} GiB of memory")  # fmt: skip


def has_tokenizer(place: Path) -> bool:
    return any((place / name).is_file() for name in WORDS) or any(place.glob("*.tiktoken"))


def check_tokenizer(place: Path) -> None:
    """Raises ValueError if there is no tokenizer; its content is checked as it is copied (`clean.py`)."""
    if not has_tokenizer(place):
        raise ValueError(f"{place} has no tokenizer: copy tokenizer.json and tokenizer_config.json there, from the "
                         "model that it was made of")  # fmt: skip


def check_adapters(place: Path) -> dict[str, Any]:
    """Returns adapter_config.json if it is that of LoRA and nothing in it is run, matched as an expression, or larger
    than the adapters themselves; else raises ValueError."""
    from peft import LoraConfig

    file = place / "adapter_config.json"
    table = read_json(file)
    if table.get("peft_type") != "LORA":
        raise ValueError(f"{file}: peft_type is {table.get('peft_type')!r}: expected 'LORA'")
    shapes = check_weights(place, "adapter_model")
    usual = vars(LoraConfig())
    for key, value in table.items():
        if key not in PLAIN and value and value != usual.get(key):
            raise ValueError(f"{file}: {key} is {str(value)[:60]!r}: expected adapters without it")
    for key in NAMES:
        given = table.get(key) or ()
        names = [given] if isinstance(given, str) else list(given)
        bad = next((n for n in names if not isinstance(n, str) or not _is_literal(n)), None)
        if bad is not None or len(names) > ADAPTED:
            raise ValueError(f"{file}: {key} has {str(bad)[:60]!r}: expected names of layers, no regular expression")
    largest = max(
        (
            n
            for shape in shapes.values()
            for n in shape
        ),
        default=0,
    )
    patterned = table.get("rank_pattern") or {}
    ranks = [table.get("r"), *(patterned.values() if isinstance(patterned, dict) else ())]
    for rank in ranks:
        if not isinstance(rank, int) or not 1 <= rank <= largest:
            raise ValueError(f"{file}: a rank is {rank!r}: expected 1 to {largest}, the longest side of its weights")
    return table


# ---------------------------------------------------------------- helpers


def _counts(key: str) -> bool:
    return key.startswith(("num_", "n_")) or key.endswith(("_size", "_dim", "_embeddings"))


def _guess_kind(place: Path) -> str:
    """Returns a guess at what a directory without config.json is, for an error message."""
    if (place / "run.sqlite").is_file():
        return f" (it is a run: start from it by `--init {place}`, or give what `shuhari export {place} DIR` writes)"
    if found := sorted(p.name for p in place.glob("*.gguf")):
        return f" (give the file itself: {place / found[0]})"
    inner = sorted(
        p.parent.name for p in place.glob("*/*config.json") if p.name in ("config.json", "adapter_config.json")
    )
    return f" (but {', '.join(inner[:3])} in it {'has' if len(inner) == 1 else 'have'})" if inner else ""


def _read_header(file: Path) -> Iterator[tuple[str, tuple[int, ...]]]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, "pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118  it is no mapping
                yield name, tuple(tensors.get_slice(name).get_shape())
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{file} cannot be read as a safetensors file: {error}") from None


def _is_literal(name: str) -> bool:
    return bool(name) and all(c.isalnum() or c in "._-" for c in name)
