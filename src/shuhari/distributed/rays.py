"""Workers as Ray actors: a Ray of the run's own on this machine, or a cluster that is joined.

A Ray of our own listens on the loopback address alone, asks for a token that is made for it and stands in the
environment of this process and its children only, has no dashboard, and ends with this process, however that ends. Ray
moves bytes here: what they say is our own codec's (`messages`). Left out: Ray's own restarts, placement, autoscaling.
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
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from pathlib import Path
from typing import Any

import numpy as np

from shuhari.config.overlay import RecipeError
from shuhari.distributed.children import read_end
from shuhari.distributed.crew import LOG, MOST
from shuhari.distributed.messages import LostWorkerError, unpack
from shuhari.distributed.work import Work

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
LINES = 12  # of a log that are shown
ANSWER = 10.0  # seconds in which an address takes a connection
MARKS = (":job_id:", ":actor_name:", ":task_name:")  # lines that Ray writes for itself
DETAIL = "Worker exit detail: "


def import_ray() -> Any:
    """The package. RecipeError where it is not installed."""
    try:
        import ray
    except ImportError:
        raise RecipeError("distributed.workers", INSTALL) from None
    return ray


class Actor:
    """`Work` in an actor's process. Weights come through the object store."""

    def __init__(self) -> None:
        self.work = Work()

    async def begin(self, message: bytes) -> bytes:
        return await self.work.begin(message)

    async def reach(self, message: bytes, blobs: Sequence[Any]) -> bytes:
        return await self.work.reach(message, [bytes(await blob) for blob in blobs])

    async def play(self, message: bytes) -> bytes:
        return await self.work.play(message)

    async def drop(self, message: bytes) -> bytes:
        return await self.work.drop(message)


class RayHand:
    """The actor of worker `index`."""

    def __init__(self, actor: Any, logs: Path | None, index: int) -> None:
        self.actor, self.logs, self.index, self.pid = actor, logs, index, 0

    def send(self, method: str, message: bytes, blobs: Sequence[Any] = ()) -> Future[bytes]:
        """Call a method of `Work`. In the future is LostWorkerError where the actor is not there, and else what the
        method has raised: it would raise it again."""
        out: Future[bytes] = Future()
        if not import_ray().is_initialized():  # of a run that ends: the call would start another Ray
            out.set_exception(LostWorkerError("Ray is not there any more"))
            return out
        try:
            ref = getattr(self.actor, method).remote(message, *([list(blobs)] if method == "reach" else ()))
            ref.future().add_done_callback(lambda found: self._settle(out, found, method))
        except Exception as error:
            out.set_exception(LostWorkerError(_explain(error)))
        return out

    def _settle(self, out: Future[bytes], found: Future[Any], method: str) -> None:
        with contextlib.suppress(InvalidStateError):  # nobody waits any more
            if (error := found.exception()) is not None:
                raised = _find_raised(error)
                if raised is not None:
                    raised.add_note(f"raised in worker {self.index}")
                out.set_exception(raised or LostWorkerError(_explain(error)))
                return
            if method == "begin":
                self.pid = unpack(found.result()).get("pid", 0)
            out.set_result(found.result())

    def tell(self) -> str:
        """The last lines that its process wrote, where its log is on this machine."""
        files = sorted(self.logs.glob(f"worker-*-{self.pid}.*")) if self.logs and self.pid else []
        lines = [line for file in files for line in read_end(file, LINES).splitlines() if not line.startswith(MARKS)]
        return "\n".join(lines)

    def close(self) -> None:
        """End the process."""
        with contextlib.suppress(Exception):
            if import_ray().is_initialized():
                import_ray().kill(self.actor)


class Rays:
    """A `Yard` of Ray actors. `address` "": of the Ray that this process has, or else of one that is started for it,
    with its files in `folder` ("": one of its own)."""

    def __init__(self, workers: int, address: str = "", folder: str = "") -> None:
        self.workers, self.address = workers, address
        self.world = World(address, folder)
        self.world.open()

    def hire(self, index: int) -> RayHand:
        """An actor, on the node that has the fewest where there are several."""
        own = not self.address
        options = {"num_cpus": 0 if own else 1, "max_concurrency": MOST + 100, "max_restarts": 0}
        made = self.world.ray.remote(Actor).options(**options, scheduling_strategy="DEFAULT" if own else "SPREAD")
        return RayHand(made.remote(), self.world.logs, index)

    def put(self, data: bytes) -> Any:
        """Bytes in the object store: once for all workers of a node."""
        return self.world.ray.put(np.frombuffer(data, np.uint8))

    def explain_loss(self) -> str:
        """Which process of a Ray of our own has ended."""
        return self.world.explain_loss()

    def restart(self) -> None:
        """Ray is not begun a second time in a process whose first one was killed (`rays_apart`): LostWorkerError."""
        raise LostWorkerError("the run cannot go on without it")

    def close(self) -> None:
        """End the Ray that was started here, or leave the cluster that was joined here."""
        self.world.close()


class World:
    """A Ray that this process is connected to."""

    ray: Any

    def __init__(self, address: str = "", folder: str = "") -> None:
        self.address, self.own, self.joined = address, False, False
        self._folder = folder
        self._before: dict[str, str | None] = {}
        self.logs: Path | None = None

    def open(self) -> None:
        """Connect, or start. RecipeError where there is no Ray at the address."""
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
        """RecipeError where the Ray that this process has is another than that of the address."""
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
        """For a Ray of our own, with a token that is in no file."""
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
        """"" while the processes of a Ray of our own live."""
        if not self.own:
            return ""
        with contextlib.suppress(AttributeError):
            processes = self.ray._private.worker._global_node.all_processes
            for kind, started in processes.items():
                if kind in ("raylet", "gcs_server") and any(p.process.poll() is not None for p in started):
                    return f"Ray's {kind} has ended"
        return ""

    def close(self) -> None:
        """End what was started here, leave what was joined."""
        own, joined, self.own, self.joined = self.own, self.joined, False, False
        if own or joined:
            with contextlib.suppress(Exception):
                self.ray.shutdown()
        if not own:
            return
        self._reset_environment()
        shutil.rmtree(self._folder, ignore_errors=True)


def _resolve(address: str) -> str:
    """host:port with the host as a number, as far as it is known; this machine's names are one."""
    host, _, port = address.rpartition(":")
    with contextlib.suppress(OSError):
        host = socket.gethostbyname(host)
        if host.startswith("127.") or host == socket.gethostbyname(socket.gethostname()):
            host = "127.0.0.1"
    return f"{host}:{port}"


def _read_environment() -> None:
    """Have Ray's core, if it is loaded, read how it asks for tokens, and which, again."""
    core: Any = sys.modules.get("ray._raylet")
    if core is not None:
        core.Config.initialize("")
        core.AuthenticationTokenLoader.instance().reset_cache()


@contextlib.contextmanager
def _kept_signals() -> Iterator[None]:
    """Ray sets a handler of its own for SIGTERM: the run's stays."""
    main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGTERM) if main else None
    yield
    if main and before is not None:
        signal.signal(signal.SIGTERM, before)


def _silence() -> None:
    """Ray prints what dies in words of its own, among the run's report: the crew says it."""
    with contextlib.suppress(Exception):
        from ray._private.ray_logging import global_worker_stdstream_dispatcher as told

        told.remove_handler("ray_print_logs")


def _find_raised(error: BaseException) -> Exception | None:
    """The error of a method that ran; None for what Ray itself reports, such as a death or a lost object."""
    known = import_ray().exceptions
    if not isinstance(error, known.RayTaskError):
        return None
    cause: Any = error.cause
    if isinstance(cause, known.RayError) and type(cause) is not known.RayError:  # itself: words of what no pickle takes
        return None
    return cause if isinstance(cause, Exception) else RuntimeError(f"{type(cause).__name__}: {cause}")


def _explain(error: BaseException) -> str:
    """What Ray says of a dead actor, in a line."""
    text = str(error)
    if DETAIL in text:
        text = text.partition(DETAIL)[2].partition(" Some common causes")[0]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return f"{type(error).__name__}: {(lines or ['no more is known'])[0][:300]}"
