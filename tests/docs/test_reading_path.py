"""A newcomer's path through the pages: each ends with a line that names the next one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PATH = (
    ("README.md", {"docs/python.md"}),
    ("docs/python.md", {"choosing.md"}),
    ("docs/choosing.md", {"recipes.md"}),
    ("docs/recipes.md", {"tasks.md", "environments.md"}),
    ("docs/tasks.md", {"evaluation.md"}),
    ("docs/environments.md", {"evaluation.md"}),
    ("docs/evaluation.md", {"diagnosis.md"}),
    ("docs/diagnosis.md", {"troubleshooting.md"}),
)


@pytest.mark.parametrize(("page", "links"), PATH)
def test_a_page_ends_with_the_next(page: str, links: set[str]) -> None:
    last = (ROOT / page).read_text(encoding="utf-8").rstrip().rpartition("\n")[2]
    assert last.startswith("Next: ") and {*re.findall(r"\]\(([^)#]+)\)", last)} == links
    assert all((ROOT / page).parent.joinpath(link).is_file() for link in links)
