"""Further processes of a run on this machine: starting them, calling them, noticing their death, and ending them.
Messages are the codec's, over one pipe each; their logs lie in one folder below the temporary files. Needs POSIX."""

from __future__ import annotations

import shutil
import signal
import subprocess
import tempfile
import time
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from shuhari.distributed.children import open_process, read_end
from shuhari.distributed.group import TIMEOUT
from shuhari.kernel.abilities import do_nothing
from shuhari.store import codec

DONE, FAILED = b"\x00", b"\x01"  # how an answer begins
PATIENCE = 5.0  # seconds for processes to end in peace
MOMENT = 2.0  # seconds until a killed process counts as ended
GLANCE = 0.1  # seconds between two looks at what is in flight, while others compute
LINES = 20  # of a log that an error shows


class RankError(RuntimeError):
    """The error if a learner process failed or died: it names the process and has the last lines of its log."""


class Process:
    """A further process, the link to it, and its log; `asked`: the name of its last call."""

    def __init__(self, module: str, number: int, folder: Path) -> None:
        self.number, self.asked, self.log = number, "", folder / f"learner-{number}.log"
        # nothing is written to its standard input: that tells the process that we live
        self.process, self.link = open_process(module, self.log, subprocess.PIPE)


class Processes:
    """The processes that run `module` (`distributed.rank`), in a team of `size`. `doing`: name of a call -> its
    description; `anew`: a hint for one that fails as it starts; `glance`: called while waiting; `ended`: called before
    all are ended. Every call raises RankError for what goes wrong in one of them, and then ends them all."""

    def __init__(self, module: str, size: int, doing: Mapping[str, str], anew: str, glance: Callable[[], None],
                 ended: Callable[[], None]) -> None:  # fmt: skip
        self.module, self.size, self.doing, self.anew = module, size, doing, anew
        self.glance, self.ended = glance, ended
        self.others: list[Process] = []
        self._end: Any = do_nothing  # before there are processes

    def start(self, setups: Mapping[int, Mapping[str, Any]]) -> Path:
        """Start one process for each number, send it its setup and the `folder` in which all meet, and return the
        folder."""
        folder = Path(tempfile.mkdtemp(prefix="shuhari-learners-"))
        self._end = weakref.finalize(self, _end, self.others, folder)
        for number in setups:
            self.others.append(Process(self.module, number, folder))
        for other in self.others:
            with suppress(BrokenPipeError, ConnectionResetError):
                other.link.send_bytes(codec.dumps({**setups[other.number], "folder": str(folder)}))
        for other in self.others:  # what goes wrong before they meet is said in words
            other.asked = "starting"
        return folder

    def wait_until(self, has_come: Callable[[Process], bool]) -> None:
        """Wait for each process, or for its failure."""
        until = time.monotonic() + TIMEOUT
        while not all(other.link.poll(0) or has_come(other) for other in self.others):
            time.sleep(0.01)
            if time.monotonic() > until:
                raise self.fail(self.others[0], f"or another one has not begun in {TIMEOUT:.0f} s, while")
        for other in self.others:
            if other.link.poll(0):
                self.answer(other)  # which fails

    def close(self) -> None:
        """End the processes: by request, and after a few seconds by a signal."""
        self.ended()
        self._end()
        self.others, self._end = [], do_nothing

    # ---------------------------------------------------------------- what is said

    def ask(self, other: Process, ask: str, **rest: Any) -> None:
        self._send(other, ask, codec.dumps({"ask": ask, **rest}))

    def ask_all(self, ask: str, **rest: Any) -> None:
        data = codec.dumps({"ask": ask, **rest})
        for other in self.others:
            self._send(other, ask, data)

    def _send(self, other: Process, ask: str, data: bytes) -> None:
        other.asked = ask
        with suppress(BrokenPipeError, ConnectionResetError):  # reported when the answer is missed
            other.link.send_bytes(data)

    def answer(self, other: Process, *, still: bool = False) -> Any:
        """Return the answer of one process; rollouts in flight go on meanwhile, unless `still`. The wait lasts as long
        as all processes live, as the duration of a step is unknown; while it starts, at most TIMEOUT."""
        until = time.monotonic() + TIMEOUT
        try:
            while not other.link.poll(GLANCE):
                gone = next((o for o in self.others if o.process.poll() is not None), None)
                if gone is not None and not other.link.poll(0):  # the one asked may wait for it
                    raise self._blame(gone, "failed while")
                if not still:
                    self.glance()
                if other.asked == "starting" and time.monotonic() > until:
                    raise self.fail(other, f"has not answered for {TIMEOUT:.0f} s, while")
            answer = other.link.recv_bytes()
        except (EOFError, OSError):
            answer = b""
        if answer[:1] != DONE:
            raise self._blame(other, "failed while" if answer else "died while")
        return codec.loads(answer[1:], limit=2**40) if len(answer) > 1 else None

    def answers(self, *, still: bool = False) -> list[Any]:
        """Return the answers of all processes, in order."""
        return [self.answer(other, still=still) for other in self.others]

    # ---------------------------------------------------------------- what may go wrong

    def find_dead(self, error: object, first: Process | None = None) -> RankError:
        """Return the error naming the process to blame if all of them together failed to go on: any that has ended
        within PATIENCE, one that a signal ended before others, else `first`."""
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            for other in self.others:
                if other.process.poll() is not None:
                    return self._blame(other, "died while")
            time.sleep(0.05)
        return self.fail(first or self.others[0], f"or another one did not go on ({error}), while")

    def _blame(self, other: Process, how: str) -> RankError:
        """Return the error of a process that cannot go on, or of one that a signal ended, for want of which it cannot:
        the connections of a killed process close, and the others fail, before it counts as ended."""
        until = time.monotonic() + MOMENT
        while True:
            codes = [other.process.poll() for other in self.others]
            killed = [other for other, code in zip(self.others, codes, strict=True) if code is not None and code < 0]
            if killed:
                return self.fail(killed[0], "died while")
            if None not in codes or time.monotonic() > until:
                return self.fail(other, how)
            time.sleep(0.02)

    def fail(self, other: Process, how: str) -> RankError:
        """Return the error of a process that failed or died, and end all."""
        with suppress(subprocess.TimeoutExpired):
            other.process.wait(PATIENCE if how.startswith(("died", "failed")) else 0)
        code = other.process.returncode
        ended = f" ({_describe_code(code)})" if code is not None else ""
        doing = self.doing.get(other.asked, other.asked)
        log = read_end(other.log, LINES).splitlines()
        hint = self.anew if other.asked == "starting" else ""
        told = "\n  ".join(["the last lines of its log:", *log]) if log else "its log is empty"
        self.close()
        return RankError(f"learner {other.number} of {self.size} {how} {doing}{ended};{hint} the run goes on from its "
                         f"last checkpoint with the same command; {told}")  # fmt: skip


def _end(others: list[Process], folder: Path) -> None:
    """Close all links, wait, and kill the processes that do not end."""
    try:
        for other in others:
            other.link.close()
        until = time.monotonic() + PATIENCE
        for other in others:
            with suppress(subprocess.TimeoutExpired):
                other.process.wait(max(0.0, until - time.monotonic()))
    finally:
        for other in others:
            other.process.kill()
            other.process.wait()
            if other.process.stdin is not None:
                other.process.stdin.close()
        others.clear()
        shutil.rmtree(folder, ignore_errors=True)


def _describe_code(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
