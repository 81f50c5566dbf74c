"""Beds, where methods are measured: each has exact numbers, or samples anew at each evaluation, and a control, which
differs in what is learnt alone."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import numpy as np
import pytest

from shuhari.config.build import build_stage
from shuhari.config.library import BEDS, CONTROL, list_names
from shuhari.config.recipe import load
from shuhari.data import Problem, Step
from shuhari.kernel.abilities import ability
from shuhari.metrics.exact import Exact
from shuhari.metrics.game import Game
from shuhari.rollouts.demonstrations import select_problems

FOUND = [name for name in list_names() if name.split("/")[0] == BEDS]
VARIANTS = [name for name in FOUND if CONTROL not in name.split("/")]
SIZED = re.compile(r"_\d+[km]$")  # a variant at another size, on which no premise asks for a control
COMPARED = "beds/letters/"  # whose answers are compared: none is right, one is the most liked
CONTROLLED = [name for name in VARIANTS if not SIZED.search(name)]


def control_of(bed: str) -> str:
    first, variant = bed.rsplit("/", 1)
    return f"{first}/{CONTROL}/{variant}"


def list_tested(task: Any) -> list[Problem]:
    source = task.problems("test")
    return [source[i] for i in range(source.size())]


def score(task: Any, problem: Problem, answer: Any) -> float:
    ids = np.zeros(1, np.int32)
    step = Step.of(ids, ids, info={"text": answer}) if isinstance(answer, str) else Step.of(ids, np.array([answer]))
    return float(task.grade(problem, [step])["score"])


def list_ends(task: Any, problem: Problem) -> tuple[Any, Any]:
    """(a right answer, a wrong one) of a problem: of texts its own and none, of actions the best and the worst."""
    if problem.answer is not None:
        return problem.answer, ""
    listed = task.answers(problem)
    ranked = sorted(range(len(listed.texts)), key=lambda i: listed.scores[i])
    return listed.texts[ranked[-1]], listed.texts[ranked[0]]


def test_each_bed_has_a_control_and_each_control_a_bed() -> None:
    assert CONTROLLED and sorted(set(FOUND) - set(VARIANTS)) == sorted(map(control_of, CONTROLLED))


@pytest.mark.parametrize("bed", VARIANTS)
def test_a_bed_is_scored_exactly_or_anew_and_solved_by_its_answers(bed: str) -> None:
    *_, stage = (build_stage(table, {}) for table in load(bed).stages)
    problems = list_tested(stage.task)
    exact = [x for x in stage.evaluate.metrics.values() if isinstance(x, (Exact, Game))] if stage.evaluate else []
    if ability(stage.task, "answers")(problems[0]) is not None:
        assert stage.evaluate is not None and stage.evaluate.n == 0 and exact
    else:  # noise of each evaluation's own, on problems that are not trained
        assert stage.evaluate is not None and stage.evaluate.fresh and not exact
        assert stage.evaluate.samples > 1 and 256 <= stage.evaluate.n <= len(problems)
        trained: Any = stage.task.problems("train")
        assert not {p.id for p in problems} & {trained[i].id for i in range(256)}
    ends = [list_ends(stage.task, p) for p in problems]
    best = [max(stage.task.answers(p).scores) if bed.startswith(COMPARED) else 1 for p in problems]
    rights = [score(stage.task, p, right) for p, (right, _) in zip(problems, ends, strict=True)]
    assert rights == pytest.approx(best)
    assert not any(score(stage.task, p, wrong) for p, (_, wrong) in zip(problems, ends, strict=True))
    assert len({p.id for p in problems}) == len(problems)


@pytest.mark.parametrize("bed", sorted({*VARIANTS} - {*CONTROLLED}))
def test_a_variant_at_another_size_differs_in_policy_rates_and_length_of_imitation_alone(bed: str) -> None:
    ours, theirs = (load(name).stages for name in (bed, SIZED.sub("", bed)))
    for mine, other in zip(ours, theirs, strict=True):
        differs = {k for k in mine.keys() | other.keys() if mine.get(k) != other.get(k)} - {"summary"}
        assert "models" in differs
        assert differs <= {"models", "part"} | ({"steps"} if mine is not ours[-1] else set())
        assert {**mine["part"]["policy"], "optimiser": 0} == {**other["part"]["policy"], "optimiser": 0}


@pytest.mark.parametrize("bed", CONTROLLED)
def test_a_control_differs_in_its_last_stage_alone(bed: str) -> None:
    (*before, last), (*same, other) = (
        [{k: v for k, v in stage.items() if k != "summary"} for stage in load(name).stages]
        for name in (bed, control_of(bed))
    )
    assert before == same
    assert {k for k in last.keys() | other.keys() if last.get(k) != other.get(k)} <= {
        "task",
        "rollout",
        "part",
        "buffer",
        "reward",
        "transform",
    }


@pytest.mark.parametrize("bed", [bed for bed in CONTROLLED if "buffers" in load(control_of(bed)).stages[-1]["buffer"]])
def test_what_a_control_imitates_beside_is_right(bed: str) -> None:
    stage = build_stage(load(control_of(bed)).stages[-1], {})
    demos: Any = stage.learners["main"].buffer.buffers["demos"]  # type: ignore[attr-defined]
    source = select_problems(demos, "train", stage.task)
    problems = [source[demos.offset + i] for i in range(256)]
    assert all(score(stage.task, p, p.solution) == 1 for p in problems)
    per_problem = Counter(p.id for p in problems)
    if {p.id for p in list_tested(stage.task)} & set(per_problem):  # nothing is held out, as there are few
        assert min(per_problem.values()) > 1  # all of those that are wanted, again and again
