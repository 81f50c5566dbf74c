"""Every generator of reasoning-gym on offer: right, wrong and hostile answers; the same problem in any process."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from collections import deque
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from shuhari.config.build import build_stage
from shuhari.config.recipe import load
from shuhari.config.stage import Components
from shuhari.data import Problem
from shuhari.desk import api
from shuhari.tasks.reasoning.reasoning import ReasoningGym
from shuhari.tasks.reasoning.table import GRADING
from spoken import said

pytest.importorskip("reasoning_gym")

USABLE = [name for name, graded in GRADING.items() if graded.path != "refused"]
SEVERAL = {"boxnet", "graph_color", "modulo_grid"}  # a changed answer may be right too, or nothing is there to change
SLOW = {"futoshiki", "knight_swap", "puzzle24", "zebra_puzzles"}  # tenths of seconds for a problem
SMALL: dict[str, dict[str, int]] = {"sokoban": {"max_w": 8, "max_h": 8, "max_boxes": 5}}  # else seconds for a problem
SEPARATORS = ("|", ";", ", ", "\x08\x08", "\x00", "\u200b", "°", " & ", "~", "...", "_", " and ", "=", "->", "/", "\n#")
CANARY = "pwned_by_an_answer"
HOSTILE = (
    f"__import__('os').system('touch {CANARY}')",
    f"[__import__('pathlib').Path('{CANARY}').touch()]",
    f"().__class__.__base__.__subclasses__() or open('{CANARY}', 'w')",
    "9**9**9**9",
    "1e999999999",
    "10" * 500_000,
    "7" * 8000,
    "(" * 100_000,
    "[" * 8000,
    "¬" * 8000,
    "(" * 4000 + "1" + ")" * 4000,
    "A999999999 R999999999 A+999999999",
    "∨".join("abcdefghijklmnopqrstuvwxyz"),
    "+".join("x" * 1000),
    "*".join("X" * 1000),
    '{"a":' * 1300 + "1" + "}" * 1300,
    "\x00",
    "\ud800",
    "\u202e\x1b[2J",
    "nan",
    "[NaN, NaN, NaN]",
    "-inf",
    "1/0",
    "",
    " \n\t",
    "\n" * 8000,
    "move(" + ", " * 4000,
    "Move disk 1 from Peg 9 to Peg 8",
)


@cache
def made(name: str) -> tuple[ReasoningGym, Problem]:
    task = parts(name).task
    return task, task.problems("train")[0]


@cache
def parts(name: str) -> Components:
    """The components of `baselines/grpo` with this task."""
    config = {f"task.config.{k}": v for k, v in SMALL.get(name, {}).items()}
    settings = {"task.name": f"reasoning-gym/{name}", **config, "models.policy.hidden": 6}
    return build_stage(load("baselines/grpo", settings=settings).stages[-1])


def right(task: ReasoningGym, problem: Problem) -> str:
    """The truth; where an entry holds none, one found by search."""
    entry = task._entry(int(problem.id))
    if problem.solution is not None:
        return str(problem.solution)
    if task.path == "boxnet":
        return carried(entry["metadata"]["initial_state"])
    if task.path == "rush_hour":
        return driven(entry["metadata"]["board_config"])
    assert task.path in ("intermediate_integration", "knight_swap")
    return str(task._generator[int(problem.id)]["answer"])


def carried(state: dict[str, list[str]]) -> str:
    """Every box, one square a step, first along the rows and then along the columns, to its target."""
    plan = []
    for square, things in state.items():
        for box in [t for t in things if t.startswith("box_")]:
            goal = next(s for s, ts in state.items() if box.replace("box", "target") in ts)
            here, there = ([float(c) for c in s.split("_")] for s in (square, goal))
            for axis in (0, 1):
                while here[axis] != there[axis]:
                    before = list(here)
                    here[axis] += 1.0 if there[axis] > here[axis] else -1.0
                    plan.append({f"Agent{before}": f"move({box}, square{here})"})
            plan.append({f"Agent{here}": f"move({box}, {box.replace('box', 'target')})"})
    return json.dumps(plan)


def driven(board: str) -> str:
    """Breadth-first search over single moves of the cars on the 6 x 6 board."""
    start: dict[str, tuple[int, ...]] = {}
    for i, c in enumerate(board):
        if c not in "ox":
            start[c] = (*start.get(c, ()), i)
    walls = {i for i, c in enumerate(board) if c == "x"}
    names = sorted(start)
    first = tuple(start[n] for n in names)
    queue, seen = deque([(first, "")]), {first}
    while queue:
        cars, path = queue.popleft()
        if cars[names.index("A")][-1] == 17:  # the exit is at the end of the third row
            return path.strip()
        taken = walls.union(*cars)
        for i, cells in enumerate(cars):
            stride = cells[1] - cells[0]
            for sign in (1, -1):
                at = cells[-1] + stride if sign > 0 else cells[0] - stride
                inside = 0 <= at < 36 and (stride == 6 or at // 6 == cells[0] // 6)
                if not inside or at in taken:
                    continue
                moved = (*cars[:i], tuple(c + sign * stride for c in cells), *cars[i + 1 :])
                if moved not in seen:
                    seen.add(moved)
                    queue.append((moved, f"{path} {chr(65 + i)}{'+' if sign > 0 else '-'}1"))
    raise AssertionError(board)


def changed(text: str) -> str:
    """The text with its first digit or letter replaced by the next one."""
    at = re.search(r"[0-9A-Za-z]", text)
    assert at is not None
    c = at[0]
    other = str((int(c) + 1) % 10) if c.isdigit() else chr((ord(c) | 32) % 122 + 1) if c not in "zZ" else "a"
    return text[: at.start()] + other + text[at.end() :]


@pytest.mark.parametrize("name", USABLE)
def test_right_wrong_hostile(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    task, problem = made(name)
    truth = right(task, problem)
    assert task.grade(problem, said(truth)) == {"score": 1.0, "partial": 1.0}
    assert task.grade(problem, said(f" {truth}\n"))["score"] == 1.0
    for text in (f"{truth} or 13", f"13 or {truth}", f"junk {truth}", f"{truth} xyz"):  # a hedge, or junk around it
        assert task.grade(problem, said(text))["score"] == 0.0, text[:200]
    twice = f"{truth}, {truth}", f"{truth}\n{truth}", truth + truth
    for text in (*twice, *(t for m in SEPARATORS for t in (truth + m, f"{truth}{m}13", f"13{m}{truth}"))):
        constant = name.endswith("_integration") and text == f"{truth}/13"  # a part of C
        assert constant or task.grade(problem, said(text))["score"] == 0.0, text[:200]
    wrong = ["no idea", "-17.25", *([] if name in SEVERAL else [changed(truth)])]
    for text in wrong:
        assert task.grade(problem, said(text))["score"] == 0.0, text
    for text in HOSTILE:
        if text.strip() == truth.strip():
            continue
        grade = task.grade(problem, said(text))
        assert grade["score"] == 0.0, text[:80]
        assert 0 <= grade["partial"] < 1
    assert task.grade(problem, said(truth))["score"] == 1.0  # nothing of it changed the problem
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("name", USABLE)
def test_a_recipe_reads_it(name: str) -> None:
    """The default tokenizer, one token a character, reads the problems and gives them back."""
    task, problem = made(name)
    model = parts(name).models["policy"].model
    with torch.random.fork_rng():
        model.build(task)
    source = task.problems("train")
    first = [problem, *(source[i] for i in range(1, 1 if name in SLOW else 4))]
    for text in [str(p) for q in first for p in (q.prompt, q.answer, q.solution) if p is not None]:
        assert model.decode(model.encode(text)) == text
        assert len(model.encode(text)) == max(1, len(text))
    assert task.grade(problem, said(model.decode(model.encode("no idea"))))["score"] == 0.0


def test_a_prompt_that_is_too_long_says_what_to_set(tmp_path: Path) -> None:
    few = {"models.policy.hidden": 6, "models.policy.layers": 1, "models.policy.heads": 1}
    settings: dict[str, Any] = {
        "task.name": "reasoning-gym/rectangle_count",
        "task.test_size": 2,
        "buffer.size": 2,
        **few,
    }
    with pytest.raises((ValueError, RuntimeError), match=r"tokens: expected .*set `context` in \[models\.<role>\]"):
        api.train("baselines/grpo", tmp_path / "run", **settings)


def test_a_problem_is_its_row_in_every_process() -> None:
    """Strings hash otherwise there, and the global generators have been used otherwise."""
    code = (
        "import hashlib, json, sys\n"
        "from shuhari.tasks.reasoning.reasoning import ReasoningGym\n"
        "def told(n, config):\n"
        "    p = ReasoningGym(n, config).problems('train')[0]\n"
        "    return [p.id, hashlib.sha256(repr((p.prompt, p.answer, p.solution)).encode()).hexdigest()]\n"
        "print(json.dumps({n: told(n, c) for n, c in json.loads(sys.argv[1]).items()}))"
    )
    env = os.environ | {"PYTHONHASHSEED": "12345"}
    shown = subprocess.run(
        [sys.executable, "-c", code, json.dumps({n: SMALL.get(n, {}) for n in USABLE})],
        env=env,
        capture_output=True,
        text=True,
        check=True,
    )
    there: dict[str, Any] = json.loads(shown.stdout)
    for name in USABLE:
        p = made(name)[1]
        digest = hashlib.sha256(repr((p.prompt, p.answer, p.solution)).encode()).hexdigest()
        assert there[name] == [p.id, digest], name
