"""The packaged recipes that can be built as they are: those of `pretrained` want a model and data of their user first,
and have tests of their own (`recipes/test_pretrained_recipes.py`)."""

from __future__ import annotations

from shuhari.config.library import list_names

FAMILY = "pretrained/"


def list_buildable() -> list[str]:
    """The names of the packaged recipes in which nothing is left to be set."""
    return [name for name in list_names() if not name.startswith(FAMILY)]
