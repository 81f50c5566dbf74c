"""The state of a run: every component that hears events or has memory, found by walking dataclass fields, under a
stable path."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from shuhari.ports.hooks import ability


def walk(root: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (path, component) of `root` and of the components in its fields, mappings and tuples, each object once."""
    seen: set[int] = set()

    def visit(x: Any, at: str) -> Iterator[tuple[str, Any]]:
        if isinstance(x, Mapping):
            for key, value in x.items():
                yield from visit(value, f"{at}/{key}" if at else str(key))
        elif isinstance(x, list | tuple):
            for i, value in enumerate(x):
                yield from visit(value, f"{at}/{i}" if at else str(i))
        elif (
            id(x) not in seen
            and (is_dataclass(x) or ability(x, "observe") is not None or ability(x, "state") is not None)
            and not isinstance(x, type)
        ):
            seen.add(id(x))
            yield at, x
            if is_dataclass(x):
                for f in fields(x):
                    if f.init:
                        yield from visit(getattr(x, f.name), f"{at}/{f.name}" if at else f.name)

    yield from visit(root, path)


def listeners(root: Any) -> list[Any]:
    """Return the components that hear events, in the order of the walk."""
    return [c for _, c in walk(root) if ability(c, "observe") is not None]


def walk_placed(root: Any, place: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield (place in the recipe, component) of `root`, whose place is `place`, and of the components in its fields."""
    for path, part in walk(root):
        yield (*place, *(path.split("/") if path else ())), part


def memory(root: Any) -> dict[str, Any]:
    """Return path -> state of every component that has any."""
    states = ((path, ability(c, "state")) for path, c in walk(root))
    return {path: s for path, s in states if s is not None}


def remember(root: Any, saved: Mapping[str, Any]) -> None:
    """Restore what `memory` gave. Raises ValueError for a path that is not here: then the recipe is another one."""
    here = dict(walk(root))
    lost = [path for path in saved if path not in here]
    if lost:
        raise ValueError(
            f"the checkpoint has state for {lost[0]!r}, which this recipe does not have: was the recipe changed?"
        )
    for path, component in here.items():
        if path in saved:
            component.state = saved[path]
