"""Several tasks as one: each training problem comes from one member, drawn in proportion to the weights.

Left out: weights that change as a policy learns (use a curriculum), and members with different spaces.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from typing import Any

from shuhari.bounds import AtLeast0, Seed, check
from shuhari.data import Problem, Step, nearest
from shuhari.kernel.registry import register
from shuhari.models.text.made_tokenizers import PRINTABLE
from shuhari.ports import Environment, Source, Task, ability
from shuhari.ports.answers import Answers
from shuhari.ports.declares import together
from shuhari.tasks.source import Generated, Stream


@dataclass(frozen=True)
class Member:
    """One task of a mixture, and its weight."""

    task: Task
    """Task of this member by `name`, with its settings in the same table."""
    weight: AtLeast0 = 1.0
    """Frequency in training relative to the other members; 0 only tests it."""

    def __post_init__(self) -> None:
        check(self)


@register("task", "mixture")
@dataclass
class Mixture:
    """Several tasks as one: each training problem comes from one member, drawn in proportion to its weight.

    In a recipe: `[task] name = "mixture"`, then `[task.tasks.sums] name = "arithmetic", weight = 2.0` and so on. A
    problem's `task` is the name of its member, which grades it and gives its environment; metrics are also reported for
    each, as `<metric>@<name>`. Raises ValueError for members with different spaces, or if all weights are 0.
    """

    tasks: Mapping[str, Member]
    """Members by name, each a task with its settings and its `weight`; all read text, or all have the same spaces."""
    seed: Seed = 0
    """Seed of the order of members. In a recipe it is the run's seed unless set."""

    def __post_init__(self) -> None:
        check(self)
        if not self.tasks:
            raise ValueError("mixture: no tasks: expected tables [task.tasks.<name>]")
        for name in self.tasks:
            if "/" in name:
                raise ValueError(f"mixture: a task is called {name!r}: expected a name without a slash")
        if not any(member.weight for member in self.tasks.values()):
            raise ValueError(f"mixture: the weights of {', '.join(self.tasks)} are 0: expected a task to train on")
        first, *others = self.tasks
        for other in others:
            a, b = (self.tasks[name].task.spaces() for name in (first, other))
            if a != b:
                message = " and ".join(f"{name!r} has {_describe(spaces)}" for name, spaces in ((first, a), (other, b)))
                raise ValueError(f"mixture: {message}: expected tasks of the same spaces, or all of text")

    @classmethod
    def preview(cls) -> dict[str, Any]:
        """Returns the entry in listings: without members there are no problems."""
        return {"spaces": "those of its tasks"}

    @property
    def alphabet(self) -> str:
        """The characters of all members together; a member without an alphabet counts as printable ASCII."""
        own = [ability(m.task, "alphabet") for m in self.tasks.values()]
        return "".join(sorted(set().union(*(a or PRINTABLE for a in own)))) if any(own) else ""

    @property
    def stamps(self) -> tuple[str, ...] | None:
        return together((), *(member.task for member in self.tasks.values()))

    def problems(self, split: str) -> Source:
        """Returns the problems of a split. `train` is endless: at each index a member by its weight, with its problem
        of that index if it is endless itself, else a uniformly random one. Any other split has each member's own
        problems, in turn."""
        drawn = {name: m.task for name, m in self.tasks.items() if m.weight or split != "train"}
        sources = {name: task.problems(split) for name, task in drawn.items()}
        if split == "train":
            return Generated(lambda i: self._draw(sources, i))
        sizes = [source.size() for source in sources.values()]
        names = list(sources)

        def make(index: int) -> Problem:
            at, place = interleave(sizes, index)
            return self._own(names[at], sources[names[at]][place])

        return Generated(make, None if None in sizes else sum(n or 0 for n in sizes))

    def grade(self, problem: Problem, steps: Sequence[Step]) -> Mapping[str, Any] | None:
        """Returns the grade by the problem's member."""
        task, own = self._member(problem)
        return task.grade(own, steps)

    def answers(self, problem: Problem) -> Answers | None:
        """Returns the answers that the problem's member lists, if any."""
        task, own = self._member(problem)
        found: Answers | None = ability(task, "answers")(own)
        return found

    def environment(self, problem: Problem) -> Environment | None:
        """Returns the environment of the problem's member."""
        task, own = self._member(problem)
        return task.environment(own)

    def spaces(self) -> tuple[Any, Any] | None:
        return next(iter(self.tasks.values())).task.spaces()

    # ---------------------------------------------------------------- which member

    @cached_property
    def _shares(self) -> list[float]:
        """[m] cumulative shares of the members, up to 1."""
        sums = list(accumulate(m.weight for m in self.tasks.values()))
        return [s / sums[-1] for s in sums]

    def _draw(self, sources: Mapping[str, Source], index: int) -> Problem:
        stream = Stream("mixture", self.seed, index)
        u = stream.uniform()
        name = next(n for n, share in zip(self.tasks, self._shares, strict=True) if u <= share)
        size = sources[name].size()
        if size == 0:
            raise ValueError(f"mixture: the task {name!r} has no problems to train on")
        return self._own(name, sources[name][index if size is None else stream.below(size)])

    def _own(self, name: str, problem: Problem) -> Problem:
        """Returns a member's problem under the name of the member; for a nested mixture, `<member>/<its member>`."""
        inner = isinstance(self.tasks[name].task, Mixture)
        return replace(problem, task=f"{name}/{problem.task}" if inner else name)

    def _member(self, problem: Problem) -> tuple[Task, Problem]:
        name, _, inner = problem.task.partition("/")
        if name not in self.tasks:
            raise KeyError(f"mixture: problem {problem.id!r} is of no task {name!r}; {nearest(name, self.tasks)}")
        return self.tasks[name].task, replace(problem, task=inner) if inner else problem


def _describe(spaces: tuple[Any, Any] | None) -> str:
    return "text" if spaces is None else f"{spaces[0]} -> {spaces[1]}"


def interleave(sizes: Sequence[int | None], index: int) -> tuple[int, int]:
    """Returns (list, place in it) of the element at `index` if lists of these sizes (None: endless) are read in turn,
    one element each per round, skipping exhausted ones."""
    left, through = list(range(len(sizes))), 0  # the remaining lists, and the number of finished rounds
    for size in sorted({n for n in sizes if n is not None}):
        span = (size - through) * len(left)
        if index < span:
            break
        index, through = index - span, size
        left = [i for i in left if sizes[i] is None or sizes[i] > size]  # type: ignore[operator]
    return left[index % len(left)], through + index // len(left)
