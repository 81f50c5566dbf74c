"""The published numbers by name: those of `published.toml`, and those on recorded data, of `recorded.toml`."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any

from shuhari.config.overlay import RecipeError
from shuhari.data import nearest
from shuhari.lab.reproduce.published import Published, Target
from shuhari.lab.reproduce.recorded import list_recorded


@cache
def read_targets() -> Mapping[str, Target]:
    """Return all of `published.toml` and of `recorded.toml` by name."""
    online = {name: _make_target(name, table) for name, table in _read("published").items()}
    return online | {target.name: target for target in list_recorded(_read("recorded"))}


def _read(name: str) -> dict[str, Any]:
    text = resources.files("shuhari.lab.reproduce").joinpath(f"{name}.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def _make_target(name: str, table: Mapping[str, Any]) -> Target:
    known = dict(table)
    known["published"] = tuple(Published(**one) for one in known["published"])
    return Target(name, **known)


def find_name(text: str) -> str | None:
    """Return the name of a target that a text is, in any case, with `_` for `-`; None if it is none."""
    name = text.lower().replace("_", "-")
    return name if name in read_targets() else None


def find_target(name: str) -> Target:
    """Return a target by its name. Raises RecipeError with the nearest name if there is none."""
    known = read_targets()
    if (found := find_name(name)) is None:
        raise RecipeError("", f"expected a published number, got {name!r}; {nearest(name, known)} "
                              "(`shuhari reproduce --list` lists them)")  # fmt: skip
    return known[found]
