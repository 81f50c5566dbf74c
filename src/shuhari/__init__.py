"""shuhari: one RL loop for every generative policy, from a lookup table to a language model.

`train` runs a recipe, `load` takes the policy out of a run. Nothing heavy is imported before it is asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shuhari.api import LoadedPolicy, Trained, load, train
    from shuhari.registry import register

__version__ = "0.1.0"
__all__ = ["LoadedPolicy", "Trained", "__version__", "load", "register", "train"]

_HOME = {"LoadedPolicy": "api", "Trained": "api", "load": "api", "train": "api", "register": "registry"}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'shuhari' has no attribute {name!r}")
    return getattr(import_module(f"shuhari.{_HOME[name]}"), name)
