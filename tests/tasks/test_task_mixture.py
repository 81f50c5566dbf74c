"""Several tasks as one: shares, splits by hand, who grades what, and the metrics of each."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import shuhari
from shuhari.config.build import make_component
from shuhari.config.overlay import RecipeError
from shuhari.config.recipe import load
from shuhari.data import Problem, Step
from shuhari.tasks.arithmetic import Arithmetic
from shuhari.tasks.bandit import Bandit
from shuhari.tasks.mixture import Member, Mixture, interleave
from shuhari.tasks.shop import Counter as Game
from shuhari.tasks.shop import Shop


def said(text: str) -> list[Step]:
    return [Step.of(None, 0, info={"text": text})]


def two(**fields: Any) -> Mixture:
    add, sub = Arithmetic(kind="add", test_size=3), Arithmetic(kind="sub", test_size=5)
    return Mixture({"plus": Member(add, 3.0), "minus": Member(sub)}, **fields)


def test_training_problems_come_by_weight_and_are_those_of_the_members() -> None:
    task = two()
    source = task.problems("train")
    assert source.size() is None
    drawn = [source[i] for i in range(2000)]
    count = Counter(p.task for p in drawn)
    assert count["plus"] + count["minus"] == 2000
    assert abs(count["plus"] / 2000 - 0.75) < 4 * (0.75 * 0.25 / 2000) ** 0.5
    for i, p in enumerate(drawn[:50]):
        own = task.tasks[p.task].task.problems("train")[i]
        assert (p.id, p.prompt, p.answer) == (own.id, own.prompt, own.answer)
    assert [source[i].task for i in range(20)] == [p.task for p in drawn[:20]]  # nothing is remembered
    assert [two(seed=1).problems("train")[i].task for i in range(20)] != [p.task for p in drawn[:20]]


def test_a_member_without_weight_is_only_tested() -> None:
    with_third = Mixture({"mul": Member(Arithmetic(kind="mul", test_size=2), 0.0), **two().tasks})
    source, test, plain = with_third.problems("train"), with_third.problems("test"), two().problems("train")
    assert [source[i] for i in range(200)] == [plain[i] for i in range(200)]
    assert Counter(test[i].task for i in range(10)) == {"mul": 2, "plus": 3, "minus": 5} and test.size() == 10


def test_held_out_problems_are_those_of_each_member_in_turn() -> None:
    source = two().problems("test")
    assert source.size() == 8
    assert [source[i].task for i in range(8)] == ["plus", "minus"] * 3 + ["minus"] * 2
    plus, minus = (two().tasks[n].task.problems("test") for n in ("plus", "minus"))
    assert [source[i].id for i in (0, 2, 4)] == [plus[i].id for i in range(3)]
    assert [source[i].id for i in (1, 3, 5, 6, 7)] == [minus[i].id for i in range(5)]
    with pytest.raises(IndexError):
        source[8]


def test_lists_read_in_turn_by_hand() -> None:
    assert [interleave([2, None, 3], i) for i in range(9)] == [
        *((0, 0), (1, 0), (2, 0)),
        *((0, 1), (1, 1), (2, 1)),
        *((1, 2), (2, 2)),
        (1, 3),
    ]
    assert [interleave([0, 1], i) for i in range(1)] == [(1, 0)]


def test_a_finite_member_gives_all_of_its_problems(tmp_path: Path) -> None:
    file = tmp_path / "own.jsonl"
    rows = [{"prompt": f"p{i}", "answer": str(i), "split": "train" if i < 5 else "test"} for i in range(7)]
    file.write_text("".join(json.dumps(r) + "\n" for r in rows))
    table = {"name": "mixture", "tasks": {"own": {"name": f"file/{file}"}, "sums": {"name": "arithmetic"}}}
    task = make_component("task", table)
    source = task.problems("train")
    assert {p.id for p in map(source.__getitem__, range(200)) if p.task == "own"} == {
        task.tasks["own"].task.problems("train")[i].id for i in range(5)
    }
    assert sum(task.problems("test")[i].task == "own" for i in range(task.problems("test").size())) == 2


def test_a_problem_is_graded_and_played_by_its_member() -> None:
    task = Mixture({"sums": Member(Arithmetic()), "shop": Member(Shop())})
    source = task.problems("test")
    sums, shop = source[0], source[1]
    assert task.grade(sums, said(sums.answer)) == {"score": 1.0} and task.grade(sums, said("x")) == {"score": 0.0}
    assert (
        task.grade(shop, said(f"say {shop.answer}")) == {"score": 1.0}
        and task.grade(shop, said(shop.answer))["score"] == 0.0
    )
    assert task.environment(sums) is None and isinstance(task.environment(shop), Game)
    with pytest.raises(KeyError, match="no task 'shap'; did you mean 'shop'"):
        task.grade(Problem("shap", "1", None), said(""))


def test_mixtures_nest() -> None:
    task = Mixture({"inner": Member(two()), "shop": Member(Shop())})
    source = task.problems("test")
    inner = [p for p in map(source.__getitem__, range(16)) if p.task != "shop"]
    assert {p.task for p in inner} == {"inner/plus", "inner/minus"}
    assert all(task.grade(p, said(p.answer)) == {"score": 1.0} for p in inner)


def test_alphabets_join_and_a_member_without_one_may_write_all() -> None:
    assert set(two().alphabet) == set("0123456789+-=")

    class Plain(Arithmetic):
        alphabet = ""  # type: ignore[assignment]

    mixed = Mixture({"a": Member(Plain()), "b": Member(Shop())})
    assert {"~", "\n", "+"} <= set(mixed.alphabet)
    assert Mixture({"a": Member(Plain())}).alphabet == ""  # what a model takes for printable ASCII


def test_what_does_not_mix_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'a' has text and 'b' has Discrete\(1\) -> Discrete\(10\)"):
        Mixture({"a": Member(Arithmetic()), "b": Member(Bandit())})
    with pytest.raises(ValueError, match="weights of a are 0: expected a task to train on"):
        Mixture({"a": Member(Arithmetic(), 0.0)})
    with pytest.raises(ValueError, match="without a slash"):
        Mixture({"a/b": Member(Arithmetic())})
    with pytest.raises(ValueError, match="no tasks"):
        Mixture({})
    same = Mixture({"a": Member(Bandit()), "b": Member(Bandit(seed=3))})
    assert same.spaces() == Bandit().spaces()


# ------------------------------------------------------------------------------------------------ in a recipe

SMALL = {
    "task": {"name": "mixture", "tasks": {"sums": {"name": "arithmetic", "digits": 1, "weight": 2}, "arithmetic": {}}},
    "models.policy": {"hidden": 16, "layers": 1, "heads": 2},
    "rollout": {"n": 2, "sampling": {"max_new": 4}},
    "buffer.size": 12,
    "remove": ["stage.warm-up"],
    "evaluate": {"every": 0, "n": 6, "samples": 2},
}


def test_members_are_written_flat_and_draw_from_the_seed_of_the_run() -> None:
    task = make_component("task", SMALL["task"])  # type: ignore[arg-type]
    assert task.tasks["sums"].weight == 2.0 and task.tasks["sums"].task.digits == 1
    assert task.tasks["arithmetic"].task == Arithmetic()  # a member is called as the task it names, unless told
    from shuhari.config.build import build_stage

    (stage,) = load("baselines/grpo", settings={**SMALL, "seed": 7}).stages
    made: Any = build_stage(stage).task
    assert made.seed == made.tasks["sums"].task.seed == 7
    for key, value, message in [
        (
            "task.tasks.sums.digit",
            1,
            r"task\.tasks\.sums\.digit: no setting of task 'arithmetic'; did you mean 'digits'",
        ),
        ("task.tasks.sums.name", "arithmetics", r"task\.tasks\.sums\.name: .*did you mean 'arithmetic'"),
        ("task.tasks.sums.weight", "much", r"task\.tasks\.sums\.weight: 'much': expected a number"),
    ]:
        with pytest.raises(RecipeError, match=message):
            build_stage(load("baselines/grpo", settings={**SMALL, key: value}).stages[0])


def test_another_member_of_the_same_name_replaces_its_settings() -> None:
    recipe = load("baselines/grpo", settings=SMALL).with_settings({"task.tasks.sums": {"name": "shop"}})
    assert recipe.tree["task"]["tasks"]["sums"] == {"name": "shop"}
    gone = recipe.with_settings({"remove": ["task.tasks.sums"]})
    assert list(gone.tree["task"]["tasks"]) == ["arithmetic"]


def test_a_run_reports_each_member(tmp_path: Path) -> None:
    run = shuhari.train("baselines/grpo", tmp_path / "run", steps=1, **SMALL)
    (report,) = run.reports
    names = ("sums", "arithmetic")
    episodes = [report[f"rollout/episodes@{n}"] for n in names]
    assert sum(episodes) == report["rollout/episodes"] == 24
    total = sum(e * report[f"reward/mean@{n}"] for e, n in zip(episodes, names, strict=True))
    assert total == pytest.approx(24 * report["reward/mean"])
    for name in ("greedy", "mean", "pass@2", "length"):
        both = [report[f"evaluate/{name}@{n}"] for n in names]  # three problems each
        assert report[f"evaluate/{name}"] == pytest.approx(sum(both) / 2)
    assert run.summary["after"]["greedy@sums"] == report["evaluate/greedy@sums"]


def test_games_and_questions_of_one_answer_mix_in_one_rollout(tmp_path: Path) -> None:
    both = {"task": {"name": "mixture", "tasks": {"game": {"name": "shop"}, "sums": {"name": "arithmetic"}}}}
    settings = {**SMALL, **both, "rollout": {"use": "episode", "n": 2, "sampling": {"max_new": 4}, "max_steps": 2}}
    run = shuhari.train("baselines/grpo", tmp_path / "run", steps=1, **settings)
    (report,) = run.reports
    assert report["rollout/turns@game"] > 1 and "rollout/turns@sums" not in report  # of which every episode is one
    assert report["rollout/episodes@sums"] > 0
