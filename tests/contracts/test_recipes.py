"""Every packaged recipe, made small: each call of each of its components is looked at, and a run that is stopped and
resumed ends with the same bits. A method comes under this test by its recipe."""

from __future__ import annotations

from pathlib import Path

import pytest

from shuhari.config.library import list_names
from shuhari.config.recipe import load
from shuhari.loop.rehearsal import rehearse
from shuhari.testing import check_recipe, shrink

RECIPES = [name for name in list_names() if "study" not in load(name).tree]


@pytest.mark.parametrize("name", RECIPES)
def test_components_keep_to_their_ports(name: str, tmp_path: Path) -> None:
    check_recipe(shrink(load(name)), tmp_path)


@pytest.mark.parametrize("name", RECIPES)
def test_a_rehearsal_refuses_nothing_that_runs(name: str) -> None:
    rehearse(shrink(load(name)))
