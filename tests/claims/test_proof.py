"""Proofs: what is the same stands and is found again, what is not says so, and what cannot be told is left as it is."""

from __future__ import annotations

import json
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from shuhari.lab.claims import kept_results, proof, runs
from shuhari.lab.claims.claim import Claim, read
from shuhari.lab.claims.measure import measure
from shuhari.lab.claims.pool import ClaimError
from shuhari.lab.claims.proof import Proof, prove, settle
from shuhari.lab.claims.result import compute_hashes, find_stale, list_quantities
from shuhari.lab.claims.runs import make, plan_runs
from shuhari.lab.claims.sources import is_older
from shuhari.objectives.clip import Clip
from shuhari.store.directory import Run

RECIPE = """extends = "baselines/bandit"
[[stage]]
name = "warm-up"
steps = 2
[[stage]]
name = "slow"
steps = 10
part.policy.optimiser.lr = 0.01
[[stage]]
name = "rl"
part.policy.optimiser.lr = 0.3
[claim]
says = "a slow start, and a larger step"
warm = "warm-up"
budget = {steps = 40}
settings = {evaluate = {every = 5, n = 8}}
smoke = {budget = {steps = 20}}
baseline = {remove = ["stage.slow"], stage.rl.part.policy.optimiser.lr = 0.02}
check = [
  {role = "headline", metric = "evaluate/greedy:area", direction = "up", margin = 0.1},
  {role = "because", metric = "reward/mean:last=5", direction = "up", against = "baseline"},
  {role = "premise", metric = "reward/mean:last=5", direction = "down", against = 1.0},
]
"""
Measured = tuple[Claim, dict[str, Any], Path]


@pytest.fixture(scope="module", autouse=True)
def plain() -> Iterator[None]:
    """No processes; and every module is the method's own, so that no baseline is built."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (proof, runs):
            patch.setattr(module, "drive", drive)
        patch.setattr("shuhari.lab.claims.result.list_common", frozenset)
        yield


def drive(jobs: Any, _workers: Any, _tell: Any, look: Any = lambda job: None, **_: Any) -> None:
    for job in jobs:
        if not job.done and job.make():
            raise ClaimError(job.name)
        look(job)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Measured:
    root = tmp_path_factory.mktemp("claim").resolve()
    (root / "own.toml").write_text(RECIPE)
    claim = read(str(root / "own.toml"), smoke=True)
    result = measure(claim, root)
    return claim, json.loads(json.dumps(result)), root


def test_arms_with_stages_of_their_own_spend_one_budget(measured: Measured) -> None:
    claim, result, _ = measured
    assert {name: arm["spent"] for name, arm in result["arms"].items()} == {name: [20, 20] for name in claim.arms}
    xs = {name: arm["curves"]["evaluate/greedy"][0]["x"] for name, arm in result["arms"].items()}
    assert xs["baseline"] == [0.0, 5.0, 10.0, 15.0, 20.0]
    assert xs["method"] == [5.0, 10.0, 15.0, 20.0]  # its last stage began at 5, where the one before had ended


def test_what_is_the_same_stands_and_its_runs_are_found_again(measured: Measured, tmp_path: Path) -> None:
    claim, result, root = measured
    old = deepcopy(result)
    old["hashes"] |= {"core": "before", "modules": {"shuhari.tasks.bandit": "before"}}
    for arm in old["arms"].values():
        for i, name in enumerate(arm["runs"]):  # as if made under another core's name
            (root / name).rename(root / f"old-{name}")
            arm["runs"][i] = f"old-{name}"
    assert is_older(old["hashes"]) and find_stale(claim, old) == "module 'shuhari.tasks.bandit' has changed"
    (found,) = prove([(claim, old)], root)
    assert isinstance(found, Proof) and found.stands and dict(found.steps) == {"method": 20, "baseline": 10}
    assert found.points == (4 + 20) + (3 + 10) and found.whole == ("method",) and found.compared == "columns"
    new = settle(claim, {**old, "stale": "once"}, found)
    assert find_stale(claim, new) == "" and not is_older(new["hashes"]) and "stale" not in new
    assert new["proved"]["from"] == "before" and new["proved"]["steps"] == {"method": 20, "baseline": 10}
    assert new["proved"]["compared"] == "columns" and new["proved"]["whole"] == ["method"]
    assert {k: v for k, v in new.items() if k not in ("hashes", "proved")} == {
        k: v for k, v in old.items() if k != "hashes"
    }
    assert new["hashes"]["recipes"] == old["hashes"]["recipes"]
    assert all(job.done for job in plan_runs(claim, root) if job.arm in claim.arms)
    assert make(claim, list_quantities(claim), root).evidence["method"][0].path in [
        j.path for j in plan_runs(claim, root)
    ]


def test_how_far_each_arm_is_made_again(measured: Measured) -> None:
    claim, result, root = measured
    steps = {"quick": (10, 10), "spot": (20, 10), "whole": (20, 20)}  # the baseline's first two scores are equal
    for depth, (method, baseline) in steps.items():
        (found,) = prove([(claim, result)], root, depth=depth)
        assert isinstance(found, Proof) and found.stands
        assert dict(found.steps) == {"method": method, "baseline": baseline}
    for arm, stands in {"method": (True, False, False), "baseline": (True, True, False)}.items():
        late = deepcopy(result)
        late["arms"][arm]["curves"]["evaluate/greedy"][0]["y"][-1] = 0.123
        proofs = [prove([(claim, late)], root, depth=depth)[0] for depth in steps]
        assert [p.stands for p in proofs if isinstance(p, Proof)] == list(stands)
        assert isinstance(proofs[-1], Proof) and proofs[-1] == Proof(
            False,
            f"arm {arm!r}, seed 0: evaluate/greedy at 20 was 0.123, and is "
            f"{result['arms'][arm]['curves']['evaluate/greedy'][0]['y'][-1]} at 20",
            {"method": 20, "baseline": 20},
            4 + 20 + 5 + 20,
            "columns",
            ("method", "baseline"),
        )
    with pytest.raises(ValueError, match=r"depth is 'hole'.*whole"):
        prove([], root, depth="hole")


def test_code_that_changes_what_happens_late_is_seen(measured: Measured, monkeypatch: pytest.MonkeyPatch) -> None:
    claim, result, root = measured
    plain = Clip.__call__

    def changed(self: Clip, batch: Any, ctx: Any) -> Any:
        loss, info = plain(self, batch, ctx)
        return (-loss if ctx.step > 14 else loss), info

    monkeypatch.setattr(Clip, "__call__", changed)
    monkeypatch.setattr(proof, "REPLAY", "late.json")  # other replays than those that are there
    (found,) = prove([(claim, result)], root)
    assert isinstance(found, Proof) and found.stands is False and found.why.startswith("arm 'method', seed 0: ")


def test_points_that_stay_where_they_were_are_no_evidence() -> None:
    curves = [0.0, 0.0, 0.0, 0.4, 0.7], [0.1, 0.2, 0.2], [0.0] * 4, [0.5], []
    assert [proof._count_points(y) for y in curves] == [4, 2, 4, 1, 0]
    then = {"x": [0.0, 100.0, 200.0, 300.0], "y": [0.0, 0.0, 0.41, 0.77]}
    now = {name: values[:2] for name, values in then.items()}
    assert (
        proof._compare_curve("evaluate/greedy", then, now, whole=False) == "evaluate/greedy has 2 points now, of 4 then"
    )
    assert proof._compare_curve("evaluate/greedy", then, {n: v[:3] for n, v in then.items()}, whole=False) == ""


def test_without_the_runs_only_points_are_compared(measured: Measured) -> None:
    claim, result, root = measured
    lost = deepcopy(result)
    lost["arms"]["baseline"]["runs"] = ["gone", "gone"]
    (found,) = prove([(claim, lost)], root)
    assert isinstance(found, Proof) and found.stands and found.compared == "points"


def test_what_is_not_the_same_says_so_unless_it_was_measured_elsewhere(measured: Measured) -> None:
    claim, result, root = measured
    other = deepcopy(result)
    other["arms"]["baseline"]["curves"]["reward/mean"][0]["y"][1] = 0.123
    (found,) = prove([(claim, other)], root)
    assert isinstance(found, Proof) and found.stands is False
    assert found.why.startswith("arm 'baseline', seed 0: reward/mean at 2 was 0.123, and is ")
    assert settle(claim, other, found) == {**other, "stale": found.why}
    other["versions"]["processor"] = "of another make"
    (found,) = prove([(claim, other)], root)
    assert isinstance(found, Proof) and found.stands is None and "measured elsewhere (processor of another" in found.why
    assert settle(claim, other, found) == other
    restated = deepcopy(result)
    restated["hashes"]["recipes"]["method"] = "x"
    assert prove([(claim, restated)], root) == [Proof(False, "recipe 'method' has changed")]


def test_runs_that_are_there_are_compared_number_by_number(measured: Measured) -> None:
    _, result, root = measured
    there = root / result["arms"]["method"]["runs"][0]
    columns = {k: v[:3] for k, v in Run(there).metrics().items()}
    assert proof._compare_columns(columns, there) == proof._compare_columns({**columns, "wall": [0.0] * 3}, there) == ""
    first, *rest = columns["reward/mean"]
    assert proof._compare_columns({**columns, "reward/mean": [first, 7.5, *rest[1:]]}, there).startswith(
        f"reward/mean at step 2 was {rest[0]}, and is 7.5"
    )
    assert proof._compare_columns(columns, root / "gone") is None
    longer = {k: [*Run(there).metrics()[k], 99] for k in columns}
    assert proof._compare_columns(longer, there) is None


def test_what_fails_is_no_proof(measured: Measured, monkeypatch: pytest.MonkeyPatch) -> None:
    claim, result, root = measured

    def full(*_: Any, **__: Any) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(proof, "REPLAY", "full.json")  # other replays than those that are there
    monkeypatch.setattr("shuhari.loop.study.train", full)
    (found,) = prove([(claim, result)], root)
    assert isinstance(found, ClaimError) and "own method seed 0: OSError: the disk is full" in str(found)


def test_simulations_are_computed_again(tmp_path: Path) -> None:
    (tmp_path / "double.py").write_text(DOUBLE)
    (tmp_path / "sim.toml").write_text(SIMULATED)
    claim = read(str(tmp_path / "sim.toml"))
    result = measure(claim, tmp_path)
    assert result["checks"][0]["values"]["method"] == [2000.0, 2002.0, 2004.0, 2006.0, 2008.0]
    assert prove([(claim, result)], tmp_path) == [Proof(True, "", {}, 5)]
    result["checks"][0]["values"]["method"][1] = 7.0
    assert prove([(claim, result)], tmp_path)[0] == Proof(
        False, "check 0, seed 1001: simulated 7.0 then, 2002.0 now", {}, 5
    )


SIMULATED = """extends = "baselines/bandit"
[claim]
says = "x"
looks = [5]
[[claim.check]]
role = "headline"
use = "simulated"
by.use = "double.py:Double"
metric = "twice"
direction = "up"
against = 0
margin = 1
"""

DOUBLE = """from dataclasses import dataclass

@dataclass
class Double:
    def __call__(self, seed):
        return {"twice": 2.0 * seed}
"""


def test_speeds_are_left_as_they_are_unless_their_module_changed(tmp_path: Path) -> None:
    claim, result = read("engine/srl"), kept_results.read_result("engine/srl")
    assert result is not None
    result["hashes"] |= {
        key: compute_hashes(claim)[key] for key in ("recipes", "claim", "modules")
    }  # as if measured today
    assert prove([(claim, result)], tmp_path) == [Proof(None, "it compares speeds: bits prove nothing here")]
    result["hashes"]["modules"] = {"shuhari.rollouts.vector.vector": "other"}
    (found,) = prove([(claim, result)], tmp_path)
    assert isinstance(found, Proof) and found.stands is False and "vector.vector' has changed" in found.why
