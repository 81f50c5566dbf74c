"""The check of each port finds a component that breaks it, and passes one that does not."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from shuhari.batch import Batch
from shuhari.buffers.fresh import Fresh
from shuhari.config.recipe import Recipe
from shuhari.data import Problem, Request, Status, Step, Trajectory
from shuhari.engines.local import Local
from shuhari.events import Collected, Updated
from shuhari.models.follow import Ema
from shuhari.models.tabular import Tabular
from shuhari.needs import Trace
from shuhari.optimisers.adamw import AdamW
from shuhari.rollouts.single import Single
from shuhari.tasks.bandit import Bandit
from shuhari.tasks.gridworld import Gridworld, Walk
from shuhari.testing import (
    ConformanceError,
    ScriptedEngine,
    check_analysis,
    check_buffer,
    check_curriculum,
    check_engine,
    check_environment,
    check_environments,
    check_learner,
    check_objective,
    check_optimiser,
    check_predictor,
    check_recording,
    check_reward,
    check_rollout,
    check_rule,
    check_study,
    check_transform,
    check_window,
    context,
    groups,
)
from shuhari.testing.looking import check_repeats


def broken(message: str) -> Any:
    return pytest.raises(ConformanceError, match=message)


# ---------------------------------------------------------------- what learns


@dataclass
class Descent:
    """Gradient descent that does what `fault` says."""

    fault: str = ""

    def bind(self, params: Any) -> None:
        self.params, self.calls = list(params), 0

    def step(self, evaluate: Any, at: float) -> Any:
        info, self.calls = evaluate.backward(), self.calls + 1
        if not all(bool(p.grad.isfinite().all()) for p in self.params) and self.fault != "infinite":
            raise FloatingPointError
        rate = {"still": 0.0, "forgets": 0.1 * self.calls}.get(self.fault, 0.1)
        for p in self.params:
            p.data -= rate * p.grad
        if self.fault == "global":
            torch.rand(())
        return {"text": {"lr": "high"}, "bare": 1.0}.get(self.fault, info)


@pytest.mark.parametrize(("fault", "message"), [
    ("still", "left all parameters"), ("forgets", "outside of `state`"), ("global", "global generator"),
    ("infinite", "not finite"), ("text", "gave 'lr' = 'high'"), ("bare", "returned float"),
])  # fmt: skip
def test_an_optimiser(fault: str, message: str) -> None:
    check_optimiser(Descent())
    check_optimiser(AdamW(clip=0.5))
    with broken(f"^Descent: .*{message}"):
        check_optimiser(Descent(fault))


@dataclass
class Trails:
    """A rule that does what `fault` says."""

    fault: str = ""
    on: Any = "step"
    roles: tuple[str, ...] = ("target", "policy")
    calls: int = field(default=0, init=False)

    def __call__(self, models: Any, event: Any) -> None:
        due = event.__class__.__name__ == "Committed" or self.fault == "hears all"
        if not due:
            return
        self.calls += 1
        rate = {"forgets": 1 / self.calls, "still": 0.0}.get(self.fault, 0.5)
        target, policy = models["target"].module, models["policy"].module
        for a, b in zip(target.parameters(), policy.parameters(), strict=True):
            a.data.lerp_(b.data, rate)
            if self.fault == "both":
                b.data.mul_(0.9)


def test_a_rule() -> None:
    check_rule(Trails())
    with broken("moved no weights at 25 events"):
        check_rule(Trails("still"))
    check_rule(Ema("target", every=2))
    with broken("moved target at Updated, and hears only Committed"):
        check_rule(Trails("hears all"))
    with broken("moved the weights of .*expected those of one role"):
        check_rule(Trails("both"))
    with broken("outside of `state`"):
        check_rule(Trails("forgets"))


@dataclass
class Nudge:
    """A learner that does what `fault` says."""

    fault: str = ""
    buffer: Any = field(default_factory=Fresh)
    transforms: Any = field(default_factory=dict)
    parts: Any = field(default_factory=lambda: {"p": SimpleNamespace(trains=("policy",))})
    needs: tuple[()] = field(default=(), init=False)
    calls: int = field(default=0, init=False)

    def bind(self, models: Any) -> None:
        self.models = models

    def update(self, batch: Batch, ctx: Any) -> Any:
        self.calls += 1
        amount = 0.1 * self.calls if self.fault == "forgets" else 0.1
        for role in ("policy", "reference") if self.fault == "others" else ("policy",):
            for p in self.models[role].module.parameters():
                p.data += amount
        if self.fault == "in place":
            batch["reward"].zero_()
        ids = batch["id"] + 7 if self.fault == "ids" else batch["id"]
        return {} if self.fault == "bare" else Updated("main", {"loss": 1.0}, ids)


@pytest.mark.parametrize(("fault", "message"), [
    ("others", "changed the model of role 'reference': it trains policy"), ("in place", "in place"),
    ("ids", "ids that are not in the batch"), ("bare", "reported dict"), ("forgets", "from the same state"),
])  # fmt: skip
def test_a_learner(fault: str, message: str) -> None:
    def run() -> Any:
        return context(models={r: SimpleNamespace(module=nn.Linear(1, 1)) for r in ("policy", "reference")})

    check_learner(Nudge(), groups([[1.0, 0.0]]), run())
    with broken(f"^Nudge: .*{message}"):
        check_learner(Nudge(fault), groups([[1.0, 0.0]]), run())


@dataclass
class Columns:
    """A transform, or an objective, whose columns are not those that it declares."""

    read: str = "reward/score"
    write: str = "advantage"
    needs: tuple[()] = field(default=(), init=False)
    couples: str = field(default="row", init=False)
    reads = ("reward/score",)
    stamps = ("advantage",)

    def __call__(self, batch: Batch, ctx: Any) -> Any:
        spare = batch.get("spare")
        found = batch[self.read] if spare is None else spare
        return batch.put({self.write: found})


@dataclass
class Stamps(Columns):
    def __call__(self, batch: Batch, ctx: Any) -> Any:
        batch.stamp(self.write, batch[self.read])
        return batch[self.read], {}


def test_columns_that_are_not_declared() -> None:
    batch = groups([[1.0, 0.0]], columns={"other": torch.zeros(2, 3)})
    check_transform(Columns(), batch, context())
    check_objective(Stamps(), batch, context())
    for check, cls in ((check_transform, Columns), (check_objective, Stamps)):
        with broken("read the column 'other' and declares reward/score as `reads`"):
            check(cls(read="other"), batch, context())
        with broken("wrote the column 'advantege' and declares advantage.*did you mean 'advantage'"):
            check(cls(write="advantege"), batch, context())


@dataclass
class Lists(Columns):
    """Reads by listing, or the weights of a stream, or makes up a stream."""

    how: str = ""

    def __call__(self, batch: Batch, ctx: Any) -> Any:
        if self.how == "lists":
            sum(batch[name].double().nan_to_num().sum() for name in batch.names())
        if self.how == "weight":
            batch["weight/other"]
        stream = {"made up": "foo", "leaves out": "rl"}.get(self.how, "")
        out = batch.put({"advantage": batch["reward"]})
        return out.put({f"weight/{stream}": batch["mask"].float()}) if stream else out


def test_columns_that_are_listed_and_streams_that_are_made_up() -> None:
    batch = groups([[1.0, 0.0]], columns={"other": torch.zeros(2, 3), "weight/other": torch.ones(2, 3)})
    for how in ("", "leaves out"):
        check_transform(Lists(how=how), batch, context())
    for how, name in (("lists", "read the column 'other'"), ("weight", "read the column 'weight/other'"),
                      ("made up", "wrote the column 'weight/foo'")):  # fmt: skip
        with broken(name):
            check_transform(Lists(how=how), batch, context())


@dataclass
class EveryOther:
    """A transform, or an objective, that tells more every other time."""

    objective: bool = False
    needs: tuple[()] = field(default=(), init=False)
    couples: str = field(default="row", init=False)
    calls: int = field(default=0, init=False)

    def __call__(self, batch: Batch, ctx: Any) -> Any:
        self.calls += 1
        if self.objective:
            return batch["reward"], {"call": torch.tensor(float(self.calls))}
        return batch.put({"advantage": batch["reward"]}) if self.calls % 2 else batch


def test_what_is_there_only_every_other_time() -> None:
    with broken("gave advantage only one time of two"):
        check_transform(EveryOther(), groups([[1.0, 0.0]]), context())
    with broken("another info"):
        check_objective(EveryOther(objective=True), groups([[1.0, 0.0]]), context())


@dataclass
class Slow:
    """A transform and a reward that go otherwise from the fourth call on; `honest`: as their state says."""

    honest: bool = False
    needs: tuple[()] = field(default=(), init=False)
    couples: str = field(default="row", init=False)
    state: dict[str, int] = field(init=False, default_factory=lambda: {"calls": 0})

    def __post_init__(self) -> None:
        self.calls = 0

    def count(self) -> float:
        self.calls += not self.honest
        self.state["calls"] += self.honest
        return float(max(self.calls, self.state["calls"]) > 3)

    def __call__(self, batch: Batch, ctx: Any) -> Any:
        return batch.put({"advantage": batch["reward"] + self.count()})

    async def grade(self, group: Any, ctx: Any) -> Any:
        return [{"style": self.count()} for _ in group]


@dataclass
class SlowLoss(Slow):
    def __call__(self, batch: Batch, ctx: Any) -> Any:
        return batch["reward"] + self.count(), {}


def test_memory_outside_of_the_state_is_found_whenever_it_shows() -> None:
    batch, answer = groups([[1.0, 0.0]]), Trajectory(Request(Problem("t", "p", None)), (Step.of("question", "answer"),))
    for check, cls, given in (
        (check_transform, Slow, batch), (check_objective, SlowLoss, batch), (check_reward, Slow, [answer])
    ):  # fmt: skip
        check(cls(honest=True), given, context())  # type: ignore[operator]
        with broken("went on otherwise after it was saved and made anew: it keeps something outside of `state`"):
            check(cls(), given, context())  # type: ignore[operator]


# ---------------------------------------------------------------- what is learnt from


@dataclass
class Shelf:
    """A buffer that does what `fault` says."""

    fault: str = ""
    state: dict[str, Any] = field(init=False, default_factory=lambda: {"kept": None})

    def __post_init__(self) -> None:
        self.kept: Any = None

    def wanted(self) -> int:
        return int(self.fault == "greedy" or (self.kept is None and self.state["kept"] is None))

    def observe(self, event: Any) -> None:
        if isinstance(event, Collected) and self.wanted():
            if self.fault == "in place":
                event.batch["reward"].zero_()
            if self.fault == "hides":
                self.kept = event.batch.flat()
            else:
                self.state["kept"] = event.batch.flat()

    def draw(self, ctx: Any) -> Iterator[Batch]:
        kept = self.kept or self.state["kept"]
        order = torch.randperm(len(kept), generator=None if self.fault == "global" else ctx.rng("shelf"))
        batch = kept.take(order)
        if self.fault == "alters":
            batch = batch.put({"reward": batch["reward"] + 1})
        batch.stream = None if self.fault == "streamless" else "rl"
        if self.fault != "dry":
            yield batch


@pytest.mark.parametrize(("fault", "message"), [
    ("greedy", "still wants 1 after 20 offers"), ("in place", "in place"), ("hides", "."),
    ("global", "global generator"), ("alters", "another 'reward' than it was offered with"),
    ("streamless", "carry no stream"), ("dry", "drew nothing"),
])  # fmt: skip
def test_a_buffer(fault: str, message: str) -> None:
    check_buffer(Shelf())
    with broken(f"^Shelf: .*{message}"):
        check_buffer(Shelf(fault))


@dataclass
class Tape:
    """A recording that does what `fault` says."""

    stamps = ("reward/*",)
    fault: str = ""

    def read(self, task: Any, seed: int) -> Any:
        from shuhari.buffers.recording import RecordedEpisode, columns_of

        rng = np.random.default_rng(None if self.fault == "draws" else seed)
        episodes = [RecordedEpisode(rng.normal(size=(4, 2)), np.zeros(3), {"task": np.ones(3)}, True) for _ in range(2)]
        out = columns_of(episodes)
        if self.fault == "order":
            out = {k: x.flip(0) for k, x in out.items()}
        if self.fault == "no actions":
            del out["taken"]
        if self.fault == "short":
            out["reward/task"] = out["reward/task"][:-1]
        if self.fault == "closing":
            out["mask"] = torch.ones_like(out["mask"])
        if self.fault == "undeclared":
            out["mood"] = out["cont"]
        return out


@pytest.mark.parametrize(("fault", "message"), [
    ("draws", "same seed"), ("order", "."), ("no actions", "no actions"),
    ("short", "7 rows of 'reward/task': expected 8"),
    ("closing", "closing row that decides"), ("undeclared", "'mood', which its `stamps` leave out: reward/[*]"),
])  # fmt: skip
def test_a_recording(fault: str, message: str) -> None:
    check_recording(Tape(), None)
    with broken(f"^Tape: .*{message}"):
        check_recording(Tape(fault), None)


# ---------------------------------------------------------------- how episodes come about


@dataclass
class World(gymnasium.Env[Any, Any]):
    """An environment of Gymnasium that does what `fault` says."""

    fault: str = ""
    observation_space = spaces.Box(-10, 10, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __post_init__(self) -> None:
        if self.fault == "no space":
            self.action_space = None  # type: ignore[assignment]
        if self.fault == "no seed":
            self.reset = lambda: (self.seen, {})  # type: ignore[method-assign]

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=None if self.fault == "seedless" else seed)
        self.seen = self.np_random.uniform(size=2).astype(np.float32)
        return self.seen if self.fault == "bare reset" else (self.seen, {})

    def step(self, action: Any) -> Any:
        self.seen = self.seen + np.float32(0.1)
        seen = {"outside": np.full(2, 11, np.float32), "shape": self.seen[:1]}.get(self.fault, self.seen)
        reward: Any = {"nan": float("nan"), "array": np.ones(1)}.get(self.fault, 1.0)
        ended: Any = "no" if self.fault == "ended" else bool(self.seen[0] > 2)
        if self.fault == "global":
            np.random.rand()  # noqa: NPY002
        return (seen, reward, ended, False) if self.fault == "four" else (seen, reward, ended, False, {})


@pytest.mark.parametrize(("fault", "message"), [
    ("seedless", "same seed"), ("bare reset", "its reset returned array.*two values"), ("outside", "not in Box"),
    ("shape", r"shape \(1,\)"), ("nan", "reward at step 1 of an episode is nan: expected a finite number"),
    ("ended", "terminated at step 1 of an episode is 'no'"),
    ("four", "its step returned a tuple of 4: expected gymnasium's five"),
    ("global", "global generator"),
    ("array", r"reward at step 1 of an episode is array\(\[1.\]\): expected a finite number"),
    ("no space", "its action_space is None: expected a gymnasium.spaces.Space"),
    ("no seed", r"unexpected keyword argument 'seed': expected reset\(self, \*, seed=None, options=None\)"),
])  # fmt: skip
def test_an_environment_of_gymnasium(fault: str, message: str) -> None:
    check_environment(World())
    with broken(f"^World: .*{message}"):
        check_environment(World(fault))


@dataclass
class Maze:
    """A task whose episodes do what `fault` says."""

    fault: str = ""

    def __post_init__(self) -> None:
        self.inner = Gridworld(slip=0.5, living=-0.1)

    def problems(self, split: str) -> Any:
        return self.inner.problems(split)

    def spaces(self) -> Any:
        return self.inner.spaces()

    def grade(self, problem: Problem, steps: Any) -> Any:
        return {}

    def environment(self, problem: Problem) -> Any:
        return None if self.fault == "none" else Stroll(self.fault, self.inner)


class Stroll:
    def __init__(self, fault: str, world: Gridworld) -> None:
        self.fault, self.walk = fault, Walk(world)
        self.facts = {"cost": "dear"} if fault == "facts" else {"cost": 1.0}

    def reset(self, problem: Problem) -> Any:
        return self.walk.reset(problem)

    def step(self, action: Any) -> Any:
        seen, rewards, status = self.walk.step(action)
        if self.fault == "draws":
            rewards = {"task": float(np.random.default_rng().random())}
        status = {"status": "over", "pair": status}.get(self.fault, status)  # type: ignore[assignment]
        found = (99 if self.fault == "outside" else seen, {"task": "x"} if self.fault == "reward" else rewards, status)
        return found[:2] if self.fault == "pair" else found

    def snapshot(self) -> Any:
        if self.fault == "nothing":
            return {}
        saved = dict(self.walk.snapshot())  # type: ignore[call-overload]
        return {**saved, "t": 0} if self.fault == "forgets" else {"walk": self.walk} if self.fault == "code" else saved

    def restore(self, snapshot: Any) -> Any:
        return None if self.fault == "nothing" else self.walk.restore(snapshot)


@pytest.mark.parametrize(("fault", "message"), [
    ("none", "no environment"), ("draws", "same episode"), ("status", "status 'over'"),
    ("pair", "gave a tuple of 2: expected"), ("outside", "not in Discrete"), ("reward", "gave 'task' = 'x': expected"),
    ("facts", "tells 'cost' = 'dear'"), ("forgets", "from its snapshot"), ("nothing", "from its snapshot"),
    ("code", "not a payload"),
])  # fmt: skip
def test_the_episodes_of_a_task(fault: str, message: str) -> None:
    check_environment(Maze())
    with broken(message):
        check_environment(Maze(fault))


@dataclass
class Count:
    """A task whose episodes have `length` steps and show which one it is; `keeps`: whether a snapshot holds that."""

    length: int
    keeps: bool

    def problems(self, split: str) -> Any:
        return [Problem("count", "0", None)]

    def spaces(self) -> Any:
        return spaces.Discrete(100), spaces.Discrete(2)

    def grade(self, problem: Problem, steps: Any) -> Any:
        return {}

    def environment(self, problem: Problem) -> Any:
        return Counting(self)


class Counting:
    def __init__(self, task: Count) -> None:
        self.task, self.at = task, 0

    def reset(self, problem: Problem) -> Any:
        self.at = 0
        return np.int64(0)

    def step(self, action: Any) -> Any:
        self.at += 1
        return np.int64(self.at), {"task": 1.0}, Status.FINISHED if self.at == self.task.length else None

    def snapshot(self) -> Any:
        return {"at": self.at} if self.task.keeps else {}

    def restore(self, snapshot: Any) -> None:
        self.at = snapshot.get("at", self.at)


@pytest.mark.parametrize("length", [2, 3, 4, 5, 10, 20, 39, 99])
def test_a_snapshot_is_taken_within_an_episode_however_long_those_are(length: int) -> None:
    check_environment(Count(length, keeps=True))
    with broken("from its snapshot"):
        check_environment(Count(length, keeps=False))


def test_an_episode_of_one_step_has_no_middle() -> None:
    check_environment(Count(1, keeps=True))


def test_an_environment_may_lack_snapshots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(Counting, "snapshot")
    monkeypatch.delattr(Counting, "restore")
    check_environment(Count(10, keeps=False))


@dataclass
class Turns:
    """Environments that are the task's at every fourth call, else one without slips, and do what `fault` says."""

    fault: str = ""
    state: dict[str, int] = field(init=False, default_factory=lambda: {"asked": 0})

    def __post_init__(self) -> None:
        self.asked = 0  # which no state holds

    def environment(self, request: Request, ctx: Any) -> Any:
        self.state["asked"] += 1
        self.asked += 1
        asked = self.asked if self.fault == "forgets" else self.state["asked"]
        if self.fault == "none" or request.problem.id == "left out":
            return None
        if self.fault == "draws":
            asked = int(np.random.randint(1000))  # noqa: NPY002  (the global generator)
        world = ctx.task.inner if asked % 4 == 1 else Gridworld(living=-0.1)
        return Stroll("nothing" if self.fault == "snapshot" else "outside" if self.fault == "outside" else "", world)


@pytest.mark.parametrize(("fault", "message"), [
    ("forgets", "outside of `state`"), ("draws", "global generator"), ("outside", "not in Discrete"),
    ("snapshot", "from its snapshot"), ("none", "none of 2 requests"),
])  # fmt: skip
def test_environments_that_are_not_the_task_s(fault: str, message: str) -> None:
    ctx = context(task=Maze())
    first = ctx.task.problems("train")[0]
    requests = [Request(first, key="a"), Request(Problem("maze", "left out", None), key="b")]
    check_environments(Turns(), ctx)
    check_environments(Turns(), ctx, requests)
    with broken(message):
        check_environments(Turns(fault), ctx, requests)


@dataclass
class Cut:
    """A window that does what `fault` says."""

    fault: str = ""

    async def __call__(self, play: Any) -> Any:
        if self.fault == "in place":
            play.turns.clear()
        said = await play.ask(play.context)
        if self.fault == "draws":
            return np.random.default_rng().integers(0, 1000, 4)
        return "text" if self.fault == "text" else np.concatenate([play.start, said.action])


def test_a_window() -> None:
    assert check_window(Cut()).tolist() == [1, 2, 7, 8, 9]  # type: ignore[union-attr]
    for fault, message in (("in place", "changed `turns`"), ("draws", "something else"), ("text", "gave str")):
        with broken(f"^Cut: .*{message}"):
            check_window(Cut(fault))


@dataclass
class Asks:
    """A curriculum that does what `fault` says."""

    fault: str = ""
    state: dict[str, int] = field(init=False, default_factory=lambda: {"at": 0})

    def __post_init__(self) -> None:
        self.at = 0

    async def select(self, n: int, ctx: Any) -> Any:
        self.at += n
        self.state["at"] += n
        first = self.at if self.fault == "forgets" else self.state["at"]
        n = n + 1 if self.fault == "more" else 0 if self.fault == "none" else n
        problems = [ctx.task.problems("train")[first + i] for i in range(n)]
        return problems if self.fault == "problems" else [Request(p) for p in problems]


def test_a_curriculum() -> None:
    run = context(task=Bandit())
    check_curriculum(Asks(), run)
    for fault, message in (("forgets", "`state`"), ("more", "5 requests where 4"), ("none", "asked for nothing"),
                           ("problems", "no request")):  # fmt: skip
        with broken(f"^Asks: .*{message}"):
            check_curriculum(Asks(fault), run)


@dataclass
class Predicts:
    """A predictor that does what `fault` says."""

    fault: str = ""
    calls: int = field(default=0, init=False)

    async def predict(self, problems: Any, ctx: Any) -> Any:
        self.calls += 1
        rate = {"percent": 50.0, "forgets": 1 / self.calls}.get(self.fault, 0.5)
        rate = float(torch.rand(())) if self.fault == "global" else rate
        rates = torch.full((1 if self.fault == "one" else len(problems),), rate)
        return rates if self.fault == "bare" else (rates, rates)


@pytest.mark.parametrize(("fault", "message"), [
    ("percent", r"rates in \[0, 1\]"), ("one", r"expected \(8,\), one a problem"), ("bare", "expected two tensors"),
    ("forgets", "`state`"), ("global", "global generator"),
])  # fmt: skip
def test_a_predictor(fault: str, message: str) -> None:
    run = context(task=Bandit())
    check_predictor(Predicts(), run)
    with broken(f"^Predicts: .*{message}"):
        check_predictor(Predicts(fault), run)


@dataclass
class Shows:
    """An analysis that does what `fault` says."""

    fault: str = ""

    def __call__(self, seed: int) -> Any:
        found = {"global": lambda: torch.rand(()).item(), "clock": lambda: time.perf_counter(), "text": lambda: "high"}
        return {"gain": found.get(self.fault, lambda: seed + 0.5)()}


@pytest.mark.parametrize(("fault", "message"), [
    ("global", "global generator"), ("clock", "other numbers for the same seed"), ("text", "expected numbers by name"),
])  # fmt: skip
def test_an_analysis(fault: str, message: str) -> None:
    assert check_analysis(Shows(), 3) == {"gain": 3.5}
    with broken(f"^Shows: .*{message}"):
        check_analysis(Shows(fault))


@dataclass
class Plays:
    """A rollout that does what `fault` says."""

    fault: str = ""
    accepts: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.calls = CALLS.append(1) or len(CALLS)  # type: ignore[func-returns-value]

    async def group(self, request: Request, ctx: Any) -> Any:
        key = np.random.default_rng().integers(10**9) if self.fault == "draws" else request.key
        traces = await ctx.engine.sample("policy", 0, request.sampling, request.n, key=(key,))
        steps = [Step.of(0, t.action, t.logp) for t in traces]
        if self.fault == "versions":
            steps = [replace(s, version=np.zeros(3, np.int64)) for s in steps]
        if self.fault == "draws":
            steps = [Step.of(int(key), t.action, t.logp) for t in traces]
        self.calls += 1
        status = [Status.FINISHED, Status.TRUNCATED][self.calls % 2 if self.fault == "status" else 0]
        told = {"call": self.calls} if self.fault == "info" else {}
        if self.fault == "reward":
            steps = [replace(s, reward={"task": float(self.calls)}) for s in steps]
        return [] if self.fault == "none" else [Trajectory(request, (s,), status, told) for s in steps]


def test_a_rollout() -> None:
    def run() -> Any:
        return context(task=Bandit(), engine=ScriptedEngine({"policy": lambda context, i: 1}))

    engine, model = Local(), Tabular()
    model.build(Bandit())
    served = context(task=Bandit(), models={"policy": model}, engine=engine)
    served.serve()
    assert len(check_rollout(Single(), served, n=3)) == 3
    for fault, message in (("none", "no trajectory"), ("draws", "same request"), ("versions", "3 versions"),
                           *((x, "same request") for x in ("status", "info", "reward"))):  # fmt: skip
        with broken(f"^Plays: .*{message}"):
            check_rollout(Plays(fault), run())


@dataclass
class Answers:
    """An engine that does what `fault` says."""

    fault: str = ""

    def __post_init__(self) -> None:
        self.inner, self.calls = Local(), 0

    def open(self, seed: int, charge: Any) -> None:
        self.inner.open(seed, charge)

    def sync(self, models: Any, version: int) -> None:
        self.inner.sync(models, 0 if self.fault == "version" else version)

    async def sample(self, role: str, context: Any, sampling: Any, n: int = 1, *, key: Any) -> list[Trace]:
        self.calls += 1
        own = ("c", self.calls) if self.fault == "order" else key
        found = await self.inner.sample(role, context, sampling, n - (self.fault == "few"), key=own)
        if self.fault == "logp":
            found = [replace(t, logp=t.logp - 0.1 * self.calls) for t in found if t.logp is not None]
        return [replace(t, info={"call": self.calls}) for t in found] if self.fault == "info" else list(found)

    async def score(self, role: str, context: Any, action: Any, names: Any) -> Any:
        found = await self.inner.score(role, context, action, names)
        return {k: v + 1 for k, v in found.items()} if self.fault == "score" else found


def test_an_engine() -> None:
    model = Tabular()
    model.build(Bandit(arms=50))
    check_engine(Answers(), {"policy": model}, [0, 0, 0, 0])
    for fault, message in (("version", "version 0: expected 1"), ("order", "another order"),
                           ("few", "1 traces where 2"), ("logp", "another log-probability"),
                           ("info", "another info 'call'"), ("score", "scored")):  # fmt: skip
        with broken(f"^Answers: .*{message}"):
            check_engine(Answers(fault), {"policy": model}, [0, 0, 0, 0])


# ---------------------------------------------------------------- studies, and state that cannot be written


@dataclass
class Two:
    """A study of two runs; one that forgets counts how often it was called."""

    honest: bool = True

    def __call__(self, runs: Any) -> Iterator[Any]:
        CALLS.append(1)
        for name in ("a", "b"):
            yield from runs.train(name)
            yield {"measure": 1.0 if self.honest else float(name == "b") * len(CALLS)}


CALLS: list[int] = []
TREE: dict[str, Any] = {
    "steps": 1, "task": {"name": "bandit"}, "models": {"policy": {"use": "tabular"}}, "rollout": {"n": 4},
    "buffer": {"size": 1}, "collect": {"advantage": {}},
    "part": {"policy": {"terms": {"clip": {}}, "optimiser": {"lr": 0.1}}},
}  # fmt: skip


def test_a_study(tmp_path: Path) -> None:
    def study(honest: bool) -> Recipe:
        return Recipe("two", {**TREE, "study": {"use": f"{__file__}:Two", "honest": honest}}, {})

    check_study(study(True), tmp_path / "sound")
    with broken("Two: .*does not repeat itself"):
        check_study(study(False), tmp_path / "broken")
    with pytest.raises(ValueError, match=r"has no \[study\]"):
        check_study(Recipe("two", TREE, {}), tmp_path)


def test_a_state_that_is_no_plain_tree_is_found() -> None:
    @dataclass
    class Keeps:
        state: Any = field(init=False, default_factory=lambda: {"task": Bandit()})

    with broken("its state is not a plain tree"):
        check_repeats(Keeps(), lambda mine, world, i: i)
