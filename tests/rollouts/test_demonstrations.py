"""What is shown: the walk over problems is tested with the buffer `demos`; here are contexts that change on the way."""

from __future__ import annotations

from itertools import chain
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from shuhari.buffers.demos import Demos
from shuhari.buffers.preferences import Preferences
from shuhari.data import Problem, Status, Whole
from shuhari.rollouts.demonstrations import find_solution, show_solution, walk_problems
from shuhari.tasks.source import Generated, Listed
from shuhari.testing import context

END = 0


class Pages:
    """Shows page after page: `[what was said]` in the place of all before, or behind it."""

    def __init__(self, whole: bool) -> None:
        self.whole, self.left = whole, 3

    def reset(self, problem: Problem) -> Any:
        return problem.prompt

    def step(self, action: str) -> Any:
        self.left -= 1
        page = f"[{action}]"
        return Whole(page) if self.whole else page, {}, None if self.left else Status.FINISHED


def words(ids: Any) -> str:
    return "".join(chr(i) for i in ids if i != END)


class Chars:
    """A model of text, a token a character, that only reads."""

    end = END
    encode, decode = staticmethod(lambda x: np.array([ord(c) for c in x], np.int32)), staticmethod(words)


def pages(whole: bool = True, **info: Any) -> Any:
    """Problems `p` with the turns a, b, c."""
    problems = Generated(lambda i: Problem("pages", str(i), "p", solution=("a", "b", "c"), info=info), None)
    task = SimpleNamespace(environment=lambda problem: Pages(whole), problems=lambda split: problems)
    return context(task=task, models={"policy": Chars()})


async def last(play: Any) -> Any:
    """A window: the question and the last turn."""
    return np.concatenate([play.start, *chain(*play.turns[-1:])])


def test_a_demonstration_sees_what_the_policy_would_see() -> None:
    ctx = pages()
    problem = ctx.task.problems("train")[0]
    replaced = show_solution(problem, problem.solution, ctx, "policy")
    assert [words(s.context) for s in replaced.steps] == ["p", "[a]", "[b]"]
    assert [s.info["observation"] for s in replaced.steps] == ["[a]", "[b]", "[c]"]
    appended = show_solution(problem, problem.solution, pages(whole=False), "policy")
    assert [words(s.context) for s in appended.steps] == ["p", "pa[a]", "pa[a]b[b]"]
    windowed = show_solution(problem, problem.solution, pages(whole=False), "policy", last)
    assert [words(s.context) for s in windowed.steps] == ["p", "pa[a]", "pb[b]"]
    assert all(t.status is Status.FINISHED for t in (replaced, appended, windowed))
    assert all(s.mask.all() and s.logp is None for s in replaced.steps)


def test_turns_in_contexts_of_their_own_are_rows_with_ids_of_their_own() -> None:
    buffer = Demos(size=2, draws=2)
    first, second = buffer.draw(pages())
    assert len(first) == len(second) == 6  # two problems, three turns
    assert first["parent"].tolist()[0] == -1 and first["episode"].unique().numel() == 2
    assert len(torch.cat([first["id"], second["id"]]).unique()) == 12
    windowed = Demos(size=1, context=last)
    (batch,) = windowed.draw(pages(whole=False))
    assert len(batch) == 2 and batch["mask"].sum(1).tolist() == [4, 2]  # a and b with their end tokens, then c


def test_a_preference_is_one_row_an_answer() -> None:
    ctx = pages(chosen=("a", "b", "c"), rejected=("c", "b", "a"))
    with pytest.raises(ValueError, match="expected one row for each answer"):
        list(Preferences(size=2).draw(ctx))
    (batch,) = Preferences(size=2).draw(pages(whole=False, chosen=("a", "b", "c"), rejected=("c", "b", "a")))
    assert len(batch) == 4 and batch.links["pairs"][0].tolist() == [[0, 1], [2, 3]]


def test_a_walk_begins_at_its_offset_and_goes_round() -> None:
    source = Listed([Problem("t", str(i), "", i) for i in range(3)])
    ids = [p.id for p in walk_problems(source, "train", 1, 4, 1, shuffle=False)]
    assert ids == ["2", "0", "1", "2"]
    assert sorted(p.id for p in walk_problems(source, "train", 3, 3, 0, shuffle=True)) == ["0", "1", "2"]


def test_what_is_shown_where_there_is_no_solution() -> None:
    assert find_solution(Problem("t", "0", "", answer=7), "answer") == "7"
    assert find_solution(Problem("t", "0", "", answer=7, solution="3+4")) == "3+4"
    assert find_solution(Problem("t", "0", "", answer=True), "answer") is True
