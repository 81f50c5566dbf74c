"""Trackers for a run's reports: Weights & Biases and Trackio, beside TensorBoard (`tensorboard.py`).

A tracker cannot stop or slow a run: each has a thread of its own with a bounded queue of reports, and after an error,
which is logged once, it gets no more. Trackers find their own keys (`wandb login`, WANDB_API_KEY, HF_TOKEN); nothing
here reads or writes them. Left out: pictures, texts, weights; resuming the tracker's run together with the run (`id`
and `resume` of W&B do that).
"""

from __future__ import annotations

import importlib
import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from types import FunctionType, MethodType
from typing import Any

from shuhari.data import Info, nearest
from shuhari.desk.tensorboard import LEFT_OUT, TensorBoard, is_number
from shuhari.loop.stopping import ASKED, Stop
from shuhari.ports.hooks import ability

WAITING = 1000  # reports in the queue of a tracker; further ones are dropped and counted
BLUNDERS = (LookupError, TypeError, NameError, AttributeError)  # errors of a program, not of what it writes to
CLOSING = 15.0  # seconds that the end of a run waits for unsent reports

log = logging.getLogger("shuhari")


class Tracker:
    """Sends every number of each report to `package` (`wandb` or `trackio`), in a thread of its own.

    open: called in that thread with the first report; it gets the package and returns an object with `log` and
    `finish`. Raises ModuleNotFoundError if the package is not installed.
    """

    def __init__(self, package: str, open: Callable[[Any], Any]) -> None:
        if find_spec(package) is None:
            raise ModuleNotFoundError(f'{package} is not installed: pip install "shuhari[{package}]"')
        self.package, self._open = package, open
        self._queue: queue.Queue[tuple[int, dict[str, float]] | None] = queue.Queue(WAITING)
        self._thread: threading.Thread | None = None
        self.failed, self.lost = "", 0

    def __call__(self, report: Mapping[str, Any]) -> None:
        if self.failed:
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._send, daemon=True, name=self.package)
            self._thread.start()
        try:
            numbers = {k: float(v) for k, v in report.items() if k not in LEFT_OUT and is_number(v)}
            self._queue.put_nowait((int(report["step"]), numbers))
        except queue.Full:
            self.lost += 1

    def close(self) -> None:
        """Wait for unsent reports, at most CLOSING seconds; what is left then is dropped, with a warning."""
        if self._thread is None:
            return
        end = time.monotonic() + CLOSING
        while self._thread.is_alive() and time.monotonic() < end:
            try:
                self._queue.put_nowait(None)
                break
            except queue.Full:
                time.sleep(0.05)
        self._thread.join(max(0.0, end - time.monotonic()))
        if self._thread.is_alive():
            log.warning("%s has not taken everything within %g s: given up", self.package, CLOSING)
        elif self.lost and not self.failed:
            log.warning("%s was too slow for %d reports: they are not there", self.package, self.lost)
        self._thread = None

    def _send(self) -> None:
        try:
            made = self._open(importlib.import_module(self.package))
            while (item := self._queue.get()) is not None:
                step, numbers = item
                made.log(numbers, step=step)
            made.finish()
        except BaseException as error:  # the library may even exit
            self.failed = f"{type(error).__name__}: {str(error).strip()[:300]}"
            log.warning("%s gets no more numbers: %s", self.package, self.failed)


def track_wandb(project: str = "shuhari", **settings: Any) -> Tracker:
    """Return a tracker for Weights & Biases: `shuhari.train(..., observe=shuhari.WandB("project", name="run"))`.
    `settings` are those of `wandb.init` (`name`, `entity`, `config`, `id`, `resume`, `mode`); WANDB_MODE=offline needs
    no network and no key."""

    def open_run(wandb: Any) -> Any:
        how = wandb.Settings(console="off", silent=True, disable_code=True, disable_git=True,
                             init_timeout=CLOSING)  # fmt: skip
        offline = settings.get("mode", os.environ.get("WANDB_MODE")) in ("offline", "disabled", "dryrun")
        wandb.setup(settings=how)
        if not offline and not wandb.login(prompt=False):
            raise RuntimeError("no key is configured: `wandb login`, or WANDB_MODE=offline")  # else it prompts
        return wandb.init(**{"project": project, "settings": how, **settings})

    return Tracker("wandb", open_run)


def track_trackio(project: str = "shuhari", **settings: Any) -> Tracker:
    """Return a tracker for Trackio, which stores numbers on this machine (`trackio show`):
    `observe=shuhari.Trackio("project")`. `settings` are those of `trackio.init` (`name`, `config`, `space_id`)."""
    return Tracker("trackio", lambda trackio: trackio.init(**{"project": project, "embed": False, **settings}))


class Watchers:
    """The callbacks for each report of a run, as a context manager that closes them at the end."""

    def __init__(self, given: Callable[[Info], object] | Iterable[Callable[[Info], object]]) -> None:
        if not callable(given) and not isinstance(given, Iterable):
            given = [given]
        self._all = [given] if callable(given) else list(given)
        for one in self._all:
            if not callable(one):
                raise TypeError(f"observe: a {type(one).__name__}: expected a function of a step's report (name -> "
                                "number), or several; one that returns False ends the run")  # fmt: skip
        self.active, self._begun = list(self._all), False

    def __enter__(self) -> Watchers:
        return self

    def __exit__(self, *_: object) -> None:
        for one in self._all:
            ability(one, "close")()

    def tell(self, report: Info) -> str:
        """Call each callback. Returns why the run is to end after this step (one raised `Stop` or StopIteration, or
        returned False), or "". A callback that raises anything else is logged and not called again, so that no run
        fails because of one; but a mistake in its code (BLUNDERS) at its first call is raised."""
        why, first, self._begun = "", not self._begun, True
        for one in list(self.active):
            try:
                why = ask(one, report) or why
            except Exception as error:
                name = one.__name__ if isinstance(one, FunctionType | MethodType) else type(one).__name__
                if first and isinstance(error, BLUNDERS):
                    error.add_note(f"raised by the callback {name!r} at its first call, with the report of step "
                                   f"{report['step']} ({', '.join(sorted(report))}); once it is mended, the same call "
                                   "goes on")  # fmt: skip
                    raise
                self.active.remove(one)
                log.warning("step %s: %s is called no more: %s: %s", report["step"], name, type(error).__name__, error)
        return why


def ask(call: Callable[[Info], object], report: Info) -> str:
    """Call a callback with a report. Returns why the run is to end, or ""."""
    try:
        answer = call(report)
    except (Stop, StopIteration) as stop:
        return str(stop) or ASKED
    return "a callback returned False" if answer is False else ""


def open_sinks(words: Iterable[str], run: Path, config: Mapping[str, Any]) -> list[Any]:
    """Return the trackers of `--log-to`: `tensorboard[:FOLDER]`, `wandb[:PROJECT]` or `trackio[:PROJECT]`, for the run
    in a folder, with its recipe as `config`. Raises ValueError for another word, ModuleNotFoundError without the
    package."""
    made: list[Any] = []
    for text in words:
        kind, _, where = text.partition(":")
        named = {"name": run.name, "config": dict(config)}
        if kind == "tensorboard":
            axis = "spent/env_steps" if "env_steps" in config else "step"  # as the run's budget is counted
            made.append(TensorBoard(where or Path("logs") / run.name, axis))
        elif kind == "wandb":
            made.append(track_wandb(where or "shuhari", **named))
        elif kind == "trackio":
            made.append(track_trackio(where or "shuhari", **named))
        else:
            raise ValueError(f"expected a tracker, got {kind!r}; {nearest(kind, ('tensorboard', 'wandb', 'trackio'))}")
    return made
