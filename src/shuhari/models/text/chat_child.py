"""Renders chat templates for `chat.py`, in a process of its own. Run as a file, without the package.

Reads a line {"id", "template", "messages", "special", "reply"} from standard input; returns {"id", "text"}, or {"id",
"refused"} with the template's message. The limits are set before any template is read. A template that needs more
processor time ends this process (SIGPROF); one that needs more memory, or writes more than `length`, gets {"id"} alone.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any


def limit(megabytes: int) -> None:
    """Limits the process: no files, no core dumps, and `megabytes` of memory."""
    try:
        import resource
    except ImportError:  # not on this system: only the parent's clock is left
        return
    for name, size in {"RLIMIT_AS": megabytes << 20, "RLIMIT_FSIZE": 0, "RLIMIT_CORE": 0}.items():
        try:
            resource.setrlimit(getattr(resource, name), (size, size))
        except (AttributeError, OSError, ValueError):  # a system that refuses it
            continue


def answer(request: dict[str, Any], length: int, render: Any) -> dict[str, Any]:
    try:
        rendered, _ = render(
            conversations=[request["messages"]],
            chat_template=request["template"],
            add_generation_prompt=request["reply"],
            **request["special"],
        )
    except MemoryError:
        return {}
    except (Exception, RecursionError) as error:
        return {"refused": (str(error) or type(error).__name__)[:500]}
    return {"text": rendered[0]} if len(rendered[0]) <= length else {}


def main() -> None:
    replies = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # discard anything printed

    def say(reply: dict[str, Any]) -> None:
        replies.write(json.dumps(reply) + "\n")
        replies.flush()

    memory, cpu, length = map(int, sys.argv[1:])
    try:
        from transformers.utils.chat_template_utils import render_jinja_template as render
    except Exception as error:
        say({"error": f"{type(error).__name__}: {error}"})
        return
    limit(memory)
    say({"ready": True})
    for line in sys.stdin:
        request = json.loads(line)
        if hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_PROF, cpu)
        reply = answer(request, length, render)
        if hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_PROF, 0)
        say({"id": request["id"], **reply})


if __name__ == "__main__":
    main()
