"""The judge of mathematics in its child process: what it finds equal, what hostile text comes to, how it ends."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shuhari.data import Problem, Request, Step, Trajectory
from shuhari.events import Committed
from shuhari.rewards import maths_child
from shuhari.rewards.maths import Exceeded, JudgeError, Maths
from shuhari.testing import context

pytest.importorskip("math_verify")


@pytest.fixture(scope="module")
def reward() -> Iterator[Maths]:
    made = Maths(timeout=20.0)
    yield made
    made.close()


def process(reward: Maths) -> subprocess.Popen[str]:
    """Of the first judge, which is the only one where answers come one by one."""
    found = reward._pool.children[0].process
    assert found is not None
    return found


def step(text: str) -> Step:
    return Step.of(np.ones(1, np.int32), np.ones(1, np.int32), info={"text": text})


def group(truth: Any, *texts: str) -> list[Trajectory]:
    return [Trajectory(Request(Problem("t", "0", "p", answer=truth)), (step(t),)) for t in texts]


def ask(reward: Maths, samples: Sequence[Trajectory]) -> tuple[list[Any], list[str]]:
    failures: list[str] = []
    ctx = context(record_failure=lambda what, error, whose: failures.append(f"{what} {whose} {error}"))
    return asyncio.run(reward.grade(samples, ctx)), failures


@pytest.mark.parametrize(
    ("answer", "truth", "number"),
    [
        ("so it is \\boxed{\\frac{1}{2}}", "0.5", 1.0),
        ("\\frac{1}{2}", "1/2", 1.0),
        ("first 3, then $(x+1)^2$", "$x^2 + 2x + 1$", 1.0),
        ("$\\{1, 2\\}$", "$\\{2, 1\\}$", 1.0),
        ("I tried " + "1 " * 3000 + "and it is 7", "7", 1.0),  # the end of a long answer is read
        ("$x = 12$", "12", 1.0),
        ("so $6 + 6 = 12$.", "12", 1.0),
        ("f(3) = 12", "12", 1.0),
        ("12 apples", "12", 1.0),
        ("2*x + 1", "$2x+1$", 1.0),
        ("2*x + 1", "2x+1", 1.0),
        ("1", "2x+1", 0.0),
        ("2**3", "8", 1.0),
        ("sqrt(2)", "$\\sqrt{2}$", 1.0),
        ("Is it 3 or 4? It is $12$.", "12", 1.0),
        ("12\\%", "12%", 1.0),
        ("$x < 12$", "$x<12$", 1.0),
        *((text, "12", 0.0) for text in (
            "$13=12$", "$12=13$", "12\\\\13", "12\\13", "$\\le 12$", "$x < 12$", "$\\neq 12$", "$\\approx 12$", "12%",
            "1200%", "$12\\%$", "12±1", "$12 \\pm 1$", "12 or 13", "13 or 12", "$13$ or $12$", "12, 13",
            "the answer is 12 or maybe 13", "\\boxed{12 \\text{ or } 13}",
        )),
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
    grades, failures = ask(reward, [*group("7", "7", "8"), *group(None, "7"), *group("", "7")])
    assert grades == [{"maths": 1.0}, {"maths": 0.0}, None, None]
    assert len(failures) == 1 and "failed_graders reward 'maths'" in failures[0] and "truth" in failures[0]


def test_a_truth_that_is_too_long_is_not_read_in_part(reward: Maths) -> None:
    """The first 4096 characters of it are another truth, which a wrong answer may meet."""
    truth = "1" + " + 0" * 1023 + "+ 41"
    assert len(truth) > 4096
    grades, failures = ask(reward, group(truth, "1", "42"))
    assert grades == [None, None] and "expected at most 4096" in failures[0]


@pytest.mark.parametrize("bomb", ["9**(9**9)", "$12!!$", "$9^{9^{9}}$"])
def test_an_answer_that_wants_too_much_is_wrong_and_cheap(reward: Maths, bomb: str) -> None:
    ask(reward, group("4", "4", "5", "6"))
    before, began = {c.process for c in reward._pool.children}, os.times().elapsed
    grades, failures = ask(reward, group("4", *[bomb] * 3, "4"))
    assert grades[-1] == {"maths": 1.0}
    assert before <= {c.process for c in reward._pool.children}  # a fork has died, and nothing else
    assert grades[:3] == [{"maths": 0.0}] * 3
    assert all("exceeded_graders reward 'maths'" in t and "processor time" in t for t in failures)
    assert os.times().elapsed - began < 3 * 10  # of a busy machine; 3 s of its own


def test_an_answer_that_the_clock_ends_is_ungraded_and_the_next_is_judged() -> None:
    reward = Maths(timeout=20.0, cpu=60.0)
    assert reward.judge("4", "4") == 1.0
    first = process(reward)
    reward.timeout = 0.5
    grades, failures = ask(reward, group("4", "$12!!$"))
    assert grades == [None] and "within 0.5 s" in failures[0] and "failed_graders" in failures[0]
    assert first.poll() is not None
    reward.timeout = 20.0
    assert reward.judge("5", "5") == 1.0
    second = process(reward)
    assert second.pid != first.pid
    second.kill()  # a judge that dies while nobody looks
    with pytest.raises(JudgeError, match="no reply"):
        reward.judge("6", "6")
    assert reward.judge("6", "6") == 1.0
    third = process(reward)
    reward.close()
    assert third.poll() is not None
    reward.close()


def test_what_judges_ends_with_a_trainer_that_is_killed() -> None:
    """The judge and its fork, however long the answer at hand may take."""
    code = (
        "import threading\nfrom shuhari.rewards.maths import Maths\nm = Maths(cpu=500.0, timeout=500.0)\n"
        "m.judge('4', '4')\nthreading.Thread(target=m.judge, args=('$12!!$', '4'), daemon=True).start()\n"
        "print(m._pool.children[0].process.pid, flush=True)\nthreading.Event().wait()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        group = int(parent.stdout.readline())
        time.sleep(0.5)  # the bomb is at work
        parent.kill()
    for _ in range(200):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return
        time.sleep(0.1)
    raise AssertionError("the judge outlives the run")


def test_a_flood_of_bombs_costs_a_bounded_time_in_all_and_spares_the_others() -> None:
    reward = Maths(timeout=20.0, cpu=1.0, total=1.0)
    bombs = [f"${n}!!$" for n in range(12, 18)]
    began = children_time()
    grades, failures = ask(reward, group("4", *bombs, "4"))
    assert grades == [{"maths": 0.0}] * 6 + [{"maths": 1.0}]
    assert sum("more than 1 s" in t for t in failures) in (1, 2)
    assert sum("more than 0.1 s" in t for t in failures) in (4, 5)
    again, _ = ask(reward, group("4", *bombs[:3], "4"))
    assert again == [{"maths": 0.0}] * 3 + [{"maths": 1.0}]
    reward.observe(Committed(0))
    assert "more than 1 s" in ask(reward, group("4", bombs[-1]))[1][0] or "more than 1 s" in failures[5]
    reward.close()
    spent = children_time() - began
    assert spent < 12  # of processor time, the start of two judges with it


def children_time() -> float:
    return os.times().children_user + os.times().children_system


def test_the_child_has_its_limits() -> None:
    resource = pytest.importorskip("resource")
    reward = Maths(memory=1024, timeout=20.0)
    reward.judge("4", "4")
    if hasattr(resource, "prlimit"):
        assert resource.prlimit(process(reward).pid, resource.RLIMIT_AS) == (1 << 30, 1 << 30)
        assert resource.prlimit(process(reward).pid, resource.RLIMIT_FSIZE) == (0, 0)
    reward.close()


def test_the_child_ends_with_its_parent() -> None:
    code = (
        "from shuhari.rewards.maths import Maths\nm = Maths()\nm.judge('4', '4')\n"
        "print(m._pool.children[0].process.pid)"
    )
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

    def parse_dollars(text: str, **_: Any) -> list[Any]:
        return parse(text.strip("$"))

    texts = ("2", "22", "huge", "odd")
    said = {text: maths_child.grade([text], "1", parse_dollars, verify) for text in texts}
    assert said["2"] == {"grade": 1.0} and said["22"] == {"grade": 0.0}
    assert maths_child.grade(["2", "2"], "1", parse_dollars, verify) == {"grade": 1.0}
    assert maths_child.grade(["2", "22"], "1", parse_dollars, verify) == {"grade": 0.0}  # each side is asked
    assert maths_child.grade([], "1", parse_dollars, verify) == {"grade": 0.0}
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
    print(json.dumps(replies[r["answers"][0]]), flush=True)
""")
    monkeypatch.setattr("shuhari.rewards.maths.CHILD", child)
    reward = Maths(timeout=20.0)
    assert reward.judge("alone", "1") == 1.0  # without our paths and environment
    for bad in ("forged", "list"):  # a reply that is not the one to this request ends the child
        with pytest.raises(JudgeError, match="no reply"):
            reward.judge(bad, "1")
        assert reward._pool.children[0].process is None
    with pytest.raises(Exceeded, match="2048 MiB"):
        reward.judge("huge", "1")
    assert reward.judge("alone", "1") == 1.0
    reward.close()


@pytest.mark.parametrize(("fields", "message"), [({"timeout": 0}, "timeout is 0"), ({"memory": 8}, "256 or more")])
def test_bad_settings(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Maths(**fields)
