"""The judge of `rewards/maths.py`: math-verify, alone in a process of its own. Run as a file, without the package.

Reads one JSON object per line from standard input, {"id", "answers", "truth", "cpu"}, and writes one back, {"id",
"grade", "seconds"}: 1 if every answer equals the truth, else 0, or null with "error" if the truth cannot be read. The
first line written is {"ready": true}, or {"error"}. The limits are set before any text is read and cannot be raised
again. Answers are judged in a fork of this process, which is killed if one needs more than `cpu` seconds of processor
time, whatever it is doing; a new fork starts in milliseconds, with everything imported. The reply is then {"id",
"exceeded": true}, also if an answer exceeds the memory. The parent kills this process, and the fork, on a wall-clock
timeout; if the parent has died, this process notices within a second and ends both. Anything printed to standard output
is discarded.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from typing import Any

TIRED = 240.0  # seconds of processor time after which a fork is replaced
FULL = 3  # the exit code of a fork that ran out of memory


def limit(megabytes: int) -> None:
    """Limits the process: no files, no core dumps, `megabytes` of memory, and ten minutes of processor time."""
    try:
        import resource
    except ImportError:  # not on this system: only the wall clock of the parent is left
        return
    sizes = {"RLIMIT_AS": megabytes << 20, "RLIMIT_CPU": 600, "RLIMIT_FSIZE": 0, "RLIMIT_CORE": 0}
    for name, size in sizes.items():
        kind = getattr(resource, name, None)
        try:
            if kind is not None:
                resource.setrlimit(kind, (size, size))
        except (OSError, ValueError):  # a system that has the name and refuses the value
            continue


def parse_text(text: str, parse: Any) -> list[Any]:
    """Returns what math-verify finds in a text; a bare formula is read as if in dollar signs."""
    found = parse(text, parsing_timeout=None)
    if not any(not isinstance(x, str) for x in found) and len(text) <= 500 and "$" not in text:
        found = parse(f"${text}$", parsing_timeout=None) or found
    return list(found)


def parse_formula(text: str, parse: Any) -> list[Any]:
    """Returns what math-verify finds in a LaTeX formula without dollar signs."""
    return list(parse(f"${text}$", parsing_timeout=None) or parse(text, parsing_timeout=None))


def grade(answers: list[str], truth: str, parse: Any, verify: Any) -> dict[str, Any]:
    gold = parse_text(truth, parse)
    if not gold:
        return {"grade": None, "error": f"math-verify reads nothing in the truth {truth[:60]!r}"}
    try:
        right = bool(answers)
        for answer in answers if right else ():
            found = parse_formula(answer, parse)
            right = right and bool(found) and bool(verify(gold, found, timeout_seconds=None))
    except MemoryError:
        return {"exceeded": True}
    except (Exception, RecursionError) as error:  # an answer that it cannot read or compare is not right
        return {"grade": 0.0, "error": f"{type(error).__name__}"}
    return {"grade": float(right)}


def serve(requests: Any, replies: Any, parse: Any, verify: Any) -> None:
    """Judges answers from the input, each within its seconds of processor time, or dies of SIGPROF."""
    for line in requests:
        request, began = json.loads(line), time.process_time()
        if hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_PROF, request["cpu"])
        try:
            reply = grade(request["answers"], request["truth"], parse, verify)
        except (Exception, RecursionError) as error:
            reply = {"grade": None, "error": f"{type(error).__name__}: {str(error)[:200]}"}
        if hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_PROF, 0)
        replies.write(json.dumps({"id": request["id"], "seconds": time.process_time() - began, **reply}) + "\n")
        replies.flush()
        if reply.get("exceeded"):
            os._exit(FULL)
        if time.process_time() > TIRED:
            os._exit(0)


class Fork:
    """A fork of this process that judges. `ask` returns its reply, or its exit status."""

    def __init__(self, ours: tuple[int, ...], parse: Any, verify: Any) -> None:
        there, back = os.pipe(), os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            for fd in (there[1], back[0], *ours):  # only the original process keeps the pipes to its parent
                os.close(fd)
            signal.signal(signal.SIGPROF, signal.SIG_DFL)
            try:
                requests, replies = os.fdopen(there[0], encoding="ascii"), os.fdopen(back[1], "w", encoding="ascii")
                serve(requests, replies, parse, verify)
            finally:
                os._exit(0)
        os.close(there[0])
        os.close(back[1])
        self.requests, self.replies = os.fdopen(there[1], "w", encoding="ascii"), os.fdopen(back[0], encoding="ascii")

    def ask(self, line: str) -> tuple[dict[str, Any], bool]:
        """Returns (the reply, whether the fork still runs)."""
        try:
            self.requests.write(line)
            self.requests.flush()
            self.wait()
            line = self.replies.readline()
        except OSError:
            line = ""
        if line.endswith("\n"):
            reply = json.loads(line)
            alive = not reply.get("exceeded")
            if not alive:
                self.end()
            return reply, alive
        status = self.end()
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGPROF:
            return {"exceeded": True}, False
        return {"grade": None, "error": "the judge died", "again": os.WIFEXITED(status)}, False

    def wait(self) -> None:
        """Waits for a reply or the end of the fork. If the parent has died, ends both processes."""
        parent = os.getppid()
        while True:
            ready, _, _ = select.select([self.replies.fileno(), 0], [], [], 0.5)
            if self.replies.fileno() in ready:
                return
            if 0 in ready or os.getppid() != parent:  # nothing is sent meanwhile, so this is the end of the pipe
                os.kill(self.pid, signal.SIGKILL)
                os._exit(1)

    def end(self) -> int:
        """Ends the fork and returns its exit status."""
        for pipe in (self.requests, self.replies):
            try:
                pipe.close()
            except OSError:
                continue
        return os.waitpid(self.pid, 0)[1]


def main() -> None:
    out = os.dup(1)
    replies = os.fdopen(out, "w", encoding="ascii")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)

    def say(reply: dict[str, Any]) -> None:
        replies.write(json.dumps(reply) + "\n")
        replies.flush()

    limit(int(sys.argv[1]))
    try:
        import logging

        from math_verify import parse, verify

        logging.disable(logging.CRITICAL)
        grade(["\\frac{1}{2} + x^2"], "$0.5 + x^{2}$", parse, verify)  # builds its tables, as the first formula does
    except Exception as error:
        say({"error": f"{type(error).__name__}: {error}"})
        return
    say({"ready": True})
    if not hasattr(os, "fork"):
        serve(sys.stdin, replies, parse, verify)
        return
    fork: Fork | None = None
    reply: dict[str, Any] = {}
    for line in sys.stdin:
        for _ in range(2):  # a worn-out fork may have ended between two answers
            fork = Fork((0, out), parse, verify) if fork is None else fork
            reply, alive = fork.ask(line)
            fork = fork if alive else None
            if not reply.pop("again", False):
                break
        say({**reply, "id": json.loads(line)["id"]})


if __name__ == "__main__":
    main()
