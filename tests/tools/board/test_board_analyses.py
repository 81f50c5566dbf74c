"""Analyses on the board: what was kept beside the runs, damaged files, pictures, and the packaged findings."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shuhari.desk.analyzing import running
from shuhari.desk.analyzing.given import Names
from shuhari.desk.board.catalogue import Catalogue
from shuhari.desk.board.views.analyses import draw_analysis, list_analyses
from shuhari.desk.serving.refusals import Refused
from shuhari.kernel.findings import Finding, Number, Panel

Ask = Callable[..., Any]


@pytest.fixture
def runs(tmp_path: Path) -> Catalogue:
    x = np.arange(3.0)
    numbers = {"gain": Number(0.5, 0.1, 0.9, says="<b>what</b>")}
    finding = Finding(numbers, {"curve": Panel({"a": (x, x)})}, notes=["note"])
    at = running.name_files("scaling", ("runs/a",), tmp_path / "analyses")
    running.write_kept(running.to_json("scaling", Names(("runs/a",)), {}, finding), at.with_suffix(".json"))
    running.draw_finding(finding, at.with_suffix(".png"), "scaling")
    return Catalogue(tmp_path)


def test_what_is_kept_is_listed_with_its_picture(runs: Catalogue) -> None:
    (one,) = list_analyses(runs)["kept"]
    assert (one["id"], one["of"], one["picture"]) == ("scaling/a", ["runs/a"], True)
    assert one["numbers"]["gain"] == {"value": 0.5, "low": 0.1, "high": 0.9, "null": None, "says": "<b>what</b>"}
    assert draw_analysis(runs, "scaling/a").data.startswith(b"\x89PNG")


def test_a_damaged_file_is_a_problem_and_hides_no_other(runs: Catalogue) -> None:
    (runs.root / "analyses" / "scaling" / "b.json").write_text("{")
    (runs.root / "analyses" / "scaling" / "c.json").write_text('{"format": 99}')
    found = list_analyses(runs)
    assert len(found["kept"]) == 1 and len(found["problems"]) == 2


@pytest.mark.parametrize("id", ["scaling/z", "../../secret", "scaling/../../x"])
def test_only_pictures_of_analyses_are_given(runs: Catalogue, id: str) -> None:
    shutil.copy(runs.root / "analyses" / "scaling" / "a.png", runs.root / "secret.png")
    with pytest.raises(Refused, match="no picture of an analysis"):
        draw_analysis(runs, id)


def test_the_packaged_findings_are_there(ask: Ask) -> None:
    found = {one["name"]: one for one in ask("analyses")["findings"]}
    assert found["analysis/limit_of_rlvr"] == running.read_finding("analysis/limit_of_rlvr")
