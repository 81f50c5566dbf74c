"""The recorder: exclusive times by clocks made by hand, what is marked of a coroutine, memory, the trace, and off."""

from __future__ import annotations

import asyncio
import json
import mmap
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from shuhari.batch import Batch
from shuhari.kernel import profile
from shuhari.kernel.profile import Peaks, Profile, span, spanned, stretches, work


class Clock:
    """Seconds that pass when told."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def pass_(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


def seconds(recorder: Profile) -> dict[str, float]:
    return {path: phase.seconds for path, phase in recorder.phases.items()}


def test_times_are_exclusive_by_path_and_add_up_to_the_whole(clock: Clock) -> None:
    recorder = Profile(clock)
    with recorder.step(1):
        clock.pass_(1)
        with span("evaluate"):
            clock.pass_(2)
            for _ in range(2):
                with span("generate"):
                    clock.pass_(4)
            clock.pass_(8)
        with span("generate"):
            clock.pass_(16)
    clock.pass_(1000)  # between two steps: somebody else's
    with recorder.step(2), span("update"):
        clock.pass_(32)
    want = {"other": 1.0, "evaluate": 10.0, "evaluate/generate": 8.0, "generate": 16.0, "update": 32.0}
    assert seconds(recorder) == want
    assert recorder.seconds == sum(want.values()) and recorder.steps == 2
    assert {p: x.spans for p, x in recorder.phases.items()} == {**dict.fromkeys(want, 1), "evaluate/generate": 2,
                                                               "other": 2}  # fmt: skip


def test_a_function_is_marked_at_each_call_and_stays_itself(clock: Clock) -> None:
    @spanned("store")
    def keep(x: int, *, y: int) -> int:
        """Told."""
        clock.pass_(3)
        return x + y

    recorder = Profile(clock)
    assert keep(1, y=2) == 3 and keep.__doc__ == "Told."
    with recorder.step(1):
        assert keep(1, y=2) == 3 and keep(0, y=0) == 0
    assert seconds(recorder) == {"store": 6.0, "other": 0.0}


def test_an_exception_closes_what_it_leaves_and_goes_on(clock: Clock) -> None:
    recorder = Profile(clock)

    def failing() -> None:
        try:
            with span("update"), span("score"):
                clock.pass_(1)
                raise ValueError
        except ValueError:
            clock.pass_(2)
        with span("grade"):
            clock.pass_(4)
            raise KeyError

    with pytest.raises(KeyError), recorder.step(1):
        failing()
    assert seconds(recorder) == {"update/score": 1.0, "update": 0.0, "other": 2.0, "grade": 4.0}
    assert recorder.seconds == 7.0 and profile._active is None
    with recorder.step(2), span("grade"):  # and the next step starts clean
        clock.pass_(1)
    assert recorder.phases["grade"].seconds == 5.0


def test_off_nothing_is_made_and_nothing_is_read() -> None:
    async def coroutine() -> None: ...

    waits = coroutine()
    assert span("a") is span("b") and stretches("a", waits) is waits
    work("trained", object())  # type: ignore[arg-type]  # not looked at
    waits.close()


# ---------------------------------------------------------------- coroutines


def test_of_a_coroutine_its_own_work_counts_and_no_wait(clock: Clock) -> None:
    async def grade() -> str:
        clock.pass_(1)
        await asyncio.sleep(0)
        clock.pass_(2)
        await asyncio.sleep(0)
        return "told"

    async def other() -> None:
        for _ in range(3):
            clock.pass_(100)
            await asyncio.sleep(0)

    async def both() -> Any:
        return await asyncio.gather(stretches("grade", grade()), other(), stretches("grade", grade()))

    recorder = Profile(clock)
    with recorder.step(1):
        assert asyncio.run(both()) == ["told", None, "told"]
    assert seconds(recorder) == {"grade": 6.0, "other": 300.0}


def test_errors_answers_and_cancellations_pass_through(clock: Clock) -> None:
    heard: list[str] = []

    async def fails() -> None:
        await asyncio.sleep(0)
        raise OSError("gone")

    async def waits() -> str:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            heard.append("cancelled")
            raise
        return "never"

    async def answered() -> str:
        future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(future.set_result, "answer")
        return await stretches("grade", future)

    async def cancels() -> None:
        async def asked() -> str:
            return await stretches("grade", waits())

        task = asyncio.ensure_future(asked())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with Profile(clock).step(1):
        with pytest.raises(OSError, match="gone"):
            asyncio.run(_awaited(stretches("grade", fails())))
        assert asyncio.run(answered()) == "answer"
        asyncio.run(cancels())
    assert heard == ["cancelled"]


async def _awaited(x: Any) -> Any:
    return await x


# ---------------------------------------------------------------- memory


def test_a_peak_belongs_to_its_phase_and_to_those_around_it(clock: Clock) -> None:
    def peaks() -> Iterator[tuple[int, int]]:
        yield 0, 0  # as the step begins
        yield 10, 1  # up to `update`: of the step alone
        yield 20, 9  # up to `score`: of `update`
        yield 70, 2  # of `score`
        yield 30, 3  # of `update` after it
        yield 40, 0  # of the step after it

    told = peaks()
    recorder = Profile(clock, lambda: next(told))
    with recorder.step(1), span("update"), span("score"):
        pass
    assert {p: (x.resident, x.device) for p, x in recorder.phases.items()} == {
        "update/score": (70, 2), "update": (70, 9), "other": (70, 9)}  # fmt: skip
    assert next(told, None) is None


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="no resident peak that can be set back")
def test_resident_peaks_rise_with_what_is_touched_and_are_set_back() -> None:
    read, size = Peaks(), 64 << 20
    try:
        read()  # sets back what was before
        before = read()[0]
        with mmap.mmap(-1, size) as pages:
            pages.write(b"x" * 4096 * (size // 4096))
        if read._reset < 0:
            pytest.skip("this system lets nobody set it back")
        during, after = read()[0], read()[0]
        assert during - before > 0.9 * size and after < during - 0.5 * size
    finally:
        read.close()


# ---------------------------------------------------------------- the trace


def _spans(recorder: Profile) -> list[dict[str, Any]]:
    trace = json.loads(json.dumps(recorder.trace(), allow_nan=False))
    return [e for e in trace["traceEvents"] if e["ph"] == "X"]


def test_the_trace_nests_as_the_spans_did(clock: Clock) -> None:
    recorder = Profile(clock)
    for number in (1, 2):
        with recorder.step(number):
            for _ in range(3):
                with span("evaluate"):
                    clock.pass_(1e-3)
                    with span("generate"):
                        clock.pass_(2e-3)
                clock.pass_(1e-3)
    found = _spans(recorder)
    assert [e["name"] for e in found] == [
        "step 1",
        *["evaluate", "generate"] * 3,
        "step 2",
        *["evaluate", "generate"] * 3,
    ]
    open_: list[float] = []  # ends, in microseconds: each event lies inside of the one that is open, or after it
    for e in found:
        while open_ and open_[-1] <= e["ts"] + 1e-3:
            open_.pop()
        assert e["dur"] > 0 and (not open_ or e["ts"] + e["dur"] <= open_[-1] + 1e-3)
        open_.append(e["ts"] + e["dur"])
    steps = [e for e in found if e["name"].startswith("step")]
    assert [(round(e["ts"]), round(e["dur"])) for e in steps] == [(0, 12_000), (12_000, 12_000)]


def test_the_trace_is_bounded_in_steps_and_in_spans(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile, "EVENTS", 3)
    recorder = Profile(clock, kept=2)
    for number in range(1, 11):
        with recorder.step(number):
            for _ in range(5):
                with span("grade"):
                    clock.pass_(1)
    found = _spans(recorder)
    assert [e["name"] for e in found if e["name"] != "grade"] == ["step 1", "step 2", "step 9", "step 10"]
    assert sum(e["name"] == "grade" for e in found) == 12 and found[0]["args"]["lost"] == 2
    assert seconds(recorder)["grade"] == 50.0  # the sums leave nothing out


# ---------------------------------------------------------------- work


def test_work_counts_tokens_and_the_pairs_that_attend(clock: Clock) -> None:
    mask = torch.tensor([[True, True, False], [True, False, False]])
    batch = Batch({"mask": mask, "logp": torch.zeros(2, 3), "length": torch.tensor([5, 2])})
    recorder = Profile(clock)
    with recorder.step(1):
        work("trained", batch, ("policy", "critic"))
        work("trained", batch)
    done = recorder.done["trained", "policy"]
    assert (done.tokens, done.decided) == (14, 6)
    pairs = [sum(range(1, n + 1)) for n in (5, 2, 3, 1)]  # rows, and what of them was read before the decisions
    assert done.pairs == 2 * (pairs[0] + pairs[1]) and done.decided_pairs == 2 * (sum(pairs[:2]) - sum(pairs[2:]))
    assert recorder.done["trained", "critic"].tokens == 7


def test_sizes_explain_the_seconds_of_spans(clock: Clock) -> None:
    """Sums of products of (1, sizes, seconds), without the first step; what tools took; the first and the last step."""
    recorder = Profile(clock)
    for number in range(4):
        with recorder.step(number):
            clock.pass_(1)
            for rows in (2.0, 4.0):
                with span("generate"):
                    profile.sized(rows - 1)
                    profile.sized(1.0)  # adds up
                    clock.pass_(10**number + rows)
    with span("generate"):
        profile.sized(1.0)  # nothing is recorded
    seconds = [10.0**k + rows for k in (1, 2, 3) for rows in (2.0, 4.0)]
    rows = [2.0, 4.0] * 3
    want = [[6.0, 18.0, sum(seconds)], [18.0, 60.0, sum(a * b for a, b in zip(rows, seconds, strict=True))]]
    assert recorder.phases["generate"].products[:2] == want
    assert recorder.edges == {"other": 2.0, "generate": 2 * (1 + 3.0) + 2 * (1000 + 3.0)}


def test_answers_from_outside_are_timed() -> None:
    async def answer() -> str:
        await asyncio.sleep(0.01)
        return "yes"

    recorder = Profile()
    with recorder.step(1):
        assert asyncio.run(profile.waited(answer())) == "yes"
    assert asyncio.run(profile.waited(answer())) == "yes"
    assert len(recorder.waits) == 1 and recorder.waits[0] >= 0.01


def test_an_answer_that_comes_while_there_is_work_came_in_the_middle_of_it(clock: Clock) -> None:
    async def work(phase: str, after: float) -> None:
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waits = asyncio.ensure_future(profile.waited(answer))
        await asyncio.sleep(0)  # it begins to wait
        clock.pass_(1)
        with span(phase):
            clock.pass_(4)
        clock.pass_(after)
        answer.set_result(None)
        await waits

    recorder = Profile(clock)
    with recorder.step(1):
        asyncio.run(work("generate", 1))
        asyncio.run(work("wait", 1))  # it was looked for
        asyncio.run(work("generate", 10))  # nobody says that it was, and yet
    assert recorder.waits == [1 + (4 + 1) / 2, 6.0, 15.0]
