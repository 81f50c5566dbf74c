"""Which curves are drawn, from what numbers; the PNG itself is only checked to be one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from shuhari.tools.plot import choose_curves, find_series, plot_comparison, plot_curves

COLUMNS = {
    "step": [1, 2, 3],
    "stage": ["warm", "rl", "rl"],
    "reward/mean": [None, 0.1, 0.3],
    "evaluate/greedy": [None, None, 0.5],
    "policy/entropy": [2.0, 1.5, 1.0],
    "policy/approx_kl": [0.0, 0.1, None],
    "critic/loss": [1.0, 1.0, 1.0],
}


def size(path: Path) -> tuple[int, int]:
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    return int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")


def test_the_curves_that_a_run_has() -> None:
    assert choose_curves(COLUMNS) == {
        "reward": "reward/mean",
        "held-out": "evaluate/greedy",
        "entropy": "policy/entropy",
        "KL": "policy/approx_kl",
    }
    assert choose_curves(["rollout/return", "policy/kl", "policy/approx_kl"]) == {
        "return": "rollout/return",
        "KL": "policy/kl",
    }
    assert choose_curves(["policy/loss/entropy"]) == {
        "loss": "policy/loss/entropy"
    }  # of a term, not what it is named after
    assert choose_curves(["reward/mean", "policy/loss/clip"]) == {"reward": "reward/mean"}
    assert choose_curves(["policy/loss/entropy", "policy/entropy"]) == {"entropy": "policy/entropy"}
    assert choose_curves([]) == {}


def test_a_series_leaves_gaps_out() -> None:
    x, y = find_series(COLUMNS, "reward/mean")
    assert x.tolist() == [2, 3] and y.tolist() == [0.1, 0.3]
    assert find_series(COLUMNS, "reward")[1].tolist() == [0.1, 0.3]  # as tables call it
    with pytest.raises(KeyError, match="did you mean 'reward/mean'"):
        find_series(COLUMNS, "reward/men")


def test_curves_are_a_png_with_a_panel_each(tmp_path: Path) -> None:
    four, one = plot_curves(COLUMNS, tmp_path / "a" / "four.png", "title"), tmp_path / "one.png"
    plot_curves({k: COLUMNS[k] for k in ("step", "reward/mean")}, one)
    assert size(four)[0] == pytest.approx(3 * size(one)[0], abs=3) and size(four)[1] == pytest.approx(
        2 * size(one)[1], abs=3
    )
    with pytest.raises(ValueError, match="nothing to draw"):
        plot_curves({"step": [1], "critic/loss": [1.0]}, tmp_path / "none.png")


def test_a_comparison_averages_over_common_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib.axes import Axes

    drawn: list[tuple[list[float], list[float]]] = []
    plain = Axes.plot
    monkeypatch.setattr(
        Axes,
        "plot",
        lambda self, x, y, **k: (drawn.append((list(x), np.asarray(y).tolist())), plain(self, x, y, **k))[1],
    )
    a = {"step": [1, 2, 3], "m": [1.0, 2.0, 3.0]}
    b = {"step": [1, 2], "m": [3.0, 6.0]}
    assert size(plot_comparison({"both": [a, b], "alone": [a]}, "m", tmp_path / "c.png"))[0] > 100
    assert drawn == [([1, 2], [2.0, 4.0]), ([1, 2, 3], [1.0, 2.0, 3.0])]


def test_matplotlib_waits_until_something_is_drawn() -> None:
    code = "import sys, shuhari.tools.plot; assert 'matplotlib' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
