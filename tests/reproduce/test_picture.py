"""The picture of published numbers: the lines of its panels, for a folder of results that is written here."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from shuhari.lab.reproduce.picture import digest, draw, list_measured, save_curves


def plant(folder: Path, name: str, metric: str, values: list[float], **more: object) -> None:
    """A result whose seed s has the curve (0, s), (10, 2 s + 10)."""
    runs = [{"seed": s, "value": v, "curve": [[0, s], [10, 2 * s + 10]]} for s, v in enumerate(values)]
    file = folder / "reproduce" / f"{name}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"name": name, "metric": metric, "protocol": "p", "runs": runs, **more}))


def test_a_panel_has_its_seeds_their_mean_and_the_published_line(tmp_path: Path) -> None:
    peer = {"by": "B", "version": "1.2", "runs": [{"seed": 0, "value": 1.0}, {"seed": 1, "value": 2.0}]}
    plant(tmp_path, "ppo-pong", "rollout/return", [12.0, 14.0])
    plant(tmp_path, "ppo-cartpole", "greedy", [400.0, 500.0, 450.0], peer=peer)
    found = list_measured(["ppo-cartpole", "dqn-cartpole", "ppo-pong"], tmp_path)
    assert list(found) == ["ppo-cartpole", "ppo-pong"]
    figure = draw(found)
    first, second = figure.axes
    lines = {line.get_label(): line for line in first.get_lines() if not line.get_label().startswith("_")}
    assert list(lines) == ["3 seeds", "their mean", "evaluated at the end: 450.0 ± 50.0",
                           "rl-zoo: 500.0 (github.com/DLR-RM/rl-baselines3-zoo/blob/master/benchmark.md)",
                           "B 1.2, run here: 1.5 ± 0.7"]  # fmt: skip
    seeds = [line.get_xydata().tolist() for line in first.get_lines()[:3]]
    assert seeds == [[[0, s], [10, 2 * s + 10]] for s in range(3)]
    mean, ends, there, here = list(lines.values())[1:]
    assert mean.get_xydata().tolist() == [[0, 1], [10, 12]]
    assert ends.get_xydata().tolist() == [[10, 400], [10, 500], [10, 450]]
    assert set(there.get_ydata()) == {500.0} and set(here.get_ydata()) == {1.5}
    assert first.get_title().startswith("ppo-cartpole: CartPole-v1")
    labels = [line.get_label() for line in second.get_lines()]
    assert labels[2] == "their mean" and labels[3].startswith("CleanRL: 20.4 ± 0.2 (github.com/vwxyzjn/cleanrl")
    assert len(labels) == 4, "what is compared is the end of the curve itself"
    assert np.ptp([ax.get_position().x0 for ax in figure.axes]) < 0.05, "one panel a row"


def test_the_file_says_what_it_shows(tmp_path: Path) -> None:
    to = tmp_path / "curves.svg"
    assert not save_curves(["ppo-pong"], tmp_path, to) and not to.exists()
    plant(tmp_path, "ppo-pong", "rollout/return", [12.0])
    before = digest(list_measured(["ppo-pong"], tmp_path))
    assert save_curves(["ppo-pong"], tmp_path, to) and before in to.read_text(encoding="utf-8")
    plant(tmp_path, "ppo-pong", "rollout/return", [12.5])
    assert digest(list_measured(["ppo-pong"], tmp_path)) != before
