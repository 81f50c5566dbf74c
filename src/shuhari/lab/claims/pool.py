"""A process pool for claims, one process a core, with dependencies, failures and progress.

A worker imports everything that a run may need before it begins, so that later edits of the source do not take effect,
and ends with its parent, however that ends; killed work resumes from its last save.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import nullcontext
from dataclasses import dataclass
from multiprocessing import get_context, parent_process
from pathlib import Path
from threading import Thread
from typing import Any, Protocol, TypeVar

from shuhari.kernel.begin import SAFE, keep_out
from shuhari.lab.claims.sources import digest_core


class ClaimError(RuntimeError):
    """A claim that could not be measured: a run failed, or the arms did not spend the same."""


class Work(Protocol):
    """A unit of work, in a folder of its own that records whether it is done. `after`: the work that must be done
    before."""

    @property
    def name(self) -> str: ...

    @property
    def path(self) -> Path: ...

    @property
    def after(self) -> Work | None: ...

    @property
    def done(self) -> bool: ...

    def estimate_share(self) -> float | None:
        """Return the share that is done, in [0, 1]; None if it has not begun."""

    def make(self) -> str:
        """In a worker: do the work, or continue it. Returns an error message, or ""."""


W = TypeVar("W", bound=Work)


@dataclass(frozen=True)
class Progress:
    """Progress of the work: the `share` of all in [0, 1], what runs `now`, what was `finished` last."""

    share: float
    done: int
    total: int
    now: str = ""
    finished: str = ""


class Workers:
    """Processes for several calls of `drive`: started when first needed, kept until the end."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown()

    def start(self) -> ProcessPoolExecutor:
        """Start the processes, if they are not running."""
        if self._pool is None:
            spawn, known = get_context("spawn"), (digest_core(), os.environ.get(SAFE))
            with keep_out():  # its locks have a process of their own
                self._pool = ProcessPoolExecutor(self.count, mp_context=spawn, initializer=_begin, initargs=known)
        return self._pool

    def stop(self) -> None:
        """Terminate the processes in the middle of their work; a killed run resumes from its last checkpoint."""
        if self._pool is not None:
            processes = list((self._pool._processes or {}).values())
            self._pool.shutdown(wait=False, cancel_futures=True)
            for process in processes:
                process.terminate()
            self._pool = None


def drive(
    jobs: Sequence[W],
    workers: int | Workers,
    tell: Callable[[Progress], None] = lambda _: None,
    look: Callable[[W], None] = lambda _: None,
    *,
    patient: bool = False,
) -> None:
    """Do the jobs that are not done, and call `look` on each one that is. A dependency runs only if a job that needs it
    does. Raises ClaimError if a job fails: after all others or, once two jobs fail with the same error and unless
    `patient`, after those already begun."""
    left = [j for j in jobs if not j.done]
    asked = {
        j.path
        for job in left
        for j in _list_before(job)
    }
    ends = {j.path for j in jobs} - {
        j.path
        for job in jobs
        for j in _list_before(job)
    }
    left = [j for j in left if j.path in asked | ends]
    for job in jobs:
        if job not in left:
            look(job)
    total, failed, alike = len(jobs), dict[W, str](), False
    tell(Progress((total - len(left)) / max(total, 1), total - len(left), total))
    if not left:
        return
    with nullcontext(workers) if isinstance(workers, Workers) else Workers(min(workers, len(left))) as team:
        pool, flying = team.start(), dict[Future[str], W]()
        try:
            while flying or (left and not alike):
                lost = [j for j in left if j.after in failed]
                failed |= dict.fromkeys(lost, "its warm start failed")
                left = [j for j in left if j not in lost]
                for job in () if alike else _find_ready(left, flying):
                    if len(flying) < 2 * team.count:  # no worker waits, and a stop leaves little behind
                        left.remove(job)
                        with keep_out():  # submitting may start a process
                            flying[pool.submit(_make, job)] = job
                ended, _ = wait(flying, timeout=1.0, return_when=FIRST_COMPLETED)
                for future in ended:
                    job = flying.pop(future)
                    try:
                        error = future.result()
                    except BrokenProcessPool as died:
                        message = f"a worker died in {job.name} (out of memory?): {died}"
                        raise ClaimError(message) from died
                    if error:
                        alike = not patient and (alike or error in failed.values())  # likely to hit all jobs
                        failed[job] = error
                    else:
                        look(job)
                    why = f": failed, {error}" if error else ""
                    tell(_make_progress(jobs, left, flying, f"{job.name}{why}"))
                if not ended:
                    tell(_make_progress(jobs, left, flying))
        except BaseException:
            team.stop()
            raise
    if failed:
        runs = {
            e: [f"{j.name} ({j.path})" for j in failed if failed[j] == e]
            for e in failed.values()
        }
        message = "\n".join(f"  {', '.join(names)}: {error}" for error, names in runs.items())
        stopped = "; two for one reason, so no others were begun" if left else ""
        raise ClaimError(f"{len(failed)} of {total} runs failed{stopped}:\n{message}")


def _list_before(job: Work) -> list[Work]:
    """Return the dependencies of a job, recursively."""
    return [] if job.after is None else [job.after, *_list_before(job.after)]


def _find_ready(left: Sequence[W], flying: Mapping[Any, W]) -> list[W]:
    """Return the jobs that can start: their dependencies are done, and no running job has the same folder."""
    taken, out = {job.path for job in flying.values()}, []
    for job in left:
        if (job.after is None or job.after.done) and job.path not in taken:
            taken.add(job.path)
            out.append(job)
    return out


def _make_progress(jobs: Sequence[W], left: Sequence[W], flying: Mapping[Any, W], finished: str = "") -> Progress:
    done = len(jobs) - len(left) - len(flying)
    running = [(j, s) for j in flying.values() if (s := j.estimate_share()) is not None]
    share = (done + sum(s for _, s in running)) / len(jobs)
    return Progress(share, done, len(jobs), "; ".join(f"{j.name} {s:.0%}" for j, s in running), finished)


_CHANGED: list[str] = []  # in a worker: not empty if it imported another source than the claim's


def is_changed() -> bool:
    """In a worker: whether the core has changed since the work was planned."""
    return bool(_CHANGED)


def _make(job: Work) -> str:
    return job.make()


def _begin(core: str, safe: str | None) -> None:
    from shuhari.kernel.registry import entries

    if safe is None:
        os.environ.pop(SAFE, None)  # it was for this process, not for its children
    Thread(target=_follow, daemon=True).start()
    entries()
    if digest_core() != core:
        _CHANGED.append(core)


def _follow() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
