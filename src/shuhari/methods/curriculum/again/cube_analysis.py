"""The share of a grid of cubes that a simulated student masters, by its teacher (AGAIN, arXiv 2011.08463).

`cubes.py` has the students, teachers and the class of earlier students. A seed is a new student, the same for every
teacher; the class has its own students, the same for all seeds, so an interval over seeds is about new students after
this class. Left out: students that are trained models.
"""

from __future__ import annotations

from dataclasses import dataclass

from shuhari.bounds import Count, Length, ProperShare, check
from shuhari.kernel.registry import register
from shuhari.methods.curriculum.again.cubes import Course, Kind, teach
from shuhari.methods.curriculum.again.teachers import Variant


@register("analysis", "cubes")
@dataclass
class Cubes:
    """How much of a grid of cubes a simulated student masters under one teacher, and how much more than under another.

    Numbers: `mastered`, the share of cubes in [0, 1] that a seed's student masters under `teacher`, and `gain`, the
    difference to `over`. The tasks of earlier students, under ALP-GMM, are not counted. Raises ValueError if both
    teachers are the same.
    """

    teacher: Kind = "again"
    """Teacher that is measured: "again" by a similar earlier student, "stranger" by any earlier one, "alp_gmm" without
    lessons, "uniform" with random tasks."""
    over: Kind = "alp_gmm"
    """Teacher that it is compared with."""
    side: Length = 7
    """Number of cubes along each of the two dimensions of the grid."""
    steps: Length = 10_000
    """Number of tasks of each student."""
    pretest: ProperShare = 0.1
    """Share of the student's tasks before it is tested and an earlier student is chosen for it."""
    variant: Variant = "R"
    """Time of the next lesson: "R" once the rewards reach the earlier student's, "T" every 250 tasks, "P" all lessons
    at once."""
    former: Count = 32
    """Number of earlier students; more make a similar one more probable, and take longer to compute."""
    classroom: Count = 0
    """Seed of the earlier students, the same for all seeds of the student."""

    def __post_init__(self) -> None:
        check(self)
        if self.teacher == self.over:
            raise ValueError(f"teacher and over are both {self.teacher!r}: expected two different teachers")

    def __call__(self, seed: int) -> dict[str, float]:
        tested = round(self.pretest * self.steps)
        course = Course(self.side, self.steps, tested, self.variant, self.former, self.classroom)
        ours, theirs = (teach(course, kind, seed) for kind in (self.teacher, self.over))
        return {"mastered": ours, "gain": ours - theirs}
