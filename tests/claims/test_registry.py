"""The registry of protocols: a chain that breaks where a line is changed, and one line a try."""

from __future__ import annotations

import hashlib
import json
from multiprocessing import get_context
from pathlib import Path

import pytest

from shuhari.config.overlay import RecipeError
from shuhari.lab.claims.kept_results import find_results
from shuhari.lab.claims.registry import FILE, KEYS, START, digest_line, read, register


def begin(file: Path, name: str, number: int = 1) -> str:
    return register(file, name, {"hash": "ab", "tries": number}, range(1000, 1005))


def test_a_line_holds_the_digest_of_the_one_before(tmp_path: Path) -> None:
    file = tmp_path / FILE
    assert read(file) == []
    first = begin(file, "rlvr/x")
    second = begin(file, "rlvr/x", 2)
    assert begin(file, "rlvr/x") == first and len(read(file)) == 2  # a try that goes on has its line
    lines = file.read_text().splitlines()
    assert first == hashlib.blake2b(lines[0].encode(), digest_size=8).hexdigest() == digest_line(lines[0] + "\n")
    assert [json.loads(text)["previous"] for text in lines] == [START, first]
    assert [line["digest"] for line in read(file)] == [first, second]
    assert json.loads(lines[0]).keys() == {*KEYS} and json.loads(lines[0])["seeds"] == [1000, 1004]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda lines: [lines[0].replace("1004", "1005"), *lines[1:]], "line 2: previous is"),
        (lambda lines: lines[1:], "line 1: previous is"),
        (lambda lines: [lines[1], lines[0], lines[2]], "line 1: previous is"),
        (lambda lines: [*lines, "{}"], "line 4: without date, claim"),
        (lambda lines: [*lines, "{"], "line 4: .*expected a JSON object"),
    ],
)
def test_a_chain_that_was_changed_is_refused(tmp_path: Path, change, told: str) -> None:
    file = tmp_path / FILE
    for name in ("rlvr/x", "rlvr/y", "rlvr/z"):
        begin(file, name)
    file.write_text("\n".join(change(file.read_text().splitlines())) + "\n")
    with pytest.raises(RecipeError, match=told):
        read(file)
    with pytest.raises(RecipeError, match=told):
        begin(file, "rlvr/a")


def _append(file: str, name: str) -> None:
    for number in range(1, 6):
        begin(Path(file), name, number)


def test_processes_take_turns(tmp_path: Path) -> None:
    file, team = tmp_path / FILE, get_context("spawn")
    running = [team.Process(target=_append, args=(str(file), f"rlvr/{name}")) for name in "abc"]
    for one in running:
        one.start()
    for one in running:
        one.join(60)
    assert len(read(file)) == 15


def test_the_registry_that_is_published_is_a_chain_in_the_order_of_its_dates() -> None:
    lines = read(find_results().parent / FILE)
    assert [line["date"] for line in lines] == sorted(line["date"] for line in lines)
