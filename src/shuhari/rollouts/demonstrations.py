"""Demonstrations: iterates over a task's problems and turns recorded solutions into trajectories.

Used by buffers of recorded answers and by rollouts that add demonstrations. Text only; recorded episodes of controllers
are not read here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, Protocol, TypeVar

import numpy as np

from shuhari.data import (
    Array,
    Payload,
    Problem,
    Request,
    Status,
    Step,
    Trajectory,
    UnshownError,
    code,
    is_tokens,
    nearest,
)
from shuhari.ports import Ctx, Source, Task, Window, ability
from shuhari.rollouts.playing import EnvironmentFailed, Playing
from shuhari.tasks.source import has_values

LARGEST = 3e38  # largest number that is stored in a float32 column


class Walk(Protocol):
    """Settings of an iteration: `draws` draws of `size` problems of `split`, from index `offset` on, shuffled with
    `shuffle`, restricted to problems whose `info` matches `where`; trained for `role` on `stream`. `state`: {"at":
    number of problems so far}; `chosen`: the matching problems of each split, cached."""

    size: int
    draws: int
    split: str
    offset: int
    shuffle: bool
    role: str
    stream: str
    where: Mapping[str, Any]
    state: dict[str, Any]
    chosen: dict[str, Source]


class Chosen:
    """The problems of a source whose `info` matches every value of `where` (any value of a list), from index `first` on
    and renumbered from there. Raises ValueError if `PATIENCE` problems in a row do not match."""

    def __init__(self, source: Source, where: Mapping[str, Any], first: int = 0) -> None:
        self._source, self._where, self._first, self._next = source, where, first, first
        self._found: list[int] = []
        self._seen: dict[str, set[Any]] = {}

    def size(self) -> int | None:
        """Returns the number of matching problems; None if the source is endless."""
        n = self._source.size()
        while n is not None and self._next < n:
            self._look()
        if n is not None and not self._found:
            raise self._none()
        return None if n is None else len(self._found)

    def __getitem__(self, i: int) -> Problem:
        while len(self._found) <= i - self._first:
            if self._next - (self._found or [self._first])[-1] > PATIENCE:
                raise self._none()
            self._look()
        return self._source[self._found[i - self._first]]

    def _look(self) -> None:
        info = self._source[self._next].info
        if has_values(info, self._where):
            self._found.append(self._next)
        elif not self._found:
            for name in info:
                self._seen.setdefault(name, set()).add(str(info[name])[:40])
        self._next += 1

    def _none(self) -> ValueError:
        message = f"where is {dict(self._where)}: none of {self._next - self._first} problems is so"
        for name in self._where:
            message += f"; {name!r}: {nearest(name, self._seen)}" if name not in self._seen else (
                f"; their {name!r} are {', '.join(sorted(self._seen[name])[:5])}")  # fmt: skip
        return ValueError(message)


def select_problems(walk: Walk, split: str, task: Task) -> Source:
    """Returns the problems of a split whose `info` matches the setting `where`."""
    source = task.problems(split)
    if not walk.where:
        return source
    if split not in walk.chosen:
        walk.chosen[split] = Chosen(source, walk.where, walk.offset if source.size() is None else 0)
    return walk.chosen[split]


B = TypeVar("B", bound=Walk)
PATIENCE = 10_000  # number of non-matching problems in a row after which the search gives up


def restrict_to_split(buffer: B, split: str, n: int, ctx: Ctx) -> B:
    """Returns a copy of the buffer over the first (up to) n problems of another split, as one batch. The buffer's own
    position does not move."""
    size = select_problems(buffer, split, ctx.task).size()
    one: dict[str, Any] = {"split": split, "size": n if size is None else min(n, size), "draws": 1, "offset": 0}
    return replace(buffer, **one)  # type: ignore[type-var]


def draw_problems(walk: Walk, kind: str, ctx: Ctx) -> Iterator[tuple[list[Problem], int, int]]:
    """Yields (problems, position of the first one in the walk, a number from which this walk's row ids count) for each
    draw. An endless source is read from `offset` on, so that these are not the problems of a curriculum, which counts
    from 0; a finite one is repeated. Raises ValueError for a split without problems."""
    source, base = (
        select_problems(walk, walk.split, ctx.task),
        code(kind, walk.role, walk.split, walk.offset, walk.stream) >> 8,
    )
    for _ in range(walk.draws):
        at = walk.state["at"]
        walk.state["at"] = at + walk.size
        yield walk_problems(source, walk.split, at, walk.size, walk.offset, walk.shuffle), at, base


def walk_problems(source: Source, split: str, at: int, count: int, offset: int, shuffle: bool) -> list[Problem]:
    """Returns `count` problems from position `at` of a walk that starts at index `offset`. A finite source is repeated,
    each pass in its own order if `shuffle`. Raises ValueError if it has no problems."""
    n = source.size()
    if n is None:
        return [source[offset + i] for i in range(at, at + count)]
    if n < 1:
        raise ValueError(f"the split {split!r} has no problems to demonstrate")
    places = [divmod(offset + i, n) for i in range(at, at + count)]
    return [source[int(_shuffle(turn, n)[place]) if shuffle else place] for turn, place in places]


def find_solution(problem: Problem, imitate: str = "solution") -> Any:
    """Returns the solution; if there is none and `imitate` is "answer", the answer (a number as text). Raises
    ValueError if the problem has neither, or only an answer that the settings do not allow to be imitated."""
    if problem.solution is not None:
        return problem.solution
    if problem.answer is not None and imitate != "answer":
        raise ValueError(
            f"problem {problem.id!r} of {problem.task} has an answer and no demonstration (`completion` in a file): "
            "leave the stage out that imitates (--remove stage.warm-up), or say that it imitates answers "
            "(stage.warm-up.buffer.imitate = 'answer')"
        )
    number = isinstance(problem.answer, int | float) and not isinstance(problem.answer, bool)
    return str(problem.answer) if number else problem.answer


def check_solutions(walk: Walk, imitate: str, task: Task) -> str:
    """Returns in words what is imitated, such as "column `completion`". Checks all problems if the task is a file, and
    only the first one otherwise. Raises UnshownError for a problem that has neither a solution nor, with `imitate` set
    to "answer", an answer."""
    source, columns = select_problems(walk, walk.split, task), ability(task, "read_from")
    n = source.size()
    fields: dict[str, None] = {}
    for i in range(n or 0) if columns else (walk.offset if n is None else walk.offset % max(n, 1),):
        problem = source[i]
        if problem.solution is None and (problem.answer is None or imitate != "answer"):
            has = "no demonstration and no answer" if problem.answer is None else "an answer and no demonstration"
            column = f" (column `{columns['solution']}`)" if columns else ""
            message = f"problem {problem.id!r} of {problem.task} has {has}{column} to imitate"
            if {"chosen", "rejected"} <= problem.info.keys():
                message += ": it is a pair of answers, which `shuhari train dpo` learns from"
            raise UnshownError(message, answer=problem.answer is not None)
        fields["answer" if problem.solution is None else "solution"] = None
    words = {"solution": "demonstrations", "answer": "answers"}
    return " and ".join(f"column `{columns[f]}`" if columns else words[f] for f in fields)


def show_solution(problem: Problem, solution: Any, ctx: Ctx, role: str, window: Window | None = None) -> Trajectory:
    """Returns a trajectory of the prompt, then `solution` and the end token: one row, without log-probabilities. In an
    environment the turns of the solution are played, seen through `window`. Numbers of the problem's `info` become
    `info/<name>`. Raises ValueError if the solution is None, TypeError if it is not text."""
    whose = f"problem {problem.id!r} of {problem.task}"
    if solution is None:
        raise ValueError(f"{whose} has no solution and no answer: nothing to show")
    if (env := ctx.task.environment(problem)) is not None:
        turns = solution if isinstance(solution, tuple) else (solution,)
        if not turns:
            raise ValueError(f"{whose} has a solution without a turn: nothing to show")
        encoded = [_encode_turn(turn, whose, ctx, role) for turn in turns]
        played = ctx.wait(replay_turns(Playing(env, Request(problem), ctx, (role,), window), encoded))
        return replace(played, info={**played.info, **read_numbers(problem)})
    said = "".join(solution) if isinstance(solution, tuple) else solution
    context, action = ctx.encode(problem.prompt, role), ctx.encode_answer(problem.prompt, said, role)
    if not (is_tokens(context) and is_tokens(action)):
        raise TypeError(f"{whose} is not text: demonstrations are token ids")
    step = Step.of(context, action, version=-1, role=role)
    return Trajectory(Request(problem), (step,), info=read_numbers(problem))


def read_numbers(problem: Problem) -> dict[str, float]:
    """Returns `info/<name>` -> each number of the problem's `info`, booleans as 1 and 0, except numbers that a float32
    column cannot hold."""
    numbers: dict[str, Any] = {n: x for n, x in problem.info.items() if isinstance(x, bool | int | float | np.number)}
    return {f"info/{n}": float(x) for n, x in numbers.items() if abs(x) < LARGEST}


async def replay_turns(play: Playing, turns: Sequence[Payload]) -> Trajectory:
    """Plays given turns (token ids) in a text environment: all are decided, with unknown log-probability, by version
    -1. There is no closing step: a demonstration is one row, unless its context is rebuilt on the way. Raises
    ValueError if the environment raises or ends before the last turn, TypeError if its observations are not text."""
    problem = play.request.problem
    whose = f"problem {problem.id!r} of {problem.task}"
    try:
        await play.begin()
        if not is_tokens(play.context):
            raise TypeError(f"{whose}: its environment is not text: demonstrations are token ids")
        for turn in turns:
            if play.status is not None:
                message = f"the environment ends after turn {play.moves} of the {len(turns)} of its solution"
                raise ValueError(f"{whose}: {message}")
            await play.give(turn, decided=True)
    except EnvironmentFailed as error:
        raise ValueError(f"{whose}: turn {play.moves} of its solution: {error}") from error
    finally:
        ability(play.env, "close")()
    return Trajectory(play.request, tuple(play.steps), play.status or Status.CUT)


def _encode_turn(turn: Payload, whose: str, ctx: Ctx, role: str) -> Array:
    """Encodes one turn (or takes token ids) with its end token."""
    ids: Any = ctx.encode_answer(None, turn, role)
    if not is_tokens(ids):
        raise TypeError(f"{whose} is not text: demonstrations are token ids")
    return ids


@lru_cache(maxsize=2)
def _shuffle(turn: int, n: int) -> Array:
    """Returns the shuffled order [n] of pass `turn`, a function of the pass number, so that there is no state to
    save."""
    return np.random.default_rng(code("demos", turn, n)).permutation(n)
