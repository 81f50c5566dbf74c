"""Stages that run several times, and blocks of stages that take turns. No torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from shuhari.config.overlay import RecipeError, Tree, format_path


def expand_repeats(stages: Mapping[str, Tree]) -> Iterator[tuple[str, str]]:
    """Yield (name, the name of its overlay) of the stages as they run: one with `repeat = n` n times; consecutive ones
    with the same `block` in turn, n times. From the second time on a stage is called `<name> 2` and so on. RecipeError
    if the stages of a block do not agree on `repeat`, or if two stages would have one name."""
    blocks: list[list[tuple[str, Tree]]] = []
    for name, over in stages.items():
        follows = blocks and over.get("block") and blocks[-1][0][1].get("block") == over["block"]
        blocks[-1].append((name, over)) if follows else blocks.append([(name, over)])
    seen: set[str] = set()
    for block in blocks:
        times = {over["repeat"]: name for name, over in block if "repeat" in over} or {1: ""}
        if len(times) > 1:
            message = f"{min(times)} and {max(times)} in one block: expected one number, in any of its stages"
            raise RecipeError(f"stage.{format_path((times[max(times)],))}.repeat", message)
        for i in range(next(iter(times))):
            for name, _ in block:
                called = f"{name} {i + 1}" if i else name
                if called in seen:
                    raise RecipeError(f"stage.{format_path((name,))}", f"two stages would be called {called!r}")
                seen.add(called)
                yield called, name


def is_left(stages: Mapping[str, Tree], index: int) -> bool:
    """Whether the stage at `index` is over for good: others follow it, and it is not repeated after them."""
    own, *later = [of for _, of in expand_repeats(stages or {"": {}})][index:]
    return bool(later) and own not in later
