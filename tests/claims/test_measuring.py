"""Claims by roles end to end, on a bandit: what is run at all, when it ends, and what the result says."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from in_process import stay_in_process
from shuhari.config.overlay import RecipeError
from shuhari.lab.claims import runs
from shuhari.lab.claims.claim import read
from shuhari.lab.claims.measure import measure
from shuhari.lab.claims.result import compute_hashes, find_stale
from shuhari.lab.claims.tries import count_tries
from shuhari.lab.claims.wording import describe_verdict

RECIPE = """extends = "baselines/bandit"
part.policy.optimiser.lr = 0.3
[claim]
says = "a larger step learns sooner"
budget = {steps = 12}
settings.evaluate = {every = 0, n = 0}
baseline.part.policy.optimiser.lr = 0.02
arms.half.part.policy.optimiser.lr = 0.1
check = [
  {role = "premise", metric = "reward/mean:last=5", against = 1.0, direction = "down"},
  {role = "headline", metric = "reward/mean:area", direction = "up", margin = 0.05},
  {role = "guard", metric = "reward/mean:last=5", direction = "not lower", margin = 0.5},
  {role = "because", metric = "reward/mean:area", direction = "up", against = "half"},
]
"""
MADE: list[str] = []  # the arm of each run that was made


@pytest.fixture(scope="module", autouse=True)
def plain() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        stay_in_process(patch, runs, lambda job: None if job.done else MADE.append(job.arm))
        yield


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where runs lie, which the tests share."""
    return tmp_path_factory.mktemp("runs")


def measured(
    tmp_path: Path, root: Path, before: Any = None, beds: Path | None = None, begun: Path | None = None, **changes: str
) -> Any:
    text = RECIPE
    for old, new in changes.values():
        assert old in text
        text = text.replace(old, new)
    (tmp_path / "own.toml").write_text(text)
    MADE.clear()
    found = measure(read(str(tmp_path / "own.toml")), root, before, beds=beds, begun=begun)
    return json.loads(json.dumps(found))


def test_a_clear_effect_ends_at_the_first_look(tmp_path: Path, root: Path) -> None:
    found = measured(tmp_path, root)
    assert (found["verdict"], found["because"], found["guard"]) == ("holds", "by its mechanism", "kept")
    assert [c["verdict"] for c in found["checks"]] == ["met", "holds", "kept", "by its mechanism"]
    assert found["seeds"] == [1000, 1001, 1002, 1003, 1004] and found["headline"]["level"] == 0.99
    assert Counter(MADE) == {"baseline": 5, "method": 5, "half": 5}
    assert found["cpu_s"].keys() == {"method", "baseline", "half"} and min(found["cpu_s"].values()) > 0
    assert list(found["arms"]) == ["method", "baseline", "half"] and found["kind"] == "trained"
    assert found["headline"]["effect"] > 0.05 > found["mde"]["achieved"] > 0
    assert found["history"][0]["used"] == [1000, 1004]
    assert (found["history"][0]["try"], found["history"][0]["commit"]) == (1, "")
    claim = read(str(tmp_path / "own.toml"))
    assert find_stale(claim, found) == ""
    again = measured(tmp_path, root, found)
    assert again == found and not MADE
    assert again["exploratory"] == ["its protocol is in no git repository"]


def test_a_premise_that_fails_costs_its_baselines_and_no_run_of_the_method(tmp_path: Path, root: Path) -> None:
    found = measured(tmp_path, root / "apart", premise=("against = 1.0", "against = 0.11"))
    assert found["verdict"] == "not tested" and Counter(MADE) == {"baseline": 5}
    assert found["premise"]["failing"] == ["reward/mean:last=5 down against 0.11"]
    assert [c["verdict"] for c in found["checks"]] == ["not met", "not tested", "not tested", "not asked"]
    assert found["because"] == "not asked" and list(found["arms"]) == ["baseline"]
    assert found["mde"] == {"planned": None, "achieved": None}


def test_a_premise_that_is_open_is_asked_again_of_more_seeds(tmp_path: Path, root: Path) -> None:
    """The baseline's numbers, 0.55 in the mean with a deviation of 0.08: five seeds cannot say whether they are below
    0.62, and eight can; whether they are below 0.6, twelve cannot."""
    found = measured(tmp_path, root / "open", premise=("against = 1.0", "against = 0.62"))
    assert (found["checks"][0]["verdict"], found["checks"][0]["n"]) == ("met", 8)
    assert found["verdict"] == "holds" and found["seeds"] == [*range(1000, 1008)]
    assert Counter(MADE) == {"baseline": 8, "method": 8, "half": 8}
    found = measured(tmp_path, root / "open", premise=("against = 1.0", "against = 0.6"))
    assert (found["verdict"], found["checks"][0]["n"], Counter(MADE)) == ("not tested", 12, {"baseline": 4})


def test_a_changed_protocol_goes_on_with_other_seeds_and_keeps_what_was_found(tmp_path: Path, root: Path) -> None:
    first = measured(tmp_path, root)
    found = measured(tmp_path, root, first, premise=("against = 1.0", "against = 0.1"))
    assert found["seeds"] == [1005, 1006, 1007, 1008, 1009] and found["protocol"]["tries"] == 2
    assert [h["used"] for h in found["history"]] == [[1000, 1004], [1005, 1009]]
    first["hashes"]["modules"]["shuhari.lab.claims.claim"] = "of then"  # as if it were one of the method's own
    assert measured(tmp_path, root, first)["seeds"] == [1005, 1006, 1007, 1008, 1009]


def test_a_claim_that_is_stopped_leaves_its_try(tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped as the method's second run begins; the same protocol goes on, another is a second try on other seeds."""
    plain, begun = runs.drive, tmp_path / "begun.json"

    def stop(jobs: Any, workers: Any, tell: Any, look: Any) -> None:
        second = [job for job in jobs if job.arm == "method"][1:]
        plain([job for job in jobs if job not in second], workers, tell, look)
        if second:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(runs, "drive", stop)
        with pytest.raises(KeyboardInterrupt):
            measured(tmp_path, root / "stopped", begun=begun)
    (entry,) = json.loads(begun.read_text())
    assert entry["protocol"]["tries"] == 1 and entry["seeds"] == list(range(1000, 1012))
    again = measured(tmp_path, root / "stopped", begun=begun)
    assert again["protocol"]["tries"] == 1 and again["seeds"][0] == 1000 and len(again["history"]) == 1
    other = measured(tmp_path, root / "stopped", begun=begun, guard=("margin = 0.5", "margin = 0.4"))
    assert other["protocol"]["tries"] == 2 and other["seeds"][0] == 1012
    assert [(h["try"], h["verdict"], h["used"]) for h in other["history"]] == [
        (1, "stopped", [1000, 1011]),
        (2, "holds", [1012, 1016]),
    ]
    assert count_tries(other) == 2


def test_premises_that_fail_begin_no_try(tmp_path: Path, root: Path) -> None:
    begun = tmp_path / "begun.json"
    changes = ("against = 1.0", "against = 0.11")
    assert measured(tmp_path, root / "apart", begun=begun, premise=changes)["verdict"] == "not tested"
    assert not begun.exists()


def test_what_cannot_be_told_goes_to_the_last_look(tmp_path: Path, root: Path) -> None:
    """Arms that are nearly one: by a margin that is within reach, neither an effect nor none is seen early."""
    alike = ("optimiser.lr = 0.02\narms", "optimiser.lr = 0.29\narms")
    found = measured(tmp_path, root, alike=alike, margin=("margin = 0.05", "margin = 0.0101"))
    assert found["verdict"] in ("open", "below margin") and found["because"] == "not asked"
    assert "half" not in found["arms"]
    hopeless = measured(tmp_path, root, alike=alike, margin=("margin = 0.05", "margin = 0.00001"))
    assert hopeless["verdict"] == "open" and hopeless["headline"]["n"] == 5
    assert hopeless["headline"]["why"] == "12 seeds could find nothing below 2 margins"


def card(noise: float, hashed: Any, metric: str = "reward/mean") -> dict[str, Any]:
    def curves(shift: float) -> dict[str, Any]:
        each = [{"x": [0.0, 12.0], "y": [0.2, 0.5 + i * shift]} for i in range(6)]
        return {"curves": {metric: each}, "cpu_s": [1.0] * 6}

    arms = {"baseline": curves(0.0), "redraw": curves(noise), "control": curves(0.0)}
    known = {"hashes": hashed, "budget": {"steps": 12}}
    return {"format": 1, "bed": "own/bed", "seeds": list(range(6)), "arms": arms, **known}


BED = ("budget =", 'bed = "beds/own/bed"\nbudget =')


def beds_of(tmp_path: Path, noise: float, **changes: Any) -> Path:
    """Where a card lies that is of the claim of RECIPE, but for `changes`."""
    tmp_path.mkdir(exist_ok=True)
    (tmp_path / "own.toml").write_text(RECIPE)
    beds = tmp_path / "beds"
    (beds / "own").mkdir(parents=True)
    hashed = compute_hashes(read(str(tmp_path / "own.toml")))
    (beds / "own" / "bed.json").write_text(json.dumps(card(noise, hashed) | changes))
    return beds


@pytest.mark.parametrize(
    ("noise", "verdict", "failing"),
    [
        (0.001, "holds", []),
        (
            0.1,
            "not tested",
            ["planned MDE 0.0867 above the margin"],
        ),  # 0.927 of 0.187 at the end, half of it in the area
    ],
)
def test_a_card_tells_premises_before_any_run(
    tmp_path: Path, root: Path, noise: float, verdict: str, failing: list[str]
) -> None:
    found = measured(tmp_path, root, beds=beds_of(tmp_path, noise), bed=BED)
    assert found["verdict"] == verdict and found["premise"]["failing"] == failing
    assert found["checks"][0]["card"] == "own/bed" and found["checks"][0]["n"] == 6
    assert found["mde"]["planned"] == pytest.approx(0.9272 * noise * (17.5 / 5) ** 0.5 / 2, rel=0.01)
    assert bool(found["arms"]) == (verdict == "holds")


def test_a_card_of_another_baseline_is_refused(tmp_path: Path, root: Path) -> None:
    with pytest.raises(RecipeError, match=r"its budget is \{'tokens': 99\}, the claim's \{'steps': 12.0\}"):
        measured(tmp_path, root, beds=beds_of(tmp_path / "a", 0.001, budget={"tokens": 99}), bed=BED)
    beds = beds_of(tmp_path / "b", 0.001)
    with pytest.raises(RecipeError, match="recipe 'baseline' has changed; `shuhari claim --card beds/own/bed`"):
        measured(tmp_path, root, beds=beds, bed=BED, lr=("lr = 0.02", "lr = 0.03"))
    assert measured(tmp_path, root, beds=beds, bed=BED, lr=("lr = 0.3", "lr = 0.4"))["headline"]  # the method's own


def test_a_card_without_noise_plans_nothing(tmp_path: Path, root: Path) -> None:
    found = measured(tmp_path, root, beds=beds_of(tmp_path, 0.0), bed=BED)
    assert found["verdict"] == "not tested" and found["premise"]["failing"] == ["no noise in the card to plan with"]


def test_an_identity_needs_no_premise_and_no_run(tmp_path: Path, root: Path) -> None:
    path = tmp_path / "own.toml"
    by = 'use = "simulated", by = {use = "off_policy_bandit", steps = 300}, metric = "distance/copg"'
    path.write_text(
        'extends = "baselines/bandit"\n[claim]\nsays = "x"\nlooks = [5]\ncheck = [\n'
        f'{{role = "headline", {by}, direction = "equal", against = 0.0, margin = 0.01}}]\n'
    )
    found = measure(read(str(path)), root)
    assert found["verdict"] == "holds" and found["kind"] == "simulated" and found["arms"] == {}


WITHIN = """extends = "baselines/bandit"
[claim]
says = "it learns within a run"
budget = {steps = 12}
looks = [5]
settings.evaluate = {every = 0, n = 0}
[[claim.check]]
role = "headline"
use = "gain"
metric = "reward/mean:last=5"
other = "reward/mean:first"
direction = "up"
against = 0.0
margin = 0.1
"""


def test_gains_within_runs_need_no_baseline_and_the_result_says_so(tmp_path: Path, root: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text(WITHIN)
    found = measure(read(str(path)), root)
    assert found["verdict"] == "holds" and found["kind"] == "not compared" and list(found["arms"]) == ["method"]
    assert "not compared" in describe_verdict(found)
    premise = '\n[[claim.check]]\nrole = "premise"\nmetric = "reward/mean:first"\nagainst = 1.0\ndirection = "down"\n'
    path.write_text(WITHIN + premise)  # which is of a baseline
    with pytest.raises(RecipeError, match=r"claim\.baseline: missing"):
        read(str(path))
    path.write_text(WITHIN.replace('use = "gain"\n', "").replace('other = "reward/mean:first"\n', ""))
    with pytest.raises(RecipeError, match="no check has the role 'premise'"):
        read(str(path))


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ('role = "guard"', 'role = "headline"', "2 checks have the role 'headline'"),
        (
            '{role = "premise", metric = "reward/mean:last=5", against = 1.0, direction = "down"},',
            "",
            "no check has the role 'premise'",
        ),
        ('role = "headline"', 'role = "because"', "no check has the role 'headline'"),
        ('role = "guard", ', "", r"check\.2\.role: missing: expected one of premise, headline"),
        (', against = 1.0, direction = "down"', ', direction = "down"', r"against \(premise\): missing: a number"),
        ("budget =", "looks = [5, 9]\nbudget =", r"expected \[5, 8, 12\]"),
        ("against = 1.0", 'against = "hlaf"', r"check\.0\.against \(premise\): no arm 'hlaf'; did you mean 'half'"),
        ('against = "half"', 'against = "start"', "only a premise"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, old: str, new: str, told: str) -> None:
    assert old in RECIPE
    (tmp_path / "own.toml").write_text(RECIPE.replace(old, new, 1))
    with pytest.raises(RecipeError, match=told):
        read(str(tmp_path / "own.toml"))


GAIN = """extends = "baselines/bandit"
remove = ["part", "collect"]
steps = 0
[claim]
says = "a colder policy says its likeliest arm more often"
budget = {steps = 0}
settings.evaluate = {n = 8, samples = 8, more.cold.sampling.temperature = 0.01}
[[claim.check]]
role = "headline"
use = "gain"
metric = "evaluate/cold.mean:final"
other = "evaluate/mean:final"
against = -1.0
direction = "up"
margin = 0.05
"""


def test_arms_that_only_measure_are_compared_by_gains(tmp_path: Path, root: Path) -> None:
    """Each run is one row, at step 0, with nothing spent of the budget."""
    (tmp_path / "gain.toml").write_text(GAIN)
    claim = read(str(tmp_path / "gain.toml"))
    assert claim.budget == ("steps", 0.0)
    MADE.clear()
    found = json.loads(json.dumps(measure(claim, root)))
    assert set(MADE) == {"method"} and found["verdict"] == "holds"  # a gain of more than -1, as all are
    assert 0 < found["headline"]["effect"] < 2
    curve = '[[claim.check]]\nrole = "premise"\nmetric = "evaluate/mean:final"\nagainst = 0.5\ndirection = "up"\n'
    (tmp_path / "curve.toml").write_text(GAIN + curve)
    with pytest.raises(RecipeError, match=r"claim.check.1 \(premise\): arms of 0 steps only measure, .* use = 'gain'"):
        read(str(tmp_path / "curve.toml"))
    (tmp_path / "tokens.toml").write_text(GAIN.replace("{steps = 0}", "{tokens = 0}"))
    with pytest.raises(RecipeError, match=r"claim.budget.tokens: 0: expected a number of 1 or more"):
        read(str(tmp_path / "tokens.toml"))
