"""A replay as a data set: what its run stored is what another one learns from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import shuhari
from shuhari.buffers.recording import order_episodes
from shuhari.config.recipe import load
from shuhari.desk.cli import app
from shuhari.loop.run import train

RECIPE = """
format = 2
threads = 1
[task]
name = "gym/Pendulum-v1"
kwargs.max_episode_steps = 30
[models.policy]
use = "squashed"
hidden = [8]
[rollout]
use = "vector"
lanes = 2
random = 1000
"""
ONLINE = """
[buffer]
use = "replay"
capacity = 150
size = 16
collect = 20
[part.policy]
terms.nll = {}
optimiser = {use = "adamw", lr = 1e-3}
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: Any) -> Path:
    folder = tmp_path_factory.mktemp("replay")
    (folder / "r.toml").write_text("env_steps = 200\n" + RECIPE + ONLINE)
    list(train(load(folder / "r.toml"), folder / "run"))
    return Path(folder / "run")


def test_what_a_replay_holds_is_a_data_set_in_episode_order(run: Path, tmp_path: Path) -> None:
    from shuhari.loop import resume
    from shuhari.loop.run import open_run
    from shuhari.store import Run

    found = CliRunner().invoke(app, ["export", str(run), str(tmp_path / "data"), "--replay"])
    assert found.exit_code == 0 and 'use = "file"' in found.stdout
    assert "transitions; return (reward/task) -" in found.stdout
    card = json.loads((tmp_path / "data" / "card.json").read_text())
    with open_run(load(run)) as opened:
        resume.restore(opened, Run(run).load(None))
        learner: Any = opened.stage.learners["main"]
        ring = learner.buffer.state["ring"]
        columns = learner.buffer.recorded()
        held = int(learner.buffer._find_eligible(ring) is ring and learner.buffer._eligible.sum())
    assert ring.written > ring.capacity  # it has gone round
    assert card["transitions"] == held == int(columns["mask"].sum())
    step = columns["child"] >= 0
    assert torch.equal(columns["child"][step], step.nonzero()[:, 0] + 1)
    # a pendulum's angle moves by at most its top speed in a step, within an episode alone
    angle = torch.atan2(columns["context"][:, 1], columns["context"][:, 0])
    turn = (angle[1:] - angle[:-1] + torch.pi).remainder(2 * torch.pi) - torch.pi
    assert float(turn[step[:-1]].abs().max()) <= 8 * 0.05 + 1e-4
    assert "pre" in columns and not {"reward", "lane", "resumes"} & columns.keys()


def test_another_run_learns_from_it(run: Path, tmp_path: Path) -> None:
    shuhari.export_replay(run, tmp_path / "data")
    offline = f"""
[buffer]
use = "offline"
size = 16
data = {{use = "file", path = "{tmp_path / "data"}"}}
[part.policy]
terms.nll = {{}}
optimiser = {{use = "adamw", lr = 1e-3}}
"""
    (tmp_path / "o.toml").write_text("steps = 3\n" + RECIPE + offline)
    reports = list(train(load(tmp_path / "o.toml"), tmp_path / "run"))
    assert len(reports) == 3 and "spent/env_steps" not in reports[-1]
    shown = CliRunner().invoke(app, ["show", str(tmp_path / "run")])
    assert "data main/main/buffer: " in shown.stdout and "coverage" in shown.stdout


def test_what_cannot_be_exported_is_told(run: Path, tmp_path: Path) -> None:
    with pytest.raises(FileExistsError, match="there already"):
        shuhari.export_replay(run, run)
    with pytest.raises(ValueError, match="no replay 'mian/buffer'; did you mean 'main/buffer'"):
        shuhari.export_replay(run, tmp_path / "x", place="mian/buffer")


def test_chains_keep_the_rewards_of_decisions_alone() -> None:
    rows = {"child": torch.tensor([-1, 0]), "mask": torch.tensor([[False], [True]]), "cont": torch.tensor([0.0, 1.0])}
    columns = {**rows, "reward/task": torch.tensor([[0.0], [3.0]])}
    found = order_episodes(columns)
    assert found["reward/task"][:, 0].tolist() == [3.0, 0.0] and found["cont"].tolist() == [1.0, 0.0]
