"""The judge of `rewards/maths.py`: math-verify, alone in a process of its own. Run as a file, without the package.

One JSON object a line comes on standard input, {"id", "answers", "truth", "cpu"}; one goes back, {"id", "grade",
"seconds"}: 1 where each of the answers equals the truth, or 0, or null with "error" where the truth cannot be read. The
first line that goes out is {"ready": true}, or {"error"}. The limits stand before any text is read, and there is no way
to raise them again. Answers are judged in a fork of this process, which dies where one asks for more than `cpu` seconds
of processor time, whatever it is doing; another fork is there in milliseconds, with everything imported. The reply is
then {"id", "exceeded": true}, as it is where the memory does not hold an answer. Whoever started this process kills it,
and the fork, when the clock says so; where that one has died, this process sees it within a second and ends both.
Anything that prints to standard output prints to nowhere.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from typing import Any

TIRED = 240.0  # seconds of processor time after which a fork makes room for another
FULL = 3  # the exit code of a fork whose memory did not hold an answer


def limit(megabytes: int) -> None:
    """Limit the process: no files, no core dumps, so much memory, and ten minutes of processor time."""
    try:
        import resource
    except ImportError:  # not on this system: the wall clock of the parent is what is left
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
    """What math-verify finds in a text; a bare formula counts as one in dollar signs."""
    found = parse(text, parsing_timeout=None)
    if not any(not isinstance(x, str) for x in found) and len(text) <= 500 and "$" not in text:
        found = parse(f"${text}$", parsing_timeout=None) or found
    return list(found)


def parse_formula(text: str, parse: Any) -> list[Any]:
    """What math-verify finds in a formula of LaTeX, without dollar signs around it."""
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
    """Judge answers from the input, each within its seconds of processor time, or die of SIGPROF."""
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
    """A fork of this process that judges. `ask` gives its reply, or its exit status."""

    def __init__(self, ours: tuple[int, ...], parse: Any, verify: Any) -> None:
        there, back = os.pipe(), os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            for fd in (there[1], back[0], *ours):  # the pipes to whoever started this process end with it alone
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
        """(the reply, whether the fork is still there)."""
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
        """Wait for a reply, or the end of the fork. Where whoever started this process has died, end both."""
        parent = os.getppid()
        while True:
            ready, _, _ = select.select([self.replies.fileno(), 0], [], [], 0.5)
            if self.replies.fileno() in ready:
                return
            if 0 in ready or os.getppid() != parent:  # nothing is asked meanwhile: that is the end of the pipe
                os.kill(self.pid, signal.SIGKILL)
                os._exit(1)

    def end(self) -> int:
        """Its exit status, once it is gone."""
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
        grade(["\\frac{1}{2} + x^2"], "$0.5 + x^{2}$", parse, verify)  # its tables are made at the first formula
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
        for _ in range(2):  # one that was tired left between two answers
            fork = Fork((0, out), parse, verify) if fork is None else fork
            reply, alive = fork.ask(line)
            fork = fork if alive else None
            if not reply.pop("again", False):
                break
        say({**reply, "id": json.loads(line)["id"]})


if __name__ == "__main__":
    main()
