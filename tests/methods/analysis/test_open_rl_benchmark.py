"""Statistics of runs by hand, and tables that are written and read again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from shuhari.desk.analyzing.given import Names
from shuhari.desk.api import train
from shuhari.kernel.findings import AnalysisError, Curves
from shuhari.methods.analysis.open_rl_benchmark.benchmark import (
    Benchmark,
    count_differing,
    find_improvement,
    interpolate,
    interquartile_mean,
)


def write(path: Path, last: float, rows: int = 4) -> str:
    lines = [f"{10 * i},{last * i / (rows - 1)}" for i in range(rows)]
    path.write_text("step,reward\n" + "\n".join(lines) + "\n")
    return str(path)


def test_the_statistics_by_hand() -> None:
    assert interquartile_mean(np.arange(1.0, 9.0)) == 4.5
    assert find_improvement(np.array([1.0, 2.0]), np.array([1.0, 2.0])) == 0.5
    assert find_improvement(np.array([3.0, 4.0]), np.array([1.0, 2.0])) == 1
    assert interpolate((np.array([0.0, 10.0]), np.array([1.0, 3.0])), 4.0) == 1.8


def test_two_arms_of_tables(tmp_path: Path) -> None:
    arms = {name: [write(tmp_path / f"{name}{i}.csv", v) for i, v in enumerate(values)]
            for name, values in {"A": (0.5, 0.6), "B": (0.55, 0.9)}.items()}  # fmt: skip
    found = Benchmark(metric="reward")(Names(tuple(f"{name}={','.join(runs)}" for name, runs in arms.items())))
    assert found.numbers["iqm of A"].value == pytest.approx(0.55)
    assert found.numbers["gap of B"].value == pytest.approx((0.45 + 0.1) / 2)
    assert found.numbers["better: B"].value == pytest.approx(0.75)


def test_scores_are_read_where_the_shortest_run_ends(tmp_path: Path) -> None:
    names = (f"A={write(tmp_path / 'a.csv', 0.9, 4)}", f"B={write(tmp_path / 'b.csv', 0.9, 7)}")
    found = Benchmark(metric="reward")(Names(names))
    assert found.numbers["iqm of B"].value == pytest.approx(0.45)  # half of its 60 steps
    assert "at 30 step" in found.notes[0]


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_table_that_was_written_gives_the_same_numbers(suffix: str, tmp_path: Path) -> None:
    if suffix == ".parquet":
        pytest.importorskip("pyarrow")
    runs = [write(tmp_path / f"{i}.csv", v) for i, v in enumerate((0.5, 0.6, 0.7))]
    names, to = (f"A={runs[0]},{runs[1]}", f"B={runs[2]}"), tmp_path / f"open{suffix}"
    first = Benchmark(metric="reward", to=str(to))(Names(names))
    again = Benchmark(metric="reward")(Names((str(to),)))
    assert again.numbers == first.numbers and again.rows == first.rows


def test_a_run_trained_again_by_its_stored_recipe_is_equal_to_the_bit(tmp_path: Path) -> None:
    train("baselines/bandit", tmp_path / "run", steps=5, progress=False)
    given = Names((str(tmp_path / "run"),))
    found = Benchmark(metric="reward/mean", rerun=True)(given)
    assert found.numbers["rerun differs"].value == 0
    (one,) = given.read_curves()
    other = Curves("x", Path(), "run", {**one.columns, "reward/mean": [9.0, *one.columns["reward/mean"][1:]]})
    assert count_differing(one, other) == 1
    assert one.facts["method"] == "baselines/bandit" and one.facts["seed"] == "0"


def test_a_table_cannot_be_trained_again(tmp_path: Path) -> None:
    with pytest.raises(AnalysisError, match="no recipe to train it again by"):
        Benchmark(metric="reward", rerun=True)(Names((write(tmp_path / "a.csv", 0.5),)))


def test_an_open_table_with_a_bad_number_names_the_line(tmp_path: Path) -> None:
    (tmp_path / "open.csv").write_text("run,metric,step,value\na,reward,1,0.5\na,reward,2,much\n")
    with pytest.raises(AnalysisError, match=r"open.csv line 3: step '2' and value 'much': expected two numbers"):
        Benchmark(metric="reward")(Names((str(tmp_path / "open.csv"),)))
