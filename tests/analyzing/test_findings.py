"""Packaged findings: each has a page and a test, its numbers are of the code as it stands, and mistakes are named."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from shuhari.config.overlay import RecipeError
from shuhari.desk.analyzing import running
from shuhari.desk.analyzing.given import Names
from shuhari.desk.api import train
from shuhari.kernel import registry
from shuhari.kernel.findings import AnalysisError, Finding, Number

PACKAGED = running.list_packaged()
TESTS = Path(__file__).parents[1] / "methods"


@pytest.mark.parametrize("name", PACKAGED)
def test_what_is_kept_is_of_the_finding_as_it_stands(name: str) -> None:
    one, found = PACKAGED[name], running.read_finding(name)
    assert (one.folder / "README.md").is_file()
    assert (TESTS / one.folder.parent.name / f"test_{one.folder.name}.py").is_file()
    if found is None:
        pytest.skip(f"not measured: shuhari analyze {name} --packaged")
    assert found["digests"] == running.find_digests(one), f"shuhari analyze {name} --packaged"
    assert (found["says"], found["null"], found["settings"]) == (one.stated.says, one.stated.null, one.stated.settings)
    assert len(found["seeds"]) >= 3 and found["numbers"]


def test_every_analysis_of_runs_has_a_packaged_finding() -> None:
    used = {one.stated.analysis for one in PACKAGED.values()}
    assert set(registry.names(running.ON_RUNS)) <= used


def test_an_unknown_analysis_names_the_nearest() -> None:
    with pytest.raises(LookupError, match="no analysis 'pass_at'; did you mean 'pass_at_k'"):
        running.make_analysis("pass_at")
    with pytest.raises(LookupError, match="no packaged finding 'analysis/scalrl'; did you mean 'analysis/scalerl'"):
        running.read_packaged("analysis/scalrl")
    with pytest.raises(RecipeError, match="did you mean 'samples'"):
        running.make_analysis("pass_at_k", {"sample": 3})


def test_curves_without_a_policy_are_refused_by_what_plays(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("step,reward\n1,2\n")
    with pytest.raises(AnalysisError, match="has curves and no policy: this analysis plays policies"):
        running.analyze("support", Names((str(tmp_path / "a.csv"), str(tmp_path / "a.csv"))))


def test_a_run_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(AnalysisError, match="no run 'nothing'"):
        running.analyze("scaling", Names(("nothing",)))
    (tmp_path / "progress.csv").write_text("step,reward\n1,2\n")
    with pytest.raises(AnalysisError, match=r"no file .*did you mean 'progress.csv'"):
        running.analyze("scaling", Names((str(tmp_path / "progres.csv"),)))


def test_what_is_kept_of_a_call_is_json(tmp_path: Path) -> None:
    finding = Finding({"gain": Number(1.5, 1.0, math.inf)}, rows=[("a", math.nan)], heads=("run", "x"))
    kept = running.to_json("scaling", Names(("runs/a", "b/c.csv")), {"share": 0.5}, finding)
    path = running.write_kept(kept, running.name_files("scaling", ("runs/a", "b/c.csv"), tmp_path).with_suffix(".json"))
    assert path == tmp_path / "scaling" / "a_c.json"
    assert json.loads(path.read_text())["numbers"]["gain"] == {
        "value": 1.5, "low": 1.0, "high": None, "null": None, "says": ""}  # fmt: skip


def test_a_diffusion_run_is_answered_or_refused_in_words(tmp_path: Path) -> None:
    """Its weights and curves can be read; its answers are points, and no text."""
    small = {"steps": 3, "stage.imitation.steps": 2, "evaluate.n": 2, "evaluate.every": 1, "buffer.size": 2}
    train("baselines/ddpo_clusters", tmp_path / "d", progress=False, **small)
    given = Names((str(tmp_path / "d"),))
    assert running.analyze("principals", given).numbers["rank"].value > 0
    assert running.analyze("benchmark", given, {"metric": "evaluate/mean"}).numbers
    for analysis in ("pass_at_k", "contamination"):
        with pytest.raises(AnalysisError, match=r"answers with actions: this analysis needs .* that writes text"):
            running.analyze(analysis, given)
    with pytest.raises(AnalysisError, match=r"evaluate/mean has .* evaluate more often"):
        running.analyze("scaling", given, {"metric": "evaluate/mean"})
    with pytest.raises(AnalysisError, match="rich_lazy reads no runs"):
        running.analyze("rich_lazy", given)


def test_runs_of_different_problems_are_not_compared_and_seeds_of_one_are(tmp_path: Path) -> None:
    """By name the task is one; its settings differ. One that changes demonstrations alone leaves the problems alike."""
    small = {"steps": 1, "stage.warm-up.steps": 1, "evaluate.n": 2, "models.policy.hidden": 15}
    runs = {"one": {"task.digits": 1}, "two": {"task.digits": 2}, "other": {"task.digits": 1, "seed": 1},
            "shown": {"task.digits": 1, "task.forget": 0.0}}  # fmt: skip
    for name, more in runs.items():
        train("baselines/grpo", tmp_path / name, progress=False, **{**small, **more})
    one, two, other = (str(tmp_path / name) for name in ("one", "two", "other"))
    for analysis, settings in (("benchmark", {"metric": "reward/mean"}), ("support", {"n": 2, "samples": 2})):
        with pytest.raises(AnalysisError, match=r"arithmetic \{.*digits.*expected one task"):
            running.analyze(analysis, Names((one, two)), settings)
        assert running.analyze(analysis, Names((one, other)), settings).numbers
    assert running.analyze("support", Names((one, str(tmp_path / "shown"))), {"n": 2, "samples": 2}).numbers
