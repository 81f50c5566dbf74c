"""The tables of the documentation that the code knows best: `python docs/tables.py` writes them, a test compares.

A table stands in a page between `<!-- <name> -->` and `<!-- /<name> -->`. To add one: a function here, an entry in
TABLES, and the two marks in a page.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

PAGES = Path(__file__).parent


def row(*cells: str) -> str:
    return "| " + " | ".join(c.replace("|", "\\|") for c in cells) + " |"


def reasoning_gym() -> Iterator[str]:
    """Every generator of reasoning-gym, with its grading path and why."""
    from shuhari.tasks.reasoning_table import GRADING

    count = Counter(g.path for g in GRADING.values())
    told = ", ".join(f"{count[p]} {p}" for p in ("theirs", "ours", "refused"))
    yield f"{len(GRADING)} generators: {told}."
    yield ""
    yield row("generator", "graded by", "why")
    yield row("---", "---", "---")
    for name, graded in GRADING.items():
        yield row(f"`{name}`", graded.path, graded.why)


def spaces() -> Iterator[str]:
    """What becomes of each Gymnasium space, as observation and as action: tried out."""
    import numpy as np
    from gymnasium import spaces as s

    box, two = s.Box(-1, 1, (3,), np.float32), s.Discrete(2)
    examples: dict[str, tuple[s.Space[Any], str]] = {
        "`Box` of floats": (box, "numbers, flattened"),
        "`Box` of integers": (s.Box(0, 9, (3,), np.int64), "numbers, flattened"),
        "`Box` of uint8, three axes (four where frames are stacked)": (
            s.Box(0, 255, (7, 7, 3), np.uint8),
            "an image: `HWC` or `CHW`, divided by 255, through a convolution",
        ),
        "`Discrete`, any start": (s.Discrete(4, start=1), "one-hot"),
        "`MultiDiscrete`": (s.MultiDiscrete([2, 3]), "one-hot each"),
        "`MultiBinary`": (s.MultiBinary(3), "bits as they are"),
        "`Dict` of these, nested": (
            s.Dict(a=box, b=s.Dict(c=two)),
            "its parts side by side, as columns `context/a`, `context/b/c`",
        ),
        "`Tuple`": (s.Tuple((box, two)), ""),
        "`Text`": (s.Text(5), ""),
        "`Sequence`": (s.Sequence(two), ""),
        "`Graph`": (s.Graph(box, None), ""),
    }
    yield row("space", "as observation", "as action")
    yield row("---", "---", "---")
    for name, (space, features) in examples.items():
        yield row(name, _refused(space, two) or features, _refused(box, space) or _deciders(box, space))


def _refused(seen: Any, does: Any) -> str:
    """What the task says against a pair of spaces: the wrapper that helps."""
    from shuhari.tasks.views import check_spaces

    try:
        check_spaces("<id>", SimpleNamespace(observation_space=seen, action_space=does))
    except ValueError as error:
        wrapper = re.search(r"gymnasium\.wrappers\.\w+", str(error))
        return f"refused: `{wrapper[0]}` helps" if wrapper else "refused"
    return ""


def _deciders(seen: Any, does: Any) -> str:
    """The models that decide in an action space."""
    from shuhari.registry import entries

    able = []
    for (kind, name), model in sorted(entries().items()):
        if kind == "model" and hasattr(model, "sample") and "activation" in {f.name for f in fields(model)}:
            try:
                model().build(SimpleNamespace(spaces=lambda: (seen, does)))
            except TypeError:
                continue
            able.append(f"`{name}`")
    return ", ".join(able)


TABLES: Mapping[str, Callable[[], Iterator[str]]] = {"reasoning-gym generators": reasoning_gym, "spaces": spaces}


def filled(page: str) -> str:
    """The page with each of its tables as the code has it now."""
    for name, table in TABLES.items():
        first, last = f"<!-- {name} -->", f"<!-- /{name} -->"
        body = "\n".join([first, *table(), last])
        page = re.sub(re.escape(first) + ".*?" + re.escape(last), lambda _, body=body: body, page, flags=re.DOTALL)
    return page


def main() -> int:
    """Write every page that has a table; 1 where `--check` finds one that would change."""
    changed = 0
    for path in sorted(PAGES.glob("*.md")):
        page = path.read_text(encoding="utf-8")
        new = filled(page)
        changed += new != page
        if new != page and "--check" not in sys.argv:
            path.write_text(new, encoding="utf-8")
    return int(bool(changed) and "--check" in sys.argv)


if __name__ == "__main__":
    raise SystemExit(main())
