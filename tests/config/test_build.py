"""From tables to components: coercion, schedules, nesting, names, sharing across stages, and what a mistake says."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import pytest

from shuhari.config.build import build_stage, make_component, order_transforms
from shuhari.config.recipe import Recipe, RecipeError, load
from shuhari.config.settings import Settings
from shuhari.config.stage import Components
from shuhari.data import EMPTY, Number, Ramp, Sampling
from shuhari.desk.amounts import describe_work
from shuhari.kernel import registry
from shuhari.loop.run import train
from shuhari.ports import Buffer, Curriculum, Model, Objective, Optimiser, Reward, Transform
from shuhari.tasks.source import Listed

HERE = __name__  # what `use = "<module>.<class>"` says for the classes below


@dataclass
class Words:
    path: str = ""
    digits: int = 2
    spaces_of: str = "text"

    def problems(self, split: str) -> Any:
        return Listed(())

    def grade(self, problem: Any, steps: Any) -> None:
        return None

    def environment(self, problem: Any) -> None:
        return None

    def spaces(self) -> Any:
        return None if self.spaces_of == "text" else ("observations", "actions")


@dataclass
class Everything:
    """A component with one field of each sort."""

    whole: int = 1
    real: float = 0.5
    flag: bool = False
    text: str = "a"
    pair: tuple[int, float] = (1, 2.0)
    many: tuple[int, ...] = ()
    level: Literal["row", "decision"] = "row"
    rate: Number = 0.1
    maybe: float | None = None
    sampling: Sampling | None = None
    free: Any = None
    options: Mapping[str, float] = EMPTY
    inner: Transform | None = None
    chain: tuple[Transform, ...] = ()
    named: Mapping[str, Reward] = EMPTY
    state: dict[str, Any] = field(init=False, default_factory=dict)


@dataclass
class Scaled:
    scale: float
    name: str = ""

    def __post_init__(self) -> None:
        if self.scale <= 0:
            raise ValueError(f"scale is {self.scale}: expected > 0")

    def __call__(self, batch: Any, ctx: Any) -> Any: ...


@dataclass
class Net:
    width: int = 8

    def build(self, task: Any) -> None: ...


@dataclass
class Sgd:
    lr: Number = 0.1

    def bind(self, params: Any) -> None: ...
    def step(self, evaluate: Any, at: float) -> Any: ...


@dataclass
class Loss:
    high: Number = 0.2
    needs: tuple[Any, ...] = field(init=False, default=())
    couples: str = field(init=False, default="row")

    def __call__(self, batch: Any, ctx: Any) -> Any: ...


@dataclass
class Store:
    size: int = 4
    unit: str = "group"

    def wanted(self) -> int:
        return 1

    def draw(self, ctx: Any) -> Any: ...


@dataclass
class Mix:
    buffers: tuple[Buffer, ...]
    first: Buffer | None = None

    def wanted(self) -> int:
        return 1

    def draw(self, ctx: Any) -> Any: ...


@dataclass
class Lanes:
    lanes: int = 2
    unit: ClassVar[str] = "decision"

    def collect(self, n: int, ctx: Any) -> Any: ...


@dataclass
class Single:
    turns: int = 1

    def select(self, n: int, ctx: Any) -> Any: ...

    def group(self, request: Any, ctx: Any) -> Any: ...


@dataclass
class Follower:
    of: str = "policy"
    role: str = ""

    def __call__(self, models: Any, event: Any) -> None: ...


class NoDataclass:
    pass


def make(table: dict[str, Any], name: str = "Everything", kind: str = "transform") -> Any:
    return make_component(kind, {"use": f"{HERE}.{name}", **table}, "here")


# ---------------------------------------------------------------- values


def test_a_word_for_none_unsets_what_may_be_unset_and_is_a_text_elsewhere() -> None:
    for word in ("none", "None", "null"):
        found = make({"maybe": word, "sampling": word, "inner": word, "text": word})
        assert (found.maybe, found.sampling, found.inner, found.text) == (None, None, None, word)
    with pytest.raises(RecipeError, match=r"here.real: 'none': expected a number"):
        make({"real": "none"})


def test_values_take_the_type_of_their_field() -> None:
    x = make(
        {
            "whole": 3,
            "real": 2,
            "flag": True,
            "text": "b",
            "pair": [3, 4],
            "many": [1, 2],
            "level": "decision",
            "maybe": 1,
        }
    )
    assert (x.whole, x.real, x.flag, x.text, x.pair, x.many, x.level, x.maybe) == (
        3,
        2.0,
        True,
        "b",
        (3, 4.0),
        (1, 2),
        "decision",
        1.0,
    )
    assert isinstance(x.real, float) and isinstance(x.pair[1], float)
    assert make({"whole": 1e3}).whole == 1000 and isinstance(make({"whole": 1e3}).whole, int)
    assert make({"free": {"a": [1]}, "options": {"a": 1}}).options == {"a": 1.0}


def test_a_missing_component_is_told_with_the_usual_one() -> None:
    with pytest.raises(RecipeError, match=r"needs 'inner' \(Curriculum\).*; --set curriculum\.inner\.use=sequential"):
        Settings().make_component("curriculum", {"use": "mixed_problems"}, "curriculum")


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("whole", "3", r"here\.whole: '3': expected a whole number"),
        ("whole", 3.5, r"here\.whole: 3\.5: expected a whole number"),
        ("whole", True, r"here\.whole: True"),
        ("real", "1", r"here\.real: '1': expected a number"),
        ("real", float("inf"), r"here\.real: inf: expected a number that is finite"),
        ("real", float("nan"), r"here\.real: nan: expected a finite number"),
        ("flag", 1, r"here\.flag: 1: expected true or false"),
        ("text", 1, r"here\.text: 1: expected a text"),
        ("pair", [1], r"here\.pair: \[1\]: expected tuple\[int, float\]"),
        ("many", [1, "x"], r"here\.many.*entry 1"),
        ("level", "rows", r"here\.level: 'rows'.*did you mean 'row'"),
        ("rate", "x", r"here\.rate: 'x': expected a number"),
        ("rate", {"from": 1}, r"here\.rate\.to: missing: a schedule is"),
        ("rate", {"from": 1, "to": 0, "ovr": 3}, r"here\.rate\.ovr: no key of a schedule; did you mean 'over'"),
        ("rate", {"from": 1, "to": 0, "over": 0}, r"here\.rate: a schedule's `over` is 0"),
        ("rate", {"from": 1, "to": 0, "over": 2, "shape": "lin"}, r"here\.rate: .*did you mean 'linear'"),
        (
            "sampling",
            {"temprature": 1},
            r"here\.sampling\.temprature: no setting of Sampling; did you mean 'temperature'",
        ),
        ("sampling", {"top_p": 0}, r"here\.sampling\.top_p: 0: expected a number in"),
        ("inner", {"use": f"{HERE}.Scaled"}, r"here\.inner\.scale: .*needs 'scale' \(float\)"),
        ("inner", {"use": f"{HERE}.Scaled", "scale": -1}, r"here\.inner: scale is -1\.0: expected > 0"),
        ("inner", {"scale": 1}, r"here\.inner: `use` is missing; known:"),
        ("inner", 7, r"here\.inner: 7: expected a table of settings of a transform"),
        ("chain", [{"use": f"{HERE}.Scaled", "scal": 1}], r"here\.chain\.0\.scal: .*did you mean 'scale'"),
        ("named", {"brief": {"use": f"{HERE}.Scaled", "scale": 0}}, r"here\.named\.brief: scale is 0"),
        ("hole", 1, r"here\.hole: no setting of transform '.*Everything'; did you mean 'whole'"),
        ("state", {}, r"here\.state: no setting"),
    ],
)
def test_a_mistake_names_its_key_and_what_was_expected(key: str, value: Any, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        make({key: value})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"part.polcy.optimiser.lr": 1e-3}, r"part\.polcy: it has no 'terms', .*did you mean 'policy'"),
        ({"models.polcy.hidden": 8}, r"models\.polcy: it has no 'use', .*did you mean 'policy'"),
        ({"part.other.optimiser.lr": 1e-3}, r"part\.other\.terms: Part needs 'terms'"),
    ],
)
def test_an_entry_that_lacks_what_it_needs_may_be_another_misspelt(change: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        build_stage(load("baselines/bandit").with_settings(change).stages[0])


def test_names_of_components_that_are_not_there() -> None:
    with pytest.raises(RecipeError, match=r"here\.use: no buffer 'frsh'; did you mean 'fresh'"):
        make_component("buffer", {"use": "frsh"}, "here")
    with pytest.raises(RecipeError, match=r"here\.use: .*has no 'Everythin'; did you mean 'Everything'"):
        make({}, "Everythin")
    with pytest.raises(RecipeError, match="is not a dataclass"):
        make({}, "NoDataclass")
    with pytest.raises(RecipeError, match="use = 3: expected a name"):
        make_component("buffer", {"use": 3}, "here")


def test_schedules_count_steps_and_a_sampling_temperature_counts_decisions() -> None:
    ramp = {"from": 1, "to": 0.5, "over": 10, "after": 2, "warm": 1, "shape": "cosine"}
    assert make({"rate": ramp}).rate == Ramp(1.0, 0.5, 10.0, 2.0, 1.0, "cosine")
    stairs = {"from": 1, "steps": [[3, 0.5], [5, 0]], "period": 8}
    assert make({"rate": stairs}).rate == Ramp(1.0, steps=((3.0, 0.5), (5.0, 0.0)), period=8.0)
    with pytest.raises(RecipeError, match=r"rate\.steps: .*expected a list"):
        make({"rate": {"from": 1, "steps": 3}})
    cooled = make(
        {"sampling": {"temperature": {"from": 1, "to": 0.5, "over": 4, "per": "decision"}, "epsilon": ramp}}
    ).sampling
    np.testing.assert_allclose(cooled.temperatures(5), [1, 0.875, 0.75, 0.625, 0.5])
    assert cooled.epsilon(12) == pytest.approx(0.5)
    for shares in ({}, {"over": 0.5}):
        with pytest.raises(RecipeError, match=r"sampling\.temperature.*(over: missing|expected `over`)"):
            make({"sampling": {"temperature": {"from": 1, "to": 0.5, "per": "decision", **shares}}})
    with pytest.raises(RecipeError, match=r"sampling\.temperature\.per: 'step': it counts decisions here"):
        make({"sampling": {"temperature": ramp}})
    with pytest.raises(RecipeError, match=r"rate\.per: 'decision': it counts steps here"):
        make({"rate": {**ramp, "per": "decision"}})


def test_components_nest_by_the_port_of_the_field() -> None:
    one = {"use": f"{HERE}.Scaled", "scale": 1}
    x = make({"inner": one, "chain": [one, {**one, "scale": 2}], "named": {"a": one, "b": {**one, "scale": 3}}})
    assert (x.inner.scale, [c.scale for c in x.chain], {k: v.scale for k, v in x.named.items()}) == (
        1.0,
        [1.0, 2.0],
        {"a": 1.0, "b": 3.0},
    )
    assert make({"buffers": [{"use": "fresh", "size": 3}], "first": "fresh"}, "Mix", "buffer").first.size == 64


def test_a_component_from_a_file(tmp_path: Path) -> None:
    code = "from dataclasses import dataclass\n@dataclass\nclass Mine:\n    a: int = 1\n"
    (tmp_path / "own_component.py").write_text(code)
    assert make_component("objective", {"use": f"{tmp_path / 'own_component.py'}:Mine", "a": 5}).a == 5
    with pytest.raises(RecipeError, match="no file"):
        make_component("objective", {"use": f"{tmp_path / 'nothing.py'}:Mine"})


def test_a_relative_file_is_that_of_the_folder_where_one_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two folders may have a file of one name: each is its own module, and a class keeps its file."""
    made = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        code = f"from dataclasses import dataclass\n@dataclass\nclass Mine:\n    a: str = {name!r}\n"
        (tmp_path / name / "same_name.py").write_text(code)
        monkeypatch.chdir(tmp_path / name)
        made.append(make_component("objective", {"use": "same_name.py:Mine"}))
    assert [m.a for m in made] == ["one", "two"]
    files = [inspect.getsourcefile(type(m)) for m in made]
    assert files == [str(tmp_path / name / "same_name.py") for name in ("one", "two")]


@pytest.mark.parametrize(
    ("code", "told"), [("a = 1\nb = c\n", "name 'c' is not defined .*line 2"), ("def f(:\n", "SyntaxError.*line 1")]
)
def test_a_file_that_cannot_be_imported_is_named_with_its_place(tmp_path: Path, code: str, told: str) -> None:
    (tmp_path / "broken_component.py").write_text(code)
    with pytest.raises(RecipeError, match=rf"part\.x\.use: .*broken_component.py:Mine' cannot be imported: .*{told}"):
        make_component("objective", {"use": f"{tmp_path / 'broken_component.py'}:Mine"}, "part.x")


def test_annotations_that_only_checkers_import_are_resolved(tmp_path: Path) -> None:
    code = """
from __future__ import annotations
from dataclasses import dataclass
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    from shuhari.ports import Buffer
@dataclass
class Late:
    inner: Buffer | None = None
"""
    (tmp_path / "late_component.py").write_text(code)
    late = {"use": f"{tmp_path / 'late_component.py'}:Late", "inner": "fresh"}
    assert make_component("objective", late).inner.size == 64


def test_defaults_that_stand_are_told() -> None:
    made = Settings()
    made.make_component(
        "transform", {"use": f"{HERE}.Everything", "whole": 2, "inner": {"use": f"{HERE}.Scaled", "scale": 1}}, "here"
    )
    assert made.defaults["here.real"] == 0.5 and made.defaults["here.inner.name"] == ""
    assert "here.whole" not in made.defaults and "here.state" not in made.defaults


# ---------------------------------------------------------------- a stage


def table(**more: Any) -> dict[str, Any]:
    return {
        "name": "main",
        "steps": 3,
        "task": {"name": f"{HERE}.Words"},
        "models": {"policy": {"use": f"{HERE}.Net"}},
        "engine": {"use": f"{HERE}.Single"},
        "rollout": {"use": f"{HERE}.Single"},
        "part": {
            "policy": {"optimiser": {"use": f"{HERE}.Sgd"}, "terms": {"loss": {"use": f"{HERE}.Loss", "weight": 2}}}
        },
        **more,
    }


def build(**more: Any) -> Components:
    return build_stage(table(**more))


def test_the_sections_that_a_recipe_leaves_out() -> None:
    s = build()
    assert type(s.curriculum).__name__ == "Sequential" and type(s.learners["main"].buffer).__name__ == "Fresh"
    assert s.weights == {"score": 1.0} and s.tokens == 4_096 and s.evaluate is None and s.budget == {"steps": 3.0}
    assert (s.n, s.sampling, s.rewards, s.collect, s.follows) == (1, Sampling(), {}, {}, {})
    assert build(task={"name": f"{HERE}.Words", "spaces_of": "box"}).weights == {"task": 1.0}
    assert build(micro_batch=0).tokens is None
    assert (
        s.defaults["micro_batch"] == 4_096
        and s.defaults["models.policy.width"] == 8
        and s.defaults["buffer.size"] == 64
    )


def test_the_rollout_splits_into_request_and_component() -> None:
    s = build(rollout={"use": f"{HERE}.Single", "n": 8, "sampling": {"max_new": 5}, "turns": 3})
    assert (s.n, s.sampling.max_new, s.rollout.turns) == (8, 5, 3) and s.evaluation_rollout is s.rollout
    with pytest.raises(RecipeError, match=r"rollout\.n: 0: expected a number of 1 or more"):
        build(rollout={"use": f"{HERE}.Single", "n": 0})
    with pytest.raises(RecipeError, match=r"rollout\.trns: .*did you mean 'turns'"):
        build(rollout={"use": f"{HERE}.Single", "trns": 1})


def test_a_schedule_in_steps_and_shares_wants_a_budget_in_steps() -> None:
    ramped = table()
    ramped["part"]["policy"]["terms"]["loss"]["high"] = {"from": 0.2, "to": 0.3, "after": 5}
    clip = build_stage(ramped).learners["main"].parts["policy"].terms["loss"]
    assert clip.objective.high == Ramp(0.2, 0.3, None, 5.0)
    del ramped["steps"]
    with pytest.raises(RecipeError, match=r"terms\.loss\.high: a schedule's `after` is 5\.0: expected a share below 1"):
        build_stage({**ramped, "tokens": 100})


def test_an_old_name_of_a_setting_is_refused_with_the_new_one() -> None:
    with pytest.raises(RecipeError, match=r"here\.apart: no setting of .*; it is called 'exclude' now"):
        Settings().make_component("transform", {"use": "advantage", "apart": "demo"}, "here")


def test_terms_split_into_their_own_fields_and_the_objectives() -> None:
    part = build().learners["main"].parts["policy"]
    term = part.terms["loss"]
    assert (term.weight, term.stream, term.objective.high, part.trains) == (2.0, "rl", 0.2, ("policy",))
    assert isinstance(term.objective, Loss)
    ramped = table()
    ramped["part"]["policy"]["terms"]["loss"]["high"] = {"from": 0.2, "to": 0.3, "over": 5}
    assert build_stage(ramped).learners["main"].parts["policy"].terms["loss"].objective.high == Ramp(0.2, 0.3, 5.0)


@pytest.mark.parametrize(
    ("at", "value", "message"),
    [
        (("part", "policy", "terms", "loss", "hihg"), 0.3, r"part\.policy\.terms\.loss\.hihg: .*did you mean 'high'"),
        (("part", "policy", "terms", "loss", "reduce"), 3, r"part\.policy\.terms\.loss\.reduce: 3: expected a text"),
        (("part", "policy", "epocs"), 3, r"part\.policy\.epocs: no setting of Part; did you mean 'epochs'"),
        (("part", "policy", "terms"), {}, r"part\.policy\.terms: no terms"),
        (("part", "policy", "optimiser", "lr"), "fast", r"part\.policy\.optimiser\.lr: 'fast': expected a number"),
        (
            ("part", "policy", "terms", "clop"),
            {},
            r"part\.policy\.terms\.clop: no objective 'clop'; did you mean 'clip'",
        ),
        (("transform",), {"gea": {}}, r"transform\.gea: no transform 'gea'; did you mean 'gae'"),
        (("transform",), {"gae": {"lamb": 1}}, r"transform\.gae\.lamb: .*did you mean 'lam'"),
        (("buffer",), {"siz": 1}, r"buffer\.siz: .*did you mean 'size'"),
        (("models", "policy"), {}, r"models\.policy: expected use"),
        (("models", "judge"), {"same_as": "policy", "width": 3}, r"models\.judge\.width: with same_as"),
        (("task",), {"name": "arithmetik"}, r"task\.name: no task 'arithmetik'; did you mean 'arithmetic'"),
        (("task",), {}, r"task\.name: None: expected a task's name"),
        (("reward",), {"weights": {}}, r"reward\.weights: \{\}: expected"),
        (("reward",), {"weights": {"score": "x"}}, r"reward\.weights\.score: 'x': expected a number"),
        (("evaluate",), {"evry": 1}, r"evaluate\.evry: .*did you mean 'every'"),
        (("store",), {"every": -1}, r"store\.every: -1: expected"),
        (("part",), {}, r"part: missing: nothing learns"),
    ],
)
def test_mistakes_in_a_stage(at: tuple[str, ...], value: Any, message: str) -> None:
    whole = table()
    inner = whole
    for key in at[:-1]:
        inner = inner[key]
    inner[at[-1]] = value
    with pytest.raises(RecipeError, match=message):
        build_stage(whole)


def test_a_task_may_carry_a_path(tmp_path: Path) -> None:
    rows = [f'{{"prompt": "{i}", "answer": "{i}"}}' for i in range(40)]
    (tmp_path / "b.jsonl").write_text("\n".join(rows))
    assert build(task={"name": f"file/{tmp_path}/b.jsonl"}).task.path == f"{tmp_path}/b.jsonl"
    assert build(task={"name": f"{HERE}.Words", "path": "x"}).task.path == "x"
    with pytest.raises(RecipeError, match=r"task: file/nothing\.jsonl: no such file"):
        build(task={"name": "file/nothing.jsonl"})


def test_a_later_stage_may_end_a_sharing_or_point_it_elsewhere(tmp_path: Path) -> None:
    file = tmp_path / "r.toml"
    file.write_text("""
[task]
name = "bandit"
[models.policy]
use = "tabular"
[models.other]
use = "tabular"
[models.judge]
same_as = "policy"
[part.policy]
terms.loss = {use = "clip", behaviour = "present"}
optimiser.lr = 0.1
[[stage]]
name = "a"
steps = 1
[[stage]]
name = "b"
steps = 1
models.judge.same_as = "other"
[[stage]]
name = "c"
steps = 1
models.judge = {init = "policy"}
[[stage]]
name = "d"
steps = 1
models.judge.same_as = "policy"
[[stage]]
name = "e"
steps = 1
models.judge = {use = "tabular"}
""")
    shared: dict[str, Any] = {}
    judges = [build_stage(t, shared).models["judge"] for t in load(file).stages]
    assert [(j.same_as, j.init, j.model is not None) for j in judges] == [
        ("policy", "", False), ("other", "", False), ("", "policy", False),
        ("policy", "", False), ("", "", True),
    ]  # fmt: skip


def test_roles() -> None:
    s = build(
        models={
            "policy": {"use": f"{HERE}.Net", "width": 3},
            "reference": {"init": "policy"},
            "judge": {"same_as": "policy"},
        }
    )
    assert s.models["policy"].model.width == 3
    assert (s.models["reference"].model, s.models["reference"].init, s.models["judge"].same_as) == (
        None,
        "policy",
        "policy",
    )


def test_learners_beside_the_main_one() -> None:
    other = {"buffer": {"use": f"{HERE}.Store"}, "part": table()["part"]}
    s = build(learner={"world": other})
    assert list(s.learners) == ["main", "world"]
    assert s.learners["world"].buffer.size == 4 and s.learners["world"].name == "world"
    assert s.learners["main"].tokens == s.learners["world"].tokens == 4_096
    with pytest.raises(RecipeError, match=r"learner\.world\.buffer\.sze: .*did you mean 'size'"):
        build(learner={"world": {**other, "buffer": {"use": f"{HERE}.Store", "sze": 1}}})
    only = table(learner={"main": {"buffer": {"use": f"{HERE}.Store"}}})
    assert build_stage(only).learners["main"].buffer.size == 4


def test_a_vector_rollout_counts_decisions_and_is_measured_by_episodes() -> None:
    s = build(rollout={"use": f"{HERE}.Lanes"}, evaluate={"n": 4, "rollout": {"use": f"{HERE}.Single"}})
    assert s.learners["main"].buffer.unit == "decision"
    assert isinstance(s.evaluation_rollout, Single) and s.evaluate is not None and s.evaluate.n == 4


def test_a_follower_knows_its_role() -> None:
    assert build(follow={"target": {"use": f"{HERE}.Follower"}}).follows["target"].role == "target"
    assert build(follow={"target": {"use": f"{HERE}.Follower", "role": "x"}}).follows["target"].role == "x"


def test_order_of_transforms() -> None:
    def names(**entries: dict[str, Any]) -> list[str]:
        return list(order_transforms({"collect": entries}, "collect"))

    assert names(a={}, b={}) == ["a", "b"]
    assert names(a={}, b={}, c={"before": "a"}) == ["c", "a", "b"]
    assert names(a={}, b={}, c={"before": "a"}, d={"before": "c"}) == ["d", "c", "a", "b"]
    with pytest.raises(RecipeError, match=r"collect\.c\.before: 'bb' is no other entry; did you mean 'b'|known"):
        names(b={}, c={"before": "bb"})
    table = {"collect": {"a": {"before": "b", "x": 1}, "b": {}}}
    assert list(order_transforms(table, "collect").items()) == [("a", {"x": 1}), ("b", {})]


# ---------------------------------------------------------------- stages


def test_what_says_the_same_is_the_same_object_across_stages() -> None:
    shared: dict[str, Any] = {}
    other = table(name="second", buffer={"size": 3})
    first, second = build_stage(table(), shared), build_stage(other, shared)
    assert first.task is second.task and first.engine is second.engine and first.curriculum is second.curriculum
    assert first.models["policy"].model is second.models["policy"].model
    assert first.learners["main"] is not second.learners["main"]
    a, b = (s.learners["main"].parts["policy"] for s in (first, second))
    assert a.terms["loss"].objective is b.terms["loss"].objective and a.optimiser is not b.optimiser
    third = build_stage(table(name="third"), shared)
    assert third.learners["main"] is first.learners["main"] and third.defaults == first.defaults


def test_two_places_never_share() -> None:
    both = {"a": {"use": f"{HERE}.Scaled", "scale": 1}, "b": {"use": f"{HERE}.Scaled", "scale": 1}}
    s = build(collect=both)
    assert s.collect["a"] is not s.collect["b"] and s.collect["a"] == s.collect["b"]


def test_a_living_model_cannot_be_changed_by_a_later_stage() -> None:
    shared: dict[str, Any] = {}
    build_stage(table(), shared)
    with pytest.raises(
        RecipeError, match=r"models\.policy: models live on: stage 'two' cannot change the model of stage 'main'"
    ):
        build_stage(table(name="two", models={"policy": {"use": f"{HERE}.Net", "width": 9}}), shared)


def test_memories_name_every_component() -> None:
    s = build(collect={"a": {"use": f"{HERE}.Scaled", "scale": 1}})
    places = s.list_memories()
    assert set(places) == {
        "task",
        "engine",
        "curriculum",
        "rollout",
        "models",
        "rewards",
        "collect",
        "learners",
        "follows",
        "evaluate",
    }
    assert places["models"] == {"policy": s.models["policy"].model} and places["collect"]["a"] is s.collect["a"]


def test_what_is_tested_has_the_spaces_of_what_is_trained() -> None:
    bandit = {"name": "bandit", "arms": 10}
    with pytest.raises(RecipeError, match=r"evaluate\.task: its spaces are Discrete\(1\) -> Discrete\(10\), .* text"):
        build(evaluate={"task": bandit})
    s = build(evaluate={"task": {"name": "arithmetic", "digits": 3}, "n": 0})
    assert s.evaluate is not None and s.evaluate.task.digits == 3  # type: ignore[union-attr]
    assert s.list_memories()["evaluate"]["task"] is s.evaluate.task


def test_the_sampling_of_a_further_way_lies_over_that_of_evaluation_or_of_the_stage() -> None:
    more = {"hot": {"sampling": {"temperature": 2.0}}, "plain": {}}
    rollout = {"use": f"{HERE}.Single", "sampling": {"max_new": 5, "temperature": 0.5}}
    found = build(rollout=rollout, evaluate={"more": more}).evaluate
    assert found is not None and found.more["plain"].sampling is None
    assert found.more["hot"].sampling == Sampling(temperature=2.0, max_new=5)
    found = build(rollout=rollout, evaluate={"more": more, "sampling": {"max_new": 7}}).evaluate
    assert found is not None and found.more["hot"].sampling == Sampling(temperature=2.0, max_new=7)


def test_mistakes_in_further_ways_and_metrics_are_told_by_their_place() -> None:
    with pytest.raises(RecipeError, match=r"evaluate\.more\.hot\.sampling\.temprature: .* did you mean 'temperature'"):
        build(evaluate={"more": {"hot": {"sampling": {"temprature": 2.0}}}})
    with pytest.raises(RecipeError, match=r"evaluate\.metrics\.exat: no metric 'exat'; did you mean 'exact'"):
        build(evaluate={"metrics": {"exat": {}}})
    with pytest.raises(RecipeError, match=r"evaluate: more has an entry called 'mean'"):
        build(evaluate={"more": {"mean": {}}})


# ---------------------------------------------------------------- in words


def test_arithmetic_in_one_line() -> None:
    part = {**table()["part"]["policy"], "minibatches": 2}
    s = build(rollout={"use": f"{HERE}.Single", "n": 8}, part={"policy": part})
    assert (
        describe_work(s)
        == "64 problems x 8 = 512 rows, 2 minibatches x 1 epoch = 2 optimiser steps, micro-batch <= 4k tokens"
    )
    lanes = build(
        rollout={"use": f"{HERE}.Lanes"},
        buffer={"size": 2048},
        part={"policy": part, "critic": {**part, "epochs": 4}},
        micro_batch=0,
    )
    assert describe_work(lanes) == (
        "2048 decisions, policy 2 minibatches x 1 epoch = 2 optimiser steps, "
        "critic 2 minibatches x 4 epochs = 8 optimiser steps, micro-batch = minibatch"
    )


def test_ports_are_known_by_annotation() -> None:
    from shuhari.config.settings import KINDS
    from shuhari.kernel.registry import KINDS as kinds

    assert set(KINDS.values()) == set(kinds) - {"quantity", "world"}  # which no component is made of
    assert (KINDS[Model], KINDS[Objective], KINDS[Optimiser], KINDS[Curriculum]) == (
        "model",
        "objective",
        "optimiser",
        "curriculum",
    )


OPTIONAL = {"InvertedDoublePendulum": "mujoco", "MiniGrid": "minigrid"}  # in a task's name -> what it is built from


def test_every_recipe_of_the_package_builds_and_passes_its_checks() -> None:
    from buildable import list_buildable
    from shuhari.loop.checks import check_stages

    for name in list_buildable():
        shared: dict[str, Any] = {}
        stages = load(name).stages
        if any(part in stages[0]["task"]["name"] and find_spec(needs) is None for part, needs in OPTIONAL.items()):
            continue
        built = [build_stage(stage, shared) for stage in stages]
        assert all(map(describe_work, built))
        assert all("." in key or key == "micro_batch" for stage in built for key in stage.defaults)
        check_stages(built)


OWN = '''
from dataclasses import dataclass
from shuhari import register

@dataclass
class Twice:  # names no needs: it has none
    def __call__(self, batch, ctx):
        return batch.put({"advantage": batch["advantage"] * 2})

@register("metric", "own_metric")
@dataclass
class Said:
    def __call__(self, ctx):
        return {}

@register("objective", "own_objective")
@dataclass
class Loss:
    def __call__(self, batch, ctx):
        return batch["logp"], {}

@dataclass
class Nothing:
    pass
'''
OWN_RECIPE = """
steps = 1
task.name = "bandit"
models.policy.use = "tabular"
rollout.n = 4
buffer.size = 2
collect.advantage = {}
[part.policy]
terms.loss = {use = "clip"}
optimiser.lr = 0.1
"""


def own(tmp_path: Path, *settings: str) -> Recipe:
    (tmp_path / "own.py").write_text(OWN, encoding="utf-8")
    (tmp_path / "own.toml").write_text(OWN_RECIPE, encoding="utf-8")
    return load(tmp_path / "own.toml", list(settings))


def test_who_names_no_needs_has_none(tmp_path: Path) -> None:
    use = f"{{use = '{tmp_path}/own.py:Twice'}}"
    (report,) = train(own(tmp_path, f"collect.mine={use}", f"transform.again={use}"))
    assert report["step"] == 1


@pytest.mark.parametrize(
    ("place", "name", "told"),
    [
        ("collect.mine", "Said", r"Said is no transform: its __call__\(ctx\) is not __call__\(batch, ctx\)"),
        ("transform.mine", "Nothing", r"Nothing is no transform: it has no __call__\(batch, ctx\)"),
        ("collect.mine", "Loss", "Loss is registered as objective: expected a transform"),
        ("part.policy.terms.mine", "Said", "Said is no objective"),
        ("curriculum", "Nothing", r"Nothing is no curriculum: it has no select\(n, ctx\)"),
        ("buffer", "Nothing", r"Nothing is no buffer: it has no wanted\(\)"),
        ("part.policy.optimiser", "Nothing", r"Nothing is no optimiser: it has no bind\(params\)"),
    ],
)
def test_a_component_that_lacks_what_its_port_must_have_is_refused(
    tmp_path: Path, place: str, name: str, told: str
) -> None:
    whole = f"{place}={{use = '{tmp_path}/own.py:{name}'}}"
    with pytest.raises(RecipeError, match=rf"{place}.*{told}"):
        list(train(own(tmp_path, whole)))


def test_a_file_that_was_edited_is_loaded_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a notebook the code that runs is that of the file, whose digest the run keeps: here within one second, and of
    one size, which is all that Python's own cache looks at."""
    monkeypatch.chdir(tmp_path)
    file = Path("edited_reward.py")
    for number in (1, 1, 2):
        file.write_text(f"def score(completions):\n    return {number}\n")
        found = registry.locate("reward", "edited_reward.py:score")
        assert found([]) == number and registry.locate("reward", "edited_reward.py:score") is found
    file.write_text("def score(completions):\n    retrn 3\n")
    for _ in range(2):  # a module that was loaded by half is none
        with pytest.raises(SyntaxError):
            registry.locate("reward", "edited_reward.py:score")
    file.write_text("def score(completions):\n    return 4\n")
    assert registry.locate("reward", "edited_reward.py:score")([]) == 4
