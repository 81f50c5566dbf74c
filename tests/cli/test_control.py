"""What `show` and `eval` say of a controller: chance, its episodes, an animation, and no pass@k of a return."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import shuhari as library
from small_runs import PPO

TINY = PPO.replace("steps = 8", "steps = 2") + "[evaluate]\nn = 3\nsettings = {max_steps = 30}\n"


@pytest.fixture
def run(shuhari, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("tiny.toml").write_text(TINY)
    done = shuhari("train", "tiny.toml", "--run", "runs/a", "--no-rehearsal")
    assert done.code == 0, done.err
    assert ["held-out", "reward", "chance", "before", "after", "change"] in map(str.split, done.out.splitlines())
    return tmp_path / "runs" / "a"


def test_a_run_of_control(shuhari, run: Path) -> None:
    chance = json.loads((run / "summary.json").read_text())["chance"]
    assert 1 <= chance["greedy"] == chance["length"] <= 30
    shown = shuhari("show", "a").out
    (row,) = [line.split() for line in shown.splitlines() if line.split()[:1] == ["greedy"]]
    assert row[1:3] == ["task", f"{chance['greedy']:.4g}"] and "return" in shown
    assert shown.partition("also")[0].count("reward") == 1, "the reward of a held-out score, and no curve"
    assert "(held-out task)" in shuhari("runs").out
    evaluated = shuhari("eval", "a", "--samples", 2)
    assert evaluated.code == 0 and "mean" in evaluated.out and "pass@" not in evaluated.out
    policy = library.load("runs/a")
    limit = {"evaluate.settings.max_steps": 30}
    alone = json.loads(shuhari("eval", "a", "-n", 3, "--json").out)
    for given in (None, policy.task):
        found = policy.evaluate(given, n=3, **limit)
        assert found["greedy"] == alone["greedy"]["value"], "the same episodes, of the same seed"
    asked = shuhari("eval", "a", "--samples", 2, "-k", 2, "--json")
    assert json.loads(asked.out)["measure"] == "task" and "pass@2" in json.loads(asked.out)


def test_its_episodes(shuhari, run: Path) -> None:
    out = shuhari("show", "a", "--rollouts").out
    assert "--- held-out episode of step 2: test/0" in out and "  [task=1]" in out
    groups = json.loads(shuhari("show", "a", "--rollouts", "--json").out)
    assert [g["problem"]["id"] for g in groups] == ["test/0", "test/1", "test/2"]
    for (episode,) in (g["episodes"] for g in groups):
        assert len(episode["observations"]) == len(episode["actions"]) + 1 and len(episode["observations"][0]) == 4
        assert sum(r["task"] for r in episode["rewards"]) == episode["reward"]["task"] == len(episode["steps"])
    assert shuhari("show", "a", "--video", "a.mp4").code == 2
    assert "no checkpoint of step 7" in shuhari("show", "a", "--rollouts", "--step", 7).err
    drawn = shuhari("show", "a", "--video", "a.gif")
    assert drawn.code == 0 and "video: a.gif" in drawn.out and Path("a.gif").read_bytes().startswith(b"GIF89a")
