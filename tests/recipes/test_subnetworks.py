"""The arms of the claim on subnetworks: one start and one optimiser, right words alone for imitation, tested alike."""

from __future__ import annotations

from shuhari.claims.claim import read
from shuhari.config.build import build_stage
from spoken import said


def test_imitation_sees_right_words_alone_and_all_else_is_alike() -> None:
    claim = read("analysis/subnetworks")
    method, baseline = (build_stage(claim.arms[arm].stages[-1]) for arm in ("method", "baseline"))
    train = baseline.task.problems("train")
    shown = [train[i] for i in range(400)]
    assert all(baseline.task.grade(p, said(str(p.solution))) == {"score": 1.0} for p in shown)
    assert {len({p.solution for p in shown if p.prompt == prompt}) for prompt in {p.prompt for p in shown}} == {4}
    parts = [stage.learners["main"].parts["policy"] for stage in (method, baseline)]
    assert list(parts[0].terms) == ["clip"] and list(parts[1].terms) == ["nll"]
    assert parts[0].optimiser == parts[1].optimiser
    assert len({id(recipe) for recipe in claim.warm.values()}) == 1  # one start for both


def test_what_is_tested_are_the_words_of_the_bed() -> None:
    stage = build_stage(read("analysis/subnetworks").arms["method"].stages[-1])
    assert stage.evaluate is not None and stage.evaluate.task is not None
    ours, theirs = (task.problems("test") for task in (stage.evaluate.task, stage.task))
    assert ours.size() == theirs.size() == 16
    for i in range(16):
        assert stage.evaluate.task.answers(ours[i]) == stage.task.answers(theirs[i])
