"""What is found before the first step: each mistake by its dotted key and the nearest right name, in every stage."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

import shuhari
from shuhari.config.build import build_stage
from shuhari.config.recipe import Recipe, RecipeError, load
from shuhari.config.stage import Components
from shuhari.data import Problem
from shuhari.kernel import registry
from shuhari.loop.checks import check_stages
from shuhari.loop.run import Run
from shuhari.needs import Need
from shuhari.ports.declares import Declares, declares, together
from shuhari.tasks.source import Listed

HERE = __name__
BANDIT = {"task.name": "bandit", "models.policy.use": "tabular", "steps": 1}


def built(recipe: Recipe) -> list[Components]:
    shared: dict[str, Any] = {}
    return [build_stage(table, shared) for table in recipe.stages]


def checked(name: str, **changes: Any) -> None:
    check_stages(built(load(name).with_settings({k.replace("__", "."): v for k, v in changes.items()})))


@pytest.mark.parametrize(
    ("name", "change", "told"),
    [
        ("grpo", {"part.policy.terms.loss.advantage": "advantge"},
         r"part\.policy\.terms\.loss\.advantage: .*'advantge' in stage 'rl'; did you mean 'advantage'"),
        ("dqn_cartpole", {"buffer.by": "td_eror"}, r"buffer\.by: nothing .* column 'td_eror'.* mean 'td_error'"),
        ("grpo", {"collect.advantage.reward": "rewrd"}, r"collect\.advantage\.reward: .*'rewrd'.* mean 'reward'"),
        ("grpo", {"collect.advantage.column": "retrun"}, r"collect\.advantage\.column: nothing .* column 'retrun'"),
        ("grpo", {"collect.advantage.exclude": "demo"}, r"collect\.advantage\.exclude: nothing .* a column 'demo'"),
        ("grpo", {"collect.advantage.stream": "rll"}, r"collect\.advantage\.stream: .* stream 'rll' .* mean 'rl'"),
        ("grpo", {"part.policy.terms.loss.stream": "rll"}, r"policy\.terms\.loss\.stream: .* 'rll' .* mean 'rl'"),
        ("grpo", {"reward.weights.scre": 1.0}, r"reward\.weights\.scre: no grader .* 'scre' .* did you mean 'score'"),
        ("ppo_cmdp", {"reward.weights.price": 1.0}, r"weights\.price: .* task\.tells\.price=reward"),
        ("grpo", {"part.policy.terms.token_rewards": {"reward": "reward/x", "role": "policy"}},
         r"reward=reward/score$"),
        ("grpo", {"reward.length": {"of": "scores"}, "reward.weights": {"score": 1.0, "length": 1.0}},
         r"reward\.length\.of: no grader .* 'scores'.* mean 'score'"),
        ("grpo", {"part.policy.terms.token_rewards": {"reward": "reward/scor", "role": "policy"}},
         r"terms\.token_rewards\.reward: no grader .* 'scor'.* mean 'score'"),
        ("ppo_cartpole", {"part.policy.terms.value.target": "retrun"}, r"value\.target: .* mean 'return'"),
        ("sac_pendulum", {"part.critic.terms.soft_td.stream": "ce"}, r"terms\.soft_td\.stream: .* stream 'ce'"),
        ("dpo", {"part.policy.terms.preference.links": "pair"}, r"preference\.links: .* 'pair'.* mean 'pairs'"),
        ("grpo", {"curriculum": {"use": "cached_solutions", "reward": "scre", "inner": {}}},
         r"curriculum\.reward: .* 'score'"),
        ("grpo", {"curriculum": {"use": "target", "predictor": {"use": "beta", "reward": "reward/scre"},
                                 "candidates": {}}}, r"curriculum\.predictor\.reward: .* mean 'score'"),
        ("grpo", {"rollout": {"use": "hint_ladder", "measure": "socre", "n": 8}}, r"rollout\.measure: .* mean 'score'"),
        ("grpo", {"evaluate.more.ladder": {"rollout": {"use": "hint_ladder", "measure": "socre"}}},
         r"evaluate\.more\.ladder\.rollout\.measure: .* mean 'score'"),
        ("grpo", {"evaluate.measure": "scre"}, r"evaluate\.measure: no grader .* 'scre' .* mean 'score'"),
        ("ppo_cartpole", {"reward.weights.tsak": 1.0}, r"reward\.weights\.tsak: .* mean 'task'"),
        ("grpo", {"collect.advantage.reward": "scroe"}, r"collect\.advantage\.reward: .* mean 'reward/score'"),
        ("grpo", {"evaluate.split": "tset"}, r"evaluate\.split: no split 'tset'; did you mean 'test'"),
        ("bc_cartpole", {"part.policy.terms.nll.stream": "rll"}, r"terms\.nll\.stream: .* stream 'rll' .* mean 'rl'"),
        ("awr_cartpole", {"part.critic.terms.value.target": "to_goo"}, r"value\.target: .* 'to_goo' .* mean 'to_go'"),
    ],
)  # fmt: skip
def test_a_name_that_nothing_writes_is_missed(name: str, change: dict[str, Any], told: str) -> None:
    checked(f"baselines/{name}")
    with pytest.raises(RecipeError, match=told):
        checked(f"baselines/{name}", **change)


def test_a_run_that_would_miss_a_column_in_its_last_stage_is_not_begun() -> None:
    recipe = load("baselines/grpo").with_settings({"part.policy.terms.loss.advantage": "advantge"})
    assert [s["name"] for s in recipe.stages] == ["warm-up", "rl"]
    with pytest.raises(RecipeError, match="stage 'rl'"):
        Run(recipe)


def test_columns_count_in_order() -> None:
    """An objective reads what an earlier part stamps; a transform what one before it does."""
    swapped = load("baselines/sac_pendulum").with_settings({})
    (stage,) = built(swapped)
    parts: Any = stage.learners["main"].parts  # type: ignore[attr-defined]
    order = list(parts)
    assert order.index("temperature") > order.index("policy")
    check_stages([stage])
    policy = parts.pop("policy")
    parts["policy"] = policy
    with pytest.raises(RecipeError, match=r"part\.temperature\.terms\.temperature: .*'fresh/log_prob'"):
        check_stages([stage])


def test_a_cost_that_nothing_tells_is_missed_as_one_that_an_environment_may_tell() -> None:
    with pytest.raises(RecipeError, match=r"cost_gae\.reward: no grader .* 'cost' .*: task\.tells\.cost=reward$"):
        checked("control/ppo_lagrangian", **{"task.tells.cost": "column"})
    with pytest.raises(RecipeError, match=r"transform\.constrain\.cost: 'task' .* such as 'reward/cost'"):
        checked("control/ppo_lagrangian", **{"transform.constrain.cost": "task"})


@pytest.mark.parametrize(
    ("name", "change", "told"),
    [
        ("grpo", {"rollout.n": 1}, r"rollout\.n: 1 in stage 'rl': collect\.advantage compares .* expected 2 or more"),
        ("grpo", {"rollout": {"use": "hint_curve", "n": 3}}, r"rollout\.n: 3 in stage .*: rollout .* expected 4"),
        ("dpo", {"rollout.n": 1}, r"rollout\.n: 1 in stage 'rl': transform\.pairs compares"),
    ],
)  # fmt: skip
def test_groups_too_small_to_compare_are_missed(name: str, change: dict[str, Any], told: str) -> None:
    with pytest.raises(RecipeError, match=told):
        checked(f"baselines/{name}", **change)


@pytest.mark.parametrize(
    "change",
    [
        {"collect.advantage": {"centre": "none", "scale": "none"}},
        {"collect.advantage": {"unit": "batch", "scale": "batch"}},
    ],
)
def test_groups_of_one_are_enough_where_nothing_compares_them(change: dict[str, Any]) -> None:
    checked("baselines/grpo", **{"rollout.n": 1, **change})


@dataclass
class Silent:
    """A transform that says nothing of itself."""

    needs: tuple[Need, ...] = field(default=(), init=False)

    def __call__(self, batch: Any, ctx: Any) -> Any:
        return batch


@dataclass
class Says(Silent):
    """One that says what it writes, and what it reads."""

    reads = ("advantage",)
    stamps = ("surprise",)


@dataclass
class Graded:
    """A task that does not say what it grades."""

    seed: int = 0

    def problems(self, split: str) -> Listed:
        return Listed([Problem("graded", "0", "1+1=", solution="2")])

    def grade(self, problem: Any, steps: Any) -> dict[str, float]:
        return {"taste": 1.0}

    def environment(self, problem: Any) -> None:
        return None

    def spaces(self) -> None:
        return None


def test_one_that_says_nothing_is_not_checked_and_hides_what_is_behind_it() -> None:
    silent, says = {"collect.own.use": f"{HERE}.Silent"}, {"collect.own.use": f"{HERE}.Says"}
    reads = {"part.policy.terms.loss.advantage": "surprise"}
    checked("baselines/grpo", **silent, **reads)
    checked("baselines/grpo", **says, **reads)
    with pytest.raises(RecipeError, match=r"loss\.advantage: .*'suprise'.* mean 'surprise'"):
        checked("baselines/grpo", **says, **{"part.policy.terms.loss.advantage": "suprise"})
    with pytest.raises(RecipeError, match=r"collect\.own: nothing before it writes a column 'advantage'"):
        checked("baselines/grpo", **{"collect.own": {"use": f"{HERE}.Says", "before": "advantage"}})
    with pytest.raises(RecipeError, match=r"collect\.advantage\.reward"):  # what is before it is known
        checked("baselines/grpo", **silent, **{"collect.advantage.reward": "rewrd"})


def test_a_task_that_does_not_say_what_it_grades_may_grade_anything_but_writes_no_other_column() -> None:
    own = {"task": {"name": f"{HERE}.Graded"}, "reward.weights": {"taste": 1.0}}
    (*_, stage) = built(load("baselines/grpo").with_settings(own))
    check_stages([stage])
    (*_, stage) = built(load("baselines/grpo").with_settings({**own, "part.policy.terms.loss.advantage": "advantge"}))
    with pytest.raises(RecipeError, match="advantge"):
        check_stages([stage])


def test_a_session_misses_the_name_of_a_weight() -> None:
    with pytest.raises(RecipeError, match=r"reward\.weights\.scre: .* did you mean 'score'"):
        shuhari.session({"use": "tabular"}, task={"name": "bandit"}, weights={"scre": 1.0})


def test_our_own_components_say_what_they_write() -> None:
    silent = set()
    for kind in ("task", "reward", "curriculum", "rollout", "buffer", "recording", "transform", "objective"):
        for name in registry.names(kind):
            found = registry.find(kind, name)
            if found.__module__.startswith("shuhari.") and not hasattr(found, "stamps"):
                silent.add(name)
    assert not silent


def test_declares_is_what_is_said_and_defaults_for_the_rest() -> None:
    assert declares(SimpleNamespace()) == Declares()
    need = Need(("policy",), "log_prob")
    said = SimpleNamespace(
        needs=[need], roles=["judge"], reads=["a"], stamps=(), couples="batch", links="pairs", least_n=3
    )
    assert declares(said) == Declares((need,), ("judge",), ("a",), (), "batch", "pairs", 3)
    assert together(("x",), said, SimpleNamespace(stamps=("y",))) == ("x", "y")
    assert together(("x",), said, SimpleNamespace()) is None


def test_what_an_update_tells_a_buffer_may_be_written_by_any_part_of_its_learner() -> None:
    checked("baselines/dqn_cartpole", buffer__by="td_error")
    buffer = {"use": "mixture", "buffers": {"new": {"use": "replay", "by": "td_eror"}}}
    with pytest.raises(RecipeError, match=r"buffer\.buffers\.new\.by: nothing .* did you mean 'td_error'"):
        checked("baselines/dqn_cartpole", buffer=buffer)


@dataclass
class Set:
    """A recording that does not say which columns it has."""

    def read(self, task: Any, seed: int) -> Any:
        raise AssertionError("nothing is read before the first step")


@pytest.mark.parametrize(
    ("use", "column", "stream"), [("played", False, False), ("file", True, False), (f"{HERE}.Set", True, True)]
)
def test_what_a_data_set_may_bring_is_what_its_recording_says(use: str, column: bool, stream: bool) -> None:
    data = {"buffer.data": {"use": use}, "remove": ["buffer.data", "collect"]}
    for change, there in (
        ({"part.critic.terms.value.target": "mood"}, column),
        ({"part.policy.terms.nll.stream": "mood"}, stream),
        ({"reward.weights": {"mood": 1.0}}, True),
    ):
        with nullcontext() if there else pytest.raises(RecipeError, match="'mood'"):
            checked("baselines/awr_cartpole", **data, **change)


def test_a_data_set_brings_rewards_of_its_own() -> None:
    data = {"use": "offline", "data": {"use": "file", "path": "somewhere"}}
    checked("baselines/dqn_cartpole", buffer=data, reward__weights={"cost": -1.0})
    with pytest.raises(RecipeError, match="'cost'"):
        checked("baselines/dqn_cartpole", reward__weights={"cost": -1.0})


@pytest.mark.parametrize("at", ["rollout", "evaluate"])
def test_answers_longer_than_the_policy_reads_are_missed(at: str) -> None:
    longest = {f"{at}.sampling.max_new": 64, "models.policy.context": 64}
    with pytest.raises(RecipeError, match=rf"{at}\.sampling\.max_new: 64 in .*fewer tokens than the policy reads, 64"):
        checked("baselines/grpo", **longest)
    checked("baselines/grpo", **{**longest, "models.policy.context": 65})
    default = {"models.policy.context": 64, "remove": ["rollout.sampling"]}  # 256, which nobody asked for
    checked("baselines/grpo", **default)
