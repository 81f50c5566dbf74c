"""What share of a grid of cubes a simulated student masters, by its teacher (AGAIN, arXiv 2011.08463).

Students, teachers and the class of earlier students: `studies.cubes`. A seed is a new student, the same one whatever
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
    """`mastered`, the share of cubes in [0, 1] that the student of a seed masters under `teacher` within `steps` tasks,
    and `gain`, by how much that is more than under the teacher `over`.

    Teachers: `uniform`, any task; `alp_gmm`; `again`, which tests a student after the share `pretest` of its tasks
    and hands it the lessons of a similar earlier one; `stranger`, the same with the lessons of any. former: how many
    earlier students there are, of the seed `classroom`, which had `steps` tasks each under ALP-GMM: they are charged to
    nobody.
    variant: when the next lesson comes (`studies.teachers.Again`). ValueError where teachers are alike.
    """

    teacher: Kind = "again"
    over: Kind = "alp_gmm"
    side: Length = 7
    steps: Length = 10_000
    pretest: ProperShare = 0.1
    variant: Variant = "R"
    former: Count = 32
    classroom: Count = 0

    def __post_init__(self) -> None:
        check(self)
        if self.teacher == self.over:
            raise ValueError(f"teacher and over are {self.teacher!r}: expected two teachers")

    def __call__(self, seed: int) -> dict[str, float]:
        tested = round(self.pretest * self.steps)
        course = Course(self.side, self.steps, tested, self.variant, self.former, self.classroom)
        ours, theirs = (teach(course, kind, seed) for kind in (self.teacher, self.over))
        return {"mastered": ours, "gain": ours - theirs}
