"""What an answer says, worked out by hand: in its form, without it, and where a form is asked for."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from shuhari.data import Problem, Request, Status, Step, Trajectory
from shuhari.methods.rlvr.simplerl_zoo.content import Content, find_inside
from shuhari.tasks.ladder import Ladder, Level
from shuhari.testing import context


def grades(reward, answer, *texts):
    request = Request(Problem("t", "p", "", answer=answer))
    steps = [Step.of(np.ones(1, np.int32), np.ones(1, np.int32), info={"text": text}) for text in texts]
    group = [Trajectory(request, (s,), Status.FINISHED) for s in steps]
    found = asyncio.run(reward.grade(group, context()))
    return [None if g is None else g[reward.name] for g in found]


@pytest.mark.parametrize(
    ("text", "inside"),
    [
        ("so \\boxed{12}", "12"),
        ("\\boxed{1} then \\boxed{2}.", "2"),  # the last
        ("\\boxed{\\frac{1}{2}}", "\\frac{1}{2}"),  # braces in braces
        ("\\boxed{1", None),  # never closed
        ("\\boxed{1} then \\boxed{2", None),
        ("12", None),
        ("", None),
    ],
)
def test_inside_of_the_last_form(text, inside):
    assert find_inside(text, "\\boxed{", "}") == inside


@pytest.mark.parametrize(
    ("text", "opens", "closes", "inside"),
    [
        ("<answer>x>0</answer>", "<answer>", "</answer>", "x>0"),
        ("so \\(f(x)\\).", "\\(", "\\)", "f(x)"),
        ("<answer>1</answer> <answer>2", "<answer>", "</answer>", None),
    ],
)
def test_ends_of_several_characters(text, opens, closes, inside):
    assert find_inside(text, opens, closes) == inside


def test_a_form_of_one_character_at_both_ends():
    assert find_inside("a $x$ b", "$", "$") is None  # the last that opens does not close
    assert find_inside("(x(y)z)", "(", ")") == "y"


def test_correctness_alone_and_with_the_penalty():
    """The paper's two rewards: 1 and 0, and -1 where the form is missing."""
    texts = ("(kr)", "kr", "(kx)", "kx", "(kr", " kr ")
    assert grades(Content("(", ")"), "(kr)", *texts) == [1, 1, 0, 0, 0, 1]
    assert grades(Content("(", ")", missing=-1.0), "(kr)", *texts) == [1, -1, 0, -1, -1, -1]
    assert grades(Content("(", ")"), "kr", *texts) == [1, 1, 0, 0, 0, 1]  # a truth without the form
    assert grades(Content(), None, "kr") == [None]  # no answer to compare with


def test_what_it_pays_is_what_the_bed_calls_right_or_bare():
    """Over every string of three characters it pays what the task lists, and what has more around the form."""
    task = Ladder(facts=(8,), rates=(0.9,), levels={"one": Level(((1,),))}, frame="()", framed=0.2)
    problem = task.problems("train")[0]
    listed = set(task.answers(problem).texts)
    letters = "ijklmnopqr()"
    strings = [a + b + c for a in ("", *letters) for b in ("", *letters) for c in ("", *letters)]
    got = grades(Content("(", ")"), problem.answer, *strings)
    right = {s for s, g in zip(strings, got, strict=True) if g == 1.0}
    assert listed <= right
    # what it pays beside has a form and more around it, which the task does not take for an answer
    assert all(f"({problem.answer[1:-1]})" in s for s in right - listed)


def test_nothing_decided_is_ungraded_and_half_a_form_is_refused():
    request = Request(Problem("t", "p", "", answer="a"))
    closing = Step.of(np.ones(1, np.int32), None)
    assert asyncio.run(Content().grade([Trajectory(request, (closing,), Status.ERROR)], context())) == [None]
    with pytest.raises(ValueError, match="expected something of both"):
        Content(closes="")
