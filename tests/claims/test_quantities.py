"""What is compared: correlation and separation against scipy, a fit against the curve that made the points."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import mannwhitneyu, spearmanr

from shuhari.lab.claims.quantities import Correlation, Evidence, Fit, Gain, Metric, Separation, Simulated, Speed


def evidence(**columns: list[float]) -> Evidence:
    n = len(next(iter(columns.values())))
    return Evidence(0, columns, [float(i + 1) for i in range(n)], {}, float(n))


def test_metric_reads_a_curve() -> None:
    assert Metric("x:mean")(evidence(x=[1.0, 2.0, 3.0])) == 2.0
    assert Metric("x:at=y>=1").names == ("x", "y")
    rest = Metric("1 - x:mean")
    assert rest(evidence(x=[0.25, 0.5])) == 0.625 and rest.names == ("x",)


def test_a_gain_is_of_two_readings_of_one_run() -> None:
    run = evidence(vote=[0.2, 0.5, 0.9], plain=[0.1, 0.4, 0.5])
    gain = Gain("vote:final", "plain:first", weight=2.0)
    assert gain(run) == pytest.approx(0.9 - 2 * 0.1) and gain.names == ("vote", "plain")
    assert Gain("vote:mean", "vote:final").names == ("vote",)
    with pytest.raises(ValueError, match="no reading 'fnal' of a curve; did you mean 'final'"):
        Gain("vote:final", "plain:fnal")


def test_a_gain_starts_where_the_last_stage_began() -> None:
    columns = {"evaluate/mean": [None, None, 0.5, 0.6], "evaluate/vote.mean": [None, None, 0.5, 0.6]}
    columns |= {"step": [1, 2, 3, 4], "stage": ["a", "a", "b", "b"]}
    run = Evidence(0, columns, [25.0, 50.0, 75.0, 100.0], {"mean": 0.1, "vote.mean": 0.3}, 100.0, began=50.0)
    # the curves differ by 0.2 at 50, by nothing from 75 on: over [50, 100] their mean difference is 0.2 / 4
    assert Gain("evaluate/vote.mean:area", "evaluate/mean:area")(run) == pytest.approx(0.05)


def test_correlation_and_separation_are_scipys() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=30).round(1)
    y = (0.5 * x + rng.normal(size=30)).round(1)
    run = evidence(x=x.tolist(), y=y.tolist())
    assert Correlation("x", "y")(run) == pytest.approx(spearmanr(x, y).statistic)
    assert Separation("x", "y")(run) == pytest.approx(mannwhitneyu(x, y).statistic / 900)


def test_correlation_takes_the_steps_that_have_both() -> None:
    run = evidence(x=[1.0, 2.0, 3.0, 4.0], y=[1.0, None, 3.0, 9.0])  # type: ignore[list-item]
    assert Correlation("x", "y")(run) == 1.0
    assert math.isnan(Correlation("x", "y")(evidence(x=[1.0, 2.0], y=[1.0, 2.0])))


def test_a_fit_tells_held_out_points_of_its_own_form_and_not_of_another() -> None:
    h = np.linspace(2.0, 0.1, 20)  # entropy falls, reward rises: R = -a e^H + b
    run = evidence(h=h.tolist(), r=(-0.1 * np.exp(h) + 1.0).tolist())
    assert Fit("r", "h", form="exponential")(run) == pytest.approx(1.0)
    assert Fit("r", "h", form="linear")(run) < 0.5
    assert math.isnan(Fit("r", "h", train=0.1)(run))  # two points for two numbers


def test_speed_is_of_the_budget_after_the_first_step() -> None:
    run = evidence(wall=[5.0, 6.0, 7.0])
    assert Speed()(run) == 1.0


def test_a_simulation() -> None:
    def by(seed: int) -> dict[str, float]:
        return {"share": 0.1 * seed}

    assert Simulated(by, "share")(Evidence(3)) == pytest.approx(0.3)
    with pytest.raises(KeyError, match="did you mean 'share'"):
        Simulated(by, "shere")(Evidence(0))


def test_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match="did you mean 'linear'"):
        Fit("a", "b", form="linaer")
    with pytest.raises(ValueError, match="train is 1"):
        Fit("a", "b", train=1.0)
