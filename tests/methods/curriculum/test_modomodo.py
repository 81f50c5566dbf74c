"""MoDoMoDo: the seed mixtures, the quadratic against closed forms and a refit, and the choice that follows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest

from shuhari.methods.curriculum.modomodo.mixtures import (
    RIDGES,
    Mixtures,
    find_ridge,
    fit_quadratic,
    list_features,
    list_mixtures,
    list_seeds,
)

THREE = ("task.a", "task.b", "task.c")


class Landscape:
    """Runs whose score is a function of the shares; `choosing` where settings choose."""

    def __init__(self, score: Any, choosing: Any = None, seed: int = 0) -> None:
        self.score, self.choosing, self.seed = score, choosing or score, seed
        self.trained: dict[str, Mapping[str, Any]] = {}

    def train(self, name: str, settings: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        self.trained[name] = settings
        yield {"child": name}

    def evaluate(self, name: str, settings: Mapping[str, Any] = {}) -> dict[str, float]:
        w = np.array([x for key, x in self.trained[name].items() if key != "seed"])
        return {"mean": float((self.choosing if settings else self.score)(w))}


def rows(study: Mixtures, runs: Any) -> list[dict[str, float]]:
    return [r for r in study(runs) if "child" not in r]


def test_seed_mixtures_are_each_alone_each_left_out_and_all_alike() -> None:
    expected = [[1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 0.5, 0.5], [0.5, 0, 0.5], [0.5, 0.5, 0], [1 / 3] * 3]
    np.testing.assert_allclose(list_seeds(3), expected)
    np.testing.assert_allclose(list_seeds(2), [[1, 0], [0, 1], [0.5, 0.5]])
    assert len(list_seeds(5)) == 11


def test_all_mixtures_in_steps_are_as_many_as_there_are() -> None:
    for m, grid, count in ((2, 10, 11), (3, 4, 15), (4, 3, 20)):  # (grid + m - 1 choose m - 1)
        w = list_mixtures(m, grid)
        assert w.shape == (count, m) and len({tuple(x) for x in w.round(9).tolist()}) == count
        np.testing.assert_allclose(w.sum(1), 1)
        assert (w >= 0).all()


def test_a_parabola_of_two_domains_is_found_exactly() -> None:
    """f(w) = -(w_1 - 0.3)^2, from its three seed mixtures: -(1 - .6 ..) = -w^2 + .6 w - .09, and its top at 0.3."""
    w = list_seeds(2)
    y = -((w[:, 0] - 0.3) ** 2)
    np.testing.assert_allclose(fit_quadratic(w, y, 0.0), [-0.09, 0.6, -1.0], atol=1e-9)
    study = Mixtures(("task.a", "task.b"), ridge=0.0)
    last = rows(study, Landscape(lambda w: -((w[0] - 0.3) ** 2)))[-1]
    assert (last["study/share@0"], last["study/share@1"]) == pytest.approx((0.3, 0.7))
    assert last["study/score"] == pytest.approx(0.0) == last["study/predicted"]
    assert last["study/spread"] == pytest.approx(0.49 - 0.04)


def test_an_inner_optimum_of_three_domains_and_a_linear_score_at_a_vertex() -> None:
    inner = rows(Mixtures(THREE, ridge=0.0), Landscape(lambda w: -((w[0] - 0.5) ** 2) - (w[1] - 0.2) ** 2))[-1]
    assert [inner[f"study/share@{i}"] for i in range(3)] == pytest.approx([0.5, 0.2, 0.3])
    vertex = rows(Mixtures(THREE), Landscape(lambda w: w[1] - 2 * w[0]))[-1]
    assert [vertex[f"study/share@{i}"] for i in range(3)] == pytest.approx([0, 1, 0])


def test_leaving_one_out_is_what_a_refit_without_it_gives() -> None:
    """The closed form chooses the ridge that refitting without each mixture in turn chooses."""
    rng = np.random.default_rng(4)
    for _ in range(5):
        w, y = list_seeds(3), rng.normal(size=7)
        errors = {}
        for ridge in RIDGES:
            left = [np.arange(7) != i for i in range(7)]
            told = [(list_features(w[[i]]) @ fit_quadratic(w[k], y[k], ridge))[0] for i, k in enumerate(left)]
            errors[ridge] = ((y - told) ** 2).mean()
        assert find_ridge(w, y) == min(errors, key=lambda r: errors[r])


def test_ridge_is_that_of_an_independent_library() -> None:
    linear = pytest.importorskip("sklearn.linear_model")
    w, y = list_seeds(3), np.random.default_rng(0).normal(size=7)
    x = list_features(w)
    found = linear.Ridge(alpha=0.3).fit(x[:, 1:], y)  # which leaves the constant alone, too
    np.testing.assert_allclose(fit_quadratic(w, y, 0.3), [found.intercept_, *found.coef_], atol=1e-9)


@pytest.mark.parametrize(("pick", "expected"), [("uniform", [1 / 3] * 3), ("best", [0.5, 0.5, 0.0])])
def test_other_rules_train_as_much(pick: Any, expected: list[float]) -> None:
    runs = Landscape(lambda w: -((w[0] - 0.5) ** 2) - (w[1] - 0.4) ** 2)
    found = rows(Mixtures(THREE, pick=pick), runs)
    assert [found[-1][f"study/share@{i}"] for i in range(3)] == pytest.approx(expected)
    assert [r["study/trained"] for r in found] == list(range(1, 9)) and len(runs.trained) == 8


def test_some_problems_choose_others_are_reported_and_the_chosen_has_a_seed_of_its_own() -> None:
    runs = Landscape(lambda w: w[2], choosing=lambda w: w[0])
    last = rows(Mixtures(THREE, choose={"evaluate.split": "train"}), runs)[-1]
    assert last["study/share@0"] == 1.0 and last["study/score"] == 0.0
    assert last["study/predicted"] == pytest.approx(1.0, abs=0.01)
    assert "seed" in runs.trained["chosen"] and all("seed" not in s for n, s in runs.trained.items() if n != "chosen")


def test_a_score_that_is_not_finite_is_refused_by_the_name_of_its_mixture() -> None:
    """NumPy takes NaN for the largest, so that it would be chosen."""
    for bad in (np.nan, np.inf):
        runs = Landscape(lambda w, bad=bad: bad if w[1] == 1.0 else w[0])
        match = r"'mean' of mixture-1 \(task.a = 0, task.b = 1, task.c = 0\) is (nan|inf): expected a finite score"
        with pytest.raises(ValueError, match=match):
            rows(Mixtures(THREE, pick="best"), runs)
    last = Landscape(lambda w: np.nan, choosing=lambda w: w[0])
    with pytest.raises(ValueError, match="of chosen"):
        rows(Mixtures(THREE, choose={"evaluate.split": "train"}), last)


def test_a_misspelt_measure_is_refused_after_one_training() -> None:
    runs = Landscape(lambda w: w[0])
    with pytest.raises(ValueError, match=r"measure is 'maen'.* did you mean 'mean'"):
        rows(Mixtures(THREE, measure="maen"), runs)
    assert list(runs.trained) == ["mixture-0"]


def test_one_domain_is_no_mixture() -> None:
    with pytest.raises(ValueError, match="at least two"):
        Mixtures(("task.a",))
