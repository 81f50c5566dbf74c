"""The tables in the documentation are those of the code."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def tables() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_tables", DOCS / "tables.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_pages_and_code_agree(tables: ModuleType) -> None:
    for path in DOCS.glob("*.md"):
        page = path.read_text(encoding="utf-8")
        assert tables.filled(page) == page, f"{path.name}: run `python docs/tables.py`"


def test_pictures_and_results_agree(tables: ModuleType) -> None:
    for name, draw in tables.PICTURES.items():
        assert draw() == (DOCS / name).read_text(encoding="utf-8"), f"{name}: run `python docs/tables.py`"


def test_every_table_stands_in_one_page(tables: ModuleType) -> None:
    pages = [path.read_text(encoding="utf-8") for path in DOCS.glob("*.md")]
    for name in tables.TABLES:
        assert sum(page.count(f"<!-- {name} -->") for page in pages) == 1, name
        assert sum(page.count(f"<!-- /{name} -->") for page in pages) == 1, name


def test_what_stands_between_the_marks_is_replaced(tables: ModuleType) -> None:
    page = "a\n<!-- reasoning-gym generators -->\nold | \\1\n<!-- /reasoning-gym generators -->\nz\n"
    new = tables.filled(page)
    assert new.startswith("a\n<!-- ") and new.endswith(" -->\nz\n") and "old" not in new
    assert "| `chain_sum` | theirs |" in new
