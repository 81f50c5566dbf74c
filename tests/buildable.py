"""The packaged recipes that can be built as they are: those of `pretrained` want a model and data of their user first,
and have tests of their own (`recipes/test_pretrained_recipes.py`); those of an environment that comes with an extra
which is in no other (`box2d`, `minatar`) are there if it is installed (`.ci/extras.py` trains one of each); those on
recorded data that are not here are tested on small ones of the same layout (`reproduce/test_recorded.py`)."""

from __future__ import annotations

from importlib.util import find_spec

from shuhari.config.library import list_names
from shuhari.desk.cli.reproducing import MODULES
from shuhari.lab.reproduce.targets import read_targets

FAMILY = "pretrained/"


def list_buildable() -> list[str]:
    """The names of the packaged recipes in which nothing is left to be set, and whose environment is installed."""
    known = read_targets().values()
    absent = {t.recipe for t in known if t.data or (t.needs and find_spec(MODULES[t.needs]) is None)}
    return [name for name in list_names() if not name.startswith(FAMILY) and name not in absent]
