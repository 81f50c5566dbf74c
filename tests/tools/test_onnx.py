"""Controllers as ONNX: onnxruntime acts as the model does, for any number of observations."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

import shuhari
from shuhari.data import Sampling
from shuhari.desk.onnx import _example, _pack, compare, write_graph
from shuhari.models.categorical import CategoricalPolicy
from shuhari.models.critics import DiscreteQ
from shuhari.models.deterministic import DeterministicPolicy
from shuhari.models.gaussian import GaussianPolicy, SquashedPolicy

PLAIN = spaces.Box(-1.0, 1.0, (3,), np.float32)
MASKED = spaces.Dict({"place": spaces.Discrete(4), "view": PLAIN, "action_mask": spaces.MultiBinary(3)})
FLAT = spaces.Dict({"place": spaces.Discrete(4), "view": PLAIN})
REACH = spaces.Box(-2.0, 3.0, (2,), np.float32)
CASES: dict[str, tuple[Any, Any, Any, list[str]]] = {
    "ppo of choices": (CategoricalPolicy((8,)), MASKED, spaces.Discrete(3, start=1), ["action", "logits"]),
    "ppo of several": (CategoricalPolicy((8,)), PLAIN, spaces.MultiDiscrete([2, 3]), ["action", "logits"]),
    "ppo of a box": (GaussianPolicy((8,), normalise=True), FLAT, REACH, ["action", "mean", "log_std"]),
    "sac": (SquashedPolicy((8,), norm=True), PLAIN, REACH, ["action", "mean", "log_std"]),
    "td3": (DeterministicPolicy((8,)), PLAIN, REACH, ["action", "mean"]),
    "dqn": (DiscreteQ((8,)), PLAIN, spaces.Discrete(3), ["action", "values"]),
}


def built(name: str) -> tuple[Any, Any]:
    """The model of a case, and what it sees, as `LoadedPolicy.space` has it."""
    model, seen, does, _ = CASES[name]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model.build(SimpleNamespace(spaces=lambda: (seen, does)))
    return model, seen


@pytest.mark.parametrize("name", CASES)
def test_what_it_decides_is_what_it_does_without_chance(name: str) -> None:
    """`decide` agrees with greedy sampling, and names what the graph gives."""
    model, seen = built(name)
    contexts = _pack(_example(seen))
    found, traces = model.decide(contexts), model.sample(contexts, Sampling(greedy=True), noise=None)
    assert list(found) == CASES[name][3]
    assert torch.equal(found["action"], traces.action if traces.taken is None else traces.taken)


@pytest.mark.parametrize("name", CASES)
def test_onnxruntime_says_the_same(name: str, tmp_path: Path) -> None:
    for package in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(package)
    model, seen = built(name)
    inputs, outputs = write_graph(model, seen, tmp_path / "g.onnx")
    assert inputs == (["observation"] if seen is PLAIN else [f"observation.{k}" for k in seen])
    assert outputs == CASES[name][3]
    assert compare(tmp_path / "g.onnx", model.decide, seen) == "onnxruntime says the same"


def test_of_a_run_by_the_command_line_s_function(tmp_path: Path) -> None:
    for package in ("onnx", "onnxscript"):
        pytest.importorskip(package)
    small = {"steps": 1, "buffer.size": 16, "rollout.lanes": 2, "part.policy.minibatches": 1, "evaluate.n": 2}
    run = shuhari.train("baselines/ppo_cartpole", tmp_path / "run", rehearsal=False, **small)
    told = shuhari.export_onnx(run.path, tmp_path / "out", force=False)
    assert told["path"] == str(tmp_path / "out" / "policy.onnx") and told["outputs"] == ["action", "logits"]
    with pytest.raises(FileExistsError, match="is there already"):
        shuhari.export_onnx(run.path, tmp_path / "out" / "policy.onnx")
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["policy.onnx"]


def test_without_the_extra_it_says_which(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match=r'needs onnx and onnxscript: pip install "shuhari\[onnx\]"'):
        shuhari.export_onnx("run", "out")
