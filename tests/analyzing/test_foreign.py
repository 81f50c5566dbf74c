"""Curves of other programs, and what is said of files that are cut or of something else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shuhari.desk.analyzing.foreign import read_curves
from shuhari.kernel.findings import AnalysisError, Curves

PROGRESS = "rollout/ep_rew_mean,time/total_timesteps,train/loss\n20.5,2048,\n31.0,4096,0.25\n"
MONITOR = '#{"t_start": 100.0, "env_id": "CartPole-v1"}\nr,l,t\n10.0,10,0.5\n25.0,25,1.5\n'


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_the_state_of_a_trainer_of_transformers(tmp_path: Path) -> None:
    """Entries of one step are one row, and the newest checkpoint's file has all of them."""
    history = [{"step": 2, "loss": 0.5, "epoch": 0.1}, {"step": 2, "eval_reward": 0.25}]
    history.append({"step": 4, "loss": 0.25, "note": "x"})
    write(tmp_path / "out" / "checkpoint-2" / "trainer_state.json", json.dumps({"log_history": history[:1]}))
    write(tmp_path / "out" / "checkpoint-10" / "trainer_state.json", json.dumps({"log_history": history}))
    found = read_curves(tmp_path / "out")
    assert (found.kind, found.axis) == ("trainer", "step")
    assert found.columns == {"step": [2, 4], "loss": [0.5, 0.25], "epoch": [0.1, None], "eval_reward": [0.25, None]}
    assert found.read("eval_reward")[1].tolist() == [0.25]


def test_the_progress_and_the_monitor_of_stable_baselines3(tmp_path: Path) -> None:
    progress = read_curves(write(tmp_path / "a" / "progress.csv", PROGRESS).parent)
    assert (progress.kind, progress.axis) == ("progress", "time/total_timesteps")
    assert progress.columns["train/loss"] == [None, 0.25]
    monitor = read_curves(write(tmp_path / "b" / "monitor.csv", MONITOR).parent)
    assert monitor.columns == {"timesteps": [10, 35], "r": [10, 25], "l": [10, 25], "t": [0.5, 1.5]}


def test_several_monitors_are_one_curve_in_the_order_of_time(tmp_path: Path) -> None:
    write(tmp_path / "0.monitor.csv", MONITOR)
    write(tmp_path / "1.monitor.csv", MONITOR.replace("100.0", "100.2"))
    found = read_curves(tmp_path)
    assert found.columns["timesteps"] == [10, 20, 45, 70]
    assert found.columns["r"] == [10, 10, 25, 25]


def test_a_plain_table_without_a_known_axis_counts_its_rows(tmp_path: Path) -> None:
    found = read_curves(write(tmp_path / "a.csv", "name,score\nfirst,1\n\nsecond,2\n"))
    assert (found.axis, found.columns) == ("row", {"row": [0, 1], "score": [1, 2]})
    assert read_curves(write(tmp_path / "a.tsv", "step\tscore\n5\t1\n")).read("score")[0].tolist() == [5]


def test_a_parquet_table(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    arrow = pytest.importorskip("pyarrow")
    parquet.write_table(arrow.table({"step": [1, 2], "reward": [0.5, None]}), tmp_path / "a.parquet")
    assert read_curves(tmp_path / "a.parquet").columns == {"step": [1, 2], "reward": [0.5, None]}


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.csv", "step,reward,loss\n1,2,3\n2,3\n", "line 3 has 2 of the 3 columns step, reward, loss: is the"),
        ("a.csv", "step,step\n1,2\n", "line 1: expected a head of different names"),
        ("a.csv", "", "line 1: expected a head"),
        ("a.csv", "step,name\n", "no row of numbers"),
        ("a.txt", "step\n", "is not known as curves: expected a run, or one of trainer_state.json"),
        ("trainer_state.json", '{"log_history": [{"step": 1', "no whole trainer_state.json"),
        ("trainer_state.json", '{"epoch": 1}', "KeyError: 'log_history'"),
        ("trainer_state.json", '{"log_history": []}', "is empty"),
        ("trainer_state.json", '{"log_history": [{"loss": 1}]}', "entry 1 of log_history has no whole number `step`"),
        ("monitor.csv", "r,l,t\n1,2,3\n", "line 1: expected # and an object with t_start"),
        ("monitor.csv", '#{"t_start": 1}\nr,t\n1,2\n', "line 2: no column 'l'"),
        ("monitor.csv", '#{"t_start": 1}\nr,l,t\n1,2,3\n1,2\n', "line 4 has 2 of the 3 columns"),
    ],
)  # fmt: skip
def test_a_file_that_is_cut_or_of_something_else(name: str, text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(AnalysisError, match=said):
        read_curves(write(tmp_path / name, text))


def test_a_folder_without_curves_says_what_is_there(tmp_path: Path) -> None:
    write(tmp_path / "model.bin", "")
    with pytest.raises(AnalysisError, match=r"no curves \(there: model.bin\): expected trainer_state.json"):
        read_curves(tmp_path)


def test_the_last_stage_counts_from_where_it_begins() -> None:
    columns = {"step": [0, 1, 2, 3], "stage": ["warm", "warm", "rl", "rl"], "tokens": [5, 10, 14, 20]}
    columns["score"] = [0, 1, 2, 3]
    whole = Curves("run", Path(), "run", columns)
    assert whole.select_last("tokens").columns["tokens"] == [4, 10]
    assert whole.select_last().read("score")[0].tolist() == [1, 2]
    alone = Curves("run", Path(), "run", {**columns, "stage": ["rl"] * 4})
    assert alone.select_last() is alone
