"""Problems set aside until there are enough: which, in what order, and what is learnt of their solutions."""

from __future__ import annotations

from dataclasses import replace
from math import log
from typing import Any

import numpy as np
import pytest
import torch

from shuhari import testing
from shuhari.batch import Batch
from shuhari.buffers.fresh import Fresh
from shuhari.buffers.mixture import Mixture
from shuhari.data import Problem, Request, Status, Step, Trajectory, code
from shuhari.events import Collected
from shuhari.kernel.reduce import weights
from shuhari.learners.parts import Term
from shuhari.methods.data.relift.hard_problems import Aside
from shuhari.objectives.clip import Clip
from shuhari.objectives.likelihood import Nll
from shuhari.ports import Buffer
from shuhari.testing import context
from shuhari.transforms.advantage import Advantage
from sketches import harness

buffer: Buffer = Aside()
EMPTY = Batch({"mask": torch.zeros(0, 1, dtype=torch.bool), "logp": torch.zeros(0, 1)})


def group(problem: Problem | str, scores: list[float | None]) -> list[Trajectory]:
    request = Request(Problem("t", problem, "") if isinstance(problem, str) else problem, len(scores))
    return [Trajectory(request, (Step.of(np.array([1]), 0, reward={} if s is None else {"score": s}),)) for s in scores]


def queue(buffer: Aside) -> list[str]:
    return [p.id for p in buffer.state["queue"]]


def test_groups_that_are_all_wrong_wait_newest_first() -> None:
    aside = Aside(size=4)
    wrong = [0.0, 0.0]
    aside.observe(Collected(EMPTY, [group("a", wrong), group("b", [0.0, 1.0]), group("c", [None, None])]))
    aside.observe(Collected(EMPTY, [group("d", [None, 0.0]), group("e", [-1.0, -1.0])]))
    assert queue(aside) == ["e", "d", "a"]


def test_broken_episodes_are_no_wrong_answers_and_the_queue_has_an_end() -> None:
    aside = Aside(size=1, most=2)
    broken = [replace(t, status=Status.ERROR) for t in group("a", [0.0, 0.0])]
    aside.observe(Collected(EMPTY, [broken, *(group(name, [0.0]) for name in "bcd")]))
    assert queue(aside) == ["d", "c"]


def test_five_wait_and_four_are_wanted() -> None:
    """One step of imitation, of the newest four; the oldest waits on, and nothing is learnt of it."""
    run = run_of()
    next(harness.train(run))
    aside, ctx = Aside(size=4), run.ctx
    ctx.ledger.clear()
    problems = [replace(ctx.task.problems("train")[i], solution="12") for i in range(5)]
    aside.observe(Collected(EMPTY, [group(p, [0.0]) for p in problems]))
    (batch,) = aside.draw(ctx)
    assert len(batch) == 4 and queue(aside) == [problems[0].id]
    assert batch["problem"].tolist() == [code(p.task, p.id) for p in problems[:0:-1]]
    assert batch["mask"].sum(1).tolist() == [3] * 4  # two tokens and the end
    assert ctx.ledger["decisions"] == 12 and bool((batch.weight("ce").sum(1) == 3).all())
    (rest,) = aside.draw(ctx)
    assert len(rest) == 1 and not rest.weight("ce").any() and ctx.ledger["decisions"] == 12


def test_the_loss_of_imitation_by_hand() -> None:
    """Tokens of probability .5 and .25: (ln 2 + ln 4) / 2."""
    batch = testing.groups([[1.0]], lengths=2)
    nll = Nll()
    batch = batch.put({nll.needs[0].key: torch.tensor([[log(0.5), log(0.25)]])})
    loss, _ = nll(batch, context())
    w = weights(torch.ones(1, 2), batch, "decision")
    assert float((loss * w).sum()) == pytest.approx(1.0397, abs=5e-5)


# ---------------------------------------------------------------- in a run


def run_of(size: int = 3, imitate: bool = True) -> Any:
    parts = {"policy": harness.part(clip=Term(Clip()))}
    if imitate:
        parts["imitation"] = harness.part(nll=Term(Nll(), stream="ce"))
    fresh = Fresh(4)
    stage = harness.stage(
        parts, buffer=Mixture({"fresh": fresh, "hardest": Aside(size=size)}) if imitate else fresh, steps=3, n=4,
        max_new=3, collect={"advantage": Advantage()},
    )  # fmt: skip
    return harness.make(stage)


def test_a_queue_that_never_fills_changes_nothing() -> None:
    """Bit for bit the run of RL alone."""
    runs = [run_of(10**6), run_of(imitate=False)]
    for run in runs:
        list(harness.train(run))
    assert torch.equal(*(harness.weights(run) for run in runs))


def test_what_fails_is_imitated_by_an_optimiser_of_its_own() -> None:
    reports = list(harness.train(run_of(3)))
    assert any(r.get("imitation/rows", 0) == 3 for r in reports)  # one-digit sums, by a policy that knows nothing
    testing.check_resumed(run_of)
