"""Recipes: merging by hand-worked examples, sources, stages, round trips, and what a mistake says."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shuhari.config.overlay import lay, parse_setting, split_path, walk_leaves
from shuhari.config.recipe import (
    FORMAT,
    Recipe,
    RecipeError,
    dump,
    find_differences,
    list_names,
    load,
    spreads,
)
from shuhari.config.values import read_ramp
from shuhari.data import Count
from shuhari.lab.claims.kept_results import list_methods

BASE = """
summary = "the base"
steps = 10
[paper]
title = "Base"
catalogue = 7
[task]
name = "arithmetic"
digits = 2
[models.policy]
use = "causal"
[models.reference]
init = "policy"
[rollout]
n = 8
sampling.temperature = 0.9
[reward.weights]
score = 1.0
brevity = 0.1
[reward.brevity]
[collect.advantage]
scale = "group"
[part.policy]
optimiser = {use = "adamw", lr = {from = 1.0, to = 0, over = 9, warm = 2}}
terms.loss = {use = "clip", high = 0.2}
terms.kl = {weight = 0.1}
[evaluate]
every = 5
"""


@pytest.fixture
def write(tmp_path: Path):
    def put(name: str, text: str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    put("base.toml", BASE)
    return put


def child(write, text: str) -> Recipe:
    return load(write("child.toml", f'extends = "base.toml"\n{text}'))


# ---------------------------------------------------------------- merging


def test_a_child_changes_what_it_says_and_keeps_the_rest(write) -> None:
    r = child(write, "[rollout]\nn = 4\n[part.policy]\nterms.loss.low = 0.1\nminibatches = 2")
    assert r.tree["rollout"] == {"n": 4, "sampling": {"temperature": 0.9}}
    assert r.tree["part"]["policy"]["terms"]["loss"] == {"use": "clip", "high": 0.2, "low": 0.1}
    assert r.tree["part"]["policy"]["minibatches"] == 2


def test_a_key_that_is_removed_is_gone_and_false_is_a_value(write) -> None:
    r = child(
        write,
        'remove = ["evaluate", "part.policy.terms.kl", "reward.weights.brevity"]\ntask.shuffle = false',
    )
    assert "evaluate" not in r.tree
    assert list(r.tree["part"]["policy"]["terms"]) == ["loss"]
    assert r.tree["task"]["shuffle"] is False
    assert r.tree["reward"]["weights"] == {"score": 1.0}


def test_what_an_evaluation_asks_beside_is_removed_and_replaced(write) -> None:
    more = 'metrics.exact = {n = 8}\nmore.hot = {sampling.temperature = 2.0}\ntask = {name = "chain", terms = 3}'
    write("tested.toml", f'extends = "base.toml"\n[evaluate]\n{more}')
    gone = 'extends = "tested.toml"\nremove = '
    again = 'extends = "tested.toml"\n[evaluate]\n'
    kept = load(write("kept.toml", f"{again}metrics.exact.n = 4\ntask.terms = 4")).tree["evaluate"]
    assert kept["metrics"] == {"exact": {"n": 4}} and kept["task"] == {"name": "chain", "terms": 4}
    keys = '["evaluate.metrics.exact", "evaluate.more.hot"]'
    left = load(write("gone.toml", f'{gone}{keys}\n[evaluate]\ntask = {{name = "bandit"}}'))
    assert left.tree["evaluate"]["task"] == {"name": "bandit"}  # another task: nothing of the first is left
    assert not left.tree["evaluate"].get("metrics") and not left.tree["evaluate"].get("more")
    assert "task" not in load(write("none.toml", f'{gone}["evaluate.task"]')).tree["evaluate"]


def test_removing_what_is_not_there_names_the_nearest(write) -> None:
    with pytest.raises(RecipeError, match=r"collect\.advantge: remove names an entry.*did you mean 'advantage'"):
        child(write, 'remove = ["collect.advantge"]')


@pytest.mark.parametrize(
    ("text", "section", "expected"),
    [
        ('[task]\nname = "countdown"', "task", {"name": "countdown"}),
        ('[rollout]\nuse = "vector"', "rollout", {"use": "vector", "n": 8, "sampling": {"temperature": 0.9}}),
            (
                'remove = ["rollout.sampling"]\n[rollout]\nuse = "tree"\nsampling = {max_new = 4}',
                "rollout",
                {"use": "tree", "sampling": {"max_new": 4}, "n": 8},
            ),
            (
                '[rollout]\nuse = "tree"\nn = 2\nsampling.max_new = 4',
                "rollout",
                {"use": "tree", "n": 2, "sampling": {"max_new": 4, "temperature": 0.9}},
            ),
        ('[rollout]\nuse = "single"', "rollout", {"use": "single", "n": 8, "sampling": {"temperature": 0.9}}),
        ('[collect.advantage]\nuse = "gae"', "collect", {"advantage": {"use": "gae"}}),
        ('[collect.advantage]\nuse = "advantage"', "collect", {"advantage": {"use": "advantage", "scale": "group"}}),
    ],
)
def test_another_component_replaces_the_table_and_the_same_one_does_not(
    write, text: str, section: str, expected
) -> None:
    assert child(write, text).tree[section] == expected


def test_a_whole_schedule_replaces_one_and_a_part_of_it_changes_it(write) -> None:
    whole = child(write, "[part.policy.optimiser]\nlr = {from = 3, to = 1}")
    assert whole.tree["part"]["policy"]["optimiser"] == {"use": "adamw", "lr": {"from": 3, "to": 1}}
    part = child(write, "[part.policy.optimiser]\nlr.to = 0.5")
    assert part.tree["part"]["policy"]["optimiser"]["lr"] == {"from": 1.0, "to": 0.5, "over": 9, "warm": 2}


def test_a_budget_replaces_the_budget_below(write) -> None:
    assert "steps" not in child(write, "tokens = 1e6").tree


def test_paper_summary_and_claim_are_a_files_own(write) -> None:
    r = child(write, "")
    assert "paper" not in r.tree and "summary" not in r.tree
    assert load(write("base.toml", BASE)).tree["paper"]["catalogue"] == 7


def test_order_of_entries_is_parents_first(write) -> None:
    assert list(child(write, "[collect.drop_uniform_groups]").tree["collect"]) == ["advantage", "drop_uniform_groups"]


# ---------------------------------------------------------------- where a value comes from


def test_each_value_knows_its_source(write) -> None:
    write("child.toml", 'extends = "base.toml"\n[rollout]\nn = 4\n[collect.drop_uniform_groups]')
    r = load(write("child.toml", 'extends = "base.toml"\n[rollout]\nn = 4\n[collect.drop_uniform_groups]'), ["seed=3"])
    assert r.sources["rollout", "n"] == "child"
    assert r.sources["rollout", "sampling", "temperature"] == "base"
    assert r.sources["collect", "drop_uniform_groups"] == "child"  # an empty table is a value too
    assert r.sources["seed",] == "--set"
    assert set(r.sources) >= {p for p, _ in walk_leaves(r.tree) if p != ("format",)}


keys = st.sampled_from(["a", "b", "c"])
values = st.recursive(st.integers(0, 3), lambda inner: st.dictionaries(keys, inner, max_size=3), max_leaves=8)
trees = st.dictionaries(keys, values, max_size=3)


@given(st.lists(trees, min_size=1, max_size=4))
def test_every_leaf_has_exactly_one_source_and_it_said_so(layers: list) -> None:
    tree: dict = {}
    sources: dict = {}
    for i, layer in enumerate(layers):
        lay(tree, layer, str(i), sources)
    assert set(sources) == {p for p, _ in walk_leaves(tree)}
    for path, value in walk_leaves(tree):
        said = dict(walk_leaves(layers[int(sources[path])]))
        assert said[path] == value


@given(trees, trees)
def test_laying_the_same_over_twice_changes_nothing(base: dict, over: dict) -> None:
    once: dict = {}
    for layer in (base, over):
        lay(once, layer, "x", {})
    twice: dict = {}
    for layer in (base, over, over):
        lay(twice, layer, "x", {})
    assert once == twice


# ---------------------------------------------------------------- --set


@pytest.mark.parametrize(
    ("text", "path", "value"),
    [
        ("steps=2", ("steps",), 2),
        ("a.b.c=0.5", ("a", "b", "c"), 0.5),
        ("task.name=reasoning-gym/chain_sum", ("task", "name"), "reasoning-gym/chain_sum"),
        ('models."teacher/3".use=causal', ("models", "teacher/3", "use"), "causal"),
        ("models.teacher/3.use='x.y'", ("models", "teacher/3", "use"), "x.y"),
        ("x={from = 1, to = 0, over = 5}", ("x",), {"from": 1, "to": 0, "over": 5}),
        ("x=[1, 2]", ("x",), [1, 2]),
        ("x=true", ("x",), True),
        ("x=a=b", ("x",), "a=b"),
        ("x=1\ny = 2", ("x",), "1\ny = 2"),
    ],
)
def test_a_setting_is_toml_or_a_bare_word(text: str, path: tuple, value: object) -> None:
    assert parse_setting(text) == (path, value)


@pytest.mark.parametrize("text", ["steps", "=3", "a..b=1", "a.=1", ".a=1", "x=[1,"])
def test_a_setting_that_is_none(text: str) -> None:
    with pytest.raises(RecipeError):
        parse_setting(text)


@given(
    st.lists(
        st.text(st.characters(exclude_characters="\"'", exclude_categories=("Cc", "Cs")), min_size=1),
        min_size=1,
        max_size=4,
    )
)
def test_quoted_keys_split_where_they_were_joined(path: list) -> None:
    assert split_path(".".join(f'"{k}"' for k in path)) == tuple(path)


def test_settings_of_one_command_line_are_laid_over_together(write) -> None:
    r = load(write("base.toml", BASE), ["task.digits=3", "task.name=countdown", 'remove=["part.policy.terms.kl"]'])
    assert r.tree["task"] == {"digits": 3, "name": "countdown"}
    assert list(r.tree["part"]["policy"]["terms"]) == ["loss"]


def test_settings_from_python_are_dotted_or_nested(write) -> None:
    path = write("base.toml", BASE)
    r = load(
        path,
        settings={
            "steps": 3,
            "rollout.n": 2,
            "part": {"policy": {"epochs": 4}},
            "models": {"critic": {"use": "v", "at": (1, 2)}},
        },
    )
    assert (r.tree["steps"], r.tree["rollout"]["n"], r.tree["part"]["policy"]["epochs"]) == (3, 2, 4)
    assert r.tree["models"]["critic"]["at"] == [1, 2]
    with pytest.raises(RecipeError, match=r"rollout\.n: None"):
        load(path, settings={"rollout.n": None})


@pytest.mark.parametrize(
    ("key", "told"),
    [
        ("part.policy.terms.loss.dual", r"0\.0 is the default of 'dual' in 'clip', and no file sets it: .*--set"),
        ("rollout.sampling.top_p", r"1\.0 is the default of 'top_p' in 'sampling'"),
        ("store.keep", r"2 is the default of 'keep' in 'store'"),
        ("part.policy.epoch", ".* 'epoch'; known: minibatches"),
    ],
)
def test_what_stands_at_its_default_is_not_there_to_be_removed(write, key: str, told: str) -> None:
    with pytest.raises(RecipeError, match=rf"^{re.escape(key)}: {told}"):
        load("baselines/grpo", remove=[key])
    over = 'extends = "baselines/grpo"\n'
    with pytest.raises(RecipeError, match=told):
        load(write("whole.toml", f'{over}remove = ["{key}"]'))
    with pytest.raises(RecipeError, match=rf"^stage 'rl', {re.escape(key)}: {told}"):
        load(write("stage.toml", f'{over}stage.rl.remove = ["{key}"]'))


# ---------------------------------------------------------------- stages

STAGED = """
extends = "base.toml"
[[stage]]
name = "warm"
tokens = 30
remove = ["collect.advantage", "part.policy.terms.loss"]
rollout = {use = "none"}
part.policy.terms.nll.stream = "ce"
[[stage]]
name = "rl"
"""


def test_a_recipe_without_stages_is_one_stage(write) -> None:
    (stage,) = load(write("base.toml", BASE)).stages
    assert stage["name"] == "main" and stage["steps"] == 10 and "stage" not in stage


def test_stages_lie_over_the_recipe_each_on_its_own(write) -> None:
    warm, rl = load(write("staged.toml", STAGED)).stages
    assert (warm["name"], rl["name"]) == ("warm", "rl")
    assert warm["tokens"] == 30 and "steps" not in warm and rl["steps"] == 10
    assert warm["collect"] == {} and list(rl["collect"]) == ["advantage"]
    assert warm["rollout"] == {"use": "none", "n": 8, "sampling": {"temperature": 0.9}}
    assert rl["rollout"]["n"] == 8
    assert list(warm["part"]["policy"]["terms"]) == ["kl", "nll"]


def test_a_child_changes_one_stage_by_name_or_removes_them_all(write) -> None:
    write("staged.toml", STAGED)
    one = load(write("one.toml", 'extends = "staged.toml"\n[stage.warm]\ntokens = 5'))
    assert [s["name"] for s in one.stages] == ["warm", "rl"] and one.stages[0]["tokens"] == 5
    assert one.sources["stage", "warm", "tokens"] == "one"
    assert one.stages[0]["collect"] == {}
    none = load(write("none.toml", 'extends = "staged.toml"\nremove = ["stage"]'))
    assert [s["name"] for s in none.stages] == ["main"]


def test_a_new_stage_stands_at_the_end_or_before_another(write) -> None:
    write("staged.toml", STAGED)
    child = 'extends = "staged.toml"\n[[stage]]\nname = "more"\nsteps = 2\n'
    assert [s["name"] for s in load(write("a.toml", child)).stages] == ["warm", "rl", "more"]
    first = load(write("b.toml", f'{child}before = "rl"'))
    assert [s["name"] for s in first.stages] == ["warm", "more", "rl"] and "before" not in first.tree["stage"]["more"]
    moved = load(write("d.toml", 'extends = "b.toml"\n[stage.more]\nbefore = "warm"'))
    assert [(s["name"], s.get("steps")) for s in moved.stages] == [("more", 2), ("warm", None), ("rl", 10)]
    assert load(write("stored.toml", dump(first))).stages == first.stages
    with pytest.raises(RecipeError, match=r"stage\.more\.before: 'rll' is no other stage; did you mean 'rl'"):
        load(write("c.toml", f'{child}before = "rll"'))


def test_what_a_child_removes_inherited_stages_need_not_remove(write) -> None:
    write("staged.toml", STAGED)
    text = 'extends = "staged.toml"\nremove = ["part.policy.terms.loss"]\n[part.policy]\nterms.own = {}'
    r = load(write("c.toml", text))
    assert [list(s["part"]["policy"]["terms"]) for s in r.stages] == [["kl", "own", "nll"], ["kl", "own"]]
    assert r.tree["stage"]["warm"]["remove"] == ["collect.advantage"]
    assert load(write("stored.toml", dump(r))).stages == r.stages


def test_a_table_that_is_removed_begins_anew(write) -> None:
    r = child(write, 'remove = ["part", "collect"]\n[part]\ncritic.terms.value = {}\n[collect]')
    assert r.tree["part"] == {"critic": {"terms": {"value": {}}}} and r.tree["collect"] == {}
    staged = child(write, '[[stage]]\nremove = ["part", "collect"]\npart.critic.terms.value = {}\ncollect = {}')
    assert staged.stages[0]["part"] == {"critic": {"terms": {"value": {}}}} and staged.stages[0]["collect"] == {}
    assert load(write("stored.toml", dump(staged))).stages == staged.stages


def test_the_steps_of_all_stages(write) -> None:
    assert load(write("base.toml", BASE)).total == 10
    assert child(write, "[[stage]]\nname = 'a'\nsteps = 3\n[[stage]]\nname = 'b'").total == 13
    assert child(write, "[[stage]]\nname = 'a'\ntokens = 3\n[[stage]]\nname = 'b'").total is None


def test_a_budget_counts_whole_things_but_seconds(write) -> None:
    path = write("base.toml", BASE)
    steps = load(path, ["steps=1e3"]).stages[0]["steps"]
    assert steps == 1000 and isinstance(steps, int)
    assert load(path, ["seconds=2.5"]).stages[0]["seconds"] == 2.5
    with pytest.raises(RecipeError, match=r"^steps: 2\.5: expected a whole number$"):
        load(path, ["steps=2.5"])


def test_set_reaches_the_stages_that_do_not_say_otherwise(write) -> None:
    path = write("staged.toml", STAGED)
    warm, rl = load(path, ["steps=2"]).stages
    assert warm["tokens"] == 30 and rl["steps"] == 2
    warm, rl = load(path, ["stage.warm.steps=2"]).stages
    assert warm["steps"] == 2 and "tokens" not in warm


def test_set_that_no_stage_would_hear_says_where_to_put_it(write) -> None:
    path = write(
        "both.toml", 'extends = "base.toml"\n[[stage]]\nname = "a"\nsteps = 1\n[[stage]]\nname = "b"\nsteps = 2'
    )
    with pytest.raises(RecipeError, match=r"each stage sets it.*stage\.a\.steps or stage\.b\.steps$"):
        load(path, ["steps=2"])
    path = write("staged.toml", STAGED)
    with pytest.raises(RecipeError, match=r"^steps: it would change no stage.*stage\.warm\.steps or stage\.rl\.steps$"):
        load(path, ["steps=2", "stage.rl.steps=3"])
    other = write("other.toml", STAGED + "buffer = {use = 'replay', size = 9}")
    assert load(other, ["stage.rl.buffer.size=3"]).stages[1]["buffer"]["size"] == 3
    with pytest.raises(RecipeError, match=r"^buffer\.size: it would change no stage"):
        load(other, ["buffer.size=2", "stage.rl.buffer.size=3", "stage.warm.buffer.size=4"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[[stage]]\nname = "a"\n[[stage]]\nname = "a"', "two stages"),
        ("[[stage]]\nseed = 1", r"stage\.1\.seed: no such key"),
        ('[[stage]]\nremove = ["collect.nothing"]', r"stage '1', collect\.nothing: remove names an entry"),
        ("[[stage]]\ncollect.advantage = 3", r"stage\.1\.collect\.advantage: 3: expected a table"),
    ],
)
def test_mistakes_in_stages(write, text: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        child(write, text)


# ---------------------------------------------------------------- storing


def test_a_stored_recipe_loads_to_the_same(write, tmp_path: Path) -> None:
    first = load(write("staged.toml", STAGED), ["part.policy.optimiser.lr=1e-3", 'models."teacher/3".init=policy'])
    run = tmp_path / "run"
    run.mkdir()
    (run / "recipe.toml").write_text(dump(first))
    second = load(run)
    assert second.tree == first.tree and second.stages == first.stages and second.name == first.name == "staged"
    assert [list(s["part"]["policy"]["terms"]) for s in second.stages] == [
        list(s["part"]["policy"]["terms"]) for s in first.stages
    ]
    assert "extends" not in tomllib.loads(dump(first))


@pytest.mark.parametrize("name", list_names())
def test_every_recipe_of_the_package_resolves_and_survives_storing(name: str, tmp_path: Path) -> None:
    recipe = load(name)
    (tmp_path / "recipe.toml").write_text(dump(recipe))
    again = load(tmp_path)
    assert (again.name, again.tree) == (name, recipe.tree)
    assert all(s["task"]["name"] for s in recipe.stages)


# ---------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("stepz = 3", r"stepz: no such key.*did you mean 'steps'"),
        ("[rolout]\nn = 3", r"rolout: no such key.*did you mean 'rollout'"),
        ("steps = -1", r"steps: -1: expected a number of 0 or more"),
        ("decisions = 0", r"decisions: 0: expected a number of 1 or more"),
        ("steps = 2.5", r"steps: 2\.5: expected a whole number"),
        ("[[stage]]\nname = 'a'\ntokens = 0.5", r"stage\.a\.tokens: 0\.5: expected a whole number"),
        ("seconds = 0", r"seconds: 0: expected a number above 0"),
        ("steps = true", r"steps: True"),
        ("seed = 1.5", r"seed: 1\.5: expected a whole number"),
        ("rollout = 3", r"rollout: 3: expected a table"),
        ("[collect]\nadvantage = 3", r"collect\.advantage: 3: expected a table"),
        ("format = 99", r"format: 99.*reads up to 2"),
        ("x = ", "not TOML"),
        ('[task]\nuse = "arithmetic"', r"task\.use: a task is chosen by `name`"),
    ],
)
def test_a_mistake_names_the_key_the_value_and_what_was_expected(write, text: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        child(write, text)


@pytest.mark.parametrize(("steps", "stage", "at", "value"), [
    (300, "rl", 150, 3.85e-4),  # half way from 7e-4 to 7e-5, wherever the end is
    (20, "rl", 10, 3.85e-4),
    (60, "warm-up", 54, 1e-3),  # the last fifth takes it from 2e-3 to 0
])  # fmt: skip
def test_the_learning_rate_follows_the_length_of_its_stage(steps: int, stage: str, at: int, value: float) -> None:
    key = "steps" if stage == "rl" else f"stage.{stage}.steps"
    table = next(s for s in load("baselines/grpo", [f"{key}={steps}"]).stages if s["name"] == stage)
    rate = read_ramp(table["part"]["policy"]["optimiser"]["lr"], "lr")
    assert rate(Count(at, at, steps, in_steps=True)) == pytest.approx(value)


def test_another_rollout_is_asked_for_the_same() -> None:
    rollout = load("baselines/grpo", ["rollout.use=episode"]).tree["rollout"]
    assert rollout == {"use": "episode", "n": 16, "sampling": {"temperature": 1.0, "max_new": 8}}


def test_a_circle_is_shown(write) -> None:
    write("a.toml", 'extends = "b.toml"')
    write("b.toml", 'extends = "a.toml"')
    with pytest.raises(RecipeError, match="a -> b -> a"):
        load(write("a.toml", 'extends = "b.toml"'))


def test_names_that_are_not_there(write, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="did you mean 'baselines/grpo'"):
        load("baselines/grop")
    with pytest.raises(RecipeError, match="no recipe file"):
        load(tmp_path / "missing.toml")


def test_no_budget_is_a_mistake(write) -> None:
    with pytest.raises(RecipeError, match="no budget: give one of steps"):
        load(write("empty.toml", '[task]\nname = "x"'))


def test_user_code_beside_the_recipe_is_found_from_any_folder(write, tmp_path: Path) -> None:
    write("mine.py", "")
    r = child(write, '[part.policy.terms.own]\nuse = "mine.py:Own"\n[collect.other]\nuse = "elsewhere.py:Own"')
    assert r.tree["part"]["policy"]["terms"]["own"]["use"] == f"{(tmp_path / 'mine.py').resolve()}:Own"
    assert r.tree["collect"]["other"]["use"] == "elsewhere.py:Own"


def test_data_beside_the_recipe_is_found_from_any_folder_but_a_run_names_it_as_it_did(write, tmp_path: Path) -> None:
    write("sums.jsonl", "")
    text = '[task]\nname = "file/sums.jsonl"\n[buffer]\nuse = "offline"\npath = "nowhere.jsonl"'
    r = child(write, text)
    assert r.tree["task"]["name"] == f"file/{(tmp_path / 'sums.jsonl').resolve()}"
    assert r.tree["buffer"]["path"] == "nowhere.jsonl"
    write("run.sqlite", "")
    assert child(write, text).tree["task"]["name"] == "file/sums.jsonl"


# ---------------------------------------------------------------- listing


def test_methods_are_objects_with_the_promised_fields() -> None:
    found = list_methods()
    assert [m.name for m in found] == list_names() and FORMAT == 2
    for m in found:
        assert m.family == m.name.split("/")[0] and m.summary
        assert m.paper is None or isinstance(m.paper, int | list)
        assert m.verdict is None or isinstance(m.verdict, str)


def test_recipes_need_no_torch() -> None:
    code = "import sys; from shuhari.lab.claims import kept_results as kept; assert kept.list_methods()"
    code += "; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_how_work_is_spread_may_change_and_is_no_part_of_what_a_recipe_does() -> None:
    from shuhari.lab.claims.digest import compute_digest

    alone = load("baselines/grpo")
    spread = load("baselines/grpo", ["distributed.workers=2"])
    changed = find_differences(dump(alone), dump(spread))
    assert changed == {"distributed.workers": (None, 2)} and all(map(spreads, changed))
    assert compute_digest(alone) == compute_digest(spread)
    assert compute_digest(alone) != compute_digest(load("baselines/grpo", ["rollout.n=3"]))


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("distributed.worker=2", "distributed.worker: .*did you mean 'workers'"),
        ("distributed.workers=-1", "distributed.workers: -1"),
        ("distributed.address=auto", "distributed: address is .auto., and workers is 0"),
        ("distributed={workers=1,address='ray://a:1'}", "distributed: address is 'ray://a:1': expected `auto`"),
        ("stage.rl.distributed.workers=2", "stage.rl.distributed: no such key"),
    ],
)
def test_how_work_is_spread_is_said_once_and_of_the_whole_run(setting: str, message: str) -> None:
    from shuhari.config.build import build_stage

    with pytest.raises(RecipeError, match=message):
        build_stage(load("baselines/grpo", [setting]).stages[0])
