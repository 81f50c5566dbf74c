"""Checks a task's listed rows against the models of a stage as it begins: rows that are too long are refused, left out
or cut, as the task sets (`too_long`), and oddities of the data are logged, once a run.

Nothing is drawn and no batch is made: if every row fits, the run's bits do not change. Left out: rows of tasks without
an end, and tasks that do not know the place of a problem (`places`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from shuhari.config.overlay import RecipeError, format_path
from shuhari.config.stage import Components, walk_learners
from shuhari.data import FrozenDict, Payload, Problem
from shuhari.kernel.state import walk, walk_placed
from shuhari.ports import ability, is_text, is_vector
from shuhari.tasks.lengths import Lengths, Shown, cut, describe, measure, read_by
from shuhari.tasks.splits import describe_unused, find_split

if TYPE_CHECKING:
    from shuhari.loop.context import Context

MAX_NEW = "rollout.sampling.max_new"


class TooLongError(RecipeError):
    """The error if rows of a task are longer than a model reads, and no setting chooses what to do with them."""


@dataclass(frozen=True)
class Use:
    """A use of the problems of a split, of the first `n` (0: of all): `role` reads them; `shows`: returns the texts put
    after the prompt of a problem, each alone; without it an answer of up to `room` tokens is sampled."""

    split: str
    role: str
    shows: Callable[[Problem], tuple[Payload, ...]] | None = None
    room: int = 0
    n: int = 0

    def show(self, problem: Problem, place: str) -> Shown | None:
        """Return the texts of a problem that the model reads; None if this use does not read the problem, or not as
        text."""
        texts = self.shows(problem) if self.shows is not None else ()
        if (self.shows is not None and not texts) or not all(_is_read(x) for x in (problem.prompt, *texts)):
            return None
        return Shown(place, problem.prompt, texts)


def fit_rows(stage: Components, ctx: Context, stages: Iterable[Components], *, restoring: bool = False) -> None:
    """Fit the rows of a stage's tasks to the models in `ctx` that read them. stages: all of the run. restoring: the
    stage has begun already, so nothing is refused or logged. Raises TooLongError."""
    for place, task, uses in _walk_tasks(stage):
        for at, part in walk_placed(task, place):
            if (fit := ability(part, "fit")) is None:
                continue
            if not restoring:
                _tell(ctx, [*ability(part, "odd"), *_list_unused(part, stages), *list_repeated(stage)])
            at = at[:-1] if len(at) > 2 and at[-1] == "task" else at  # of a member
            for split in dict.fromkeys(use.split for use in uses):
                fit(split, ())
                whole, told = list(_list_problems(part, split)), list[str]()
                asked = [replace(use, n=0 if part is not task else use.n) for use in uses if use.split == split]
                setting = format_path((*at, "too_long"))
                if not restoring:
                    _tell(ctx, _list_without_template(part, whole, asked, ctx))
                fitted = _fit_split(part, whole, asked, ctx, setting, told, refuse=not restoring)
                if fitted is not None:
                    fit(split, fitted)
                _tell(ctx, told if not restoring else [])


def _fit_split(
    part: Any, whole: list[Problem], uses: Sequence[Use], ctx: Context, setting: str, told: list[str], *, refuse: bool
) -> list[Problem] | None:
    """Return the problems of a split that fit, or their cut versions; None if all fit. What was done is added to
    `told`."""
    if part.too_long == "refuse" and not refuse:
        return None
    kept: list[Problem | None] = list(whole)
    for use in uses:
        model = ctx.models.get(use.role)
        if model is None or not is_text(model) or (limit := ability(model, "limit")) is None:
            continue
        tell, read = read_by(model)
        n = use.n if use.n and part.too_long == "refuse" else len(kept)
        indices, rows = list[int](), list[Shown]()
        for i, problem in enumerate(kept[:n]):
            if problem is not None and (row := use.show(problem, part.places[problem.id])) is not None:
                indices.append(i)
                rows.append(replace(row, prompt=tell(row.prompt)))
        found = measure(rows, read, limit, use.room)
        if not found.long:
            continue
        words = _describe(part, use, found, rows, setting, model)
        if part.too_long == "refuse":
            raise TooLongError(setting, words)
        told.append(words)
        for j in found.long:
            kept[indices[j]] = None
            if part.too_long == "cut":
                shorter = cut(rows[j], read, limit, use.room)
                whole[indices[j]] = kept[indices[j]] = _take_cut(whole[indices[j]], shorter)
    if not told:
        return None
    left = [problem for problem in kept if problem is not None]
    if not left:
        raise TooLongError(setting, f"{told[-1]}, and nothing is left of the split")
    return left


def list_repeated(stage: Components) -> list[str]:
    """Return a hint for each learner whose step wants more problems than a file has to train on."""
    if ability(stage.task, "fit") is None:
        return []
    there, found = stage.task.problems(ability(stage.curriculum, "split") or "train").size(), []
    for learner in stage.learners.values():
        wanted = (ability(learner.buffer, "size") or 0) if ability(learner.buffer, "unit") == "group" else 0
        if there and wanted > there:
            found.append(
                f"buffer.size: {wanted:,} problems a step, and the file has {there:,} to train on: each is played "
                f"{wanted / there:.1f} times a step, with {stage.n} answers each time (rollout.n)"
            )
    return found


def _list_without_template(part: Any, problems: Sequence[Problem], uses: Sequence[Use], ctx: Context) -> list[str]:
    """Return a hint for each model that reads conversations and has no chat template."""
    if not any(isinstance(problem.prompt, tuple) for problem in problems):
        return []
    found = []
    for role in dict.fromkeys(use.role for use in uses):
        tokens = ability(ctx.models[role], "text") if role in ctx.models else None
        if tokens is not None and not tokens.has_template:
            found.append(
                f"models.{role} has no chat template, and file/{part.path} has conversations: they are written as "
                "lines `user: ...` and `assistant:`, which no chat client will send. An instruct or chat model has a "
                "template; a base model takes rows of text"
            )
    return found


def _take_cut(problem: Problem, row: Shown) -> Problem:
    """Return a problem with the prompt and the replies of a cut row."""
    new: dict[str, Any] = {"prompt": row.prompt}
    if len(row.replies) == 2:
        new["info"] = FrozenDict({**problem.info, "chosen": row.replies[0], "rejected": row.replies[1]})
    elif row.replies:
        new["answer" if problem.solution is None else "solution"] = row.replies[0]
    return replace(problem, **new)


def _describe(part: Any, use: Use, found: Lengths, rows: Sequence[Shown], setting: str, model: Any) -> str:
    """Describe in words what does not fit."""
    most = ability(model, "longest")
    context = "" if most is None else f"models.{use.role}.context"
    did = {"refuse": "", "leave_out": "left out", "cut": "cut"}[part.too_long]
    words = describe(found, rows, did=did, context=context, most=most or 0, setting=setting)
    return f"file/{part.path}, split {use.split!r}: {words}"


def _walk_tasks(stage: Components) -> Iterator[tuple[tuple[str, ...], Any, list[Use]]]:
    """Yield (place, task, uses of its problems) for the tasks of a stage."""
    tested = stage.evaluate
    uses = [
        use
        for _, learner in walk_learners(stage.learners)
        for use in _list_shown(learner.buffer)
    ]
    role = ability(stage.rollout, "role")
    plays = not is_vector(stage.rollout)
    asked = stage.sampling.max_new if MAX_NEW not in stage.defaults else 1
    held = list[Use]()
    if plays and any(learner.buffer.wanted() > 0 for learner in stage.learners.values()):
        uses.append(Use(ability(stage.curriculum, "split"), role, room=asked))
    if tested is not None and plays and tested.n:
        own = tested.sampling is not None and "evaluate.sampling.max_new" not in stage.defaults
        room = tested.sampling.max_new if own and tested.sampling else asked
        held = [replace(use, split=tested.split, n=tested.n) for use in uses if use.shows is not None]
        held.append(Use(tested.split, role, room=room, n=tested.n + tested.watch))
    if tested is not None and tested.task is not None and tested.task is not stage.task:
        yield ("evaluate", "task"), tested.task, held
        held = []
    yield ("task",), stage.task, [*uses, *held]


def _list_shown(buffer: Any) -> Iterator[Use]:
    """Yield the uses of recorded answers by a buffer and buffers in it."""
    for _, part in walk(buffer):
        if (shows := ability(part, "shows")) is not None:
            yield Use(ability(part, "split"), ability(part, "role"), shows)


def _list_problems(part: Any, split: str) -> Sequence[Problem]:
    try:
        return tuple(part.problems(split).problems)
    except ValueError:  # there is none: whoever asks for it says so
        return ()


def _list_unused(part: Any, stages: Iterable[Components]) -> list[str]:
    """Return the messages about the splits that rows name."""
    named = part.named_splits
    asked = {"train"}
    for stage in stages:
        for _, task, uses in _walk_tasks(stage):
            if any(inner is part for _, inner in walk(task)):
                asked |= {use.split for use in uses}
        asked |= {stage.evaluate.split} if stage.evaluate and stage.evaluate.more else set()
    called = f"file/{part.path}"
    told = describe_unused(named, asked, part.counts)
    held = find_split("test", part.counts)
    stands = held if "test" in asked and held and held.casefold() not in ("test", "testing") else ""
    return [*([f"{called}: {told}"] if told else []),
            *([f"{called}: it has no split 'test': what is held out is its {stands!r}"] if stands else [])]  # fmt: skip


def _tell(ctx: Context, words: Iterable[str]) -> None:
    for text in words:
        if ctx.told is not None and text not in ctx.told:
            ctx.told.add(text)
            logging.getLogger("shuhari").warning("%s", text)


def _is_read(value: Any) -> bool:
    """Whether a payload is text or messages."""
    if isinstance(value, str):
        return True
    return isinstance(value, tuple) and bool(value) and all(isinstance(m, Mapping) and "content" in m for m in value)
