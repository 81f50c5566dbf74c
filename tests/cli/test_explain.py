"""`shuhari explain`: what a recipe changes of its base, stage by stage, and the algorithm that comes out."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from shuhari.desk.components import describe_setting, take_sentence
from shuhari.desk.explaining import Change, Stage, explain
from shuhari.objectives.selective import ClipCov


def by_key(stage: Stage) -> dict[str, Change]:
    return {change.key: change for change in stage.changes}


def sections(stage: Stage) -> dict[str, bool]:
    assert len(stage.loop) <= 10
    return {line.section: line.changed for line in stage.loop}


def test_a_method_is_its_one_loss_and_the_rest_is_as_in_its_base() -> None:
    found = explain("rlvr/clip_cov")
    assert found.base == "beds/trie/twins4" and not found.run and not found.gone
    warm, rl = found.stages
    assert not warm.changes and not any(sections(warm).values())
    assert by_key(rl).keys() == {"part.policy.terms.loss.use"}  # reduce is the base's
    (loss,) = rl.changes
    assert (loss.value, loss.base, loss.origin) == ("clip_cov", "clip", "with rlvr/clip_cov")
    assert loss.says == take_sentence(ClipCov.__doc__ or "")
    assert [name for name, changed in sections(rl).items() if changed] == ["terms"]
    assert list(sections(rl)) == ["task", "curriculum", "rollout", "rewards", "collect", "buffer", "terms", "optimiser"]
    (method,) = found.methods
    assert method.arxiv == "2505.22617" and Path(method.page).read_text(encoding="utf-8").startswith("# Clip-Cov")


def test_a_stage_that_is_brought_in_a_role_and_a_wrapped_rollout() -> None:
    warm, teach, rl = explain("data/rlgf").stages
    assert not warm.changes and (teach.name, teach.new, rl.new) == ("teach", True, False)
    brought = by_key(teach)
    assert brought["buffer.use"].value == "demos" and brought["part.guide.trains"].value == ["guide"]
    assert brought["collect.advantage"].kind == "removed" and brought["collect.advantage"].origin == "with data/rlgf"
    assert "rollout" not in sections(teach)  # demonstrations are shown, nothing is sampled
    changed = by_key(rl)
    assert changed.keys() == {"models.guide.init", "rollout.use", "rollout.share", "rollout.of"}  # evaluation stays
    assert changed["rollout.of"].kind == "kept" and changed["rollout.of"].value == "single"
    assert (changed["rollout.use"].value, changed["rollout.use"].base) == ("guide_prefix", "single")
    assert changed["rollout.share"].says == "in [0, 1], or a schedule"


def test_a_recipe_is_held_against_the_one_that_it_extends() -> None:
    found = explain("baselines/dpo")
    assert found.base == "baselines/grpo" and not found.methods and not found.stages[0].changes
    changed = by_key(found.stages[1])
    assert changed["part.policy.terms.loss"].kind == "removed" and changed["part.policy.terms.loss"].base == "clip"
    assert changed["transform.pairs.use"].value == "pairs"  # the file says `[transform.pairs]` alone
    assert changed["part.policy.optimiser.lr"].base == {"from": 7e-4, "to": 7e-5, "warm": 6}
    assert {change.origin for change in changed.values()} == {"baselines/dpo"}


def test_of_a_recipe_without_a_base_everything_is_told_and_nothing_marked() -> None:
    found = explain("baselines/ppo_cartpole")
    (main,) = found.stages
    assert not found.base and {change.origin for change in main.changes} == {"baselines/ppo_cartpole"}
    assert by_key(main)["transform.gae.lam"].value == 0.95 and by_key(main)["env_steps"].value == 99_000
    assert not any(sections(main).values()) and "curriculum" not in sections(main)
    terms = next(line for line in main.loop if line.section == "terms")
    assert [item.detail for item in terms.items] == ["reduce = decision, weight 1", "reduce = decision, weight 0.5"]


def test_two_methods_over_a_recipe_as_json(shuhari) -> None:
    asked = ("baselines/grpo", "--with", "rlvr/kl_cov", "--with", "curriculum/mopps", "--set", "rollout.n=4")
    done = shuhari("explain", *asked, "--json")
    found: dict[str, Any] = json.loads(done.out)
    assert done.code == 0 and found["base"] == "baselines/grpo"
    _, rl = found["stages"]
    changed = {change["key"]: change for change in rl["changes"]}
    assert changed["part.policy.terms.loss.use"]["origin"] == "with rlvr/kl_cov"
    assert changed["curriculum.use"]["base"] == "sequential"  # by default: the base says nothing of it
    assert changed["curriculum.candidates"]["kind"] == "kept"
    assert (changed["rollout.n"]["value"], changed["rollout.n"]["base"], changed["rollout.n"]["origin"]) == (
        4, 16, "--set")  # fmt: skip
    assert [line["section"] for line in rl["loop"] if line["changed"]] == ["curriculum", "rollout", "terms"]
    assert [method["arxiv"] for method in found["methods"]] == ["2505.22617", "2507.04632"]
    shown = shuhari("explain", *asked).out
    assert all(key in shown for key in changed) and shown.count("shuhari train my_recipe.toml --with ") == 2


def test_stages_that_say_the_same_are_told_apart_and_repeated_ones_once(tmp_path: Path) -> None:
    file = tmp_path / "twice.toml"
    text = '\n[[stage]]\nname = "a"\nrepeat = 3\n[[stage]]\nname = "b"\n[[stage]]\nname = "c"\n'
    file.write_text(f'extends = "baselines/bandit"\n{text}')
    assert [(stage.name, stage.times) for stage in explain(str(file)).stages] == [("a", 3), ("b", 1), ("c", 1)]


def test_a_study_that_trains_nothing_has_no_loop(tmp_path: Path) -> None:
    file = tmp_path / "study.toml"
    file.write_text('extends = "baselines/bandit"\n[study]\nuse = "classroom"\nside = 3\n')
    found = explain(str(file))
    assert not found.stages and {change.key for change in found.run} == {"study.use", "study.side"}


@pytest.mark.parametrize("argv", [("rlvr/clip_co",), ("baselines/grpo", "--with", "rlvr/clip_co"),
                                  ("baselines/grpo", "--set", "rollout.m=3")])  # fmt: skip
def test_a_mistake_is_told_as_train_tells_it(shuhari, argv: tuple[str, ...]) -> None:
    told, trained = shuhari("explain", *argv), shuhari("train", *argv, "--dry-run")
    assert told.code == trained.code == 2 and told.err == trained.err and not told.out


@dataclass
class Documented:
    """It does a thing; `late` is told here: and this of the thing.

    one, two: numbers in [0, 1]; of one kind. `three`: text (a word; or two), by name. four > 0 bounds it.
    """

    one: int = 0
    late: int = 0
    silent: int = 0


@pytest.mark.parametrize(
    ("name", "says"),
    [("one", "numbers in [0, 1]"), ("two", "numbers in [0, 1]"), ("three", "text (a word; or two), by name"),
     ("four", "four > 0 bounds it"), ("late", "`late` is told here"), ("silent", "")],
)  # fmt: skip
def test_a_setting_is_told_by_the_docstring_of_its_class(name: str, says: str) -> None:
    assert describe_setting(Documented, name) == says
