"""Data that crosses ports and processes. It is frozen and plain: numbers, text, arrays; no tensors, no callables.

Axes: `K` = the decisions of one step. Token ids are one-dimensional int32 arrays, and nothing else is: a context of
that type is text, any other context must stack with its neighbours. A policy learns from `batch.Batch`, which
`batch.pack` makes out of trajectories.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from typing import Annotated, Any, NoReturn, TypeAlias, TypeVar, Union

import numpy as np
from numpy.typing import NDArray

from shuhari import bounds
from shuhari.bounds import nearest as nearest
from shuhari.bounds import with_article as with_article
from shuhari.kernel.ramp import Count as Count
from shuhari.kernel.ramp import Number as Number
from shuhari.kernel.ramp import Ramp as Ramp

T = TypeVar("T")
Array: TypeAlias = NDArray[Any]
Info: TypeAlias = dict[str, Any]
Payload: TypeAlias = Union[  # noqa: UP007 (recursive); closed: all that `codec` writes
    None, bool, int, float, str, bytes, Array, tuple["Payload", ...], Mapping[str, "Payload"]
]


class FrozenDict(dict[str, Any]):
    """A dict that refuses change: a default of frozen dataclasses (a MappingProxyType is refused there on 3.11)."""

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError("a frozen mapping cannot be changed: build a new one")

    __setitem__ = __delitem__ = clear = pop = popitem = setdefault = update = __ior__ = _refuse

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(tuple(sorted(self)))


EMPTY = FrozenDict()


class UnshownError(ValueError):
    """A problem lacks the solution that is to be imitated; `answer`: whether it has an answer to imitate instead."""

    def __init__(self, message: str, *, answer: bool) -> None:
        super().__init__(message)
        self.answer = answer


class StalledError(RuntimeError):
    """A run cannot go on, because its filters reject everything. For a claim that is a result of the method, as NaN
    is."""


class ContractError(ValueError):
    """User code broke the contract of its port: the run ends, where a failure of it would be counted."""


def copy_with(value: T, **fields: Any) -> T:
    """A frozen record with other values in some fields: `replace` without its checks, for what is done every sample."""
    new = object.__new__(type(value))
    values = new.__dict__
    values |= value.__dict__
    values |= fields
    return new


def constant(k: int, value: Any, dtype: Any) -> Array:
    """Return an array of k elements: one value k times, or k values. For an int it is shared between calls and
    read-only."""
    return _same(k, value, dtype) if isinstance(value, int) else np.full(k, value, dtype)


@lru_cache(4096)
def _same(k: int, value: int, dtype: Any) -> Array:
    x = np.full(k, value, dtype)
    x.flags.writeable = False
    return x


def code(*parts: object) -> int:
    """A stable 63-bit number for a name: how roles, groups and tasks become integer columns."""
    digest = hashlib.blake2b("\x1f".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


@dataclass(frozen=True)
class Problem:
    """One problem of a task: a prompt, or the start of an environment's episode, and what it is graded against.

    `id` never changes; `solution` holds reference steps for hints and demonstrations; `start` is a snapshot of an
    environment, restored instead of resetting.
    """

    task: str
    id: str
    prompt: Payload
    answer: Payload = None
    solution: Payload = None
    info: Mapping[str, Any] = EMPTY
    start: Payload = None


@dataclass(frozen=True)
class Sampling:
    """How a policy is sampled: temperature, truncation, length. A field that a model does not support is an error.

    With `greedy`, log-probabilities are at the given temperature. With `top`, the step's `info` has `top` [K, top], the
    ids of the most probable alternatives in descending order, and `top_logp` [K, top], their log-probabilities at these
    settings.
    """

    temperature: Annotated[Number, bounds.Bounds(0, open="low", hint="for the mode set greedy = true")] = 1.0
    """Temperature that divides the logits, above 0, or its schedule over the decisions of an answer; higher explores
    more."""
    top_p: bounds.PositiveShare = 1.0
    """Probability of the smallest set of alternatives that is sampled from (nucleus sampling); 1 keeps all."""
    top_k: bounds.Count = 0
    """Number of most probable alternatives that are sampled from; 0 keeps all."""
    min_p: bounds.ShareBelow1 = 0.0
    """Lowest probability that is sampled, relative to the highest; 0 keeps all."""
    greedy: bool = False
    """Take the most probable alternative at each decision."""
    max_new: bounds.Size = 256
    """Largest number of tokens of an answer, after which it is truncated."""
    stop: tuple[str, ...] = ()
    """Texts that end an answer once it contains one."""
    ban: tuple[bounds.Count, ...] = ()
    """Ids that the first decision of an answer may not take."""
    top: bounds.Count = 0
    """Number of most probable alternatives that are recorded with each decision; 0 records none."""
    epsilon: bounds.Fraction = 0.0
    """Probability of a uniform action, in [0, 1], or its schedule over the run (epsilon-greedy exploration); language
    models take 0 alone."""

    def __post_init__(self) -> None:
        bounds.check(self)

    @property
    def truncates(self) -> bool:
        """Whether the distribution is truncated, so that scoring needs the kept ids (the `support`)."""
        return self.top_p < 1 or self.top_k > 0 or self.min_p > 0

    def temperatures(self, k: int, first: int = 0) -> Array:
        """Return [k], the temperature of each decision of a call, from decision `first` on."""
        if isinstance(self.temperature, Ramp):
            return np.asarray(self.temperature(np.arange(first, first + k)), np.float32)
        return np.full(k, self.temperature, np.float32)


@dataclass(frozen=True, eq=False)
class Step:
    """One call of a policy inside an episode; `action` None makes a closing step: a final context only.

    `parent`: index, in the same trajectory, of the step that this one continues (a tree is one trajectory). mask,
    version: [K]; logp: [K] at the sampling settings, None if the action was not sampled here; reward: by name, a number
    falls on the last decision, an array is [K]; `cont`: how much of this step's value counts for the step before.
    `views`: role -> its context, if that is not `context`. `info`: numbers and [K] arrays become columns; for text,
    `text` is the action in words and `observation` the environment's answer to it. `first`: number of positions of the
    same call before this step, if it was split: a temperature ramp continues from there.
    """

    context: Payload
    action: Payload
    mask: Array
    version: Array
    logp: Array | None = None
    parent: int | None = None
    reward: Mapping[str, Any] = EMPTY
    role: str = "policy"
    sampling: Sampling | None = None
    cont: float = 1.0
    views: Mapping[str, Payload] = EMPTY
    info: Mapping[str, Any] = EMPTY
    first: int = 0

    @classmethod
    def of(cls, context: Payload, action: Payload, logp: Array | None = None, version: Any = 0, **fields: Any) -> Step:
        """Make a step all of whose K positions are decisions. K is the length of `logp` (for a bound, which may have
        more or fewer draws than tokens); without `logp`, the number of tokens of a text, else 1."""
        k = len(logp) if logp is not None else len(action) if is_tokens(action) else 1  # type: ignore[arg-type]
        return cls(context, action, constant(k, True, bool), constant(k, version, np.int64), logp, **fields)

    @classmethod
    def closing(cls, context: Payload, parent: int | None, cont: float, **fields: Any) -> Step:
        """Make the final context of an episode: one position, no decision. `cont` is 0 after an end, 1 after a cut."""
        return cls(context, None, np.zeros(1, bool), np.full(1, -1), None, parent, cont=cont, **fields)

    def split(self, at: int) -> tuple[Step, Step]:
        """Split this step in two for a branch inside its action, before decision `at` of a text.

        The second half continues the first: its context and views include the first half's action; the caller sets its
        `parent`. Rewards given as a number stay on the last decision. Raises TypeError if the action, the context or a
        view is not token ids.
        """
        odd = [role for role, view in self.views.items() if not is_tokens(view)]
        if odd or not (is_tokens(self.action) and is_tokens(self.context)):
            what = f"; what role {odd[0]!r} sees is none" if odd else ""
            raise TypeError(f"only a step over token ids can be split inside its action{what}")
        if not 0 < at < len(self.action):  # type: ignore[arg-type]
            raise ValueError(f"split at {at}: expected a position in 1..{len(self.action) - 1}")  # type: ignore[arg-type]
        k = len(self.mask)

        def part(value: Any, half: slice, *, last: bool) -> Any:
            if isinstance(value, np.ndarray) and value.ndim and len(value) == k:
                return value[half]
            return value if last else None

        halves = []
        for half, last in ((slice(0, at), False), (slice(at, k), True)):
            kept = {
                name: {n: p for n, v in getattr(self, name).items() if (p := part(v, half, last=last)) is not None}
                for name in ("reward", "info")
            }
            fields: dict[str, Any] = {**kept, "logp": None if self.logp is None else self.logp[half]}
            fields |= {name: getattr(self, name)[half] for name in ("action", "mask", "version")}
            halves.append(replace(self, **fields))
        action: Any = halves[0].action
        context: Any = np.concatenate([self.context, action])
        views: Any = {role: np.concatenate([view, action]) for role, view in self.views.items()}
        return halves[0], replace(halves[1], context=context, cont=1.0, views=views, first=self.first + at)


def is_tokens(x: object) -> bool:
    """Whether a payload is text as token ids: a one-dimensional int32 array."""
    return isinstance(x, np.ndarray) and x.dtype == np.int32 and x.ndim == 1


@dataclass(frozen=True)
class Whole:
    """An observation that replaces the whole context, instead of being appended to it as text: for an environment that
    rebuilds what the policy sees each turn (the present state of a page, a summary, the end of a long answer)."""

    context: Payload


@dataclass(frozen=True, eq=False)
class Request:
    """One group to collect: what a curriculum asks for.

    `prefix`: forced and untrained steps (hints, resumed rows). `settings` go to the rollout and are checked against
    what it accepts. `info` is stamped by the curriculum; its numbers become columns. `n` and `sampling` default to the
    run's, which fills them in before a rollout sees the request; a mapping as `sampling` overrides some of the run's
    fields (`{"temperature": 1.2}`). `key` is stamped by the run and never repeats: groups, noise and re-queuing depend
    on it.
    """

    problem: Problem
    n: bounds.Count = 0  # 0: the run's
    # None: the run's; a mapping: what differs from it; a rollout always finds a `Sampling`
    sampling: Sampling = None  # type: ignore[assignment]
    prefix: tuple[Step, ...] = ()
    settings: Mapping[str, Any] = EMPTY
    info: Mapping[str, Any] = EMPTY
    key: str = ""

    def __post_init__(self) -> None:
        bounds.check(self)


class Status(StrEnum):
    """How an episode ended. Whether it went well is up to the reward."""

    FINISHED = "finished"
    TRUNCATED = "truncated"  # a limit of time or length
    CUT = "cut"  # paused, or its window ended: it goes on elsewhere
    ERROR = "error"  # weight 0 on every stream, counted


PAID = "*"  # in `Trajectory.graded_by`: no reward of a recipe is called so


@dataclass(frozen=True, eq=False)
class Trajectory:
    """The steps of one episode, parents before children; several leaves make it a tree.

    `graded_by`: source of a grade (the task as "", a reward by its name in the run) -> the names of the numbers that it
    gave; None if it gave no grade. Each source grades once. `PAID` in it stands for an environment that pays rewards on
    the way: any that it has not paid is 0.
    """

    request: Request
    steps: tuple[Step, ...]
    status: Status = Status.FINISHED
    info: Mapping[str, Any] = EMPTY
    graded_by: Mapping[str, tuple[str, ...] | None] = EMPTY

    def __post_init__(self) -> None:
        for i, step in enumerate(self.steps):
            if step.parent is not None and not 0 <= step.parent < i:
                raise ValueError(f"step {i} continues step {step.parent}: a parent comes before its children")

    def paths(self) -> list[tuple[int, ...]]:
        """Return the indices of the steps from the root to each leaf, one path a leaf, in step order."""
        if len(self.steps) == 1:
            return [(0,)]
        inner = {s.parent for s in self.steps}
        paths = []
        for leaf in (i for i in range(len(self.steps)) if i not in inner):
            path, at = [leaf], self.steps[leaf].parent
            while at is not None:
                path.append(at)
                at = self.steps[at].parent
            paths.append(tuple(path[::-1]))
        return paths

    def graded(self, grades: Iterable[Mapping[str, Any] | None], by: str | None = None) -> Trajectory:
        """Return the trajectory with one grade a leaf, put on the last decision of the leaf's path; None leaves the
        leaf ungraded (NaN). `by`: the source of the grades, noted in `graded_by`."""
        paths, grades = self.paths(), list(grades)
        if len(paths) != len(grades):
            raise ValueError(f"{len(grades)} grades for a trajectory with {len(paths)} leaves: expected one a leaf")
        given = [g for g in grades if g]
        names = (
            tuple(sorted({
                n
                for g in given
                for n in g
            }))
            if any(g is not None for g in grades)
            else None
        )
        asked = self.graded_by if by is None else {**self.graded_by, by: names}
        if not given:
            return self if by is None else copy_with(self, graded_by=asked)
        ungraded = (
            dict.fromkeys(
                (
                    n
                    for g in given
                    for n in g
                ),
                float("nan"),
            )
            if len(given) < len(grades)
            else EMPTY
        )
        steps = list(self.steps)
        for path, grade in zip(paths, grades, strict=True):
            at = find_last(steps, path)
            steps[at] = copy_with(steps[at], reward={**steps[at].reward, **(grade or ungraded)})
        return copy_with(self, steps=tuple(steps), graded_by=asked)


def find_last(steps: Sequence[Step], path: Sequence[int]) -> int:
    """Return the index of the last step of a path that decided something, which gets the grade; closing steps do
    not."""
    at = path[-1]
    return path[-2] if steps[at].action is None and steps[at].parent is not None else at


def find_outcomes(trajectory: Trajectory, weights: Mapping[str, float]) -> list[float]:
    """The weighted sum of rewards along the path to each leaf. NaN if one of them is ungraded, if `weights` is empty,
    and for an episode that ended in an error, as rewards paid before that mean nothing."""
    if trajectory.status is Status.ERROR or not weights:
        return [float("nan")] * len(trajectory.paths())
    paths = (
        [trajectory.steps[i] for i in path]
        for path in trajectory.paths()
    )
    trained = {name: weight for name, weight in weights.items() if weight}
    return [
        sum((weight * sum_reward(steps, name) for name, weight in trained.items()), 0.0)
        for steps in paths
    ]


def sum_reward(steps: Iterable[Step], name: str) -> float:
    """The sum of a reward along steps; NaN where it was given to none of them."""
    given = [r for s in steps if (r := s.reward.get(name)) is not None]
    return sum(r if type(r) is float else float(np.sum(r)) for r in given) if given else float("nan")


def list_scores(group: Iterable[Trajectory], name: str) -> list[float]:
    """Return what each graded episode of a group earned by a reward; episodes that ended in an error are left out."""
    given = [sum_reward(t.steps, name) for t in group if t.status is not Status.ERROR]
    return [x for x in given if x == x]


def read_first(source: Any, n: int, first: int = 0) -> list[Problem]:
    """The n problems of a `ports.Source` from `first` on; fewer if it ends before."""
    size = source.size()
    return [source[i] for i in range(first, first + n if size is None else min(first + n, size))]
