"""The report for bug reports: facts that can be checked from elsewhere."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
import torch

from shuhari.desk import doctor
from shuhari.store.files import count_cores


def test_versions_and_cores() -> None:
    found = str(doctor.find_version("torch"))
    assert found.partition("+")[0] == torch.__version__.partition("+")[0]  # PyPI's wheels leave "+cu130" out of it
    assert doctor.find_version("no-such-package") is None
    assert count_cores() >= 1


def test_matmul_speed_grows_with_the_work_it_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter(range(100))
    monkeypatch.setattr(doctor.time, "perf_counter", lambda: float(next(ticks)))  # each product takes 1 second
    assert doctor.measure_matmul(seconds=3, n=100) == pytest.approx(2 * 100**3 / 1e9)


@pytest.mark.parametrize(("script", "works"), [("exit 0", True), ("echo no namespaces >&2; exit 1", False)])
def test_the_sandbox_probe_believes_what_it_sees(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, works: bool
) -> None:
    bwrap = tmp_path / "bwrap"
    bwrap.write_text(f"#!/bin/sh\n{script}\n")
    bwrap.chmod(bwrap.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tmp_path))
    found = doctor.check_sandbox()
    assert (found["path"], found["works"]) == (str(bwrap), works)
    assert found["why"] == (None if works else "no namespaces")


def test_without_bubblewrap_there_is_no_sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    found = doctor.check_sandbox()
    assert found["works"] is False and "bubblewrap" in found["why"]


@pytest.mark.parametrize(
    ("times", "said"),
    [
        (1.9, "1.9 times as fast as float32 in matrix products: a language model may gain"),
        (1.1, "1.1 times as fast as float32 in matrix products: it would not help here"),
        (0.125, "8 times as slow as float32 in matrix products: it would not help here"),
    ],
)
def test_what_bfloat16_would_give(times: float, said: str) -> None:
    told = doctor.advise_bfloat16(times)
    assert told.startswith(said) and ("--set engine.dtype=bfloat16" in told) == (times == 1.9)


def test_bfloat16_is_measured_against_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "measure_matmul", lambda seconds, half=False: 30.0 if half else 20.0)
    assert doctor.describe_bfloat16()["times"] == 1.5
