"""`regrade` and `what-if`: what they print and refuse. Their numbers are tested with the functions behind them."""

from __future__ import annotations

import json
from pathlib import Path

GRADERS = """
def ones(completions, **columns):
    return [float("1" in c) for c in completions]

def broken(completions, **columns):
    raise RuntimeError("\\x1b[2Jno")
"""


def test_regrade(shuhari, home: Path) -> None:
    (home / "graders.py").write_text(GRADERS)
    done = shuhari("regrade", "s0", "--reward", "graders.py:ones", "--steps", "2..", "--limit", 1)
    assert done.code == 0, done.err
    assert "9 groups of 3 steps, 2 to 4, 36 episodes, graded anew by ones (graders.py:ones)" in done.out
    whole = json.loads(shuhari("regrade", "s0", "--reward", "graders.py:ones", "--steps", "2..", "--json").out)
    assert f"change most ({whole['changed'] - 1} more change: --limit shows more):" in done.out
    assert "become mixed: add/" in done.out and "the run keeps some groups of a step" in done.err
    found = json.loads(shuhari("regrade", "s0", "--reward", "graders.py:ones", "--step", 4, "--json").out)
    assert found["steps"] == [4] and found["rewards"]["ones"]["new"]["ungraded"] == 0
    assert len(found["changes"]) == min(10, round(12 * found["rewards"]["ones"]["new"]["mean"]))


def test_a_grader_that_fails_is_shown_and_steers_no_terminal(shuhari, home: Path) -> None:
    (home / "graders.py").write_text(GRADERS)
    done = shuhari("regrade", "s0", "--reward", "broken=graders.py:broken", "--set", "reward.weights.score=1")
    assert done.code == 0 and "a grader failed in 12 calls" in done.err and "RuntimeError: \\x1b[2Jno" in done.err
    assert "\x1b" not in done.err + done.out and "broken has no weight in the trained reward" in done.err


def test_where_every_grade_fails_nothing_is_found(shuhari, home: Path) -> None:
    (home / "graders.py").write_text(GRADERS)
    done = shuhari("regrade", "s0", "--reward", "broken=graders.py:broken", "--set", "reward.weights.broken=1")
    assert done.code == 1 and "all alike" not in done.out and "have no grade any more, and are left out" in done.out


def test_regrade_refuses(shuhari, home: Path) -> None:
    for argv, message in (
        (["--reward", "lenght"], "did you mean 'length'"),
        (["--reward", "length", "--steps", "1-2"], "expected a..b"),
        (["--reward", "length", "--step", 1, "--steps", "1..2"], "exclude each other: give one"),
        (["--reward", "length", "--step", 9], "keeps no rollouts of step 9"),
        (["--set", "rollout.n=8"], "expected a setting of a grader"),
        ([], "no grader of stage 'main' differs"),
    ):
        done = shuhari("regrade", "s0", *argv)
        assert done.code == 2 and message in done.err, (argv, done.err)


def test_what_if(shuhari, home: Path) -> None:
    done = shuhari("what-if", "s0@3", "--set", "part.policy.terms.loss.weight=2", "--set", "part.policy.optimiser.lr=0")
    assert done.code == 0, done.err
    assert "step 3 of stage main: 3 of 4 groups, 12 episodes; weights: the checkpoint of step 2" in done.out
    assert "with part.policy.terms.loss.weight = 2" in done.out and "KL(before || after)" in done.out
    assert "the batch is 3 of 4 groups of the step" in done.err and "cosine of both updates, policy" in done.out
    found = json.loads(shuhari("what-if", "s0@3", "--json").out)
    assert found["changed"] is None and len(found["groups"]) == 3 and "policy/loss/clip" in found["reported"]


def test_what_if_refuses(shuhari, home: Path) -> None:
    for argv, message in (
        (["s0"], "expected RUN@STEP"),
        (["s0@77"], "no step 77"),
        (["s0@3", "--set", "rollout.n=8"], "the batch is stored"),
        (["s0@3", "--set", "part.policy.terms.loss.hihg=1"], "did you mean 'high'"),
        (["s00@3"], "did you mean 's0'"),
    ):
        done = shuhari("what-if", *argv)
        assert done.code == 2 and message in done.err, (argv, done.err)
