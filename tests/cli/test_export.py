"""`export` from the command line: what it says, and each mistake in one line with exit code 2."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch


def test_a_model_goes_out_and_how_to_load_it_is_said(shuhari, home: Path) -> None:
    from transformers import AutoModelForCausalLM

    done = shuhari("export", "s0@best", "models/sums", "--shard", "1KB", "--dtype", "bfloat16")
    assert done.code == 0 and done.err == ""
    assert "load: AutoModelForCausalLM.from_pretrained('models/sums')" in done.out
    lm = AutoModelForCausalLM.from_pretrained("models/sums")
    assert lm.dtype == torch.bfloat16 and len(list(Path("models/sums").glob("*.safetensors"))) > 1
    again = shuhari("export", "latest", "models/sums", "--force", "--json")
    told = json.loads(again.out)
    assert told["kind"] == "causal" and told["step"] == 4 and told["files"].keys() >= {"config.json", "tokenizer.json"}
    assert AutoModelForCausalLM.from_pretrained("models/sums").dtype == torch.float32


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["s7", "out"], "no run 's7'"),
        (["s0@7", "out"], "no checkpoint of step 7; checkpoints there: steps"),
        (["s0", "out", "--role", "critic"], "no role 'critic'"),
        (["s0", "out", "--adapter"], "has no adapters"),
        (["s0", "out", "--dtype", "bf16"], "did you mean 'bfloat16'"),
        (["s0", "runs/s0/model"], "lies in the run"),
        (["s0", "runs"], "is not empty"),
        (["s0", "runs", "--force"], "not written there by shuhari"),
    ],
)
def test_mistakes(shuhari, home: Path, argv: list[str], told: str) -> None:
    done = shuhari("export", *argv)
    text = " ".join(done.err.replace("│", " ").split())
    assert done.code == 2 and told in text and "Traceback" not in text
    assert not (home / "out").exists() and (home / "runs" / "s1" / "run.sqlite").is_file()


def test_a_directory_that_cannot_be_read_stops_a_run_before_its_first_step(shuhari, home: Path) -> None:
    (home / "hf").mkdir()
    where = ["--set", 'models.policy={use="causal", path="hf"}', "--run", "runs/new"]
    done = shuhari("train", "tiny.toml", *where)
    assert done.code == 2 and "the run cannot start: hf is no model: it has no config.json" in done.err


def test_a_run_goes_on_with_other_threads(shuhari, home: Path) -> None:
    done = shuhari("train", "tiny.toml", "--seed", 0, "--run", "runs/s0", "--set", "threads=1")
    assert done.code == 0 and "runs/s0 is complete" in done.err
