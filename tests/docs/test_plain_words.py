"""Docstrings, recipes and pages stay in the field's plain words: idioms of this house per 1,000 words, counted by
`benchmarks/words.py`."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MOST, MOST_OF_ONE = 3.0, 6.0  # idioms per 1,000 words: in all, and in one package


def test_texts_have_few_idioms() -> None:
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        import words
    finally:
        sys.path.pop(0)
    groups, _ = words.measure()
    rates = {name: 1000 * hits / n for name, (hits, n) in groups.items()}
    too_many = {name: round(rate, 1) for name, rate in rates.items() if rate >= MOST_OF_ONE}
    assert not too_many, f"{too_many}: expected below {MOST_OF_ONE} (python benchmarks/words.py --show 20)"
    assert rates["all"] < MOST
