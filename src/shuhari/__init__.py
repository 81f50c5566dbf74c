"""shuhari: one RL loop for every generative policy, from a lookup table to a language model.

`train` runs a recipe, `load` returns the policy of a run and `export` writes it for other programs; `session` has the
four calls for a training loop of your own. Heavy imports happen on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shuhari.config.overlay import RecipeError
    from shuhari.data import Problem, Sampling
    from shuhari.desk.api import LoadedPolicy, Trained, load, train
    from shuhari.desk.export import Exported, export, export_replay
    from shuhari.desk.onnx import export_onnx
    from shuhari.desk.sinks import track_trackio as Trackio
    from shuhari.desk.sinks import track_wandb as WandB
    from shuhari.desk.tensorboard import TensorBoard
    from shuhari.kernel.registry import register
    from shuhari.learners.parts import Term
    from shuhari.loop.sessions import Session, session
    from shuhari.loop.stopping import Stop
    from shuhari.store.directory import NoRunError
    from shuhari.store.files import StoreError

__version__ = "0.1.0"
_HOME = {
    "Exported": "desk.export",
    "LoadedPolicy": "desk.api",
    "NoRunError": "store.directory",
    "Problem": "data",
    "RecipeError": "config.overlay",
    "Sampling": "data",
    "Session": "loop.sessions",
    "Stop": "loop.stopping",
    "StoreError": "store.files",
    "TensorBoard": "desk.tensorboard",
    "Term": "learners.parts",
    "Trackio": "desk.sinks:track_trackio",
    "Trained": "desk.api",
    "WandB": "desk.sinks:track_wandb",
    "export": "desk.export",
    "export_onnx": "desk.onnx",
    "export_replay": "desk.export",
    "load": "desk.api",
    "register": "kernel.registry",
    "session": "loop.sessions",
    "train": "desk.api",
}
__all__ = [  # noqa: RUF022  (what most people want comes first)
    "train", "load", "export", "export_onnx", "export_replay", "session", "register", "Problem", "Sampling", "Term",
    "LoadedPolicy", "Session", "Trained", "Exported", "TensorBoard", "Trackio", "WandB", "Stop", "RecipeError",
    "StoreError", "NoRunError", "__version__",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOME and name != "testing":
        raise AttributeError(f"module 'shuhari' has no attribute {name!r}")
    import_module("shuhari.desk.threads").share_the_machine()  # before any of these imports torch
    if name == "testing":  # a package: what checks parts of one's own
        return import_module("shuhari.testing")
    module, _, own = _HOME[name].partition(":")
    return getattr(import_module(f"shuhari.{module}"), own or name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
