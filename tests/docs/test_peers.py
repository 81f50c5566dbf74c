"""The guides for users of other libraries deny nothing that exists: `docs/peers.py` lists what is lacking, by name."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def peers() -> ModuleType:
    sys.path.append(str(DOCS))
    try:
        spec = importlib.util.spec_from_file_location("docs_peers", DOCS / "peers.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(DOCS))
    return module


def read(page: str) -> str:
    return (DOCS / f"{page}.md").read_text(encoding="utf-8")


def test_what_a_page_denies_is_not_there(peers: ModuleType) -> None:
    known = peers.list_known()
    assert {"clip", "grpo", "claim", "staleness", "ray"} <= known.keys()
    for page, words in peers.LACKS.items():
        peers.check_absent(page, known)
        text = read(page).lower()
        assert not {word for word in words if word not in text}, page


def test_what_is_there_cannot_be_denied(peers: ModuleType) -> None:
    with pytest.raises(KeyError, match=r"from-verifiers\.md denies 'sandbox', which is there: reward sandboxes"):
        peers.check_absent("from-verifiers", {"sandboxes": "reward sandboxes"})
    with pytest.raises(KeyError, match="RLOO: no recipe 'baselines/rlo'"):
        list(peers.pair("from-trl", "trainer", {"RLOO": "`baselines/rlo`"}))


@pytest.mark.parametrize("page", ["from-trl", "from-verl", "from-verifiers"])
def test_a_row_that_says_none_is_listed(peers: ModuleType, page: str) -> None:
    """Every name of a row without a counterpart is among the words that must not be there."""
    for row in re.findall(r"^\| (.*) \| (?:none|-|no) \|", read(page), re.MULTILINE):
        names = [name.strip("` ").lower() for name in row.split(",")]
        assert all(any(name.startswith(word) for word in peers.LACKS[page]) for name in names), row
