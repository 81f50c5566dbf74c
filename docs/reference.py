"""The reference pages as far as the code knows them, for `tables.py`: public names."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from typing import Any

PUBLIC = {  # module -> its public names; (): all that it says or defines
    "shuhari": (),
    "shuhari.ports": (),
    "shuhari.ports.answers": (),
    "shuhari.data": (),
    "shuhari.batch": (),
    "shuhari.needs": (),
    "shuhari.events": (),
    "shuhari.ratio": (),
    "shuhari.reduce": (),
    "shuhari.testing": (),
    "shuhari.diagnosis": ("diagnose", "RULES", "Rule", "Finding", "Watch"),
    "shuhari.config.recipe": ("RecipeError",),
    "shuhari.store": ("StoreError", "NoRunError"),
}


def row(*cells: str) -> str:
    return "| " + " | ".join(c.replace("|", "\\|") for c in cells) + " |"


def sentence(doc: str) -> str:
    """The first sentence of a docstring."""
    first = " ".join(doc.partition("\n\n")[0].split())
    return re.split(r"(?<=\.)(?<!al\.)\s+", first)[0]


# ---------------------------------------------------------------- public names


def public_names(module: str) -> list[str]:
    """The public names of a module, in the order of its source."""
    found = import_module(module)
    listed = PUBLIC[module] or getattr(found, "__all__", ())
    own = [n for n, x in vars(found).items() if not n.startswith("_") and getattr(x, "__module__", "") == module]
    return [n for n in listed or own if n != "__version__"]


def names() -> Iterator[str]:
    """Every public name, with its first sentence; the site writes it out."""
    for module in PUBLIC:
        found = import_module(module)
        yield from (f"## {module}", "", row("name", "what it is"), row("---", "---"))
        listed = public_names(module)
        for name in listed:
            thing: Any = getattr(found, name)
            documented = inspect.isclass(thing) or inspect.isroutine(thing)
            yield row(f"`{name}`", sentence(inspect.getdoc(thing) or "") if documented else "a constant")
        yield ""
        for name in listed:
            yield from (f"<!-- ::: {module}.{name} -->", "")
