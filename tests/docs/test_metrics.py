"""The glossary of metrics has every number that runs report, and every one that the diagnosis reads."""

from __future__ import annotations

import ast
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

import shuhari
from shuhari.lab.diagnosis import RULES

DOCS = Path(__file__).parents[2] / "docs"
SMALL = {"use": "causal", "hidden": 16, "layers": 1, "heads": 2, "intermediate": 16}
TEXT = {
    "models.policy": SMALL,
    "models.start": {"init": "policy"},
    "buffer.size": 4,
    "rollout.n": 4,
    "stage.warm-up.steps": 2,
    "stage.rl.steps": 2,
    "evaluate": {"n": 4, "samples": 2, "every": 1, "tail": [0.5], "metrics": {"exact": {"n": 4}, "weights": {}}},
    "part.policy.terms": {"loss": {"truncate": 2.0, "behaviour": "old"}, "entropy": {"weight": 0.01}},
}
CONTROL = {"models.policy.hidden": [8], "models.critic.hidden": [8], "buffer.size": 128, "evaluate.n": 2}


@pytest.fixture(scope="module")
def glossary() -> ModuleType:
    sys.path.append(str(DOCS))
    return import_module("glossary")


def test_every_number_of_a_run_of_text_is_explained(glossary: ModuleType, tmp_path: Path) -> None:
    run = shuhari.train("baselines/grpo", tmp_path / "run", progress=False, **TEXT)
    names = [*run.metrics, *(f"evaluate/{name}" for name in run.summary["after"])]
    assert {"policy/loss/clip", "rollout/alike", "evaluate/pass@2", "evaluate/exact.mean", "policy/entropy"} <= {*names}
    assert not [name for name in names if not glossary.find(name)]


def test_every_number_of_a_run_of_control_is_explained(glossary: ModuleType, tmp_path: Path) -> None:
    run = shuhari.train("baselines/ppo_cartpole", tmp_path / "run", progress=False, steps=3, **CONTROL)
    names = [*run.metrics, *(f"evaluate/{name}" for name in run.summary["after"])]
    assert {"critic/explained_variance", "rollout/return", "spent/env_steps"} <= {*names}
    assert not [name for name in names if not glossary.find(name)]


def test_every_rule_reads_numbers_of_the_glossary(glossary: ModuleType) -> None:
    told = {rule.name for pattern in glossary.patterns() for rule in glossary.rules(pattern)}
    assert told == {rule.name for rule in RULES}


def list_infos(path: Path) -> set[str]:
    """The keys of what the functions of a module return, or name, as the infos of a loss."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        values: list[ast.expr] = []
        if isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple):
            values = node.value.elts
        elif isinstance(node, ast.Assign | ast.AugAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            values = [node.value] if any(isinstance(t, ast.Name) and t.id == "info" for t in targets) else []
        told = [v for v in values if isinstance(v, ast.Dict)]
        found |= {str(k.value) for v in told for k in v.keys if isinstance(k, ast.Constant)}
    return found


def test_infos_are_those_that_losses_report(glossary: ModuleType) -> None:
    source = Path(shuhari.__file__).parent
    own = [file for file in source.glob("methods/*/*/*.py") if '@register("objective"' in file.read_text()]
    assert set().union(*map(list_infos, [*source.glob("objectives/*.py"), *own])) == glossary.INFOS.keys()


@pytest.mark.parametrize("name", ["policy/los/clip", "rollout/lengths", "evaluate/greedi", "spent/token", "policy/x"])
def test_another_name_is_not_explained(glossary: ModuleType, name: str) -> None:
    assert not glossary.find(name)
    assert glossary.find("policy/loss/clip@add") and glossary.find("evaluate/vote.pass@8")
