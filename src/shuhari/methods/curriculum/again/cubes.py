"""A simulated student on a grid of cubes that unlock each other, and a class of such students under a teacher.

Source: the toy environment of "Meta Automatic Curriculum Learning" (Portelas et al. 2020, arXiv 2011.08463), as
released. Students differ in the cube that is unlocked at first; nothing tells a teacher which. No model is trained.

Axes: `S` students, `side` cubes along each of two dimensions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Literal, NamedTuple

import numpy as np

from shuhari.data import Array, code
from shuhari.methods.curriculum.again.teachers import (
    Again,
    AlpGmm,
    Lesson,
    Teacher,
    Uniform,
    Variant,
    find_former,
    make_lessons,
)

Kind = Literal["again", "stranger", "alp_gmm", "uniform"]
TAUGHT = ("again", "stranger")  # teachers that hand over lessons
ROW = 1000  # tasks between two points of a trace
FULL, ENOUGH = 100, 75  # competence at most; with that much a cube unlocks its neighbours, with more it is mastered


@dataclass(eq=False)
class Student:
    """Competence [side, side] in 0..100 by cube, 0 at first. A task in a cube raises that of the cube by 1, where the
    cube is `start` or one of its four neighbours has 75; its reward is the cube's competence over 100."""

    side: int
    start: tuple[int, int]
    competence: list[list[int]] = field(init=False)

    def __post_init__(self) -> None:
        self.competence = [[0] * self.side for _ in range(self.side)]

    def try_task(self, task: Array) -> float:
        """The reward of a task [2] in [0, 1]^2."""
        i, j = (min(int(x * self.side), self.side - 1) for x in task.tolist())
        if (i, j) == self.start or self._unlocked(i, j):
            self.competence[i][j] = min(self.competence[i][j] + 1, FULL)
        return self.competence[i][j] / FULL

    def _unlocked(self, i: int, j: int) -> bool:
        near = ((i - 1, j), (i + 1, j), (i, j - 1), (i, j + 1))
        size = range(self.side)
        return any(a in size and b in size and self.competence[a][b] >= ENOUGH for a, b in near)

    def test(self) -> Array:
        """[side * side] competence."""
        return np.array(self.competence, np.float64).ravel()

    @property
    def mastered(self) -> float:
        """The share of cubes with a competence above 75."""
        return float((self.test() > ENOUGH).mean())


class Course(NamedTuple):
    """What all students of a class have alike: the grid's side, their tasks, those before the test, what lessons are
    followed by, and the class of earlier students: how many, and of which seed."""

    side: int = 7
    steps: int = 10_000
    pretest: int = 1_000
    variant: Variant = "R"
    former: int = 32
    seed: int = 0


class Former(NamedTuple):
    """An earlier student: its test at the age of the pre-test and its final one [side * side], and its lessons."""

    test: Array
    final: Array
    mastered: float
    lessons: tuple[Lesson, ...]


def make_student(course: Course, *key: object) -> tuple[Student, np.random.Generator]:
    """A student of that name, with a start of its own, and the generator of its teacher."""
    start = np.random.default_rng(code("cubes", "start", *key)).integers(course.side, size=2).tolist()
    return Student(course.side, (start[0], start[1])), np.random.default_rng(code("cubes", "teacher", *key))


def give_tasks(student: Student, teacher: Teacher, count: int) -> None:
    """The next tasks of a student."""
    for _ in range(count):
        task = teacher.draw()
        teacher.update(task, student.try_task(task))


@cache
def teach_former(course: Course, number: int) -> Former:
    """An earlier student, under ALP-GMM. Computed once a process, as all that follows."""
    student, rng = make_student(course, "former", course.seed, number)
    teacher = AlpGmm(rng)
    give_tasks(student, teacher, course.pretest)
    test = student.test()
    give_tasks(student, teacher, course.steps - course.pretest)
    return Former(test, student.test(), student.mastered, make_lessons(teacher))


@cache
def teach_class(course: Course) -> tuple[Former, ...]:
    """The earlier students, without those that have no lessons to give."""
    return tuple(former for i in range(course.former) if (former := teach_former(course, i)).lessons)


def trace(course: Course, kind: Kind, seed: int) -> Iterator[tuple[float, int]]:
    """(share of cubes mastered, lesson at hand or -1) of the student of a seed, every 1,000 tasks and at the end.
    Whatever its teacher, it is the same student, and before the pre-test all but `uniform` give it the same tasks."""
    student, rng = make_student(course, "new", seed)
    teacher: Uniform | Again = Uniform(rng) if kind == "uniform" else Again(AlpGmm(rng), course.variant)
    for done in range(course.steps):
        if done == course.pretest and kind in TAUGHT and (former := teach_class(course)):
            assert isinstance(teacher, Again)
            teacher.begin(choose_lessons(former, student.test(), kind, seed))
        give_tasks(student, teacher, 1)
        if (done + 1) % ROW == 0 or done + 1 == course.steps:
            yield student.mastered, teacher.at if isinstance(teacher, Again) else -1


def choose_lessons(former: Sequence[Former], test: Array, kind: Kind, seed: int) -> tuple[Lesson, ...]:
    """Those of the earlier student that a test speaks for (`again`), or of any (`stranger`)."""
    if kind == "stranger":
        return former[int(np.random.default_rng(code("cubes", "stranger", seed)).integers(len(former)))].lessons
    return former[
        find_former(
            np.stack([f.test for f in former]),
            np.stack([f.final for f in former]),
            test,
        )
    ].lessons


@cache
def teach(course: Course, kind: Kind, seed: int) -> float:
    """The share of cubes that the student of a seed masters in the end."""
    *_, (mastered, _) = trace(course, kind, seed)
    return mastered
