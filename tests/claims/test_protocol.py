"""Protocols: what they hang on, which seeds they use, and whether git holds them."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shuhari.config.overlay import RecipeError
from shuhari.lab.claims.claim import FIRST, Claim, read
from shuhari.lab.claims.making import plan_card
from shuhari.lab.claims.protocol import choose_card, find_commit, find_first_seed, find_mark, find_protocol, prepare
from shuhari.lab.claims.result import compute_hashes, find_modules

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


def result(mark: str, first: int, last: int, *more: Any, tries: int = 1, commit: str = "abc") -> dict[str, Any]:
    history = [*more, {"protocol": mark, "used": [first, last], "seeds": last - first + 1}]
    protocol = {"hash": mark, "tries": tries, "commit": commit, "why": "" if commit else "not then"}
    seeds = list(range(first, last + 1))
    return {"protocol": protocol, "seeds": seeds, "history": history, "hashes": {"modules": {"own": "1"}}}


OLD = {"seeds": 8}  # of the older rule, from FIRST
NOW = {"own": "1", "other": "2"}


def test_a_try_goes_on_from_the_last_seed_that_was_used(tmp_path: Path) -> None:
    assert find_first_seed(None) == FIRST == 1000
    assert find_first_seed(result("a", 1003, 1010)) == 1011
    assert find_first_seed({"seeds": list(range(1000, 1008)), "history": [OLD]}) == 1008
    assert find_first_seed(result("b", 1008, 1012, OLD, {"protocol": "a", "used": [1013, 1024], "seeds": 12})) == 1025
    own = claim(tmp_path)
    again = find_protocol(own, None, result(find_mark(own), 1003, 1010), NOW)
    assert (again.tries, again.first, again.exploratory) == (1, 1003, ())  # the same, measured anew
    untested = result(find_mark(own), 1000, 999)
    untested["history"][0] |= {"used": [], "seeds": 0}
    assert (
        find_protocol(own, None, untested, NOW).first
        == find_protocol(claim(tmp_path, "41", "42"), None, untested).first
    )


def test_every_run_on_seeds_of_its_own_is_a_try(tmp_path: Path) -> None:
    """Back and forth between two protocols: what was tried before is not had for nothing."""
    one, two = claim(tmp_path), claim(tmp_path, "0.2}", "0.1}")
    before, seen = result("x", 1000, 1004, OLD), list[tuple[int, int]]()
    for own in (one, two, one, one):
        found = find_protocol(own, None, before, NOW)
        seen.append((found.tries, found.first))
        more = before["history"]
        before = result(found.mark, found.first, found.first + 4, *more, tries=found.tries, commit=found.commit)
        assert any("at most 3 count" in why for why in found.exploratory) == (found.tries > 3)
    assert seen == [(3, 1008), (4, 1013), (5, 1018), (5, 1018)]  # the run by the older rule is one too


def test_another_version_of_the_methods_code_is_another_try(tmp_path: Path) -> None:
    own = claim(tmp_path)
    before = result(find_mark(own), 1000, 1004)
    assert find_protocol(own, None, before, NOW | {"other": "3"}).first == 1000
    changed = find_protocol(own, None, before, NOW | {"own": "3"})
    assert (changed.tries, changed.first) == (2, 1005)


def test_what_was_not_committed_when_it_ran_is_not_made_good_by_committing_it(tmp_path: Path) -> None:
    own = claim(tmp_path)
    early = find_protocol(own, None, None, NOW)
    assert early.exploratory == ("its protocol is in no git repository",)
    before = result(early.mark, 1000, 1004, commit="")
    assert find_protocol(own, None, before, NOW).exploratory == ("not then",)
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "first")
    late = find_protocol(own, None, before, NOW)
    assert (late.tries, late.first, late.exploratory) == (2, 1005, ())  # other seeds, and one more try
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "second")
    kept = find_protocol(own, None, result(late.mark, 1005, 1009, tries=2, commit=late.commit), NOW)
    assert kept == late  # HEAD is another now


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
    assert len(commit) == 12 and why == "" and find_protocol(own, None, None).exploratory == ()
    assert find_commit(claim(tmp_path, "sooner", "earlier")) == (commit, "")
    assert find_commit(claim(tmp_path, "0.2}", "0.1}"))[0] == ""
    own, card = claim(tmp_path), tmp_path / "card.json"
    card.write_text("{}")
    assert find_commit(own, [card]) == ("", "card.json is not committed as it stands")


def test_git_must_hold_what_it_extends_and_what_its_arms_do(tmp_path: Path) -> None:
    """The claim's own file is as it was."""
    below, arm = tmp_path / "below.toml", tmp_path / "arm.toml"
    for path, lr in ((below, 0.3), (arm, 0.02)):
        path.write_text(f'extends = "baselines/bandit"\npart.policy.optimiser.lr = {lr}\n')
    text = RECIPE.replace('"baselines/bandit"', f'"{below.name}"').replace(
        "baseline.part.policy.optimiser.lr = 0.02", f'baseline = "{arm}"'
    )
    (tmp_path / "own.toml").write_text(text.replace("part.policy.optimiser.lr = 0.3\n", ""))
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "first")
    assert find_commit(read(str(tmp_path / "own.toml")))[1] == ""
    for path in (below, arm):
        before = path.read_text()
        path.write_text(before + "threads = 1\n")
        told = f"{path.name} is not committed as it stands"
        assert find_commit(read(str(tmp_path / "own.toml"))) == ("", told)
        path.write_text(before)


METHOD = """on = "beds/trie/easy"
part.policy.terms.loss = {use = "clip", high = 0.4}
[paper]
title = "x"
[claim]
says = "a higher bound"
warm = "warm-up"
budget = {steps = 80}
check = [
  {role = "premise", metric = "evaluate/exact.mean:area", against = 1.0, direction = "down"},
  {role = "headline", metric = "evaluate/exact.mean:area", direction = "up", margin = 0.2},
]
"""


def test_a_card_tells_of_the_bed_alone(tmp_path: Path) -> None:
    """A claim that states another baseline has none, one whose baseline is the bed needs one that is up to date."""
    bed = plan_card("beds/trie/easy")
    run = {"curves": {}, "cpu_s": []}
    card = {"format": 1, "bed": "trie/easy", "budget": {"steps": 80}, "seeds": [], "arms": {"baseline": run}}
    where = tmp_path / "trie" / "easy.json"
    where.parent.mkdir()

    def chosen(settings: str = "", **changes: Any) -> bool:
        (tmp_path / "own.toml").write_text(METHOD.replace("check =", f"{settings}\ncheck ="))
        where.write_text(json.dumps({**card, "hashes": compute_hashes(bed), **changes}))
        one = read(str(tmp_path / "own.toml"))
        return choose_card(one, find_modules(one), tmp_path) is not None

    assert chosen() and chosen("settings.threads = 1")  # as it is
    higher = 'baseline = {extends = "method", part.policy.terms.loss.high = 0.3}'
    for other in ("settings.part.policy.minibatches = 2", higher):
        assert not chosen(other)
    with pytest.raises(RecipeError, match=r"its budget is .* makes it anew"):
        chosen(budget={"steps": 70})


def test_a_premise_about_an_arm_that_only_a_card_has_needs_the_card(tmp_path: Path) -> None:
    own = claim(tmp_path, "budget =", 'bed = "baselines/bandit"\nbudget =')
    premise = replace(own.checks[0], rule=replace(own.checks[0].rule, arm="control", against="baseline"))
    with pytest.raises(RecipeError, match="no arm 'control' in the claim; there is no card of baselines/bandit"):
        prepare(replace(own, checks=(premise, *own.checks[1:])), None, NOW)
