"""Protocols: what they hang on, which seeds they use, and whether git holds them."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from shuhari.claims.claim import FIRST, Claim, read
from shuhari.claims.protocol import find_commit, find_mark, first_seed, protocol_of

RECIPE = """extends = "baselines/bandit"
part.policy.optimiser.lr = 0.3
[claim]
says = "a larger step learns sooner"
budget = {steps = 40}
baseline.part.policy.optimiser.lr = 0.02
check = [
  {role = "premise", metric = "reward/mean:last=5", against = 1.0, direction = "down"},
  {role = "headline", metric = "reward/mean:area", direction = "up", margin = 0.2},
]
"""


def claim(tmp_path: Path, old: str = "", new: str = "") -> Claim:
    path = tmp_path / "own.toml"
    path.write_text(RECIPE.replace(old, new) if old else RECIPE)
    return read(str(path))


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ("sooner", "earlier", True),
        ("budget =", 'notes = ["tried on the baseline"]\nbudget =', True),
        ("margin = 0.2", "margin = 0.1", False),
        ("baseline.part.policy.optimiser.lr", "settings.threads = 1\nbaseline.part.policy.optimiser.lr", True),
        ("budget =", "settings.part.policy.epochs = 2\nbudget =", False),
        ("steps = 40", "steps = 41", False),
        ("lr = 0.3", "lr = 0.2", False),
        ("lr = 0.02", "lr = 0.03", False),
        ("against = 1.0", "against = 0.9", False),
        ("budget =", "looks = [12]\nbudget =", False),
    ],
)
def test_a_protocol_is_all_that_decides_and_no_words(tmp_path: Path, old: str, new: str, same: bool) -> None:
    assert (find_mark(claim(tmp_path)) == find_mark(claim(tmp_path, old, new))) is same


def result(mark: str, first: int, last: int, *more: Any) -> dict[str, Any]:
    history = [*more, {"protocol": mark, "used": [first, last], "seeds": last - first + 1}]
    return {"protocol": {"hash": mark}, "seeds": list(range(first, last + 1)), "history": history}


OLD = {"seeds": 8}  # of the older rule, from FIRST


def test_after_a_change_seeds_go_on_from_the_last_used() -> None:
    assert first_seed("a", None) == FIRST == 1000
    assert first_seed("a", result("a", 1003, 1010)) == 1003  # of the same: measured anew
    assert first_seed("b", result("a", 1003, 1010)) == 1011
    assert first_seed("b", {"seeds": list(range(1000, 1008)), "history": [OLD]}) == 1008
    back = result("b", 1008, 1012, OLD, {"protocol": "a", "used": [1013, 1024], "seeds": 12})
    assert first_seed("a", back) == 1025
    untested = {"protocol": {"hash": "a"}, "seeds": [], "history": [{"protocol": "a", "used": [], "seeds": 0}]}
    assert first_seed("a", untested) == first_seed("b", untested) == 1000


def test_a_fourth_protocol_is_exploratory(tmp_path: Path) -> None:
    own, seen = claim(tmp_path), [OLD]
    for tries, mark in enumerate(["x", "y", "z"], start=1):
        found = protocol_of(own, None, result(mark, 1000, 1004, *seen))
        seen.append({"protocol": mark, "used": [1000, 1004], "seeds": 5})
        assert found.tries == tries + 1 and found.first == 1008
        assert any("at most 3 count" in why for why in found.exploratory) == (found.tries > 3)
    again = protocol_of(own, None, result(find_mark(own), 1000, 1004))
    assert again.tries == 1


def git(at: Path, *words: str) -> None:
    who = ("-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false")
    subprocess.run(["git", "-C", str(at), *who, *words], check=True, capture_output=True)


def test_git_must_hold_the_protocol_as_it_stands(tmp_path: Path) -> None:
    own = claim(tmp_path)
    assert find_commit(own) == ("", "its protocol is in no git repository")
    git(tmp_path, "init", "-q")
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "first")
    assert find_commit(own) == ("", "own.toml is not committed as it stands")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "second")
    commit, why = find_commit(own)
    assert len(commit) == 12 and why == "" and protocol_of(own, None, None).exploratory == ()
    assert find_commit(claim(tmp_path, "sooner", "earlier")) == (commit, "")
    assert find_commit(claim(tmp_path, "0.2}", "0.1}"))[0] == ""
    own, card = claim(tmp_path), tmp_path / "card.json"
    card.write_text("{}")
    assert find_commit(own, [card]) == ("", "card.json is not committed as it stands")
