"""Arms of runs: their names, their numbers, what is said beside them. What `compare` prints of them: tests/cli."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import scipy.stats

from shuhari.desk.comparison import (
    ComparisonError,
    check_same_task,
    compare_seeds,
    list_caveats,
    name_arms,
    read_finals,
)
from shuhari.store import Run, Store

Make = Callable[..., Path]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """make(name, seed, values, recipe=, task=) -> a run with one value of `m` a step."""

    def write(name: str, seed: int, values: list[float], recipe: str = "r", task: str = "sums") -> Path:
        with Store.open(tmp_path / name) as store:
            store.write_text("recipe.toml", f"name = '{recipe}'\nseed = {seed}\nsteps = 2\n[task]\nname = '{task}'\n")
            for step, value in enumerate(values, 1):
                store.commit(step, stage="main", wall=float(step), metrics={"m": value, "spent/tokens": step * 10})
        return tmp_path / name

    return write


def test_seeds_are_paired_whatever_their_order(make: Make) -> None:
    x, y = [0.1, 0.5, 0.2, 0.4, 0.3], [0.3, 0.6, 0.3, 0.7, 0.5]
    arms = {"a": [make(f"a{i}", i, [0.0, v]) for i, v in enumerate(x)],
             "b": [make(f"b{i}", i, [0.0, v]) for i, v in reversed([*enumerate(y)])]}  # fmt: skip
    columns = {name: [Run(p).read_columns(["m"]) for p in paths] for name, paths in arms.items()}
    found = compare_seeds(arms, columns, "m")
    wanted = scipy.stats.ttest_rel(y, x).confidence_interval()
    assert (found["b"]["low"], found["b"]["high"]) == pytest.approx((wanted.low, wanted.high))
    assert read_finals(arms, columns, "m")["b"] == (y, [0, 1, 2, 3, 4]) and not list_caveats(found, False)


def test_what_cannot_be_compared_says_why(make: Make) -> None:
    a, b = make("a", 0, [1.0]), make("b", 0, [1.0], task="chain")
    with pytest.raises(ComparisonError, match=r"solves sums.*solves chain"):
        check_same_task([a, b])
    with pytest.raises(ComparisonError, match="two runs have seed 0"):
        read_finals({"x": [a, b]}, {"x": [Run(a).metrics(), Run(b).metrics()]}, "m")
    with pytest.raises(ComparisonError, match="no metric 'mm'"):
        read_finals({"x": [a]}, {"x": [Run(a).metrics()]}, "mm")


def test_sides_are_named_by_what_tells_them_apart(make: Make) -> None:
    runs = [make(f"{kind}-s{i}", i, [1.0], recipe) for kind, recipe in (("wide", "q"), ("deep", "q")) for i in (0, 1)]
    other = make("other", 0, [1.0], "p")
    bass, cello = ([make(f"{kind}{i}", i, [1.0], "q") for i in (1, 2)] for kind in ("bass", "cello"))
    assert name_arms({"1": bass, "2": cello}) == {"1": "bass", "2": "cello"}  # an s of a seed follows a separator
    assert name_arms({"1": runs[:2], "2": [other]}) == {"1": "q", "2": "p"}
    assert name_arms({"1": runs[:2], "2": runs[2:]}) == {"1": "wide", "2": "deep"}
    assert name_arms({"1": runs[:2], "2": [runs[0]], "3": [runs[0], runs[2]]}) == {
        "1": "q (1)", "2": "q (2)", "3": "q (3)"
    }  # fmt: skip


@pytest.mark.parametrize("broken", [False, True])
def test_some_columns_are_those_of_all(make: Make, broken: bool) -> None:
    """Also of a run whose text is no strict JSON, and of a metric that no step has."""
    run = make("a", 0, [1.0, float("nan") if broken else 2.0])
    every, some = Run(run).metrics(), Run(run).read_columns(["m", "none"])
    assert list(map(str, some["m"])) == list(map(str, every["m"])) and some["none"] == [None, None]
    assert [some[k] for k in ("step", "stage", "wall")] == [every[k] for k in ("step", "stage", "wall")]
    assert Run(run).list_metrics() == ["m", "spent/tokens"]
