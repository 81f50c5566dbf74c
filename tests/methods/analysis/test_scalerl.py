"""ScaleRL's fit by curves whose parameters are known."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from shuhari.desk.analyzing.given import Names
from shuhari.desk.analyzing.running import make_analysis
from shuhari.kernel.findings import AnalysisError
from shuhari.methods.analysis.scalerl.scaling import Scaling, fit_power, fit_sigmoid, power, sigmoid


def write_curve(path: Path, x: np.ndarray, y: np.ndarray) -> str:
    rows = "\n".join(f"{float(a)!r},{float(b)!r}" for a, b in zip(x, y, strict=True))
    path.write_text(f"tokens,reward\n{rows}\n")
    return str(path)


def test_half_of_the_gain_is_made_at_the_midpoint() -> None:
    assert sigmoid(np.array([2500.0]), 0.2, 0.61, 2500.0, 1.9)[0] == pytest.approx((0.2 + 0.61) / 2)


@pytest.mark.parametrize("known", [(0.61, 0.25, 1.9), (0.9, 0.1, 1.0), (0.45, 0.6, 3.0), (0.1, 0.3, 1.5)])
def test_points_without_noise_give_the_curve_back(known: tuple[float, float, float]) -> None:
    x = np.linspace(0.02, 1, 60)
    assert fit_sigmoid(x, sigmoid(x, 0.2, *known), 0.2) == pytest.approx(known, abs=1e-3)


def test_a_power_law_is_given_back() -> None:
    x = np.linspace(0.05, 1, 40)
    assert fit_power(x, power(x, 0.8, 0.1, 0.7)) == pytest.approx((0.8, 0.1, 0.7), abs=1e-3)


def test_intervals_have_the_ceiling_and_the_power_law_errs_more(tmp_path: Path) -> None:
    x, known = np.linspace(0, 10_000, 101), (0.61, 1500.0, 1.9)
    inside = 0
    for seed in range(8):
        noise = np.random.default_rng(seed).normal(0, 0.005, 101)
        y = np.concatenate([[0.2], sigmoid(x[1:], 0.2, *known)]) + noise  # the first point is as noisy as the others
        given = Names((write_curve(tmp_path / "run.csv", x, y),))
        found = Scaling(metric="reward")(given).numbers
        inside += found["ceiling"].low < known[0] < found["ceiling"].high
        assert found["error"].value < 0.02 < found["power error"].value
        assert found["error"].value < found["error"].null  # the score goes on rising
    assert inside >= 6  # of 60 curves with a little less noise 54
    assert Scaling(metric="reward")(given).numbers == found  # the bootstrap is seeded


def test_a_short_curve_is_refused_with_what_to_record(tmp_path: Path) -> None:
    x = np.linspace(0, 1, 8)
    with pytest.raises(AnalysisError, match=r"reward has 3 points in the first 50% .* expected 8 .* evaluate more"):
        Scaling()(Names((write_curve(tmp_path / "run.csv", x, x),)))


def test_a_metric_that_is_not_there_is_named(tmp_path: Path) -> None:
    path = write_curve(tmp_path / "run.csv", np.arange(9.0), np.arange(9.0))
    with pytest.raises(AnalysisError, match="no column 'rewards'; did you mean 'reward'"):
        make_analysis("scaling", {"metric": "rewards"})[1](Names((path,)))
