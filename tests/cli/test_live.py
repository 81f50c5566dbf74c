"""The panel: what it picks out of reports, speed, and the time that is left."""

from __future__ import annotations

from pathlib import Path

import pytest

from shuhari.config.recipe import load
from shuhari.desk.cli.live import Eta, Live, format_time

from .conftest import RECIPE


def report(stage: str, seconds: float, **spent: float) -> dict[str, object]:
    return {"stage": stage, "seconds": seconds, **{f"spent/{k}": v for k, v in spent.items()}}


def test_time_left_of_steps_over_stages() -> None:
    eta = Eta([{"name": "warm", "steps": 10}, {"name": "rl", "steps": 30}])
    for step in range(1, 5):
        eta.add(report("warm", 2.0 * step, steps=step, decisions=0))
    assert eta.estimate_left() == pytest.approx(2 * 36) and eta.estimate_rate() is None
    for step in range(5, 11):
        eta.add(report("warm", 2.0 * step, steps=step))
    for step in range(11, 40):
        eta.add(report("rl", 2.0 * step, steps=step, decisions=(step - 10) * 50))
    assert eta.estimate_done(report("rl", 0, steps=20)) == pytest.approx(0.5)
    assert eta.estimate_left() == pytest.approx(2.0) and eta.estimate_rate() == pytest.approx(25)


def test_time_left_of_other_budgets() -> None:
    eta = Eta([{"name": "main", "env_steps": 1000}])
    eta.add(report("main", 1.0, env_steps=100, decisions=100))
    assert eta.estimate_left() is None
    eta.add(report("main", 2.0, env_steps=200, decisions=200))
    assert eta.estimate_left() == pytest.approx(8.0) and eta.estimate_rate() == pytest.approx(100)
    seconds = Eta([{"name": "main", "seconds": 60}])
    assert seconds.estimate_done(report("main", 15.0)) == pytest.approx(0.25)


def test_a_sitting_that_begins_inside_a_later_stage_counts_from_there() -> None:
    eta = Eta([{"name": "a", "steps": 10}, {"name": "b", "env_steps": 100}])
    eta.add(report("b", 50.0, steps=15, env_steps=400))
    eta.add(report("b", 51.0, steps=16, env_steps=450))
    assert eta.estimate_done(report("b", 51.0, env_steps=450)) == pytest.approx(0.75)


def test_clock() -> None:
    assert [format_time(s) for s in (0, 59.6, 61, 3661)] == ["0:00", "1:00", "1:01", "1:01:01"]


def test_cells_keep_the_last_score_and_name_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "tiny.toml").write_text(RECIPE)
    live = Live(load(tmp_path / "tiny.toml"), tmp_path)
    base = {"step": 1, "stage": "main", "seconds": 1.0, "spent/tokens": 10, "spent/decisions": 10, "spent/steps": 1}
    first = live.format_cells({**base, "reward/mean": 0.5, "evaluate/greedy": 0.25, "policy/approx_kl": 0.01})
    assert first == {"step": "1/4", "stage": "main", "reward": "0.5", "held-out": "0.25", "KL": "0.01"}
    later = {**base, "step": 2, "seconds": 2.0, "spent/tokens": 30, "spent/decisions": 30, "spent/steps": 2}
    second = live.format_cells({**later, "reward/mean": 0.75, "policy/entropy": 2.0})
    assert (second["reward"], second["entropy"], second["tokens/s"]) == ("0.75", "2", "20")
    assert not any(label.startswith("held-out") for label in second), "a line has the score of its own step"
    assert second["ETA"] == "0:02"
    named = live.format_cells({**later, "step": 3, "evaluate/greedy": 0.5, "measure": "maths"})
    assert named["held-out maths"] == "0.5" and list(named)[:4] == ["step", "stage", "reward", "held-out maths"]
    live.panel = object()  # a panel keeps it, and says of when it is
    kept = live.format_cells({**later, "step": 4})
    assert kept["held-out maths, step 3"] == "0.5" and "held-out maths" not in kept


def test_a_stage_begins_without_the_last_one_s_numbers_and_tells_of_what_was_not_graded(tmp_path: Path) -> None:
    (tmp_path / "tiny.toml").write_text(RECIPE)
    live = Live(load(tmp_path / "tiny.toml"), tmp_path)
    live.panel = object()
    live.format_cells({**report("warm-up", 1.0), "step": 1, "policy/loss/nll": 2.5, "evaluate/greedy": 0.25})
    cells = live.format_cells({**report("rl", 2.0), "step": 2, "reward/mean": 0.5, "rollout/ungraded": 0.125})
    scored = cells["held-out, step 1"]
    assert (cells["reward"], scored, cells["ungraded"]) == ("0.5", "0.25", "12%") and "loss" not in cells


def test_on_a_terminal_one_panel_is_renewed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd) -> None:
    (tmp_path / "tiny.toml").write_text(RECIPE)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    with Live(load(tmp_path / "tiny.toml"), tmp_path) as live:
        live.console.width = 120
        for step in (1, 2):
            live.show(
                {
                    "step": step,
                    "stage": "main",
                    "seconds": step,
                    "reward/mean": 0.1 * step,
                    "problems": ("grader\x1b[2J",),
                }
            )
    out, err = capfd.readouterr()
    assert "0.2" in out and "2/4" in out
    assert err.count("grader\\x1b[2J") == 1  # told once, and spelled out
