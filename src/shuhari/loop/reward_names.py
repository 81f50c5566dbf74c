"""The account of named rewards: how to fill in a name that an episode lacks, and that others were given.

A name that is *paid* during an episode, by an environment or a rollout, and one that a grader left out of a grade, is 0
there. A name whose grader gave no grade (None, {}, an error) is unknown: NaN, and the episode is ungraded.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from shuhari.data import PAID, Trajectory, copy_with, find_last

Names = dict[str, set[str]]
"""reward name -> the graders that have given it, the task as ""; none of a name that is only paid"""


def note_names(names: Names, trajectories: Iterable[Trajectory]) -> None:
    """Add to `names` all rewards that were paid or given in these trajectories."""
    for t in trajectories:
        for step in t.steps:
            note_paid(names, step.reward)
        for grader, given in t.graded_by.items():
            for name in given or ():
                names.setdefault(name, set()).add(grader)


def note_paid(names: Names, paid: Iterable[str]) -> None:
    """Add names that were paid; their known graders stay."""
    for name in paid:
        names.setdefault(name, set())


def write_names(names: Names) -> dict[str, list[str]]:
    """Convert names for a checkpoint."""
    return {name: sorted(names[name]) for name in sorted(names)}


def read_names(saved: Mapping[str, Sequence[str]] | Sequence[str]) -> Names:
    """Invert `write_names`; empty for an older checkpoint, which does not store the graders."""
    return {name: set(graders) for name, graders in saved.items()} if isinstance(saved, Mapping) else {}


def fill_unpaid(
    groups: Sequence[list[Trajectory]], names: Mapping[str, Collection[str]], unnamed: Iterable[str] = ()
) -> list[list[Trajectory]]:
    """Return the groups with a 0 for each of `names` that a path lacks, if every grader that gives it gave a grade; and
    for each of `unnamed`, which nothing has given yet, if the episode was played in an environment, or its task has
    graded it by other names."""
    played, graded = ({**names, **dict.fromkeys(unnamed, by)} for by in ((), ("",)))
    return [
        [_fill(t, played if PAID in t.graded_by else graded) for t in group]
        for group in groups
    ]


def is_any_silent(trajectories: Iterable[Trajectory]) -> bool:
    """Whether any grader that was called has graded none of these trajectories."""
    spoke: dict[str, bool] = {}
    for t in trajectories:
        for grader, given in t.graded_by.items():
            own = given is not None or (grader == "" and _is_paid(t))
            spoke[grader] = spoke.get(grader, False) or own
    return not all(spoke.values())


def _fill(t: Trajectory, names: Mapping[str, Collection[str]]) -> Trajectory:
    paid = [
        name
        for name, graders in names.items()
        if all(t.graded_by.get(g) for g in graders)
    ]
    zeros: dict[int, dict[str, float]] = {}  # step -> what it was not paid
    for path in t.paths() if paid else ():
        for name in paid:
            if not any(name in t.steps[i].reward for i in reversed(path)):  # grades stand at the end
                zeros.setdefault(find_last(t.steps, path), {})[name] = 0.0
    if not zeros:
        return t
    steps = list(t.steps)
    for i, lacking in zeros.items():
        steps[i] = copy_with(steps[i], reward={**steps[i].reward, **lacking})
    return copy_with(t, steps=tuple(steps))


def _is_paid(t: Trajectory) -> bool:
    """Whether a trajectory has rewards beside those that graders have given."""
    given = {
        name
        for names in t.graded_by.values()
        for name in names or ()
    }
    return any(
        name not in given
        for step in t.steps
        for name in step.reward
    )
