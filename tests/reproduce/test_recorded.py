"""Published scores on recorded data: settings of each data set, and every recipe on a small file of the same layout."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from typer.testing import CliRunner

from shuhari.config.overlay import RecipeError
from shuhari.desk.cli import app
from shuhari.lab.reproduce import report
from shuhari.lab.reproduce.published import OTHER, judge
from shuhari.lab.reproduce.recorded import check_data, digest_data, find_data, load_here, span_returns
from shuhari.lab.reproduce.targets import find_target, read_targets
from shuhari.loop.study import train
from shuhari.store import Run

RECORDED = {name: target for name, target in read_targets().items() if target.data}
SMALL = {"steps": 2, "evaluate.every": 0, "evaluate.n": 1, "buffer.draws": 2, "buffer.size": 16}
SPACES = {"Hopper-v4": (11, 3), "HalfCheetah-v4": (17, 6)}  # numbers of an observation and of an action


def write(path: Path, env: str, episodes: int = 3, length: int = 9, **more: Any) -> Path:
    """A file in D4RL's layout (`.hdf5`) or OGBench's for one task (`.npz`): episode i ends by a fall (i even) or is
    cut, and pays i + 1 a step."""
    h5py = pytest.importorskip("h5py")
    rng = np.random.default_rng(0)
    n, (seen, does), at = episodes * length, SPACES[env], np.arange(episodes * length)
    last, whose = at % length == length - 1, at // length
    arrays = {"observations": rng.normal(size=(n, seen)).astype(np.float32),
              "actions": rng.uniform(-0.9, 0.9, (n, does)).astype(np.float32),
              "rewards": (whose + 1).astype(np.float32), "terminals": last & (whose % 2 == 0)}  # fmt: skip
    if path.suffix == ".npz":
        np.savez(path, **arrays | {"terminals": last, "masks": np.ones(n), "next_observations": arrays["observations"]})
        return path
    with h5py.File(path, "w") as file:
        for name, x in (arrays | {"timeouts": last & (whose % 2 == 1)} | more).items():
            file[name] = x
        file["infos/qpos"] = np.zeros((n, 2))
    return path


def test_each_data_set_has_the_coefficients_of_corl() -> None:
    """beta of the policy, of the critics: configs/offline/rebrac of CORL."""
    betas = {
        "hopper": {"medium": (0.01, 0.01), "medium-replay": (0.05, 0.5), "medium-expert": (0.1, 0.01)},
        "halfcheetah": {"medium": (0.001, 0.01), "medium-replay": (0.01, 0.001), "medium-expert": (0.01, 0.1)},
        "walker2d": {"medium": (0.05, 0.1), "medium-replay": (0.05, 0.01), "medium-expert": (0.01, 0.01)},
    }
    for body, kinds in betas.items():
        for kind, (policy, critics) in kinds.items():
            part = RECORDED[f"rebrac-{body}-{kind}"].load(0).tree["part"]
            alpha = part["policy"]["terms"]["deterministic_bc"]["alpha"]
            assert alpha * policy * {"hopper": 3}.get(body, 6) == pytest.approx(1.0)
            assert part["critic"]["terms"]["smoothed_td"]["penalty"] == critics
    scaled = {name for name, target in RECORDED.items() if target.scaled}
    assert scaled == {"iql-hopper-medium", "iql-hopper-medium-replay", "cql-hopper-medium"}
    assert len(RECORDED) == 5 * 9 + 2 * 2


def test_updates_are_a_million_and_windows_a_hundred_thousand() -> None:
    for name, target in RECORDED.items():
        tree = target.load(0).tree
        updates, rows = tree["steps"] * tree["buffer"].get("draws", 1), tree["buffer"]["size"]
        wanted = {"dt": (100_000, 4096), "rebrac": (1_000_000, 256 if target.needs == "ogbench" else 1024)}
        assert (updates, rows) == wanted.get(name.split("-")[0], (1_000_000, 256)), name
        assert Path(tree["buffer"]["data"]["path"]).name == target.data


def test_a_score_in_another_version_of_the_environment_has_no_mark() -> None:
    target = RECORDED["td3-bc-hopper-medium"]
    assert judge([60.0] * 4, target.env, target.published[0]) == OTHER
    assert target.source.endswith("gym_mujoco_v2/hopper_medium-v2.hdf5")


def test_rewards_are_scaled_so_that_returns_span_a_thousand(tmp_path: Path) -> None:
    """Returns 9, 18 and 27 span 18, and what follows the last end is no whole episode."""
    path = write(tmp_path / "hopper_medium-v2.hdf5", "Hopper-v4")
    assert span_returns(path) == 18
    target = replace(RECORDED["iql-hopper-medium"], folder=str(tmp_path))
    assert load_here(target, 1).tree["reward"]["weights"]["task"] == pytest.approx(1000 / 18)
    assert "reward" not in target.load(1).tree  # by which results are told apart
    plain = load_here(replace(RECORDED["iql-hopper-medium-expert"], folder=str(tmp_path), data=path.name), 1).tree
    assert "reward" not in plain and plain["buffer"]["data"]["path"] == str(path)
    alike = write(tmp_path / "alike.hdf5", "Hopper-v4", episodes=1)
    with pytest.raises(RecipeError, match=r"expected returns that differ.* 1 whole episodes"):
        span_returns(alike)
    for rewards, told in (([[1.0, 2.0]] * 27, r"rewards is an array \[27, 2\]"),
                          ([1.0] * 5 + [np.nan] * 22, r"the reward of row 5 is nan \(so in 22 of 27")):  # fmt: skip
        bad = write(tmp_path / "bad.hdf5", "Hopper-v4", rewards=np.array(rewards, np.float32))
        with pytest.raises(RecipeError, match=told):
            span_returns(bad)


def test_a_run_on_other_data_is_not_taken_for_one_on_these(tmp_path: Path) -> None:
    target = replace(RECORDED["td3-bc-hopper-medium"], folder=str(tmp_path))
    kept = tmp_path / "seed-0" / "reproduced.json"
    kept.parent.mkdir()
    path = write(tmp_path / target.data, "Hopper-v4")
    kept.write_text(json.dumps({"data": digest_data(path)}))
    check_data(target, [kept])
    write(tmp_path / target.data, "Hopper-v4", episodes=4)
    with pytest.raises(RecipeError, match=r"seed-0 was measured on another hopper_medium-v2\.hdf5"):
        check_data(target, [kept])
    path.write_bytes(b"<html>")
    with pytest.raises(RecipeError, match="not an HDF5 file"):
        check_data(target, [])


def test_a_task_of_ogbench_says_whether_it_succeeded() -> None:
    """Settings of a task begin anew with its name; episodes of the maze are twice as long as those of evaluation."""
    trees = {name: target.load(0).tree for name, target in RECORDED.items() if target.needs == "ogbench"}
    assert len(trees) == 4 and all(tree["task"]["tells"] == {"success": "final"} for tree in trees.values())
    mazes = [tree for name, tree in trees.items() if "maze" in name]
    assert [tree["evaluate"]["rollout"]["max_steps"] for tree in mazes] == [2000, 2000]


@pytest.mark.parametrize("name", ["iql-halfcheetah-medium", "td3-bc-hopper-medium", "cql-hopper-medium",
                                  "rebrac-hopper-medium", "dt-hopper-medium"])  # fmt: skip
@pytest.mark.filterwarnings("ignore:.*out of date")
def test_a_recipe_trains_on_a_file_of_the_layout(name: str, tmp_path: Path) -> None:
    pytest.importorskip("mujoco")
    target = replace(RECORDED[name], folder=str(tmp_path))
    write(tmp_path / target.data, target.env)
    for _ in train(load_here(target, 0).with_settings(SMALL), tmp_path / "run", rehearsal=False):
        pass
    after = (Run(tmp_path / "run").summary or {})["after"]
    assert np.isfinite(after[target.metric])  # the normalised score, by the name of the file


@pytest.mark.parametrize("recipe", ["iql", "rebrac"])
@pytest.mark.filterwarnings("ignore:.*out of date")
def test_a_recipe_of_ogbench_trains_on_a_file_of_its_layout(recipe: str, tmp_path: Path) -> None:
    """In another environment, which says of no step whether it succeeded; its own are not installed here."""
    pytest.importorskip("mujoco")
    path = write(tmp_path / "task.npz", "Hopper-v4")
    settings = SMALL | {"buffer.data.path": str(path), "task.name": "gym/Hopper-v4"}
    for _ in train(RECORDED[f"{recipe}-cube-single-play"].load(0).with_settings(settings), tmp_path / "run",
                   rehearsal=False):  # fmt: skip
        pass
    assert np.isfinite((Run(tmp_path / "run").summary or {})["after"]["greedy"])


def test_data_that_are_not_there_are_told_with_where_they_are_had(tmp_path: Path) -> None:
    said = CliRunner().invoke(app, ["reproduce", "td3-bc-hopper-medium", "--data", str(tmp_path)])
    assert said.exit_code == 1 and isinstance(said.exception, RecipeError)
    assert "no hopper_medium-v2.hdf5 in the folder" in str(said.exception) and "http" in str(said.exception)
    with pytest.raises(RecipeError, match="did you mean 'iql-hopper-medium'"):
        find_target("iql-hoper-medium")
    assert find_data(find_target("ppo-hopper")) is None


def test_the_list_has_a_table_of_its_own(tmp_path: Path) -> None:
    folder = tmp_path / "reproduce"
    folder.mkdir()
    kept = {"name": "iql-hopper-medium", "runs": [{"seed": 0, "value": 60.0}, {"seed": 1, "value": 70.0}]}
    (folder / "iql-hopper-medium.json").write_text(json.dumps(kept))
    head, rows = report.list_scores(tmp_path)
    assert head == ("data", "iql", "td3-bc", "cql", "rebrac", "dt") and len(rows) == 11
    of = {row[0]: row for row in rows}
    assert of["hopper-medium"][1] == "65.0 ± 7.1 / 67.5 ± 4.4"  # 3.78 · sqrt(4 / 3)
    assert of["hopper-medium"][2] == "60.4 ± 4.0" and of["cube-single-play"][1:] == ("own", "", "", "own", "")
    said = CliRunner().invoke(app, ["reproduce", "--list", "--out", str(tmp_path)])
    assert said.exit_code == 0 and "walker2d-medium-expert" in said.output and "--data" in said.output


def test_the_spaces_above_are_those_of_the_environments() -> None:
    pytest.importorskip("mujoco")
    from shuhari.tasks.gym import Gym

    for env, (seen, does) in SPACES.items():
        made = Gym(env).make()
        assert isinstance(made.observation_space, spaces.Box) and made.observation_space.shape == (seen,)
        assert made.action_space.shape == (does,)
