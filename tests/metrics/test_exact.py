"""Exact numbers against enumeration by hand, a table's softmax, and many samples of the same policy."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

from shuhari.config.overlay import RecipeError
from shuhari.config.recipe import Recipe
from shuhari.data import Problem
from shuhari.kernel.abilities import ability
from shuhari.kernel.registry import register
from shuhari.loop.run import Run, open_run
from shuhari.metrics.exact import Exact, Rows
from shuhari.ports.answers import Answers
from shuhari.tasks.source import Listed, answer_text

WORDS = tuple("".join(w) for n in range(3) for w in product("ab", repeat=n))  # all that two tokens may say: 7


@register("task", "words")
@dataclass
class Words:
    """Right is a word with as many a as the prompt, which then scores 1 (`b` alone: 0.5); three prompts."""

    complete: bool = True
    only: str = ""  # lists these problems only, where any
    seed: int = 0

    alphabet = "ab"

    def problems(self, split: str) -> Listed:
        return Listed([Problem("words", p, p, info={"level": len(p)}) for p in ("b", "a", "aa")])

    def answers(self, problem: Problem) -> Answers | None:
        if self.only and problem.id not in self.only.split():
            return None
        scores = {w: self.score(problem, w) for w in WORDS if self.complete or self.score(problem, w)}
        labels = tuple("left" if w.startswith("a") else "" for w in scores)
        return Answers(tuple(scores), tuple(scores.values()), labels, self.complete)

    def score(self, problem: Problem, said: str) -> float:
        right = said.count("a") == problem.id.count("a")
        return 0.5 if right and said == "b" else float(right)

    def grade(self, problem: Problem, steps: Any) -> dict[str, float]:
        return {"score": self.score(problem, answer_text(steps))}

    def environment(self, problem: Problem) -> None:
        return None

    def spaces(self) -> None:
        return None


SMALL = """
steps = 1
threads = 1
task.name = "words"
models.policy = {use = "causal", hidden = 16, layers = 1, heads = 2, intermediate = 16}
models.other = {use = "causal", hidden = 16, layers = 1, heads = 2, intermediate = 16}
rollout = {n = 2, sampling.max_new = 2}
collect.advantage = {}
part.policy = {terms.loss = {use = "clip"}, optimiser.lr = 0.1}
evaluate = {every = 0, n = 0}
"""


def made(text: str) -> Recipe:
    return Recipe("made", tomllib.loads(text), {})


def opened(text: str = SMALL, **task: Any) -> Run:
    recipe = made(text)
    run = open_run(recipe.with_settings({f"task.{k}": v for k, v in task.items()}) if task else recipe)
    run.enter_stage()
    return run


@pytest.fixture
def run() -> Iterator[Run]:
    with opened() as made:
        yield made


def said(run: Run, role: str, prompt: str) -> dict[str, float]:
    """The probability of each word, from the logits of the Hugging Face model, token by token."""
    model: Any = run.ctx.models[role]

    def step(ids: list[int]) -> torch.Tensor:
        logits = model.module.lm(input_ids=torch.tensor([ids])).logits[0, -1].double()
        logits[model.module.suppressed] = -torch.inf
        return logits.softmax(-1).detach()

    out = {}
    for word in WORDS:
        ids, p = model.encode(prompt).tolist(), 1.0
        for token in [*(model.encode(c)[0] for c in word), *([model.end] if len(word) < 2 else [])]:
            p, ids = p * float(step(ids)[int(token)]), [*ids, int(token)]
        out[word] = p
    return out


def test_all_that_may_be_said_sums_to_one_and_every_number_is_that_of_enumeration(run: Run) -> None:
    found = Exact(k=(1, 3), against=("other",), by="level")(run.ctx)
    numbers: dict[str, list[float]] = {}
    task: Any = run.ctx.task
    for problem in map(task.problems("test").__getitem__, range(3)):
        p, r = (said(run, role, problem.prompt) for role in ("policy", "other"))
        assert sum(p.values()) == pytest.approx(1.0, abs=1e-5)
        right = {w: x for w, x in p.items() if task.score(problem, w) >= 1}
        q = sum(right.values())
        own = {
            "mean": sum(x * task.score(problem, w) for w, x in p.items()),
            "pass@1": q,
            "pass@3": 1 - (1 - q) ** 3,
            "solved": float(q >= 0.5),
            "modes": math.exp(-sum(x / q * math.log(x / q) for x in right.values())),
            "mass@left": sum(x for w, x in p.items() if w.startswith("a")),
            "entropy": -sum(x * math.log(x) for x in p.values()),
            "kl.other": sum(p[w] * math.log(p[w] / r[w]) for w in WORDS),
            "kl_from.other": sum(r[w] * math.log(r[w] / p[w]) for w in WORDS),
        }
        for name, x in own.items():
            numbers.setdefault(name, []).append(x)
    for name, values in numbers.items():
        assert found[name] == pytest.approx(np.mean(values), abs=1e-4), name
        assert found[f"{name}@1"] == pytest.approx(np.mean(values[:2]), abs=1e-4)
        assert found[f"{name}@2"] == pytest.approx(values[2], abs=1e-4)
    assert found["rest"] == pytest.approx(0.0, abs=1e-5)
    assert run.ctx.ledger == {"scored": 42}


def test_sampled_means_agree_within_their_error(run: Run) -> None:
    """800 samples of each of three problems: the error of the mean is at most 0.5 / sqrt(2400) = 0.0102."""
    from shuhari.config.evaluation import Evaluation
    from shuhari.loop.evaluation import evaluate

    played = evaluate(run.ctx, Evaluation(n=3, samples=800), run.ctx.rollout)  # type: ignore[arg-type]
    exact = Exact()(run.ctx)
    assert played.sampled is not None
    assert abs(float(played.sampled.mean()) - exact["mean"]) < 4 * 0.0102
    assert abs(float((played.sampled == 1).mean()) - exact["pass@1"]) < 4 * 0.0102


def test_right_answers_are_enough_for_all_but_entropy_and_divergence(run: Run) -> None:
    every = Exact(against=("other",))(run.ctx)
    with opened(complete=False) as other:
        some = Exact(against=("other",))(other.ctx)
    assert set(every) - set(some) == {"entropy", "kl.other", "kl_from.other"}
    for name in set(some) - {"rest", "mass@left"}:
        assert some[name] == pytest.approx(every[name], abs=1e-6), name
    assert 0 < some["rest"] < 1  # wrong answers are not listed


def test_answers_that_are_too_long_are_never_said() -> None:
    with opened(SMALL.replace("max_new = 2", "max_new = 1")) as run:
        found = Exact()(run.ctx)
        task: Any = run.ctx.task
        by_hand = []
        for prompt in ("b", "a", "aa"):
            model: Any = run.ctx.models["policy"]
            logits = model.module.lm(input_ids=torch.tensor([model.encode(prompt).tolist()])).logits[0, -1].double()
            logits[model.module.suppressed] = -torch.inf
            p = logits.softmax(-1).detach()
            tokens = {"": model.end, "a": int(model.encode("a")[0]), "b": int(model.encode("b")[0])}
            problem = Problem("words", prompt, prompt)
            by_hand.append(sum(float(p[t]) * task.score(problem, w) for w, t in tokens.items()))
    assert found["mean"] == pytest.approx(np.mean(by_hand), abs=1e-5)
    assert found["rest"] == pytest.approx(0.0, abs=1e-5)


def test_problems_without_listed_answers_are_left_out(run: Run) -> None:
    with opened(only="aa") as other:
        assert Exact()(other.ctx)["mean"] == pytest.approx(Exact(by="level")(run.ctx)["mean@2"], abs=1e-6)
    with opened(only="none") as other, pytest.raises(ValueError, match="lists no answers to the first 3 problems"):
        Exact()(other.ctx)


def test_a_level_that_problems_do_not_have_is_told(run: Run) -> None:
    with pytest.raises(KeyError, match="'b' has no 'levl' in its info; did you mean 'level'"):
        Exact(by="levl")(run.ctx)


def test_weights_that_moved_are_scored_anew_on_the_same_rows(run: Run) -> None:
    metric = Exact()
    before, rows = metric(run.ctx), metric._rows
    with torch.no_grad():
        for x in run.ctx.models["policy"].module.parameters():
            x.add_(torch.randn(x.shape, generator=torch.Generator().manual_seed(0)), alpha=0.3)
    after = metric(run.ctx)
    assert metric._rows is rows and abs(before["entropy"] - after["entropy"]) > 1e-3


BANDIT = """
steps = 3
task = {name = "bandit", arms = 3, means = [0.2, 0.5, 0.8], test_size = 4}
models.policy.use = "tabular"
models.start.init = "policy"
rollout.n = 8
reward.weights.task = 1.0
collect.advantage = {}
part.policy = {terms.loss = {use = "clip"}, optimiser.lr = 0.5}
evaluate = {every = 1, n = 0, metrics.exact = {against = ["start"]}, metrics.weights = {}}
"""


def test_a_bandit_is_that_of_its_table() -> None:
    with opened(BANDIT) as run:
        logits = torch.tensor([0.3, -0.4, 1.0], dtype=torch.float64)
        run.ctx.models["policy"].module.logits.data[0] = logits  # type: ignore[union-attr, operator, index]
        p = logits.softmax(0).numpy()
        found = Exact(against=("start",), k=(2,))(run.ctx)
    assert found["mean"] == pytest.approx(p @ [0.0, 0.5, 1.0], abs=1e-6)
    assert found["pass@2"] == pytest.approx(1 - (1 - p[2]) ** 2, abs=1e-6)
    assert found["entropy"] == pytest.approx(-(p * np.log(p)).sum(), abs=1e-6) and found["modes"] == 1.0
    assert found["kl.start"] == pytest.approx((p * np.log(3 * p)).sum(), abs=1e-6)
    assert found["kl_from.start"] == pytest.approx(-(np.log(3 * p)).mean(), abs=1e-6)


def test_what_is_within_reach_of_either_role_by_hand() -> None:
    """Probabilities of right answers, floor 0.1: of the two within start's reach one stays, and one of two is new."""
    rows = Rows(
        made_for=None,  # type: ignore[arg-type]
        batch=None,  # type: ignore[arg-type]
        problem=np.array([0, 0, 0, 0, 1]),
        score=np.array([1.0, 1.0, 1.0, 0.0, 1.0]),
        label=np.array([""] * 5),
        complete=False,
        groups={},
        long=np.zeros(5, np.bool_),
    )
    chances = {"policy": np.array([0.5, 0.3, 0.0, 0.2, 0.05]), "start": np.array([0.4, 0.05, 0.2, 0.3, 0.3])}
    found = dict(Exact(against=("start",), floor=0.1)._numbers(rows, chances))
    assert found["reach"].tolist() == [2, 0]
    assert found["kept.start"].tolist() == [0.5, 0.0]
    assert found["new.start"][0] == 0.5 and np.isnan(found["new.start"][1])
    assert "reach" not in dict(Exact(against=("start",))._numbers(rows, chances))
    with pytest.raises(ValueError, match="floor is 1"):
        Exact(floor=1.5)


def test_metrics_of_a_recipe_are_reported_and_change_no_bit_of_the_run() -> None:
    def trained(text: str) -> tuple[list[dict[str, Any]], torch.Tensor]:
        with open_run(made(text)) as run:
            from shuhari.loop.run import loop

            reports = list(loop(run))
            return reports, run.ctx.models["policy"].module.logits.detach().clone()  # type: ignore[operator]

    with_metrics, moved = trained(BANDIT)
    without, same = trained(BANDIT.replace("evaluate =", "# evaluate ="))
    assert torch.equal(moved, same) and not any("evaluate" in name for name in without[-1])
    assert with_metrics[-1]["spent/evaluate/scored"] == 4 * 2 * 12  # at the start and after each of three steps
    last = with_metrics[-1]
    assert last["evaluate/weights.changed"] == 1.0 and last["evaluate/exact.kl.start"] > 0
    mine = {k: v for k, v in last.items() if "evaluate" not in k and k != "seconds"}
    assert mine == {k: v for k, v in without[-1].items() if k != "seconds"}


def test_a_role_that_a_metric_asks_and_nobody_plays_is_missed_before_the_first_step() -> None:
    with pytest.raises(RecipeError, match=r"evaluate\.metrics\.exact: role 'strat'.*did you mean 'start'"):
        open_run(made(BANDIT.replace('against = ["start"]', 'against = ["strat"]')))


@pytest.mark.parametrize(("settings", "told"), [({"n": -1}, "n is -1: expected"), ({"k": (0, 2)}, r"k is \(0, 2\)")])
def test_settings_that_mean_nothing_are_refused(settings: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        Exact(**settings)


def test_lists_must_be_as_long_as_their_scores() -> None:
    with pytest.raises(ValueError, match="2 answers, 1 scores and 0 labels"):
        Answers(("a", "b"), (1.0,))
    assert ability(Words(only="a"), "answers")(Problem("words", "b", "b")) is None


def test_a_divergence_without_end_is_infinite_and_what_a_problem_lacks_is_left_out(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`other` never says the first word; the policy has no right answer to the last problem, so no modes of it."""
    score, metric = run.ctx.score, Exact(against=("other",), by="level")
    whole = metric(run.ctx)

    def silent(batch: Any, needs: list[Any]) -> Any:
        out = score(batch, needs)
        logs = out[needs[0]].clone()
        logs[slice(1) if needs[0].roles == ("other",) else slice(2 * len(WORDS), None)] = -torch.inf
        return out.put({needs[0]: logs})

    monkeypatch.setattr(run.ctx, "score", silent)
    found = metric(run.ctx)
    assert found["kl.other"] == found["kl.other@1"] == math.inf and math.isfinite(found["kl.other@2"])
    assert math.isnan(found["modes@2"])
    assert found["modes"] == found["modes@1"] == pytest.approx(whole["modes@1"])


def test_rows_of_an_equal_length_are_kept(run: Run) -> None:
    metric = Exact()
    rows = metric._list_answers(run.ctx, (run.ctx.task, run.ctx.models["policy"], int("1000")))
    task, model, _ = rows.made_for
    assert rows.serve(task, model, int("1000"))
    assert not rows.serve(task, model, 999) and not rows.serve(task, run.ctx.models["other"], 1000)
