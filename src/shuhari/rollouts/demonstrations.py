"""Demonstrations: iterate over a task's problems, and turn given answers into trajectories.

Buffers of recorded answers and rollouts with demonstrations beside use it. Text only; recorded episodes of controllers
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

LARGEST = 3e38  # a column has numbers below it


class Walk(Protocol):
    """Settings of an iteration: `draws` draws of `size` problems of `split`, from index `offset` on, in the order that
    `shuffle` says, of those alone whose `info` says `where`; for `role`, to be learnt on `stream`. `state`: {"at":
    problems so far}; `chosen`: what was found of each split."""

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
    """The problems of a source whose `info` has every value of `where` (of a list, any of them), from index `first` on,
    under indices of their own that begin there too. ValueError where `PATIENCE` in a row have not."""

    def __init__(self, source: Source, where: Mapping[str, Any], first: int = 0) -> None:
        self._source, self._where, self._first, self._next = source, where, first, first
        self._found: list[int] = []
        self._seen: dict[str, set[Any]] = {}

    def size(self) -> int | None:
        """The number of selected problems; None where the source is endless."""
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
    """Select the problems of a split whose `info` matches `walk.where`."""
    source = task.problems(split)
    if not walk.where:
        return source
    if split not in walk.chosen:
        walk.chosen[split] = Chosen(source, walk.where, walk.offset if source.size() is None else 0)
    return walk.chosen[split]


B = TypeVar("B", bound=Walk)
PATIENCE = 10_000  # problems in a row that are not wanted, before there are taken to be none


def restrict_to_split(buffer: B, split: str, n: int, ctx: Ctx) -> B:
    """The same buffer over (up to n) problems of another split, from the first: one batch of them. Where
    the buffer stands in its own walk does not move."""
    size = select_problems(buffer, split, ctx.task).size()
    one: dict[str, Any] = {"split": split, "size": n if size is None else min(n, size), "draws": 1, "offset": 0}
    return replace(buffer, **one)  # type: ignore[type-var]


def draw_problems(walk: Walk, kind: str, ctx: Ctx) -> Iterator[tuple[list[Problem], int, int]]:
    """(problems, place of the first of them in the walk, a number from which on row ids are this walk's own) of each
    draw. An endless source gives what lies behind `offset`, so other problems than a curriculum, which counts from 0; a
    finite one is walked round and round. ValueError for a split without problems."""
    source, base = (
        select_problems(walk, walk.split, ctx.task),
        code(kind, walk.role, walk.split, walk.offset, walk.stream) >> 8,
    )
    for _ in range(walk.draws):
        at = walk.state["at"]
        walk.state["at"] = at + walk.size
        yield walk_problems(source, walk.split, at, walk.size, walk.offset, walk.shuffle), at, base


def walk_problems(source: Source, split: str, at: int, count: int, offset: int, shuffle: bool) -> list[Problem]:
    """The `count` problems from place `at` of a walk that begins at index `offset`; a finite source is walked round and
    round, each pass in an order of its own (`shuffle`). ValueError where there are none."""
    n = source.size()
    if n is None:
        return [source[offset + i] for i in range(at, at + count)]
    if n < 1:
        raise ValueError(f"the split {split!r} has no problems to demonstrate")
    places = [divmod(offset + i, n) for i in range(at, at + count)]
    return [source[int(_shuffle(turn, n)[place]) if shuffle else place] for turn, place in places]


def find_solution(problem: Problem, imitate: str = "solution") -> Any:
    """The solution; where there is none and `imitate` is "answer" that, which is text where it is a number. ValueError
    for a problem that has neither, or an answer alone that nobody said should be imitated."""
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
    """What is imitated of the problems of a walk, in words, with the columns of a file. A task that is read from
    columns is asked for all of its problems, another one for the first that is walked. UnshownError for a problem that
    lacks it."""
    source, columns = select_problems(walk, walk.split, task), ability(task, "read_from")
    n = source.size()
    fields: dict[str, None] = {}
    for i in range(n or 0) if columns else (walk.offset if n is None else walk.offset % max(n, 1),):
        problem = source[i]
        if problem.solution is None and (problem.answer is None or imitate != "answer"):
            has = "no demonstration and no answer" if problem.answer is None else "an answer and no demonstration"
            column = f" (column `{columns['solution']}`)" if columns else ""
            message = f"problem {problem.id!r} of {problem.task} has {has}{column} to imitate"
            raise UnshownError(message, answer=problem.answer is not None)
        fields["answer" if problem.solution is None else "solution"] = None
    words = {"solution": "demonstrations", "answer": "answers"}
    return " and ".join(f"column `{columns[f]}`" if columns else words[f] for f in fields)


def show_solution(problem: Problem, solution: Any, ctx: Ctx, role: str, window: Window | None = None) -> Trajectory:
    """The prompt, then `solution` and the end token: one row, without log-probabilities. In an environment the
    turns of the solution are played, seen through `window`. Numbers of the problem's `info` are told as `info/<name>`.
    ValueError where it is None, TypeError where it is not text."""
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
    """`info/<name>` -> each number of the problem's `info`, true and false as 1 and 0; without those that a column
    (float32) cannot hold."""
    numbers: dict[str, Any] = {n: x for n, x in problem.info.items() if isinstance(x, bool | int | float | np.number)}
    return {f"info/{n}": float(x) for n, x in numbers.items() if abs(x) < LARGEST}


async def replay_turns(play: Playing, turns: Sequence[Payload]) -> Trajectory:
    """A text episode of turns that are given, as token ids: all decided, with unknown log-probability, by version -1.
    It has no closing step: a demonstration is one row, unless its context is rebuilt on the way. Raises ValueError
    where the environment ends before the last turn or raises, TypeError for one whose observations are not text."""
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
    """Encode one turn of several (or take token ids), with the token that ends it."""
    ids: Any = ctx.encode_answer(None, turn, role)
    if not is_tokens(ids):
        raise TypeError(f"{whose} is not text: demonstrations are token ids")
    return ids


@lru_cache(maxsize=2)
def _shuffle(turn: int, n: int) -> Array:
    """[n] the shuffled order of pass `turn`, a function of its number, so that there is no state to save."""
    return np.random.default_rng(code("demos", turn, n)).permutation(n)
