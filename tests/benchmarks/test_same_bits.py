"""Two sides of one run: what was renamed is compared, and either side is spelt as its own source reads it."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

FILE = Path(__file__).parents[2] / "benchmarks" / "same_bits.py"  # benchmarks are no package
SPEC = importlib.util.spec_from_file_location("same_bits", FILE)
assert SPEC is not None and SPEC.loader is not None
same_bits = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(same_bits)


def side(**reports: str) -> dict[str, Any]:
    return {"weights": "w", "ledger": "l", "reports": reports}


def test_what_differs_is_named_and_what_was_renamed_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    assert same_bits.compare(side(loss="1"), side(loss="1")) == "same"
    assert same_bits.compare(side(loss="1", old="2"), side(loss="3", new="2")) == "differ: loss (-old +new)"
    monkeypatch.setitem(same_bits.METRICS, r"(\w+)/old", r"\1/new")
    assert same_bits.compare(side(**{"policy/old": "2"}), side(**{"policy/new": "2"})) == "same"
    assert same_bits.compare(side(**{"policy/old": "2"}), side(**{"policy/new": "3"})) == "differ: policy/new"
    assert same_bits.compare({"error": "x"}, side()) == "old failed: x"


@pytest.mark.parametrize(
    ("there", "ran"), [(["new/name"], "new/name"), (["old/name"], "old/name"), (["old/name", "new/name"], "new/name")]
)
def test_a_side_takes_the_first_spelling_that_it_can_read(
    there: list[str], ran: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def digest_run(recipe: str, settings: Any, path: Path) -> dict[str, Any]:
        return side(ran=recipe) if recipe in there else {"error": f"RecipeError: no recipe {recipe!r}"}

    monkeypatch.setattr(same_bits, "digest_run", digest_run)
    monkeypatch.setitem(same_bits.RUNS, "one", ("new/name", {}))
    monkeypatch.setitem(same_bits.BEFORE, "one", [("old/name", {"a": 1})])
    assert same_bits.one("one") == side(ran=ran)
    monkeypatch.setitem(same_bits.BEFORE, "one", [("older/name", {})])
    assert ("error" in same_bits.one("one")) == ("new/name" not in there)
