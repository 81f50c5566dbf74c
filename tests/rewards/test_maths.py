"""The judge of mathematics in its child process: what it finds equal, what hostile text comes to, how it ends."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from shuhari.data import Problem, Request, Step, Trajectory
from shuhari.rewards import maths_child
from shuhari.rewards.maths import Exceeded, JudgeError, Maths

pytest.importorskip("math_verify")


@pytest.fixture(scope="module")
def reward() -> Iterator[Maths]:
    made = Maths(timeout=20.0)
    yield made
    made.close()


def step(text: str) -> Step:
    return Step.of(np.ones(1, np.int32), np.ones(1, np.int32), info={"text": text})


def group(truth: Any, *texts: str) -> list[Trajectory]:
    return [Trajectory(Request(Problem("t", "0", "p", answer=truth)), (step(t),)) for t in texts]


def ask(reward: Maths, samples: Sequence[Trajectory]) -> tuple[list[Any], list[str]]:
    told: list[str] = []
    ctx = SimpleNamespace(record_failure=lambda what, error, whose: told.append(f"{what} {whose} {error}"))
    return asyncio.run(reward.grade(samples, ctx)), told  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("answer", "truth", "number"),
    [
        ("so it is \\boxed{\\frac{1}{2}}", "0.5", 1.0),
        ("\\frac{1}{2}", "1/2", 1.0),
        ("first 3, then $(x+1)^2$", "$x^2 + 2x + 1$", 1.0),
        ("$\\{1, 2\\}$", "$\\{2, 1\\}$", 1.0),
        ("I tried " + "1 " * 3000 + "and it is 7", "7", 1.0),  # the end of a long answer is read
        ("4", "5", 0.0),
        ("I do not know", "5", 0.0),
        ("", "5", 0.0),
        ('4\n{"id": 1, "grade": 1}\n', "5", 0.0),  # a line of its own is still one answer
        ("__import__('os').system('touch pwned')", "5", 0.0),
        ("(" * 4000, "5", 0.0),
        ("9" * 100_000, "5", 0.0),
        ("$" + "\\frac{1}{" * 60 + "1" + "}" * 60 + "$", "5", 0.0),
        ("\x00\ud800 7", "5", 0.0),
    ],
)
def test_judgement(reward: Maths, answer: str, truth: str, number: float, tmp_path: Path) -> None:
    before = os.getcwd()
    os.chdir(tmp_path)
    try:
        assert reward.judge(answer, truth) == number
        assert os.listdir(tmp_path) == []
    finally:
        os.chdir(before)


def test_grades_one_a_leaf(reward: Maths) -> None:
    grades, told = ask(reward, [*group("7", "7", "8"), *group(None, "7"), *group("", "7")])
    assert grades == [{"maths": 1.0}, {"maths": 0.0}, None, None]
    assert len(told) == 1 and "failed_graders reward 'maths'" in told[0] and "truth" in told[0]


def test_a_truth_that_is_too_long_is_not_read_in_part(reward: Maths) -> None:
    """The first 4096 characters of it are another truth, which a wrong answer may meet."""
    truth = "1" + " + 0" * 1023 + "+ 41"
    assert len(truth) > 4096
    grades, told = ask(reward, group(truth, "1", "42"))
    assert grades == [None, None] and "expected at most 4096" in told[0]


@pytest.mark.parametrize("bomb", ["9**9**9**9", "$12!!$", "$9^{9^{9}}$"])
def test_an_answer_that_wants_too_much_is_wrong_and_cheap(reward: Maths, bomb: str) -> None:
    reward.judge("4", "4")
    child, began = reward._child, os.times().elapsed
    grades, told = ask(reward, group("4", *[bomb] * 3, "4"))
    assert grades[-1] == {"maths": 1.0} and reward._child is child  # a fork has died, and nothing else
    assert grades[:3] == [{"maths": 0.0}] * 3
    assert all("exceeded_graders reward 'maths'" in t and "processor time" in t for t in told)
    assert os.times().elapsed - began < 3 * 10  # of a busy machine; 3 s of its own


def test_an_answer_that_the_clock_ends_is_ungraded_and_the_next_is_judged() -> None:
    reward = Maths(timeout=20.0, cpu=60.0)
    assert reward.judge("4", "4") == 1.0
    first = reward._child
    assert first is not None
    reward.timeout = 0.5
    grades, told = ask(reward, group("4", "9**9**9**9"))
    assert grades == [None] and "within 0.5 s" in told[0] and "failed_graders" in told[0]
    assert first.poll() is not None
    reward.timeout = 20.0
    assert reward.judge("4", "4") == 1.0
    second = reward._child
    assert second is not None and second.pid != first.pid
    second.kill()  # a judge that dies while nobody looks
    with pytest.raises(JudgeError, match="no reply"):
        reward.judge("4", "4")
    assert reward.judge("4", "4") == 1.0
    third = reward._child
    assert third is not None
    reward.close()
    assert third.poll() is not None
    reward.close()


def test_what_judges_ends_with_a_trainer_that_is_killed() -> None:
    code = (
        "import threading\nfrom shuhari.rewards.maths import Maths\nm = Maths()\nm.judge('4', '4')\n"
        "threading.Thread(target=m.judge, args=('9**9**9**9', '4'), daemon=True).start()\n"
        "print(m._child.pid, flush=True)\nthreading.Event().wait()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        time.sleep(0.3)  # the bomb is at work
        parent.kill()
    for _ in range(200):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.1)
    raise AssertionError("the judge outlives the run")


def test_the_child_has_its_limits() -> None:
    resource = pytest.importorskip("resource")
    reward = Maths(memory=1024, timeout=20.0)
    reward.judge("4", "4")
    assert reward._child is not None
    if hasattr(resource, "prlimit"):
        assert resource.prlimit(reward._child.pid, resource.RLIMIT_AS) == (1 << 30, 1 << 30)
        assert resource.prlimit(reward._child.pid, resource.RLIMIT_FSIZE) == (0, 0)
    reward.close()


def test_the_child_ends_with_its_parent() -> None:
    code = "from shuhari.rewards.maths import Maths\nm = Maths()\nm.judge('4', '4')\nprint(m._child.pid)"
    pid = int(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_without_the_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    child = tmp_path / "child.py"
    child.write_text("""print('{"error": "ModuleNotFoundError: No module named math_verify"}')""")
    monkeypatch.setattr("shuhari.rewards.maths.CHILD", child)
    with pytest.raises(ModuleNotFoundError, match=r'pip install "shuhari\[lm\]"'):
        Maths().judge("4", "4")


def test_an_answer_that_the_memory_does_not_hold_is_wrong() -> None:
    def parse(text: str, **_: Any) -> list[Any]:
        if text == "huge":
            raise MemoryError
        if text == "odd":
            raise ValueError("no formula")
        return [len(text)]

    def verify(gold: list[Any], found: list[Any], **_: Any) -> bool:
        return gold == found

    said = {text: maths_child.grade(text, "1", parse, verify) for text in ("2", "22", "huge", "odd")}
    assert said["2"] == {"grade": 1.0} and said["22"] == {"grade": 0.0}
    assert said["huge"] == {"exceeded": True} and said["odd"]["grade"] == 0.0


def test_what_passes_between_parent_and_child(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A stand-in for the child that says what the real one never should, or seldom does."""
    child = tmp_path / "child.py"
    child.write_text("""
import json, os, sys
print('{"ready": true}', flush=True)
for line in sys.stdin:
    r = json.loads(line)
    alone = sys.flags.isolated and "PATH" not in os.environ
    replies = {"forged": {"id": "0" * 16, "grade": 1}, "huge": {"id": r["id"], "exceeded": True}}
    replies |= {"alone": {"id": r["id"], "grade": float(alone)}, "list": [1]}
    print(json.dumps(replies[r["answer"]]), flush=True)
""")
    monkeypatch.setattr("shuhari.rewards.maths.CHILD", child)
    reward = Maths(timeout=20.0)
    assert reward.judge("alone", "1") == 1.0  # without our paths and environment
    for bad in ("forged", "list"):  # a reply that is not the one to this request ends the child
        with pytest.raises(JudgeError, match="no reply"):
            reward.judge(bad, "1")
        assert reward._child is None
    with pytest.raises(Exceeded, match="2048 MiB"):
        reward.judge("huge", "1")
    assert reward.judge("alone", "1") == 1.0
    reward.close()


@pytest.mark.parametrize(("fields", "message"), [({"timeout": 0}, "timeout is 0"), ({"memory": 8}, "256 or more")])
def test_bad_settings(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Maths(**fields)
