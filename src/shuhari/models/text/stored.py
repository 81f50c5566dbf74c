"""Loads a model from a run: the base that the run began with, with the run's last weights and its adapters merged.

Left out: runs that began with random weights (`shuhari export` writes what they learnt), value heads, and the code that
a recipe names, which is not loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from shuhari.data import EMPTY, nearest
from shuhari.models.text.lora import Lora, adapt, merge_adapters
from shuhari.store import Run, StoreError
from shuhari.store.names import BASED
from shuhari.store.schema import FILE
from shuhari.store.tensors import find_digest

ROLE = "policy"
BASE, HEAD = "base", "head"  # prefixes of the names of a language model's weights in a checkpoint
Text = TypeVar("Text")


def is_run(place: Path) -> bool:
    """Whether a directory is a run, and no model."""
    return (place / FILE).is_file() and not (place / "config.json").exists()


def read_run(place: Path, load: Callable[[Path], tuple[Any, Text]]) -> tuple[Any, Text]:
    """Returns the language model of a run's policy (or of its only role), and the tokenizer of its base, which `load`
    reads. Raises ValueError, with the remedy, for a run that has none."""
    ways = f"it is a run: start from it by `--init {place}`, or give what `shuhari export {place} DIR` writes"
    try:
        run = Run(place)
        recipe, tree = run.recipe, run.load()
    except StoreError as error:
        raise ValueError(f"{place} is no model ({ways}), and cannot be read: {error}") from None
    saved = (tree or EMPTY).get("models") or EMPTY
    if not saved:
        raise ValueError(f"{place} is no model: it is a run that has no checkpoint yet")
    role = ROLE if ROLE in saved or len(saved) > 1 else next(iter(saved))
    if role not in saved:
        raise ValueError(f"{place} is a run without a policy; {nearest(role, saved)}: expected a directory that "
                         f"`shuhari export {place} DIR --role NAME` writes")  # fmt: skip
    table = _find_table(recipe, role)
    if not (base := table.get("path")):
        raise ValueError(f"{place} is a run whose {role} began with random weights: give what `shuhari export {place} "
                         f"DIR` writes, or start from it by `--init {place}`")  # fmt: skip
    there = Path(str(base)).expanduser()
    if not (there.is_dir() or there.is_file()):
        raise ValueError(f"{place} is a run that began with the weights of {str(base)!r}, and there is no such file or "
                         f"directory (seen from {Path.cwd()}): put the model back there")  # fmt: skip
    lm, text = load(there)
    weights = {name: x for name, x in saved[role].items() if name.partition(".")[0] in (BASE, HEAD)}
    based = tree.get(BASED, EMPTY).get(role, EMPTY).get("digests", EMPTY)
    return _fit(lm, weights, based, table, f"the weights of the run {place}", there), text


def _find_table(recipe: Mapping[str, Any], role: str) -> dict[str, Any]:
    """Returns the settings in a stored recipe for a role's model over all its stages, or for the role that it
    copies."""
    seen, table = set[str](), dict[str, Any]()
    while role not in seen:
        seen.add(role)
        table = {}
        for one in (recipe, *recipe.get("stage", ())):
            table |= one.get("models", {}).get(role, {})
        role = str(table.get("same_as") or table.get("init") or role)
        if table.get("path"):
            break
    return table


def _find_parts(lm: Any) -> dict[str, Any]:
    """Returns the parts of a language model whose weights a checkpoint has; a head tied to the embeddings is not
    separate."""
    head = lm.get_output_embeddings()
    tied = head.weight is lm.get_input_embeddings().weight and "bias" not in head.state_dict()
    return {BASE: lm.base_model} if tied else {BASE: lm.base_model, HEAD: head}


def name_weights(lm: Any) -> dict[str, Any]:
    """Returns the weights of a language model by their names in a checkpoint."""
    states = {at: part.state_dict() for at, part in _find_parts(lm).items()}
    return {
        f"{at}.{name}": x
        for at, state in states.items()
        for name, x in state.items()
    }


def _fit(
    lm: Any, weights: Mapping[str, Any], based: Mapping[str, str], table: Mapping[str, Any], what: str, base: Path
) -> Any:
    """Returns the base with these weights and those of its own listed in `based`, name -> digest. Raises ValueError if
    they are of another model."""
    first = next((name for name in weights if ".lora_A." in name), "")
    if first:
        given: Mapping[str, Any] = table.get("lora") or EMPTY
        settings: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in given.items()}
        lora = Lora(**settings)
        if lora.rank != len(weights[first]):
            raise ValueError(f"{what}: adapters of rank {len(weights[first])}, and its recipe says {lora.rank}")
        adapt(lm, lora)
    own = name_weights(lm)
    if changed := [k for k, digest in based.items() if k not in own or find_digest(own[k]) != digest]:
        differ = f"{len(changed)} of the weights that the run has by reference differ, such as {min(changed)}"
        raise ValueError(f"{what} do not fit its base {base}, which has changed since: {differ}")
    weights = {**{k: own[k] for k in based}, **weights}
    wrong = [k for k in own.keys() & weights.keys() if own[k].shape != weights[k].shape]
    if wrong:
        k = min(wrong)
        sizes = f"{k} is {tuple(weights[k].shape)} there, {tuple(own[k].shape)} in the base"
        raise ValueError(f"{what} do not fit its base {base}, which has changed since: {sizes}")
    if apart := own.keys() ^ weights.keys():
        raise ValueError(f"{what} do not fit its base {base}, which has changed since: {len(apart)} of them differ, "
                         f"such as {min(apart)}")  # fmt: skip
    for at, part in _find_parts(lm).items():
        part.load_state_dict({k.removeprefix(f"{at}."): x for k, x in weights.items() if k.startswith(f"{at}.")})
    if first:
        lm = merge_adapters(lm)
    return lm.requires_grad_(True)
