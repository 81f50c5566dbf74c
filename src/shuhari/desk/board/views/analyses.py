"""Analyses: what `shuhari analyze` has kept beside the runs, and the packaged findings."""

from __future__ import annotations

from typing import Any

from shuhari.config.overlay import RecipeError
from shuhari.data import nearest
from shuhari.desk.analyzing import running
from shuhari.desk.board.catalogue import Catalogue
from shuhari.desk.board.views.picture import Picture
from shuhari.desk.serving.refusals import Refused

FOLDER = "analyses"  # below the runs
MOST = 500  # kept analyses that a list shows, the last ones first
LARGEST = 1 << 22  # bytes of a file


def list_analyses(runs: Catalogue) -> dict[str, Any]:
    """Return {kept, findings, problems}: each analysis that is kept below the runs, the last one first, as {id,
    picture, analysis, of, numbers, heads, rows, notes}; each packaged finding that is measured, as its result;
    sentences on files that cannot be read."""
    kept, problems = [], []
    places = sorted((runs.root / FOLDER).glob("*/*.json"), key=lambda p: p.stat().st_mtime, reverse=True)
    for path in places[:MOST]:
        try:
            if path.stat().st_size > LARGEST:
                raise ValueError(f"{path}: too large for what an analysis keeps")
            found = running.read_kept(path)
        except (OSError, ValueError) as error:
            problems.append(str(error))
            continue
        if found is None:
            continue  # removed meanwhile
        name = f"{path.parent.name}/{path.stem}"
        kept.append({**found, "id": name, "picture": path.with_suffix(".png").is_file()})
    findings = []
    for name in running.list_packaged():
        try:
            finding = running.read_finding(name)
        except RecipeError as error:
            problems.append(str(error))
            continue
        if finding is not None:
            findings.append(finding)
    return {"kept": kept, "findings": findings, "problems": problems}


def draw_analysis(runs: Catalogue, id: str) -> Picture:
    """Return the picture of a kept analysis, PNG."""
    known = {f"{p.parent.name}/{p.stem}": p for p in (runs.root / FOLDER).glob("*/*.png")}
    if id not in known:
        raise Refused(f"no picture of an analysis {id[:200]!r}; {nearest(id[:100], known)}", "id", status=404)
    return Picture(known[id].read_bytes(), "image/png")
