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
    for path in tables.pages():
        page = path.read_text(encoding="utf-8")
        assert tables.filled(page) == page, f"{path.name}: run `python docs/tables.py`"


def test_pictures_and_results_agree(tables: ModuleType) -> None:
    for name, draw in tables.PICTURES.items():
        assert draw() == (DOCS / name).read_text(encoding="utf-8"), f"{name}: run `python docs/tables.py`"


def test_every_table_stands_in_one_page(tables: ModuleType) -> None:
    pages = [path.read_text(encoding="utf-8") for path in tables.pages()]
    for name in tables.TABLES:
        assert sum(page.count(f"<!-- {name} -->") for page in pages) == 1, name
        assert sum(page.count(f"<!-- /{name} -->") for page in pages) == 1, name


def test_what_stands_between_the_marks_is_replaced(tables: ModuleType) -> None:
    page = "a\n<!-- reasoning-gym generators -->\nold | \\1\n<!-- /reasoning-gym generators -->\nz\n"
    new = tables.filled(page)
    assert new.startswith("a\n<!-- ") and new.endswith(" -->\nz\n") and "old" not in new
    assert "| `chain_sum` | theirs |" in new


def test_a_setting_is_told_by_its_type_and_bounds_as_one(tables: ModuleType) -> None:
    takes = tables.reference.takes
    assert takes("whole number", "a number of 1 or more") == "whole number of 1 or more"
    assert takes("number or schedule", "a number in [0, 1]") == "number in [0, 1] or [schedule](#schedules)"
    assert takes("one of 'a', 'b'", "") == "one of `a`, `b`"
    assert takes("table (Lora) or nothing", "") == "[table](#table-lora) or nothing"


def test_every_kind_and_component_has_its_settings(tables: ModuleType) -> None:
    from shuhari.kernel import registry

    page = (DOCS / "settings.md").read_text(encoding="utf-8")
    assert tables.reference.PLACES.keys() == registry.KINDS.keys()
    for kind in tables.reference.PLACES:
        for name in tables.reference.own_names(kind):
            assert f"[`{name}`](#{kind}-" in page
    assert len(tables.reference.own_names("objective")) > 15


def test_sections_are_those_of_recipes(tables: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(tables.reference.SECTIONS, "steps")
    with pytest.raises(KeyError, match="steps"):
        list(tables.reference.sections())


def test_what_the_map_of_the_field_names_is_there(tables: ModuleType) -> None:
    from shuhari.config.library import list_names
    from shuhari.desk.analyzing import running
    from shuhari.kernel import registry

    known = {*list_names(), *running.list_packaged()}
    for survey in tables.field.read_surveys():
        for branch in survey["branch"]:
            for name in branch["has"]:
                kind, colon, own = name.partition(":")
                assert (own in registry.names(kind)) if colon else (name in known), name
