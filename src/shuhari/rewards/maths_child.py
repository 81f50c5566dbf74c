"""The judge of `rewards/maths.py`: math-verify, alone in a process of its own. Run as a file, without the package.

One JSON object a line comes on standard input, {"id", "answer", "truth"}; one goes back, {"id", "grade"}: 1 or 0, or
null with "error" where the truth cannot be read. The first line that goes out is {"ready": true}, or {"error"}. The
limits stand before any text is read, and there is no way to raise them again. math-verify's own alarm is off: whoever
started this process kills it when an answer takes too long. Anything that prints to standard output prints to nowhere.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

TIRED = 240.0  # seconds of processor time after which it asks to be replaced, so that its own limit is never met


def limit(megabytes: int) -> None:
    """No files, no core dumps, so much memory, and ten minutes of processor time in all."""
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


def read(text: str, parse: Any) -> list[Any]:
    """What math-verify finds in a text; a bare formula counts as one in dollar signs."""
    found = parse(text, parsing_timeout=None)
    if not any(not isinstance(x, str) for x in found) and len(text) <= 500 and "$" not in text:
        found = parse(f"${text}$", parsing_timeout=None) or found
    return list(found)


def grade(answer: str, truth: str, parse: Any, verify: Any) -> dict[str, Any]:
    gold = read(truth, parse)
    if not gold:
        return {"grade": None, "error": f"math-verify reads nothing in the truth {truth[:60]!r}"}
    try:
        found = read(answer, parse)
        right = bool(found) and bool(verify(gold, found, timeout_seconds=None))
    except MemoryError:
        return {"grade": None, "error": "out of memory"}
    except (Exception, RecursionError) as error:  # an answer that it cannot read or compare is not right
        return {"grade": 0.0, "error": f"{type(error).__name__}"}
    return {"grade": float(right)}


def main() -> None:
    replies = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)

    def say(reply: dict[str, Any]) -> None:
        replies.write(json.dumps(reply) + "\n")
        replies.flush()

    limit(int(sys.argv[1]))
    try:
        import logging

        from math_verify import parse, verify

        logging.disable(logging.CRITICAL)
    except Exception as error:
        say({"error": f"{type(error).__name__}: {error}"})
        return
    say({"ready": True})
    for line in sys.stdin:
        request = json.loads(line)
        try:
            reply = grade(request["answer"], request["truth"], parse, verify)
        except (Exception, RecursionError) as error:
            reply = {"grade": None, "error": f"{type(error).__name__}: {str(error)[:200]}"}
        tired = time.process_time() > TIRED
        say({"id": request["id"], "last": tired, **reply})
        if tired:
            return


if __name__ == "__main__":
    main()
