"""Results of claims and cards of beds, as the board reads them: kept as long as their files do not change.

As in the terminal a result below `OUT` stands before the one that the library brings. Whether the core has changed
since takes seconds to find out, and is told once a thread knows.
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
BRINGS = "shuhari"  # what the results are of that the library brings
_known: dict[tuple[Path, str], tuple[tuple[int, int], Any]] = {}
_core: list[threading.Thread] = []
Read = TypeVar("Read")


def keep(path: Path, what: str, read: Callable[[], Read]) -> Read | None:
    """What `read` gives of a file, read again where the file has changed; None where there is no such file."""
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
    """(the result of a method's claim, where it is from: OUT or `BRINGS`); None where there is none. RecipeError where
    it cannot be read."""
    from shuhari.lab.claims.result import read_kept

    for at, where in ((OUT / "claims", str(OUT)), (find_results(), BRINGS)):
        found = keep((at / f"{name}.json").absolute(), "result", lambda at=at: read_kept(name, at))  # type: ignore[misc]
        if found is not None:
            return found, where
    return None


def read_all() -> tuple[dict[str, tuple[dict[str, Any], str]], list[str]]:
    """(name -> as `read_one`, of the methods that have a result; why some could not be read)."""
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
    """Results below OUT beside those of claims: `explore`, `scale`. What is no result is left out."""
    import json

    out = []
    for path in sorted((OUT / folder).rglob("claims/**/*.json")):
        try:
            out.append(keep(path.absolute(), folder, lambda path=path: json.loads(path.read_text("utf-8"))))  # type: ignore[misc]
        except ValueError:
            continue
    return [r for r in out if isinstance(r, dict) and {"method", "bed", "arms", "checks"} <= r.keys()]


def find_card(bed: str) -> Any:
    """The card of a bed, OUT's before the library's; None where there is none."""
    from shuhari.lab.claims.cards import find

    for at in ((OUT / "beds").absolute(), find_cards()):
        path = at / f"{bed.removeprefix(f'{BEDS}/')}.json"
        found = keep(path, "card", lambda at=at: find(bed, at))  # type: ignore[misc]
        if found is not None:
            return found
    return None


def list_claimed(among: Collection[str] | None = None) -> Iterator[Method]:
    """The recipes (of those `among`, else all) that state a claim, or have a result of one."""
    for method in list_recipes():
        if among is not None and method.name not in among:
            continue
        if method.problem is None and (describe(method.name).get("claim") or read_one(method.name) is not None):
            yield method


@lru_cache(maxsize=1024)
def describe(name: str) -> Mapping[str, Any]:
    """What a recipe's own file says, before it is laid over others; nothing of one that is not there."""
    source = find_recipe(name)
    return {} if source is None else read_table(name, source)


def knows_core(*, wait: bool = False) -> bool:
    """Whether the digest of the core is known, or is now with `wait`; a thread computes it meanwhile."""
    from shuhari.lab.claims.sources import digest_core

    if wait:
        digest_core()
        return True
    if not _core:
        _core.append(threading.Thread(target=warm, daemon=True))
        _core[0].start()
    return not _core[0].is_alive()


def warm() -> None:
    """Import what rollouts and claims need, and learn what takes long, so that the first page does not wait for it."""
    from shuhari.store import rollouts  # noqa: F401, I001 - first: it is asked for first, and takes longest

    import scipy.stats  # noqa: F401

    from shuhari.lab.claims.board import rank  # noqa: F401
    from shuhari.lab.claims.looks import LOOKS, simulate_power
    from shuhari.lab.claims.sources import digest_core

    simulate_power(LOOKS)
    digest_core()
