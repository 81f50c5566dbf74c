"""What share of a grid of cubes a simulated student masters, by its teacher (AGAIN, arXiv 2011.08463).

Students, teachers and the class of earlier students: `cubes.py`. A seed is a new student, the same one whatever
its teacher; the class is of students of its own, the same one for all seeds, so an interval over seeds is about new
students of this class. Left out: students that are trained models.
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

    Numbers: `mastered`, the share of cubes in [0, 1] that the student of a seed masters under `teacher`, and `gain`, by
    how much that is more than under `over`. The earlier students learned under ALP-GMM and are charged to nobody.
    ValueError for two teachers that are alike.
    """

    teacher: Kind = "again"
    """Teacher that is measured: "again" by a similar earlier student, "stranger" by any earlier one, "alp_gmm" without
    lessons, "uniform" with random tasks."""
    over: Kind = "alp_gmm"
    """Teacher that it is compared with."""
    side: Length = 7
    """Cubes along each of the two dimensions of the grid."""
    steps: Length = 10_000
    """Tasks that each student gets."""
    pretest: ProperShare = 0.1
    """Share of the student's tasks before it is tested and an earlier student is chosen for it."""
    variant: Variant = "R"
    """Time of the next lesson: "R" once the rewards reach the earlier student's, "T" every 250 tasks, "P" all lessons
    at once."""
    former: Count = 32
    """Earlier students; more make a similar one likelier, and take longer to compute."""
    classroom: Count = 0
    """Seed of the earlier students, the same for all seeds of the student."""

    def __post_init__(self) -> None:
        check(self)
        if self.teacher == self.over:
            raise ValueError(f"teacher and over are {self.teacher!r}: expected two teachers")

    def __call__(self, seed: int) -> dict[str, float]:
        tested = round(self.pretest * self.steps)
        course = Course(self.side, self.steps, tested, self.variant, self.former, self.classroom)
        ours, theirs = (teach(course, kind, seed) for kind in (self.teacher, self.over))
        return {"mastered": ours, "gain": ours - theirs}
