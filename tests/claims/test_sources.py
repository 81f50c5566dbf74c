"""What a result was measured with: the core, the modules of its components, and what makes neither another."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from shuhari.config.build import make_component
from shuhari.config.recipe import load
from shuhari.kernel import registry
from shuhari.lab.claims import kept_results, sources
from shuhari.lab.claims.claim import read
from shuhari.lab.claims.result import compute_hashes, find_stale
from shuhari.lab.claims.runs import plan_runs


def test_a_new_baseline_makes_nothing_stale(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Were every method a baseline, no component were any method's own, and still all that was measured stands."""
    measured = ("curriculum/dots", "engine/areal", "rlvr/kl_cov")
    stored = {name: kept_results.read_result(name) for name in measured}
    why = {name: find_stale(read(name), result) for name, result in stored.items() if result is not None}
    before = sources.digest_core(), [j.path for name in measured for j in plan_runs(read(name), tmp_path)]
    baselines = {f"baselines/{name}/{arm}": recipe for name in measured for arm, recipe in read(name).recipes.items()}
    monkeypatch.setattr(sources, "list_names", lambda: list(baselines))
    monkeypatch.setattr(sources, "load", baselines.__getitem__)
    monkeypatch.setattr("shuhari.lab.claims.result.list_common", cache(sources.list_common.__wrapped__))
    for name in measured:
        found = stored[name]
        assert found is not None and find_stale(read(name), found) == why[name]
        assert compute_hashes(read(name))["modules"] == {}
    now = sources.digest_core.__wrapped__(), [j.path for name in measured for j in plan_runs(read(name), tmp_path)]
    assert now == before


def test_the_core_is_what_training_runs_and_nothing_that_shows_or_judges() -> None:
    core = sources.list_core()
    trains = ("shuhari.loop.run", "shuhari.batch", "shuhari.kernel.noise", "shuhari.loop.evaluation")
    assert {*trains, "shuhari.kernel.reduce"} <= core
    apart = ("shuhari.desk", "shuhari.lab", *sources.OUTSIDE[1:])
    assert not [name for name in core if name.startswith(apart)]
    components = {cls.__module__ for kind, cls in registry.entries().items() if kind[0] != "quantity"}
    assert components & core <= {"shuhari.rewards.function"}  # which building a recipe must know


@pytest.mark.parametrize("module", ["runs", "proof"])
def test_what_begins_and_trains_a_run_is_of_the_core(module: str) -> None:
    """A claim trains by what its digests cover, and not by what a user calls (`shuhari.desk.api`)."""
    tree = ast.parse((Path(sources.__file__).parent / f"{module}.py").read_text())
    asked = {n.name: f.module for f in ast.walk(tree) if isinstance(f, ast.ImportFrom) for n in f.names}
    assert {asked["train"], asked["load_initial"]} <= sources.list_core()
    assert "shuhari.desk.api" not in asked.values()


TOKENS = Path(__file__).parents[1] / "runs" / "tokens.toml"  # whose task is countdown


def test_a_component_brings_what_it_imports() -> None:
    assert {"shuhari.tasks.countdown", "shuhari.tasks.expressions"} <= set(sources.digest_modules([load(str(TOKENS))]))
    assert "shuhari.tasks.expressions" not in sources.digest_modules([load("baselines/ppo_cartpole")])


def test_what_a_result_shares_with_others_makes_it_older() -> None:
    found = compute_hashes(read("rlvr/pacs"))
    assert not sources.is_older(found) and "shuhari.objectives.log_ratio" in found["modules"]
    assert sources.is_older({**found, "shared": {**found["shared"], "shuhari.rollouts.single": "other"}})
    assert sources.is_older({**found, "core": "other"})
    assert sources.find_changed({"shuhari.objectives.log_ratio": "other"}, {}) and sources.find_changed(
        {"shuhari.gone": "x"}, {}
    )


def test_a_world_is_followed_and_played(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_ENTRIES", dict(registry._ENTRIES))

    @registry.register("world", "line")
    @dataclass
    class Line(gymnasium.Env[Any, Any]):
        length: int = 3

        def __post_init__(self) -> None:
            self.observation_space = gymnasium.spaces.Box(0, 9, (1,), np.float32)
            self.action_space = gymnasium.spaces.Discrete(2)

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            self.at = 0
            return np.zeros(1, np.float32), {}

        def step(self, action: Any) -> Any:
            self.at += int(action)
            return np.array([self.at], np.float32), 1.0, self.at >= self.length, False, {}

    task = make_component("task", {"name": "gym/world/line", "kwargs": {"length": 2}})
    episode = task.environment(problem := task.problems("test")[0])
    episode.reset(problem)
    assert [episode.step(1)[2] is None for _ in range(2)] == [True, False]
    recipe = load("baselines/ppo_cartpole").with_settings({"task.name": "gym/world/line"})
    assert Path(__file__).stem in "".join(sources.digest_modules([recipe]))
    with pytest.raises(ValueError, match="did you mean 'line'"):
        make_component("task", {"name": "gym/world/lime"})


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("def f(*, a, b=1): pass", "def f(*, a=1, b): pass"),
        ("def f(*, a, b=None): pass", "def f(*, a=None, b): pass"),
        ("f = lambda *, a, b=1: a", "f = lambda *, a=1, b: a"),
        ("{**a, 'b': c}", "{'b': a, **c}"),
    ],
)
def test_two_programs_have_two_digests(one: str, other: str) -> None:
    assert sources._digest_tree(ast.parse(one)) != sources._digest_tree(ast.parse(other))


def test_a_digest_is_that_of_any_python() -> None:
    tree = ast.parse('"""a"""\ndef f(x: int = 1) -> str:\n    """b"""\n    return f"{x!r:>{3}}" or None\n')
    assert sources._digest_tree(tree) == "56fbc402861b"


def test_a_module_is_the_same_while_it_does_the_same(tmp_path: Path) -> None:
    digests = []
    for i, text in enumerate(('"""a"""\nx = 1  # one\n', '"""b"""\n\nx  =  1\n', '"""a"""\nx = 2\n')):
        path = tmp_path / f"{i}.py"
        path.write_text(text)
        digests.append(sources._digest_tree(sources._parse(path)))
    assert digests[0] == digests[1] != digests[2]


def test_the_sentence_under_a_setting_is_part_of_no_digest() -> None:
    plain = "class A:\n    rate: float = 0.5\n    n: int = 1\n"
    told = plain.replace("0.5\n", '0.5\n    """The share of prompts."""\n')
    assert sources._digest_tree(ast.parse(plain)) == sources._digest_tree(ast.parse(told))
    assert sources._digest_tree(ast.parse(plain)) != sources._digest_tree(ast.parse(told.replace("0.5", "0.6")))


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ('raise ValueError(f"x is {x}")', 'raise ValueError(f"x: expected {y}, got {x}")', True),
        ('raise ValueError("a") from None', 'raise ValueError(f"b {c}") from None', True),
        ('raise ValueError("a")', 'raise KeyError("a")', False),
        ("raise Stop(1)", "raise Stop(2)", False),
        ('message = "a"', 'message = "b"', False),
    ],
)
def test_the_text_of_an_error_is_part_of_no_digest(one: str, other: str, same: bool) -> None:
    assert (sources._digest_tree(ast.parse(one)) == sources._digest_tree(ast.parse(other))) is same
