"""Trackers that a run's reports go to: Weights & Biases and Trackio beside TensorBoard (`tensorboard.py`).

None may stop or slow a run: each has a thread of its own, reports wait for it in a queue of bounded length, and one
that fails is said once and gets no more. Keys are theirs to find (`wandb login`, WANDB_API_KEY, HF_TOKEN): nothing here
reads or writes them. Left out: pictures, texts, weights; going on with the tracker's run where a run goes on (`id` and
`resume` of W&B do).
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
from typing import Any

from shuhari.data import Info, nearest
from shuhari.desk.tensorboard import LEFT_OUT, TensorBoard, is_number
from shuhari.loop.stopping import ASKED, Stop
from shuhari.ports.hooks import ability

WAITING = 1000  # reports that wait for a tracker; what comes then is left out, and counted
CLOSING = 15.0  # seconds that the end of a run waits for what is still to be sent

log = logging.getLogger("shuhari")


class Tracker:
    """Sends every number of each report it is called with to `package` (`wandb` or `trackio`), in a thread of its own.

    open: () -> what `finish` is called of, with the package's `log`, as both have them; called in that thread, with the
    first report. Raises ModuleNotFoundError where the package is not installed.
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
        """Wait for what is still to be sent, CLOSING seconds at most; then it is given up, and said."""
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
        except BaseException as error:  # of a library that may even exit
            self.failed = f"{type(error).__name__}: {str(error).strip()[:300]}"
            log.warning("%s gets no more numbers: %s", self.package, self.failed)


def track_wandb(project: str = "shuhari", **settings: Any) -> Tracker:
    """Weights & Biases: `shuhari.train(..., observe=shuhari.WandB("project", name="run"))`. `settings` are those of
    `wandb.init` (`name`, `entity`, `config`, `id`, `resume`, `mode`); WANDB_MODE=offline needs no network, no key."""

    def open_run(wandb: Any) -> Any:
        how = wandb.Settings(console="off", silent=True, disable_code=True, disable_git=True,
                             init_timeout=CLOSING)  # fmt: skip
        offline = settings.get("mode", os.environ.get("WANDB_MODE")) in ("offline", "disabled", "dryrun")
        wandb.setup(settings=how)
        if not offline and not wandb.login(prompt=False):
            raise RuntimeError("no key is configured: `wandb login`, or WANDB_MODE=offline")  # it would ask for one
        return wandb.init(**{"project": project, "settings": how, **settings})

    return Tracker("wandb", open_run)


def track_trackio(project: str = "shuhari", **settings: Any) -> Tracker:
    """Trackio, which keeps numbers on this machine (`trackio show`): `observe=shuhari.Trackio("project")`. `settings`
    are those of `trackio.init` (`name`, `config`, `space_id`)."""
    return Tracker("trackio", lambda trackio: trackio.init(**{"project": project, "embed": False, **settings}))


class Watchers:
    """What is called with each report of a run, as a context manager: they are closed at the end."""

    def __init__(self, given: Callable[[Info], object] | Iterable[Callable[[Info], object]]) -> None:
        self._all = [given] if callable(given) else list(given)
        self.active = list(self._all)

    def __enter__(self) -> Watchers:
        return self

    def __exit__(self, *_: object) -> None:
        for one in self._all:
            ability(one, "close")()

    def tell(self, report: Info) -> str:
        """Call each. Why the run is to end after this step (one raised `Stop` or StopIteration, or returned False); ""
        if it goes on. One that raises anything else is called no more, with a line in the log: no run fails for one
        who looks on."""
        why = ""
        for one in list(self.active):
            try:
                why = ask(one, report) or why
            except Exception as error:
                self.active.remove(one)
                name = type(one).__name__
                log.warning("step %s: %s is called no more: %s: %s", report["step"], name, type(error).__name__, error)
        return why


def ask(call: Callable[[Info], object], report: Info) -> str:
    """Call what is called with reports; why the run is to end, "" if it goes on."""
    try:
        answer = call(report)
    except (Stop, StopIteration) as stop:
        return str(stop) or ASKED
    return "a callback returned False" if answer is False else ""


def open_sinks(words: Iterable[str], run: Path, config: Mapping[str, Any]) -> list[Any]:
    """The trackers of `--log-to`: `tensorboard[:FOLDER]`, `wandb[:PROJECT]` or `trackio[:PROJECT]`, for the run in a
    folder, with its recipe as `config`. ValueError for another word, ModuleNotFoundError without its package."""
    made: list[Any] = []
    for text in words:
        kind, _, where = text.partition(":")
        named = {"name": run.name, "config": dict(config)}
        if kind == "tensorboard":
            made.append(TensorBoard(where or Path("logs") / run.name))
        elif kind == "wandb":
            made.append(track_wandb(where or "shuhari", **named))
        elif kind == "trackio":
            made.append(track_trackio(where or "shuhari", **named))
        else:
            raise ValueError(f"no tracker {kind!r}; {nearest(kind, ('tensorboard', 'wandb', 'trackio'))}")
    return made
