"""Room for checkpoints: by hand what they take, and that nothing begins for which there is no room."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest

from shuhari.desk.cli import main
from shuhari.loop import space
from shuhari.loop.checks import make_stages
from shuhari.loop.roles import cast_roles
from shuhari.loop.run import train
from shuhari.loop.space import Room, Size, find_room, measure_model
from shuhari.store import StoreError
from shuhari.store.space import format_size, measure_free, measure_size
from small_runs import recipe


def test_what_a_role_takes_by_what_moves_it() -> None:
    whole, adapters, scratch = Size(100, lent=100), Size(3, lent=100), Size(50, fixed=2)
    one, two = ([s.count(optimisers=n, moves=False) for s in (whole, adapters, scratch)] for n in (1, 2))
    assert one == [300, 9, 152] and two == [500, 15, 252]  # of two stages
    assert [s.count(optimisers=0, moves=True) for s in (whole, adapters, scratch)] == [100, 3, 52]
    assert [s.count(optimisers=0, moves=False) for s in (whole, adapters, scratch)] == [0, 0, 52]


def test_sizes_in_words() -> None:
    told = {999: "999 bytes", 1000: "1 kB", 3.21e9: "3.21 GB", 53e9: "53 GB", 2e12: "2 TB"}
    assert {n: format_size(n) for n in told} == told
    assert str(Room(16 * 10**8, 2, 53 * 10**9)) == "checkpoints 3.2 GB (2 kept), free 53 GB"


def test_the_estimate_is_what_is_then_written(tmp_path: Path) -> None:
    """Of the recipe `text`: a policy with AdamW, a frozen copy and an average."""
    made = recipe("text", tmp_path).with_settings({"stage.warm-up.steps": 1, "stage.rl.steps": 1})
    list(train(made, tmp_path / "run"))
    kept = [p for p in (tmp_path / "run" / "checkpoints").iterdir() if p.name.startswith("step-")]
    written = max(sum(f.stat().st_size for f in p.glob("*.safetensors")) for p in kept)
    stages, models = make_stages(made), dict[str, Any]()
    for stage in stages:
        cast_roles(stage.models, models, stage.task, 0, {})
    sizes = {name: measure_model(model, None) for name, model in models.items()}
    room = find_room(stages, sizes, tmp_path / "run")
    assert 0.8 * written < room.each < 1.1 * written
    assert room.kept == stages[-1].store.keep + 1  # and the end of the warm-up


def test_no_room_is_refused_before_the_first_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(space, "measure_free", lambda path: 1000)
    with pytest.raises(StoreError, match=r"no room for its checkpoints: .* kept\), free 1 kB; .*keep fewer"):
        list(train(recipe("text", tmp_path), tmp_path / "run"))
    assert not (tmp_path / "run").exists()  # what was made for it is gone


def test_what_takes_much_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made = recipe("bandit", tmp_path, steps=1)
    for free, told in ((10**12, False), (10**4, True)):
        monkeypatch.setattr(space, "measure_free", lambda path, free=free: free)
        monkeypatch.setattr(space, "SHARE", 1e-3)
        with caplog.at_level(logging.INFO, "shuhari"):
            list(train(made, tmp_path / str(free)))
        assert ("kept), free" in caplog.text) == told


def test_a_run_is_as_large_as_its_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    list(train(recipe("bandit", tmp_path, steps=1), tmp_path / "runs" / "one"))
    run = tmp_path / "runs" / "one"
    expected = sum(f.stat().st_size for f in run.rglob("*") if f.is_file())
    assert measure_size(run) == expected
    os.link(run / "recipe.toml", run / "again")
    assert measure_size(run) == expected
    assert 0 < measure_free(tmp_path / "none" / "yet") <= measure_free(tmp_path)
    with pytest.raises(SystemExit):
        main(["runs", "--root", str(tmp_path / "runs"), "--size", "--json"])
    assert json.loads(capsys.readouterr().out)[0]["bytes"] == expected
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit):
        main(["runs", "--root", str(tmp_path / "runs"), "--size"])
    assert capsys.readouterr().out.count(format_size(expected)) == 2  # of the run, and of all


def test_the_dry_run_tells_it(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["train", "baselines/bandit", "--dry-run"])
    assert "# checkpoints " in capsys.readouterr().out


