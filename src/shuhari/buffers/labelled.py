"""Recorded answers with labels, of the whole answer or of each of its steps, as rows of a reward model.

Problems are iterated and rows made as in `demonstrations`. Axes: `B` rows, `K` positions of an answer, `S` its steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from shuhari.batch import Batch
from shuhari.bounds import Count, Size, check
from shuhari.buffers.fresh import put_on_stream
from shuhari.buffers.preferences import pack_answers
from shuhari.data import EMPTY, Payload, Problem
from shuhari.kernel.registry import register
from shuhari.ports import Ctx, Source
from shuhari.rewards.steps import find_steps, split_steps
from shuhari.rollouts.demonstrations import draw_problems, restrict_to_split
from shuhari.tasks.labels import list_steps, read_label
from shuhari.tasks.source import has_values

Marked = tuple[str, tuple[float | None, ...]]  # a text, and the labels of its steps, or one of the whole


@register("buffer", "labelled")
@dataclass
class Labelled:
    """Answers with labels for outcome and process reward models, which the objective `classification` learns from.

    Each draw yields `draws` batches of `size` problems on `stream`, iterated as by `demos`; one row each, the answer
    after its prompt, with `logp` unknown (NaN). A problem has a `solution` with `info["label"]`, which is on the end
    token; or lists `info["steps"]` (or `completions`) and `info["labels"]`: the steps, without the white space around
    them, are joined by `separator`, and each label is on the token at which its step ends (`rewards.steps`), several
    on one token as their mean. A label is a boolean, or a probability in [0, 1]; None (and -1 in a file) is unknown.

    Stamps `label` [B, K], NaN where there is none, and `weight/<stream>` [B, K]: the row's number `info["weight"]` (1
    without one) at labels, else 0. Raises ValueError for a problem without labels, a step that is empty or contains the
    separator, labels that are not one a step, and a negative weight.
    """

    samples = False
    size: Size = 64
    """Number of answers in a batch, one row each."""
    draws: Count = 1
    """Number of batches drawn in each step."""
    split: str = "train"
    """Split of the task whose problems are used."""
    offset: Count = 0
    """Index of the first problem; raise it to skip problems of an endless split."""
    shuffle: bool = True
    """Whether each pass through a finite split has a random order of its own."""
    separator: str = "\n"
    """Text between the steps of an answer; the reward `reward_model` needs the same."""
    role: str = "reward"
    """Role of the model that learns from them, whose tokenizer encodes them."""
    stream: str = "rl"
    """Name of the weights `weight/<stream>` that the rows carry; losses with this stream learn from them."""
    where: Mapping[str, Any] = EMPTY
    """Values that the `info` of a problem must have, by name (a list: any of these); empty takes every problem."""
    state: dict[str, Any] = field(init=False, default_factory=lambda: {"at": 0})
    chosen: dict[str, Source] = field(init=False, repr=False, default_factory=dict)

    @property
    def stamps(self) -> tuple[str, ...]:
        return f"weight/{self.stream}", "label", "info/*"

    def __post_init__(self) -> None:
        check(self)
        if not self.separator:
            raise ValueError("labelled: separator is '': expected the text between two steps, such as a line break")

    def wanted(self) -> int:
        return 0

    def shows(self, problem: Problem) -> tuple[Payload, ...]:
        """Returns the text that follows the prompt of a problem."""
        return (self._read(problem)[0],) if has_values(problem.info, self.where) else ()

    def held_out(self, split: str, n: int, ctx: Ctx) -> Iterator[Batch]:
        """Yields one batch of up to n problems of `split`."""
        return restrict_to_split(self, split, n, ctx).draw(ctx)

    def draw(self, ctx: Ctx) -> Iterator[Batch]:
        for problems, at, base in draw_problems(self, "labelled", ctx):
            yield put_on_stream(self._mark(problems, ctx, base + at), self.stream)

    def _mark(self, problems: Sequence[Problem], ctx: Ctx, start: int) -> Batch:
        given = [self._read(problem) for problem in problems]
        answers = [(problem, text) for problem, (text, _) in zip(problems, given, strict=True)]
        batch = pack_answers("labelled", answers, self.role, ctx, start)
        label = torch.full(tuple(batch["mask"].shape), torch.nan)
        for i, (step, (_, labels)) in enumerate(zip(batch.steps, given, strict=True)):
            label[i] = self._place(step.action, labels, problems[i], ctx, label.shape[1])
        weight = (~label.isnan()).float()
        if (own := batch.get("info/weight")) is not None:
            if bool((own < 0).any()):
                raise ValueError(f"labelled: a weight is {float(own[own < 0][0]):g}: expected 0 or more")
            weight = weight * own.nan_to_num(1.0)[:, None]
        return batch.put({"label": label, f"weight/{self.stream}": weight})

    def _place(self, ids: Any, labels: tuple[float | None, ...], problem: Problem, ctx: Ctx, width: int) -> Tensor:
        """Returns [K] the labels on the tokens where they belong, NaN elsewhere."""
        places = [len(ids) - 1]
        if list_steps(problem.info)[1]:
            places = find_steps(ids, lambda some: ctx.text(some, self.role), self.separator)
            if len(places) != len(labels):
                found = f"{len(labels)} labels, and {len(places)} steps by its tokens"
                raise ValueError(f"{_name(problem)} has {found}: expected steps that the tokenizer can spell")
        known = [(k, y) for k, y in zip(places, labels, strict=True) if y is not None]
        total, count = torch.zeros(width), torch.zeros(width)
        at = torch.tensor([k for k, _ in known], dtype=torch.long)
        total.index_add_(0, at, torch.tensor([y for _, y in known], dtype=torch.float32))
        count.index_add_(0, at, torch.ones(len(known)))
        return total / count  # 0 / 0 is NaN: no label

    def _read(self, problem: Problem) -> Marked:
        """Returns the answer of a problem and its labels."""
        steps, labels = list_steps(problem.info)
        if labels:
            return self._join(problem, steps, labels)
        if problem.solution is None or problem.info.get("label") is None:
            raise ValueError(f"{_name(problem)} has no label: expected a `completion` with a `label`, or `steps` with "
                             "`labels`, in every row")  # fmt: skip
        if not isinstance(problem.solution, str):
            raise ValueError(f"{_name(problem)}: its answer is {problem.solution!r:.60}: expected text")
        return problem.solution, (_read_number(problem.info["label"], problem),)

    def _join(self, problem: Problem, steps: Sequence[Any], labels: Sequence[Any]) -> Marked:
        if len(steps) != len(labels):
            found = f"{len(steps)} steps and {len(labels)} labels"
            raise ValueError(f"{_name(problem)} has {found}: expected a label for each step")
        for i, step in enumerate(steps):
            if not isinstance(step, str) or not step.strip():
                raise ValueError(f"{_name(problem)}: step {i + 1} is {step!r:.60}: expected text that is not empty")
            if len(split_steps(step.strip(), self.separator)) > 1:
                more = "set separator, here and of the reward, to a text that is between steps only"
                raise ValueError(f"{_name(problem)}: step {i + 1} contains {self.separator!r}, the separator: {more}")
        text = self.separator.join(step.strip() for step in steps)
        known = tuple(None if y is None else _read_number(y, problem) for y in labels)
        cut = problem.solution
        if isinstance(cut, str) and len(cut) < len(text) and text.startswith(cut):  # the task cut it (`too_long`)
            left = len(split_steps(cut, self.separator))
            whole = len(cut) in split_steps(text, self.separator)
            return cut, known[:left] if whole else (*known[: left - 1], None)
        return text, known


def _name(problem: Problem) -> str:
    return f"problem {problem.id!r} of {problem.task}"


def _read_number(value: Any, problem: Problem) -> float:
    try:
        return float(read_label(value))
    except ValueError as error:
        raise ValueError(f"{_name(problem)}: {error}") from None
