"""Tries that have begun: what the next one goes on from, and what a result says of those that were given up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shuhari.config.overlay import RecipeError
from shuhari.lab.claims.tries import Begun, file_of


def protocol(number: int, mark: str = "a") -> dict[str, Any]:
    return {"hash": mark, "tries": number, "commit": "abc", "why": ""}


BEFORE = {"verdict": "open", "history": [{"verdict": "open", "seeds": 8}, {"verdict": "open", "try": 1, "seeds": 5}]}


def test_a_try_is_written_down_once_and_is_what_the_next_goes_on_from(tmp_path: Path) -> None:
    file = file_of("rlvr/x", tmp_path)
    assert file == tmp_path / "begun/rlvr/x.json"
    begun = Begun(file, BEFORE)
    assert begun.last() is BEFORE and begun.stopped(2) is BEFORE
    begun.write(protocol(1), [1000, 1001], {})  # which has ended
    assert not file.exists()
    for _ in range(2):
        begun.write(protocol(2, "b"), [1008, 1009], {"own": "1"})
    begun.write(protocol(3, "c"), [1010, 1011], {"own": "1"})
    last = Begun(file, BEFORE).last()
    assert last is not None and last["protocol"] == protocol(3, "c") and last["seeds"] == [1010, 1011]
    assert last["hashes"] == {"modules": {"own": "1"}}
    lines = [(h.get("try"), h["verdict"], h.get("used")) for h in last["history"]]
    assert lines[2:] == [(2, "stopped", [1008, 1009]), (3, "stopped", [1010, 1011])]
    ended = Begun(file, BEFORE).stopped(3)
    assert ended is not None and [h.get("try") for h in ended["history"]] == [None, 1, 2]
    assert ended["verdict"] == "open"


def test_what_has_ended_is_left_out_though_the_file_is_still_there(tmp_path: Path) -> None:
    """Killed after the result was written, and before the file went."""
    file = file_of("x", tmp_path)
    Begun(file).write(protocol(1), [1000, 1001], {})
    after = {"history": [{"try": 1, "verdict": "holds", "used": [1000, 1001], "seeds": 2}]}
    assert Begun(file, after).last() is after


def test_without_a_file_nothing_is_written() -> None:
    begun = Begun(None, BEFORE)
    begun.write(protocol(2), [1], {})
    assert begun.last() is BEFORE


def test_a_file_of_something_else_is_named(tmp_path: Path) -> None:
    file = file_of("x", tmp_path)
    file.parent.mkdir(parents=True)
    file.write_text("[3]")
    with pytest.raises(RecipeError, match=r"begun/x\.json is not a list of tries"):
        Begun(file).last()
