"""Jobs beside training: work that components have begun in the background, such as a call of a judge, and not yet taken
back.

Jobs continue whenever groups in flight do. Answers are saved; for an unfinished job a resumed run knows when it began,
and the component begins it again (`restart`): in virtual time it then ends when it would have ended. Left out: the
partial output of a job, except its calls of an asynchronous engine, which are replayed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from shuhari.ports import CURRENT_GROUP, REPLAYING

if TYPE_CHECKING:
    from shuhari.loop.asks import LoopCtx


class Running:
    """One job (the port `Job`); `at`: its start on the event loop; `step`: the step in which it began; `before`: number
    of earlier jobs of its key in that step."""

    def __init__(self, key: str, at: float, step: int, before: int, taken: Callable[[Running], None]) -> None:
        self.key, self.at, self.step, self.before, self._taken = key, at, step, before, taken
        self.done, self.answer = False, None
        self.coroutine: Coroutine[Any, Any, Any] | None = None
        self.task: asyncio.Task[None] | None = None

    @property
    def asker(self) -> str:
        """The name for its calls and random streams; a later job of its key has another."""
        return f"job/{self.key}/{self.step}" + (f"/{self.before}" if self.before else "")

    def end(self, task: asyncio.Task[None]) -> None:
        """Close a coroutine that was cancelled before it began, and retrieve an error, which `result` raises."""
        if self.coroutine is not None:
            self.coroutine.close()
        if not task.cancelled():
            task.exception()

    def result(self) -> Any:
        """Return the answer, once: the run then forgets the job. Raises RuntimeError if the job is not done, and what
        the job raised if it failed."""
        if not self.done:
            raise RuntimeError(f"the job {self.key!r} is not done: look at `done`, or await it")
        self._taken(self)
        if self.task is not None and (error := self.task.exception()) is not None:
            raise error
        return self.answer

    def __await__(self) -> Any:
        while not self.done:
            assert self.task is not None
            with suppress(Exception):
                yield from asyncio.shield(self.task).__await__()
        return self.result()


class Jobs:
    """The jobs of one run by their keys."""

    def __init__(self, ctx: LoopCtx) -> None:
        self.ctx = ctx
        self.jobs: dict[str, Running] = {}
        self._last: dict[str, tuple[int, int]] = {}  # key -> step of the last job of that key, and how many in it
        self._began: dict[str, tuple[float, int, int]] = {}  # while a run is restored: of those that were not done

    @property
    def running(self) -> bool:
        return bool(self.jobs) and any(not job.done for job in self.jobs.values())

    def begin(self, key: str, coroutine: Coroutine[Any, Any, Any]) -> Running:
        """Return the job of that key: the existing one (the coroutine is then closed), or a new one."""
        if (known := self.jobs.get(key)) is not None:
            coroutine.close()
            return known
        if key in self._began:  # it is launched in its turn
            job = self.jobs[key] = Running(key, *self._began[key], self._forget)
            job.coroutine = coroutine
            return job
        step, before = self._last.get(key, (-1, 0))
        before = before if step == self.ctx.step else 0
        self._last[key] = self.ctx.step, before + 1
        job = self.jobs[key] = Running(key, self.ctx.loop.time(), self.ctx.step, before, self._forget)
        job.coroutine = coroutine
        self.launch(job)
        return job

    def launch(self, job: Running) -> None:
        """Start a job."""
        job.task = self.ctx.loop.create_task(self._run(job))
        job.task.add_done_callback(job.end)

    async def _run(self, job: Running) -> None:
        CURRENT_GROUP.set(job.asker)
        REPLAYING.set(False)
        assert job.coroutine is not None
        try:
            job.answer = await job.coroutine
        except asyncio.CancelledError:
            raise
        except BaseException:
            job.done = True
            raise
        job.done = True

    def _forget(self, job: Running) -> None:
        if self.jobs.get(job.key) is job:
            del self.jobs[job.key]
        if (engine := self.ctx.async_engine) is not None:
            engine.forget(job.asker)

    def drop(self) -> Sequence[asyncio.Task[None]]:
        """Cancel all jobs, and return the tasks that are ending."""
        dropped, self.jobs = list(self.jobs.values()), {}
        tasks = [job.task for job in dropped if job.task is not None and not job.task.done()]
        for task in tasks:
            task.cancel()
        for job in dropped:
            self._forget(job)
        return tasks

    # ---------------------------------------------------------------- resuming

    def tree(self) -> list[dict[str, Any]]:
        """Return what the store must keep. A failed job is saved as one to begin again."""
        entries = []
        for job in self.jobs.values():
            failed = job.done and job.task is not None and job.task.exception() is not None
            done = job.done and not failed
            began = {"key": job.key, "at": job.at, "step": job.step, "before": job.before}
            entries.append({**began, "done": done, "answer": job.answer})
        return entries

    def numbers(self) -> dict[str, list[int]]:
        """Return key -> [step, jobs of that key begun in it], for this step, so that the next job of it has streams of
        its own."""
        return {key: [*last] for key, last in self._last.items() if last[0] == self.ctx.step}

    def restore(
        self, saved: Sequence[Mapping[str, Any]], numbers: Mapping[str, Sequence[int]], restart: Callable[[], None]
    ) -> list[Running]:
        """Restore what was saved (`tree`, `numbers`), and return the jobs that `restart` began again, which have to be
        launched at their times. Raises RuntimeError if it did not begin one of them again, as nothing would take its
        answer."""
        self._last = {key: (step, count) for key, (step, count) in numbers.items()}
        for entry in saved:
            began = entry["at"], entry["step"], entry.get("before", 0)  # which older runs have not stored
            if entry["done"]:
                job = self.jobs[entry["key"]] = Running(entry["key"], *began, self._forget)
                job.done, job.answer = True, entry["answer"]
            else:
                self._began[entry["key"]] = began
        restart()
        began_again = [job for key, job in self.jobs.items() if key in self._began]
        lost = [key for key in self._began if key not in self.jobs]
        self._began = {}
        if lost:
            for job in began_again:
                assert job.coroutine is not None
                job.coroutine.close()
            message = f"the jobs {', '.join(map(repr, lost))} had begun when the run was saved, and nobody begins"
            raise RuntimeError(f"{message} them again: expected one whose restart(ctx) calls ctx.background with them")
        return began_again
