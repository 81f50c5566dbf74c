"""Starting a process of our own: it imports only from Python's own folders until its parent sends where else to look.
Left out: the later messages.

`python -P begin.py LINK MODULE ...` runs a module of this library. Nothing in the current folder is run: not as Python
starts, and not in the place of what the library imports. If LINK is the number of a pipe and not `-`, the parent's
first message on it lists the folders that it imports from; they are appended behind all others.
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
    """Return the command that runs a module of ours in its own process; the number of its end of `link` is its first
    argument, before `words`."""
    return [sys.executable, "-P", __file__, "-" if link is None else str(link), module, *words]


def list_places() -> dict[str, Any]:
    """Return the folders in which this process finds modules, as plain data for `look_there`."""
    from shuhari.kernel import registry

    return {"path": [os.path.abspath(p) for p in sys.path], "beside": registry.list_beside()}


def send_places(link: Connection) -> None:
    """Send, as the first message on the link to a process of `build_command`, where this one finds modules."""
    with suppress(BrokenPipeError, ConnectionResetError):  # it has ended: noticed when its answer is missed
        link.send_bytes(json.dumps(list_places()).encode())


@contextmanager
def keep_out() -> Iterator[None]:
    """Make any Python that is started inside leave the current folder out of its import path, which `multiprocessing`
    does not do by itself."""
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
    """Import this library and no other of its name, which may lie where only the parent looks."""
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
