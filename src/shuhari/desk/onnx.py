"""Controllers as files of ONNX: an observation in; the action without chance out, and what its distribution is made of.

Left out: language models (exporters of transformers read what `export` writes), sampling, composites of several roles.

Axes: `B` rows, which may be any number.
"""

from __future__ import annotations

import copy
import logging
import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from shuhari.desk.api import parse_observations
from shuhari.loop.opening import open_models
from shuhari.models.spaces import MASK
from shuhari.needs import role_model
from shuhari.ports.hooks import ability
from shuhari.store import Run, StoreError, find_checkpoint

NAME, OBSERVATION = "policy.onnx", "observation"
PART = f"{OBSERVATION}."  # before a key of a Dict, which might be the name of something inside of the graph
CLOSE = 1e-4  # the largest difference to onnxruntime, relative to numbers above 1


def export_onnx(run: str | Path, target: str | Path, *, role: str = "policy", force: bool = False) -> dict[str, Any]:
    """Write the controller of a run (`RUN`, `RUN@step` or `RUN@best`) as `target`, a file *.onnx or a directory.

    Inputs: `observation` [B, ...], or `observation.<key>` of observations that are a Dict (with `action_mask`).
    Outputs: `action`, as the environment takes it, and `logits`, `values`, or `mean` and `log_std`. Where onnxruntime
    is installed, it is asked the same as the model. Returns the path, `inputs`, `outputs` and what was `checked`.

    Raises ValueError for a role without such a model, FileExistsError where the file is there, ModuleNotFoundError
    without the extra `onnx`, NoRunError or StoreError for the run and its step, StoreError for a graph that answers
    otherwise.
    """
    _require("onnx", "onnxscript")
    path, step = find_checkpoint(str(run))
    file = Path(target)
    file = file if file.suffix == ".onnx" else file / NAME
    if file.exists() and not force:
        raise FileExistsError(f"{file} is there already: choose another name, or replace it with --force")
    models, task = open_models(path, step)
    model, space = role_model(models, role), (task.spaces() or (None,))[0]
    if (decide := ability(model, "decide")) is None:
        name = type(model).__name__
        raise ValueError(f"the model of {role!r} ({name}) has no graph of its own: expected a controller of one role")
    file.parent.mkdir(parents=True, exist_ok=True)
    made = file.with_name(f".tmp-{file.name}")
    try:
        inputs, outputs = write_graph(model, space, made)
        checked = compare(made, decide, space)
        os.replace(made, file)
    finally:
        made.unlink(missing_ok=True)
    at = step if step is not None else int((Run(path).cursor or {"step": -1})["step"])
    return {"path": str(file), "role": role, "step": at, "inputs": inputs, "outputs": outputs, "checked": checked}


def write_graph(model: Any, space: Any, file: Path) -> tuple[list[str], list[str]]:
    """Write the decisions of a model upon observations of a space; the names of inputs and outputs."""
    seen, model = _example(space), copy.deepcopy(model)  # tracing leaves marks on it
    with torch.no_grad():
        outputs = list(model.decide(_pack(seen)))
    with _silence():
        program: Any = torch.onnx.export(
            _Graph(model.decide, model.module, tuple(seen)).eval(), tuple(seen.values()), input_names=list(seen),
            output_names=outputs, dynamic_shapes=(({0: "batch"},) * len(seen),), dynamo=True, verbose=False,
        )  # fmt: skip
        program.save(str(file), external_data=False)
    return list(seen), outputs


class _Graph(nn.Module):
    """The model's decisions, as a function of tensors by position; `module` holds its weights."""

    def __init__(self, decide: Any, module: nn.Module, names: tuple[str, ...]) -> None:
        super().__init__()
        self.decide, self.names, self.module = decide, names, module

    def forward(self, *seen: Tensor) -> tuple[Tensor, ...]:
        return tuple(self.decide(_pack(dict(zip(self.names, seen, strict=True)))).values())


def _pack(seen: Mapping[str, Tensor]) -> Any:
    """What a model takes: a tensor, or one by key."""
    return seen[OBSERVATION] if OBSERVATION in seen else {k.removeprefix(PART): x for k, x in seen.items()}


def _example(space: Any, rows: int = 3, seed: int = 0) -> dict[str, Tensor]:
    """Observations of a space by the name of their input; masks allow everything."""
    space.seed(seed)
    drawn = [parse_observations(space.sample(), space)[0] for _ in range(rows)]
    if not isinstance(drawn[0], dict):
        return {OBSERVATION: torch.cat(drawn)}
    seen = {
        k: torch.cat([x[k] for x in drawn])
        for k in drawn[0]
    }
    return {f"{PART}{k}": torch.ones_like(x) if k == MASK else x for k, x in seen.items()}


def compare(file: Path, decide: Any, space: Any) -> str:
    """Ask onnxruntime and the model about other observations, of another number, than the graph was made with; in
    words. StoreError where they differ."""
    try:
        import onnxruntime
    except ModuleNotFoundError:
        return "not checked (onnxruntime is not installed)"
    seen = _example(space, rows=5, seed=1)
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    theirs = session.run(None, {k: x.numpy() for k, x in seen.items()})
    with torch.no_grad():
        ours = {name: x.numpy() for name, x in decide(_pack(seen)).items()}
    for a, (name, b) in zip(theirs, ours.items(), strict=True):
        if a.shape != b.shape or not np.allclose(a, b, rtol=CLOSE, atol=CLOSE):
            raise StoreError(f"onnxruntime says {a.ravel()[:3]} of {name!r}, the model {b.ravel()[:3]}: not written")
    return "onnxruntime says the same"


def _require(*names: str) -> None:
    from importlib.util import find_spec

    if lost := [name for name in names if find_spec(name) is None]:
        raise ModuleNotFoundError(f'ONNX needs {" and ".join(lost)}: pip install "shuhari[onnx]"')


@contextmanager
def _silence() -> Iterator[None]:
    """Without what the exporter says of its own deprecations."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)
