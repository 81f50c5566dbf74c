"""InterMimic: the schedule, the stored states and the gate by hand, and steps of distillation, then of PPO."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import gymnasium.spaces
import harness
import numpy as np
import pytest
import torch
from intermimic import Gate, Guided, Imitate, StoredStarts, explained, survived

from shuhari.batch import Batch
from shuhari.buffers.fresh import Fresh
from shuhari.curricula.sequential import Sequential
from shuhari.data import Payload, Problem, Ramp, Status, Step, code
from shuhari.events import Collected, Event
from shuhari.learners.parts import Term
from shuhari.models.critics import ValueCritic
from shuhari.models.gaussian import GaussianPolicy
from shuhari.objectives.clip import Clip
from shuhari.objectives.value import Value
from shuhari.ports import Curriculum, Environment, Objective, Rollout, Task, Transform
from shuhari.tasks.source import Listed
from shuhari.testing import check_resumed
from shuhari.transforms.returns import Gae

rollout: Rollout = Guided()
curriculum: Curriculum = StoredStarts(Sequential())
objective: Objective = Imitate()
transform: Transform = Gate()
BETA = Ramp(1.0, 0.0, 5000, after=500)


@dataclass
class Track:
    """Two subjects walk a line in the plane, one each way; a decision is a velocity. Lost at a distance > 1."""

    frames: int = 6

    def problems(self, split: str) -> Listed:
        def reference(subject: int) -> tuple[Payload, ...]:
            return tuple({"frame": j, "at": self.line(subject, j)} for j in range(self.frames))

        infos = [{"subject": i, "reference": reference(i)} for i in (0, 1)]
        return Listed([Problem("track", str(i), None, info=info) for i, info in enumerate(infos)])

    def line(self, subject: int, frame: int) -> tuple[float, float]:
        return (0.2 * frame * (1 - 2 * subject), 0.0)

    def grade(self, problem: Problem, steps: Sequence[Step]) -> Mapping[str, Any]:
        return {}

    def environment(self, problem: Problem) -> Tracking:
        return Tracking(self, problem.info["subject"])

    def spaces(self) -> tuple[Any, Any]:
        return gymnasium.spaces.Box(-np.inf, np.inf, (4,)), gymnasium.spaces.Box(-1, 1, (2,))


@dataclass
class Tracking:
    task: Track
    subject: int
    frame: int = 0
    at: tuple[float, float] = (0.0, 0.0)
    frames: int = field(init=False)

    def __post_init__(self) -> None:
        self.frames = self.task.frames

    def reset(self, problem: Problem) -> Payload:
        return self.restore(problem.start)

    def step(self, action: Any) -> tuple[Payload, Mapping[str, float], Status | None]:
        self.frame, self.at = self.frame + 1, (self.at[0] + float(action[0]), self.at[1] + float(action[1]))
        error = float(np.hypot(*np.subtract(self.at, self.task.line(self.subject, self.frame))))
        reward = float(np.exp(-5 * error**2) * np.exp(-0.1 * np.square(action).sum()))  # tracking times effort
        status = Status.FINISHED if error > 1 else Status.TRUNCATED if self.frame == self.frames else None
        return self.seen(), {"task": reward}, status

    def seen(self) -> Payload:
        return np.array([*self.at, *np.subtract(self.task.line(self.subject, self.frame), self.at)], np.float32)

    def snapshot(self) -> Payload:
        return {"frame": self.frame, "at": self.at}

    def restore(self, snapshot: Payload) -> Payload:
        s: Any = snapshot
        self.frame, self.at = int(s["frame"]), (float(s["at"][0]), float(s["at"][1]))
        return self.seen()


task: Task = Track()
environment: Environment = Tracking(Track(), 0)


def intermimic(steps: int, *, beta: Any = 0.5, gate: Gate | None = None, after: int = 0) -> Any:
    models = {r: GaussianPolicy((8,), log_std=-1.0) for r in ("policy", "teacher/0", "teacher/1")}
    parts = {
        "policy": harness.part(
            "policy", imitate=Term(Imitate(), stream="imitate"), clip=Term(Clip(), stream="rl"), epochs=2
        ),
        "critic": harness.part("critic", value=Term(Value(), stream="value"), after=after),
    }
    return harness.make(harness.stage(
        parts, task=Track(), models={**models, "critic": ValueCritic((8,))}, rollout=Guided(), n=1, steps=steps,
        buffer=Fresh(6), curriculum=StoredStarts(Sequential(), beta=beta),
        transforms={"gae": Gae(), "gate": gate or Gate()},
    ))  # fmt: skip


def test_the_teacher_acts_by_schedule() -> None:
    assert [BETA(epoch) for epoch in (0, 500, 3000, 5500, 9000)] == [1, 1, 0.5, 0, 0]


def test_a_state_scores_what_was_survived_of_what_lay_ahead() -> None:
    assert survived(10, 40, 60) == pytest.approx(0.6)
    starts = StoredStarts(Sequential(), keep=2)
    for score, name in ((0.6, "a"), (0.4, "b"), (0.9, "c"), (0.7, "d")):
        starts.offer("0/3", score, name)
    assert starts.stored(0) == [(0.9, "c"), (0.7, "d")]
    assert starts.stored(1) == []


def test_the_gate_opens_after_three_good_draws_in_a_row_and_ramps() -> None:
    gate = Gate(times=3, after=4, over=4, memory=0.0)
    variances = (0.9, 0.9, 0.9, 0.1, 0.9, 0.9, 0.9, 0.0, 0.0, 0.0, 0.0, 0.0)
    assert [gate.open(v) for v in variances] == [0, 0, 0, 0, 0, 0, 0, 0.25, 0.5, 0.75, 1, 1]


def test_explained_variance() -> None:
    mask = torch.tensor([[True], [True], [True], [False]])
    batch = Batch({"mask": mask, "logp": torch.zeros(4, 1), "return": torch.tensor([[1.0], [2.0], [3.0], [99.0]])})
    assert explained(batch, batch["return"] + 5) == 1  # an offset is none of its business
    assert explained(batch, torch.zeros(4, 1)) == 0


def collected(run: Any) -> list[Batch]:
    """The batches that the run will tell of."""
    batches: list[Batch] = []
    tell = run.tell

    def heard(event: Event) -> None:
        batches.extend([event.batch] if isinstance(event, Collected) else [])
        tell(event)

    run.tell = heard
    return batches


def test_a_step_of_distillation_and_no_gradient_to_the_critic() -> None:
    run = intermimic(2, after=1)
    batches, reports = collected(run), harness.train(run)
    run.enter_stage()
    before = {r: harness.weights(run, r) for r in run.ctx.models}
    first = next(reports)
    moved = {r for r, w in before.items() if not torch.equal(w, harness.weights(run, r))}
    assert moved == {"policy"}
    [batch] = batches
    decided = batch.decides
    mine = decided & (batch["role"] == code("policy"))
    theirs = decided & ~mine
    assert bool(mine.any()) and bool(theirs.any())
    # where the teacher acted, what it did is its mean
    torch.testing.assert_close(batch["action"][theirs], batch["guide"][theirs, 0])
    assert first["policy/rows"] == int(decided.sum())
    next(reports)
    assert not torch.equal(before["critic"], harness.weights(run, "critic"))


@pytest.mark.parametrize(("beta", "roles"), [(1.0, {"teacher/0", "teacher/1"}), (0.0, {"policy"})])
def test_beta_says_who_acts(beta: float, roles: set[str]) -> None:
    run = intermimic(1, beta=beta)
    run.enter_stage()
    batch = run.collect(6)
    assert {s.role for s, decides in zip(batch.steps, batch.decides, strict=True) if decides} == roles


def test_the_losses_reach_the_rows_that_they_are_for() -> None:
    """With the gate open, PPO sees the policy's own rows alone, and imitation weighs a tenth on all."""
    gate = Gate(floor=0.1)
    gate.state |= {"draws": 10, "opened": 0}
    gate.over = 1
    run = intermimic(1, gate=gate)
    run.enter_stage()
    batch = run.collect(6)
    batch.stream = "rl"
    [learner] = run.stage.learners.values()
    batch = run.apply(learner.transforms, batch, learner.needs)
    mine = (batch["role"] == code("policy")) & batch.decides
    torch.testing.assert_close(batch.weight("rl")[:, 0], mine.float())
    torch.testing.assert_close(batch.weight("imitate")[:, 0], 0.1 * batch.decides.float())
    info = learner.update(batch, run.ctx).info
    assert info["policy/ratio"] == pytest.approx(1.0, abs=0.2)  # no ratio of the student to a teacher


def test_stored_states_are_started_from() -> None:
    run = intermimic(1)
    batches, reports = collected(run), harness.train(run)
    next(reports)
    starts = run.stage.curriculum
    assert starts.state
    for place, slots in starts.state.items():
        subject, frame = map(int, place.split("/"))
        assert len(slots) <= starts.keep
        for score, snapshot in slots:
            assert 0.5 < score <= 1 and snapshot["frame"] == frame
            other = f"teacher/{1 - subject}"
            assert any(s.info.get("snapshot") == snapshot for s in batches[0].steps if s.role != other)
    starts.state = {"0/5": [[1e9, {"frame": 5, "at": (1.25, 0.0)}]], "1/5": [[1e9, {"frame": 5, "at": (-1.25, 0.0)}]]}
    batch = run.collect(4)
    assert set(batch["frame"][batch.decides].tolist()) == {5.0}
    assert {abs(float(x)) for x in batch["context"][batch["parent"] < 0][:, 0]} == {1.25}


def test_a_killed_run_ends_with_the_same_bits() -> None:
    check_resumed(lambda: intermimic(4), 2)
