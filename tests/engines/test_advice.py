"""From where on vLLM is recommended: by the numbers that were measured, in the log of a run and by `shuhari doctor`."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

import shuhari
from shuhari.desk.doctor import describe_vllm
from shuhari.engines import advice
from shuhari.engines.advice import ANSWER, WEIGHTS, advise
from small_runs import write_sums


def test_it_is_recommended_from_the_measured_size_on() -> None:
    assert (WEIGHTS, ANSWER) == (15_000_000, 256)  # docs/scale.md, "When"
    assert advise(WEIGHTS, ANSWER - 1) == advise(WEIGHTS - 1, ANSWER) == ""
    assert advise(116_000_000, 1024).startswith("a policy of 116 million weights, answers of up to 1024 tokens: ")
    assert 'engine.use = "vllm"' in advise(WEIGHTS, ANSWER)


@pytest.mark.parametrize("weights", [100, 10**9])
def test_the_log_of_a_run_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, weights: int
) -> None:
    """Once, before the first step, of a run whose model and answers are large enough."""
    monkeypatch.setattr(advice, "WEIGHTS", weights)
    monkeypatch.setattr(advice, "ANSWER", 2)
    (tmp_path / "sums.toml").write_text(write_sums(steps=1, size=4))
    with caplog.at_level(logging.INFO, "shuhari"):
        shuhari.train(tmp_path / "sums.toml", tmp_path / "run")
    said = [r.getMessage() for r in caplog.records if "docs/scale.md" in r.getMessage()]
    assert len(said) == (weights == 100) and all("samples these faster from 0.0001 million weights" in s for s in said)


def test_doctor_says_so_and_finds_what_is_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("SHUHARI_VLLM_PYTHON", raising=False)
    assert describe_vllm() == {"version": None, "right_from_weights": WEIGHTS, "right_from_tokens": ANSWER}
    for python, found in ((str(tmp_path / "none"), None), (_make(tmp_path), "0.32.0")):
        monkeypatch.setenv("SHUHARI_VLLM_PYTHON", python)
        assert describe_vllm()["version"] == found


def _make(folder: Path) -> str:
    """What answers as an interpreter with vLLM does."""
    program = folder / "python"
    program.write_text("#!/bin/sh\necho 0.32.0\n")
    os.chmod(program, 0o755)
    return str(program)
