"""Held-out scores by hand: what is ungraded counts nowhere, and what is asked for is what is sampled, once."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

import shuhari
from grading import Graded, Judge, Samples, context
from shuhari.config.evaluation import Evaluation, Further
from shuhari.data import Problem, Ramp, Request, Sampling, Status
from shuhari.loop.collect import collect_groups
from shuhari.loop.evaluation import LastScores, basis, evaluate, score_recorded, watch
from shuhari.loop.evaluation import score_models as scores_of
from shuhari.loop.kept import count_problems
from shuhari.loop.outcomes import Outcomes, name_measure
from shuhari.tasks.source import Listed


def scores(ctx: Any, **settings: Any) -> dict[str, float]:
    evaluation = Evaluation(**{"n": 4, **settings})
    return evaluate(ctx, evaluation, ctx.rollout).scores(evaluation)


def test_scores_by_hand() -> None:
    """4 problems, 4 samples: problem i is solved by i of them, greedily (sample 0) where i > 0."""
    ctx = context(lambda p, j: {"score": float(j < int(p.id))})
    found = scores(ctx, samples=4)
    assert found["greedy"] == 0.75 and found["length"] == 1.0
    assert [found["mean"], found["pass@1"]] == pytest.approx([(0 + 1 + 2 + 3) / 16] * 2)
    assert found["pass@2"] == pytest.approx((0 + 3 / 6 + 5 / 6 + 1) / 4)  # 1 - C(4 - c, 2) / C(4, 2)
    assert found["pass@4"] == 0.75
    assert set(found) == {"greedy", "length", "mean", "pass@1", "pass@2", "pass@4"}


def test_different_right_texts_are_counted_once_each() -> None:
    """Problem i has the samples "a", "b", "a", "c": right are the first i of them, and problem 3 is ungraded."""

    class Says(Samples):
        async def group(self, request: Any, ctx: Any) -> list[Any]:
            made = await super().group(request, ctx)
            for t, text in zip(made, "abac", strict=False):
                t.steps[0].info["text"] = text  # type: ignore[index]
            return made

    ctx = context(lambda p, j: None if p.id == "3" else {"score": float(j < int(p.id) + 1)}, Says())
    found = scores(ctx, samples=4)
    assert found["distinct"] == pytest.approx((1 + 2 + 2) / 3)
    assert "distinct" not in scores(ctx) and "distinct" not in scores(context(lambda p, j: {"score": 1.0}), samples=4)


def test_an_ungraded_sample_is_no_wrong_one() -> None:
    """Sample 3 of each problem is ungraded, and so are all of problem 0; the others solve with sample 0 of three."""
    ctx = context(lambda p, j: None if p.id == "0" or j == 3 else {"score": float(j == 0)})
    found = scores(ctx, samples=4)
    assert found["greedy"] == 1.0  # of three problems
    assert found["mean"] == pytest.approx(1 / 3) and found["pass@1"] == pytest.approx(1 / 3)
    assert found["pass@2"] == pytest.approx(1 - 1 / 3)  # 1 - C(2, 2) / C(3, 2)
    assert math.isnan(found["pass@4"])  # nothing has four graded samples
    assert found["ungraded"] == pytest.approx((1 + 4 + 3) / 20)


def test_episodes_that_end_in_an_error_are_ungraded() -> None:
    """Also where the environment had paid something before it broke."""
    failed = Samples(lambda p, j: Status.ERROR if p.id in ("1", "2") else Status.FINISHED, score=1.0)
    ctx = context(lambda p, j: None, failed)
    found = scores(ctx)
    assert found["greedy"] == 1.0 and found["ungraded"] == 0.5
    assert (found["ungraded.low"], found["ungraded.high"]) == (0.5, 1.0)
    assert evaluate(ctx, Evaluation(n=4), failed).greedy[[1, 2]].tolist() == pytest.approx([math.nan] * 2, nan_ok=True)


@pytest.mark.parametrize("broken", [RuntimeError("down"), None])
def test_where_nothing_can_be_graded_the_scores_are_nan(broken: Any) -> None:
    ctx = context(lambda p, j: broken, weights={"correct": 1.0})
    found = scores(ctx, samples=2)
    assert found["ungraded"] == 1.0
    assert all(math.isnan(found[name]) for name in ("greedy", "mean", "pass@1", "pass@2"))
    assert math.isnan(scores(ctx, measure="quality")["greedy"])


def test_a_measure_that_nothing_grades_is_told() -> None:
    ctx = context(lambda p, j: {"score": 1.0}, style=Judge(lambda i: {"style": 0.25}))
    assert scores(ctx, measure="style")["greedy"] == 0.25
    with pytest.raises(KeyError, match=r"\[evaluate\] measure names 'stile'.*did you mean 'style'"):
        scores(ctx, measure="stile")


def test_what_is_asked_for_is_what_is_sampled() -> None:
    ctx = context(lambda p, j: {"score": 1.0}, n=16)
    scores(ctx, n=1, samples=3)
    greedy, sampled = ctx.rollout.seen
    assert (greedy.n, greedy.sampling) == (1, Sampling(temperature=0.7, greedy=True))
    assert (sampled.n, sampled.sampling) == (3, Sampling(temperature=0.7))
    ctx.rollout.seen.clear()
    scores(ctx, n=1, samples=3, sampling=Sampling())  # the defaults, said aloud
    greedy, sampled = ctx.rollout.seen
    assert (greedy.n, greedy.sampling) == (1, Sampling(greedy=True))
    assert (sampled.n, sampled.sampling) == (3, Sampling())


def test_every_evaluation_asks_under_the_same_keys_and_moves_nothing() -> None:
    ctx = context(lambda p, j: {"score": 1.0})
    ctx.next_row, ctx.next_ticket, ctx.within = 5, 7, ("main", 1)
    rollout = Samples()
    for _ in range(2):
        evaluate(ctx, Evaluation(n=2), rollout)
    keys = [r.key for r in rollout.seen]
    assert keys[:2] == keys[2:] and len(set(keys)) == 2
    assert (ctx.next_row, ctx.next_ticket, ctx.within) == (5, 7, ("main", 1))
    assert ctx.rollout is not rollout and not ctx.groups
    assert set(ctx.ledger) == {"evaluate/decisions"}


def test_what_cannot_be_measured_is_refused() -> None:
    with pytest.raises(ValueError, match="pass@8 of 4 samples"):
        scores(context(lambda p, j: {"score": 1.0}), samples=4, k=(1, 8))
    with pytest.raises(ValueError, match="n is 0, which plays nothing"):
        scores(context(lambda p, j: {"score": 1.0}), n=0)
    with pytest.raises(ValueError, match="no problems in split 'test'"):
        scores(context(lambda p, j: {"score": 1.0}, problems=0))


def test_problems_behind_the_first_few() -> None:
    """Problem i is solved greedily where i > 1: of problems 1 to 3, two; behind the last there is nothing."""
    ctx = context(lambda p, j: {"score": float(int(p.id) > 1)})
    assert evaluate(ctx, Evaluation(n=8), ctx.rollout, 1).scores(Evaluation())["greedy"] == pytest.approx(2 / 3)
    assert watch(ctx, Evaluation(n=2, watch=1), ctx.rollout)["greedy"] == 1.0  # problem 2 alone
    with pytest.raises(ValueError, match=r"behind the first 4, and \[evaluate\] watch asks for some"):
        watch(ctx, Evaluation(n=4, watch=1), ctx.rollout)


def test_of_several_tasks_each_has_its_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Problems 0 and 2 are even, 1 and 3 odd; problem i is solved by i of 4 samples, and 2 cannot be graded at all."""
    ctx = context(lambda p, j: None if p.id == "2" else {"score": float(j < int(p.id))})
    kinds = [Problem("odd" if i % 2 else "even", str(i), float(i)) for i in range(4)]
    monkeypatch.setattr(ctx.task, "problems", lambda split: Listed(kinds))
    found = scores(ctx, samples=4)
    assert found["greedy"] == pytest.approx(2 / 3) and found["mean"] == pytest.approx((0 + 1 / 4 + 3 / 4) / 3)
    assert found["greedy@even"] == found["mean@even"] == found["pass@4@even"] == 0.0
    assert found["greedy@odd"] == found["pass@4@odd"] == 1.0 and found["mean@odd"] == 0.5
    assert found["length@even"] == found["length@odd"] == found["length"] == 1.0
    assert found["ungraded"] == 0.25 and found["ungraded@even"] == 0.5 and "ungraded@odd" not in found
    parts = evaluate(ctx, Evaluation(n=4), ctx.rollout).parts()
    assert {task: part.ids for task, part in parts.items()} == {"even": ["0", "2"], "odd": ["1", "3"]}


def test_the_same_weights_are_measured_once() -> None:
    ctx = context(lambda p, j: {"score": 1.0})
    held, rollout = LastScores(), ctx.rollout

    def asked(evaluation: Evaluation, rollout: Any = rollout, *, again: bool = False) -> int:
        before = len(rollout.seen)
        assert held.measure(ctx, evaluation, rollout, {}, again=again)["greedy"] == 1.0
        return len(rollout.seen) - before

    two = Evaluation(every=5, n=2)
    assert asked(two) == 2
    assert asked(two) == asked(Evaluation(every=0, n=2)) == 0  # how often does not matter
    assert asked(two, again=True) == 2
    assert asked(Evaluation(n=3)) == 3
    assert asked(Evaluation(n=3), Samples()) == 3
    ctx.step = 1
    assert asked(Evaluation(n=3)) == 3
    ctx.weights = {"score": 2.0}
    assert asked(Evaluation(n=3)) == 3
    ctx.sampling = Sampling(epsilon=Ramp(1.0, 0.0, 10))  # another schedule may stand elsewhere
    assert basis(ctx, two, rollout) == ()
    assert asked(two) == asked(two) == 2


def test_of_several_graded_names_each_is_reported() -> None:
    """Problem i scores with i of 4 samples; style is half the sample's number, and sample 0 is the greedy one."""
    ctx = context(lambda p, j: {"score": float(j < int(p.id)), "style": j / 2})
    found = scores(ctx, samples=4)
    assert found["greedy.score"] == found["greedy"] == 0.75 and found["greedy.style"] == 0.0
    assert found["mean.score"] == found["mean"] and found["mean.style"] == pytest.approx((0 + 1 + 2 + 3) / 8)
    assert "mean.style" not in scores(ctx) and scores(ctx, measure="style")["greedy"] == 0.0
    assert not any("." in name for name in scores(context(lambda p, j: {"score": 1.0}), samples=4))


def test_tails_are_of_all_episodes_together() -> None:
    """16 samples, the return of sample j of problem i is 4 i + j: the lowest tenth is 0, and 0.6 of 1."""
    ctx = context(lambda p, j: {"task": float(4 * int(p.id) + j), "cost": 1.0}, weights={"task": 1.0})
    found = scores(ctx, samples=4, tail=(0.1, 0.5))
    assert found["quantile@0.1"] == 1.0 and found["cvar@0.1"] == pytest.approx(0.6 / 1.6)
    assert found["quantile@0.5"] == 7.0 and found["cvar@0.5"] == pytest.approx(3.5)
    assert found["quantile@0.1.cost"] == found["cvar@0.5.cost"] == 1.0
    assert scores(ctx, tail=(0.5,))["cvar@0.5"] == 2.0  # greedy: 0 4 8 12
    with pytest.raises(ValueError, match=r"tail is \(1\.0,\): entry 0: expected a number in \(0, 1\)"):
        Evaluation(tail=(1.0,))


class Voted(Samples):
    """Asks three times for each answer that it gives."""

    accepts: ClassVar[dict[str, Any]] = {"asks": 3}

    async def group(self, request: Any, ctx: Any) -> list[Any]:
        ctx.charge("tokens", request.settings.get("asks", 3) * request.n)
        return await super().group(request, ctx)


def test_further_ways_to_play_see_the_same_problems_under_the_same_noise() -> None:
    ctx, own, voted = context(lambda p, j: {"score": float(j < int(p.id))}), Voted(), Voted()
    ways = {"vote": Further(rollout=voted, settings={"asks": 5}), "few": Further(n=2, samples=2)}
    found = scores_of(ctx, Evaluation(n=4, samples=4, k=(4,), settings={"asks": 1}, more=ways), own)
    assert found["vote.mean"] == found["mean"] == 6 / 16 and found["vote.pass@4"] == found["pass@4"]
    assert (found["tokens"], found["vote.tokens"], found["few.tokens"]) == (1.0, 5.0, 1.0)
    assert found["few.mean"] == 0.25 and "few.pass@4" not in found  # problems 0 and 1, two samples each
    assert [r.key for r in voted.seen] == [r.key for r in own.seen[:8]]
    plain = scores_of(ctx, Evaluation(n=4, samples=4, k=(4,), settings={"asks": 1}), own)
    assert plain == {name: x for name, x in found.items() if "." not in name and name != "tokens"}


def test_fresh_noise_is_another_at_each_step() -> None:
    ctx = context(lambda p, j: {"score": 1.0})
    keys = []
    for ctx.step in (0, 0, 7):
        ctx.rollout.seen.clear()
        evaluate(ctx, Evaluation(n=2, samples=2, fresh=True), ctx.rollout)
        keys.append([r.key for r in ctx.rollout.seen])
    assert keys[0] == keys[1] and set(keys[0]).isdisjoint(keys[2])


def test_what_is_tested_may_be_another_task_than_what_is_trained() -> None:
    """The run's own context keeps its task: what is in flight is graded by it."""
    ctx, other = context(lambda p, j: {"score": 1.0}), Graded(lambda p, j: {"score": 0.25}, 2)
    found = evaluate(ctx, Evaluation(n=8, task=other), ctx.rollout)
    assert found.greedy.tolist() == [0.25, 0.25]
    asked: list[Any] = []

    class Slow(Samples):
        async def group(self, request: Any, fork: Any) -> list[Any]:
            asked.append((fork.task, ctx.task))
            return await super().group(request, fork)

    evaluate(ctx, Evaluation(n=1, task=other), Slow())
    assert asked == [(other, ctx.task)] and ctx.task is not other


def test_a_test_on_another_task_leaves_the_training_s_names_alone_and_is_read_by_its_own() -> None:
    """Training is graded `format`, the test `score` or, by its environments, `task`."""
    ctx = context(lambda p, j: {"format": 1.0}, weights={"format": 1.0})
    ctx.wait(collect_groups([Request(Problem("told", "0", 0.0), 2)], ctx))
    before = count_problems(ctx, None)
    other = Evaluation(n=4, task=Graded(lambda p, j: {"score": 0.25}))
    for evaluation in (other, Evaluation(n=4, task=Graded(lambda p, j: {"task": 0.25}))):
        ctx.tested_names.clear()
        assert evaluate(ctx, evaluation, ctx.rollout).scores(evaluation)["greedy"] == 0.25
        assert count_problems(ctx, None) == before == [("told", "0", 2, 2)]
        assert set(ctx.reward_names) == {"format"}
    silent = Evaluation(n=4, task=Graded(lambda p, j: None), measure="task")  # what was graded once may fail later
    assert math.isnan(evaluate(ctx, silent, ctx.rollout).scores(silent)["greedy"])


def test_two_problems_with_one_id_are_named_before_anything_is_played(monkeypatch: pytest.MonkeyPatch) -> None:
    ctx = context(lambda p, j: {"score": 1.0})
    listed = [Problem("told", name, 0.0) for name in "abb"] + [Problem("other", "a", 0.0)]
    monkeypatch.setattr(ctx.task, "problems", lambda split: Listed(listed))
    with pytest.raises(ValueError, match="problems 1 and 2 of the split 'test' both have the id 'b'"):
        scores(ctx)
    assert not ctx.rollout.seen
    del listed[1]
    assert scores(ctx)["greedy"] == 1.0  # of two tasks an id may be the same


def test_a_score_may_have_a_slash_in_its_name() -> None:
    """Of metrics and of rewards; what learners say of recorded problems comes and goes with the learners."""
    ctx = context(lambda p, j: {"score": 1.0, "style/short": 0.5})
    evaluation = Evaluation(n=2, metrics={"m": lambda ctx: {"kl/policy": 1.0, "plain": 2.0}})
    held, learner = LastScores(), SimpleNamespace(held_out=lambda split, n, ctx: {"policy/loss/nll": 3.0})
    first = held.measure(ctx, evaluation, ctx.rollout, {"main": learner}, again=True)
    assert first["policy/loss/nll"] == 3.0
    second = held.measure(ctx, evaluation, ctx.rollout, {}, again=False)
    assert second["m.kl/policy"] == 1.0 and second["m.plain"] == 2.0 and second["greedy.style/short"] == 0.5
    assert first == {**second, "policy/loss/nll": 3.0} and "policy/loss/nll" not in second


@dataclass
class Counted:
    """Draws, spends, probes, and says what it was given."""

    seen: list[Any] = field(default_factory=list)

    def __call__(self, ctx: Any) -> dict[str, float]:
        ctx.charge("scored", 3)
        asked = ctx.wait(ctx.probe([Request(ctx.task.problems("test")[0], 2, Sampling())], tag="metric"))
        self.seen.append(ctx.task)
        return {"drawn": float(torch.rand(1, generator=ctx.rng("x"))), "rows": float(len(asked))}


def test_metrics_are_asked_also_where_nothing_is_played() -> None:
    ctx, other = context(lambda p, j: {"score": 1.0}), Graded(lambda p, j: {"score": 0.0})
    ctx.next_row, ctx.next_ticket = 5, 7
    one, two = Counted(), Counted()
    found = scores_of(ctx, Evaluation(n=0, metrics={"a": one, "b": two}, task=other), ctx.rollout)
    assert set(found) == {"a.drawn", "a.rows", "b.drawn", "b.rows"} and found["a.rows"] == 2.0
    assert found["a.drawn"] != found["b.drawn"]  # each has streams of its own
    assert one.seen == [other] and (ctx.next_row, ctx.next_ticket, ctx.within) == (5, 7, ())
    assert ctx.ledger == {"evaluate/scored": 6, "evaluate/metric/decisions": 4}


@pytest.mark.parametrize(
    ("metric", "told"),
    [
        (lambda ctx: 3.0, r"gave 3\.0: expected a mapping"),
        (lambda ctx: {"first": "much"}, "gave 'first' as 'much': expected a number"),
        (lambda ctx: {"first": 1 / 0}, "raised ZeroDivisionError: division by zero"),
    ],
)
def test_a_metric_that_gives_no_numbers_is_named(metric: Any, told: str) -> None:
    ctx = context(lambda p, j: {"score": 1.0})
    with pytest.raises(ValueError, match=rf"\[evaluate\.metrics\.sure\] function {told}"):
        scores_of(ctx, Evaluation(n=0, metrics={"sure": metric}), ctx.rollout)


@pytest.mark.parametrize("name", ["a.b", "a/b", "a@b", "", "mean"])
def test_names_that_reports_need_are_refused(name: str) -> None:
    for section in ("more", "metrics"):
        with pytest.raises(ValueError, match="expected a name of its own"):
            Evaluation(**{section: {name: None}})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="more and metrics both have an entry 'x'"):
        Evaluation(more={"x": Further()}, metrics={"x": Counted()})


def test_learners_of_recorded_problems_say_what_held_out_ones_cost(tmp_path: Path) -> None:
    """The loss of demonstrations is the mean negative log-probability of held-out answers, as transformers has it."""
    file = tmp_path / "sums.jsonl"
    rows = [{"prompt": f"{i}+1=", "answer": str(i + 1), "split": "test" if i % 3 == 0 else "train"} for i in range(9)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    tiny = {"models.policy.hidden": 16, "models.policy.layers": 1, "models.policy.heads": 2, "buffer.size": 4}
    tiny["buffer.imitate"] = "answer"
    own = {"task": {"name": f"file/{file}"}, "steps": 1, "evaluate": {"every": 1}, "micro_batch": 16}
    run = shuhari.train("baselines/sft_arithmetic", tmp_path / "run", **{**tiny, **own})
    model = run.policy.model
    total, count = 0.0, 0
    for row in rows[::3]:
        prompt, said = model.encode(row["prompt"]), [*model.encode(row["answer"]), model.end]
        ids = torch.tensor([[*prompt.tolist(), *map(int, said)]])
        logits = model.module.lm(input_ids=ids).logits[0].float()
        logits[:, model.module.suppressed] = -torch.inf
        logs = logits.log_softmax(-1).detach()
        total -= sum(float(logs[len(prompt) - 1 + j, t]) for j, t in enumerate(map(int, said)))
        count += len(said)
    assert run.summary["after"]["policy/loss/nll"] == pytest.approx(total / count, rel=1e-4)
    assert run.reports[-1]["evaluate/policy/loss/nll"] == run.summary["after"]["policy/loss/nll"]


def test_held_out_problems_that_show_nothing_are_told_and_stop_nothing() -> None:
    class Empty:
        def held_out(self, split: str, n: int, ctx: Any) -> dict[str, float]:
            raise ValueError("problem '0' has no solution")

    ctx = context(lambda p, j: {"score": 1.0})
    assert score_recorded(ctx, Evaluation(), {"main": Empty()}) == {}
    assert ctx.problems == ["unmeasured: ValueError: problem '0' has no solution"]
    assert ctx.within == ()


@pytest.mark.parametrize(
    ("greedy", "bounds"),
    [([1.0] + [math.nan] * 9, (0.1, 1.0)), ([0.5, 0.0, math.nan, 1.0], (0.375, 0.625))],
)
def test_a_mean_without_what_is_ungraded_has_bounds_beside_it(greedy: list[float], bounds: tuple[float, float]) -> None:
    """Nine bombs and one right answer are a mean of 1.0, which says nothing of the bombs. Where nothing is graded, 0
    and 1 would say nothing."""
    ids = [str(i) for i in range(len(greedy))]
    found = Outcomes(ids, np.array(greedy), None, {}).scores(Evaluation())
    assert (found["ungraded.low"], found["ungraded.high"]) == pytest.approx(bounds)
    returns = Outcomes(ids, np.array(greedy) * 7, None, {}).scores(Evaluation())  # of no measure in [0, 1]
    assert "ungraded.low" not in returns
    none = Outcomes(ids, np.full(len(ids), math.nan), None, {}).scores(Evaluation())
    assert none["ungraded"] == 1.0 and "ungraded.low" not in none


def test_returns_are_not_solved_and_have_no_pass_at_k_unless_it_is_asked_for() -> None:
    found = Outcomes(["a"], np.array([0.0]), np.array([[0.5, 10.0, math.nan]]))
    assert "pass@1" not in found.scores(Evaluation(n=1, samples=3))
    for asked in ({"solved": 10.0}, {"k": (1,)}):
        assert found.scores(Evaluation(n=1, samples=3, **asked))["pass@1"] == 0.5
    shares = Outcomes(["a"], np.array([0.0]), np.array([[0.5, 1.0, math.nan]]))
    assert shares.scores(Evaluation(n=1, samples=3))["pass@1"] == 0.5


def test_no_samples_is_greedy_alone() -> None:
    ctx = context(lambda p, j: {"score": float(j == 0)})
    assert scores(ctx, samples=0) == scores(ctx, samples=1) and "mean" not in scores(ctx, samples=0)


@pytest.mark.parametrize(
    ("measure", "graded", "weights", "read"),
    [
        ("", "score style", {}, "score"),
        ("", "score style", {"score": 1.0, "style": 1.0}, "score"),
        ("", "score style", {"task": 1.0}, "score"),  # either of the task's own
        ("", "score style", {"style": 1.0}, "style"),
        ("", "score style", {"style": 1.0, "score": 0.0}, "style"),
        ("", "score style", {"style": 2.0}, "reward"),
        ("", "score style", {"style": Ramp(0.0, 1.0, 5)}, "reward"),
        ("", "score style", {"style": 1.0, "score": Ramp(0.0, 1.0, 5)}, "score"),
        ("", "score style form", {"style": 0.5, "form": 0.5}, "reward"),
        ("score", "score style", {"style": 1.0}, "score"),
        ("", "style", {"style": 1.0}, "style"),
    ],
)
def test_what_is_read_is_what_is_trained(measure: str, graded: str, weights: dict[str, Any], read: str) -> None:
    assert name_measure(measure, graded.split(), weights) == read


def test_the_trained_reward_is_read_and_the_score_stands_beside_it_with_all_its_numbers() -> None:
    """Problem i scores with i of 4 samples, of which the style is 0, 0, 1, 1; sample 0 is the greedy one."""
    ctx = context(
        lambda p, j: {"score": float(j < int(p.id))},
        weights={"style": 1.0},
        style=Judge(lambda j: {"style": float(j >= 2)}),
    )
    evaluation = Evaluation(n=4, samples=4)
    outcomes = evaluate(ctx, evaluation, ctx.rollout)
    found = outcomes.scores(evaluation)
    assert outcomes.measure == "style" and found["greedy"] == found["greedy.style"] == 0.0
    assert (found["mean"], found["pass@1"], found["pass@4"]) == (0.5, 0.5, 1.0)
    assert found["pass@2"] == pytest.approx(5 / 6)  # 1 - C(2, 2) / C(4, 2)
    plain = scores(context(lambda p, j: {"score": float(j < int(p.id))}), samples=4)
    own = {name: found[f"{name}.score"] for name in ("greedy", "mean", "pass@1", "pass@2", "pass@4")}
    assert own == {name: plain[name] for name in own}
    assert scores(ctx, samples=4, measure="score")["pass@2"] == plain["pass@2"]
    assert count_problems(ctx, None) == []  # of no group that was collected
    halves = context(
        lambda p, j: {"score": 0.0},
        weights={"style": 0.5, "form": 0.25},
        style=Judge(lambda j: {"style": 1.0}),
        form=Judge(lambda j: {"form": 2.0}),
    )
    assert scores(halves)["greedy"] == 1.0 and scores(halves)["greedy.form"] == 2.0, "the weighted sum"


def test_a_trained_reward_that_grades_nothing_held_out_leaves_the_score_and_says_so() -> None:
    ctx = context(lambda p, j: {"score": 0.25}, weights={"style": 1.0}, style=Judge(lambda j: None))
    evaluation = Evaluation(n=4, samples=2)
    found = evaluate(ctx, evaluation, ctx.rollout)
    assert found.measure == "score" and found.scores(evaluation)["mean"] == 0.25
    assert ctx.problems == ["[evaluate] the reward 'style' grades no held-out answer: 'score' is read in its place"]
    asked = Evaluation(n=4, measure="style")
    assert math.isnan(evaluate(ctx, asked, ctx.rollout).scores(asked)["greedy"]), "what is asked for is what is read"


@pytest.mark.parametrize(
    ("margin", "accuracy", "told"), [(0.0, 0.0, 0.5), (-0.1, 0.0, 0.0), (0.0, 0.25, 0.25), (None, 0.0, 0.0)]
)
def test_pairs_that_tie_are_half_right(margin: float | None, accuracy: float, told: float) -> None:
    class Says:
        def held_out(self, split: str, n: int, ctx: Any) -> dict[str, float]:
            return {"policy/accuracy": accuracy, **({} if margin is None else {"policy/margin": margin})}

    found = score_recorded(context(lambda p, j: None), Evaluation(), {"main": Says()})
    assert found["policy/accuracy"] == told
