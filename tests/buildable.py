"""The packaged recipes that can be built as they are: those of `pretrained` want a model and data of their user first,
and have tests of their own (`recipes/test_pretrained_recipes.py`); those of an environment that comes with an extra
which is in no other (`box2d`, `minatar`) are there if it is installed (`.ci/extras.py` trains one of each)."""

from __future__ import annotations

from importlib.util import find_spec

from shuhari.config.library import list_names
from shuhari.desk.cli.reproducing import MODULES
from shuhari.lab.reproduce.published import read_targets

FAMILY = "pretrained/"


def list_buildable() -> list[str]:
    """The names of the packaged recipes in which nothing is left to be set, and whose environment is installed."""
    known = read_targets().values()
    absent = {target.recipe for target in known if target.needs and find_spec(MODULES[target.needs]) is None}
    return [name for name in list_names() if not name.startswith(FAMILY) and name not in absent]
