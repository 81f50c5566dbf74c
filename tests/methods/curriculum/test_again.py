"""The grid of cubes by hand, the class of earlier students, and the study and the analysis that play it.

Teachers by hand: learning progress, mixtures of known blobs, and when a lesson gives way to the next.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from shuhari.config.build import make_component
from shuhari.methods.curriculum.again import cubes
from shuhari.methods.curriculum.again.classroom import Classroom
from shuhari.methods.curriculum.again.cube_analysis import Cubes
from shuhari.methods.curriculum.again.cubes import Course, Former, Student, choose_lessons, make_student, teach, trace
from shuhari.methods.curriculum.again.teachers import (
    EVERY,
    Again,
    AlpGmm,
    Lesson,
    Mixture,
    choose_component,
    draw_task,
    find_former,
    fit_mixture,
    make_lessons,
    measure_alp,
)

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
    with pytest.raises(ValueError, match="expected two different teachers"):
        Cubes(over="again")
    with pytest.raises(ValueError, match="pretest is 1"):
        Classroom(pretest=1.0)


def mixture(*means: tuple[float, float, float], spread: float = 1e-8) -> Mixture:
    return Mixture(np.array(means), np.stack([spread * np.eye(3)] * len(means)))


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def student(*lessons: Lesson, variant: Any = "R") -> Again:
    """One that follows these lessons and nothing else: its live teacher has no mixture yet."""
    again = Again(AlpGmm(rng()), variant, later_random=0.0)
    again.begin(lessons)
    return again


def give(again: Again, *rewards: float) -> list[int]:
    """The lesson at hand after each reward."""
    seen = []
    for reward in rewards:
        again.update(again.draw(), reward)
        seen.append(again.at)
    return seen


# ---------------------------------------------------------------- ALP-GMM


def test_components_come_in_proportion_to_their_mean_alp() -> None:
    draw, zero = rng(1), rng(2)
    assert np.mean([choose_component(np.array([0.1, 0.3]), draw) for _ in range(4000)]) == pytest.approx(0.75, abs=0.03)
    counts = np.bincount([choose_component(np.zeros(4), zero) for _ in range(4000)])
    assert (counts / 4000) == pytest.approx([0.25] * 4, abs=0.03)


def test_progress_is_the_distance_from_the_reward_of_the_nearest_earlier_task() -> None:
    tasks = np.array([[0.0, 0.0], [1.0, 1.0], [0.5, 0.5], [0.9, 0.1], [0.1, 0.9], [0.2, 0.2]])
    rewards = [0.0, 0.1, 0.2, 0.3, 0.4, 0.5]
    assert measure_alp(tasks, rewards, np.array([0.6, 0.5]), 1.0) == pytest.approx(0.8)
    assert measure_alp(tasks, rewards, np.array([0.9, 0.0]), 0.1) == pytest.approx(0.2)  # a loss counts as a gain does
    assert measure_alp(tasks[:5], rewards[:5], np.array([0.6, 0.5]), 1.0) == 0.0


def test_a_task_has_no_alp_and_stays_in_its_space() -> None:
    task, at = draw_task(mixture((0.3, 0.7, 0.9)), rng())
    assert task == pytest.approx([0.3, 0.7], abs=1e-3) and at == 0
    assert draw_task(mixture((-4.0, 9.0, 0.5)), rng())[0].tolist() == [0.0, 1.0]


def test_a_mixture_finds_blobs_and_their_mean_alp() -> None:
    pytest.importorskip("sklearn")
    centres = np.array([[0.2, 0.2, 0.0], [0.8, 0.2, 0.1], [0.5, 0.9, 0.4]])
    points = np.concatenate([c + rng(i).normal(0, 0.01, (80, 3)) for i, c in enumerate(centres)])
    found = fit_mixture(points, 0)
    nearest = ((found.means[:, None] - centres) ** 2).sum(2)
    assert set(nearest.argmin(1)) == {0, 1, 2} and nearest.min(1).max() < 0.03**2


def test_mixtures_are_fitted_to_the_last_tasks_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[np.ndarray] = []

    def fit(points: np.ndarray, seed: int) -> Mixture:
        seen.append(points)
        return mixture((0.5, 0.5, 0.1), (0.25, 0.25, 0.3))

    monkeypatch.setattr("shuhari.methods.curriculum.again.teachers.fit_mixture", fit)
    teacher, tasks = AlpGmm(rng(), random=0.0), []
    for i in range(2 * EVERY + 3):
        tasks.append(teacher.draw())
        teacher.update(tasks[-1], i / 1000)
    assert [done for done, _ in teacher.fits] == [EVERY, 2 * EVERY]
    np.testing.assert_array_equal(seen[1][:, :2], tasks[EVERY : 2 * EVERY])
    assert seen[1][:, 2].tolist() == teacher.alps[EVERY : 2 * EVERY] and seen[0][:6, 2].tolist() == [0.0] * 6
    assert set(teacher.origins[:EVERY]) == {-1} and set(teacher.origins[EVERY:]) == {0, 1}
    near = np.array(tasks[EVERY:])[np.array(teacher.origins[EVERY:]) == 1]
    assert near == pytest.approx(np.full_like(near, 0.25), abs=1e-3)
    assert len(near) / (EVERY + 3) == pytest.approx(0.75, abs=0.1)


# ---------------------------------------------------------------- AGAIN


def test_without_lessons_it_is_alp_gmm() -> None:
    pytest.importorskip("sklearn")
    plain, again = AlpGmm(rng(3)), Again(AlpGmm(rng(3)))
    for i in range(EVERY + 60):
        if i == 30:
            again.begin(())
        a, b = plain.draw(), again.draw()
        np.testing.assert_array_equal(a, b)
        for teacher, task in ((plain, a), (again, b)):
            teacher.update(task, float(task[0] > 0.5))
    assert len(plain.fits) == 1 and again.at == -1


def test_the_next_lesson_comes_with_the_fiftieth_reward_that_makes_the_mean() -> None:
    lessons = [Lesson(mixture((0.1, 0.1, 0.3)), 0.5), Lesson(mixture((0.9, 0.9, 0.3)), 1.0)]
    again = student(*lessons)
    seen = give(again, *[0.25] * 25, *[0.75] * 25)  # a mean of .5, equal to what was reached
    assert seen == [0] * 49 + [1] and again.draw() == pytest.approx([0.9, 0.9], abs=1e-3)
    low = student(*lessons)
    seen = give(low, *[0.25] * 26, *[0.75] * 24, 0.75)  # .49; then the first .25 leaves the window
    assert seen == [0] * 50 + [1]
    assert give(student(*lessons), *[1.0] * 120)[-1] == 1  # the last one stays


def test_rewards_of_other_tasks_do_not_count() -> None:
    again = student(Lesson(mixture((0.1, 0.1, 0.3)), 0.5), Lesson(mixture((0.9, 0.9, 0.3)), 1.0))
    give(again, *[1.0] * 49)
    again.later_random = 1.0
    assert give(again, *[1.0] * 20) == [0] * 20
    again.later_random = 0.0
    assert give(again, 1.0) == [1]


def test_by_time_and_all_at_once() -> None:
    lessons = [Lesson(mixture((x, x, 0.3)), 1.0) for x in (0.1, 0.5, 0.9)]
    again = student(*lessons, variant="T")
    again.live.fits.append((0, mixture((0.3, 0.3, 0.0))))  # live, and never drawn: it has no progress
    seen = []
    for _ in range(3 * EVERY):
        again.update(again.draw(), 0.0)
        again.live.fits[:] = [(0, mixture((0.3, 0.3, 0.0)))]
        seen.append(again.at)
    assert seen == [0] * (EVERY - 1) + [1] * EVERY + [2] * (EVERY + 1)
    pooled = student(*lessons, variant="P")
    assert {round(float(pooled.draw()[0]), 1) for _ in range(60)} == {0.1, 0.5, 0.9}


def test_live_components_are_drawn_beside_those_of_the_lesson() -> None:
    again = student(Lesson(mixture((0.1, 0.1, 0.25)), 1.0))
    again.live.fits.append((EVERY, mixture((0.9, 0.9, 0.75))))
    drawn = [float(again.draw()[0]) for _ in range(2000)]
    assert np.mean(np.array(drawn) > 0.5) == pytest.approx(0.75, abs=0.04)


def test_the_last_lesson_is_weighed_by_what_is_found_in_it() -> None:
    """Two components of .3; in the first all rewards are 0 and in the second they alternate between 0 and 1, each
    nearest to the one before or to one in its component."""
    again = student(Lesson(mixture((0.1, 0.1, 0.3), (0.9, 0.9, 0.3), spread=1e-4), 1.0))
    for i in range(100):
        task = again.draw()
        again.update(task, float(i % 2) if task[0] > 0.5 else 0.0)
    first, second = again._mixture.means[:, -1]
    assert first == 0.0 and 0.2 < second < 0.8
    assert all(float(again.draw()[0]) > 0.5 for _ in range(50))


def test_lessons_are_what_made_progress_and_what_it_came_to() -> None:
    """Of components with mean ALPs .2, .21 and .4 two stay; the last 50 rewards of their tasks are 1, before that 0."""
    teacher = AlpGmm(rng())
    first, dull = mixture((0.1, 0.1, 0.2), (0.2, 0.2, 0.21), (0.3, 0.3, 0.4)), mixture((0.5, 0.5, 0.2))
    teacher.fits = [(EVERY, first), (2 * EVERY, dull), (3 * EVERY, first)]  # after the last one no task was drawn
    teacher.rewards = [0.3] * EVERY + [0.0] * 100 + [1.0] * 50 + [0.7] * 100 + [1.0] * EVERY
    teacher.origins = [-1] * EVERY + [1] * 90 + [2] * 60 + [0] * 100 + [0] * EVERY
    (lesson,) = make_lessons(teacher)
    np.testing.assert_array_equal(lesson.mixture.means, first.means[1:])
    assert lesson.reached == 1.0
    teacher.origins[2 * EVERY - 140 : 2 * EVERY - 100] = [-1] * 40  # random tasks do not count: 10 of 50 are left
    assert make_lessons(teacher)[0].reached == pytest.approx(10 / 50)


def test_of_the_nearest_the_best_in_the_end() -> None:
    tests = np.array([[0.0], [1.0], [2.0], [10.0]])
    finals = np.array([[1.0, 1.0], [3.0, 0.0], [0.0, 2.5], [9.0, 9.0]])
    assert find_former(tests, finals, np.array([0.0]), k=3) == 1
    assert find_former(tests, finals, np.array([0.0]), k=1) == 0
    assert find_former(tests, finals, np.array([0.0]), k=5) == 3
