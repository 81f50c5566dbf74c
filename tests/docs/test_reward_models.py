"""The page of reward models: its commands, one after the other, over a tiny model."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification
from typer.testing import CliRunner

from chat_models import save_chat
from shuhari.desk.cli import app
from shuhari.store import Run

PAGE = Path(__file__).parents[2] / "docs" / "reward-models.md"
FILE = re.compile(r"^`(?P<name>[\w.]+)`\n\n```toml\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
SMALL = ["steps=1", "buffer.size=2", "evaluate.n=2", "threads=1"]
ANSWERS = ["rollout.n=2", "rollout.sampling.max_new=4"]
NAMES = (("graded", "learnt"), ("by_role", "learnt"), ("stepped", "steps"), ("watched", "other"), ("gated", "gated"),
         ("apart", "learnt"), ("voted", "sure"))  # fmt: skip
ROWS = {
    "problems": {"answer": "2"},
    "pairs": {"chosen": "It is 2.", "rejected": "It is 3."},
    "labels": {"completion": "It is 2.", "label": 0.5},
    "steps": {"steps": ["What is it?", "It is 3."], "labels": [True, False]},
}


@pytest.mark.timeout(300)  # thirteen runs, which take seconds of a quiet machine
def test_the_commands_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.set_num_threads(1)
    save_chat(tmp_path / "MODEL")
    for name, row in ROWS.items():
        lines = [json.dumps({"prompt": f"What is {i} + 1?", **row}) for i in range(40)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines), encoding="utf-8")
    page = PAGE.read_text(encoding="utf-8")
    for found in FILE.finditer(page):
        (tmp_path / found["name"]).write_text(found["text"], encoding="utf-8")
    commands = re.findall(r"^shuhari (.*)$", page, re.MULTILINE)
    assert len(commands) == 16
    for command in commands:
        argv = shlex.split(command)
        if argv[0] == "train":
            own = SMALL if argv[1].startswith("pretrained/") else [*SMALL, *ANSWERS]
            argv += [part for setting in own for part in ("--set", setting)]
        told = CliRunner().invoke(app, argv)
        assert told.exit_code == 0, f"{command}: {told.output}"
    for run, name in NAMES:
        metrics = Run(Path("runs") / run).metrics()
        assert {f"reward/{name}", f"evaluate/greedy.{name}", "evaluate/greedy.maths"} <= {*metrics}, run
    assert {"evaluate/majority.mean", "evaluate/weighed.mean"} <= {*Run(Path("runs/voted")).metrics()}
    for name in ("rm", "orm", "rm2"):
        assert AutoModelForSequenceClassification.from_pretrained(name).config.num_labels == 1
    assert AutoModelForTokenClassification.from_pretrained("prm").config.id2label == {0: "bad", 1: "good"}
    same = [Run(Path("runs") / run).metrics()["reward/learnt"] for run in ("graded", "by_role")]
    assert same[0] == pytest.approx(same[1], abs=1e-4), "a directory and the role that it was written from"
