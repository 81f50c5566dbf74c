"""`shuhari reproduce`: published numbers, when one is reached, and runs that go on where they stood."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from shuhari.config.overlay import RecipeError, read_budgets
from shuhari.desk.cli import app
from shuhari.desk.cli.reproducing import MODULES, check_installed
from shuhari.lab.reproduce import report
from shuhari.lab.reproduce import runs as made
from shuhari.lab.reproduce.published import (
    ABOVE,
    BESIDE,
    DIVERGED,
    MISSED,
    OTHER,
    REACHED,
    WIDE,
    Published,
    Target,
    judge,
)  # fmt: skip
from shuhari.lab.reproduce.runs import ENDED, list_values, measure, read_result
from shuhari.lab.reproduce.targets import find_target, read_targets
from shuhari.store.files import StoreError
from shuhari.tasks.gym import Gym


def test_a_mean_is_reached_within_two_standard_errors_of_the_difference() -> None:
    there = Published("A", 100.0, "https://a", "X-v4", seeds=4, deviation=8.0)
    ours = [88.0, 92.0, 90.0, 90.0]  # mean 90, variance 8/3: the error is sqrt(2/3 + 16) = 4.0825
    assert judge(ours, "X-v4", there) == MISSED  # 90 < 100 - 8.165
    assert judge([x + 1.83 for x in ours], "X-v4", there) == MISSED
    assert judge([x + 1.84 for x in ours], "X-v4", there) == REACHED  # 91.84 > 91.835
    assert judge([107.9] * 4, "X-v4", there) == REACHED  # 2 errors are 8
    assert judge([108.1] * 4, "X-v4", there) == ABOVE
    assert judge([60.0, 100.0, 100.0, 120.0], "X-v4", there) == WIDE  # 2 errors are 26.4: a loss of 25 would pass
    assert judge(ours, "X-v4", there, diverged=1) == DIVERGED
    assert judge([100.0] * 4, "X-v4", replace(there, ddof=0)) == REACHED
    assert replace(there, ddof=0).spread == pytest.approx(8.0 * math.sqrt(4 / 3))  # of n - 1
    assert judge([200.0], "X-v4", there) == ""  # no spread of ours
    assert judge(ours, "X-v5", there) == OTHER
    assert judge(ours, "X-v4", replace(there, seeds=1, deviation=None)) == BESIDE
    assert judge(ours, "X-v4", replace(there, budget="10M steps")) == "10M steps there"


def test_every_target_has_a_recipe_of_its_protocol() -> None:
    for name, target in read_targets().items():
        tree = target.load(3).tree
        assert tree["seed"] == 3 and tree["task"]["name"] == f"gym/{target.env}", name
        assert read_budgets(target.load(0).stages[-1]), name
        assert target.needs in ("", *MODULES) and target.minutes > 0
        assert target.seeds >= (1 if name == "ppo-pong-2m" else 3), name
        assert all(p.source.startswith("https://") and p.env.split("-v")[0] in target.env for p in target.published)
        if target.metric not in ("greedy", "greedy.normalised", "greedy.success", "rollout/return"):
            pytest.fail(f"{name}: metric {target.metric!r}")


@pytest.mark.parametrize("name", sorted({t.env: n for n, t in read_targets().items()}.values()))
@pytest.mark.filterwarnings("ignore:.*out of date")
def test_the_environment_of_a_target_can_be_made(name: str) -> None:
    target = read_targets()[name]
    try:
        check_installed(target.needs)
    except RecipeError as missing:
        pytest.skip(str(missing))
    task = dict(target.load(0).tree["task"])
    Gym(target.env, wrappers=task.get("wrappers", ())).make()


def test_a_time_limit_may_count_as_an_end() -> None:
    ends = []
    for wrappers in ((), ("shuhari.tasks.limits.EndAtLimit",)):
        env = Gym("Pendulum-v1", kwargs={"max_episode_steps": 3}, wrappers=wrappers).make()
        env.reset(seed=0)
        ends.append([env.step(np.zeros(1, np.float32))[2:4] for _ in range(3)])
    go = (False, False)
    assert ends == [[go, go, (False, True)], [go, go, (True, False)]]


def test_a_peer_is_judged_by_its_seeds_and_its_curves() -> None:
    """Lines from 0 to a, over steps 0 to 10: their mean is a / 2."""

    def side(ends: list[float]) -> list[dict[str, object]]:
        return [{"seed": i, "value": a, "curve": [[0, 0.0], [10, a]]} for i, a in enumerate(ends)]

    result = {"runs": side([90.0, 100.0, 110.0]), "peer": {"by": "P", "runs": side([80.0, 100.0, 90.0])}}
    ahead, error = report.compare_curves(result) or (math.nan, math.nan)
    assert ahead == pytest.approx(5.0) and error == pytest.approx(math.sqrt(25 / 3 + 25 / 3))
    assert report.compare_curves(result | {"runs": result["runs"][:2]}) is None
    assert report.judge_beside([90.0, 100.0, 110.0], [80.0, 100.0, 90.0], "X", 0) == "run here, reached"
    assert report.judge_beside([90.0, 100.0], [80.0, 100.0, 90.0], "X", 0) == "run here"


def test_an_unknown_name_is_told_with_the_nearest() -> None:
    assert find_target("PPO_Hopper").name == "ppo-hopper"
    with pytest.raises(RecipeError, match=r"ppo-hoper.*did you mean 'ppo-hopper'"):
        find_target("ppo-hoper")


def test_a_missing_extra_is_told_with_the_line_for_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MODULES, "box2d", "no_such_module_anywhere")
    with pytest.raises(RecipeError, match=r'pip install "shuhari\[box2d\]"'):
        check_installed("box2d")
    check_installed("")


def small(name: str = "ppo-small") -> Target:
    return Target(name, "reproduce/ppo_cartpole", "greedy", "2 episodes after 512 steps", 2, 0.1,
                  (Published("A", 9.0, "https://a", "CartPole-v1", 3, 1.0),),
                  {"env_steps": 512, "evaluate.n": 2, "part.policy.epochs": 1})  # fmt: skip


def test_runs_are_kept_as_they_end_and_none_is_made_again(tmp_path: Path) -> None:
    target, runs, out = small(), tmp_path / "runs", tmp_path / "results"
    measure({target.name: (target, [0])}, runs, out, workers=1)
    first = read_result(target.name, out)
    assert first is not None and [run["seed"] for run in first["runs"]] == [0]
    (run,) = first["runs"]
    assert run["value"] == list_values(first)[0] > 0 and math.isfinite(run["cpu_s"])
    assert 512 <= run["curve"][-1][0] < 520 and len(run["curve"]) == 2  # a step ends when all lanes have decided
    at = (runs / target.name / "seed-0" / ENDED).stat().st_mtime_ns
    measure({target.name: (target, [0, 1])}, runs, out, workers=1)
    second = read_result(target.name, out)
    assert second is not None and [run["seed"] for run in second["runs"]] == [0, 1]
    assert second["runs"][0] == run and (runs / target.name / "seed-0" / ENDED).stat().st_mtime_ns == at


def test_processor_time_is_noted_while_a_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A seed that is killed keeps what it has spent."""
    ticks = iter(range(100))
    monkeypatch.setattr(made, "NOTED", 0.5)
    monkeypatch.setattr(made, "read_processor_time", lambda: float(next(ticks)))
    noted: list[float] = []
    monkeypatch.setattr(made, "note_time", lambda path, seconds: noted.append(seconds))
    monkeypatch.setattr("shuhari.loop.study.train", lambda *_, **__: iter([{}, {}]))
    monkeypatch.setattr(made, "read_value", lambda *_: 9.0)
    monkeypatch.setattr(made, "Run", lambda path: None)
    assert made.Seed(small(), 0, tmp_path).make() == ""
    assert noted == [1.0, 1.0, 1.0]


def test_a_peer_beside_ours_stays_when_ours_is_measured_again(tmp_path: Path) -> None:
    target, out = small(), tmp_path / "results"
    file = out / "reproduce" / f"{target.name}.json"
    file.parent.mkdir(parents=True)
    peer = {"by": "B", "version": "1", "runs": [{"seed": 0, "value": 9.5, "curve": [[1, 2.0], [2, 3.0]]}]}
    file.write_text(json.dumps({"format": 1, "name": target.name, "runs": [], "peer": peer}))
    measure({target.name: (target, [0])}, tmp_path / "runs", out, workers=1)
    kept = read_result(target.name, out)
    assert kept is not None and kept["peer"] == peer and kept["protocol"] == target.protocol


def test_the_list_names_what_is_left_and_its_cost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    done = CliRunner().invoke(app, ["reproduce", "--list", "ppo-cartpole", "--out", str(tmp_path)])
    assert done.exit_code == 0 and "not measured" in done.output and "500.0" in done.output
    assert "left: ppo-cartpole; about 5 minutes" in " ".join(done.output.split())
    assert CliRunner().invoke(app, ["reproduce"]).exit_code == 2


@pytest.mark.parametrize("text", ["", '{"runs": [', '{"name": "ppo-cartpole"}', "[]", '{"runs": [{"seed": 0}]}'])
def test_a_damaged_result_is_named(tmp_path: Path, text: str) -> None:
    file = tmp_path / "reproduce" / "ppo-cartpole.json"
    file.parent.mkdir()
    file.write_text(text)
    with pytest.raises(StoreError, match=r"ppo-cartpole\.json is (damaged|no result).*: move it away"):
        read_result("ppo-cartpole", tmp_path)


def test_mistakes_in_the_command_are_told_before_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "taken").touch()
    for options, told in {
        ("all", "ppo-cartpol"): "`all` stands alone",
        ("ppo-cartpole", "--out", str(tmp_path / "taken")): "taken: File exists: expected a folder",
    }.items():
        done = CliRunner().invoke(app, ["reproduce", *options, "--runs", str(tmp_path / "runs")])
        assert done.exit_code == 2 and told in done.output, done.output


def test_seeds_that_are_made_again_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(made, "measure", lambda *_, **__: None)
    file = tmp_path / "reproduce" / "ppo-cartpole.json"
    file.parent.mkdir()
    file.write_text(json.dumps({"runs": [{"seed": s, "value": 9.0} for s in (0, 1, 7)]}))
    ended = tmp_path / "runs" / "ppo-cartpole" / "seed-0" / ENDED
    ended.parent.mkdir(parents=True)
    ended.touch()
    options = ["--out", str(tmp_path), "--runs", str(tmp_path / "runs"), "--seeds", "2"]
    told = CliRunner().invoke(app, ["reproduce", "ppo-cartpole", *options]).output
    assert "has seeds 7 from before" in told
    assert "has seeds 1, and" in told and "these are made again" in told


def test_spreads_are_written_with_their_digits() -> None:
    assert report.format_spread(2382.86, 271.74) == "2,383 ± 272"
    assert report.format_spread(-86.36, 1.32) == "-86.4 ± 1.3"
    assert report.describe([1.0, 3.0]) == "2.0 ± 1.4"
    assert report.describe([]) == "not measured"
