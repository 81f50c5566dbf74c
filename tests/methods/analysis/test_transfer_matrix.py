"""Transfer between domains of policies with known chances, and the form of answers by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from known_policies import Known
from shuhari.data import Problem, Request, Step, Trajectory
from shuhari.kernel.findings import AnalysisError, Curves, Number, Opened
from shuhari.methods.analysis.transfer_matrix.form import Form, find_form
from shuhari.methods.analysis.transfer_matrix.transfer_matrix import TransferMatrix, find_sign
from shuhari.tasks.source import Listed

DOMAINS = ("sums", "grids")
N = 256  # problems of both domains, in turn


class Mixed(Known):
    """Policies with a chance for each domain, and the tokens that they have spent."""

    def __init__(self, chances: Mapping[str, tuple[float, float]], spent: float = 100.0, info: bool = False) -> None:
        super().__init__({name: [*pair] * (N // 2) for name, pair in chances.items()})
        self.spent, self.info = spent, info

    @contextmanager
    def open(self, i: int) -> Iterator[Opened]:
        def make(j: int) -> Problem:
            task, info = ("one", {"domain": DOMAINS[j % 2]}) if self.info else (DOMAINS[j % 2], {})
            return Problem(task, str(j), "?", info=info)

        source = Listed(list(map(make, range(N))))
        yield Opened(self.names[i], SimpleNamespace(task=SimpleNamespace(problems=lambda split: source)), {})

    def read_curves(self) -> list[Curves]:
        last = [1.0, *[100.0] * (len(self.names) - 2), self.spent]
        return [Curves(name, None, "run", {"step": [1], "spent/tokens": [x]})  # type: ignore[arg-type]
                for name, x in zip(self.names, last, strict=True)]  # fmt: skip


CHANCES = {
    "start": (0.4, 0.4),
    "runs/sums-s1": (0.8, 0.4),
    "runs/grids-s1": (0.2, 0.6),
    "runs/sums+grids-s1": (0.9, 0.6),
    "runs/form-s1": (0.5, 0.5),
}


def test_the_signs_and_sizes_of_known_policies() -> None:
    found = TransferMatrix(n=N, samples=32)(Mixed(CHANCES))
    n = found.numbers
    for key, value in {
        "sums on sums": 0.4, "sums on grids": 0.0, "grids on sums": -0.2, "grids on grids": 0.2,
        "sums on sums, beyond form": 0.3, "grids on sums, beyond form": -0.3, "form on sums": 0.1,
        "sums+grids on sums, more than its best": 0.1, "sums+grids on grids, more than its best": 0.0,
    }.items():  # fmt: skip
        assert n[key].value == pytest.approx(value, abs=0.04), key
    assert all(abs(n[f"sums on {domain}"].null) < 0.04 for domain in DOMAINS)
    assert "form on sums, beyond form" not in n and "sums on sums, more than its best" not in n
    signs = {(row[0], row[1]): row[2] for row in found.rows}
    assert signs["sums", "sums"] == "+" and signs["grids", "sums"] == "-"
    assert set(signs) == {(name, domain) for name in ("sums", "grids", "sums+grids", "form") for domain in DOMAINS}
    assert found.notes == []


def test_runs_of_the_same_domains_are_averaged_and_names_may_be_given() -> None:
    chances = {"start": (0.4, 0.4), "a/sums-s1": (0.5, 0.4), "b/sums-s2": (0.7, 0.4), "x": (0.4, 0.9)}
    found = TransferMatrix(n=N, samples=32, by="domain", trained={"x": "grids"})(Mixed(chances, info=True))
    assert found.numbers["sums on sums"].value == pytest.approx(0.2, abs=0.04)
    assert found.numbers["grids on grids"].value == pytest.approx(0.5, abs=0.04)


def test_runs_of_unequal_cost_are_said() -> None:
    (note,) = TransferMatrix(n=N, samples=2)(Mixed(CHANCES, spent=150.0)).notes
    assert note.startswith("runs have spent from 100 to 150 tokens")


def test_a_sign_is_that_of_an_interval_without_0() -> None:
    numbers = Number(0.2, 0.1, 0.3), Number(-0.2, -0.3, -0.1), Number(0.1, -0.1, 0.3), Number(0.1)
    assert list(map(find_sign, numbers)) == ["+", "-", "0", "0"]


@pytest.mark.parametrize(("settings", "chances", "message"), [
    ({}, {"start": (0.1, 0.1)}, "1 policy: expected a start, and runs called after"),
    ({}, {"start": (0.1, 0.1), "runs/sum-s1": (0.1, 0.1)}, "a run is called 'sum', 'sum' is no domain.*'sums'"),
    ({"by": "kind"}, CHANCES, "problem 0 has no 'kind' in its info"),
])  # fmt: skip
def test_what_cannot_be_told_is_refused(settings: Any, chances: Any, message: str) -> None:
    with pytest.raises(AnalysisError, match=message):
        TransferMatrix(n=8, **settings)(Mixed(chances))


def test_problems_of_one_domain_are_refused() -> None:
    with pytest.raises(AnalysisError, match="all problems are of 'one': expected a mixture, or --set by=KEY of their"):
        TransferMatrix(n=8)(Mixed(CHANCES, info=True))


def test_the_form_of_an_answer_by_hand() -> None:
    assert find_form("aB3.") == "120." == find_form("zQ9.")
    ids = np.ones(1, np.int32)
    request = Request(Problem("sums", "1", "1=", "132"), key="k")
    group = [Trajectory(request, (Step.of(ids, ids, info={"text": text}),)) for text in ("047", "13", "ab>132", "x132")]
    found = asyncio.run(Form().grade(group, None))  # type: ignore[arg-type]
    assert [one["form"] for one in found] == [1, 0, 1, 0]
