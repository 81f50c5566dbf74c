"""Trackers: what they are sent, and that one which fails, hangs or is slow neither stops nor holds up a run."""

from __future__ import annotations

import logging
import sys
import threading
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import shuhari
from shuhari.desk import sinks
from shuhari.desk.sinks import Tracker, Watchers, open_sinks, track_trackio, track_wandb
from shuhari.desk.tensorboard import TensorBoard


class Run:
    """A tracker's run, which keeps what it is sent."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.finished = False

    def log(self, numbers: Any, step: int) -> None:
        self.sent.append((step, numbers))

    def finish(self) -> None:
        self.finished = True


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A package that is installed, by name."""
    module = ModuleType("a_tracker")
    monkeypatch.setitem(sys.modules, "a_tracker", module)
    monkeypatch.setattr(sinks, "find_spec", lambda name: name if name != "missing" else None)
    return module


def send(tracker: Tracker, n: int = 3) -> None:
    with Watchers(tracker) as watchers:
        for step in range(1, n + 1):
            watchers.tell({"step": step, "reward/mean": step / 2, "stage": "rl", "ok": True, "nan": float("nan")})


def test_numbers_arrive_in_order_and_the_run_is_finished(package: ModuleType) -> None:
    run = Run()
    send(Tracker("a_tracker", lambda module: run if module is package else None))
    assert run.sent == [(s, {"reward/mean": s / 2}) for s in (1, 2, 3)] and run.finished


def test_one_that_fails_is_said_once_and_gets_no_more(package: ModuleType, caplog: pytest.LogCaptureFixture) -> None:
    def refuse(module: Any) -> Any:
        raise SystemExit("no network")

    tracker = Tracker("a_tracker", refuse)
    with caplog.at_level(logging.WARNING, "shuhari"):
        send(tracker)
        send(tracker)
    assert [r.getMessage() for r in caplog.records] == ["a_tracker gets no more numbers: SystemExit: no network"]


def test_one_that_hangs_is_given_up(
    package: ModuleType, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sinks, "CLOSING", 0.05)
    monkeypatch.setattr(sinks, "WAITING", 2)
    over, threads = threading.Event(), []

    def hang(module: Any) -> None:
        threads.append(threading.current_thread())
        over.wait()
        sys.exit()

    with caplog.at_level(logging.WARNING, "shuhari"):
        send(Tracker("a_tracker", hang), n=9)
    assert [r.getMessage() for r in caplog.records] == ["a_tracker has not taken everything within 0.05 s: given up"]
    over.set()
    threads[0].join()  # what it says as it ends is not said into another test


def test_what_a_slow_one_has_lost_is_counted(
    package: ModuleType, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sinks, "WAITING", 2)
    go, run = threading.Event(), Run()

    def open_run(module: Any) -> Run:
        go.wait()
        return run

    tracker = Tracker("a_tracker", open_run)
    for step in range(5):
        tracker({"step": step, "x": 1.0})
    go.set()
    with caplog.at_level(logging.WARNING, "shuhari"):
        tracker.close()
    assert [step for step, _ in run.sent] == [0, 1] and run.finished
    assert "was too slow for 3 reports" in caplog.records[0].getMessage()


def test_a_package_that_is_not_there_is_named(package: ModuleType) -> None:
    with pytest.raises(ModuleNotFoundError, match=r'missing is not installed: pip install "shuhari\[missing\]"'):
        Tracker("missing", lambda module: None)


def test_by_word(package: ModuleType, tmp_path: Path) -> None:
    made = open_sinks(["tensorboard", "tensorboard:here", "wandb:mine", "trackio"], tmp_path / "one", {"seed": 1})
    assert [str(t.folder) for t in made[:2]] == ["logs/one", "here"] and isinstance(made[0], TensorBoard)
    assert [t.package for t in made[2:]] == ["wandb", "trackio"] and made[0].x == "step"
    (board,) = open_sinks(["tensorboard"], tmp_path / "two", {"env_steps": 5000})  # the unit of the run's budget
    assert board.x == "spent/env_steps"
    with pytest.raises(ValueError, match="'wanbd'; did you mean 'wandb'"):
        open_sinks(["wanbd"], tmp_path, {})


@pytest.mark.parametrize("mode", ["online", "offline"])
def test_wandb_is_asked_for_a_run_and_never_for_a_key(
    package: ModuleType, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a key it would ask for one at the terminal, in the background of a run."""
    asked: list[dict[str, Any]] = []
    told = {"setup": lambda settings: None, "login": lambda prompt: False}
    wandb = SimpleNamespace(**told, Settings=lambda **how: how, init=lambda **how: asked.append(how) or Run())
    monkeypatch.setattr(sinks.importlib, "import_module", lambda name: wandb)
    monkeypatch.setenv("WANDB_MODE", mode)
    tracker = track_wandb("mine", name="one", config={"seed": 1})
    send(tracker)
    if mode == "online":
        assert tracker.failed.startswith("RuntimeError: no key is configured: `wandb login`") and not asked
        return
    (how,) = asked
    assert {k: how[k] for k in ("project", "name", "config")} == {
        "project": "mine",
        "name": "one",
        "config": {"seed": 1},
    }
    assert how["settings"]["console"] == "off" and not tracker.failed


def test_trackio_keeps_a_run_on_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("trackio")
    tracker = track_trackio("mine", name="one")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path))
    send(tracker)
    assert not tracker.failed


def test_the_names_are_those_of_the_package(package: ModuleType) -> None:
    assert shuhari.WandB is track_wandb and shuhari.Trackio is track_trackio


class OtherCallback:
    """As Stable-Baselines3 has them."""

    def _on_step(self) -> bool:
        return False


def test_what_is_no_function_is_refused_with_what_is_expected() -> None:
    for given in (OtherCallback(), [print, OtherCallback()]):
        with pytest.raises(TypeError, match="observe: a OtherCallback: expected a function of a step's report"):
            Watchers(given)
    assert len(Watchers([print, len]).active) == 2 and len(Watchers(print).active) == 1
