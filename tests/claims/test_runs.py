"""The runs of a claim end to end, on a bandit: pairs, a warm start, sharing, a kill, and what failed."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shuhari.config.recipe import load
from shuhari.config.settings import Settings
from shuhari.desk.cli import main
from shuhari.lab.claims import sources
from shuhari.lab.claims.claim import read
from shuhari.lab.claims.result import compute_hashes, find_stale
from shuhari.lab.claims.runs import CHANCE, SCORES, ClaimError, Job, find_own, find_spent, make, plan_runs
from shuhari.store import Run
from shuhari.store.listing import list_runs

RECIPE = """summary = "a bandit, after a warm-up"
extends = "baselines/bandit"
[[stage]]
name = "warm-up"
steps = 2
[[stage]]
name = "rl"
part.policy.optimiser.lr = 0.3
[claim]
says = "a larger step learns sooner"
warm = "warm-up"
budget = {steps = 40}
looks = [5]
settings = {evaluate = {every = 10}}
smoke = {budget = {steps = 3}}
baseline.stage.rl.part.policy.optimiser = {lr = 0.02, clip = 9.0}
check = [
  {role = "headline", metric = "evaluate/mean:area", direction = "up", margin = 0.01},
  {role = "guard", metric = "reward/mean:last=5", direction = "not lower"},
  {role = "premise", metric = "evaluate/mean:area", direction = "down", against = 2.0},
]
"""


@pytest.fixture
def recipe(tmp_path: Path) -> str:
    path = tmp_path / "own.toml"
    path.write_text(RECIPE.replace("evaluate/mean", "reward/mean"))
    return str(path)


def ran(argv: list[str]) -> int:
    with pytest.raises(SystemExit) as end:
        main(argv)
    return int(end.value.code or 0)


@pytest.mark.timeout(300)  # 16 runs, twice
def test_a_claim_killed_and_gone_on_with_is_the_claim_that_was_not(recipe: str, tmp_path: Path, capsys: Any) -> None:
    whole, cut = (
        ["claim", recipe, "--out", str(tmp_path / f"out-{name}"), "--runs", str(tmp_path / name)] for name in "ab"
    )
    assert ran([*whole, "--dry-run"]) == 0 and not (tmp_path / "a").exists()
    assert "16 runs, 0 of them there, 40 steps each; 5 seeds" in capsys.readouterr().out
    assert ran([*whole, "--show"]) == 2 and "own: not measured" in capsys.readouterr().err
    assert ran([*whole, "--workers", "1"]) == 0
    capsys.readouterr()
    assert ran([*whole, "--show"]) == 0 and "own: holds" in capsys.readouterr().out
    seen = list_runs(tmp_path / "a")
    assert len(seen) == 15 and all(r.child for r in seen) and not list_runs(tmp_path / "a", children=False)
    assert {f"own, seed {n}" for n in range(1000, 1005)} <= {r.recipe for r in seen}
    process = subprocess.Popen([sys.executable, "-m", "shuhari", *cut], stderr=subprocess.DEVNULL)
    while not list((tmp_path / "b").glob("*/summary.json")) and process.poll() is None:
        time.sleep(0.05)
    process.kill()  # its workers end with it, in the middle of what they do
    process.wait()
    assert ran([*cut, "--workers", "1"]) == 0
    a, b = (json.loads((tmp_path / f"out-{name}" / "claims" / "own.json").read_text()) for name in "ab")
    assert a["checks"] == b["checks"] and a["arms"]["method"]["curves"] == b["arms"]["method"]["curves"]
    assert a["verdict"] == "holds" and [c["n"] for c in a["checks"]] == [5, 5, 5]
    optimiser = "part.policy.optimiser"
    assert a["arms"]["baseline"]["changes"] == {f"{optimiser}.lr": 0.02, f"{optimiser}.clip": 9.0}
    assert (
        a["start"]["method"] == a["start"]["baseline"]
        and a["chance"]
        and a["model"]["parameters"] == 10
        and len(a["history"]) == 1
    )
    assert (tmp_path / "out-a" / "plots" / "own.png").stat().st_size > 1000
    claim = read(recipe)
    assert find_stale(claim, a) == ""
    assert (
        find_stale(claim, {**a, "hashes": {**compute_hashes(claim), "recipes": {}}}) == "recipe 'baseline' has changed"
    )
    assert ran(whole) == 0
    again = json.loads((tmp_path / "out-a" / "claims" / "own.json").read_text())
    assert again == a  # the same runs, read again


def test_jobs_pair_by_seed_share_a_warm_start_and_what_is_alike(recipe: str, tmp_path: Path) -> None:
    claim = read(recipe, smoke=True)
    jobs = plan_runs(claim, tmp_path)
    assert [(j.arm, j.seed) for j in jobs] == [
        ("warm start", 0), ("warm start", 1),
        ("method", 0), ("baseline", 0), ("method", 1), ("baseline", 1)
    ]  # fmt: skip
    assert jobs[2].after is jobs[3].after is jobs[0] and jobs[4].after is jobs[1]
    other = Path(recipe).with_name("other.toml")
    other.write_text(Path(recipe).read_text().replace("rl.part.policy.optimiser.lr = 0.3", "rl.part.policy.epochs = 2"))
    shared = {j.path for j in plan_runs(read(str(other), smoke=True), tmp_path)} & {j.path for j in jobs}
    assert {j.path for j in jobs if j.arm == "warm start"} <= shared


def test_runs_that_fail_are_told_of_together(recipe: str, tmp_path: Path) -> None:
    claim = read(recipe, smoke=True)
    quantities = [Settings().make_component("quantity", c.quantity, "x", "metric") for c in claim.checks]
    bad = [j for j in plan_runs(claim, tmp_path) if j.arm == "method" and j.seed == 1]
    (bad[0].path / "checkpoints" / "step-00000001").mkdir(parents=True)  # of a run whose database is lost
    with pytest.raises(ClaimError, match="1 of 6 runs failed"):
        make(claim, quantities, tmp_path, workers=1)
    left: list[Job] = [j for j in plan_runs(claim, tmp_path) if j not in bad and j.arm != "method"]
    assert all(Run(j.path).status == "complete" for j in left)


def test_what_fails_twice_alike_fails_for_all(recipe: str, tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "own_blow.py").write_text(BLOW.replace('batch["advantage"] *', 'batch["nothing"] *'))
    text = Path(recipe).read_text().replace("part.policy.optimiser.lr = 0.3", 'collect.blow.use = "own_blow.py:Blow"')
    Path(recipe).write_text(text)
    assert ran(["claim", recipe, "--out", str(tmp_path / "o"), "--runs", str(tmp_path / "r"), "--workers", "1"]) == 1
    err = " ".join(capsys.readouterr().err.split())
    assert "two for one reason, so no others were begun" in err and "no column 'nothing'" in err
    assert len(list((tmp_path / "r").glob("*/error.txt"))) < 5


def test_results_that_are_broken_or_of_another_are_told_of(recipe: str, tmp_path: Path, capsys: Any) -> None:
    kept = tmp_path / "claims" / "own.json"
    kept.parent.mkdir()
    kept.write_text('{"format": 2, "verdict": "holds"}')
    at = ["--out", str(tmp_path)]
    assert ran(["claim", recipe, "--show", *at]) == 2 and "it lacks says, headline" in capsys.readouterr().err
    assert ran(["claim", recipe, "--stale", "--dry-run", *at]) == 0 and "it lacks says" in capsys.readouterr().err
    kept.write_text('{"format": 1, "verdict": "holds"}')
    assert ran(["claim", recipe, "--show", *at]) == 2 and "format 1, not 2" in capsys.readouterr().err
    assert ran(["claim", recipe, "--stale", "--out", str(tmp_path / "none")]) == 0
    assert "not measured" in capsys.readouterr().out and not (tmp_path / "none").exists()
    assert ran(["claim", recipe, "--whole", *at]) == 2 and "of --prove" in capsys.readouterr().err
    assert ran(["claim", "rlvr/pacs", "--show", *at]) == 0 and "that shuhari brings" in capsys.readouterr().err
    assert ran(["claim", "baselines/sft_grpo", "--show", *at]) == 2 and "states no claim" in capsys.readouterr().err
    (tmp_path / "more").mkdir()
    other = Path(recipe).rename(tmp_path / "more" / "own.toml")
    Path(recipe).write_text(other.read_text())
    assert ran(["claim", recipe, str(other), "--dry-run", *at]) == 2
    assert "two recipes are called 'own'" in capsys.readouterr().err


def test_a_run_that_diverges_is_evidence_without_a_value(recipe: str, tmp_path: Path) -> None:
    (tmp_path / "own_blow.py").write_text(BLOW)
    text = Path(recipe).read_text().replace("part.policy.optimiser.lr = 0.3", 'collect.blow.use = "own_blow.py:Blow"')
    Path(recipe).write_text(text.replace("baseline.", "baseline.stage.rl.collect.blow.at = -1\nbaseline."))
    places = ["--out", str(tmp_path / "out"), "--runs", str(tmp_path / "runs")]
    assert ran(["claim", recipe, *places, "--workers", "1"]) == 0
    found = json.loads((tmp_path / "out" / "claims" / "own.json").read_text())
    check = found["checks"][0]
    assert found["verdict"] == "open" and check["why"] == "no value in 5 runs of one side and 0 of the other"
    assert found["arms"]["method"]["diverged"] == found["seeds"] and check["values"]["method"] == [None] * 5
    assert [len(c["x"]) for c in found["arms"]["method"]["curves"]["reward/mean"]] == [3] * 5


def test_a_run_whose_filters_keep_nothing_is_evidence_without_a_value(recipe: str, tmp_path: Path) -> None:
    (tmp_path / "own_none.py").write_text(NOTHING)
    text = Path(recipe).read_text().replace("part.policy.optimiser.lr = 0.3", 'collect.no.use = "own_none.py:Nothing"')
    Path(recipe).write_text(text.replace("baseline.", "baseline.stage.rl.collect.no.on = false\nbaseline."))
    places = ["--out", str(tmp_path / "out"), "--runs", str(tmp_path / "runs")]
    assert ran(["claim", recipe, *places, "--workers", "1"]) == 0
    found = json.loads((tmp_path / "out" / "claims" / "own.json").read_text())
    ended = list((tmp_path / "runs").glob("*/diverged.txt"))
    assert found["arms"]["method"]["diverged"] == found["seeds"] and found["verdict"] == "open"
    assert len(ended) == 5 and "20 rounds" in ended[0].read_text()


NOTHING = """from dataclasses import dataclass
from shuhari.transforms.streams import zero_weight

@dataclass
class Nothing:
    on: bool = True
    needs = ()

    def __call__(self, batch, ctx):
        return zero_weight(batch, batch["step"] >= 0) if self.on else batch
"""

BLOW = """from dataclasses import dataclass

@dataclass
class Blow:
    at: int = 3
    needs = ()

    def __call__(self, batch, ctx):
        return batch.put({"advantage": batch["advantage"] * float("nan")}) if ctx.step == self.at else batch
"""


def test_a_run_killed_before_its_first_transaction_is_not_done(recipe: str, tmp_path: Path) -> None:
    job = plan_runs(read(recipe, smoke=True), tmp_path)[0]
    job.path.mkdir(parents=True)
    (job.path / "run.sqlite").touch()
    assert not job.done


def test_what_evaluation_spends_is_no_part_of_a_budget() -> None:
    columns: dict[str, Any] = {
        "step": [1, 2], "spent/tokens": [5, 9], "spent/probe/tokens": [1, 2], "spent/evaluate/tokens": [7, 7]
    }  # fmt: skip
    assert find_spent(columns, "tokens") == [6, 11]


def test_a_method_in_a_file_of_its_own_is_run_anew_when_it_is_edited(recipe: str, tmp_path: Path) -> None:
    own, file = Path(recipe), tmp_path / "own_steps.py"
    text = (
        "from dataclasses import dataclass\nfrom shuhari import register\n\n@register('transform', 'own_sign')\n"
        "@dataclass\nclass Sign:\n    needs = ()\n    def __call__(self, batch, ctx):\n        return batch\n"
    )
    file.write_text(text)
    stage = 'collect.sign.use = "own_steps.py:Sign"\npart.policy.optimiser.lr = 0.3'
    own.write_text(own.read_text().replace("part.policy.optimiser.lr = 0.3", stage))
    claim = read(recipe, smoke=True)
    before, paths = compute_hashes(claim)["modules"], {j.path for j in plan_runs(claim, tmp_path) if j.arm == "method"}
    assert "own_steps.py" in before
    file.write_text(text.replace("return batch", "return batch.put({'advantage': -batch['advantage']})"))
    assert compute_hashes(claim)["modules"] != before
    assert not {j.path for j in plan_runs(claim, tmp_path) if j.arm == "method"} & paths


def test_a_function_of_a_user_is_one_of_the_modules(recipe: str, tmp_path: Path) -> None:
    (tmp_path / "own_grades.py").write_text("def graded(completions):\n    return [1.0 for _ in completions]\n")
    path = tmp_path / "text.toml"
    path.write_text('extends = "baselines/grpo"\nreward.mine.use = "own_grades.py:graded"\n')
    before = sources.digest_modules([load(str(path))])
    (tmp_path / "own_grades.py").write_text("def graded(completions):\n    return [0.0 for _ in completions]\n")
    after = sources.digest_modules([load(str(path))])
    assert before["own_grades.py"] != after["own_grades.py"]


def test_chance_of_a_study_is_that_of_one_of_its_runs(tmp_path: Path) -> None:
    bandit = load("baselines/bandit")
    found = []
    for tree in (bandit.tree, {**bandit.tree, "study": {"use": "swarm"}}):
        recipe = replace(bandit, tree=tree)
        job = Job(CHANCE, recipe, tmp_path / str(len(found)), find_own(recipe))
        assert job.make() == ""
        found.append(json.loads((job.path / SCORES).read_text()))
    assert found[0] == found[1] and found[0]
