"""Aiming at a success rate: the three picks, the report, MoPPS's posterior by hand and against exact counting."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

from shuhari import testing
from shuhari.batch import Batch
from shuhari.buffers.fresh import Fresh
from shuhari.curricula.beta import Beta
from shuhari.curricula.sequential import Sequential
from shuhari.curricula.target import Target, count_successes, draw_weighted, name_of, spearman
from shuhari.data import Problem, Request, Status, code
from shuhari.events import Collected
from shuhari.learners.parts import Term
from shuhari.objectives.clip import Clip
from shuhari.ports import Curriculum, Predictor
from shuhari.tasks.source import Generated
from shuhari.testing import context
from shuhari.transforms.advantage import Advantage
from sketches import harness
from sketches.toys import Echo

predictor: Predictor = Beta()
curriculum: Curriculum = Target(predictor, Sequential())


@dataclass
class Said:
    """Predicts what it is told: problem id -> rate."""

    rates: dict[str, float]
    calls: list[list[str]] = field(default_factory=list)

    async def predict(self, problems: Any, ctx: Any) -> Any:
        self.calls.append([p.id for p in problems])
        p = torch.tensor([self.rates[q.id] for q in problems])
        return p, p / 2


@dataclass
class Given:
    """Asks for the given problems in turn."""

    ids: list[str]
    at: int = 0

    async def select(self, n: int, ctx: Any) -> list[Request]:
        asked = [Request(problem(i), info={"of": 7.0}) for i in self.ids[self.at : self.at + n]]
        self.at += n
        return asked


def problem(name: str) -> Problem:
    return Problem("t", name, name)


def ctx(seed: int = 0, **more: Any) -> Any:
    return context(seed, step=seed, **more)


def chosen(target: Target, n: int, seed: int = 0) -> list[str]:
    return [r.problem.id for r in asyncio.run(target.select(n, ctx(seed)))]


def collected(samples: dict[str, list[float]], **columns: list[float]) -> Batch:
    """A batch of single decisions: problem -> outcomes of its samples."""
    names = [name for name, outcomes in samples.items() for _ in outcomes]
    outcome = torch.tensor([x for outcomes in samples.values() for x in outcomes])
    whole = {
        "mask": torch.ones(len(names), 1, dtype=torch.bool),
        "logp": torch.zeros(len(names), 1),
        "problem": torch.tensor([code("t", name) for name in names]),
        "group": torch.tensor([code(name) for name in names]),
        "episode": torch.arange(len(names)),
        "reward": outcome[:, None],
    }
    return Batch(whole | {k: torch.tensor(v) for k, v in columns.items()}, stream="rl")


# ---------------------------------------------------------------- picking


def test_the_nearest_are_kept_in_the_order_in_which_they_came() -> None:
    rates = {"a": 0.9, "b": 0.45, "c": 0.0, "d": 0.52, "e": 0.3, "f": 1.0}
    target = Target(Said(rates), Given(list("abcdef")), of=3)
    requests = asyncio.run(target.select(2, ctx()))
    assert [r.problem.id for r in requests] == ["b", "d"]
    assert [r.info for r in requests] == [{"of": 7.0, "predicted": pytest.approx(p)} for p in (0.225, 0.26)]
    assert chosen(Target(Said(rates), Given(list("abcdef")), of=2, target=0.95), 3) == ["a", "d", "f"]


def test_equal_rates_are_kept_as_they_came() -> None:
    assert chosen(Target(Said(dict.fromkeys("abcd", 0.2)), Given(list("abcd")), of=2), 2) == ["a", "b"]


def test_the_threshold_keeps_any_within_and_then_the_nearest_to_it() -> None:
    rates = {"a": 0.3, "b": 0.5, "c": 0.7, "d": 0.29, "e": 0.9}
    target, p = Target(Said(rates), Given([]), pick="threshold"), torch.tensor(list(rates.values()))
    seen = Counter(frozenset(target.nearest_to_target(p, 2, ctx(s)).tolist()) for s in range(300))
    assert set(seen) == {frozenset(x) for x in ((0, 1), (0, 2), (1, 2))}
    assert all(abs(k - 100) < 40 for k in seen.values())
    few = Target(Said(rates | {"b": 0.1, "c": 0.75}), Given(list("abcde")), of=2, pick="threshold")
    assert chosen(few, 3) == ["a", "c", "d"]


def test_sampling_is_proportional_to_the_distance_in_tau() -> None:
    """The oracle of DOTS: p = (.5, .4, .9) at tau = .1 are drawn with (.7214, .2654, .0132)."""
    target, rates = Target(Beta(), Sequential(), pick="sample", tau=0.1), torch.tensor([0.5, 0.4, 0.9])
    seen = Counter(int(target.nearest_to_target(rates, 1, ctx(s))) for s in range(4000))
    for i, p in enumerate((0.7214, 0.2654, 0.0132)):
        assert seen[i] / 4000 == pytest.approx(p, abs=4 * (p * (1 - p) / 4000) ** 0.5)


def test_draws_without_replacement_are_those_of_an_urn() -> None:
    """Against enumeration: the first goes out with its share, the second with its share of what is left."""
    w = torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64)
    seen = Counter(tuple(draw_weighted(w.log(), 2, ctx(s).rng("x")).tolist()) for s in range(4000))
    for (i, j), k in seen.items():
        p = float(w[i] * w[j] / (1 - w[i]))
        assert k / 4000 == pytest.approx(p, abs=4 * (p * (1 - p) / 4000) ** 0.5)
    assert len(seen) == 6


def test_a_candidate_that_came_twice_counts_once_unless_there_are_too_few() -> None:
    rates = {"a": 0.5, "b": 0.1, "c": 0.9}
    assert chosen(Target(Said(rates), Given(list("abab")), of=2), 2) == ["a", "b"]
    assert chosen(Target(Said(rates), Given(list("aaaab")), of=1), 4) == list("aaaa")


def test_steps_that_are_picked_for_at_once_share_a_prediction_and_no_problem() -> None:
    said = Said({name: 0.5 + i / 100 for i, name in enumerate("abcdefgh")})
    target = Target(said, Given(list("hgfedcba") * 2), of=2, ahead=2)
    first, second, third = (chosen(target, 2) for _ in range(3))
    assert first == ["d", "c"] and second == ["b", "a"] and len(said.calls) == 2 and third == first


def test_settings_that_make_no_sense_are_refused() -> None:
    for wrong, told in (
        ({"pick": "topq"}, "did you mean 'topk'"),
        ({"of": 0}, "of is 0"),
        ({"ahead": 0}, "ahead is 0"),
        ({"low": 0.8, "high": 0.2}, "low, high are 0.8, 0.2"),
    ):
        with pytest.raises(ValueError, match=told):
            Target(Beta(), Sequential(), **wrong)
    for bad, told in (({"keep": 1.5}, "keep is 1.5"), ({"prior": (0.0, 1.0)}, "prior is"), ({"trials": -1}, "trials")):
        with pytest.raises(ValueError, match=told):
            Beta(**bad)


# ---------------------------------------------------------------- what is observed


def test_rank_correlation_agrees_with_scipy() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        x, y = rng.integers(0, 6, 15).astype(float), rng.normal(size=15)
        assert spearman(x, y) == pytest.approx(spearmanr(x, y).statistic)
    assert np.isnan(spearman(np.ones(4), np.arange(4.0)))


def test_success_is_the_mean_of_what_was_graded() -> None:
    batch = collected({"a": [1.0, 0.0, float("nan"), 1.0], "b": [0.5], "c": [float("nan")], "d": [1.0]})
    status = torch.full((7,), list(Status).index(Status.FINISHED))
    status[6] = list(Status).index(Status.ERROR)
    found = count_successes(batch.put({"status": status}))
    assert {k: tuple(s) for k, s in found.items()} == {name_of(problem("a")): (3, 2), name_of(problem("b")): (1, 0.5)}
    with pytest.raises(ValueError, match=r"an outcome of 'reward' is 1\.5"):
        count_successes(collected({"a": [1.5]}))
    assert count_successes(Batch({"mask": torch.zeros(0, 1, dtype=torch.bool), "logp": torch.zeros(0, 1)})) == {}


def test_the_report_compares_what_was_predicted_with_what_was_observed() -> None:
    target = Target(Beta(), Sequential())
    assert target.report() == {}
    target.observe(Collected(collected({"a": [1.0, 1.0], "b": [0.0, 1.0]}, predicted=[0.9, 0.9, 0.4, 0.4])))
    target.observe(Collected(collected({"c": [0.0, 0.0]}, predicted=[0.5, 0.5])))
    told = target.report()
    assert told["curriculum/predicted"] == pytest.approx(0.6) and told["curriculum/observed"] == pytest.approx(0.5)
    assert told["curriculum/spearman"] == pytest.approx(0.5)  # ranks 3 1 2 against 3 2 1
    target.observe(Collected(collected({"a": [1.0], "b": [0.0]}, predicted=[0.5, 0.5])))
    assert target.report() == {"curriculum/predicted": 0.5, "curriculum/observed": 0.5}  # no rank where all is alike
    target.observe(Collected(collected({"a": [1.0]})))  # of another curriculum
    assert target.report() == {}


# ---------------------------------------------------------------- the posterior


def posterior(beta: Beta, name: str) -> Any:
    return beta.state["posterior"][name_of(problem(name))]


def test_the_posterior_by_hand() -> None:
    beta = Beta(keep=0.5)
    beta.observe(Collected(collected({"a": [1.0] * 6 + [0.0] * 2, "b": [0.0] * 8})))
    assert posterior(beta, "a") == [7, 3] and posterior(beta, "b") == [1, 9]
    _, mean = asyncio.run(beta.predict([problem("a"), problem("unseen")], ctx()))
    assert mean.tolist() == pytest.approx([0.7, 0.5])
    beta.observe(Collected(collected({"a": [1.0] * 2 + [0.0] * 6})))
    assert posterior(beta, "a") == [6, 8] and posterior(beta, "b") == [1, 9]  # what was not visited does not decay
    assert float(asyncio.run(beta.predict([problem("a")], ctx()))[1]) == pytest.approx(0.4286, abs=5e-5)


def test_one_sample_a_problem_counts_as_one() -> None:
    """Released code sets both parameters to 8 there, by the precedence of its conditional expression."""
    beta = Beta()
    beta.observe(Collected(collected({"a": [1.0]})))
    assert posterior(beta, "a") == [2, 1]


def test_keeping_everything_is_conjugate_counting() -> None:
    rng, beta, n, s = np.random.default_rng(1), Beta(keep=1.0, prior=(2.0, 3.0)), 0, 0.0
    for size in rng.integers(1, 9, 12):
        outcomes = rng.integers(0, 2, size).astype(float).tolist()
        beta.observe(Collected(collected({"a": outcomes})))
        n, s = n + len(outcomes), s + sum(outcomes)
    assert posterior(beta, "a") == [2 + s, 3 + n - s]


def test_posterior_means_of_problems_that_stand_still_become_the_truth() -> None:
    rng, truth = np.random.default_rng(2), dict(zip("abcdef", (0.05, 0.2, 0.4, 0.6, 0.8, 1.0), strict=True))
    beta = Beta(keep=1.0)
    for _ in range(150):
        beta.observe(Collected(collected({k: (rng.random(8) < p).astype(float).tolist() for k, p in truth.items()})))
    _, mean = asyncio.run(beta.predict([problem(k) for k in truth], ctx()))
    assert mean.tolist() == pytest.approx(list(truth.values()), abs=0.06)  # 1200 samples: 4 sigma


def test_thompson_draws_are_those_of_the_posterior() -> None:
    beta = Beta()
    beta.observe(Collected(collected({"a": [1.0] * 6 + [0.0] * 2})))
    draws = torch.cat([asyncio.run(beta.predict([problem("a")] * 100, ctx(s)))[0] for s in range(30)])
    assert float(draws.mean()) == pytest.approx(0.7, abs=0.01)
    assert float(draws.var()) == pytest.approx(0.7 * 0.3 / 11, rel=0.12)
    again = [asyncio.run(beta.predict([problem("a")], ctx(3)))[0] for _ in range(2)]
    assert torch.equal(*again)


def test_problems_may_be_tried_at_first_sight() -> None:
    asked = []

    async def probe(requests: Any, tag: str) -> Batch:
        asked.append([(r.problem.id, r.n) for r in requests])
        return collected({r.problem.id: [1.0, 1.0, 0.0] for r in requests})

    beta = Beta(trials=3)
    asyncio.run(beta.predict([problem("a"), problem("b")], ctx(probe=probe)))
    asyncio.run(beta.predict([problem("b")], ctx(probe=probe)))
    assert asked == [[("a", 3), ("b", 3)]] and posterior(beta, "a") == [7, 4]  # three times two successes, and one


# ---------------------------------------------------------------- in a run


def run_of(curriculum: Any, steps: int = 3, seed: int = 0) -> Any:
    parts = {"policy": harness.part(clip=Term(Clip()))}
    return harness.make(
        harness.stage(
            parts, task=Echo("abcdefgh"), buffer=Fresh(4), steps=steps, curriculum=curriculum, n=8, max_new=1,
            collect={"advantage": Advantage()},
        ),
        seed=seed,
    )  # fmt: skip


def test_as_many_candidates_as_are_wanted_is_uniform_sampling() -> None:
    """Bit for bit the run of the curriculum that gives the candidates."""
    runs = [run_of(c) for c in (Sequential(seed=5), Target(Beta(), Sequential(seed=5), of=1))]
    reports = [list(harness.train(run)) for run in runs]
    assert torch.equal(*(harness.weights(run) for run in runs))
    assert "curriculum/observed" in reports[1][0] and "curriculum/observed" not in reports[0][0]


def test_a_run_learns_the_posterior_of_what_it_sampled() -> None:
    run = run_of(Target(Beta(keep=1.0), Sequential(), of=2), steps=4)
    reports = list(harness.train(run))
    known = run.stage.curriculum.predictor.state["posterior"]
    assert sum(a + b - 2 for a, b in known.values()) == 4 * 4 * 8
    assert sum(a - 1 for a, _ in known.values()) == pytest.approx(sum(r["reward/mean"] for r in reports) * 32)


def test_a_restored_run_goes_on_as_if_never_stopped() -> None:
    testing.check_resumed(lambda: run_of(Target(Beta(), Sequential(pool=6), of=2, ahead=2), steps=2))


def test_a_pool_is_the_first_problems_of_an_endless_source() -> None:
    source = Generated(lambda i: problem(str(i)))
    seen = context(task=SimpleNamespace(problems=lambda split: source))
    walked = [r.problem.id for r in asyncio.run(Sequential(pool=5, seed=2).select(15, seen))]
    assert sorted(walked) == sorted([str(i) for i in range(5)] * 3) and walked[:5] != walked[5:10]
    with pytest.raises(ValueError, match="pool is -1"):
        Sequential(pool=-1)
