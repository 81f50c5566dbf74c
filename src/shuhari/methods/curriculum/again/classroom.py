"""Teach a class of simulated students, then one more by what they left behind (AGAIN); see `teachers` and `cubes`.

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
    """`former` students of a grid of `side` x `side` cubes under ALP-GMM, `steps` tasks each; then a new one under
    `teacher`, with the lessons of an earlier student after the share `pretest` of its tasks.

    teacher: `again`; `stranger`, with the lessons of any earlier student; `alp_gmm`; or `uniform`. variant: when the
    next lesson comes (`teachers.Again`). A row for each earlier student: `study/trained`, how many so far, and
    `study/former`, the share of cubes that it mastered; then one every 1,000 tasks of the new one: `study/mastered`,
    that share, and `study/lesson`, the lesson at hand (-1: none).
    """

    former: Count = 32
    side: Length = 7
    steps: Length = 10_000
    pretest: ProperShare = 0.1
    variant: Variant = "R"
    teacher: Kind = "again"
    trains = False

    def __post_init__(self) -> None:
        check(self)

    def __call__(self, runs: Runs) -> Iterator[Info]:
        course = Course(self.side, self.steps, round(self.pretest * self.steps), self.variant, self.former, runs.seed)
        for i in range(self.former if self.teacher in TAUGHT else 0):
            yield {"study/trained": i + 1, "study/former": teach_former(course, i).mastered}
        for mastered, lesson in trace(course, self.teacher, runs.seed):
            yield {"study/mastered": mastered, "study/lesson": lesson}
