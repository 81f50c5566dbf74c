"""A run's own recipe of format 1, translated to the present language: removals by `name = false` and `replace = true`
go to `remove`, and components get their present names. Runs made before continue with it; recipes of one's own are not
translated. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shuhari.config.overlay import KIND_IN, REMOVE, Path, Tree, format_path, is_entry
from shuhari.data import EMPTY
from shuhari.kernel.formerly import FORMERLY


def translate(table: Tree) -> Tree:
    """Return the table of a run's recipe.toml in the present language; one of a later format as it is."""
    if table.get("format", 1) != 1:
        return table
    base = {key: _rename(value, key) for key, value in table.items() if key not in ("stage", "format", "claim")}
    stages = [_translate_stage(stage, base) for stage in table.get("stage", [])]
    kept = {"claim": table["claim"]} if "claim" in table else {}
    return {**base, **kept, "format": 2, **({"stage": stages} if stages else {})}


def _translate_stage(stage: Mapping[str, Any], base: Mapping[str, Any]) -> Tree:
    gone: list[Path] = []
    rest = _clean({key: _rename(value, key) for key, value in stage.items()}, base, (), gone)
    return {**rest, **({REMOVE: [format_path(path) for path in gone]} if gone else {})}


def _clean(over: Mapping[str, Any], base: Any, path: Path, gone: list[Path]) -> Tree:
    """Return a stage's table without its removals, which go to `gone`."""
    out: Tree = {}
    for key, value in over.items():
        at, old = (*path, key), base.get(key) if isinstance(base, Mapping) else None
        if value is False and (isinstance(old, Mapping) or is_entry(at)):
            gone += [at] if old is not None else []
        elif isinstance(value, Mapping):
            whole = value.get("replace") is True
            gone += [at] if whole and old is not None else []
            rest = {k: v for k, v in value.items() if not whole or k != "replace"}
            if (left := _clean(rest, None if whole else old, at, gone)) or not value:
                out[key] = left
        else:
            out[key] = value
    return out


def _rename(value: Any, key: str, kind: str = "") -> Any:
    """Return a value with the present names of its components; an entry that is named after its component keeps its own
    name, by which the run has stored its memory."""
    kind = KIND_IN.get(key, kind)
    if isinstance(value, list):
        return [_rename(x, "", kind) for x in value]
    if not isinstance(value, Mapping):
        return FORMERLY.get(kind, EMPTY).get(value, value) if key == "use" and isinstance(value, str) else value
    out = {name: _rename(x, name, kind) for name, x in value.items()}
    if key in ("collect", "transform", "terms"):
        for name, entry in out.items():
            if name in FORMERLY[KIND_IN[key]] and isinstance(entry, dict) and "use" not in entry:
                out[name] = {"use": FORMERLY[KIND_IN[key]][name], **entry}
    return out
