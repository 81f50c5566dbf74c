"""`load` takes what `export` and `save_state` have written, and acts as the run or the session did."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import shuhari
from shuhari.desk.api import load, train
from shuhari.desk.export import export
from shuhari.desk.opening import find_kind
from shuhari.learners.parts import Term
from shuhari.objectives.clip import Clip
from shuhari.store import StoreError
from shuhari.transforms.advantage import Advantage
from small_runs import recipe

TINY = {"use": "causal", "hidden": 16, "layers": 1, "heads": 2, "intermediate": 16}


def test_a_controller_that_was_exported_acts_as_its_run(tmp_path: Path) -> None:
    train(recipe("dqn", tmp_path, steps=3), tmp_path / "run")
    export(tmp_path / "run", tmp_path / "out")
    seen = torch.linspace(-1, 1, 20).reshape(5, 4).numpy()
    theirs, ours = load(tmp_path / "run"), load(tmp_path / "out")
    assert find_kind(tmp_path / "out") == "controller" and find_kind(tmp_path / "run") == ""
    assert ours.act(seen).tolist() == theirs.act(seen).tolist() and str(ours.space) == str(theirs.space)
    with pytest.raises(ValueError, match=r"step is 1, and .*out is not a run"):
        load(tmp_path / "out", step=1)
    with pytest.raises(ValueError, match="holds the role 'policy', not 'target'"):
        load(tmp_path / "out", role="target")
    (tmp_path / "out" / "model.json").write_text(json.dumps({"role": "policy"}))
    with pytest.raises(StoreError, match=r"model.json"):
        load(tmp_path / "out")


def test_a_language_model_that_was_saved_speaks_as_its_session(tmp_path: Path) -> None:
    with shuhari.session(TINY, task="arithmetic", seed=3) as s:
        batch = s.transform(s.sample(2, n=4), Advantage())
        s.clone("reference")
        s.forward_backward(batch, [Term(Clip())])
        s.optim_step(lr=0.1)
        s.save_state(tmp_path / "state")
        s.models["policy"].save(str(tmp_path / "hf"))
        weights = {role: model.module.state_dict() for role, model in s.models.items()}
    policy, reference = load(tmp_path / "state"), load(tmp_path / "state", role="reference")
    for loaded, role in ((policy, "policy"), (reference, "reference")):
        there = loaded.model.module.state_dict()
        assert all(torch.equal(there[name], x) for name, x in weights[role].items())
    said = policy.generate(["1+1=", "23+4="], max_new=4)
    assert load(tmp_path / "hf").generate(["1+1=", "23+4="], max_new=4) == said
    with pytest.raises(ValueError, match="has no role 'teacher'"):
        load(tmp_path / "state", role="teacher")


def test_a_state_that_does_not_say_how_it_was_made_is_told(tmp_path: Path) -> None:
    from shuhari.tasks.bandit import Bandit

    with shuhari.session("categorical", task=Bandit()) as s:
        s.save_state(tmp_path / "state")
    with pytest.raises(StoreError, match=r"components as objects.*load_state"):
        load(tmp_path / "state")
