"""Recorded preferences: pairs of answers, or answers with a label, as rows and links.

Problems are iterated and rows made as in `demonstrations`. Axes: `P` links, `M` mismatched rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from shuhari.batch import Batch
from shuhari.bounds import Count, Size, check
from shuhari.buffers.fresh import put_on_stream
from shuhari.data import EMPTY, Payload, Problem, nearest
from shuhari.kernel.columns import LINKED
from shuhari.kernel.pack import pack
from shuhari.kernel.registry import register
from shuhari.ports import Ctx, Source
from shuhari.rollouts.demonstrations import draw_problems, restrict_to_split, show_solution
from shuhari.tasks.source import has_values


@register("buffer", "preferences")
@dataclass
class Preferences:
    """Preference data for DPO, KTO and the like: pairs of a chosen and a rejected answer, or single answers with a
    label.

    Each draw yields `draws` batches of `size` problems on `stream`, iterated as by `demos`; answers follow their
    prompt, and `logp` is unknown (NaN). A problem has `info["chosen"]` and `info["rejected"]`, or a `solution` with the
    boolean `info["label"]`. Links between rows:

        pairs       [P, 2]   (chosen, rejected)
        labels      [P, 1]   with a column `label`
        mismatched  [M, 1]   beside labels: each prompt with the answer to the next problem, for KTO's reference point

    Links have the numbers of their problem's `info` as columns [P], NaN if it has none, such as `margin`, `weight` and,
    for pairs, `label` (the probability that the chosen one is better), which losses read. Raises ValueError for a
    problem with neither kind of data or another kind than its batch, for text instead of a number that a loss reads,
    and for labels in batches of one problem.
    """

    samples = False
    size: Size = 64
    """Number of problems in a batch: pairs, or single answers with a label; labels need at least 2."""
    draws: Count = 1
    """Number of batches drawn in each step."""
    split: str = "train"
    """Split of the task whose problems are used."""
    offset: Count = 0
    """Index of the first problem; raise it to skip problems of an endless split."""
    shuffle: bool = True
    """Whether each pass through a finite split has a random order of its own."""
    links: Literal["auto", "pairs", "labels"] = "auto"
    """Kind of data: "pairs" for DPO, "labels" for KTO (a pair is then a good and a bad answer); "auto" takes pairs if
    the problems have them."""
    role: str = "policy"
    """Role of the model that learns from them, whose tokenizer encodes them."""
    stream: str = "rl"
    """Name of the weights `weight/<stream>` that the rows carry; losses with this stream learn from them."""
    where: Mapping[str, Any] = EMPTY
    """Values that the `info` of a problem must have, by name (a list: any of these); empty takes every problem."""
    state: dict[str, Any] = field(init=False, default_factory=lambda: {"at": 0})
    chosen: dict[str, Source] = field(init=False, repr=False, default_factory=dict)

    @property
    def stamps(self) -> tuple[str, ...]:
        return f"weight/{self.stream}", "links/pairs", "links/labels", "links/mismatched", "info/*"

    def __post_init__(self) -> None:
        check(self)

    def wanted(self) -> int:
        return 0

    def shows(self, problem: Problem) -> tuple[Payload, ...]:
        """Returns the texts that follow the prompt of a problem."""
        info, sides = problem.info, ("chosen", "rejected")
        shown = [info.get(side) for side in sides] if "chosen" in info else [problem.solution]
        return tuple(x for x in shown if x is not None) if has_values(info, self.where) else ()

    def held_out(self, split: str, n: int, ctx: Ctx) -> Iterator[Batch]:
        """Yields one batch of up to n problems of `split`."""
        return restrict_to_split(self, split, n, ctx).draw(ctx)

    def draw(self, ctx: Ctx) -> Iterator[Batch]:
        for problems, at, base in draw_problems(self, "preferences", ctx):
            yield put_on_stream(self._link(problems, ctx, base + 4 * at), self.stream)  # at most four rows per problem

    def _link(self, problems: Sequence[Problem], ctx: Ctx, start: int) -> Batch:
        paired = "chosen" in problems[0].info
        graded = [_answers(p, paired) for p in problems]
        answers = [
            (p, text)
            for p, texts in zip(problems, graded, strict=True)
            for text, _ in texts
        ]
        index = torch.arange(len(answers))
        if paired and self.links != "labels":
            batch = pack_answers("preferences", answers, self.role, ctx, start)
            return batch.link("pairs", index.view(-1, 2), _read_columns(batch, index[::2]))
        if self.links == "pairs":
            message = f"problem {problems[0].id!r} of {problems[0].task} has no 'chosen' and 'rejected'"
            raise ValueError(f"preferences: links = 'pairs', and {message}: expected both, or links = 'labels'")
        if len(problems) < 2:
            raise ValueError("preferences: size is 1: labels need 2 problems or more, for the reference point of KTO")
        others = [
            (p, text)
            for p, texts in zip(problems, [*graded[1:], graded[0]], strict=True)
            for text, _ in texts
        ]
        label = torch.tensor([
            float(good)
            for texts in graded
            for _, good in texts
        ])
        batch = pack_answers("preferences", [*answers, *others], self.role, ctx, start)
        batch = batch.link("labels", index[:, None], {**_read_columns(batch, index), "label": label})
        return batch.link("mismatched", index[:, None] + len(index))


def pack_answers(kind: str, answers: Sequence[tuple[Problem, Any]], role: str, ctx: Ctx, start: int) -> Batch:
    """Returns the rows of recorded answers, one each, numbered from `start`. Raises ValueError, naming the buffer
    `kind`, if an environment splits an answer into several."""
    batch = pack([show_solution(problem, answer, ctx, role) for problem, answer in answers], start=start)
    if len(batch) != len(answers):
        found = f"{len(answers)} answers are {len(batch)} rows"
        raise ValueError(f"{kind}: {found}, as the environment splits some: expected one row for each answer")
    return batch


def _read_columns(batch: Batch, rows: Tensor) -> dict[str, Tensor]:
    """Returns name -> [P] the numbers in the `info` of some rows' problems, for names that are numbers in some of
    them."""
    told = sorted(name for name in batch.names() if name.startswith("info/"))
    return {name.removeprefix("info/"): batch[name][rows] for name in told}


def _answers(problem: Problem, paired: bool) -> list[tuple[Any, bool]]:
    """Returns (answer, whether it is good): the chosen and the rejected one, or the one with a label."""
    info, whose = problem.info, f"problem {problem.id!r} of {problem.task}"
    needs = ("chosen", "rejected") if paired else ("label",)
    for name in needs:
        if info.get(name) is None:
            raise ValueError(
                f"{whose} has no {name!r}; {nearest(name, info)}: expected 'chosen' and 'rejected', or a solution with "
                "a 'label', in every row alike"
            )
    if paired:
        for name in LINKED:
            if isinstance(info.get(name), str):
                raise ValueError(
                    f"{whose}: its {name!r} is the text {info[name]!r}: expected a number, which the loss of a "
                    "pair reads (cells of CSV are text: use JSON Lines); if it means something else, rename the column"
                )
        return [(info["chosen"], True), (info["rejected"], False)]
    if info["label"] not in (True, False):
        raise ValueError(f"{whose}: its label is {info['label']!r}: expected true or false")
    return [(problem.solution, bool(info["label"]))]
