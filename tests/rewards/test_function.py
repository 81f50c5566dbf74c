"""Plain functions as rewards: what they are given by name, what they may return, and what their mistakes come to."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from grading import Graded, context
from shuhari import testing
from shuhari.config.build import build_stage
from shuhari.config.evaluation import Evaluation
from shuhari.config.overlay import RecipeError
from shuhari.config.recipe import load
from shuhari.config.stage import Components
from shuhari.data import ContractError, FrozenDict, Problem, Request, Status, Step, Trajectory
from shuhari.loop.collect import collect_groups, grade_group
from shuhari.loop.evaluation import evaluate
from shuhari.rewards.function import Function

Make = Callable[..., Function]
RECIPE = """
steps = 1
task.name = "file/{folder}/rows.jsonl"
models.policy = {{use = "causal", hidden = 8, layers = 1, heads = 1, intermediate = 8}}
part.policy = {{terms.loss = {{use = "clip"}}, optimiser.lr = 1e-2}}
"""


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """The reward of a function whose source is given."""

    def reward(source: str, name: str = "f") -> Function:
        (tmp_path / "rewards.py").write_text(source)
        return Function(f"{tmp_path}/rewards.py:{name}", "mine")

    return reward


def step(text: str) -> Step:
    return Step.of(np.ones(1, np.int32), np.ones(1, np.int32), info={"text": text})


def group(*texts: str, prompt: Any = "p", **fields: Any) -> list[Trajectory]:
    """Samples of one problem, a step each."""
    info = FrozenDict(fields.pop("info", {}))
    return [Trajectory(Request(Problem("t", "0", prompt, info=info, **fields)), (step(t),)) for t in texts]


def ask(reward: Function, samples: Sequence[Trajectory]) -> list[Any]:
    return asyncio.run(reward.grade(samples, testing.context()))


# ---------------------------------------------------------------- what it is given


def test_columns_come_by_name_as_lists_over_samples(make: Make) -> None:
    reward = make(
        "def f(completions, answer, level, prompts):\n"
        "    assert prompts == ['p', 'p'] and answer == ['b', 'b'], (prompts, answer)\n"
        "    return [level[i] * (c == answer[i]) for i, c in enumerate(completions)]\n"
    )
    own = {"level": 3, "prompts": "no prompt", "completions": "b"}  # columns of these names are not ours to give
    assert ask(reward, group("a", "b\n", answer="b", info=own)) == [{"mine": 0.0}, {"mine": 3.0}]


def test_one_that_takes_everything_gets_everything(make: Make) -> None:
    reward = make(
        "def f(completions, **columns):\n"
        "    assert sorted(columns) == ['answer', 'completion', 'prompts', 'solution', 'tags'], sorted(columns)\n"
        "    assert columns['completion'] == columns['solution'] == ['s']\n"
        "    assert columns['prompts'][0][-1]['content'] == 'hi'\n"
        "    return [len(columns['tags'][0])]\n"
    )
    messages = (FrozenDict({"role": "user", "content": "hi"}),)
    assert ask(reward, group("x", prompt=messages, solution="s", info={"tags": ("a", "b")})) == [{"mine": 2.0}]


def test_a_default_stands_where_no_problem_has_the_column(make: Make) -> None:
    source = "def f(completions, bonus=0.5): return [bonus if isinstance(bonus, float) else bonus[0]] * 1\n"
    reward = make(source)
    assert ask(reward, group("x")) == [{"mine": 0.5}]
    assert ask(reward, group("x", info={"bonus": 2})) == [{"mine": 2.0}]


def test_an_async_function_is_awaited(make: Make) -> None:
    reward = make(
        "import asyncio\n"
        "async def f(completions):\n"
        "    await asyncio.sleep(0)\n"
        "    return list(map(len, completions))\n"
    )
    assert ask(reward, group("a", "bcd")) == [{"mine": 1.0}, {"mine": 3.0}]


def test_leaves_of_a_tree_and_episodes_that_broke(make: Make) -> None:
    """A tree of two leaves says the text of each path; an episode without a decision is not shown."""
    reward = make("def f(completions):\n    assert completions == ['ab', 'ac', 'd']\n    return [1, 2, 3]\n")
    request = group("x")[0].request
    first, *rest = (step(t) for t in "abc")
    tree = Trajectory(request, (first, *(Step(**{**vars(s), "parent": 0}) for s in rest)))
    broken = Trajectory(request, (Step.closing(np.ones(1, np.int32), None, 0.0),), Status.ERROR)
    assert ask(reward, [tree, broken, *group("d")]) == [{"mine": 1.0}, {"mine": 2.0}, None, {"mine": 3.0}]


# ---------------------------------------------------------------- what it returns


@pytest.mark.parametrize(
    ("returned", "numbers"),
    [
        ("[1, None]", [1.0, None]),
        ("(True, False)", [1.0, 0.0]),
        ("[float('nan'), -2.5]", [None, -2.5]),
        ("np.array([1, 2])", [1.0, 2.0]),
        ("[np.float32(0.5), np.bool_(True)]", [0.5, 1.0]),
        ("torch.tensor([0.25, 4.0])", [0.25, 4.0]),
        ("[torch.tensor(3), torch.tensor(True)]", [3.0, 1.0]),
    ],
)
def test_numbers_of_many_kinds(make: Make, returned: str, numbers: list[Any]) -> None:
    reward = make(f"import numpy as np, torch\ndef f(completions): return {returned}\n")
    assert [g and g["mine"] for g in ask(reward, group("a", "b"))] == numbers


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ("[1.0]", r"returned list of length 1: \[1\.0\]: expected a list of 2"),
        ("1.0", r"returned float: 1\.0: expected a list of 2"),
        ("None", "returned NoneType: None"),
        ("(x for x in completions)", "returned generator"),
        ("{'a': 1, 'b': 2}", "returned dict"),
        ("np.ones((2, 1))", r"returned '\[1\.0\]' for a sample"),
        ("['good', 1]", "returned 'good' for a sample: expected a finite number or None"),
        ("[float('inf'), 1]", "returned 'inf'"),
        ("[10 ** 400, 1]", "returned '1000"),
        ("[1j, 1]", "returned '1j'"),
    ],
)
def test_what_is_no_list_of_numbers_ends_the_run(make: Make, returned: str, message: str) -> None:
    reward = make(f"import numpy as np\ndef f(completions): return {returned}\n")
    with pytest.raises(ContractError, match=rf"reward 'mine' \(.*rewards\.py:f\) {message}"):
        asyncio.run(grade_group(group("a", "b"), context(lambda p, j: None, mine=reward)))


def test_one_that_raises_leaves_its_samples_ungraded_counted_and_shown(make: Make) -> None:
    ctx = context(lambda p, j: {"score": 1.0}, mine=make("def f(completions): return [lne(c) for c in completions]\n"))
    ctx.task.grade = lambda problem, steps: {"score": 1.0}
    out = asyncio.run(grade_group(group("a", "b"), ctx))
    assert [t.steps[0].reward for t in out] == [{"score": 1.0}] * 2
    assert ctx.ledger["failed_graders"] == 1
    assert ctx.problems == ["failed_graders (reward 'mine'): NameError: name 'lne' is not defined"]


@pytest.mark.parametrize("number", ["1e308", "-1e19"])
def test_one_that_overflows_leaves_that_sample_ungraded_counted_and_shown(make: Make, number: str) -> None:
    """Of such numbers float32 knows no spread: the step would learn nothing, and say that it went well."""
    ctx = context(lambda p, j: {"score": 1.0}, mine=make(f"def f(completions): return [{number}, 1.0]\n"))
    ctx.task.grade = lambda problem, steps: {"score": 1.0}
    out = asyncio.run(grade_group(group("a", "b"), ctx))
    assert [t.steps[0].reward for t in out] == [{"score": 1.0}, {"score": 1.0, "mine": 1.0}]
    assert ctx.ledger["failed_graders"] == 1
    assert "(reward 'mine'): OverflowError: it gave 'mine' = " in ctx.problems[0] and "at most 1e+18" in ctx.problems[0]


@pytest.mark.parametrize("kind", ["SystemExit(3)", "GeneratorExit()", "BaseException('odd')", "Own('mine')"])
@pytest.mark.parametrize("form", ["def f", "async def f"])
def test_one_that_raises_what_is_no_exception_is_counted_too(make: Make, kind: str, form: str) -> None:
    code = f"class Own(BaseException): pass\n{form}(completions): raise {kind}\n"
    ctx = context(lambda p, j: {"score": 1.0}, mine=make(code))
    ctx.task.grade = lambda problem, steps: {"score": 1.0}
    out = asyncio.run(grade_group(group("a", "b"), ctx))
    assert [t.steps[0].reward for t in out] == [{"score": 1.0}] * 2 and ctx.ledger["failed_graders"] == 1
    assert "exit(3)" in ctx.problems[0] if "Exit(3" in kind else kind.partition("(")[0] in ctx.problems[0]


def test_one_that_hangs_leaves_its_samples_ungraded_counted_and_shown(make: Make) -> None:
    """Never 0, also where the function takes whatever goes wrong for a wrong answer."""
    reward = make(
        "import time\n"
        "def f(completions):\n"
        "    try:\n"
        "        time.sleep(30)\n"
        "    except Exception:\n"
        "        return [0.0] * len(completions)\n"
    )
    reward.timeout = 0.05
    ctx = context(lambda p, j: {"score": 1.0}, mine=reward)
    ctx.task.grade = lambda problem, steps: {"score": 1.0}
    out = asyncio.run(grade_group(group("a", "b"), ctx))
    assert [t.steps[0].reward for t in out] == [{"score": 1.0}] * 2
    assert ctx.ledger["failed_graders"] == 1
    (told,) = ctx.problems
    assert re.fullmatch(
        r"failed_graders \(reward 'mine'\): Overdue: reward 'mine' \(.*rewards\.py:f\) has not returned within "
        r"0\.05 s \(\[reward\.mine\] timeout\)",
        told,
    )


def test_a_column_that_is_not_there_ends_the_run(make: Make) -> None:
    reward = make("def f(completions, anwser): return [0.0]\n")
    with pytest.raises(ContractError, match=r"for 'anwser', which problem '.*' of .* has not; did you mean 'answer'"):
        ask(reward, group("a"))


def test_the_demonstration_is_not_taken_for_the_answer(make: Make) -> None:
    """`completion` for `completions` would grade None after None, and run."""
    reward = make("def f(completion, **columns): return [0.0 for _ in completion]\n")
    with pytest.raises(ContractError, match=r"asks for 'completion', the demonstration, .* answers are 'completions'"):
        ask(reward, group("a"))
    assert ask(reward, group("a", solution="b")) == [{"mine": 0.0}]


def test_a_column_that_is_read_as_another_is_told(make: Make) -> None:
    reward = make("def f(completions, target): return [0.0]\n")
    task = SimpleNamespace(read_from={"answer": "target"})
    with pytest.raises(ContractError, match=r"asks for 'target'.*that column is read as 'answer' \(\[task\] columns\)"):
        asyncio.run(reward.grade(group("a"), testing.context(task=task)))


# ---------------------------------------------------------------- by name, in a recipe


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Components]:
    """The components of a recipe with more tables."""
    (tmp_path / "own_rewards.py").write_text("def exact(completions): return [1.0]\ndef near(completions): return []\n")
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"prompt": f"{i}"}) + "\n" for i in range(9)))
    monkeypatch.syspath_prepend(str(tmp_path))

    def made(more: str) -> Components:
        (tmp_path / "r.toml").write_text(RECIPE.format(folder=tmp_path) + more.replace("HERE", str(tmp_path)))
        return build_stage(load(tmp_path / "r.toml").stages[0])

    return made


def test_by_file_or_by_dotted_path(stage: Callable[[str], Components]) -> None:
    made = stage('[reward]\na.use = "HERE/own_rewards.py:exact"\nb.use = "own_rewards.near"\n')
    assert [(r.name, r.call.__name__) for r in made.rewards.values()] == [("a", "exact"), ("b", "near")]
    assert made.weights == {"a": 1.0, "b": 1.0}  # they take the place of `score`


def test_weights_of_the_recipe_win(stage: Callable[[str], Components]) -> None:
    made = stage('[reward]\na.use = "own_rewards.exact"\nweights = {score = 1, a = 0.5}\n')
    assert made.weights == {"score": 1.0, "a": 0.5}


def test_where_nothing_grades_it_is_said_before_the_first_step(stage: Callable[[str], Components]) -> None:
    with pytest.raises(RecipeError, match="the task grades nothing: name a grader"):
        stage("[collect.advantage]\n")
    made = stage("")
    assert made.weights == made.defaults["reward.weights"] == {}  # nothing reads a reward: distillation needs none
    assert stage('[collect.advantage]\n[reward]\na.use = "own_rewards.exact"\n').weights == {"a": 1.0}


def test_the_limit_is_a_setting_and_none_turns_it_off(stage: Callable[[str], Components]) -> None:
    limits = {"a": "timeout = 5", "b": 'timeout = "none"', "c": ""}
    tables = "".join(f'[reward.{k}]\nuse = "own_rewards.exact"\n{v}\n' for k, v in limits.items())
    assert [r.timeout for r in stage(tables).rewards.values()] == [5.0, None, 300.0]
    for given in ("0", "1e10"):  # a timer of the system takes no such number
        with pytest.raises(RecipeError, match=r"reward\.a\.timeout: .*: expected a number in \(0, 86400\]"):
            stage(f'[reward.a]\nuse = "own_rewards.exact"\ntimeout = {given}\n')


@pytest.mark.parametrize(
    ("use", "message"),
    [
        ("HERE/own_rewards.py:extact", "has no 'extact'; did you mean 'exact'"),
        ("HERE/own_rewards.py:zzzzzz", "has no 'zzzzzz'; known: exact, near$"),  # none of Python's own
        ("own_rewards.naer", "did you mean 'near'"),
        ("HERE/own_reward.py:exact", "no file"),
        ("own_rewardz.exact", "no reward 'own_rewardz.exact'"),
        ("HERE/own_rewards.py:__doc__", "is None: expected a function"),
    ],
)
def test_an_unknown_function_is_named(stage: Callable[[str], Components], use: str, message: str) -> None:
    with pytest.raises(RecipeError, match=r"reward\.a.*" + message):
        stage(f'[reward.a]\nuse = "{use}"\n')


def test_arguments_by_position_only_are_refused(make: Make) -> None:
    with pytest.raises(ValueError, match=r"takes 'prompts' by position only"):
        make("def f(prompts, /, completions): return []\n")


def test_a_setting_that_the_function_cannot_have(stage: Callable[[str], Components]) -> None:
    with pytest.raises(RecipeError, match=r"reward\.a\.scale: no setting of reward 'own_rewards\.exact'"):
        stage('[reward.a]\nuse = "own_rewards.exact"\nscale = 2\n')


# ---------------------------------------------------------------- what evaluation measures


def test_the_weighted_reward_is_measured_where_no_score_is_trained(make: Make) -> None:
    """Problem i of four is worth 2 i by the function, weighed by a half: the mean of 0, 1, 2, 3."""
    ctx = context(lambda p, j: {}, weights={"mine": 0.5})
    reward = make("def f(completions): pass\n")

    async def worth(group: Sequence[Trajectory], ctx: Any) -> list[Any]:
        return [{"mine": 2.0 * int(t.request.problem.id)} for t in group]

    ctx.rewards = {"mine": SimpleNamespace(grade=worth, name=reward.name)}
    evaluation = Evaluation(n=4)
    assert evaluate(ctx, evaluation, ctx.rollout).scores(evaluation)["greedy"] == 1.5
    ctx.task = Graded(lambda p, j: {"score": 0.25})
    found = evaluate(ctx, evaluation, ctx.rollout).scores(evaluation)
    assert (found["greedy"], found["greedy.score"]) == (1.5, 0.25), "and where there is one that is not trained"
    asked = Evaluation(n=4, measure="score")
    assert evaluate(ctx, asked, ctx.rollout).scores(asked)["greedy"] == 0.25


def test_where_nothing_grades_evaluation_goes_on_and_training_on_rewards_does_not() -> None:
    ctx = context(lambda p, j: {})
    evaluation = Evaluation(n=4)
    assert evaluate(ctx, evaluation, ctx.rollout).scores(evaluation)["ungraded"] == 1.0
    problem = Problem("told", "0", 0.0)
    with pytest.raises(KeyError, match=r"names 'score', which nothing grades; neither the task .* nor"):
        asyncio.run(collect_groups([Request(problem, 2)], ctx))
