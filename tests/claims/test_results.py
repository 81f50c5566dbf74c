"""The results that are kept: of the recipes and modules as they are, within the bar, and judged by the rule."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import pytest

from shuhari.config.library import list_names
from shuhari.config.overlay import format_path, look_up, walk_leaves
from shuhari.config.recipe import load
from shuhari.config.settings import Settings
from shuhari.lab.claims.cards import judge_premise
from shuhari.lab.claims.claim import Claim, read
from shuhari.lab.claims.curve import Reading
from shuhari.lab.claims.digest import compute_digest
from shuhari.lab.claims.gaps import find_gaps, is_solvable
from shuhari.lab.claims.guards import GUARD_WORDS
from shuhari.lab.claims.kept_results import find_results, read_result
from shuhari.lab.claims.knobs import AHEAD, UNEQUAL, UNTRIED, is_untried
from shuhari.lab.claims.looks import compute_levels, compute_mde
from shuhari.lab.claims.protocol import choose_card
from shuhari.lab.claims.quantities import REST
from shuhari.lab.claims.result import find_modules, find_stale
from shuhari.lab.claims.verdict import (
    HELD,
    Because,
    Effect,
    Headline,
    Rule,
    Verdict,
    join_comparisons,
    join_reasons,
)

CLAIMS = [name for name in list_names() if load(name).tree.get("claim")]
RESULTS = [p.relative_to(find_results()).with_suffix("").as_posix() for p in sorted(find_results().rglob("*.json"))]
HELD_TO_A_GUARD = [name for name in RESULTS if any("guard" in r for r in (read_result(name) or {}).get("rivals", ()))]
BEGIN, CHANCE = (0.1, 0.6), 0.2  # what a warm start scores, and less than which an untrained policy should


@cache
def stated(name: str, smoke: bool = False) -> Claim:
    """Read once, for all tests here."""
    return read(name, smoke=smoke)


@pytest.mark.parametrize("smoke", [False, True], ids=["full", "smoke"])
@pytest.mark.parametrize("name", CLAIMS)
def test_a_claim_can_be_read(name: str, smoke: bool) -> None:
    claim = stated(name, smoke)
    assert claim.says and claim.method.tree["paper"]["title"]
    both = ((arm, claim.warm.get(name)) for name, arm in claim.arms.items())  # what it does, and how it was prepared
    arms = [(compute_digest(arm), warm and compute_digest(warm)) for arm, warm in both]
    assert len({*arms}) == len(arms), "an arm that is another's copy"
    for check in claim.checks:
        Settings().make_component("quantity", check.quantity, name, "metric")


@pytest.mark.parametrize("name", CLAIMS)
def test_what_a_claim_sets_for_all_arms_is_overridden_by_no_method(name: str) -> None:
    claim, table = stated(name), load(name).tree["claim"]
    settings = {k: v for k, v in table.get("settings", {}).items() if k != "stage"}
    for arm, recipe in claim.arms.items():
        own = table.get("baseline") if arm == "baseline" else table.get("arms", {}).get(arm)
        for path, value in walk_leaves(settings):
            if look_up(own, path) is None:
                assert look_up(recipe.stages[-1], path) in (None, value), f"{arm}: {format_path(path)} of the method"


@pytest.mark.parametrize("name", CLAIMS)
def test_a_card_can_tell_what_premises_ask_of_it(name: str) -> None:
    claim = stated(name)
    card = choose_card(claim, find_modules(claim))
    for i in claim.find_checks("premise") if card else ():
        check = claim.checks[i]
        if check.trains and card.arms.keys() >= {*check.arms}:
            quantity = Settings().make_component("quantity", check.quantity, name, "metric")
            judge_premise(check, i, quantity, {arm: card.read_runs(arm) for arm in check.arms})


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_is_of_the_claim_as_it_stands_or_says_that_it_is_not(name: str) -> None:
    found = kept(name)
    assert found.get("stale") or find_stale(stated(name), found) == "", f"shuhari claim --prove {name}"


@pytest.mark.parametrize("name", RESULTS)
def test_a_headline_follows_from_the_values(name: str) -> None:
    found = kept(name)
    solvable = is_solvable(stated(name).checks)
    effects = {i: again(c, solvable) for i, c in enumerate(found["checks"]) if "values" in c}
    for i, (rule, effect) in effects.items():
        scale = max(abs(v) for side in found["checks"][i]["values"].values() for v in side if v is not None)
        scale = max(scale, abs(rule.against)) if not isinstance(rule.against, str) else scale
        said = [found["checks"][i][k] for k in ("effect", "low", "high")]
        assert [effect.value, effect.low, effect.high] == pytest.approx(said, abs=1e-4 * max(scale, 1e-9)), rule
    premises = [(r, e) for r, e in effects.values() if r.role == "premise"]
    met = all(r.judge(e) is Verdict.HOLDS for r, e in premises)
    acts = all(r.judge(e) is Verdict.HOLDS for r, e in effects.values() if r.role == "dose")
    if found["verdict"] == Headline.UNTESTED:
        assert not found["premise"]["met"] and (not met or not acts or not found["premise"]["planned"]["met"])
        assert "values" not in found["checks"][found["headline"]["check"]]
    else:
        assert met and found["premise"]["met"]
        rule, effect = effects[found["headline"]["check"]]
        guards = [r.judge(e) for r, e in effects.values() if r.role == "guard"]
        detectable = compute_mde(effect.sd, found["looks"], rule.direction)
        assert found["mde"]["achieved"] == pytest.approx(detectable, rel=0.02)
        words = []
        for i, (r, e) in effects.items():
            if r.role in ("headline", "rival"):
                check = found["checks"][i]
                own = [again_guard(found, check["guard_ours"], solvable)] if "guard_ours" in check else guards
                word = r.judge_headline(e, compute_mde(e.sd, found["looks"], r.direction), *own)
                unequal = check.get("why") in (UNTRIED, UNEQUAL)
                assert not unequal or word in AHEAD
                untried = word in AHEAD and is_untried(stated(name), i)
                assert found.get("stale") or (check.get("why") == UNTRIED) == untried
                words.append(Headline.OPEN if unequal else word)
        assert words == [one["word"] for one in found["rivals"]] or found["kind"] == "simulated"
        counted = [word for word, one in zip(words, found["rivals"], strict=False) if not one.get("aside")] or words
        assert join_comparisons(counted) == found["verdict"] == found["history"][-1]["verdict"]
        level = dict(zip(found["looks"], compute_levels(found["looks"]), strict=True))[len(found["seeds"])]
        assert found["headline"]["level"] == level
        reasons = join_reasons(r.judge(e) for r, e in effects.values() if r.role == "because")
        assert found["because"] == (reasons if found["verdict"] in HELD else Because.UNASKED)


@pytest.mark.parametrize("name", HELD_TO_A_GUARD)
def test_a_rival_is_held_to_the_guard(name: str) -> None:
    """The guard of each rival follows from its values, and only one that fails it is set aside."""
    found, solvable = kept(name), is_solvable(stated(name).checks)
    guard = next(check for check in found["checks"] if check["role"] == "guard")
    for check, one in ((c, c["guard"]) for c in found["checks"] if "guard" in c):
        assert GUARD_WORDS[again_guard(found, one, solvable)] == one["verdict"]
        ours = check.get("guard_ours", guard)["verdict"]
        aside = one["verdict"] == "fails" and ours == "kept" and check["verdict"] not in HELD
        rival = next(rival for rival in found["rivals"] if rival["name"] == check["against"])
        told = (rival["guard"], rival["aside"], check["aside"])
        assert found.get("stale") or told == (one["verdict"], aside, aside)


def again_guard(found: dict[str, Any], one: dict[str, Any], solvable: bool) -> Verdict:
    """The verdict of the guard with the values of another arm in the method's place."""
    guard = next(check for check in found["checks"] if check["role"] == "guard")
    rule, effect = again({**guard, "values": {**guard["values"], guard["arm"]: one["values"]}}, solvable)
    return rule.judge(effect)


def again(check: dict[str, Any], solvable: bool) -> tuple[Rule, Effect]:
    """The rule of a stored check, and the effect that its values give."""
    table = {k: check[k] for k in ("direction", "margin", "arm", "against", "factor", "role", "ratio") if k in check}
    rule = Rule(**table, range=tuple(check.get("range", ())))
    ours = numbers(check["values"][check.get("ours", rule.arm)])
    theirs = check["values"].get(rule.against)
    against = [float(rule.against)] * len(ours) if theirs is None else numbers(theirs)
    return rule, rule.estimate(ours, against, check["level"], solvable)


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_lists_what_its_claim_lacks(name: str) -> None:
    found = kept(name)
    assert found.get("stale") or set(find_gaps(stated(name))) <= {*found["gaps"]}


@pytest.mark.parametrize("name", RESULTS)
def test_values_are_those_of_the_curves(name: str) -> None:
    found = kept(name)
    amount = next(iter((found["budget"] or {"": math.nan}).values()))
    for check in found["checks"]:
        if check.get("use", "metric") != "metric" or "study" in load(name).tree:
            continue
        rest, reading = check["metric"].startswith(REST), Reading.of(check["metric"].removeprefix(REST))
        for arm, values in check.get("values", {}).items():
            if arm == "start" or check.get("card"):  # of a reading of its own, or of other runs
                continue
            for i, value in enumerate(numbers(values)):
                points = {m: found["arms"][arm]["curves"][m][i] for m in reading.names}
                xs = sorted({x for p in points.values() for x in p["x"]})
                columns = {m: [dict(zip(p["x"], p["y"], strict=True)).get(x) for x in xs] for m, p in points.items()}
                read = reading(columns, xs, {}, amount)
                assert (1 - read if rest else read) == pytest.approx(value, rel=1e-3, nan_ok=True)


@pytest.mark.parametrize("name", RESULTS)
def test_no_claim_sits_at_the_floor_or_the_ceiling(name: str) -> None:
    found = kept(name)
    if "mean" in found["chance"] and not found.get("bed"):  # a warm-started policy whose answers are sampled and scored
        assert found["chance"]["mean"] < CHANCE
        starts = [start["mean"] for start in found["start"].values() if start]
        assert all(BEGIN[0] <= s <= BEGIN[1] for s in starts) and max(starts) - min(starts) < 0.02


def kept(name: str) -> dict[str, Any]:
    found = read_result(name)
    assert found is not None
    return found


def numbers(values: list[float | None]) -> list[float]:
    return [math.nan if v is None else v for v in values]
