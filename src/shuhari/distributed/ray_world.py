"""This process's connection to Ray: a Ray of the run's own on this machine, or a cluster that is joined.

A Ray of our own listens on the loopback address alone, asks for a token that is made for it and exists only in the
environment of this process and its children, has no dashboard, and ends with this process, however that ends.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from shuhari.config.overlay import RecipeError
from shuhari.distributed.hands import LOG

INSTALL = 'Ray is not installed: pip install "shuhari[ray]"'
OWN = {  # the environment of a Ray of our own; the first is how Ray is told to keep to the loopback address
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_AUTH_MODE": "token",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_ENABLE_AUTO_CONNECT": "0",  # else a call that comes after the end starts another one
}
LOOPBACK = "ENABLE_RAY_CLUSTER"  # what Ray has made of the first of them
UNSET = ("RAY_ADDRESS", "RAY_AUTH_TOKEN_PATH")  # which would lead elsewhere
HEALTH = {"health_check_initial_delay_ms": 1000, "health_check_period_ms": 1000, "health_check_failure_threshold": 5}
ANSWER = 10.0  # seconds in which an address takes a connection


def import_ray() -> Any:
    """Import and return the package `ray`. Raises RecipeError if it is not installed."""
    try:
        import ray
    except ImportError:
        raise RecipeError("distributed.workers", INSTALL) from None
    return ray


class World:
    """A Ray that this process is connected to."""

    ray: Any

    def __init__(self, address: str = "", folder: str = "") -> None:
        self.address, self.own, self.joined = address, False, False
        self._folder = folder
        self._before: dict[str, str | None] = {}
        self.logs: Path | None = None

    def open(self) -> None:
        """Connect to Ray, or start it. Raises RecipeError if there is no Ray at the address."""
        if self.address.startswith("ray://"):
            message = f"{self.address!r}: expected `auto` or host:port of a cluster that this machine is a node of"
            raise RecipeError("distributed.address", message)
        if not self.address and "ray" not in sys.modules:
            self._set_environment()  # which Ray reads as it is imported
        self.ray = import_ray()
        if self.ray.is_initialized():
            if self.address:
                self._check_address()
                self._warn()
            self.logs = self._find_logs()
            return
        with _kept_signals():
            if self.address:
                self._join()
            else:
                self._start()
        self.logs = self._find_logs()
        _silence()

    def _join(self) -> None:
        host, _, port = self.address.rpartition(":")
        try:
            if host and port.isdigit():  # Ray would ask again for minutes
                socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWER).close()
            self.ray.init(address=self.address, log_to_driver=False, logging_level=logging.ERROR)
        except (OSError, OverflowError, RuntimeError, ValueError) as error:
            message = f"no Ray answers at {self.address!r}: {str(error)[:300]}"
            raise RecipeError("distributed.address", message) from error
        self.joined = True
        self._warn()

    def _check_address(self) -> None:
        """Raise RecipeError if this process is connected to another Ray than the address names."""
        here = str(self.ray.get_runtime_context().gcs_address)
        if self.address != "auto" and _resolve(self.address) != _resolve(here):
            message = f"{self.address!r}, and this process is connected to Ray at {here!r}: ray.shutdown() first"
            raise RecipeError("distributed.address", message)

    def _warn(self) -> None:
        if os.environ.get("RAY_AUTH_MODE") != "token":
            LOG.warning("the Ray cluster at %s asks for no token: whoever reaches it may run code on it "
                        "(RAY_AUTH_MODE=token on every node)", self.address)  # fmt: skip

    def _start(self) -> None:
        self._set_environment()
        constants = vars(sys.modules["ray._private.ray_constants"])  # read before the environment said so
        known = constants.get(LOOPBACK)
        place = "/tmp" if Path("/tmp").is_dir() else None  # names of sockets are short
        self._folder = self._folder or tempfile.mkdtemp(prefix="shuhari-ray-", dir=place)  # of this user alone
        self.own = True
        try:
            constants[LOOPBACK] = False
            self.ray.init(address="local", include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR,
                          configure_logging=False, _temp_dir=f"{self._folder}/r", _system_config=HEALTH)  # fmt: skip
        except BaseException:
            self.close()
            raise
        finally:
            constants[LOOPBACK] = known
        if (host := self.ray.util.get_node_ip_address()) != "127.0.0.1":
            LOG.warning("Ray listens on %s, and not on the loopback address alone; it asks for a token", host)

    def _set_environment(self) -> None:
        """Set the environment for a Ray of our own, with a token that is in no file."""
        if self._before:
            return
        wanted = {**OWN, "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        self._before = {name: os.environ.get(name) for name in (*wanted, *UNSET)}
        os.environ.update(wanted)
        for name in UNSET:
            os.environ.pop(name, None)
        _read_environment()

    def _reset_environment(self) -> None:
        for name, value in self._before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        self._before = {}
        _read_environment()

    def _find_logs(self) -> Path | None:
        with contextlib.suppress(Exception):
            return Path(self.ray._private.worker._global_node.get_logs_dir_path())
        return None

    def explain_loss(self) -> str:
        """Return which process of a Ray of our own has ended; "" if none has."""
        if not self.own:
            return ""
        with contextlib.suppress(AttributeError):
            processes = self.ray._private.worker._global_node.all_processes
            for kind, started in processes.items():
                if kind in ("raylet", "gcs_server") and any(p.process.poll() is not None for p in started):
                    return f"Ray's {kind} has ended"
        return ""

    def close(self) -> None:
        """End the Ray that was started here, and leave a joined cluster."""
        own, joined, self.own, self.joined = self.own, self.joined, False, False
        if own or joined:
            with contextlib.suppress(Exception):
                self.ray.shutdown()
        if not own:
            return
        self._reset_environment()
        shutil.rmtree(self._folder, ignore_errors=True)


def _resolve(address: str) -> str:
    """Return host:port with the host as a number, if it is known; all names of this machine become 127.0.0.1."""
    host, _, port = address.rpartition(":")
    with contextlib.suppress(OSError):
        host = socket.gethostbyname(host)
        if host.startswith("127.") or host == socket.gethostbyname(socket.gethostname()):
            host = "127.0.0.1"
    return f"{host}:{port}"


def _read_environment() -> None:
    """Make Ray's core, if it is loaded, read again whether to use tokens, and which."""
    core: Any = sys.modules.get("ray._raylet")
    if core is not None:
        core.Config.initialize("")
        core.AuthenticationTokenLoader.instance().reset_cache()


@contextlib.contextmanager
def _kept_signals() -> Iterator[None]:
    """Keep the run's handler of SIGTERM, which Ray replaces."""
    main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGTERM) if main else None
    yield
    if main and before is not None:
        signal.signal(signal.SIGTERM, before)


def _silence() -> None:
    """Stop Ray from printing deaths among the run's report, as the crew reports them."""
    with contextlib.suppress(Exception):
        from ray._private.ray_logging import global_worker_stdstream_dispatcher as told

        told.remove_handler("ray_print_logs")
