"""What `serve` opens: a run at its last step, its best or one of its steps, or a directory; and what it refuses."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from shuhari.desk.api import load
from shuhari.desk.serving.running import open_policy
from shuhari.desk.serving.worker import Worker
from shuhari.store import NoRunError, Run, StoreError


def test_a_run_is_served_as_of_the_step_that_is_named(home: Path) -> None:
    steps = [c["step"] for c in Run("runs/s0").checkpoints()]
    best = Run("runs/s0").find_step("best")
    assert len(steps) > 1
    for text, step in (("s0", steps[-1]), ("runs/s0@best", best), (f"s0@{steps[0]}", steps[0])):
        found = open_policy(text)
        assert (found.name, found.origin) == (f"s0@{step}", f"step {step} of runs/s0")
        wanted = load("runs/s0", step=step).model.module.parameters()
        assert all(torch.equal(a, b) for a, b in zip(found.model.module.parameters(), wanted, strict=True))
    load("runs/s0").save("exported")
    assert open_policy("exported").name == "exported"


def test_what_is_no_language_model_is_refused(home: Path, shuhari) -> None:
    with pytest.raises(NoRunError, match="did you mean"):
        open_policy("s00")
    with pytest.raises(StoreError, match="no checkpoint of step 99"):
        open_policy("s0@99")
    with pytest.raises(TypeError, match="SimpleNamespace writes no text"):
        Worker(SimpleNamespace())
    refused = shuhari("serve", "s0@99", "--port", "0")
    assert refused.code == 2 and "step 99" in refused.err
    for more, told in {
        ("--role", "polcy"): "error: --role: no role 'polcy' among the models; did you mean 'policy'?",
        ("--dtype", "fp16"): "error: dtype is 'fp16': expected float32, bfloat16, float16, or none",
    }.items():
        mistake = shuhari("serve", "s0", *more, "--port", "0")
        assert mistake.code == 2 and told in mistake.err
    away = shuhari("serve", "s0", "--host", "0.0.0.0", "--port", "0")
    assert away.code == 2 and "--key-env" in away.err and "http://" not in away.out
