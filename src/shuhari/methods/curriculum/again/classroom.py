"""Teaches a class of simulated students, then one more by their lessons (AGAIN); see `teachers` and `cubes`.

Left out: students that are trained models: no run of the recipe is made.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from shuhari.bounds import Count, Length, ProperShare, check
from shuhari.data import Info
from shuhari.kernel.registry import register
from shuhari.methods.curriculum.again.cubes import TAUGHT, Course, Kind, teach_former, trace
from shuhari.methods.curriculum.again.teachers import Variant
from shuhari.ports import Runs


@register("study", "classroom")
@dataclass
class Classroom:
    """A simulated student learns from a teacher that knows how earlier, similar students learnt (AGAIN); no model is
    trained.

    Earlier students learn a grid of cubes under ALP-GMM (tasks by learning progress); then a new one learns under
    `teacher`, with the lessons of an earlier student after the share `pretest` of its tasks. Yields a row for each
    earlier student: `study/trained`, their number so far, and `study/former`, the share of cubes that it mastered; then
    one every 1,000 tasks of the new student: `study/mastered`, that share, and `study/lesson`, the current lesson (-1:
    none).
    """

    former: Count = 32
    """Number of earlier students; more make a similar one likelier, and cost `steps` tasks each."""
    side: Length = 7
    """Number of cubes along each of the two dimensions of the grid."""
    steps: Length = 10_000
    """Number of tasks of each student."""
    pretest: ProperShare = 0.1
    """Share of the new student's tasks before it is tested and an earlier student is chosen for it."""
    variant: Variant = "R"
    """Time of the next lesson: "R" once the rewards reach the earlier student's, "T" every 250 tasks, "P" all lessons
    at once."""
    teacher: Kind = "again"
    """Teacher of the new student: "again" by a similar earlier student, "stranger" by any earlier one, "alp_gmm"
    without lessons, "uniform" with random tasks."""
    trains = False

    def __post_init__(self) -> None:
        check(self)

    def __call__(self, runs: Runs) -> Iterator[Info]:
        course = Course(self.side, self.steps, round(self.pretest * self.steps), self.variant, self.former, runs.seed)
        for i in range(self.former if self.teacher in TAUGHT else 0):
            yield {"study/trained": i + 1, "study/former": teach_former(course, i).mastered}
        for mastered, lesson in trace(course, self.teacher, runs.seed):
            yield {"study/mastered": mastered, "study/lesson": lesson}
