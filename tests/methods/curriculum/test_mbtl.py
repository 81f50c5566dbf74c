"""MBTL: the acquisition by hand, the surrogate against its closed form, the choice of contexts.

Replays of rules that choose contexts: by hand, against the study on the same returns, and the stored file.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shuhari.config.build import make_component
from shuhari.config.overlay import RecipeError
from shuhari.config.recipe import load
from shuhari.methods.curriculum.mbtl import transfer
from shuhari.methods.curriculum.mbtl.mbtl import BETA, Mbtl, acquisition, fit_loss, fit_surrogate
from shuhari.methods.curriculum.mbtl.transfer import STORED, Transfer, read

V = np.array([0.6, 0.7, 0.8, 0.7, 0.6])


def contexts(n: int) -> dict[str, tuple[float, ...]]:
    return {"task.x": tuple(map(float, range(n)))}


class Landscape:
    """Runs whose returns are known: J[a, b] between 0 and 500 in the episodes that choose, `held` in the others."""

    def __init__(self, J: Any, seed: int = 0, held: Any = None) -> None:
        self.J, self.seed = np.asarray(J), seed
        self.held = self.J if held is None else np.asarray(held)
        self.trained: list[float] = []

    def train(self, name: str, settings: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        assert name == f"context-{settings['task.x']:g}"
        self.trained.append(settings["task.x"])
        yield {"child": name}

    def evaluate(self, name: str, settings: Mapping[str, Any]) -> dict[str, float]:
        a, b = int(name.removeprefix("context-")), int(settings["task.x"])
        returns = self.J if settings.get("evaluate.split") == "train" else self.held
        return {"greedy": 500 * float(returns[a, b])}


def rows(study: Mbtl, runs: Any) -> list[dict[str, float]]:
    return [r for r in study(runs) if "child" not in r]


def test_the_acquisition_worked_by_hand() -> None:
    flat = np.full(5, 0.8)
    np.testing.assert_allclose(acquisition(flat, np.zeros(5), V, 1.0, 0.1), [0.04, 0.04, 0, 0.04, 0.04], atol=1e-12)
    # deviation counts as much as beta says: 0.7 + 0.5 * 0.2 is 0.8 again
    np.testing.assert_allclose(
        acquisition(flat - 0.1, np.full(5, 0.2), V, 0.5, 0.1), [0.04, 0.04, 0, 0.04, 0.04], atol=1e-12
    )


def test_without_a_slope_it_is_the_improvement_of_the_upper_bound() -> None:
    mean, deviation = np.array([0.1, 0.5, 0.7, 0.9, 0.3]), np.array([0.4, 0.2, 0.0, 0.1, 0.3])
    bound = mean + 2 * deviation
    expected = [sum(max(u - v, 0) for v in V) / 5 for u in bound]
    np.testing.assert_allclose(acquisition(mean, deviation, V, 2.0, 0.0), expected)


def test_with_a_steep_slope_only_the_context_itself_improves() -> None:
    mean = np.array([0.9, 0.6, 0.9, 1.0, 0.7])
    expected = np.maximum(mean - V, 0) / 5
    np.testing.assert_allclose(acquisition(mean, np.zeros(5), V, 1.0, 1e3), expected)


def test_the_weights_of_the_deviation() -> None:
    assert [BETA["one"](k) for k in (1, 2, 3)] == [1, 1, 1]
    assert [BETA["inverse"](k) for k in (1, 3)] == [1 / 2, 1 / 4]
    assert [BETA["log"](k) ** 2 for k in (1, 2)] == pytest.approx([np.log(2), np.log(3)])


def test_the_slope_is_that_of_the_losses() -> None:
    at = np.arange(6)
    J = np.zeros((6, 6))
    for a, own in ((1, 0.9), (4, 0.7)):
        J[a] = own - 0.05 * np.abs(at - a)
    assert fit_loss(J, [1, 4]) == pytest.approx(0.05)
    J[2] = 0.5 + 0.1 * np.abs(at - 2)  # better elsewhere than at home
    assert fit_loss(J, [2]) == 0


def test_the_surrogate_is_the_posterior_of_its_kernel() -> None:
    """Against the closed form, with the constant and the length that the fit has chosen, and no better likelihood on a
    grid of others."""
    at, y, n, noise = [2, 7, 11], np.array([0.3, 0.9, 0.5]), 15, 0.1

    def kernel(c: float, length: float, x: Any, z: Any) -> Any:
        return c * np.exp(-((np.subtract.outer(x, z) / length) ** 2) / 2)

    def likelihood(c: float, length: float) -> float:
        K = kernel(c, length, at, at) + noise**2 * np.eye(3)
        return float(-y @ np.linalg.solve(K, y) / 2 - np.linalg.slogdet(K)[1] / 2)

    mean, deviation = fit_surrogate(at, y, n, noise, 9, 0)
    grid = [(c, length) for c in np.geomspace(1e-3, 1e3, 181) for length in np.geomspace(1e-2, 1e2, 181)]
    c, length = max(grid, key=lambda g: likelihood(*g))
    x = np.arange(n)
    K = kernel(c, length, at, at) + noise**2 * np.eye(3)
    k = kernel(c, length, x, at)
    np.testing.assert_allclose(mean, k @ np.linalg.solve(K, y), atol=0.02)
    np.testing.assert_allclose(deviation**2, c - np.einsum("na,ab,nb->n", k, np.linalg.inv(K), k), atol=0.02)


@pytest.mark.parametrize("pick", ["mbtl", "random", "equidistant"])
def test_coverage_never_falls_and_no_context_comes_twice(pick: Any) -> None:
    rng = np.random.default_rng(3)
    for seed in range(2):
        J = rng.uniform(size=(6, 6))
        study = Mbtl(contexts(6), trainings=6, pick=pick, restarts=2, high=500)
        found = rows(study, Landscape(J, seed))
        coverage = [r["study/coverage"] for r in found]
        assert coverage == sorted(coverage) and coverage[-1] == pytest.approx(J.max(0).mean())
        assert sorted(r["study/context"] for r in found) == list(range(6))


def test_a_policy_is_chosen_in_some_episodes_and_scored_in_others() -> None:
    """By hand: of 2 policies the first seems best in contexts 0 and 1, the second in 2."""
    J = [[0.0, 0.0, 0.0], [0.5, 0.9, 0.1], [0.4, 0.8, 0.7]]
    held = [[0.0, 0.0, 0.0], [0.3, 0.2, 0.9], [1.0, 1.0, 0.4]]
    study = Mbtl(contexts(3), trainings=2, pick="equidistant", high=500)
    assert [study.choose_next(np.zeros((3, 3)), [0] * k, 0) for k in range(2)] == [1, 2]
    found = rows(study, Landscape(J, held=held))
    assert found[0]["study/coverage"] == pytest.approx((0.3 + 0.2 + 0.9) / 3)
    assert found[1]["study/coverage"] == pytest.approx((0.3 + 0.2 + 0.4) / 3)
    assert [(r["study/trained"], r["study/context"], r["study/own"]) for r in found] == [(1, 1, 0.2), (2, 2, 0.4)]


def test_a_score_counts_from_low_to_high() -> None:
    """Returns of 100, 300 and 400 where 100 is the lowest and 500 the highest: 0, 1/2 and 3/4."""
    study = Mbtl(contexts(3), trainings=1, pick="equidistant", low=100, high=500)
    (found,) = rows(study, Landscape(np.tile([0.2, 0.6, 0.8], (3, 1))))
    assert found["study/coverage"] == pytest.approx((0 + 1 / 2 + 3 / 4) / 3)
    assert found["study/own"] == pytest.approx(1 / 2)


@pytest.mark.parametrize("pick", ["random", "independent"])
def test_the_best_of_equals_gains_nothing_by_luck(pick: Any) -> None:
    """All policies have a return of 0.5 everywhere, measured with noise: so has any choice among them, in the mean."""
    rng, n = np.random.default_rng(0), 15
    told = []
    for seed in range(20):
        J, held = rng.uniform(size=(2, n, n))
        told.append(rows(Mbtl(contexts(n), trainings=n, pick=pick, high=500), Landscape(J, seed, held)))
    final = np.mean([r[-1]["study/coverage"] for r in told])
    assert abs(final - 0.5) < 4 * (1 / 12 / (20 * n)) ** 0.5


def test_the_first_context_is_in_the_middle_and_the_next_where_most_is_to_win() -> None:
    """A run serves contexts up to 3 away and no others: after the middle, the next one is not beside it."""
    at = np.arange(15)
    J = np.where(np.abs(at[:, None] - at) <= 3, 0.9, 0.0)
    found = rows(Mbtl(contexts(15), trainings=3, slope=0.2, high=500), Landscape(J))
    picked = [int(r["study/context"]) for r in found]
    assert picked[0] == 7 and sorted(picked[1:])[0] <= 4 and sorted(picked[1:])[1] >= 10
    assert next(r["study/coverage"] for r in found) == pytest.approx(0.9 * 7 / 15)


def test_the_surrogate_sees_no_transferred_return(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two runs the second is the better one at home, and the first both elsewhere and in the context that the second
    lends its policy to: who looks at what a run or a context has at best goes on beside the first."""
    J = np.zeros((7, 7))
    J[1, [1, 3]] = 0.1, 1.0
    J[5, [1, 5]] = 0.7, 0.5
    seen = []

    def spied(at: Any, y: Any, *rest: Any) -> Any:
        seen.append(dict(zip(at, y.tolist(), strict=True)))
        return fit_surrogate(at, y, *rest)

    monkeypatch.setattr("shuhari.methods.curriculum.mbtl.mbtl.fit_surrogate", spied)
    study = Mbtl(contexts(7), trainings=3, high=500, slope=0.0, beta="inverse", restarts=0)
    assert study.choose_next(J, [1, 5], 0) in (4, 6) and seen == [{1: 0.1, 5: 0.5}]


@pytest.mark.parametrize("slope", [0.0, 0.07, "fitted"])
@pytest.mark.parametrize("beta", ["one", "inverse", "log"])
def test_the_next_context_is_the_best_by_enumeration(beta: Any, slope: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the surrogate says: here any numbers, that the weight, the slope and V all have a say."""
    n, rng = 8, np.random.default_rng(4)
    weight = {"one": lambda k: 1.0, "inverse": lambda k: 1 / (1 + k), "log": lambda k: np.log1p(k) ** 0.5}[beta]
    study = Mbtl(contexts(n), beta=beta, slope=slope, trainings=5, noise=0.3, restarts=4)
    for k in (1, 2, 4):
        for seed in range(20):
            J, done = np.zeros((n, n)), rng.permutation(n)[:k].tolist()
            J[done] = rng.uniform(0, 0.8, (k, n))
            J[done, done] += 0.2
            mean, deviation = rng.uniform(size=(2, n))
            told = []
            monkeypatch.setattr(
                "shuhari.methods.curriculum.mbtl.mbtl.fit_surrogate",
                lambda *of, told=told, say=(mean, deviation): told.append(of) or say,
            )
            c = slope
            if slope == "fitted":
                steps, losses = zip(*[(abs(a - b), J[a, a] - J[a, b]) for a in done for b in range(n)], strict=True)
                c = max(0.0, np.linalg.lstsq(np.array(steps, float)[:, None], np.array(losses), rcond=None)[0].item())
            promise = {
                a: sum(max(mean[a] + weight(k) * deviation[a] - c * abs(a - b) - max(J[:, b]), 0) for b in range(n))
                for a in range(n)
                if a not in done
            }
            assert study.choose_next(J, done, seed) == max(promise, key=lambda a: promise[a])
            (at, y, *rest, _) = told[0]
            assert (at, list(y), rest) == (done, [J[a, a] for a in done], [n, 0.3, 4])


def test_equal_parts() -> None:
    def picked(n: int, k: int) -> list[int]:
        study = Mbtl(contexts(n), trainings=k, pick="equidistant")
        return [study.choose_next(np.zeros((n, n)), list(range(i)), 0) for i in range(k)]

    assert picked(15, 4) == [2, 5, 9, 12]
    assert all(len(set(picked(n, k))) == k for n in range(1, 20) for k in range(1, n + 1))


def test_independent_runs_serve_their_own_context_alone() -> None:
    J = np.full((4, 4), 1.0) - np.diag([0.5, 0.6, 0.7, 0.8])
    runs = Landscape(J)
    found = rows(Mbtl(contexts(4), trainings=4, pick="independent", high=500), runs)
    assert runs.trained == [0, 1, 2, 3]
    assert [r["study/coverage"] for r in found] == pytest.approx([0.5 / 4, 0.9 / 4, 1.2 / 4, 1.4 / 4])


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"contexts": {"a": [1.0, 2.0], "b": [1.0]}}, "as many values"),
        ({"contexts": {}}, "as many values"),
        ({"contexts": {"a": [1.0, 2.0]}, "trainings": 3}, "expected 1 to 2"),
        ({"contexts": {"a": [1.0, 2.0]}, "trainings": 2, "high": 0.0}, "more than low"),
        ({"contexts": {"a": [1.0, 2.0]}, "trainings": 2, "pick": "greedy"}, "study.pick"),
    ],
)
def test_mistakes_are_named(settings: dict[str, Any], told: str) -> None:
    with pytest.raises(RecipeError, match=told):
        make_component("study", {"use": "mbtl", **settings})


HAND = [[0.9, 0.1, 0.1], [0.5, 0.8, 0.5], [0.0, 0.2, 0.7]]


def stored(folder: Path, choose: Any, held: Any = None, seeds: tuple[int, ...] = (7,)) -> str:
    path = folder / f"{len(list(folder.iterdir()))}.json"
    both = {"choose": np.array(choose), "held": np.array(choose if held is None else held)}
    path.write_text(json.dumps({"seeds": seeds, **{k: v.tolist() for k, v in both.items()}}))
    return str(path)


class Known:
    """Runs of a study whose returns are known: J in the episodes that choose, `held` in the others."""

    seed = 7

    def __init__(self, J: np.ndarray, held: np.ndarray) -> None:
        self.J, self.held = J, held

    def train(self, name: str, settings: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        return iter(())

    def evaluate(self, name: str, settings: Mapping[str, Any]) -> dict[str, float]:
        returns = self.J if "evaluate.split" in settings else self.held
        return {"greedy": float(returns[int(name.removeprefix("context-")), int(settings["x"])])}


def test_one_training_by_hand(tmp_path: Path) -> None:
    """The middle serves .5 .8 .5, a mean of .6; the others .3667 and .3, so random ones have .4222."""
    file = stored(tmp_path, [HAND])
    found = Transfer(trainings=1, draws=4000, file=file)(7)
    assert found["coverage"] == pytest.approx(0.6)
    assert found["gain"] == pytest.approx(0.6 - 3.8 / 9, abs=0.01)
    assert Transfer("equidistant", "best", trainings=1, file=file)(7) == pytest.approx({"coverage": 0.6, "gain": 0.0})


def test_who_serves_a_context_is_chosen_by_some_episodes_and_scored_by_others(tmp_path: Path) -> None:
    """By J the first and the last are best (.9 .2 .7); each context goes to the better of the two there, and `held` has
    .3 for the first in the first, .6 and .2 for the last in the others."""
    held = [[0.3, 0.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.6, 0.2]]
    J = [[0.9, 0.1, 0.1], [0.5, 0.1, 0.1], [0.0, 0.2, 0.7]]
    found = Transfer("best", trainings=2, file=stored(tmp_path, [J], [held]))(7)
    assert found["coverage"] == pytest.approx(1.1 / 3)


@pytest.mark.parametrize("pick", ["mbtl", "equidistant"])
@pytest.mark.parametrize("slope", [0.1, "fitted"])
def test_a_replay_is_the_study_on_the_same_returns(tmp_path: Path, pick: Any, slope: Any) -> None:
    rng = np.random.default_rng(3)
    J, held = rng.random((2, 6, 6))
    runs: Any = Known(J, held)
    *_, row = Mbtl({"x": tuple(map(float, range(6)))}, 3, pick, slope=slope)(runs)
    found = Transfer(pick, trainings=3, slope=slope, file=stored(tmp_path, [J], [held]))(7)
    assert found["coverage"] == pytest.approx(row["study/coverage"], abs=1e-12)


def test_the_best_are_those_of_all_sets_and_all_contexts_leave_nothing_to_choose(tmp_path: Path) -> None:
    J = np.random.default_rng(5).random((5, 5))
    file = stored(tmp_path, [J])
    most = max(np.mean([max(J[a, b] for a in some) for b in range(5)]) for some in combinations(range(5), 2))
    assert Transfer("best", trainings=2, file=file)(7)["coverage"] == pytest.approx(most)
    assert Transfer("best", trainings=2, file=file)(7)["gain"] > 0
    assert Transfer("mbtl", trainings=5, draws=3, file=file)(7)["gain"] == pytest.approx(0, abs=1e-12)


def test_wrong_settings_and_files_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = stored(tmp_path, [HAND])
    with pytest.raises(ValueError, match="expected two different rules"):
        Transfer("random")
    with pytest.raises(ValueError, match="not there; did you mean 'cartpole'"):
        Transfer(file="cartpol")(7)
    with pytest.raises(ValueError, match="trainings is 4: expected 1 to 3"):
        Transfer(file=file)(7)
    with pytest.raises(KeyError, match="no trainings of seed 8"):
        Transfer(trainings=2, file=file)(8)
    with pytest.raises(ValueError, match=r"expected \[S, n, n\]"):
        read(stored(tmp_path, [HAND], seeds=(1, 2)))
    monkeypatch.setitem(transfer.STORED, "cartpole", "other")
    read.cache_clear()
    with pytest.raises(ValueError, match="has changed"):
        read("cartpole")
    read.cache_clear()


@pytest.mark.parametrize("name", STORED)
def test_what_is_stored_is_whole(name: str) -> None:
    """Returns are shares, a policy does the same in both halves of the episodes, contexts are those of the recipe."""
    seeds, J, held = read(name)
    (n,) = {len(values) for values in load("curriculum/mbtl").tree["study"]["contexts"].values()}
    assert len(set(seeds)) == len(seeds) and J.shape == held.shape == (len(seeds), n, n)
    assert all(((x >= 0) & (x <= 1)).all() for x in (J, held)) and np.abs(J - held).mean() < 0.05


def test_numbers_of_the_paper() -> None:
    """A Gaussian process with noise 0.1 and 9 restarts, sqrt(log(k + 1)) deviations, the middle first; 0.005 a
    step of 100 contexts is half of all over the range, and so 0.035 a step of 15."""
    study = make_component("study", load("curriculum/mbtl").tree["study"])
    assert isinstance(study, Mbtl) and (study.pick, study.beta, study.noise, study.restarts) == ("mbtl", "log", 0.1, 9)
    assert study.n == 15 and study.choose_next(np.zeros((15, 15)), [], 0) == 7
    assert study.slope * (study.n - 1) == pytest.approx(0.005 * 99, rel=0.02)
    assert (study.low, study.high) == (0, 500)  # returns of CartPole, as shares
