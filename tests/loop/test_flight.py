"""Groups in flight: what is asked, taken and waited for, and that a virtual clock makes all of it repeatable."""

from __future__ import annotations

import asyncio
import tempfile
from contextlib import closing
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from time import sleep
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from shuhari import testing
from shuhari.batch import Batch
from shuhari.config.recipe import Recipe, load
from shuhari.data import ContractError, Problem, Request
from shuhari.loop.flight import InFlight
from shuhari.loop.run import loop, open_run, train
from shuhari.store import Run
from shuhari.tasks.gridworld import Gridworld
from shuhari.tasks.shop import Shop
from shuhari.tasks.source import Stream
from shuhari.testing.compare import contents, differences

HERE = __name__
TAKEN: list[tuple[int, int, int]] = []  # (step, group, how many versions old it was)


@dataclass
class Watched:
    """Notes what each step learns from."""

    needs: tuple[Any, ...] = field(init=False, default=())

    def __call__(self, batch: Batch, ctx: Any) -> Batch:
        for group in batch["group"].unique().tolist():
            rows = batch.take(batch["group"] == group)
            TAKEN.append((ctx.step, group, int((ctx.version - rows["version"])[rows["mask"]].max())))
        return batch


@dataclass
class Unwanted:
    """A filter that drops a share of all groups, by their number."""

    share: float = 0.5
    needs: tuple[Any, ...] = field(init=False, default=())

    def __call__(self, batch: Batch, ctx: Any) -> Batch:
        keep = (batch["group"] % 1000) >= 1000 * self.share
        return batch.put({"weight/rl": batch["mask"] * keep[:, None].float()})


@dataclass
class Slow:
    """A task whose environments take a while at each move: log-normal, with a long tail."""

    mean: float = 0.2
    sigma: float = 1.5

    def environment(self, problem: Problem) -> Any:
        return Slowed(super().environment(problem), self.mean, self.sigma)  # type: ignore[misc]


@dataclass
class SlowWorld(Slow, Gridworld):
    """A gridworld that takes a while."""


@dataclass
class SlowShop(Slow, Shop):
    """A shop that takes a while."""


class Slowed:
    def __init__(self, world: Any, mean: float, sigma: float) -> None:
        self.world, self.mean, self.sigma, self.t = world, mean, sigma, 0

    def reset(self, problem: Problem) -> Any:
        self.id, self.t = problem.id, 0
        return self.world.reset(problem)

    async def step(self, action: Any) -> Any:
        self.t += 1
        u = Stream("slowed", self.id, self.t, str(action)).uniform()
        wait = torch.distributions.LogNormal(0.0, self.sigma).icdf(torch.tensor(u)).item()
        await asyncio.sleep(self.mean * wait)
        return self.world.step(action)


WORLD = f"""
steps = 8
[task]
name = "{HERE}:SlowWorld"
cells = ["S.G", "..H"]
limit = 6
[models.policy]
use = "tabular"
[engine]
staleness = 2
virtual = {{decode = 0.01, train = 0.5}}
[rollout]
use = "episode"
n = 2
[reward.weights]
task = 1.0
[buffer]
size = 4
[collect.watched]
use = "{HERE}:Watched"
[transform.returns]
[part.policy]
minibatches = 2
terms.loss = {{use = "clip"}}
optimiser.lr = 0.1
[evaluate]
every = 3
n = 4
[store]
every = 2
"""

SHOP = f"""
steps = 5
[task]
name = "{HERE}:SlowShop"
turns = 3
[models.policy]
use = "causal"
hidden = 16
layers = 2
heads = 2
intermediate = 32
context = 96
[engine]
staleness = 2
virtual = {{decode = 0.02, train = 0.5}}
[rollout]
use = "episode"
n = 2
sampling = {{max_new = 8, stop = ["\\n"]}}
[buffer]
size = 3
[collect.watched]
use = "{HERE}:Watched"
[collect.advantage]
[part.policy]
terms.loss = {{use = "clip", behaviour = "old", truncate = 2.0}}
optimiser.lr = 1e-2
[evaluate]
every = 2
n = 3
[store]
every = 2
"""


def recipe(text: str, folder: Path, **changes: Any) -> Recipe:
    file = folder / "slow.toml"
    file.write_text(text)
    return load(file).with_settings({k.replace("__", "."): v for k, v in changes.items()})


def run_out(recipe: Recipe, path: Path | None = None) -> list[dict[str, Any]]:
    TAKEN.clear()
    return list(train(recipe, path))


# ---------------------------------------------------------------- what is asked and taken


class Asked:
    """A flight of its own over a rollout whose groups finish when told."""

    def __init__(self, staleness: int) -> None:
        self.gates: dict[str, asyncio.Event] = {}
        self.asked, self.failing = 0, ""
        engine = SimpleNamespace(staleness=staleness, forget=lambda _: None)
        self.ctx: Any = testing.context(engine=engine, rollout=self, stamp_request=lambda request, tag: request)
        self.accepts: dict[str, Any] = {}
        self.in_flight = InFlight(self.ctx)

    async def select(self, n: int, ctx: Any) -> list[Request]:
        self.asked += n
        return [Request(Problem("t", str(i), 0), 1, key=str(i)) for i in range(self.asked - n, self.asked)]

    async def group(self, request: Request, ctx: Any) -> list[Any]:
        await self.gates.setdefault(request.key, asyncio.Event()).wait()
        if request.key in self.failing:
            raise ZeroDivisionError
        return [request.key]


async def turns() -> None:
    for _ in range(8):
        await asyncio.sleep(0)


async def ungraded(group: Any, ctx: Any) -> Any:
    return group


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups that nothing grades or packs."""
    monkeypatch.setattr("shuhari.loop.collect.pack_groups", lambda groups, ctx: groups)
    monkeypatch.setattr("shuhari.loop.collect.grade_group", ungraded)


@pytest.mark.parametrize(("staleness", "left", "asked"), [(0, 9, 4), (1, 9, 8), (4, 9, 20), (4, 1, 8), (4, 0, 4)])
def test_admission(staleness: int, left: int, asked: int, bare: None) -> None:
    """Catalogue 71: a batch of 4 and staleness 1 admit exactly 8 under version 0; none for steps that never come."""

    async def go() -> None:
        own = Asked(staleness)
        own.ctx.record_failure = lambda *_: None
        taking = asyncio.ensure_future(own.in_flight.take(4, own.select, first=True, left=left))
        await turns()
        assert own.asked == asked and not taking.done()
        for key in "0124":
            own.gates.setdefault(key, asyncio.Event()).set()
        await turns()
        assert taking.done() is (staleness > 0 and asked > 4)  # number 3 is due where nothing may be stale
        own.gates["3"].set()
        _, requests = await taking
        assert [r.key for r in requests] == (["0", "1", "2", "4"] if asked > 4 else ["0", "1", "2", "3"])
        if asked > 4:  # of the next batch 3 is there, and no more is asked than what was taken
            own.ctx.version = 1
            taking = asyncio.ensure_future(own.in_flight.take(4, own.select, first=True, left=left))
            await turns()
            assert own.asked == asked + 4
            own.ctx.version = 0  # nothing is due yet, so whoever is ready goes
            for key in "567":
                own.gates.setdefault(key, asyncio.Event()).set()
            assert [r.key for r in (await taking)[1]] == ["3", "5", "6", "7"]
        for gate in own.gates.values():
            gate.set()
        await turns()

    asyncio.run(go())


def test_what_is_due_is_waited_for(bare: None) -> None:
    async def go() -> None:
        own = Asked(1)
        own.ctx.record_failure = lambda *_: None
        taking = asyncio.ensure_future(own.in_flight.take(2, own.select, first=True, left=9))
        await turns()
        for key in "123":
            own.gates[key].set()
        assert [r.key for r in (await taking)[1]] == ["1", "2"]
        own.ctx.version = 1  # group 0 was asked for one version ago
        taking = asyncio.ensure_future(own.in_flight.take(2, own.select, first=True, left=9))
        await turns()
        for key in "45":
            own.gates[key].set()
        await turns()
        assert not taking.done()
        own.gates["0"].set()
        assert [r.key for r in (await taking)[1]] == ["0", "3"]

    asyncio.run(go())


def test_failed_groups_come_along_and_take_nobodys_place(bare: None) -> None:
    async def go() -> None:
        own = Asked(1)
        own.failing, own.ctx.record_failure = "123", lambda *_: None
        taking = asyncio.ensure_future(own.in_flight.take(2, own.select, first=True, left=9))
        await turns()
        for key in "123":
            own.gates[key].set()
        await turns()
        assert not taking.done()  # two may still come, and one does
        own.gates["0"].set()
        groups, requests = await taking
        assert groups == [["0"], [], [], []] and [r.key for r in requests] == list("0123")

    asyncio.run(go())


# ---------------------------------------------------------------- whole runs


def test_staleness_0_is_synchronous(tmp_path: Path) -> None:
    run_out(recipe(WORLD, tmp_path, engine__staleness=0), tmp_path / "a")
    assert {old for *_, old in TAKEN} == {0} and len({g for _, g, _ in TAKEN}) == len(TAKEN) == 32
    run_out(recipe(WORLD, tmp_path, engine__staleness=0, remove=["engine.virtual"], task__mean=0.0), tmp_path / "b")
    clocks = "wall", "spent/virtual_seconds"
    metrics = [{k: v for k, v in Run(tmp_path / x).metrics().items() if k not in clocks} for x in "ab"]
    assert metrics[0] == metrics[1]  # no clock, no difference


@pytest.mark.parametrize("text", [WORLD, SHOP], ids=["world", "shop"])
def test_virtual_time_repeats_and_resumes_bit_by_bit(text: str, tmp_path: Path) -> None:
    own = recipe(text, tmp_path)
    run_out(own, tmp_path / "whole")
    steps, stale = own.total, {old for *_, old in TAKEN}
    groups = {(step, group) for step, group, _ in TAKEN}
    assert stale == {0, 1, 2} or stale == {1, 2}, "nothing was stale: the test shows nothing"
    run_out(own, tmp_path / "again")
    assert not differences(contents(tmp_path / "whole"), contents(tmp_path / "again"))
    for cut in range(1, int(steps), 2):
        TAKEN.clear()
        path = tmp_path / f"cut-{cut}"
        run = open_run(own, path)
        reports = loop(run)
        for _ in range(cut):
            next(reports)
        run.saved = True  # as a kill leaves it: the last checkpoint is one or two steps old
        reports.close()
        list(train(own, path))
        assert {(step, group) for step, group, _ in TAKEN} == groups
        assert not differences(contents(tmp_path / "whole"), contents(path))


@settings(max_examples=12, deadline=None, derandomize=True, phases=[Phase.generate], report_multiple_bugs=False)
@given(st.data())
def test_nothing_is_lost_or_learnt_from_twice(data: st.DataObject) -> None:
    """Random latencies, staleness, filters and kills: a kill leaves the last checkpoint, and the run goes on there."""
    draw, clocks = data.draw, [{"decode": 0.01, "train": 0.3}, {"decode": 0.2, "train": 3.0}, {}]
    bound = draw(st.integers(0, 3))
    clock = draw(st.sampled_from(clocks))
    changes = {
        "steps": 6,
        "engine.staleness": bound,
        **({"engine.virtual": clock} if clock else {"remove": ["engine.virtual"]}),
        "task.sigma": draw(st.floats(0.1, 2.5)),
        "task.mean": 0.001,
        "buffer.size": draw(st.integers(1, 5)),
        "store.every": draw(st.integers(1, 3)),
        "collect.unwanted": {"use": f"{HERE}:Unwanted", "share": draw(st.floats(0.0, 0.7))},
    }
    cuts = draw(st.lists(st.integers(1, 4), max_size=3))
    with tempfile.TemporaryDirectory() as name:
        own, path = recipe(WORLD, Path(name)).with_settings(changes), Path(name) / "run"
        stands: dict[int, list[int]] = {}  # step -> groups, as the last process that made the step learnt from them
        for cut in [*cuts, 99]:
            TAKEN.clear()
            run = open_run(own, path)
            reports = loop(run)
            while cut and next(reports, None):
                cut -= 1
            run.saved = True  # as a kill leaves it: what was not stored is gone
            reports.close()
            assert all(old <= bound for *_, old in TAKEN)
            stands |= {step: [g for at, g, _ in TAKEN if at == step] for step, *_ in TAKEN}
        learnt = [group for groups in stands.values() for group in groups]
        assert sorted(stands) == list(range(6)) and len(learnt) == len(set(learnt))
        assert run.ctx.step == 6 and len(learnt) == run.ctx.next_ticket  # all that was asked for was learnt from


def test_asynchrony_saves_virtual_time(tmp_path: Path) -> None:
    """Catalogue 71, claim (a): heavy-tailed latencies, the same steps, more than 1.3 times the throughput. Nothing but
    steps takes time, so what is charged for them is the time that it is."""

    def seconds(staleness: int) -> float:
        run = open_run(recipe(WORLD, tmp_path, engine__staleness=staleness, remove=["evaluate", "store"]))
        with closing(loop(run)) as steps:
            spent = [float(next(steps)["spent/virtual_seconds"]) for _ in range(8)]
            assert spent[-1] == pytest.approx(run.ctx.loop.time()) and min(b - a for a, b in pairwise(spent)) >= 0.5
            return spent[-1]

    assert seconds(0) > 1.3 * seconds(2)


@dataclass
class Asks:
    """A judge that asks the policy twice for the same score, in a thread's time, and draws from a stream."""

    async def grade(self, group: Any, ctx: Any) -> list[Any]:
        out = []
        for t in group:
            step = t.steps[0]
            for _ in range(2):
                found = await ctx.engine.score("policy", step.context, step.action, ("log_prob",))
                await asyncio.sleep(0.3)
            await asyncio.to_thread(sleep, 0.001)
            noise = torch.rand((), generator=ctx.rng("judge", t.request.key)).item()
            out.append({"judged": float(found["log_prob"].sum()) + noise})
        return out


def test_judges_in_flight_repeat_and_resume(tmp_path: Path) -> None:
    own = recipe(WORLD, tmp_path, steps=5, reward__judge={"use": f"{HERE}:Asks"})
    own = own.with_settings({"reward.weights": {"task": 1.0, "judged": 0.1}})
    run_out(own, tmp_path / "whole")
    for cut in (2, 4):
        path = tmp_path / f"cut-{cut}"
        reports = train(own, path)
        for _ in range(cut):
            next(reports)
        reports.close()
        list(train(own, path))
        assert not differences(contents(tmp_path / "whole"), contents(path))


def test_stages_of_both_kinds_of_time(tmp_path: Path) -> None:
    later = {"name": "b", "steps": 2}
    text = WORLD.replace("steps = 8\n", "")
    text += '[[stage]]\nname = "a"\nsteps = 2\nremove = ["engine.virtual"]\n[[stage]]\n'
    text += "\n".join(f"{k} = {v!r}" for k, v in later.items())
    assert len(run_out(recipe(text, tmp_path, task__mean=0.001))) == 4


def test_a_filter_that_rejects_everything_ends_in_an_error(tmp_path: Path) -> None:
    own = recipe(WORLD, tmp_path, collect__unwanted={"use": f"{HERE}:Unwanted", "share": 1.0})
    with pytest.raises(RuntimeError, match=r"step 0: 4 still wanted after 20 rounds of collection: a filter rejects"):
        run_out(own)


def test_an_error_in_flight_ends_the_run(tmp_path: Path) -> None:
    own = recipe(WORLD, tmp_path, task__name=f"{HERE}:Falls")
    with pytest.raises(ContractError, match="fell"):
        run_out(own)


@dataclass
class Falls(SlowWorld):
    """Breaks the contract of its port in the third problem."""

    def environment(self, problem: Problem) -> Any:
        if problem.id.endswith("/2"):
            raise ContractError("fell")
        return super().environment(problem)


def test_in_earnest_what_waits_is_used(tmp_path: Path) -> None:
    """By the real clock: answers come while the run learns, and the groups of later steps are on their way."""
    own = recipe(WORLD, tmp_path, remove=["engine.virtual"], task__mean=0.02, steps=4)
    reports = run_out(own, tmp_path / "run")
    assert (Run(tmp_path / "run").summary or {})["repeatable"] is False
    assert max(r["rollout/staleness_max"] for r in reports) in (1, 2)
    assert len({g for _, g, _ in TAKEN}) == len(TAKEN) == 16
