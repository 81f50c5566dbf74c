"""Mathematical answers, judged by math-verify in child processes with limits enforced from outside.

math-verify parses LaTeX and expressions with sympy, which evaluates them, and model output is hostile. So it runs in
processes of its own (`maths_child.py`): without this package, with limits on memory, processor time and files, and
killed if an answer takes too long. `final.py` finds the part of an answer that is judged. Left out: proofs, units.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from shuhari.bounds import Bounds, Positive, Seconds, SomeProcesses, check
from shuhari.data import Trajectory
from shuhari.events import Committed, Event
from shuhari.kernel.registry import register
from shuhari.models.text.child import ChildError, Pool
from shuhari.ports import Ctx
from shuhari.rewards.final import find_final, write_formula
from shuhari.tasks.source import answer_text

READ = 4096  # number of characters read at the end of an answer, which holds the result
QUICK = 0.1  # seconds of processor time guaranteed to every answer, whatever others used
KEPT = 1 << 14  # number of cached verdicts: samples of a problem often end alike
CHILD = Path(__file__).with_name("maths_child.py")


class JudgeError(RuntimeError):
    """An answer that could not be judged: too slow, a judge that died, an unreadable truth."""


class Exceeded(JudgeError):
    """An answer that needed more processor time or memory than allowed: it is wrong."""


@register("reward", "maths")
@dataclass
class Maths:
    """Grades mathematics by math-verify: 1.0 if the final formula or number of an answer equals `problem.answer`, else
    0.0.

    Answer and truth may be plain numbers, expressions, or text with LaTeX in `$...$` or `\\boxed{...}`; only the last
    4096 characters of an answer are read. The final formula is the last box, else the last formula in dollar signs,
    else the text if it has no words, else its last number. An equation counts if each side equals the truth, except one
    name before it (`x = 12`). Another relation, a percent sign, plus or minus, or a choice (`12 or 13`) is wrong,
    unless the truth has one too. An answer in which nothing can be read is wrong (0).

    An answer that exceeds its processor time or memory is also wrong: counted as `exceeded_graders`, and shown. One
    that could not be judged is ungraded, counted as `failed_graders` and shown: no reply within `timeout`, a judge that
    died, an unreadable `problem.answer`. Problems without an answer are ungraded. The judges start with the first
    answer and end with the run or with this process, however it ends. Needs the extra `lm`.
    """

    wants_answer = True

    name: str = "maths"
    """Name of the grade, so that its column is `reward/<name>`."""
    timeout: Seconds = 30.0
    """Seconds (wall clock) after which an answer without a verdict is ungraded."""
    memory: Annotated[int, Bounds(256, most=2**24)] = 2048
    """Memory of each judge process in MiB, 256 or more; an answer that needs more is wrong."""
    cpu: Positive = 1.0
    """Seconds of processor time that one answer may take; an answer that needs more is wrong."""
    total: Positive = 20.0
    """Seconds of processor time that slow answers of a step (above 0.1 s) may take together; after that each has 0.1
    s."""
    judges: SomeProcesses = 2
    """Number of judge processes that run in parallel."""

    @property
    def stamps(self) -> tuple[str, ...]:
        return (f"reward/{self.name}",)

    def __post_init__(self) -> None:
        check(self)
        self._pool = Pool(self.judges, CHILD, str(self.memory))
        self._threads: ThreadPoolExecutor | None = None
        self._known: dict[tuple[tuple[str, ...], str], Mapping[str, Any]] = {}
        self._spent, self._lock = 0.0, threading.Lock()

    def observe(self, event: Event) -> None:
        """Resets the processor time used, at each step."""
        if isinstance(event, Committed):
            self._spent = 0.0

    async def grade(self, group: Sequence[Trajectory], ctx: Ctx) -> list[Mapping[str, float] | None]:
        """Returns one grade per leaf. Raises ModuleNotFoundError without math-verify."""
        asked: list[tuple[str, str] | None] = []
        for trajectory in group:
            truth = trajectory.request.problem.answer
            for path in trajectory.paths():
                steps = [trajectory.steps[i] for i in path]
                gradable = truth is not None and any(s.action is not None for s in steps)
                asked.append((answer_text(steps), str(truth)) if gradable else None)
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self.judges, "judge")
        loop, different = asyncio.get_running_loop(), list(dict.fromkeys(a for a in asked if a is not None))
        work = [loop.run_in_executor(self._threads, self._try, *a) for a in different]
        verdicts = dict(zip(different, await asyncio.gather(*work), strict=True))
        return [None if a is None else self._record(verdicts[a], ctx) for a in asked]

    def judge(self, answer: str, truth: str) -> float:
        """Returns 1.0 or 0.0. Raises JudgeError; if the child was at fault it is gone, and the next answer starts
        another."""
        if len(truth) > READ:
            raise JudgeError(f"the truth has {len(truth)} characters: expected at most {READ}; it is {truth[:60]!r}...")
        key = (tuple(find_final(answer[-READ:], truth)), write_formula(truth))
        reply = self._known.get(key) or self._ask(key, answer)
        if reply.get("exceeded"):
            limit = reply.get("limit", self.cpu)
            raise Exceeded(f"more than {limit:g} s of processor time, or {self.memory} MiB, for {answer[-60:]!r}")
        if reply.get("grade") is None:
            raise JudgeError(str(reply.get("error")))
        return float(reply["grade"])

    def close(self) -> None:
        """Ends the children, if there are any."""
        self._pool.close()
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
            self._threads = None

    # ---------------------------------------------------------------- one answer

    def _try(self, answer: str, truth: str) -> float | JudgeError:
        try:
            return self.judge(answer, truth)
        except JudgeError as error:
            return error

    def _record(self, verdict: float | JudgeError, ctx: Ctx) -> Mapping[str, float] | None:
        if not isinstance(verdict, JudgeError):
            return {self.name: verdict}
        exceeded = isinstance(verdict, Exceeded)
        ctx.record_failure("exceeded_graders" if exceeded else "failed_graders", verdict, f"reward {self.name!r}")
        return {self.name: 0.0} if exceeded else None

    def _ask(self, key: tuple[tuple[str, ...], str], answer: str) -> Mapping[str, Any]:
        """Returns the reply of a child: first with a short time limit, then with the full one if the step has time
        left."""
        quick = min(QUICK, self.cpu)
        reply = self._exchange(key, quick, answer)
        if reply.get("exceeded") and quick < self.cpu:
            with self._lock:
                over = self._spent >= self.total
                self._spent += 0.0 if over else self.cpu
            if over:
                return {**reply, "limit": quick}  # and not cached: another step has time for it
            reply = self._exchange(key, self.cpu, answer)
            with self._lock:  # gives unused time back
                self._spent = max(0.0, self._spent - max(0.0, self.cpu - float(reply.get("seconds", self.cpu))))
        if len(self._known) >= KEPT:
            self._known.clear()
        self._known[key] = reply
        return reply

    def _exchange(self, key: tuple[tuple[str, ...], str], cpu: float, answer: str) -> Mapping[str, Any]:
        try:
            with self._pool.child() as child:
                reply = child.ask({"answers": key[0], "truth": key[1], "cpu": cpu}, self.timeout)
        except ChildError as error:
            if str(error).startswith("ModuleNotFoundError"):
                raise ModuleNotFoundError(
                    f'reward {self.name!r} needs math-verify ({error}): pip install "shuhari[lm]"'
                ) from None
            raise JudgeError(f"the judge did not start: {error}") from None
        if not reply:
            raise JudgeError(f"no reply for {answer[-60:]!r} within {self.timeout:g} s")
        return reply
