"""Controllers as ONNX files: from an observation to the greedy action and the parameters of its distribution.

Left out: language models (exporters of transformers read what `export` writes), sampling, composites of several roles.
Axes: `B` rows, any number.
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

from shuhari.desk.observations import parse_observations
from shuhari.loop.opening import open_models
from shuhari.models.spaces import MASK
from shuhari.needs import role_model
from shuhari.ports.hooks import ability
from shuhari.store import Run, StoreError, find_checkpoint

NAME, OBSERVATION = "policy.onnx", "observation"
PART = f"{OBSERVATION}."  # before a key of a Dict, which might clash with a name in the graph
CLOSE = 1e-4  # the largest difference to onnxruntime, relative for numbers above 1


def export_onnx(run: str | Path, target: str | Path, *, role: str = "policy", force: bool = False) -> dict[str, Any]:
    """Write the controller of a run (`RUN`, `RUN@step` or `RUN@best`) to `target`, a file *.onnx or a directory.

    Inputs: `observation` [B, ...], or `observation.<key>` for Dict observations (with `action_mask`). Outputs:
    `action`, as the environment takes it, and `logits`, `values`, or `mean` and `log_std`. If onnxruntime is installed,
    its outputs are compared with the model's. Returns the path, `inputs`, `outputs` and what was `checked`.

    Raises ValueError for a role without such a model, FileExistsError if the file exists, ModuleNotFoundError without
    the extra `onnx`, NoRunError or StoreError for the run and its step, StoreError if the graph's outputs differ.
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
        if ability(model, "memory") is not None:
            raise ValueError(f"the model of {role!r} ({name}) has a memory, and a graph has only observations as "
                             "inputs: use `load(run).predict(observation, state, episode_start)`")  # fmt: skip
        raise ValueError(f"the model of {role!r} ({name}) cannot be a graph alone: expected a controller of one role")
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
    """Write a model's decisions on observations of a space. Returns the names of inputs and outputs."""
    seen, model = _example(space), copy.deepcopy(model)  # tracing modifies it
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
    """Return a model's input: a tensor, or one by key."""
    return seen[OBSERVATION] if OBSERVATION in seen else {k.removeprefix(PART): x for k, x in seen.items()}


def _example(space: Any, rows: int = 3, seed: int = 0) -> dict[str, Tensor]:
    """Return sampled observations of a space by name of their input; masks allow everything."""
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
    """Compare onnxruntime with the model on new observations, in a batch of another size than at export. Returns a
    sentence. Raises StoreError if they differ."""
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
    """Suppress the exporter's warnings about its own deprecations."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)
