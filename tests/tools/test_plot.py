"""Which curves are drawn, from what numbers; the PNG itself is only checked to be one."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import scipy.stats

from shuhari.lab.plot import choose_curves, find_series, name_metric, plot_arms, plot_comparison, plot_curves

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


def test_the_word_for_a_metric() -> None:
    words = {"evaluate/greedy": "held-out", "reward/mean": "reward", "rollout/return": "return", "a/kl": "KL"}
    assert {metric: name_metric(metric) for metric in words} == words
    for other in ("policy/loss/clip", "study/coverage", "reward/score", ""):
        assert name_metric(other) == other


def test_a_series_leaves_gaps_out() -> None:
    x, y = find_series(COLUMNS, "reward/mean")
    assert x.tolist() == [2, 3] and y.tolist() == [0.1, 0.3]
    assert find_series(COLUMNS, "reward")[1].tolist() == [0.1, 0.3]  # as tables call it
    with pytest.raises(KeyError, match="did you mean 'reward/mean'"):
        find_series(COLUMNS, "reward/men")


def test_curves_are_a_png_with_a_panel_each(tmp_path: Path) -> None:
    four, one = tmp_path / "a" / "four.png", tmp_path / "one.png"
    plot_curves(COLUMNS, four, "title")
    plot_curves({k: COLUMNS[k] for k in ("step", "reward/mean")}, one)
    assert size(four)[0] == pytest.approx(3 * size(one)[0], abs=3) and size(four)[1] == pytest.approx(
        2 * size(one)[1], abs=3
    )
    with pytest.raises(ValueError, match="nothing to draw"):
        plot_curves({"step": [1], "critic/loss": [1.0]}, tmp_path / "none.png")


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[float], list[float]]]:
    """(x, y) of each line that is drawn."""
    from matplotlib.axes import Axes

    lines: list[tuple[list[float], list[float]]] = []
    plain = Axes.plot
    monkeypatch.setattr(
        Axes,
        "plot",
        lambda self, x, y, **k: (lines.append((list(x), np.asarray(y).tolist())), plain(self, x, y, **k))[1],
    )
    return lines


def test_the_held_out_curve_begins_before_training(tmp_path: Path, drawn: list[Any]) -> None:
    """At the step before the last stage, or what was spent by then; where there is one stage, at nothing."""
    columns = {**{k: COLUMNS[k] for k in ("step", "stage", "evaluate/greedy")}, "spent/env_steps": [10, 20, 30]}
    alone = {**columns, "stage": ["rl"] * 3}
    for table, over in ((columns, "step"), (columns, "spent/env_steps"), (alone, "step")):
        plot_curves(table, tmp_path / "c.png", "", over, {"before": 0.25, "chance": 0.125})
    assert drawn == [([1, 3], [0.25, 0.5]), ([10, 30], [0.25, 0.5]), ([0, 3], [0.25, 0.5])]


def test_a_picture_is_drawn_into_a_stream() -> None:
    stream = io.BytesIO()
    plot_curves(COLUMNS, stream)
    assert stream.getvalue().startswith(b"\x89PNG")


def test_a_comparison_averages_as_far_as_all_runs_go(tmp_path: Path, drawn: list[Any]) -> None:
    a = {"step": [1, 2, 3], "m": [1.0, 2.0, 3.0]}
    b = {"step": [1, 2], "m": [3.0, 6.0]}
    plot_comparison({"both": [a, b], "alone": [a]}, "m", tmp_path / "c.png")
    assert size(tmp_path / "c.png")[0] > 100
    assert drawn == [([1, 2], [2.0, 4.0]), ([1, 2, 3], [1.0, 2.0, 3.0])]
    drawn.clear()
    ragged = {"step": [1, 2, 3], "m": [1.0, None, 3.0], "spent/tokens": [10, 20, 40]}
    whole = {"step": [1, 2, 3], "m": [0.0, 1.0, 2.0], "spent/tokens": [10, 20, 30]}
    plot_comparison({"both": [ragged, whole]}, "m", tmp_path / "c.png", over="spent/tokens")
    assert drawn == [([10, 20, 30], pytest.approx([0.5, (1 + 2 / 3 + 1) / 2, (1 + 4 / 3 + 2) / 2]))]


def test_matplotlib_waits_until_something_is_drawn() -> None:
    code = "import sys, shuhari.lab.plot; assert 'matplotlib' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_svg_has_its_text_as_text_and_is_the_same_each_time(tmp_path: Path) -> None:
    """So that a paper's fonts apply, and a search finds what stands in the picture; no name is read as a formula."""
    sides = {"grpo $x^$ <b>": [{"step": [1, 2], "m_a": [1.0, 2.0]}], "dapo": [{"step": [1, 2], "m_a": [3.0, 6.0]}]}
    for name in ("a.svg", "b.svg"):
        plot_comparison(sides, "m_a", tmp_path / name, "held-out")
    text = (tmp_path / "a.svg").read_text(encoding="utf-8")
    told = {
        "".join(e.itertext()).strip() for e in ElementTree.fromstring(text).iter("{http://www.w3.org/2000/svg}text")
    }
    assert {"grpo $x^$ <b>", "dapo", "step", "held-out (m_a)"} <= told
    assert text == (tmp_path / "b.svg").read_text(encoding="utf-8") and "<script" not in text
    assert re.search(r'<svg[^>]*width="244.8pt"', text)  # 3.4 inches: a column


def test_a_sum_of_regret_is_a_curve_whoever_reports_it():
    for learner in ("ucrl", "own"):
        assert choose_curves([f"{learner}/plans", f"{learner}/regret_sum"]) == {"regret": f"{learner}/regret_sum"}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "names", [["GRPO", "DAPO"], [f"rlvr/a_long_name_of_a_method_{i}" for i in range(9)], ["a" * 200, "b"]]
)
def test_a_figure_has_its_legend_outside_and_its_data_inside(
    names: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two panels, over a million steps, whatever the names; ticks do not run into each other."""
    from shuhari.lab import plot

    kept: list[Any] = []
    save = plot.save_figure
    monkeypatch.setattr(plot, "save_figure", lambda figure, *more: (kept.append(figure), save(figure, *more)))
    x = np.linspace(0, 1e6, 20)
    runs = [(x, np.sin(x / 1e5) + 3 * i) for i in range(5)]
    plot_arms({"score": dict.fromkeys(names, runs), "entropy": {names[0]: runs}}, tmp_path / "f.png", "env steps")
    [figure] = kept
    [legend] = figure.legends
    box = legend.get_window_extent()
    assert box.x0 >= 0 and box.y0 >= 0 and box.x1 <= figure.bbox.x1
    assert len({line.get_color() for line in legend.get_lines()}) == min(len(names), 7)
    for ax in figure.axes:
        assert not ax.get_tightbbox().overlaps(box) and ax.get_window_extent().width > 100
        (low, high), (left, right) = ax.get_ylim(), ax.get_xlim()
        [band] = ax.collections[:1]
        ends = band.get_paths()[0].vertices
        assert low < ends[:, 1].min() and high > ends[:, 1].max() and left <= 0 and right >= 1e6
        ticks = [t.label1.get_window_extent() for t in ax.xaxis.get_major_ticks() if left <= t.get_loc() <= right]
        assert all(a.x1 < b.x0 for a, b in pairwise(ticks)) and len(ticks) >= 3


def test_a_band_is_the_interval_of_the_mean_from_five_runs_on(drawn: list[Any]) -> None:
    from shuhari.lab.plot import _find_band

    y = np.random.default_rng(0).normal(size=(5, 3))
    wanted = [scipy.stats.ttest_1samp(column, 0).confidence_interval() for column in y.T]
    assert np.transpose(_find_band(y)) == pytest.approx(np.array([(e.low, e.high) for e in wanted]))
    assert np.array_equal(_find_band(y[:4]), [y[:4].min(0), y[:4].max(0)])


def test_a_curve_begins_with_the_score_before(tmp_path: Path, drawn: list[Any]) -> None:
    run = {"step": [2, 4], "m": [0.5, 1.0]}
    plot_comparison({"a": [run, run]}, "m", tmp_path / "c.svg", starts={"a": [(0.0, 0.25), (0.0, 0.75)]})
    plot_comparison({"a": [run]}, "m", tmp_path / "c.svg", starts={"a": [(2.0, 9.0)]})  # it is there already
    assert drawn == [([0, 2, 4], [0.5, 0.5, 1.0]), ([2, 4], [0.5, 1.0])]
