"""Opens the policy of a run, or of a directory, and serves it until a signal ends it."""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SHORTEST = 16  # characters of a key
BACKLOG = 2048  # connections that wait to be accepted


@dataclass(frozen=True)
class Opened:
    """A policy, its origin as text, and the name that it is served under."""

    model: Any
    origin: str
    name: str


def open_policy(run: str, role: str = "policy") -> Opened:
    """Open the model of `RUN`, `RUN@step`, `RUN@best`, or of a directory of Hugging Face or an export. Raises
    NoRunError, StoreError or ValueError if it cannot be opened."""
    from shuhari.desk.api import load
    from shuhari.desk.opening import find_kind, find_run
    from shuhari.store import Run

    if find_kind(Path(run)):
        return Opened(load(run, role=role).model, run, Path(run).resolve().name)
    path, step = find_run(run)
    at = step if step is not None else int((Run(path).cursor or {"step": -1})["step"])
    return Opened(load(path, role=role, step=step).model, f"step {at} of {path}", f"{path.resolve().name}@{at}")


def read_key(variable: str, environment: Mapping[str, str], host: str) -> str:
    """Return the key in an environment variable; "" without a variable, which is allowed only on loopback. Raises
    ValueError, which never shows a key."""
    if not variable:
        from shuhari.desk.serving.guard import is_loopback  # imports what `check_installed` checks first

        if not is_loopback(host):
            raise ValueError(f"--host {host} accepts requests from other machines: name the variable that holds a key "
                             "with --key-env")  # fmt: skip
        return ""
    key = environment.get(variable, "").strip()
    if len(key) < SHORTEST or not key.isascii() or not key.isprintable():
        state = "is not set" if not key else f"holds {len(key)} characters"
        raise ValueError(f"the environment variable {variable} {state}: expected a key of at least {SHORTEST} "
                         "printable ASCII characters, such as `openssl rand -hex 32` gives")  # fmt: skip
    return key


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket. Raises OSError if the address is taken, or does not belong to this machine."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=BACKLOG)


def check_installed(command: str = "serve") -> None:
    """Raises ModuleNotFoundError, with the install command, if a package of the server for `shuhari COMMAND` is
    missing."""
    try:
        import starlette
        import uvicorn
    except ModuleNotFoundError as error:
        needed = f'shuhari {command} needs starlette and uvicorn: pip install "shuhari[{command}]"'
        raise ModuleNotFoundError(needed) from error
    _ = starlette, uvicorn


def make_server(app: Any, grace: int = 5, key: str = "") -> Any:
    """Return uvicorn's server for `app`; streams have `grace` seconds to end. Some places are reserved for requests
    with the `key`."""
    import uvicorn
    from uvicorn.protocols.http.auto import AutoHTTPProtocol

    from shuhari.desk.serving.doors import Doors, find_most

    doors = Doors(app, AutoHTTPProtocol, key, find_most())
    http: Any = doors.connect  # uvicorn expects a class, and calls it
    config = uvicorn.Config(
        doors, http=http, log_config=None, log_level="warning", access_log=False, server_header=False, date_header=True,
        proxy_headers=False, lifespan="off", ws="none", backlog=BACKLOG, timeout_graceful_shutdown=grace,
    )  # fmt: skip
    return uvicorn.Server(config)


def serve(app: Any, at: socket.socket, ready: Callable[[], None], grace: int = 5, key: str = "") -> None:
    """Serve `app` until SIGINT or SIGTERM. `ready` is called when it begins."""
    server = make_server(app, grace, key)
    before = {s: signal.signal(s, lambda *_: None) for s in (signal.SIGINT, signal.SIGTERM)}
    try:  # uvicorn handles the signals and, once it has ended, raises them again for the previous handlers
        ready()
        server.run(sockets=[at])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
