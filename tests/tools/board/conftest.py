"""A folder of runs as a board finds it: whole ones, one whose model wrote markup, a damaged one, a link out of it."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from board_runs import MARKUP, TOKEN
from starlette.testclient import TestClient

from shuhari.desk.api import train
from shuhari.desk.board.app import make_app
from shuhari.store import Run, finding
from shuhari.store.rollouts import make_row
from shuhari.store.rows import write_rows
from shuhari.store.schema import FILE
from small_runs import write_sums


@pytest.fixture(scope="session")
def board_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`runs` with sums/0 and sums/1 (four steps, groups kept), hostile (its texts are markup), damaged and outside (a
    link to a run elsewhere). Do not change it: copy it."""
    home = tmp_path_factory.mktemp("board")
    (home / "sums.toml").write_text(
        'summary = "two-digit sums"\n' + write_sums(steps=4, size=4) + "[evaluate]\nevery = 2\nn = 8\n"
    )
    for seed in (0, 1):
        train(home / "sums.toml", home / "runs" / "sums" / str(seed), seed=seed)
    train(home / "sums.toml", home / "runs" / "hostile")
    _write_markup(home / "runs" / "hostile")
    (home / "runs" / "damaged").mkdir()
    (home / "runs" / "damaged" / FILE).write_bytes(b"this is no database" * 100)
    train(home / "sums.toml", home / "elsewhere" / "secret")
    (home / "runs" / "outside").symlink_to(home / "elsewhere" / "secret")
    return home / "runs"


def _write_markup(path: Path) -> None:
    """Let every kept answer of a run be markup, its prompts too, and a problem be told in markup."""
    groups = [g for step in (0, 1, 2, 3) for g in Run(path).rollouts(step)]
    rows = []
    for g in groups:
        texts = tuple(_mark(t) for t in g["trajectories"])
        problem = texts[0].request.problem
        rows.append(make_row(g["step"], {**g, "group": "g", "task": problem.task, "problem": problem.id,
                                         "trajectories": texts}))  # fmt: skip
    with closing(sqlite3.connect(path / FILE)) as db, db:
        db.execute("delete from rollouts")
        write_rows(db, "rollouts", rows)
        finding.rebuild(db)
        write_rows(db, "events", [(3, "problem", json.dumps(MARKUP))])


def _mark(trajectory: Any) -> Any:
    request = trajectory.request
    problem = replace(request.problem, prompt=MARKUP)
    steps = tuple(replace(s, info={**s.info, "text": MARKUP, "reason": MARKUP}) for s in trajectory.steps)
    return replace(trajectory, request=replace(request, problem=problem), steps=steps)


@pytest.fixture
def ask(board_root: Path) -> Iterator[Callable[..., Any]]:
    """ask("runs?words=x") -> the JSON of an address below /api of the board of `board_root`."""
    with TestClient(make_app(board_root, TOKEN), base_url="http://127.0.0.1:6060") as client:

        def call(address: str, status: int = 200) -> Any:
            reply = client.get(f"/api/{address}")
            assert reply.status_code == status, reply.text
            return reply.json()

        yield call
