"""Stored rollouts under another grader: numbers by hand, and graders that are known."""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path

import numpy as np
import pytest

from shuhari.config.recipe import load
from shuhari.desk.replay.regrade import TRAINED, RegradedGroup, regrade, summarise
from shuhari.loop.run import train
from shuhari.store import Run
from small_runs import PPO, write_sums

GRADERS = """
def sevens(completions, k=7, **columns):
    return [float(str(k) in c) for c in completions]

def picky(completions, **columns):
    return [None if "7" in c else 1.0 for c in completions]

def broken(completions, **columns):
    raise RuntimeError("no")
"""
KEPT = """
[store]
every = 1
keep = 9
groups = ["all"]
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with graders.py and a run of three steps that was trained on one of them."""
    home = tmp_path_factory.mktemp("replay")
    (home / "graders.py").write_text(GRADERS)
    (home / "sums.toml").write_text(write_sums(3, 4) + KEPT + '[reward.sevens]\nuse = "graders.py:sevens"\n')
    list(train(load(home / "sums.toml"), home / "run"))
    return home


@pytest.fixture
def home(made: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(made)
    return made


def digest(run: Path) -> dict[str, str]:
    """file -> digest, but for the lock and the log of the database, which reading touches."""
    files = [f for f in run.rglob("*") if f.is_file() and not f.name.endswith(("-wal", "-shm"))]
    return {str(f): hashlib.blake2b(f.read_bytes()).hexdigest() for f in files}


def test_by_hand() -> None:
    """One group was all alike and becomes mixed; in the other, two of three change sides and one goes ungraded."""
    nan = math.nan
    one = RegradedGroup(1, "a", ["x", "y"], {TRAINED: np.array([0.0, 0.0])}, {TRAINED: np.array([0.0, 1.0])})
    old, new = np.array([0.0, 1.0, 1.0, 0.0]), np.array([3.0, 0.0, 1.5, nan])
    two = RegradedGroup(2, "b", list("pqrs"), {TRAINED: old, "f": old}, {TRAINED: new, "f": new}, frozenset({"f"}))
    found = summarise([one, two], limit=2)
    # old away from the mean: 0 0 | -.5 .5 .5 (-.5); new: -.5 .5 | 1.5 -1.5 0
    assert found["advantage"] == {"compared": 5, "other_sign": 2, "gained": 2, "lost": 1}
    assert found["mixed"] == {"old": 1, "new": 2}
    assert found["to_mixed"] == [{"step": 1, "group": "a"}] and found["to_alike"] == []
    assert found["reward"]["old"] == {"mean": pytest.approx(2 / 6), "graded": 6, "ungraded": 0}
    assert found["reward"]["new"] == {"mean": pytest.approx(5.5 / 5), "graded": 5, "ungraded": 1}
    assert found["rewards"]["f"] == {
        "old": {"mean": 0.5, "graded": 4, "ungraded": 2}, "new": {"mean": 1.5, "graded": 3, "ungraded": 3},
        "changed": 3, "lost": 1, "gained": 0,
    }  # fmt: skip
    changes = [(c["group"], c["episode"], c["old"], c["new"]) for c in found["changes"]]
    assert changes == [("b", 0, 0, 3), ("a", 1, 0, 1)] and found["changed"] == 5


def test_the_same_grader_changes_nothing(home: Path) -> None:
    before = digest(home / "run")
    found = regrade("run", ["graders.py:sevens"])
    assert found["groups"] == 12 and found["episodes"] == 48 and found["whole"] and found["steps"] == [1, 2, 3]
    entry = found["rewards"]["sevens"]
    assert entry["old"] == entry["new"] and entry["changed"] == 0 and found["changes"] == []
    means = Run("run").metrics()["reward/mean"]
    assert entry["old"]["mean"] == pytest.approx(sum(means) / 3) and 0 < entry["old"]["mean"] < 1
    assert found["advantage"]["compared"] == 48 and found["advantage"]["other_sign"] == 0
    assert digest(home / "run") == before
    json.dumps(found, allow_nan=False)


def read_texts(*steps: int) -> list[str]:
    return [t.steps[-1].info["text"] for s in steps for g in Run("run").rollouts(s) for t in g["trajectories"]]


def test_a_reward_of_ours_with_settings(home: Path) -> None:
    sets = ["reward.repetition.n=1", "reward.repetition.unit=character", "reward.repetition.weight=2"]
    found = regrade("run", ["repetition"], sets=[*sets, "reward.weights.repetition=1"], first=2, last=2)
    said = [t.removesuffix("\n") for t in read_texts(2)]
    penalties = [-2 * (1 - len(set(t)) / len(t)) if t else 0.0 for t in said]
    assert found["steps"] == [2] and found["graders"] == {"repetition": "repetition"}
    assert found["rewards"]["repetition"]["new"]["mean"] == pytest.approx(sum(penalties) / 16)
    assert found["reward"]["new"]["mean"] == pytest.approx(sum(penalties) / 16)


def test_a_grader_that_reads_another_is_asked_again(home: Path) -> None:
    found = regrade("run", ["sevens=graders.py:picky", "length"], sets=["reward.length.of=sevens"])
    unknown = sum("7" in t for t in read_texts(1, 2, 3))
    assert found["rewards"]["length"]["new"]["ungraded"] == unknown > 0
    assert found["graders"] == {"sevens": "graders.py:picky", "length": "length"}


def test_a_grader_that_knows_less(home: Path) -> None:
    """What it leaves ungraded is counted, and is not 0; the others' advantages are those among themselves."""
    found = regrade("run", ["sevens=graders.py:picky"])
    unknown = sum("7" in t for t in read_texts(1, 2, 3))
    assert found["rewards"]["sevens"]["new"] == {"mean": 1.0, "graded": 48 - unknown, "ungraded": unknown}
    assert found["rewards"]["sevens"]["lost"] == unknown > 0 and found["mixed"]["new"] == 0
    assert found["reward"]["new"]["ungraded"] == unknown and found["failed"] == 0
    assert found["to_alike"] and not found["to_mixed"]


def test_a_grader_that_fails_gives_none(home: Path) -> None:
    found = regrade("run", ["sevens=graders.py:broken"], first=3)
    assert found["rewards"]["sevens"]["new"] == {"mean": None, "graded": 0, "ungraded": 16}
    assert found["failed"] == 4 and "RuntimeError: no" in found["problems"][0]
    assert all(c["new"] is None and c["old"] is not None for c in found["changes"])


def test_weights_alone(home: Path) -> None:
    found = regrade("run", sets=["reward.weights.score=0.5"])
    assert found["graders"] == {} and found["weights"]["new"] == {"score": 0.5}
    assert found["weights"]["old"] == {"sevens": 1.0} and found["rewards"]["sevens"]["changed"] == 0


@pytest.mark.parametrize(
    ("rewards", "sets", "message"),
    [
        ([], [], "no grader of stage 'main' differs"),
        (["graders.py:seven"], [], "has no 'seven'; did you mean 'sevens'"),
        (["lenght"], [], "did you mean 'length'"),
        (["=x"], [], "names no grader"),
        ([], ["rollout.n=2"], "rollout.n: expected a setting of a grader"),
        ([], ["reward.sevens.timeot=1"], "reward.sevens.timeot"),
        (["graders.py:sevens"], ["reward.weights.svens=1"], "no grader gives a reward 'svens'"),
    ],
)
def test_mistakes(home: Path, rewards: list[str], sets: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        regrade("run", rewards, sets=sets)


def test_steps_that_are_not_there(home: Path) -> None:
    with pytest.raises(ValueError, match=r"keeps no rollouts of steps 7\.\.9; there are some of 3 steps, 1 to 3"):
        regrade("run", ["graders.py:picky"], first=7, last=9)


def test_runs_that_keep_nothing_say_why(home: Path, tmp_path: Path) -> None:
    (tmp_path / "none.toml").write_text(write_sums(1, 2) + "[store]\nrollouts = 0\n")
    (tmp_path / "lanes.toml").write_text(PPO)
    list(train(load(tmp_path / "none.toml"), tmp_path / "none"))
    list(train(load(tmp_path / "lanes.toml", ["steps=1"]), tmp_path / "lanes"))
    with pytest.raises(ValueError, match=r"\[store\] rollouts says how many"):
        regrade(str(tmp_path / "none"), ["graders.py:picky"])
    with pytest.raises(ValueError, match="stepped in lanes"):
        regrade(str(tmp_path / "lanes"), ["graders.py:picky"])
