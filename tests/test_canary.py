"""Whose code is run, and when. A canary is a module or a function that leaves a mark as it runs: what only reads a run
leaves none, and no module of the current folder runs unless a recipe names it."""

from __future__ import annotations

import inspect
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import gymnasium
import pytest
import torch
from starlette.testclient import TestClient

import shuhari as package
from shuhari.config.recipe import load
from shuhari.desk.api import train
from shuhari.desk.board.app import make_app
from shuhari.desk.board.views import COSTLY, VIEWS
from shuhari.desk.cli import main
from shuhari.distributed.children import open_process
from shuhari.kernel import registry
from shuhari.loop.outside import find_outside

SCRIPT = "import sys; del sys.path[0]; from shuhari.desk.cli import main; main()"  # where the installed command begins
COMMON = (
    "sitecustomize usercustomize pynvml tomllib tomli numpy json torch yaml typing random pickle socket struct string "
    "secrets select queue signal tempfile subprocess multiprocessing encodings runpy six attr rich typer click "
    "pydantic gymnasium safetensors transformers matplotlib plotly uvicorn starlette wandb trackio tensorboard mujoco "
    "vllm ray psutil sqlite3 datasets pandas pyarrow jax flax test tests graders config utils helpers models setup"
).split()
MARK = "import os\nopen(os.environ['CANARY'], 'a').write(__name__ + '\\n')\n"
WORLD = """import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv
{mark}
class Pole(CartPoleEnv):
    pass
gymnasium.register("{name}-v0", entry_point=Pole)
"""
GRADER = "def exact(completions, **columns):\n    return [0.0 for _ in completions]\n"
SUMS = """steps = 2
[task]
name = "arithmetic"
digits = 1
[models.policy]
use = "causal"
hidden = 16
layers = 1
heads = 2
intermediate = 16
[rollout]
n = 2
sampling.max_new = 3
[buffer]
size = 2
[store]
rollouts = 2
[reward.exact]
use = "graders.py:exact"
[collect.advantage]
[part.policy]
terms.clip = {}
optimiser.lr = 1e-2
[evaluate]
n = 2
"""
POLE = """extends = "baselines/ppo_cartpole"
[task]
name = "gym/nest.egg:Egg-v0"
kwargs.max_episode_steps = 20
"""


@pytest.fixture
def canary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CANARY", str(tmp_path / "canary"))
    return tmp_path / "canary"


@pytest.fixture
def stranger(tmp_path: Path, canary: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """runs/pole, whose world is a module of a package, and runs/sums, whose grader is a file: both come with copies of
    the code, which have the mark, and their originals are gone."""
    torch.set_num_threads(1)
    home = tmp_path / "made"
    (home / "nest").mkdir(parents=True)
    (home / "nest" / "__init__.py").write_text("")
    (home / "nest" / "egg.py").write_text(WORLD.format(name="Egg", mark=MARK))
    (home / "graders.py").write_text(MARK + GRADER)
    (home / "sums.toml").write_text(SUMS)
    (home / "pole.toml").write_text(POLE)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p])
    monkeypatch.chdir(home)
    small = {"steps": 1, "buffer.size": 64, "evaluate.n": 2, "store.rollouts": 2}
    train(home / "sums.toml", home / "runs" / "sums")
    train(home / "pole.toml", home / "runs" / "pole", **small)
    (home / "runs" / "pole" / "needs" / "modules" / "nest" / "__init__.py").write_text(MARK)
    shutil.move(home / "runs", tmp_path / "runs")
    shutil.rmtree(home)
    monkeypatch.chdir(tmp_path)
    _forget()
    canary.unlink()
    yield tmp_path / "runs"
    _forget()


def _forget() -> None:
    """As in another process."""
    for name in [n for n in sys.modules if n.partition(".")[0] == "nest" or n.startswith(registry.USERS)]:
        del sys.modules[name]
    registry._LOADED.clear()
    gymnasium.registry.pop("Egg-v0", None)


def test_reading_a_recipe_imports_nothing_and_leaves_the_path(stranger: Path, canary: Path) -> None:
    before = [*sys.path]
    for name in ("pole", "sums"):
        recipe = load(stranger / name)
        assert recipe.stages and find_outside(recipe)  # the copy is found, and named
    assert sys.path == before and not canary.exists() and "nest" not in sys.modules


READ = ["runs", "show RUN", "show RUN --rollouts", "show RUN --csv", "show RUN --profile", "diagnose RUN", "doctor RUN",
        "compare RUN RUN", "train --help", "eval --help", "methods", "train RUN", "runs pole --tag seen",
        "board --json runs --root ROOT"]  # fmt: skip


@pytest.mark.parametrize("name", ["pole", "sums"])
def test_commands_that_read_run_none_of_the_run_s_code(
    stranger: Path, canary: Path, name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    for words in (w for w in READ if name == "sums" or "--rollouts" not in w):  # a controller's are played anew
        argv = [{"RUN": str(stranger / name), "ROOT": str(stranger)}.get(w, w) for w in words.split()]
        with pytest.raises(SystemExit):
            main(argv)
        out, err = capfd.readouterr()
        assert not canary.exists() and "running" not in err, f"{words}: {out}{err}"


@pytest.mark.parametrize("name", ["pole", "sums"])
def test_views_of_the_board_run_none_of_it_or_ask_the_token(stranger: Path, canary: Path, name: str) -> None:
    before, wide = [*sys.path], {"run": name, "runs": name, "id": "0", "step": "0", "a": name, "b": name,
                                 "name": "ppo", "sides": name, "metric": "reward"}  # fmt: skip
    with TestClient(make_app(stranger, "a-token-of-the-board"), base_url="http://127.0.0.1:6060") as client:
        for view, function in VIEWS.items():
            names = [n for n in inspect.signature(function).parameters if n in wide]
            reply = client.get(f"/api/{view}", params={n: wide[n] for n in names})
            assert (reply.status_code in (401, 403)) == (view in COSTLY), f"{view}: {reply.status_code} {reply.text}"
            assert not canary.exists() and sys.path == before, view
        assert client.get("/api/replay", params={"run": name}).status_code == 200
        key = {"authorization": "Bearer a-token-of-the-board"}
        assert client.get("/api/drawable", params={"run": name}, headers=key).status_code == 200
    assert canary.exists(), "what builds a run runs its code, or the canary is none"


def test_what_builds_says_once_whose_code_it_runs(
    stranger: Path, canary: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(["eval", str(stranger / "pole"), "--n", "2"])
    told = [line for line in capfd.readouterr().err.splitlines() if line.startswith("running ")]
    assert not end.value.code and canary.exists()
    assert told == [f"running {stranger}/pole/needs/modules/nest/egg.py, as the recipe names it"]
    assert not any("needs" in p or p == str(stranger.parent) for p in sys.path)  # searched while it was loaded


def test_export_loads_no_grader(stranger: Path, canary: Path, tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as end:
        main(["export", str(stranger / "sums"), str(tmp_path / "model")])
    assert not end.value.code and (tmp_path / "model" / "model.safetensors").is_file() and not canary.exists()


@pytest.fixture
def crowded(tmp_path: Path, canary: Path) -> Path:
    """A folder full of modules with the names of others, each of which leaves a mark."""
    folder = tmp_path / "crowded"
    folder.mkdir()
    for name in COMMON:
        (folder / f"{name}.py").write_text(MARK)
    return folder


def run_there(folder: Path, *words: str, code: int = 0) -> str:
    env = {**os.environ, "PYTHONPATH": str(Path(package.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", SCRIPT, *words], cwd=folder, env=env, capture_output=True, text=True,
                          check=False, timeout=110)  # fmt: skip
    assert done.returncode == code, f"{words}: {done.stdout}{done.stderr}"
    return done.stdout + done.stderr


SMALL = "--run runs/a --no-rehearsal --set steps=1 --set evaluate.n=1 --set task.kwargs.max_episode_steps=20"


def test_no_module_of_the_current_folder_is_run(crowded: Path, canary: Path) -> None:
    """Seconds: two processes, the command and a worker of its lanes, import torch."""
    words = f"baselines/ppo_cartpole {SMALL} --set buffer.size=8 --set rollout.workers=1 --set rollout.lanes=2"
    run_there(crowded, "train", *words.split())
    assert not canary.exists(), canary.read_text()


def test_none_is_run_by_a_process_that_finds_what_its_parent_does(
    crowded: Path, canary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (crowded.parent / "found").mkdir()
    (crowded.parent / "found" / "tells_path.py").write_text("import json, sys\nprint(json.__file__, *sys.path)\n")
    monkeypatch.setattr(sys, "path", [*sys.path, str(crowded.parent / "found")])
    monkeypatch.chdir(crowded)
    made, link = open_process("tells_path", crowded.parent / "log", subprocess.DEVNULL)
    with link:
        assert made.wait(60) == 0
    told = (crowded.parent / "log").read_text().split()
    assert told[-1] == str(crowded.parent / "found") and str(crowded) not in told and not canary.exists()


def test_none_is_run_by_the_board_s_own_process(crowded: Path, canary: Path) -> None:
    from shuhari.desk.board.child import Desk

    done = subprocess.run([*Desk().command, "runs", "--json"], cwd=crowded, capture_output=True, text=True, check=False)
    assert not canary.exists(), canary.read_text()
    assert done.returncode in (0, 1) and "runs" in done.stdout + done.stderr


def test_none_is_run_by_the_processes_of_a_claim(crowded: Path, canary: Path) -> None:
    """Two seconds: each imports all components."""
    code = """import os, sys
if __name__ == "__main__":
    del sys.path[0]
    from shuhari.lab.claims.pool import Workers
    from shuhari.kernel.begin import keep_out
    with Workers(1) as team:
        pool = team.start()
        with keep_out():
            told = pool.submit(os.getenv, "PYTHONSAFEPATH")
    assert told.result() is None  # what it begins itself is left alone
"""
    file = crowded.parent / "asks.py"
    file.write_text(code)
    env = {**os.environ, "PYTHONPATH": str(Path(package.__file__).parents[1])}
    done = subprocess.run([sys.executable, file], cwd=crowded, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not canary.exists(), canary.read_text()


def test_as_a_module_the_command_leaves_the_folder_out_too(crowded: Path, canary: Path) -> None:
    for file in crowded.glob("*.py"):
        if file.stem not in ("numpy", "torch", "rich", "typer", "click", "pydantic", "tomllib"):
            file.unlink()  # `-m` itself may have imported it, before anything of ours
    env = {**os.environ, "PYTHONPATH": str(Path(package.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-m", "shuhari", "train", "--help"], cwd=crowded, env=env,
                          capture_output=True, text=True, check=False)  # fmt: skip
    assert "Usage" in done.stdout and not canary.exists(), done.stderr
