"""How a process of our own begins: with no folder to import from but Python's own, until it is told where its parent
looks. Left out: what is said afterwards.

`python -P begin.py LINK MODULE ...` runs a module of this library. What is in the current folder is not run there: not
as Python starts, and not in the place of what the library imports. Where LINK is the number of a pipe and no `-`, the
parent's first message on it says which folders it imports from; they come behind all others.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

SAFE = "PYTHONSAFEPATH"


def build_command(module: str, *words: str, link: int | None = None) -> list[str]:
    """The command that runs a module of ours in a process of its own; the number of its end of `link` is its first
    argument, before `words`."""
    return [sys.executable, "-P", __file__, "-" if link is None else str(link), module, *words]


def list_places() -> dict[str, Any]:
    """Where this process finds modules, as plain data for `look_there`."""
    from shuhari.kernel import registry

    return {"path": [os.path.abspath(p) for p in sys.path], "beside": registry.list_beside()}


def send_places(link: Connection) -> None:
    """Say first on the link to a process of `build_command` where this one finds modules."""
    with suppress(BrokenPipeError, ConnectionResetError):  # it has ended: noticed when its answer is missed
        link.send_bytes(json.dumps(list_places()).encode())


@contextmanager
def keep_out() -> Iterator[None]:
    """While inside, any Python that is begun leaves the current folder out of the places where it finds modules, as
    `multiprocessing` does not by itself."""
    before = os.environ.get(SAFE)
    os.environ[SAFE] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[SAFE]


def look_there(places: Mapping[str, Any]) -> None:
    """Find modules where another process does, behind the places of this one."""
    sys.path += [p for p in dict.fromkeys(places["path"]) if p not in sys.path]
    if places["beside"]:
        from shuhari.kernel import registry

        for module, folders in places["beside"].items():
            registry.search_in(module, [Path(f) for f in folders])


def _import_ours() -> None:
    """Import this library and no other of its name, which may lie where the parent alone looks."""
    home = str(Path(__file__).parents[2])
    sys.path.insert(0, home)
    import shuhari

    assert shuhari
    del sys.path[0]
    if home not in sys.path:
        sys.path.append(home)


def _main(link: str, module: str, *words: str) -> None:
    _import_ours()
    if link != "-":
        with Connection(os.dup(int(link))) as told:
            look_there(json.loads(told.recv_bytes()))
    sys.argv = [module, *([] if link == "-" else [link]), *words]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    given: Sequence[str] = sys.argv[1:]
    _main(*given)
