"""What several suites ask: every component where the smallest recipe uses it, found once."""

from __future__ import annotations

import pytest
from registry_examples import Example, find_examples

import run_files


@pytest.fixture(scope="session")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Example]:
    return find_examples(run_files.recipes(tmp_path_factory.mktemp("files")).values())
