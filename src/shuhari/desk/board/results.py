"""Results of claims and cards of beds, for the board; cached until their files change.

As in the terminal, a result below `OUT` takes precedence over the packaged one. Whether the core has changed since
takes seconds to find out, and is shown once a thread has done so.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from shuhari.config.library import BEDS, Method, find_recipe, list_recipes, read_table
from shuhari.config.overlay import RecipeError
from shuhari.lab.claims.kept_results import find_cards, find_results

OUT = Path("results")
BRINGS = "shuhari"  # the origin of packaged results
_known: dict[tuple[Path, str], tuple[tuple[int, int], Any]] = {}
_core: list[threading.Thread] = []
Read = TypeVar("Read")


def keep(path: Path, what: str, read: Callable[[], Read]) -> Read | None:
    """Return what `read` returns for a file, cached until the file changes; None if there is no file."""
    try:
        stat = path.stat()
    except OSError:
        return None
    stamp = stat.st_mtime_ns, stat.st_size
    before = _known.get((path, what))
    if before is None or before[0] != stamp:
        before = _known[path, what] = stamp, read()
    found: Read = before[1]
    return found


def read_one(name: str) -> tuple[dict[str, Any], str] | None:
    """Return (the result of a method's claim, its origin: OUT or `BRINGS`); None if there is none. Raises RecipeError
    if it cannot be read."""
    from shuhari.lab.claims.result import read_kept

    for at, where in ((OUT / "claims", str(OUT)), (find_results(), BRINGS)):
        found = keep((at / f"{name}.json").absolute(), "result", lambda at=at: read_kept(name, at))  # type: ignore[misc]
        if found is not None:
            return found, where
    return None


def read_all() -> tuple[dict[str, tuple[dict[str, Any], str]], list[str]]:
    """Return (name -> as from `read_one`, for methods with a result; messages about those that could not be read)."""
    found, problems = {}, []
    for method in list_recipes():
        try:
            one = read_one(method.name) if method.problem is None else None
        except RecipeError as error:
            problems.append(str(error))
            continue
        if one is not None:
            found[method.name] = one
    return found, problems


def read_elsewhere(folder: str) -> list[dict[str, Any]]:
    """Return results below OUT other than claims: `explore`, `scale`. Invalid files are skipped."""
    import json

    out = []
    for path in sorted((OUT / folder).rglob("claims/**/*.json")):
        try:
            out.append(keep(path.absolute(), folder, lambda path=path: json.loads(path.read_text("utf-8"))))  # type: ignore[misc]
        except ValueError:
            continue
    return [r for r in out if isinstance(r, dict) and {"method", "bed", "arms", "checks"} <= r.keys()]


def find_card(bed: str) -> Any:
    """Return the card of a bed, in OUT or packaged; None if there is none."""
    from shuhari.lab.claims.cards import find

    for at in ((OUT / "beds").absolute(), find_cards()):
        path = at / f"{bed.removeprefix(f'{BEDS}/')}.json"
        found = keep(path, "card", lambda at=at: find(bed, at))  # type: ignore[misc]
        if found is not None:
            return found
    return None


def list_claimed(among: Collection[str] | None = None) -> Iterator[Method]:
    """Yield the recipes (of those in `among`, or all) that have a claim, or a result of one."""
    for method in list_recipes():
        if among is not None and method.name not in among:
            continue
        if method.problem is None and (describe(method.name).get("claim") or read_one(method.name) is not None):
            yield method


@lru_cache(maxsize=1024)
def describe(name: str) -> Mapping[str, Any]:
    """Return a recipe's own table, before it is laid over others; empty if there is none of that name."""
    source = find_recipe(name)
    return {} if source is None else read_table(name, source)


def knows_core(*, wait: bool = False) -> bool:
    """Whether the digest of the core is known; a thread computes it. With `wait` it is computed first."""
    from shuhari.lab.claims.sources import digest_core

    if wait:
        digest_core()
        return True
    if not _core:
        _core.append(threading.Thread(target=preload, daemon=True))
        _core[0].start()
    return not _core[0].is_alive()


def preload() -> None:
    """Import and compute in advance what rollouts and claims need, so that the first page does not wait for it."""
    from shuhari.store import rollouts  # noqa: F401, I001 - first: it is asked for first, and takes longest

    import scipy.stats  # noqa: F401

    from shuhari.lab.claims.board import rank  # noqa: F401
    from shuhari.lab.claims.looks import LOOKS, simulate_power
    from shuhari.lab.claims.sources import digest_core

    simulate_power(LOOKS)
    digest_core()
