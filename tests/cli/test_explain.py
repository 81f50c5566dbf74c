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
    loss, low, high = rl.changes  # reduce is the base's
    assert (low.key, high.key) == ("part.policy.terms.loss.low", "part.policy.terms.loss.high")
    for bound in (low, high):
        assert (bound.value, bound.note, bound.base) == (1.0, "the default of clip_cov", 0.2)
        assert bound.base_note == "of baselines/grpo" and bound.origin == "with rlvr/clip_cov"
    assert loss.key == "part.policy.terms.loss.use"
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
    assert "in [0, 1]" in changed["rollout.share"].says


def test_a_recipe_is_held_against_the_one_that_it_extends() -> None:
    found = explain("baselines/dpo")
    assert found.base == "baselines/grpo" and not found.methods and not found.stages[0].changes
    changed = by_key(found.stages[1])
    assert changed["part.policy.terms.loss"].kind == "removed" and changed["part.policy.terms.loss"].base == "clip"
    assert changed["transform.pairs.use"].value == "pairs"  # the file says `[transform.pairs]` alone
    assert changed["part.policy.optimiser.lr"].base == {"from": 7e-4, "to": 7e-5, "warm": 6}
    assert {change.origin for change in changed.values()} == {"baselines/dpo"}


def test_a_change_of_a_recipe_without_a_base_is_told_alone() -> None:
    found = explain("baselines/grpo", ["part.policy.terms.loss.high=0.3"])
    warm, rl = found.stages
    (change,) = rl.changes
    assert found.base == "baselines/grpo" and not warm.changes and (change.value, change.base) == (0.3, 0.2)


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
    assert all(key in shown for key in changed)
    assert f"to use   shuhari train {' '.join(asked)}\n" in shown and shown.count("to use") == 1
    assert "to use   shuhari train my_recipe.toml --with rlvr/kl_cov\n" in shuhari("explain", "rlvr/kl_cov").out


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


MINE = """steps = 5
task.name = "arithmetic"
models.policy = {use = "causal", hidden = 16, layers = 1, heads = 2}
rollout = {n = 4, sampling.max_new = 6}
buffer.size = 2
collect.advantage = {}
collect.overlong = {use = "overlong", length = 6, cache = 2}
part.policy.optimiser.lr = 1e-3
part.policy.terms.loss = {use = "clip", high = 0.28, dual = 3.0}
"""


@pytest.fixture
def mine(tmp_path: Path) -> str:
    (tmp_path / "mine.toml").write_text(MINE)
    return str(tmp_path / "mine.toml")


def test_what_becomes_of_the_settings_of_a_component_in_whose_place_another_stands(mine: str) -> None:
    """`high` is said, and so goes; `low` is said by nobody (0.2 and 1.0 by default); clip_cov has no `dual`."""
    (stage,) = explain(mine, methods=["rlvr/clip_cov"]).stages
    changed = by_key(stage)
    loss = "part.policy.terms.loss"
    low, high, dual = (changed[f"{loss}.{name}"] for name in ("low", "high", "dual"))
    assert (low.value, low.note, low.base, low.base_note) == (1.0, "the default of clip_cov", 0.2, "the default")
    assert (high.value, high.note, high.base, high.base_note) == (1.0, "the default of clip_cov", 0.28, "of mine")
    assert (dual.kind, dual.base, dual.base_note) == ("removed", 3.0, "of mine")
    assert {one.origin for one in (low, high, dual)} == {"with rlvr/clip_cov"}
    reduce = by_key(explain(mine, [f"{loss}.reduce=row"], ["rlvr/clip_cov"]).stages[0])[f"{loss}.reduce"]
    assert (reduce.value, reduce.base, reduce.base_note) == ("row", "decision", "the default")


def test_of_a_component_that_is_wrapped_nothing_goes(mine: str) -> None:
    (stage,) = explain(mine, ["curriculum={use='sequential', seed=3}"], ["curriculum/mopps"]).stages
    assert not [c.key for c in stage.changes if c.key.startswith("curriculum") and c.kind == "removed"]


def test_whose_a_value_is(mine: str, tmp_path: Path, shuhari) -> None:
    told = shuhari("explain", mine, "--with", "rlvr/clip_cov", "--set", "part.policy.terms.loss.reduce=row").out
    shown = " ".join(told.split())  # however wide the terminal is
    assert 'part.policy.terms.loss.reduce = "row" (base: "decision", the default)' in shown
    assert "part.policy.terms.loss.high = 1.0, the default of clip_cov (base: 0.28, of mine)" in shown
    assert "without part.policy.terms.loss.dual (3.0, of mine)" in shown
    (tmp_path / "more.toml").write_text('extends = "mine.toml"\n[[stage]]\nname = "main"\n[[stage]]\nsteps = 7\n')
    assert "steps = 7  (base: 5, at its top)" in shuhari("explain", tmp_path / "more.toml").out


@pytest.mark.parametrize(
    ("methods", "sets", "remove", "who"),
    [
        (["rlvr/clip_cov"], [], ["collect.overlong"], "--remove"),
        (["rlvr/clip_cov"], ["remove=['collect.overlong']"], [], "--remove"),
        (["rlvr/kl_cov", "own.toml"], ["collect.advantage.scale=none"], [], "with own"),
    ],
)
def test_who_took_something_out(
    mine: str, tmp_path: Path, methods: list[str], sets: list[str], remove: list[str], who: str
) -> None:
    (tmp_path / "own.toml").write_text('on = "baselines/grpo"\nremove = ["collect.overlong"]\n')
    laid = [str(tmp_path / name) if name.endswith(".toml") else name for name in methods]
    gone = by_key(explain(mine, sets, laid, remove).stages[0])["collect.overlong"]
    assert (gone.kind, gone.origin) == ("removed", who)


def test_a_default_that_comes_back_is_told_with_who_brings_it(mine: str) -> None:
    changed = by_key(explain(mine, methods=["rlvr/kl_cov"], remove=["rollout.sampling.max_new"]).stages[0])
    found = changed["rollout.sampling.max_new"]
    assert found.note == "the default" and (found.base, found.origin) == (6, "--remove")


def test_what_train_would_refuse_is_told_behind_the_text(shuhari, mine: str) -> None:
    asked = (mine, "--with", "rlvr/clip_cov", "--remove", "collect.advantage")
    told, trained = shuhari("explain", *asked), shuhari("train", *asked, "--dry-run")
    refused = " ".join(told.out[told.out.index("would be refused: ") :].split())
    assert told.code == trained.code == 2 and "to use" not in told.out
    assert refused == "would be refused: " + trained.err.removeprefix("error: ").strip()
    assert "the transforms 'advantage'," in refused and "'gae'" in refused
    as_json = shuhari("explain", *asked, "--json")
    assert as_json.code == 2 and f"would be refused: {json.loads(as_json.out)['refused']}" == refused


def test_a_method_of_which_nothing_is_left_is_named(shuhari, mine: str, tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text('on = "baselines/grpo"\ncollect.drop_uniform_groups = {before = "advantage"}\n')
    asked = (mine, "--with", str(tmp_path / "own.toml"))
    assert not explain(mine, methods=asked[2:]).notes
    (note,) = explain(mine, methods=asked[2:], remove=["collect.drop_uniform_groups"]).notes
    assert note.startswith("nothing of own is left")
    told = shuhari("train", *asked, "--remove", "collect.drop_uniform_groups", "--dry-run")
    assert told.code == 0 and "nothing of own is left" in told.err
    (tmp_path / "less.toml").write_text('on = "baselines/grpo"\nremove = ["collect.overlong"]\n')
    assert not explain(mine, methods=[str(tmp_path / "less.toml")]).notes  # it only takes out


@dataclass
class Documented:
    """It does a thing; `late` is told here: and this of the thing.

    one, two: numbers in [0, 1]; of one kind. `three`: text (a word; or two), by name. four > 0 bounds it.
    """

    one: int = 0
    late: int = 0
    silent: int = 0
    own: int = 0
    """How many there are:
    a whole number."""


@pytest.mark.parametrize(
    ("name", "says"),
    [("one", "numbers in [0, 1]"), ("two", "numbers in [0, 1]"), ("three", "text (a word; or two), by name"),
     ("four", "four > 0 bounds it"), ("late", "`late` is told here"), ("silent", ""),
     ("own", "How many there are: a whole number")],
)  # fmt: skip
def test_a_setting_is_told_by_the_docstring_of_its_class(name: str, says: str) -> None:
    assert describe_setting(Documented, name) == says


def test_a_word_that_is_a_setting_is_pointed_to(shuhari) -> None:
    done = shuhari("explain", "reduce")
    assert done.code == 2 and "'reduce' is a setting of every term" in done.err
    assert "is a setting" not in shuhari("explain", "rlvr/nosuch").err
