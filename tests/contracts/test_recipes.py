"""Every packaged recipe, made small: each call of each of its components is looked at, and a run that is stopped and
resumed ends with the same bits. A method comes under this test by its recipe."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from buildable import list_buildable
from shuhari.config.recipe import load
from shuhari.loop.rehearsal import rehearse
from shuhari.testing import check_recipe, shrink

RECIPES = [name for name in list_buildable() if "study" not in load(name).tree]


def list_used(tree: Any) -> set[str]:
    """The names of the components, tasks and worlds that a recipe, or a part of one, uses."""
    if isinstance(tree, list | tuple):
        return set().union(*map(list_used, tree))
    if not isinstance(tree, Mapping):
        return set()
    own = {str(tree[key]) for key in ("use", "name") if isinstance(tree.get(key), str)}
    return own.union(set(tree), *map(list_used, tree.values()))


def list_told_apart() -> list[str]:
    """The recipes without those beds that only put together what other recipes use."""
    out, seen = list[str](), set[str]()
    for name in sorted(RECIPES, key=lambda name: name.startswith("beds/")):
        used = list_used(load(name).tree) - {name}
        if not name.startswith("beds/") or not used <= seen:
            out.append(name)
            seen |= used
    return out


@pytest.mark.parametrize("name", list_told_apart())
def test_components_keep_to_their_ports(name: str, tmp_path: Path) -> None:
    check_recipe(shrink(load(name)), tmp_path)


@pytest.mark.parametrize("name", RECIPES)
def test_a_rehearsal_refuses_nothing_that_runs(name: str) -> None:
    rehearse(shrink(load(name)))
