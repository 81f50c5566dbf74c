"""What methods need of their base: what their components declare is derived, and not written again."""

from __future__ import annotations

import tomllib
from types import SimpleNamespace
from typing import Any

import pytest

from shuhari.config.library import find_recipe, list_names
from shuhari.config.methods import derive_needs
from shuhari.config.overlay import RecipeError
from shuhari.config.recipe import read_method
from shuhari.loop.suits import check_needs

TABLES = {name: tomllib.loads(file.read_text()) for name in list_names() if (file := find_recipe(name)) is not None}
METHODS = [name for name, table in TABLES.items() if "on" in table]
DERIVED = {  # as these methods wrote it by hand once, and OREAL forgot
    "data/direct_advantage": 2, "data/raft": 2, "data/rl_plus": 2, "data/step_negatives": 2, "diffusion/prdp": 2,
    "rlvr/canon": 2, "rlvr/cog_rethinker": 2, "rlvr/deepsearch": 2, "rlvr/prorl": 2, "rlvr/oreal": 2,
    "preference/gdc": 2, "preference/inpo": 2, "preference/online_rlhf": 2, "preference/xpo": 2,
}  # fmt: skip


def test_groups_come_from_what_compares_them() -> None:
    found = {name: derive_needs(read_method(name).table).get("groups") for name in METHODS}
    assert {name: n for name, n in found.items() if n} == DERIVED | {"data/calibrl": 2, "rlvr/dapo": 2}
    for name, n in DERIVED.items():
        assert read_method(name).needs["groups"] == n
    assert read_method("data/calibrl").needs["groups"] == 3  # more than any component of it knows


@pytest.mark.parametrize("name", METHODS)
def test_nothing_is_written_that_follows(name: str) -> None:
    written = TABLES[name].get("needs", {})
    derived = derive_needs(read_method(name).table)
    assert not [need for need, value in derived.items() if written.get(need) == value]
    assert not {"solutions", "text"} <= written.keys(), "a problem with a solution is one of text"


def test_a_method_says_what_no_component_knows() -> None:
    table: dict[str, Any] = {"collect": {"own": {"use": "drop_uniform_groups"}, "advantage": {"centre": "mean"}}}
    assert derive_needs(table) == {"groups": 2}
    assert derive_needs({"collect": {"drop_uniform_groups": {"before": "advantage"}}}) == {"groups": 2}
    assert derive_needs({"part": {"policy": {"terms": {"loss": {"use": "oreal"}}}}}) == {}  # a transform, no loss
    assert derive_needs({"part": {"policy": {"terms": {"loss": {"use": "proximal_pairs"}}}}}) == {"groups": 2}
    assert derive_needs({"rollout": {"use": "with_solution", "wraps": "of"}}) == {"groups": 2}
    assert derive_needs({"rollout": {"n": 4}, "buffer": {"use": "groups"}}) == {}


def test_solutions_are_of_text() -> None:
    learner = SimpleNamespace(buffer=SimpleNamespace(wanted=lambda: 1))
    task = SimpleNamespace(spaces=lambda: (3, 2))
    stage: Any = SimpleNamespace(learners={"main": learner}, laid={"own": {"solutions": True}}, task=task, name="rl")
    with pytest.raises(RecipeError, match=r"^task: no text in stage 'rl': own needs problems with a solution"):
        check_needs(stage)
