"""A simulated student on a grid of cubes that unlock each other, and a class of such students under a teacher.

Source: the toy environment of "Meta Automatic Curriculum Learning" (Portelas et al. 2020, arXiv 2011.08463), as
released. Students differ in the initially unlocked cube, which teachers do not know. No model is trained.

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
TAUGHT = ("again", "stranger")  # teachers that use lessons
ROW = 1000  # tasks between two points of a trace
FULL, ENOUGH = 100, 75  # largest competence; from ENOUGH on a cube unlocks its neighbours, above it is mastered


@dataclass(eq=False)
class Student:
    """A student with competence [side, side] in 0..100 per cube, initially 0. A task in a cube raises its competence by
    1 if the cube is `start` or one of its four neighbours has 75; the reward is the cube's competence over 100."""

    side: int
    start: tuple[int, int]
    competence: list[list[int]] = field(init=False)

    def __post_init__(self) -> None:
        self.competence = [[0] * self.side for _ in range(self.side)]

    def try_task(self, task: Array) -> float:
        """Returns the reward of a task [2] in [0, 1]^2."""
        i, j = (min(int(x * self.side), self.side - 1) for x in task.tolist())
        if (i, j) == self.start or self._unlocked(i, j):
            self.competence[i][j] = min(self.competence[i][j] + 1, FULL)
        return self.competence[i][j] / FULL

    def _unlocked(self, i: int, j: int) -> bool:
        near = ((i - 1, j), (i + 1, j), (i, j - 1), (i, j + 1))
        size = range(self.side)
        return any(a in size and b in size and self.competence[a][b] >= ENOUGH for a, b in near)

    def test(self) -> Array:
        """Returns [side * side] competence."""
        return np.array(self.competence, np.float64).ravel()

    @property
    def mastered(self) -> float:
        """The share of cubes with a competence above 75."""
        return float((self.test() > ENOUGH).mean())


class Course(NamedTuple):
    """Common to all students of a class: the grid's side, the number of tasks, and of those before the test, the rule
    for the next lesson, and the class of earlier students: their number and seed."""

    side: int = 7
    steps: int = 10_000
    pretest: int = 1_000
    variant: Variant = "R"
    former: int = 32
    seed: int = 0


class Former(NamedTuple):
    """An earlier student: its test at the time of the pre-test and its final one [side * side], and its lessons."""

    test: Array
    final: Array
    mastered: float
    lessons: tuple[Lesson, ...]


def make_student(course: Course, *key: object) -> tuple[Student, np.random.Generator]:
    """Returns a student for this key, with its own start, and the generator of its teacher."""
    start = np.random.default_rng(code("cubes", "start", *key)).integers(course.side, size=2).tolist()
    return Student(course.side, (start[0], start[1])), np.random.default_rng(code("cubes", "teacher", *key))


def give_tasks(student: Student, teacher: Teacher, count: int) -> None:
    """Gives the next tasks to a student."""
    for _ in range(count):
        task = teacher.draw()
        teacher.update(task, student.try_task(task))


@cache
def teach_former(course: Course, number: int) -> Former:
    """Trains and returns an earlier student under ALP-GMM. Cached in the process, as are the functions below."""
    student, rng = make_student(course, "former", course.seed, number)
    teacher = AlpGmm(rng)
    give_tasks(student, teacher, course.pretest)
    test = student.test()
    give_tasks(student, teacher, course.steps - course.pretest)
    return Former(test, student.test(), student.mastered, make_lessons(teacher))


@cache
def teach_class(course: Course) -> tuple[Former, ...]:
    """Returns the earlier students that have lessons."""
    return tuple(former for i in range(course.former) if (former := teach_former(course, i)).lessons)


def trace(course: Course, kind: Kind, seed: int) -> Iterator[tuple[float, int]]:
    """Yields (share of cubes mastered, current lesson or -1) of a seed's student, every 1,000 tasks and at the end.
    The student is the same for every teacher, and before the pre-test all teachers except `uniform` give it the same
    tasks."""
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
    """Returns the lessons of the earlier student chosen by the test (`again`), or of a random one (`stranger`)."""
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
    """Returns the share of cubes that a seed's student masters in the end."""
    *_, (mastered, _) = trace(course, kind, seed)
    return mastered
