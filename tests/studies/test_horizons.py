"""The study of samples to solve, with runs that are scripted: what it counts, and where it stops."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from shuhari.studies.horizons import Horizons

SHARES = {  # run -> what it reports, every 10 steps
    "sqirl-0-0": [0.1, 0.95, 0.2], "sqirl-1-0": [0.3, 0.3, 0.95], "ppo-0-0": [0.95],
    "sqirl-0-1": [0.1, 0.2, 0.3], "sqirl-1-1": [0.0, 0.0, 0.95], "ppo-0-1": [0.1, 0.2, 0.95],
    "sqirl-0-2": [0.95], "sqirl-1-2": [0.0, 0.0], "ppo-0-2": [0.2, 0.2],
}  # fmt: skip


class Scripted:
    seed = 0

    def __init__(self) -> None:
        self.asked: dict[str, Mapping[str, Any]] = {}
        self.went: dict[str, list[dict[str, float]]] = {}

    def train(self, name: str, settings: Mapping[str, Any]) -> Iterator[dict[str, float]]:
        self.asked[name] = settings
        return self.go(name)

    def go(self, name: str) -> Iterator[dict[str, float]]:
        for i, share in enumerate(SHARES[name]):
            size = float(100 + 50 * int(name[-1]))
            row = {"evaluate/table.share": share, "evaluate/table.states": size, "spent/env_steps": 10.0 * (i + 1)}
            self.went.setdefault(name, []).append(row)
            yield row

    def reports(self, name: str) -> list[dict[str, float]]:
        return self.went.get(name, [])


def test_it_counts_the_quickest_run_of_each_arm_and_ranks_them() -> None:
    runs: Any = Scripted()
    study = Horizons({"task.kwargs.side": (3, 4, 5)}, {"sqirl": ({"k": 1}, {"k": 2}), "ppo": ({},)})
    rows = [r for r in study(runs) if "study/size" in r]
    assert [round(10 ** r["study/sqirl"]) for r in rows] == [20, 30, 10]
    assert [round(10 ** r["study/ppo"]) for r in rows] == [10, 30, 20]  # of what is not solved all that was spent
    assert [round(10 ** r["study/size"]) for r in rows] == [100, 150, 200]
    assert "study/spearman" not in rows[1]
    # ranks (2, 3, 1) and (1, 3, 2): 1 - 6 * 2 / 24 = 0.5; of (1, 2, 3) and (1, 3, 2) the same
    assert rows[2]["study/spearman"] == pytest.approx(0.5) and rows[2]["study/spearman_size"] == pytest.approx(0.5)
    assert rows[2]["study/unsolved"] == pytest.approx(1 / 3)
    assert len(runs.went["sqirl-0-0"]) == 2  # it stopped there
    asked = runs.asked["sqirl-1-2"]
    assert asked["k"] == 2 and asked["task.kwargs.side"] == 5 and asked["seed"] == asked["task.kwargs.layout"]
    with pytest.raises(ValueError, match="expected as many values of each, and two arms"):
        Horizons({"a": (1,), "b": (1, 2)}, {"x": (), "y": ()})
