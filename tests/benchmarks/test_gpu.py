"""The script for one GPU, on a CPU: its first part, the smallest piece of its second, and weights in parts."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


def load(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module of benchmarks/gpu, whose modules find each other by the path."""
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.syspath_prepend(str(FOLDER / "gpu"))
    return importlib.import_module(name)


def test_facts_and_a_layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notes_of, facts = load("notes", monkeypatch), load("facts", monkeypatch)
    right = load("right", monkeypatch)
    notes = notes_of.Notes(tmp_path / "found.json")
    facts.main(notes)
    sizes = {"kind": "gpt2", "vocab_size": 300, "initializer_range": 0.08, **right.LAYOUTS["gpt2"], "n_embd": 32,
             "n_layer": 1, "n_head": 2}  # fmt: skip

    def one() -> dict[str, object]:
        lm = right.network(sizes, "cpu")
        rows = right.random_rows(300, 2, 2, 5, 6)
        return {"forward": right.forward(right.causal(lm), None, rows, "cpu"),
                "texts": right.texts(right.causal(lm), [c for c, _ in rows[::2]], 6, "cpu", ("",))}  # fmt: skip

    notes.attempt("gpt2", 0, one)
    notes.attempt("wrong", 0, lambda: 1 / 0)
    notes.attempt("later", 1e9, one)
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["machine"]["device"] == "cpu" and found["limits"]["copy_gb_per_s"] > 0
    forward, texts = found["gpt2"]["forward"], found["gpt2"]["texts"]
    assert forward["logits"]["max"] < 1e-4 * forward["largest_logit"]
    assert forward["float32"]["log_prob"]["max"] < 1e-4 and forward["float32"]["gradient"] < 1e-4
    assert texts["greedy, float32"] == {"rows": 2, "same": 2, "first_difference": [None, None]}
    assert texts["sampled in float32, scored in float32"]["max"] < 1e-4
    assert "ZeroDivisionError" in found["wrong"]["failed"] and "left out" in found["later"]


def test_weights_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = load("weights", monkeypatch)
    file, folder = tmp_path / "a.gguf", tmp_path / "parts"
    file.write_bytes(bytes(range(256)) * 5 + b"end")
    parts = weights.cut(file, folder)
    assert [len(p.read_bytes()) for p in parts] == [321, 321, 321, 320]
    last = parts[2].read_bytes()
    parts[2].unlink()
    assert weights.find((folder,)) == (None, f"1 of 4 parts are missing: {parts[2].name}")
    parts[2].write_bytes(last[::-1])
    with pytest.raises(ValueError, match="its digest differs"):
        weights.find((folder,))
    parts[2].write_bytes(last)
    whole, why = weights.find((folder,))
    assert why == "" and whole.read_bytes() == file.read_bytes()


def test_what_wheels_are_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    wheels = load("wheels", monkeypatch)
    names = {r.name for r in wheels.wanted([])}
    assert {"gymnasium", "pydantic", "tomli-w", "gguf"} <= names and not names & {"torch", "numpy", "transformers"}
