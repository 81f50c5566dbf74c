"""The sentence of each setting by its key, and the JSON schema of recipes."""

from __future__ import annotations

import json
from importlib.util import find_spec

import pytest

from shuhari.config.library import list_recipes
from shuhari.config.overlay import walk_leaves
from shuhari.config.recipe import load
from shuhari.desk.json_schema import make_schema
from shuhari.desk.sentences import find_sentence
from shuhari.learners.parts import Term
from shuhari.objectives.clip import Clip

RECIPES = sorted(m.name for m in list_recipes() if m.family in ("baselines", "reproduce") and m.problem is None)
OWN = ("name", "paper", "claim", "laid", "alone")  # of a stage or a file, and no settings


def test_a_setting_is_found_by_its_key() -> None:
    tree = dict(load("baselines/grpo").stages[-1])
    assert find_sentence(tree, ("part", "policy", "terms", "loss", "low")).startswith("Clip range below 1")
    assert find_sentence(tree, ("part", "policy", "terms", "loss", "stream")).startswith("Stream of rows")
    assert find_sentence(tree, ("part", "policy", "optimiser", "lr")) == "Learning rate, or its schedule."
    assert find_sentence(tree, ("part", "policy", "optimiser", "lr", "from")) == "Learning rate, or its schedule."
    assert "climbs from 0 at first" in find_sentence(tree, ("part", "policy", "optimiser", "lr", "warm"))
    assert find_sentence(tree, ("rollout", "sampling", "temperature", "to")).startswith("Schedule: the value")
    assert find_sentence(tree, ("rollout", "sampling", "max_new")).startswith("Largest number of tokens")
    assert find_sentence(tree, ("models", "policy", "init")).startswith("A role whose weights")
    assert find_sentence(tree, ("store", "keep")).startswith("Number of last checkpoints")
    assert find_sentence(tree, ("evaluate", "sampling", "temperature")).startswith("Temperature")
    mixed = dict(load("baselines/rlpd_point").stages[-1])
    assert find_sentence(mixed, ("buffer", "buffers", "online", "capacity")).startswith("Number of rows kept")
    assert find_sentence(tree, ("no", "such")) == ""
    assert find_sentence(tree, ("models", "nobody", "hidden")) == ""


def test_a_stage_that_changes_a_component_is_read_by_its_own() -> None:
    tree = {"buffer": {"use": "fresh"}, "stage": {"last": {"buffer": {"use": "replay", "capacity": 10}}}}
    assert find_sentence(tree, ("stage", "last", "buffer", "capacity")).startswith("Number of rows kept")


@pytest.mark.parametrize("name", RECIPES)
def test_every_setting_of_a_recipe_has_a_sentence(name: str) -> None:
    missing = {
        ".".join(path)
        for stage in load(name).stages
        for path, _ in walk_leaves(stage)
        if path[0] not in OWN and not find_sentence(stage, path)
    }  # fmt: skip
    assert not missing


def test_the_schema_knows_the_settings_of_each_component() -> None:
    schema = make_schema()
    json.dumps(schema)
    kinds = schema["definitions"]
    of = kinds["objective"]["allOf"]
    cases = {case["if"]["properties"]["use"]["const"]: case["then"]["properties"] for case in of}
    assert cases["clip"]["clips"]["enum"] == ["surrogate", "weight"]
    assert cases["clip"].keys() == {f for f in Clip.__dataclass_fields__ if Clip.__dataclass_fields__[f].init}
    terms = schema["properties"]["part"]["additionalProperties"]["properties"]["terms"]["additionalProperties"]
    assert {f for f in Term.__dataclass_fields__ if f != "objective"} <= terms["properties"].keys()


@pytest.mark.skipif(find_spec("jsonschema") is None, reason="jsonschema is not installed")
@pytest.mark.parametrize("name", RECIPES)
def test_recipes_are_valid_by_the_schema(name: str) -> None:
    import jsonschema

    recipe = load(name)
    jsonschema.Draft7Validator(make_schema()).validate(json.loads(json.dumps({**recipe.tree})))
