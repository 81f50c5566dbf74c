"""`eval` of models as they are, of several policies side by side, on other problems and by other graders."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean

import pytest

import shuhari as library
from shuhari.desk.evaluating import make_graders, make_task, split_settings
from shuhari.store import Run

ASKED = ("--task", "file/sums.jsonl", "--reward", "rewards.py:digits", "-n", 6, "--samples", 2)


def told(done) -> dict:
    assert done.code == 0, done.err
    return json.loads(done.out)


@pytest.fixture
def written(shuhari, home: Path) -> Path:
    """Problems, a grader, and `model`: the last weights of s0 as a directory of Hugging Face."""
    rows = [{"prompt": f"{a}+{a + 3}=", "answer": str(2 * a + 3)} for a in range(10, 40)]
    Path("sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    Path("rewards.py").write_text("def digits(completions, **columns):\n    return [len(t) / 8 for t in completions]\n")
    assert shuhari("export", "s0", "model").code == 0
    return home


def test_a_model_and_the_run_that_it_is_of_answer_alike_and_others_do_not(shuhari, written: Path) -> None:
    found = told(shuhari("eval", "model", "s0", "s1", *ASKED, "--show", 6, "--json"))
    model, run, other = (found["models"][name] for name in ("model", "s0", "s1"))
    scores = {"greedy", "mean", "pass@1", "greedy.score", "mean.score", "pass@2.score"}
    assert scores <= model.keys() and {n: model[n] for n in scores} == {n: run[n] for n in scores}
    assert model["measure"] == "digits" and (model["step"], run["step"]) == (-1, 4)
    grades = [len(answer["says"][0]) / 8 for answer in model["answers"]]
    assert model["greedy"]["value"] == pytest.approx(fmean(grades)) and model["greedy"]["n"] == 6
    assert [a["rewards"]["digits"] for a in model["answers"]] == grades
    changed = [len(b["says"][0]) / 8 - a for a, b in zip(grades, other["answers"], strict=True)]
    differences = found["differences"]["greedy"]
    assert differences["s0"]["difference"] == 0.0
    assert differences["s1"]["difference"] == pytest.approx(fmean(changed)) and differences["s1"]["paired"]
    alone = told(shuhari("eval", "s1", *ASKED, "--show", 6, "--json"))
    assert alone["answers"] == other["answers"], "asked in another run's context, it answers as in its own"
    assert Run("runs/s0").step == 4 and {p.name for p in Path("runs").iterdir()} == {"s0", "s1"}


def test_tables_name_the_reward_and_show_prompts_answers_and_what_was_cut(shuhari, written: Path) -> None:
    done = shuhari("eval", "model", *ASKED, "--show", 1, "--set", "rollout.sampling.max_new=1")
    lines = [line.split() for line in done.out.splitlines()]
    assert ["greedy", "digits", "0.125"] in [line[:3] for line in lines], done.out
    assert ["greedy.score", "score", "0"] in [line[:3] for line in lines] and "greedy.digits" not in done.out
    assert done.out.count("prompt: ") == 1 and "digits=0.125" in done.out and " cut" in done.out
    assert "6 of 6 greedy answers were cut, at 1 tokens" in done.err
    several = shuhari("eval", "model", "s1", *ASKED, "--show", 1)
    assert several.out.count("prompt: ") == 1 and "  model [" in several.out and "  s1 [" in several.out
    assert ["difference", "reward", "less", "model", "value"] in [line.split() for line in several.out.splitlines()]


def test_python_says_what_the_command_says(shuhari, written: Path) -> None:
    short = "--set", "rollout.sampling.max_new=3"
    found = told(shuhari("eval", "model", *ASKED[:6], *short, "--json"))["greedy"]["value"]
    for name in ("model", "runs/s0"):
        policy = library.load(name)

        def digits(completions: list[str], **columns: object) -> list[float]:
            return [len(text) / 8 for text in completions]

        scores = policy.evaluate("file/sums.jsonl", digits, 6, **{"rollout.sampling.max_new": 3})
        assert scores["greedy"] == found and scores["greedy.digits"] == found and "mean" not in scores
        held_out = [make_task({"name": "file/sums.jsonl"}).problems("test")[i] for i in range(6)]
        said = policy.generate([p.prompt for p in held_out], max_new=3)
        assert found == pytest.approx(fmean(len(text) / 8 for text in said))
    own = library.load("runs/s0").evaluate(n=8)
    assert own["greedy"] == Run("runs/s0").summary["after"]["greedy"], "of a run, the task is its own"
    with pytest.raises(library.RecipeError, match="which problems"):
        library.load("model").evaluate()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("model", "which problems? Give --task"),
        ("nothing --task arithmetic", "no run 'nothing'"),
        ("model --task arithmetik", "did you mean 'arithmetic'?"),
        ("model --task file/sum.jsonl", "did you mean 'sums.jsonl'?"),
        ("model --task arithmetic --reward mats", "did you mean 'maths'?"),
        ("model --task arithmetic --set evaluate.sample=3", "did you mean 'samples'?"),
        ("model --task arithmetic --set rollout.sampling.max=3", "did you mean 'max_new'?"),
        ("model --task arithmetic --set steps=3", "expected evaluate"),
        ("model --task arithmetic --set reward.maths.timeout=3", "a setting of --reward, which is not given"),
        ("s0 --set task.digits=3", "`shuhari eval --task` takes another"),
        ("model --task arithmetic --split nope", "known: test, train"),
        ("model --task arithmetic -k 4", "--samples is 1"),
        ("model --task arithmetic --step 4", "is not a run, and has no steps"),
        ("model --task gym/CartPole-v1", "writes text, and these problems need actions"),
        ("s0 --task gym/CartPole-v1", "observations or actions differ"),
        ("s0 s0", "is named twice"),
    ],
)
def test_mistakes_are_named(shuhari, written: Path, words: str, message: str) -> None:
    done = shuhari("eval", *words.split())
    assert done.code == 2 and message in " ".join(done.err.split()), done.err


def test_what_is_given_by_name() -> None:
    found = split_settings({"task.columns.prompt": "q", "reward.maths.timeout": 3.0, "evaluate.n": 4})
    assert found == {
        "task": {"columns": {"prompt": "q"}},
        "reward": {"maths": {"timeout": 3.0}},
        "over": {"evaluate.n": 4},
    }
    assert make_graders(["right=maths"], {"right": {"timeout": 3.0}})["right"].timeout == 3.0
    with pytest.raises(library.RecipeError, match=r"reward\.math.*of a grader in use: maths"):
        make_graders("maths", {"math": {}})


def test_a_misspelt_model_is_named(shuhari, tmp_path: Path) -> None:
    for name in ("small", "other"):
        (tmp_path / name).mkdir()
    (tmp_path / "small/config.json").write_text("{}")
    wrong, meant = str(tmp_path / "smal"), f"did you mean '{tmp_path / 'small'}'?"
    for words in (["eval", wrong, "--task", "arithmetic"], ["serve", wrong, "--port", 0]):
        done = shuhari(*words)
        assert done.code == 2 and "no run and no model" in done.err and meant in done.err, done.err
    with pytest.raises(LookupError, match="did you mean"):
        library.load(wrong)
    far = shuhari("eval", str(tmp_path / "othr"), "--task", "arithmetic")  # a folder near it that is no model
    assert far.code == 2 and "did you mean" not in far.err
