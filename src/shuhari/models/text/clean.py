"""Copies the known, checked part of a Hugging Face directory; transformers only reads the copy.

Its JSON is written anew: a configuration with the keys that the library itself reads, without those that would make it
read other files, fetch code or choose kernels; a tokenizer of known steps (`steps.py`). Weights are links. Left out:
what `folder.py` checks first.
"""

from __future__ import annotations

import inspect
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from shuhari.models.text.folder import TEXT, read_json
from shuhari.models.text.steps import check_pattern, clean_tokenizer, list_patterns

# keys that make transformers read other files, run code, fetch kernels, or override our settings
NEVER = frozenset(
    "configuration_files fast_tokenizer_files auto_map attn_implementation _attn_implementation "
    "_attn_implementation_internal _attn_implementation_autoset experts_implementation _experts_implementation "
    "_experts_implementation_internal attn_config_kernel use_kernels kernel_config custom_pipelines trust_remote_code "
    "quantization_config name_or_path _name_or_path _commit_hash transformers_weights gguf_file distributed_config "
    "base_model_tp_plan base_model_pp_plan base_model_ep_plan code_revision revision token".split()
)
OWN = frozenset({"score_offset", "model_type", "num_labels", "id2label", "label2id", "torch_dtype", "dtype"})
SAID = frozenset(  # keys of tokenizer_config.json
    "add_bos_token add_eos_token add_prefix_space added_tokens_decoder additional_special_tokens "
    "extra_special_tokens model_specific_special_tokens bos_token eos_token unk_token sep_token pad_token "
    "cls_token mask_token chat_template clean_up_tokenization_spaces spaces_between_special_tokens legacy "
    "model_max_length model_input_names padding_side truncation_side tokenizer_class do_lower_case errors "
    "split_special_tokens strip_accents tokenize_chinese_chars keep_accents remove_space trim_offsets "
    "use_default_system_prompt sp_model_kwargs fix_mistral_regex".split()
)
BESIDE = ("special_tokens_map.json", "added_tokens.json", "vocab.json", "tekken.json")
RAW = ("merges.txt", "vocab.txt", "tokenizer.model", "spiece.model", "chat_template.jinja")
SHARED = ("modeling_rope_utils", "cache_utils", "masking_utils", "modeling_layers")  # they read any configuration
LABELS, LISTED = 1 << 12, 1 << 20  # outputs of a classifier; largest count in a configuration, and entries of its lists
NUMBER, WORDS, DEPTH = 1 << 53, 1 << 20, 16  # a whole number, characters of a text, nesting of tables
_SIZES = re.compile(r".*(_size|_dim|_rank|_embeddings|_token_id|_params)|n_(positions|ctx|embd|inner|vocab)|d_\w+")
_READ = re.compile(r"""(?:kwargs\.(?:pop|get)|getattr)\((?:[\w.]*config, ?)?["'](\w+)["']|config\.(\w+)""")


@contextmanager
def checked_copy(place: Path) -> Iterator[Path]:
    """Yields the path of a temporary copy of a directory. Raises ValueError, naming the file, for one that may not be
    read."""
    with tempfile.TemporaryDirectory(prefix="shuhari-model-") as above:
        copy = Path(above) / place.resolve().name
        copy.mkdir()
        if (place / "config.json").is_file():
            _write(copy / "config.json", clean_config(place / "config.json"))
        if (place / "generation_config.json").is_file():
            _write(copy / "generation_config.json", _clean_generation(place / "generation_config.json"))
        _copy_words(place, copy)
        for file in place.glob("*.safetensors"):
            if file.is_file():
                os.symlink(file.resolve(), copy / file.name)
        for file in place.glob("*.safetensors.index.json"):
            table = read_json(file).get("weight_map")
            _write(copy / file.name, {"metadata": {}, "weight_map": table})
        yield copy


def clean_config(file: Path) -> dict[str, Any]:
    """Returns the keys of a config.json that transformers reads for its kind of model. Raises ValueError for a size
    beyond bounds."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    found = read_json(file)
    _check_values(file, found, "")
    kind = str(found.get("model_type", ""))
    return _keep(found, CONFIG_MAPPING[kind]) if kind in CONFIG_MAPPING else found


def _keep(found: Mapping[str, Any], kind: Any) -> dict[str, Any]:
    known = list_keys(kind)
    out = {k: v for k, v in found.items() if k in known}
    for key, inner in getattr(kind, "sub_configs", {}).items():
        if isinstance(out.get(key), Mapping):
            named = str(out[key].get("model_type", ""))
            out[key] = _keep(out[key], _find_kind(named, inner))
    return out


def _find_kind(named: str, usual: Any) -> Any:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    # not by its `get`, which does not know what is not loaded yet
    return CONFIG_MAPPING[named] if named in CONFIG_MAPPING else usual  # noqa: SIM401


@cache
def list_keys(kind: Any) -> frozenset[str]:
    """Returns the keys that a class of configurations has, and those that its source, and that of its model, reads."""
    names = set(OWN) | set(getattr(kind, "attribute_map", {})) | set(getattr(kind, "sub_configs", {}))
    for base in kind.__mro__:
        names |= set(vars(base).get("__annotations__", {})) | set(vars(base).get("attribute_map", {}))
        if base.__module__.startswith("transformers."):
            names |= _find_read(base.__module__)
    for module in SHARED:
        names |= _find_read(f"transformers.{module}")
    names |= _find_read(kind.__module__.replace(".configuration_", ".modeling_"))
    return frozenset(names - NEVER)


@cache
def _find_read(module: str) -> frozenset[str]:
    """Returns the configuration keys that a module of transformers reads, from its source, without importing it."""
    import transformers

    path = Path(inspect.getfile(transformers)).parent.joinpath(*module.split(".")[1:]).with_suffix(".py")
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    return frozenset(
        name
        for match in _READ.finditer(text)
        for name in match.groups()
        if name
    )


def _check_values(file: Path, value: Any, key: str, depth: int = 0) -> None:
    """Raises ValueError if a number, a text or a list is larger than in any model."""
    if depth > DEPTH:
        raise ValueError(f"{file}: {key} has tables more than {DEPTH} deep")
    if isinstance(value, Mapping | list):
        if len(value) > (LABELS if key in ("id2label", "label2id") else LISTED):
            raise ValueError(f"{file}: {key} has {len(value)} entries: expected fewer")
        pairs = value.items() if isinstance(value, Mapping) else ((key, x) for x in value)
        for inner, x in pairs:
            _check_values(file, x, str(inner), depth + 1)
    elif isinstance(value, str) and len(value) > WORDS:
        raise ValueError(f"{file}: {key} has {len(value)} characters: expected at most {WORDS}")
    elif isinstance(value, int) and not isinstance(value, bool) and key != "model_max_length":  # which is 1e30 for none
        counts = key.startswith(("num_", "n_")) and not _SIZES.fullmatch(key)
        most = LABELS if key == "num_labels" else LISTED if counts else NUMBER
        if abs(value) > most:
            raise ValueError(f"{file}: {key} is {value}: expected at most {most}")


def _clean_generation(file: Path) -> dict[str, Any]:
    """Returns the numbers, and lists of them, that set how texts are sampled and end."""
    from transformers import GenerationConfig

    found, known = read_json(file), {*vars(GenerationConfig()), "transformers_version"}
    _check_values(file, found, "")
    plain = (bool, int, float)
    return {k: v for k, v in found.items() if k in known
            and (isinstance(v, plain) or (isinstance(v, list) and all(isinstance(x, plain) for x in v)))}  # fmt: skip


def _copy_words(place: Path, copy: Path) -> None:
    """Copies the files of a tokenizer."""
    padded: Any = None
    if (file := place / "tokenizer.json").is_file():
        found = read_json(file)
        padded = found.get("padding")
        try:
            _write(copy / file.name, clean_tokenizer(found))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"{file}: {error}") from None
    if (file := place / "tokenizer_config.json").is_file():
        found = read_json(file)
        _check_values(file, found, "")
        own = {k: v for k, v in found.items() if k in SAID or (k.endswith("_token") and k not in NEVER)}
        if isinstance(padded, Mapping) and isinstance(padded.get("pad_token"), str):
            own.setdefault("pad_token", padded["pad_token"])
        _write(copy / file.name, own)
    for name in BESIDE:
        if (file := place / name).is_file():
            table = read_json(file)
            for pattern in list_patterns(table.get("config")) if name == "tekken.json" else ():
                check_pattern(pattern)
            _write(copy / name, table)
    folder = Path("additional_chat_templates")
    more = [folder / f.name for f in (place / folder).glob("*.jinja")]
    for inside in (*map(Path, RAW), *more, *(Path(f.name) for f in place.glob("*.tiktoken"))):
        if (file := place / inside).is_file():
            if (size := file.stat().st_size) > TEXT:
                raise ValueError(f"{file} has {size} bytes: expected at most {TEXT}")
            (copy / inside).parent.mkdir(exist_ok=True)
            shutil.copyfile(file, copy / inside)


def _write(file: Path, value: Any) -> None:
    file.write_text(json.dumps(value, ensure_ascii=False), encoding="utf-8")  # at once: five times as fast as `dump`


def forget(copy: Path, place: Path, *made: Any) -> None:
    """Makes objects loaded from a copy name the original directory."""
    for one in made:
        for owner in (one, getattr(one, "config", None)):
            for name in ("name_or_path", "_name_or_path"):
                if owner is not None and str(vars(owner).get(name, "")) == str(copy):
                    setattr(owner, name, str(place))
        said = getattr(one, "init_kwargs", None)
        if isinstance(said, dict):
            said.update({k: str(place / Path(v).name) if v != str(copy) else str(place) for k, v in said.items()
                         if isinstance(v, str) and v.startswith(str(copy))})  # fmt: skip


