"""Whatever a run holds, its names too, no command writes a character that a terminal obeys, nor a cell that a
spreadsheet does."""

from __future__ import annotations

import ast
import csv
import io
import json
import logging
import re
import sqlite3
import tomllib
import unicodedata
import warnings
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shuhari.desk import cli
from shuhari.desk.cli.text import make_text, note, print_json, print_table, printable_log, say
from shuhari.kernel.printable import make_cell
from shuhari.store import Run, finding
from shuhari.store.rollouts import make_row
from shuhari.store.rows import write_rows
from shuhari.store.schema import FILE

from .conftest import Done

# cursor up, a title, the clipboard, CSI as one character, the start of the line, from right to left, another line
ODD = "\x1b[2A\x1b]0;evil\x07\x1b]52;c;ZXZpbA==\x1b\\\x9b2J\rover\u202e\u2066\u200f\u2028\x7f\x08"
NAME = f"=cmd{ODD}"


WRITES = re.compile(r"print|typer\.(echo|secho)|sys\.(stdout|stderr)|.*\.print_exception|rich\.(console|text)\..*")


def find_raw(text: str) -> set[str]:
    return {c for c in text if c != "\n" and unicodedata.category(c) in ("Cc", "Cf", "Zl", "Zp", "Cs")}


def spoil(path: Path) -> None:
    """Let every name and text that a run has stored be hostile."""
    recipe = tomllib.loads((path / "recipe.toml").read_text())
    text = (path / "recipe.toml").read_text()
    odd = json.dumps(NAME)
    text = re.sub(rf'^name = "{re.escape(recipe["name"])}"', lambda _: f"name = {odd}", text, count=1, flags=re.M)
    text = re.sub(r"^seed = \d+", lambda _: f"seed = {odd}", text, count=1, flags=re.M)
    text = text.replace('"arithmetic"', odd)
    (path / "recipe.toml").write_text(text)
    (path / "tags.json").write_text(json.dumps([NAME]))
    groups = [g for step in (0, 1, 2, 3, 4) for g in Run(path).rollouts(step)]
    rows = [make_row(g["step"], {**g, "group": NAME, "why": NAME, "task": NAME, "problem": NAME,
                                 "trajectories": tuple(_spoil_episode(t) for t in g["trajectories"])})
            for g in groups]  # fmt: skip
    card = {"of": NAME, "mean": 1.0, "quantiles": [0, 0, 1, 1, 1], "weights": {NAME: 1.0}}
    told = {"episodes": 1, "transitions": 1, "return": card, "length": {"mean": 1}, "coverage": None, "digest": ODD}
    with closing(sqlite3.connect(path / FILE)) as db, db:
        steps = db.execute("select step, wall, metrics from steps").fetchall()
        for step, wall, metrics in steps:
            named = {**json.loads(metrics), f"loss/{NAME}": 1.0, NAME: 2.0}
            write_rows(db, "steps", [(step, NAME, wall, json.dumps(named))])
        db.execute("delete from rollouts")
        write_rows(db, "rollouts", rows)
        finding.rebuild(db)
        write_rows(db, "events", [(3, "problem", json.dumps(NAME)), (3, NAME, json.dumps(NAME))])
        write_rows(db, "meta", [("failed", json.dumps(NAME)), ("data", json.dumps({NAME: told}))])
        summary = json.loads((path / "summary.json").read_text())
        (path / "summary.json").write_text(json.dumps(_spoil_names(summary)))


def _spoil_names(value: Any) -> Any:
    if isinstance(value, dict):
        return {**{k: _spoil_names(v) for k, v in value.items()}, NAME: 1.0}
    return value


def _spoil_episode(trajectory: Any) -> Any:
    problem = replace(trajectory.request.problem, task=NAME, id=NAME, prompt=NAME, answer=NAME)
    steps = tuple(replace(s, info={**s.info, "text": NAME, NAME: NAME}, reward={**s.reward, NAME: 1.0})
                  for s in trajectory.steps)  # fmt: skip
    return replace(trajectory, request=replace(trajectory.request, problem=problem), steps=steps)


COMMANDS = [
    "show runs/s0", "show runs/s0 --json", "show runs/s0 --csv", "show runs/s0 --rollouts", "show runs/s0 --profile",
    "show runs/s0 --rollouts --json", "runs", "runs --json", "runs s0", "diagnose runs/s0", "diagnose runs/s0 --json",
    "doctor runs/s0", "regrade runs/s0 --reward length", "regrade runs/s0 --set reward.weights.score=2 --json",
    "what-if runs/s0@2", "compare runs/s0 runs/s1", "eval runs/s0", "export runs/s0 out", "train --run runs/s0",
    "train --run runs/s0 --dry-run", "board --json run?run=s0", "board --json runs?wait=true",
    "board --json rollouts?run=s0",
    "board --json curriculum?run=s0", "claim --card nosuch", "show runs/s0@x", "plan runs/s0", "runs s0 --tag x",
]  # fmt: skip


@pytest.fixture
def spoiled(home: Path) -> Path:
    for name in ("s0", "s1"):
        spoil(home / "runs" / name)
    return home


def test_no_command_writes_what_a_terminal_obeys(spoiled: Path, shuhari: Callable[..., Done]) -> None:
    """Also where it ends in an error that shows a name."""
    shown = 0
    named = ("show", "runs", "train", "tasks", "methods", "components", "--debug train", "show --")
    own = [f"{command} {NAME}" for command in named]
    for command in (*COMMANDS, *own):
        done = shuhari(*command.split(" "))
        assert not find_raw(done.out) and not find_raw(done.err), command
        shown += "\\x1b" in done.out + done.err or "\\u001b" in done.out + done.err
    assert shown > 12, "names were there to be shown"


def test_names_are_shown_by_what_prints_them(spoiled: Path, shuhari: Callable[..., Done]) -> None:
    for command, words in (("show runs/s0", 9), ("show runs/s0 --rollouts", 9), ("show runs/s0 --csv", 4), ("runs", 3)):
        done = shuhari(*command.split(" "))
        assert done.code == 0 and (done.out + done.err).count(r"\x1b]0;evil\x07") >= words, command
    found = json.loads(shuhari("show", "runs/s0", "--json").out)
    assert found["metrics"][NAME][-1] == 2.0, "JSON says the same, spelled out"


def test_cells_are_no_formulas(spoiled: Path, shuhari: Callable[..., Done]) -> None:
    rows = list(csv.reader(io.StringIO(shuhari("show", "runs/s0", "--csv").out)))
    assert len(rows) == 5 and len({len(row) for row in rows}) == 1
    texts = [cell for row in rows for cell in row if not re.fullmatch(r"-?[\d.e+-]+|nan|-?inf|", cell)]
    assert texts and not [cell for cell in texts if cell[0] in "=+-@\t\r"]
    assert [make_cell(x) for x in ("=1", "+1", "-a", "@x", "a=1", -1.5, None, "\t=1", "a\nb")] == [
        "'=1", "'+1", "'-a", "'@x", "a=1", -1.5, "", "\\t=1", "a\\nb"]  # fmt: skip


def test_what_all_printing_goes_through_makes_it_printable(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    say(ODD)
    note(ODD)
    print_json({ODD: [ODD]})
    print_table([ODD, "b"], [(ODD, 1)], title=ODD)
    log = logging.Logger("no handler of its own")
    with printable_log():
        log.warning("%s", ODD)
        log.warning("%s", warnings.formatwarning(ODD, UserWarning, "x", 1))
    out, err = capsys.readouterr()
    assert not find_raw(out) and not find_raw(err) and err.count(r"\x1b") > 6
    assert not find_raw(make_text(ODD).plain)


def test_a_warning_of_gymnasium_is_one_line_and_told_once() -> None:
    text = "\x1b[33mWARN: Hopper-v4 is out of date.\x1b[0m"
    with printable_log():
        told = [warnings.formatwarning(text, DeprecationWarning, f"{i}.py", 1) for i in range(2)]
        other = warnings.formatwarning("of another library", UserWarning, "x.py", 1)
    assert told == ["warning: Hopper-v4 is out of date.\n", ""]
    assert other.startswith("x.py:1: UserWarning: of another library")


def test_no_command_prints_by_another_way() -> None:
    """`text` has the functions that print; nothing else of the command line names what writes to a terminal."""
    folder, found = Path(cli.__file__).parent, []
    for path in sorted(folder.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            name = ast.unparse(node) if isinstance(node, ast.Attribute | ast.Name) else ""
            if isinstance(node, ast.ImportFrom):
                name = f"{node.module}." + ",".join(a.name for a in node.names)
            if WRITES.fullmatch(name) and path.name != "text.py":
                found.append(f"{path.name}: {name}")
    assert not found
