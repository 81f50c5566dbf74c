"""Changes made by the board with the same functions as the terminal: runs are removed, renamed and tagged."""

from __future__ import annotations

from typing import Any

from shuhari.desk.board.catalogue import Catalogue
from shuhari.desk.serving.refusals import Refused
from shuhari.store import LockedError, StoreError, remove_run, rename_run, tag_run

MOST = 200  # runs of a change


def delete_runs(runs: Catalogue, run: list[str]) -> dict[str, Any]:
    """Remove runs, as `shuhari runs NAME --rm`. Returns {removed, left, failed}; left: name -> files that stay in the
    folder because the library did not write them; failed: name -> why it was not removed."""
    paths = {name: runs.find(name) for name in _check(run)}
    removed, left, failed = list[str](), dict[str, list[str]](), dict[str, str]()
    for name, path in paths.items():
        try:
            others = remove_run(path)
        except StoreError as error:
            if len(paths) == 1:
                raise
            failed[name] = str(error)
            continue
        removed.append(name)
        if others:
            left[name] = others
    return {"removed": removed, "left": left, "failed": failed}


def rename(runs: Catalogue, run: str, to: str) -> dict[str, str]:
    """Rename a run, as `shuhari runs NAME --rename NEW`. Returns {name}."""
    (name,) = _check([run])
    path = runs.find(name)
    try:
        return {"name": str(rename_run(path, to, runs.root).relative_to(runs.root))}
    except LockedError:
        raise
    except StoreError as error:
        raise Refused(str(error), "to") from None


def tag(runs: Catalogue, run: list[str], add: list[str] = [], remove: list[str] = []) -> dict[str, Any]:  # noqa: B006
    """Tag runs, as `shuhari runs NAME --tag x --untag y`. Returns {tags: name -> the tags of the run}."""
    paths = {name: runs.find(name) for name in _check(run)}
    try:
        return {"tags": {name: tag_run(path, add, remove) for name, path in paths.items()}}
    except StoreError as error:
        raise Refused(str(error), "add") from None


def _check(names: list[str]) -> list[str]:
    """Return distinct names, and refuse `latest`, whose meaning may change meanwhile."""
    if not 0 < len(names) <= MOST or "latest" in names:
        raise Refused(f"run names {len(names)} runs: expected 1 to {MOST}, each by its own name, not `latest`", "run")
    return list(dict.fromkeys(names))
