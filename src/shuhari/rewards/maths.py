"""Answers in mathematics, judged by math-verify in a child process with limits from outside.

math-verify parses LaTeX and expressions with sympy, which evaluates them, and text from a model is hostile. So it runs
in a process of its own (`maths_child.py`): without this package, with limits on memory, processor time and files, and
killed where an answer takes too long. They talk JSON lines over pipes: no shell, no pickle. Left out: several judges
side by side, proofs, units.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from shuhari.bounds import Bounds, Positive, check
from shuhari.data import Trajectory
from shuhari.ports import Ctx
from shuhari.registry import register
from shuhari.tasks.source import answer_text

READ = 4096  # characters at the end of an answer that are read: what it comes to stands there
START = 120.0  # seconds for the child to import math-verify
CHILD = Path(__file__).with_name("maths_child.py")


class JudgeError(RuntimeError):
    """An answer that could not be judged: too slow, out of memory, a judge that died, a truth that cannot be read."""


class Exceeded(JudgeError):
    """An answer that asked for more processor time or memory than there is: it is wrong."""


@register("reward", "maths")
@dataclass
class Maths:
    """1.0 where math-verify finds that the last formula or number of an answer equals `problem.answer`, else 0.0.

    Answer and truth may be plain numbers, expressions, or text with LaTeX in `$...$` or `\\boxed{...}`; of an answer
    the last 4096 characters are read. An answer in which nothing can be read is wrong (0), and so is one that asks for
    more than `cpu` seconds of processor time or `memory` MiB: counted as `exceeded_graders`, and shown. One that could
    not be judged is ungraded, counted as `failed_graders` and shown: no reply within `timeout` seconds of the clock, a
    judge that died, a problem's answer that cannot be read. Problems without an answer are ungraded. The child starts
    with the first answer and ends with the run or with this process, however that ends. Needs the extra `lm`.
    """

    name: str = "maths"
    timeout: Positive = 30.0
    memory: Annotated[int, Bounds(256)] = 2048
    cpu: Positive = 1.0

    @property
    def stamps(self) -> tuple[str, ...]:
        return (f"reward/{self.name}",)

    def __post_init__(self) -> None:
        check(self)
        self._child: subprocess.Popen[str] | None = None
        self._end: Any = None  # ends the child where this reward is forgotten
        self._one = threading.Lock()  # one answer at a time

    async def grade(self, group: Sequence[Trajectory], ctx: Ctx) -> list[Mapping[str, float] | None]:
        """One grade a leaf. Raises ModuleNotFoundError without math-verify."""
        grades: list[Mapping[str, float] | None] = []
        for trajectory in group:
            truth = trajectory.request.problem.answer
            for path in trajectory.paths():
                steps = [trajectory.steps[i] for i in path]
                if truth is None or all(s.action is None for s in steps):
                    grades.append(None)
                    continue
                try:
                    number = await asyncio.to_thread(self.judge, answer_text(steps), str(truth))
                except Exceeded as error:
                    ctx.record_failure("exceeded_graders", error, f"reward {self.name!r}")
                    grades.append({self.name: 0.0})
                except JudgeError as error:
                    ctx.record_failure("failed_graders", error, f"reward {self.name!r}")
                    grades.append(None)
                else:
                    grades.append({self.name: number})
        return grades

    def judge(self, answer: str, truth: str) -> float:
        """1.0 or 0.0. Raises JudgeError; the child is then gone, where it was at fault, and the next answer starts
        another."""
        if len(truth) > READ:
            raise JudgeError(f"the truth has {len(truth)} characters: expected at most {READ}; it is {truth[:60]!r}...")
        with self._one:
            child = self._running()
            ticket = secrets.token_hex(8)  # a reply that the answer has forged would have to guess it
            request = {"id": ticket, "answer": answer[-READ:], "truth": truth}
            reply = self._exchange(child, json.dumps(request), self.timeout)
            if reply.get("id") != ticket:
                self.close()
                raise JudgeError(f"no reply for {answer[-60:]!r} within {self.timeout:g} s")
            if reply.get("exceeded"):
                message = f"more than {self.cpu:g} s of processor time, or {self.memory} MiB, for {answer[-60:]!r}"
                raise Exceeded(message)
            if reply.get("grade") is None:
                raise JudgeError(str(reply.get("error")))
            return float(reply["grade"])

    def close(self) -> None:
        """End the child, if there is one."""
        if self._end is not None:
            self._end()
        self._child = self._end = None

    def _running(self) -> subprocess.Popen[str]:
        if self._child is None:
            self._child = subprocess.Popen(
                # -I: no path of ours, no environment
                [sys.executable, "-I", str(CHILD), str(self.memory), str(self.cpu)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={},
                encoding="ascii",
            )
            self._end = weakref.finalize(self, _end, self._child)
            ready = self._exchange(self._child, None, START)
            if not ready.get("ready"):
                self.close()
                error = str(ready.get("error") or f"no sign of life within {START:g} s")
                if error.startswith("ModuleNotFoundError"):
                    raise ModuleNotFoundError(
                        f'reward {self.name!r} needs math-verify ({error}): pip install "shuhari[lm]"'
                    )
                raise JudgeError(f"the judge did not start: {error}")
        return self._child

    @staticmethod
    def _exchange(child: subprocess.Popen[str], line: str | None, seconds: float) -> Mapping[str, Any]:
        """Send a line and read one; {} where the child died, or was killed because its time was over."""
        assert child.stdin is not None and child.stdout is not None
        clock = threading.Timer(seconds, child.kill)
        clock.start()
        try:
            if line is not None:
                child.stdin.write(line + "\n")
                child.stdin.flush()
            message = child.stdout.readline()
            reply = json.loads(message) if message.endswith("\n") else {}
            return reply if isinstance(reply, Mapping) else {}
        except (OSError, ValueError):  # a pipe without an end, or a line that is no reply
            return {}
        finally:
            clock.cancel()


def _end(child: subprocess.Popen[str]) -> None:
    child.kill()
    for pipe in (child.stdin, child.stdout):
        try:
            if pipe is not None:
                pipe.close()
        except OSError:  # what was not yet sent has nowhere to go
            pass
    child.wait()
