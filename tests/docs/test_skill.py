"""SKILL.md, which tells a coding agent how to work: each of its commands is run, in its order, in a folder of its own.

Trainings are made small; what a command costs otherwise is as the page has it.
"""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from shuhari.desk.board.views import VIEWS
from shuhari.desk.cli import main

PAGE = (Path(__file__).parents[2] / "SKILL.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```bash\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINES = [shlex.split(line) for text in BLOCK.findall(PAGE) for line in text.splitlines()]
SMALL = ("steps=2", 'remove=["stage.warm-up"]', "evaluate.every=1", "evaluate.n=4", "rollout.n=2", "buffer.size=4",
         "rollout.sampling.max_new=4",
         *(f"models.policy.{size}" for size in ("hidden=16", "layers=1", "heads=2")))  # fmt: skip
OTHERS = ("python3", "pip")  # begin lines that no test runs


def shorten(argv: list[str]) -> list[str]:
    """A command with a small model and budget in the place of its own."""
    if argv[0] != "train" or "--dry-run" in argv:
        return argv
    sets = [word for text in SMALL for word in ("--set", text)]
    return [*argv, *sets]


def test_every_command_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    ours = [argv for program, *argv in LINES if program == "shuhari"]
    assert len(ours) > 20 and {program for program, *_ in LINES} <= {"shuhari", *OTHERS}
    for argv in ours:
        capfd.readouterr()
        with pytest.raises(SystemExit) as end:
            main(shorten(argv))
        out, err = capfd.readouterr()
        assert not end.value.code, f"{shlex.join(argv)}: {err}"
        if "--json" in argv:
            assert json.loads(out), shlex.join(argv)
    assert (tmp_path / "compare.svg").is_file()


def test_it_is_short_and_has_a_head() -> None:
    head = re.match(r"---\nname: (\w+)\ndescription: (.+)\n---\n", PAGE)
    assert head is not None and head[1] == "shuhari" and len(head[2]) < 1024
    assert len(PAGE.splitlines()) <= 150


def test_addresses_of_its_table_are_there() -> None:
    from shuhari.desk.board.asking import read_query

    found = re.findall(r"^\| `(\w+)\?([^`]+)` \|", PAGE, re.MULTILINE)
    assert len(found) > 5
    for name, query in found:
        given: dict[str, list[str]] = {}
        for key, _, value in (part.partition("=") for part in query.split("&")):
            given.setdefault(key, []).append(value)
        assert read_query(VIEWS[name], given)
