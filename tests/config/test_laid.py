"""Methods laid over recipes: where, what stays, what contradicts what, and where each value came from."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from shuhari.config.laid import find_difference, resolve
from shuhari.config.overlay import RecipeError, format_path, walk_leaves
from shuhari.config.recipe import Recipe, dump, find_usual_base, load, read_method
from shuhari.loop.checks import make_stages

PLAIN = """steps = 5
task.name = "arithmetic"
models.policy = {use = "causal", hidden = 16, layers = 1, heads = 2}
rollout = {n = 4, sampling.max_new = 6}
buffer.size = 2
collect.adv = {use = "advantage", scale = "batch"}
evaluate.n = 8
[part.actor]
trains = ["policy"]
minibatches = 2
optimiser.lr = 1e-3
terms.loss = {use = "clip", reduce = "row", weight = 0.5, low = 0.1}
"""
STAGES = 'extends = "baselines/grpo_chain"\n'


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def written(text: str, name: str = "base.toml") -> str:
        (tmp_path / name).write_text(text)
        return str(tmp_path / name)

    return written


def method(write: Any, text: str, name: str = "one") -> str:
    return str(write(f'on = "baselines/grpo_chain"\n{text}', f"{name}.toml"))


def only(recipe: Recipe) -> dict[str, Any]:
    """The last stage, without what names it."""
    return {k: v for k, v in recipe.stages[-1].items() if k not in ("laid", "name", "format")}


def built(recipe: Recipe) -> Any:
    return make_stages(recipe)[-1]


def test_it_finds_what_a_method_speaks_of_whatever_that_is_called(write: Any) -> None:
    text = """part.policy.terms.loss = {use = "kl_cov", beta = 2.0}
collect.advantage.scale = "none"
part.policy.epochs = 3
"""
    part = only(load(write(PLAIN), methods=[method(write, text)]))
    assert part["collect"] == {"adv": {"use": "advantage", "scale": "none"}}
    assert part["part"]["actor"]["terms"] == {
        "loss": {"use": "kl_cov", "beta": 2.0, "reduce": "row", "weight": 0.5}  # another loss; how it is reduced stays
    }
    assert part["part"]["actor"]["epochs"] == 3 and part["part"]["actor"]["minibatches"] == 2


def test_the_same_component_keeps_its_other_settings(write: Any) -> None:
    one = method(write, 'part.policy.terms.loss = {use = "clip", high = 0.4}\nrollout.n = 6')
    stage = only(load(write(PLAIN), methods=[one]))
    kept = {"use": "clip", "low": 0.1, "high": 0.4, "reduce": "row", "weight": 0.5}
    assert stage["part"]["actor"]["terms"] == {"loss": kept}
    assert stage["rollout"] == {"n": 6, "sampling": {"max_new": 6}}


def test_only_stages_that_sample_are_changed_and_the_base_stays(write: Any) -> None:
    base, laid = load("baselines/grpo_chain"), load("baselines/grpo_chain", methods=["rlvr/t1", "rlvr/pacs"][:1])
    assert [s["name"] for s in laid.stages] == ["warm-up", "rl"]
    same = [{k: v for k, v in r.stages[0].items() if k not in ("laid", "summary", "paper")} for r in (base, laid)]
    assert same[0] == same[1]
    assert "reference" in laid.stages[1]["models"] and "reference" not in laid.stages[0]["models"]
    with pytest.raises(RecipeError, match="rlvr/t1 changes stages that sample, and baselines/sft_arithmetic has"):
        load("baselines/sft_arithmetic", methods=["rlvr/t1"])
    alone = write(f'{STAGES}remove = ["stage.warm-up"]', "alone.toml")
    assert [s["name"] for s in load(alone, methods=["rlvr/t1"]).stages] == ["rl"]  # and bring none back


def test_what_it_wraps_is_what_the_base_has(write: Any) -> None:
    own = write(f'{STAGES}curriculum.pool = 64\nrollout.role = "policy"')
    stage = only(load(own, methods=["curriculum/mopps", "curriculum/ghpo"]))
    assert stage["curriculum"]["candidates"] == {"use": "sequential", "pool": 64} and stage["curriculum"]["of"] == 8
    assert stage["rollout"]["of"] == {"use": "single", "role": "policy"}
    assert stage["rollout"]["n"] == 8 and stage["rollout"]["sampling"]["max_new"] == 24  # asked of any rollout
    assert stage["evaluate"]["rollout"] == {"use": "single", "role": "policy"}  # as before
    buffers = only(load(own, methods=["curriculum/dots"]))["buffer"]["buffers"]
    assert list(buffers) == ["fresh", "replay"] and buffers["fresh"] == {"use": "fresh", "size": 32}


def test_evaluation_samples_as_before(write: Any) -> None:
    stage = only(load("baselines/grpo_chain", methods=["rlvr/t1"]))
    assert stage["rollout"]["sampling"] == {"temperature": 1.2, "max_new": 24}
    assert stage["evaluate"]["sampling"] == {"temperature": 1.0, "max_new": 24}
    own = write(f"{STAGES}evaluate.sampling.greedy = true")
    assert only(load(own, methods=["rlvr/t1"]))["evaluate"]["sampling"] == {"greedy": True}
    assert "rollout" not in stage["evaluate"]


def test_what_grades_stays_beside_what_a_method_adds(write: Any) -> None:
    assert built(load("rlvr/t1")).weights == {"score": 1.0, "repetition": 1.0}
    own = write(f'{STAGES}reward.mine = {{use = "shuhari.testing.small.oddness"}}')
    assert built(load(own, methods=["rlvr/t1"])).weights == {"mine": 1.0, "repetition": 1.0}
    weighed = write(f'{STAGES}reward.weights = {{score = 0.5}}', "weighed.toml")
    assert built(load(weighed, methods=["rlvr/t1"])).weights == {"score": 0.5, "repetition": 1.0}
    assert built(load("rlvr/t1", settings={"remove": ["reward.repetition"]})).weights == {"score": 1.0}


def test_a_loss_removed_and_a_role_like_another(write: Any) -> None:
    stage = only(load("rlvr/oreal"))
    assert list(stage["part"]["policy"]["terms"]) == ["pos", "neg", "divergence"]
    wide = write(f"{STAGES}models.policy.hidden = 96")
    credit = only(load(wide, methods=["rlvr/oreal"]))["models"]["credit"]
    assert credit == {"architecture": "gpt2", "hidden": 96, "layers": 2, "heads": 2, "context": 64,
                      "use": "causal_value", "init": "policy", "after": True}  # fmt: skip


def test_a_stage_is_put_before_the_first_that_samples(write: Any) -> None:
    text = 'part.policy.terms.loss.reduce = "group"\n[[stage]]\nname = "cold"\nsteps = 3\nbuffer = {use = "demos"}\n'
    recipe = load("baselines/grpo_chain", methods=[method(write, text)])
    assert [s["name"] for s in recipe.stages] == ["warm-up", "cold", "rl"] and recipe.stages[1]["steps"] == 3
    assert [s["name"] for s in load(write(PLAIN), methods=[method(write, text)]).stages] == ["cold", "main"]
    first = method(write, text.replace("steps = 3", 'steps = 3\nbefore = "warm-up"'))
    stages = load("baselines/grpo_chain", methods=[first]).stages
    assert [s["name"] for s in stages] == ["cold", "warm-up", "rl"] and "before" not in stages[0]


CONTRADICT = [
    ('part.policy.terms.loss = {use = "kl_cov"}', 'part.policy.terms.loss = {use = "lp_reg"}',
     "part.policy.terms.loss: one sets part.policy.terms.loss.use = 'kl_cov' and two part.policy.terms.loss.use = "
     "'lp_reg': lay one of them, or decide with --set part.policy.terms.loss.use=.."),
    ('part.policy.terms.loss = {use = "kl_cov"}', 'part.policy.terms.loss = {use = "clip", high = 0.4}',
     "decide with --set part.policy.terms.loss.use="),
    ('part.policy.terms.loss = {use = "kl_cov", beta = 1.0}', 'part.policy.terms.loss = {use = "kl_cov", beta = 2.0}',
     "use = 'kl_cov'"),
    ("rollout.n = 4", "rollout.n = 8", "rollout.n: one sets rollout.n = 4 and two rollout.n = 8: .*--set rollout.n="),
    ('collect.advantage.scale = "none"', 'remove = ["collect.advantage"]', r'remove = \["collect.advantage"\]'),
    ("part.policy.optimiser.reset = {on = 'step'}", "part.policy.optimiser.reset = {on = 'stage'}", "reset.on = "),
    ("curriculum = {use = 'target', wraps = 'candidates', of = 4}",
     "curriculum = {use = 'target', wraps = 'candidates', of = 8}", "both wrap it in 'target', with other settings"),
]  # fmt: skip


@pytest.mark.parametrize(("a", "b", "told"), CONTRADICT)
def test_two_that_contradict_each_other_are_named(a: str, b: str, told: str, write: Any) -> None:
    with pytest.raises(RecipeError, match=told):
        load("baselines/grpo_chain", methods=[method(write, a, "one"), method(write, b, "two")])


def test_all_contradictions_are_told_at_once(write: Any) -> None:
    both = "rollout.n = {n}\npart.policy.terms.loss = {{use = '{use}'}}\n"
    both += "curriculum = {{use = 'target', wraps = 'candidates', of = {n}}}"
    made = [method(write, both.format(n=n, use=use), name) for n, use, name in ((4, "kl_cov", "a"), (8, "lp_reg", "b"))]
    with pytest.raises(RecipeError) as refused:
        load("baselines/grpo_chain", methods=made)
    told = str(refused.value)
    ways = ("--set rollout.n=..", "--set part.policy.terms.loss.use=..", "curriculum: a and b both wrap")
    assert all(way in told for way in ways)
    assert len(told.splitlines()) == 3
    with pytest.raises(RecipeError) as refused:
        load("baselines/grpo_chain", ["rollout.n=5"], methods=made)
    assert len(str(refused.value).splitlines()) == 2  # what is decided is told no longer


def test_what_does_not_contradict_is_laid_in_order(write: Any) -> None:
    a = method(write, 'part.policy.terms.loss = {use = "clip", high = 0.3}\nrollout.n = 4', "one")
    b = method(write, 'part.policy.terms.loss = {use = "clip", low = 0.1, reduce = "group"}\nrollout.n = 4', "two")
    term = only(load("baselines/grpo_chain", methods=[a, b]))["part"]["policy"]["terms"]["loss"]
    assert term == {"use": "clip", "low": 0.1, "high": 0.3, "reduce": "group"}
    uses = ("hint_ladder", "with_solution")
    nested = [method(write, f"rollout = {{use = '{use}', wraps = 'of'}}", use) for use in uses]
    rollout = only(load("baselines/grpo_chain", methods=nested))["rollout"]
    assert rollout["use"] == "with_solution" and rollout["of"]["of"] == {"use": "single"}


def test_two_that_wrap_one_thing_are_told_of() -> None:
    from shuhari.desk.cli.dry import list_nested

    both = load("baselines/grpo_chain", methods=["curriculum/ghpo", "curriculum/seele"])
    (told,) = list_nested(both)
    assert told.startswith("rollout: 'hint_ladder' of curriculum/ghpo stands within 'hint_curve' of curriculum/seele")
    apart = load("baselines/grpo_chain", methods=["curriculum/ghpo", "curriculum/mopps"])
    assert not list_nested(apart) and not list_nested(load("baselines/grpo_chain"))


def test_a_setting_decides_and_is_laid_last(write: Any) -> None:
    a = method(write, 'part.policy.terms.loss = {use = "kl_cov", beta = 2.0}\nrollout.n = 4', "one")
    b = method(write, 'part.policy.terms.loss = {use = "lp_reg", kappa = 0.5}\nrollout.n = 6', "two")
    sets = ["part.policy.terms.loss.use=kl_cov", "rollout.n=5", "part.policy.terms.loss.beta=3.0"]
    recipe = load("baselines/grpo_chain", sets, methods=[a, b])
    stage = only(recipe)
    assert stage["part"]["policy"]["terms"] == {"loss": {"use": "kl_cov", "beta": 3.0, "reduce": "row"}}
    assert stage["rollout"]["n"] == 5 and load("baselines/grpo_chain").stages[-1]["rollout"]["n"] == 8
    other = load("baselines/grpo_chain", ["part.policy.terms.loss.use=clip_cov", "rollout.n=5"], methods=[a, b])
    assert only(other)["part"]["policy"]["terms"] == {"loss": {"use": "clip_cov", "reduce": "row"}}


def test_settings_reach_what_a_method_brings_and_the_base_below(write: Any) -> None:
    settings = {"rollout.levels": [0.5], "rollout.n": 3, "rollout.sampling.max_new": 9}
    recipe = load("curriculum/ghpo").with_settings(settings)
    warm, rl = recipe.stages
    assert rl["rollout"]["levels"] == [0.5] and "levels" not in warm["rollout"]
    assert [s["rollout"]["n"] for s in (warm, rl)] == [3, 3]
    assert [s["rollout"]["sampling"]["max_new"] for s in (warm, rl)] == [9, 9]
    without = load("rlvr/t1").with_settings({"remove": ["follow.reference", "collect.overlong"]}).stages[-1]
    assert "reference" not in without.get("follow", {}) and list(without["collect"]) == ["advantage", "kl_in_reward"]
    more = load("rlvr/t1").with_settings({"collect.drop_uniform_groups.before": "advantage"})
    assert "drop_uniform_groups" in more.stages[-1]["collect"]


def test_every_value_says_where_it_came_from(write: Any) -> None:
    own = write(f"{STAGES}curriculum.pool = 64", "mine.toml")
    recipe = load(own, ["rollout.n=4"], methods=["rlvr/kl_cov", "curriculum/mopps"])
    assert recipe.name == "mine+kl_cov+mopps"
    assert set(recipe.sources) == {path for path, _ in walk_leaves(recipe.tree)}
    by = {format_path(path[2:]): origin for path, origin in recipe.sources.items() if path[:2] == ("stage", "rl")}
    assert by["part.policy.terms.loss.reduce"] == "with rlvr/kl_cov"
    assert by["curriculum.of"] == by["curriculum.candidates.pool"] == "with curriculum/mopps"
    assert recipe.sources["rollout", "n"] == "--set" and recipe.sources["task", "terms"] == "baselines/grpo_chain"
    assert load("rlvr/kl_cov").sources["summary",] == "rlvr/kl_cov"


@pytest.mark.parametrize("name", ["rlvr/oreal", "curriculum/dots", "rlvr/deepsearch", "engine/srl"])
def test_what_a_run_stores_is_what_it_does(name: str, tmp_path: Path) -> None:
    recipe = load(name)
    path = tmp_path / "recipe.toml"
    path.write_text(dump(recipe))
    again = load(path)
    assert [only(load(path))] == [only(recipe)] and again.tree["laid"] == {name: dict(read_method(name).needs)}
    with pytest.raises(RecipeError, match=f"already has the methods {name}: give all methods at once"):
        load(path, methods=["rlvr/lite_ppo"])


def test_a_recipe_may_extend_a_method(write: Any) -> None:
    own = write('extends = "curriculum/ghpo"\nrollout.levels = [0.25]\ntask.terms = 3\n')
    recipe = load(own)
    assert find_usual_base(own) == "" and recipe.stages[-1]["rollout"]["levels"] == [0.25]
    assert [s["task"]["terms"] for s in recipe.stages] == [3, 3] and "claim" not in recipe.tree


def test_a_place_that_a_base_lacks_is_the_end_and_a_misspelt_one_is_refused(write: Any) -> None:
    base = write(PLAIN)
    text = 'collect.drop_uniform_groups = {use = "drop_uniform_groups", before = "%s"}'
    lawful = method(write, text % "gae")  # a transform, which this base has not
    assert "before" not in only(load(base, methods=[lawful]))["collect"]["drop_uniform_groups"]
    own = method(write, text % "adv")
    assert only(load(base, methods=[own]))["collect"]["drop_uniform_groups"]["before"] == "adv"
    misspelt = method(write, text % "advantge")
    told = r"^collect\.drop_uniform_groups\.before: 'advantge' is no transform, and .*; did you mean 'advantage'"
    for name in (base, "baselines/grpo_chain"):
        with pytest.raises(RecipeError, match=told):
            load(name, methods=[misspelt])


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            'remove = ["collect.advantge"]',
            r"^collect\.advantge: 'advantge' is no transform, and .*did you mean 'advantage'",
        ),
        (
            'remove = ["part.policy.terms.entrpy"]',
            r"^part\.policy\.terms\.entrpy: 'entrpy' is no objective, and .*did you mean 'entropy'",
        ),
    ],
)
def test_what_is_removed_must_be_what_some_base_could_have(text: str, told: str, write: Any) -> None:
    with pytest.raises(RecipeError, match=told):
        load(write(PLAIN), methods=[method(write, text)])
    load(write(PLAIN), methods=[method(write, 'remove = ["collect.adv", "collect.drop_uniform_groups"]')])


def test_a_method_keeps_the_stages_of_the_one_that_it_extends(write: Any) -> None:
    text = '[[stage]]\nname = "{}"\nsteps = {}\nbuffer = {{use = "demos", size = 8}}\n'
    above = method(write, text.format("cold", 2), "above")
    head = f'extends = "{above}"\n'
    both = method(write, head + text.format("cool", 3), "both")
    assert [(s["name"], s["steps"]) for s in load(write(PLAIN), methods=[both]).stages] == [
        ("cold", 2), ("cool", 3), ("main", 5)]  # fmt: skip
    changed = method(write, f"{head}[stage.cold]\nsteps = 4", "changed")
    assert [(s["name"], s["steps"]) for s in load(write(PLAIN), methods=[changed]).stages] == [("cold", 4), ("main", 5)]
    with pytest.raises(RecipeError, match=r"stage\.cold: \[\[stage\]\] in again is a new stage, and there is"):
        load(write(PLAIN), methods=[method(write, head + text.format("cold", 3), "again")])
    removed = method(write, f'{head}remove = ["stage.cold"]', "removed")
    assert [s["name"] for s in load(write(PLAIN), methods=[removed]).stages] == ["main"]


def test_methods_extend_methods(write: Any) -> None:
    above = method(write, 'part.policy.terms.loss = {use = "clip", high = 0.4}\nneeds.groups = 3', "above")
    text = f'extends = "{above}"\non = "baselines/grpo"\npart.policy.terms.loss = {{use = "kl_cov"}}\nrollout.n = 3'
    change = read_method(write(text, "below.toml"))
    assert change.on == "baselines/grpo" and change.needs == {"groups": 3}
    assert change.table == {"part": {"policy": {"terms": {"loss": {"use": "kl_cov"}}}}, "rollout": {"n": 3}}


MISTAKES = [
    ("task.name = 'chain'", "task: in the method one: it is the base's to say; numbers of a test-bed stand in"),
    ("steps = 3", "steps: in the method one"),
    ("part.policy.optimiser.lr = 1.0", "part.policy.optimiser.lr: in the method one"),
    ("buffer.size = 3", "buffer.size: in the method one"),
    ("buffr.use = 'fresh'", "buffr: no such key in a method; did you mean 'buffer'"),
    ("needs.group = 2", "needs.group: no such need of a method; did you mean 'groups'"),
    ("collect.mixd.stream = 'x'", "collect.mixd: one sets stream of 'mixd', which baselines/grpo_chain has not"),
    ("models.x = {like = 'polcy', use = 'causal'}", "models.x.like: 'polcy': no such role .* did you mean 'policy'"),
    ("stage = 3", r"stage: 3 in one: expected \[\[stage\]\] tables"),
    ("[[stage]]\nname = 'rl'\nsteps = 3", "stage.rl: one brings a stage 'rl', and there is one: a method changes"),
    ("[stage.rl]\nsteps = 3", r"stage\.rl: the method one brings no such stage, .* is written \[\[stage\]\]"),
    ("[[stage]]\nname = 'cold'\nbefore = 'rll'\nsteps = 3", r"cold\.before: 'rll' is no other stage; did you mean"),
]


@pytest.mark.parametrize(("text", "told"), MISTAKES)
def test_mistakes_of_a_method_are_named(text: str, told: str, write: Any) -> None:
    with pytest.raises(RecipeError, match=told):
        load(method(write, text))


def test_what_cannot_be_laid_says_why(write: Any) -> None:
    for name, why in {"curriculum/mbtl": "it is a study", "rlvr/brorl": "stalled", "baselines/grpo": "no `on`"}.items():
        with pytest.raises(RecipeError, match=f"{name} is a complete recipe, and cannot be applied .*{why}"):
            load("baselines/quickstart", methods=[name])
    with pytest.raises(RecipeError, match=r"terms\.loss: baselines/dpo has no term .* its terms: preference"):
        load("baselines/dpo", methods=["rlvr/clip_cov"])
    with pytest.raises(RecipeError, match="is a method itself: expected a recipe"):
        load(write('on = "rlvr/t1"\nrollout.n = 2', "on.toml"))


@pytest.mark.parametrize(
    ("base", "name", "told"),
    [
        ("baselines/grpo_chain", "rlvr/kl_cov", "part.policy.minibatches: 1 in stage 'rl': rlvr/kl_cov needs 2 or"),
        ("baselines/ppo_cartpole", "rlvr/prorl", "rollout.n: samples .* rlvr/prorl needs 2 or more of a problem"),
        ("baselines/reinforce_pp", "curriculum/ghpo", "rollout.n: 1 in stage 'rl': curriculum/ghpo needs 2 or more"),
        ("baselines/quickstart", "engine/srl", "rollout.workers: no setting of rollout 'single'"),
        ("baselines/gridworld", "data/rl_plus", "which baselines/gridworld has not .there is nothing"),
        ("baselines/ppo_cartpole", "curriculum/mopps", "curriculum: lanes .*with curriculum/mopps"),
        ("baselines/ppo_cartpole", "curriculum/seele", "rollout.of: lanes .*with curriculum/seele"),
        ("baselines/ppo_cartpole", "data/redstar", "no row is in .*with data/redstar laid over it"),
        ("baselines/ppo_cartpole", "data/kdrl", "stage.teach.*with data/kdrl, which needs 2 .*with a solution"),
        ("baselines/ppo_cartpole", "rlvr/luspo", "loss.level: 'sequence' in stage 'main': .*with rlvr/luspo"),
        ("baselines/bandit", "rlvr/luspo", "here a row is one action"),
        ("baselines/dpo", "rlvr/kl_cov", "the loss of the policy gradient; .*with rlvr/kl_cov"),
    ],
)
def test_what_a_base_lacks_is_named_before_the_first_step(base: str, name: str, told: str) -> None:
    with pytest.raises(RecipeError, match=told):
        built(load(base, methods=[name]))


def waits(score: str) -> dict[str, Any]:
    """The settings with which ProRL waits for another score."""
    return {"follow.reference.metric": score, "part.policy.optimiser.reset.metric": score}


def test_a_plateau_of_a_score_that_is_not_measured_is_named() -> None:
    exact = {"evaluate.metrics.exact.use": "exact"}
    for settings, told in (
        ({"evaluate.samples": 1}, "evaluate.samples: 1: .* waits for a plateau of 'mean' in stage 'rl', which is of 2"),
        ({"evaluate.n": 0}, "evaluate.n: 0: .* and nothing is played"),
        (waits("mean.score") | {"evaluate.samples": 1}, "evaluate.samples: 1: .* a plateau of 'mean.score'"),
        (waits("exact.mean") | exact | {"evaluate.watch": 8}, "evaluate.watch: 8: .* 'exact.mean' .* expected 0, or"),
        (waits("exakt.mean") | exact, "evaluate: .* 'exakt.mean' .* nothing gives it; did you mean 'exact'"),
        (waits("policy/loss/nll") | {"evaluate.watch": 8}, "evaluate.watch: 8: .* 'policy/loss/nll'"),
    ):
        with pytest.raises(RecipeError, match=told):
            built(load("rlvr/prorl", settings=settings))
    for settings in (
        {"evaluate.n": 0, "evaluate.watch": 8},
        waits("greedy.score@sums") | {"evaluate.watch": 8},
        waits("exact.mean") | exact,
        waits("cvar@0.1") | {"evaluate.tail": [0.1]},
    ):
        built(load("rlvr/prorl", settings=settings))


def test_an_overlay_of_a_difference_is_the_difference() -> None:
    """For each pair of stages of some recipes: what is laid over the one is the other, in its order."""
    names = ("grpo", "grpo_chain", "ppo", "dapo", "ppo_cartpole", "opd")
    trees = [load(f"baselines/{name}").tree for name in names]
    stages = [resolve(tree, name) for tree in trees for name in tree.get("stage") or {"": {}}]
    cut = [{k: v for k, v in s.items() if isinstance(v, Mapping) and k not in ("paper", "claim")} for s in stages]
    for old in cut:
        for new in cut:
            tried = resolve({**old, "stage": {"s": find_difference(old, new)}}, "s")
            assert list(walk_leaves(tried)) == list(walk_leaves({k: new[k] for k in tried}))
            assert tried.keys() == new.keys()


def test_each_method_is_named_once_and_alone() -> None:
    with pytest.raises(RecipeError, match=r"^the method rlvr/kl_cov is named twice: expected each method once"):
        load("baselines/grpo", methods=["rlvr/kl_cov", "rlvr/lite_ppo", "rlvr/kl_cov"])
    with pytest.raises(RecipeError, match="the method rlvr/kl_cov is named twice"):
        load("rlvr/kl_cov", methods=["rlvr/kl_cov"])
    with pytest.raises(RecipeError, match=r"no recipe 'rlvr/kl_cov,rlvr/pacs'; give one name; .*repeat"):
        load("baselines/grpo", methods=["rlvr/kl_cov,rlvr/pacs"])
