"""Work beside training: what components have begun in the background, such as asking a judge, and not yet taken back.

It goes on whenever groups in flight do. Answers are saved; of what is not finished a resumed run knows when it began,
and the component begins it again (`restart`): by virtual time it then ends when it would have ended. Left out: what a
job has said half-way, but for its calls of an asynchronous engine, which are answered again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any

from shuhari.ports import CURRENT_GROUP, REPLAYING, LoopCtx


class Running:
    """One job (the port `Job`), begun `at` a time of the loop, in `step`."""

    def __init__(self, key: str, at: float, step: int, taken: Callable[[Running], None]) -> None:
        self.key, self.at, self.step, self._taken = key, at, step, taken
        self.done, self.answer = False, None
        self.coroutine: Coroutine[Any, Any, Any] | None = None
        self.task: asyncio.Task[None] | None = None

    @property
    def asker(self) -> str:
        """What its calls and its random streams are named by; those of a later job of its key are others."""
        return f"job/{self.key}/{self.step}"

    def ended(self, task: asyncio.Task[None]) -> None:
        """Close what was given up before it began, and look at an error, which `result` raises."""
        if self.coroutine is not None:
            self.coroutine.close()
        if not task.cancelled():
            task.exception()

    def result(self) -> Any:
        """The answer, once: the run then forgets the job. RuntimeError where it is not done; what the job raised, where
        it failed."""
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
        self._began: dict[str, tuple[float, int]] = {}  # while a run is restored: when those began that were not done

    @property
    def running(self) -> bool:
        return any(not job.done for job in self.jobs.values())

    def begin(self, key: str, coroutine: Coroutine[Any, Any, Any]) -> Running:
        """The job of that key: the one that is there (the coroutine is then closed), or a new one."""
        if (known := self.jobs.get(key)) is not None:
            coroutine.close()
            return known
        at, step = self._began.get(key, (self.ctx.loop.time(), self.ctx.step))
        job = self.jobs[key] = Running(key, at, step, self._forget)
        job.coroutine = coroutine
        if key not in self._began:  # else it is launched in its turn
            self.launch(job)
        return job

    def launch(self, job: Running) -> None:
        """Let it run."""
        job.task = self.ctx.loop.create_task(self._run(job))
        job.task.add_done_callback(job.ended)

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
        """Give all of them up; the tasks that are to end."""
        dropped, self.jobs = list(self.jobs.values()), {}
        tasks = [job.task for job in dropped if job.task is not None and not job.task.done()]
        for task in tasks:
            task.cancel()
        return tasks

    # ---------------------------------------------------------------- resuming

    def tree(self) -> list[dict[str, Any]]:
        """All that the store must keep. One that failed is begun again."""
        told = []
        for job in self.jobs.values():
            failed = job.done and job.task is not None and job.task.exception() is not None
            done = job.done and not failed
            told.append({"key": job.key, "at": job.at, "step": job.step, "done": done, "answer": job.answer})
        return told

    def restore(self, saved: Sequence[Mapping[str, Any]], restart: Callable[[], None]) -> list[Running]:
        """Take over what was saved. The jobs that `restart` began again, which are to be launched at their times."""
        for entry in saved:
            if entry["done"]:
                key = entry["key"]
                job = self.jobs[key] = Running(key, entry["at"], entry["step"], self._forget)
                job.done, job.answer = True, entry["answer"]
        self._began = {e["key"]: (e["at"], e["step"]) for e in saved if not e["done"]}
        restart()
        again = [job for key, job in self.jobs.items() if key in self._began]
        self._began = {}
        return again
