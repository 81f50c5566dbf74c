"""The draw on the page about the real model is the one that its list gives."""

from __future__ import annotations

import random
import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "real.md"


def test_the_draw_follows_from_the_list() -> None:
    text = PAGE.read_text(encoding="utf-8")
    listed = re.findall(r"^\| `([\w/]+)` \| [^|]+ \| (.+) \|$", text, re.MULTILINE)
    left = sorted(name for name, read in listed if not read.startswith("none: "))
    drawn = re.findall(r"^\d\. `([\w/]+)`$", text, re.MULTILINE)
    assert len(listed) == 21 and drawn == random.Random(20261128).sample(left, 6)
