"""LSVI-UCB: its plans against dynamic programming on counts, its widths, plans and regret by hand and in a run."""

from __future__ import annotations

import math
from itertools import count, islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from shuhari.batch import Batch
from shuhari.config.recipe import load
from shuhari.learners.linear import Linear, plan
from shuhari.loop.run import loop, open_run, train
from shuhari.models.categorical import CategoricalPolicy
from shuhari.models.tabular import Tabular
from shuhari.store import Run
from shuhari.tasks.gym import Gym
from shuhari.tasks.worlds.lock import Lock
from shuhari.testing import context

BUFFER: Any = None
RUNS = Path(__file__).parents[1] / "runs"
Walk = list[tuple[int, int, float]]
NUMBERS = count()  # ids of rows


def made(world: dict[str, Any], **settings: Any) -> tuple[Linear, torch.Tensor, Any]:
    """(learner, its policy's logits, context)"""
    task, policy = Gym("world/lock", world), Tabular()
    policy.build(task)
    learner = Linear(BUFFER, horizon=world["horizon"], **settings)
    learner.bind({"policy": policy})
    return learner, policy.module.logits.detach(), context(models={}, task=task)


def draw(*walks: tuple[Walk, int], ends: bool = True) -> Batch:
    """Rows of walks (state, action, reward) with the state that each ends in; `ends`: for good."""
    columns: dict[str, list[Any]] = {name: [] for name in ("context", "action", "reward", "mask", "child", "cont")}
    for walk, last in walks:
        for s, a, r in [*walk, (last, 0, 0.0)]:
            decides = len(columns["child"]) + 1
            for name, value in zip(columns, (s, a, [r], [True], decides, [1.0]), strict=True):
                columns[name].append(value)
        for name, value in (("mask", [False]), ("child", -1), ("cont", [0.0 if ends else 1.0])):
            columns[name][-1] = value
    rows = {name: torch.tensor(values) for name, values in columns.items()}
    return Batch({**rows, "id": torch.tensor([next(NUMBERS) for _ in rows["child"]])})


def telling(features: np.ndarray) -> Any:
    """The context of a task whose environments tell these."""
    has = {"has_wrapper_attr": lambda _: True, "get_wrapper_attr": lambda _: features, "close": lambda: None}
    return context(models={}, task=SimpleNamespace(make=lambda: SimpleNamespace(**has)))


def play(world: Lock, n: int) -> list[tuple[Walk, int]]:
    """Random episodes."""
    rng, out = np.random.default_rng(0), []
    world.reset(seed=0)
    for _ in range(n):
        seen, walk, over = world.reset()[0], Walk(), False
        while not over:
            a = int(rng.integers(world.actions))
            after, reward, over, *_ = world.step(a)
            walk.append((seen, a, reward))
            seen = after
        out.append((walk, seen))
    return out


def test_without_a_bonus_it_is_dynamic_programming_on_the_counts() -> None:
    setup = {"horizon": 3, "actions": 2, "slip": 0.3, "lure": 0.2}
    learner, table, ctx = made(setup, bonus=0.0, ridge=1e-9)
    walks = play(Lock(**setup), 300)
    for i in range(0, 300, 50):
        learner.update(draw(*walks[i : i + 50]), ctx)
    value: dict[int, float] = {}
    for s in reversed(range(9)):
        q = []
        for a in (0, 1):
            tail = [(r, value.get(w[i + 1][0] if i < 2 else end, 0.0))
                    for w, end in walks for i, (at, does, r) in enumerate(w) if (at, does) == (s, a)]  # fmt: skip
            q.append(float(np.mean([r + v for r, v in tail])) if tail else 0.0)
        value[s] = max(q)
        assert int(table[s].argmax()) == q.index(max(q)) and float(table[s].max()) == 50.0
    mine = learner.state
    gram = torch.diag_embed(mine["visits"].flatten(1) + 1e-9)
    q = plan(torch.eye(6, dtype=torch.double).expand(3, -1, -1), gram.inverse(), mine["earned"], mine["after"], 0.0)
    assert q.amax(2).flatten().tolist() == pytest.approx([value[s] for s in range(9)], abs=1e-6)


def test_many_visits_come_to_the_best_values_of_the_world() -> None:
    """Counts in the shares of the table itself: the plan is the table's own."""
    world, n = Lock(horizon=4, actions=3, slip=0.2), 1e9
    phi = torch.from_numpy(world.features[:12].reshape(4, 9, 9))
    inverse = torch.eye(9, dtype=torch.double).expand(4, -1, -1) / (n + 1)
    for bonus in (1.0, -1.0):
        q = plan(phi, inverse, n * torch.from_numpy(world.r), n * torch.from_numpy(world.p), bonus)
        assert np.abs(q.numpy() - world.q).max() < 1e-3


@pytest.mark.parametrize(
    ("bonus", "first", "last", "unseen"),
    [(0.5, 1.75, 1.0, 0.5), (1.0, 2.0, 1.0, 1.0), (-0.5, 0.875, 0.5, 0.0), (-9.0, 0.0, 0.0, 0.0)],
)
def test_the_width_of_counts_by_hand(bonus: float, first: float, last: float, unseen: float) -> None:
    """Three visits that paid 1 each and a ridge of 1: a width of 1 / sqrt(4), and w is 3/4 of what is behind; of what
    was never seen the width is 1. Values lie between 0 and the steps that are left."""
    visits = torch.tensor([[[3.0, 0.0]], [[3.0, 0.0]]], dtype=torch.double)
    gram = torch.diag_embed(visits.flatten(1) + 1)
    phi = torch.eye(2, dtype=torch.double).expand(2, -1, -1)
    q = plan(phi, gram.inverse(), visits, visits[..., None], bonus)
    assert q[:, 0].flatten().tolist() == pytest.approx([first, unseen, last, unseen])


def test_features_carry_from_look_to_look_and_pairs_do_not() -> None:
    """At look 0 of the first state action 1 has paid; at look 1 nothing was done."""
    setup = {"horizon": 1, "actions": 2, "looks": 2}
    for told, does in ((True, 1), (False, 0)):
        learner, table, ctx = made(setup, bonus=0.0)
        learner.update(draw(([(0, 1, 1.0)], 6)), ctx if told else context(models={}))
        assert table[:6].argmax(1).tolist() == [1, does, 0, 0, 0, 0]
        assert not table[6:].any()  # behind the last step nothing is decided


def test_features_are_those_of_the_step() -> None:
    """Those of the first step tell its actions apart, those of the second do not."""
    phi = np.zeros((9, 2, 2))
    phi[:3], phi[3:] = np.eye(2), [1, 0]
    learner, table, _ = made({"horizon": 2, "actions": 2}, bonus=0.0)
    learner.update(draw(([(0, 1, 0.0), (3, 1, 1.0)], 6)), telling(phi))
    assert table[:6].argmax(1).tolist() == [1, 1, 1, 0, 0, 0]


def test_pessimism_prefers_what_is_known() -> None:
    """Action 0 paid 0.8 in the mean of sixteen times, action 1 its 1 once: by hand 0.8 - 0.5 / 4 and 1 - 0.5."""
    seen = [([(0, 0, 0.8)], 3)] * 16 + [([(0, 1, 1.0)], 3)]
    for bonus, best in ((-0.5, 0), (0.0, 1)):
        learner, table, ctx = made({"horizon": 1, "actions": 2}, bonus=bonus, ridge=1e-9)
        learner.update(draw(*seen), ctx)
        assert int(table[0].argmax()) == best


def test_a_decision_that_is_drawn_again_is_no_news() -> None:
    """The bound above holds however often the same are drawn, twice in a draw too; counted anew, ten draws would have
    0.5 / sqrt(160) and 0.5 / sqrt(10) taken off, and turn it. Rows without a number of their own are all new."""
    seen = draw(*[([(0, 0, 0.8)], 3)] * 16, ([(0, 1, 1.0)], 3))
    learner, table, ctx = made({"horizon": 1, "actions": 2}, bonus=-0.5, ridge=1e-9)
    for _ in range(40):
        learner.update(seen.take(torch.tensor([*range(len(seen)), *range(len(seen))])), ctx)
        assert int(table[0].argmax()) == 0
    assert learner.state["visits"][0, 0].tolist() == [16, 1]
    for _ in range(10):
        learner.update(seen.put({"id": torch.full((len(seen),), -1)}), ctx)
    assert learner.state["visits"][0, 0].tolist() == [176, 11] and int(table[0].argmax()) == 1


def test_a_run_on_recorded_data_knows_each_decision_once(tmp_path: Path) -> None:
    """Of 16 episodes of 4 steps two draws are an epoch: from then on neither counts nor plan change, nor where the run
    is resumed in the middle of the third."""
    recipe = load(RUNS / "linear.toml", ["steps=7", "buffer.use=offline", "buffer.size=32",
                  "buffer.data={use = 'played', policy = 'random', episodes = 16}", "learner.main.bonus=-1.0",
                  "learner.main.growth=1.0", "evaluate.n=0"])  # fmt: skip
    seen = []
    for steps in (5, 2):
        with open_run(recipe, tmp_path / "run") as run:
            for _ in islice(loop(run), steps):
                state, table = run.stage.learners["main"].state, run.ctx.models["policy"].module.logits
                seen.append([state[k].clone() for k in ("visits", "earned", "after")] + [table.detach().clone()])
    assert [int(x[0].sum()) for x in seen] == [32, 64, 64, 64, 64, 64, 64]
    assert all(torch.equal(a, b) for x in seen[2:] for a, b in zip(seen[1], x, strict=True))


def test_an_episode_that_is_cut_is_worth_what_may_follow() -> None:
    """The state behind has paid 1 before; behind an end for good nothing follows."""
    for ends, worth in ((False, 1), (True, 0)):
        learner, table, ctx = made({"horizon": 2, "actions": 2}, bonus=0.0, ridge=1e-9)
        learner.update(draw(([(3, 0, 1.0)], 6)), ctx)
        learner.update(draw(([(0, 1, 0.0)], 3), ends=ends), ctx)
        assert int(table[0].argmax()) == worth


def test_an_environment_that_tells_no_features_is_closed() -> None:
    closed: list[int] = []
    env = SimpleNamespace(has_wrapper_attr=lambda _: False, close=lambda: closed.append(1))
    ctx = context(models={}, task=SimpleNamespace(make=lambda: env))
    made({"horizon": 2, "actions": 2})[0].update(draw(([(0, 0, 0.0)], 3)), ctx)
    assert closed == [1]


def test_it_plans_anew_once_a_determinant_has_grown_enough() -> None:
    """det of n visits of one pair and a ridge of 1 is n + 1: doubled since the plan at n = 1 at n = 3, 7, 15."""
    for growth, planned in ((2.0, [1, 3, 7, 15]), (1.0, [*range(1, 17)])):
        learner, _, ctx = made({"horizon": 1, "actions": 2}, growth=growth * (1 - 1e-12) if growth > 1 else 1.0)
        plans = [learner.update(draw(([(0, 0, 0.0)], 3)), ctx).info["linear/plans"] for _ in range(16)]
        assert [n for n in range(1, 17) if n == 1 or plans[n - 1] > plans[n - 2]] == planned


def test_what_it_cannot_learn_is_refused() -> None:
    learner, _, ctx = made({"horizon": 2, "actions": 2})
    with pytest.raises(ValueError, match=r"rewards from 0 to 1\.5"):
        learner.update(draw(([(0, 0, 0.0), (3, 0, 1.5)], 6)), ctx)
    with pytest.raises(ValueError, match=r"not followed by one of step h \+ 1"):
        learner.update(draw(([(0, 0, 0.0), (1, 0, 0.5)], 6)), ctx)
    with pytest.raises(ValueError, match="rewards from nan to nan"):
        learner.update(draw(([(0, 0, math.nan), (3, 0, 1.0)], 6)), ctx)
    for told, message in (
        (np.ones((3, 2, 4)), r"features \[3, 2, 4\]: expected \[9, 2\]"),
        (np.ones((9, 2, 4)), "the largest norm of the features is 2: expected at most 1"),
        (np.full((9, 2, 4), math.nan), "the largest norm of the features is nan: expected at most 1"),
    ):
        with pytest.raises(ValueError, match=message):
            made({"horizon": 2, "actions": 2})[0].update(draw(([(0, 0, 0.0)], 3)), telling(told))
    policy = Tabular()
    policy.build(Gym("world/lock", {"horizon": 2}))
    with pytest.raises(ValueError, match="9 states: expected a multiple of horizon \\+ 1 = 11"):
        Linear(BUFFER).bind({"policy": policy})
    net = CategoricalPolicy()
    net.build(Gym("CartPole-v1"))
    with pytest.raises(TypeError, match="CategoricalPolicy: expected a tabular one"):
        learner.bind({"policy": net})


def test_a_run_opens_the_lock_and_its_regret_is_what_the_returns_lack(tmp_path: Path) -> None:
    """Where nothing slips both good states are worth the same, so it is exact for each episode, of which 100 are the
    last hundred. Random play opens this lock once in 81 episodes."""
    list(train(load(RUNS / "linear.toml"), tmp_path / "run"))
    run = Run(tmp_path / "run")
    metrics, summary = run.metrics(), run.summary
    lacks = 100 * (1.0 - metrics["rollout/return"][-1])
    assert metrics["linear/regret_sum"][-1] == pytest.approx(lacks, rel=1e-4) and 1 < lacks < 60
    assert summary is not None and summary["after"]["greedy"] == 1.0
    assert 1 < metrics["linear/plans"][-1] < 50
    assert math.isclose(sum(8 * r for r in metrics["linear/regret"]), metrics["linear/regret_sum"][-1], rel_tol=1e-4)
