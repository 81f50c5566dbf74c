"""Whole episodes: a known walk, how they end, environments that wait or raise, and text in several turns."""

import asyncio
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from shuhari import testing
from shuhari.batch import STATUS
from shuhari.data import Problem, Request, Sampling, Status, Step, is_tokens
from shuhari.engines.local import Local
from shuhari.kernel.pack import pack
from shuhari.models.tabular import Tabular
from shuhari.models.text.rows import NoRoom
from shuhari.needs import Trace
from shuhari.rollouts.episode import Episode
from shuhari.tasks.gridworld import Gridworld
from shuhari.tasks.gym import Gym


class Scripted:
    """An engine that answers from a list, by the number of the decision, and notes what it was asked."""

    def __init__(self, answers):
        self.answers, self.asked, self.at_once, self.waiting = answers, [], 0, 0

    async def sample(self, role, context, sampling, n=1, *, key):
        self.asked.append((role, context, key))
        self.waiting += 1
        await asyncio.sleep(0)
        self.at_once = max(self.at_once, self.waiting)
        self.waiting -= 1
        return [self.answers(key[3])]


class World:
    """Counts to `end`; observations are numbers, or text."""

    def __init__(self, end=3, status=Status.FINISHED, text=False, fails=99, waits=False):
        self.end, self.status, self.text, self.fails, self.waits = end, status, text, fails, waits
        self.taken, self.closed = [], False

    def reset(self, problem):
        return "go" if self.text else np.float32([0])

    def step(self, action):
        self.taken.append(action)
        return self._later() if self.waits else self._step()

    async def _later(self):
        await asyncio.sleep(0)
        return self._step()

    def _step(self):
        t = len(self.taken)
        if t > self.fails:
            raise RuntimeError("the world broke")
        return f"<{t}>" if self.text else np.float32([t]), {"task": float(t)}, self.status if t == self.end else None

    def close(self):
        self.closed = True


LETTERS = SimpleNamespace(
    encode=lambda text: np.array([ord(c) for c in text], np.int32), decode=lambda ids: "".join(map(chr, ids))
)


def context(engine, world=None, task=None, text=False):
    task = task or SimpleNamespace(environment=lambda problem: world() if callable(world) else world)
    model = LETTERS if text else SimpleNamespace()
    return testing.context(engine=engine, task=task, models=dict.fromkeys(("policy", "asker", "solver"), model))


def play(rollout, request, ctx):
    return asyncio.run(rollout.group(request, ctx))


def asked(n=1, **fields):
    return Request(Problem("t", "p", None), n, key="p#0", **fields)


def move(k):
    return Trace(np.array(k % 2), np.float32([-0.5]), 4, taken=np.array(10 + k))


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize(
    ("end", "status", "limit", "how", "cont"),
    [
        (3, Status.FINISHED, 10, Status.FINISHED, 0.0),
        (3, Status.TRUNCATED, 10, Status.TRUNCATED, 1.0),
        (9, Status.FINISHED, 3, Status.CUT, 1.0),
    ],
)
def test_an_episode_and_how_it_ends(end, status, limit, how, cont, waits):
    world = World(end, status, waits=waits)
    (trajectory,) = play(Episode(max_steps=limit), asked(), context(Scripted(move), world))
    assert trajectory.status is how and world.closed
    assert world.taken == [10, 11, 12]  # what the trace calls `environment`
    *steps, closing = trajectory.steps
    assert [s.parent for s in trajectory.steps] == [None, 0, 1, 2]
    assert [int(s.action) for s in steps] == [0, 1, 0] and [float(s.context[0]) for s in steps] == [0.0, 1.0, 2.0]
    assert [dict(s.reward) for s in steps] == [{"task": 1.0}, {"task": 2.0}, {"task": 3.0}]
    assert closing.action is None and closing.cont == cont and float(closing.context[0]) == 3.0
    assert all(s.version.tolist() == [4] and s.logp.tolist() == [-0.5] and not s.info for s in steps)
    batch = pack([trajectory])
    assert batch["child"].tolist() == [1, 2, 3, -1] and batch["cont"].tolist() == [1, 1, 1, cont]
    assert batch["reward/task"][:, 0].tolist() == [1, 2, 3, 0] and batch["status"][0] == STATUS[how]


def test_a_group_plays_side_by_side_with_noise_of_its_own():
    engine = Scripted(move)
    group = play(Episode(), asked(3), context(engine, World))
    assert len(group) == 3 and engine.at_once == 3
    assert len({key for _, _, key in engine.asked}) == len(engine.asked) == 9


def test_text_grows_by_what_is_said_and_seen():
    say = lambda k: Trace(np.array([ord("a") + k], np.int32), np.float32([-1]), 0, {"text": chr(ord("a") + k)})  # noqa: E731
    world, engine = World(text=True), Scripted(say)
    (trajectory,) = play(Episode(role="solver"), asked(), context(engine, world, text=True))
    read = ["".join(map(chr, c)) for _, c, _ in engine.asked]
    assert read == ["go", "goa<1>", "goa<1>b<2>"] and world.taken == ["a", "b", "c"]
    closing = trajectory.steps[-1]
    assert "".join(map(chr, closing.context)) == "goa<1>b<2>c<3>" and is_tokens(closing.context)
    assert {s.role for s in trajectory.steps} == {"solver"}
    batch = pack([trajectory])
    assert len(batch) == 2  # the turns join to one row; the closing row stands behind it
    assert batch["mask"][0].tolist() == [True, *[False] * 3, True, *[False] * 3, True]
    assert batch["reward/task"][0].tolist() == [1, 0, 0, 0, 2, 0, 0, 0, 3]


def test_a_prefix_is_played_first_and_decided_by_nobody():
    world, engine = World(4), Scripted(move)
    prefix = tuple(Step.of(np.float32([0]), np.array(k), np.float32([-9])) for k in (7, 8))
    (trajectory,) = play(Episode(max_steps=5), asked(prefix=prefix), context(engine, world))
    assert world.taken == [7, 8, 10, 11]
    assert [s.mask.any() for s in trajectory.steps] == [False, False, True, True, False]
    assert trajectory.steps[0].logp is None and trajectory.steps[1].reward["task"] == 2.0
    assert [float(s.context[0]) for s in trajectory.steps] == [0, 1, 2, 3, 4]
    assert [key[3] for _, _, key in engine.asked] == [0, 1]
    texts, said = (
        World(3, text=True),
        Scripted(lambda k: Trace(np.array([97], np.int32), np.float32([-1]), 0, {"text": "a"})),
    )
    forced = Step.of(None, np.array([120, 121], np.int32))
    (trajectory,) = play(Episode(), asked(prefix=(forced,)), context(said, texts, text=True))
    assert texts.taken == ["xy", "a", "a"] and "".join(map(chr, trajectory.steps[1].context)) == "goxy<1>"


def test_an_environment_that_raises_makes_an_error_of_the_steps_so_far():
    ctx = context(Scripted(move), World(9, fails=2))
    (trajectory,) = play(Episode(), asked(), ctx)
    assert trajectory.status is Status.ERROR and ctx.ledger == {"errors": 1}
    assert len(trajectory.steps) == 3 and trajectory.info["error"] == "RuntimeError: the world broke"
    assert [dict(s.reward) for s in trajectory.steps] == [{"task": 1.0}, {"task": 2.0}, {}]

    class Stillborn(World):
        def reset(self, problem):
            raise OSError("no such world")

    with pytest.raises(OSError, match="no such world"):
        play(Episode(), asked(), context(Scripted(move), Stillborn()))


def test_a_sample_that_raises_ends_the_others_of_its_group():
    """World 1 cannot be begun: the others end at once, and all are closed."""

    class Stillborn(World):
        def reset(self, problem):
            raise OSError("no such world")

    worlds = [World(50, waits=True), Stillborn(), World(50, waits=True)]
    made, engine = iter(worlds), Scripted(move)

    async def later():
        with pytest.raises(OSError, match="no such world"):
            await Episode().group(asked(3), context(engine, lambda: next(made)))
        calls = len(engine.asked)
        for _ in range(20):
            await asyncio.sleep(0)
        return calls

    assert asyncio.run(later()) == len(engine.asked) <= 3  # those that were begun in the same turn
    assert all(world.closed for world in worlds)


def test_a_prefix_ends_where_its_environment_does():
    world, prefix = World(2), tuple(Step.of(np.float32([0]), np.array(k), np.float32([-9])) for k in (7, 8, 9))
    (trajectory,) = play(Episode(), asked(prefix=prefix), context(Scripted(move), world))
    assert world.taken == [7, 8] and trajectory.status is Status.FINISHED and len(trajectory.steps) == 3


def test_a_step_that_never_answers_has_failed():
    class Silent(World):
        async def _later(self):
            await asyncio.Event().wait()

    ctx = context(Scripted(move), Silent(waits=True))
    (trajectory,) = play(Episode(timeout=0.01), asked(), ctx)
    assert trajectory.status is Status.ERROR and ctx.ledger == {"errors": 1} and len(trajectory.steps) == 1
    assert trajectory.info["error"] == "TimeoutError: no answer in 0.01 s ([rollout] timeout)"


def test_an_engine_that_raises_is_no_error_of_the_environment():
    def broken(k):
        raise ValueError("no such model")

    world = World()
    with pytest.raises(ValueError, match="no such model"):
        play(Episode(), asked(), context(Scripted(broken), world))
    assert world.closed


def test_a_text_that_outgrows_the_model_is_truncated():
    def say(k):
        if k == 2:
            raise NoRoom(8, 8)
        return Trace(np.array([97], np.int32), np.float32([-1]), 0, {"text": "a"})

    world = World(9, text=True)
    (trajectory,) = play(Episode(), asked(), context(Scripted(say), world, text=True))
    assert trajectory.status is Status.TRUNCATED and world.closed and world.taken == ["a", "a"]
    closing = trajectory.steps[-1]
    assert "".join(map(chr, closing.context)) == "goa<1>a<2>" and closing.cont == 1.0 and len(trajectory.steps) == 3

    def full(k):
        raise NoRoom(8, 8)

    prefix = (Step.of(None, np.array([120], np.int32)),)
    for request in (asked(), asked(prefix=prefix)):  # nothing was decided: there is nothing to learn from
        world = World(9, text=True)
        with pytest.raises(NoRoom, match="context of 8 tokens"):
            play(Episode(), request, context(Scripted(full), world, text=True))
        assert world.closed


def engine_of(task):
    torch.manual_seed(0)
    model = Tabular()
    model.build(task)
    engine = Local()
    engine.sync({"policy": model}, 0)
    return engine, model


def test_a_gridworld_walked_greedily_along_its_shortest_path():
    task = Gridworld(cells=("S..", "##.", "G.."))
    engine, model = engine_of(task)
    path, moves = [0, 1, 2, 5, 8, 7], [1, 1, 2, 2, 3, 3]
    with torch.no_grad():
        for s, a in zip(path, moves, strict=True):
            model.module.logits[s, a] = 1.0
    request = Request(task.problems("test")[0], 2, Sampling(greedy=True), key="p#0")
    for trajectory in play(Episode(), request, context(engine, task=task)):
        assert [int(np.asarray(s.context)) for s in trajectory.steps] == [*path, 6]
        assert trajectory.status is Status.FINISHED and task.grade(request.problem, trajectory.steps)["score"] == 1.0
    sampled = play(Episode(), Request(request.problem, 2, Sampling(), key="p#1"), context(engine, task=task))
    assert len({tuple(int(np.asarray(s.context)) for s in t.steps) for t in sampled}) == 2


def test_the_episodes_of_a_gym_task_are_packed_as_chains():
    from shuhari.models.categorical import CategoricalPolicy

    task = Gym("CartPole-v1", {"max_episode_steps": 12})
    torch.manual_seed(0)
    model = CategoricalPolicy()
    model.build(task)
    engine = Local()
    engine.sync({"policy": model}, 0)
    group = play(Episode(), Request(task.problems("train")[0], 3, Sampling(), key="p#0"), context(engine, task=task))
    batch = pack(group)
    outcome = batch.outcome("reward/task")[batch["leaf"]]
    assert outcome.tolist() == [len(t.steps) - 1.0 for t in group] and batch["context"].shape[1:] == (4,)
    assert [t.status is Status.TRUNCATED for t in group] == [len(t.steps) == 13 for t in group]


def test_mistakes_are_told():
    with pytest.raises(ValueError, match="max_steps is 0"):
        Episode(max_steps=0)
    rollout, ctx = Episode(max_steps=5), context(Scripted(move), World)
    assert rollout.accepts == {"max_steps": 5}
    (short,) = play(rollout, asked(settings={"max_steps": 1}), ctx)
    assert len(short.steps) == 2 and short.status is Status.CUT


def test_a_problem_without_an_environment_is_one_call():
    class Answers:
        async def sample(self, role, context, sampling, n=1, *, key):
            return [Trace(np.int32([65 + i]), np.float32([-0.5]), 0, {}) for i in range(n)]

    request = Request(Problem("t", "p", "x"), 2, key="p#0", settings={"max_steps": 3})
    group = play(Episode(), request, context(Answers(), text=True))
    assert [t.steps[0].action.tolist() for t in group] == [[65], [66]]
    assert all(len(t.steps) == 1 and t.status is Status.FINISHED for t in group)
