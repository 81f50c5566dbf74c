"""The grid of cubes by hand, the class of earlier students, and the study and the analysis that play it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from shuhari.analysis.cubes import Cubes
from shuhari.config.build import make_component
from shuhari.studies import cubes
from shuhari.studies.classroom import Classroom
from shuhari.studies.cubes import Course, Former, Student, choose_lessons, make_student, teach, trace
from shuhari.studies.teachers import Lesson, Mixture

SMALL = Course(side=3, steps=600, pretest=300, former=2)


def visit(student: Student, i: int, j: int, times: int) -> float:
    reward = -1.0
    for _ in range(times):
        reward = student.try_task((np.array([i, j]) + 0.5) / student.side)
    return reward


def test_a_cube_unlocks_its_four_neighbours_at_75() -> None:
    student = Student(4, (1, 1))
    assert visit(student, 1, 2, 9) == 0.0 and visit(student, 1, 1, 74) == 0.74
    assert visit(student, 1, 2, 5) == 0.0
    assert visit(student, 1, 1, 1) == 0.75 and student.mastered == 0.0
    assert [visit(student, i, j, 1) for i, j in ((0, 1), (2, 1), (1, 0), (1, 2))] == [0.01] * 4
    assert visit(student, 0, 0, 3) == visit(student, 2, 2, 3) == 0.0  # a corner is no neighbour
    assert visit(student, 1, 1, 1) == 0.76 and student.mastered == 1 / 16
    assert visit(student, 1, 1, 60) == 1.0 and student.test().sum() == 104


def test_the_ends_of_the_space_belong_to_the_last_cubes() -> None:
    student = Student(2, (1, 0))
    assert student.try_task(np.array([1.0, 0.0])) == 0.01 and student.try_task(np.array([0.0, 1.0])) == 0.0


@pytest.mark.parametrize("kind", ["uniform", "alp_gmm"])
def test_one_cube_is_mastered_with_the_76th_task(kind: Any) -> None:
    assert [teach(Course(side=1, steps=n, pretest=n // 2), kind, 0) for n in (75, 76)] == [0.0, 1.0]


def test_a_class_is_of_other_students_than_those_of_any_seed() -> None:
    course = Course(former=32)
    former = [make_student(course, "former", 0, i) for i in range(32)]
    new = [make_student(course, "new", i) for i in range(32)]
    firsts = [rng.random() for _, rng in (*former, *new)]
    assert len(set(firsts)) == 64 and len({student.start for student, _ in former}) > 20


def test_before_the_test_tasks_do_not_depend_on_who_will_teach(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sklearn")
    tasks: dict[str, list[Any]] = {}
    for kind in ("again", "alp_gmm"):
        seen = tasks.setdefault(kind, [])

        def note(student: Any, teacher: Any, count: int, seen: list[Any] = seen) -> None:
            task = teacher.draw()
            seen.append(task.tolist())
            teacher.update(task, student.try_task(task))

        corner = Mixture(np.array([[0.95, 0.95, 0.5]]), 1e-6 * np.eye(3)[None])
        known = Former(np.zeros(9), np.zeros(9), 0.0, (Lesson(corner, 1.0),))
        with monkeypatch.context() as patch:
            patch.setattr(cubes, "give_tasks", note)
            patch.setattr(cubes, "teach_class", lambda course, known=known: (known,))
            list(trace(SMALL, kind, 5))  # type: ignore[arg-type]
    assert tasks["again"][:300] == tasks["alp_gmm"][:300] and tasks["again"][300:] != tasks["alp_gmm"][300:]
    near = np.array(tasks["again"][300:])
    assert np.mean(np.abs(near - 0.95).max(1) < 0.02) > 0.3  # from the lesson


def test_lessons_come_from_the_student_that_the_test_speaks_for() -> None:
    def former(x: float, final: float, name: Any) -> Former:
        return Former(np.full(4, x), np.full(4, final), 0.0, name)

    every = [former(0, 50, "a"), *(former(1, 60 + i, i) for i in range(4)), former(9, 99, "far")]
    assert choose_lessons(every, np.zeros(4), "again", 0) == 3
    assert len({choose_lessons(every, np.zeros(4), "stranger", seed) for seed in range(40)}) == 6


def test_the_analysis_is_the_study_and_its_gain_a_difference() -> None:
    pytest.importorskip("sklearn")
    settings: dict[str, Any] = {"side": 3, "steps": 1200, "pretest": 0.5, "former": 2}
    made = make_component("analysis", {"use": "cubes", **settings, "teacher": "again", "over": "uniform"})
    found = made(4)
    assert found == Cubes(**settings, over="uniform")(4)
    plain = Cubes(**settings, teacher="uniform", over="alp_gmm")(4)
    assert found["gain"] == pytest.approx(found["mastered"] - plain["mastered"])
    runs: Any = SimpleNamespace(seed=4)
    rows = list(Classroom(**settings, teacher="uniform")(runs))
    assert [sorted(row) for row in rows] == [["study/lesson", "study/mastered"]] * 2
    assert rows[-1]["study/mastered"] == plain["mastered"]
    rows = list(Classroom(**settings)(runs))
    assert [row.get("study/trained") for row in rows] == [1, 2, None, None]


def test_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match="expected two teachers"):
        Cubes(over="again")
    with pytest.raises(ValueError, match="pretest is 1"):
        Classroom(pretest=1.0)
