"""Jobs in the background: begun once a key, taken once, charged, given up with their stage, and resumed bit by bit."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from shuhari.config.recipe import Recipe, load
from shuhari.data import Request
from shuhari.loop.run import open_run, train
from shuhari.testing.compare import contents, differences
from small_runs import BANDIT

HERE = __name__
VIRTUAL = "[engine]\nstaleness = 1\nvirtual = {decode = 0.02, train = 1.0}\n"


@dataclass
class Asks:
    """A curriculum that has a judge in the background, and notes at which step and time it answered, and what."""

    delay: float = 2.5
    state: dict[str, Any] = field(init=False, default_factory=lambda: {"waits": False, "told": []})

    async def judge(self, ctx: Any) -> float:
        first = ctx.rng("judge").initial_seed() % 1000
        await asyncio.sleep(self.delay / 2)
        ctx.charge("judged", 1)
        await asyncio.sleep(self.delay / 2)
        return float(first)

    def restart(self, ctx: Any) -> None:
        if self.state["waits"]:
            ctx.background("judge", self.judge(ctx))

    async def select(self, n: int, ctx: Any) -> list[Request]:
        job = ctx.background("judge", self.judge(ctx))
        self.state["waits"] = True
        if job.done:
            self.state["told"] = [*self.state["told"], [ctx.step, ctx.clock(), job.result()]]
            self.state["waits"] = False
        source = ctx.task.problems("train")
        return [Request(source[i]) for i in range(n)]


def asking(folder: Path, steps: int = 9) -> Recipe:
    file = folder / "own.toml"
    file.write_text(BANDIT + VIRTUAL + f'[curriculum]\nuse = "{HERE}.Asks"\n[store]\nevery = 1\n')
    return load(file).with_settings({"steps": steps})


def told(recipe: Recipe, path: Path) -> tuple[list[Any], float]:
    with open_run(recipe, path) as run:
        curriculum: Any = run.stage.curriculum
        return curriculum.state["told"], run.ctx.ledger["judged"]


def test_a_job_ends_at_its_time_and_a_resumed_run_is_the_same(tmp_path: Path) -> None:
    whole = asking(tmp_path)
    list(train(whole, tmp_path / "whole"))
    answers, judged = told(whole, tmp_path / "whole")
    assert len(answers) >= 2
    assert len({answer for _, _, answer in answers}) == len(answers)  # a later job of the key draws other numbers
    assert judged >= len(answers)
    for stop in (1, 2, 4, 6):
        sitting = train(whole, tmp_path / "parts")
        assert next(r for r in sitting if r["step"] == stop)
        sitting.close()  # type: ignore[attr-defined]
    list(train(whole, tmp_path / "parts"))
    assert told(whole, tmp_path / "parts") == (answers, judged)
    assert not differences(contents(tmp_path / "whole"), contents(tmp_path / "parts"))


@pytest.fixture
def ctx(tmp_path: Path) -> Iterator[Any]:
    with open_run(asking(tmp_path)) as run:
        run.enter_stage()
        yield run.ctx


async def slow(answer: Any, seconds: float = 3.0) -> Any:
    await asyncio.sleep(seconds)
    if isinstance(answer, Exception):
        raise answer
    return answer


def test_a_key_has_one_job_until_its_result_is_taken(ctx: Any) -> None:
    first = ctx.background("a", slow(1))
    assert ctx.background("a", slow(2)) is first
    with pytest.raises(RuntimeError, match="the job 'a' is not done"):
        first.result()
    ctx.wait(asyncio.sleep(3.5))
    assert first.done and first.result() == 1
    assert ctx.background("a", slow(2)) is not first


def test_a_job_is_awaited_and_raises_what_it_raised(ctx: Any) -> None:
    async def both() -> Any:
        with pytest.raises(KeyError, match="broken"):
            await ctx.background("b", slow(KeyError("broken")))
        return await ctx.background("c", slow([1, 2]))

    assert ctx.wait(both()) == [1, 2]
    assert not ctx.in_flight.jobs.jobs


def test_a_stage_that_ends_gives_its_jobs_up(ctx: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    forgotten: list[str] = []
    monkeypatch.setattr(ctx.async_engine, "forget", forgotten.append)
    job = ctx.background("d", slow(1))
    ctx.in_flight.drop()
    assert not ctx.in_flight.jobs.jobs and job.task.cancelled()
    assert forgotten == [job.asker]  # the engine keeps no answers for it


def test_jobs_of_one_key_in_one_step_have_streams_of_their_own(ctx: Any) -> None:
    async def drawn() -> int:
        return int(ctx.rng("x").initial_seed())

    def one() -> tuple[str, int]:
        job = ctx.background("a", drawn())
        ctx.wait(asyncio.sleep(0.1))
        return job.asker, job.result()

    first, second = one(), one()
    assert first[0] == f"job/a/{ctx.step}" and first[0] != second[0] and first[1] != second[1]
    ctx.in_flight.restore(ctx.in_flight.tree())  # the count goes on
    third = one()
    assert third[0] not in (first[0], second[0]) and third[1] not in (first[1], second[1])
    ctx.step += 1
    assert one()[0] == f"job/a/{ctx.step}"


def test_a_job_that_nobody_begins_again_is_told(ctx: Any) -> None:
    ctx.background("e", slow(1))
    ctx.background("f", slow(2))
    tree = ctx.in_flight.tree()
    ctx.in_flight.drop()
    with pytest.raises(RuntimeError, match=r"the jobs 'f' had begun .* restart\(ctx\) calls ctx.background"):
        ctx.in_flight.restore(tree, lambda: ctx.background("e", slow(1)))
