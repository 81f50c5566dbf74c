"""`train`: what it stores and says, going on, forks, dry runs, mistakes and failures, signals."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import shuhari as shuhari_package
from shuhari.store import Run, StoreError


def test_a_run_ends_with_its_files_and_says_where_they_are(shuhari, home: Path) -> None:
    done = shuhari("train", "tiny.toml", "--run", "runs/new", "--set", "steps=2")
    assert done.code == 0
    assert "before" in done.out and "after" in done.out and "runs/new/curves.png" in done.out
    assert (home / "runs/new/curves.png").read_bytes().startswith(b"\x89PNG")
    summary = json.loads((home / "runs/new/summary.json").read_text())
    assert {"before", "after", "wall_s", "spent", "recipe"} <= set(summary)
    assert "greedy" in summary["before"] and "greedy" in summary["after"]
    assert Run(home / "runs/new").step == 2


def test_a_run_on_recorded_data_ends_with_what_they_were(shuhari, home: Path) -> None:
    few = {"buffer.data.episodes": 3, "buffer.draws": 1, "steps": 1, "evaluate.n": 1}
    out = shuhari("train", "baselines/cql_cartpole", *(f"--set={k}={v}" for k, v in few.items())).out
    assert re.search(r"data main/main/buffer: 3 episodes, \d+ transitions; return \(trained reward, 1 x task\) \d", out)


def test_the_same_command_again_says_that_the_run_is_complete(shuhari, home: Path) -> None:
    before = Run("runs/s0").metrics()
    done = shuhari("train", "tiny.toml", "--seed", 0, "--run", "runs/s0")
    assert done.code == 0 and "runs/s0 is complete" in done.err
    assert Run("runs/s0").metrics() == before
    assert shuhari("train", "runs/s0").code == 0  # a run's folder is its recipe


def test_a_score_that_was_never_known_is_not_in_the_table(shuhari, home: Path) -> None:
    """One that nothing graded, at the beginning, at the end, or at both, in which case there is no row."""
    file = home / "runs/s0/summary.json"
    summary = json.loads(file.read_text())
    nan = float("nan")
    ends = {"before": {"late": nan, "early": 0.5, "none": nan}, "after": {"late": 0.25, "early": nan, "none": nan}}
    file.write_text(json.dumps({**summary, **ends}))
    lines = [line.split() for line in shuhari("train", "runs/s0").out.splitlines()]
    assert ["late", "-", "0.25"] in lines and ["early", "0.5", "-"] in lines  # nothing is known to have changed
    assert not [line for line in lines if line[:1] == ["none"]]


def test_a_summary_is_strict_json(home: Path) -> None:
    """A number that nobody knows is null."""
    from types import SimpleNamespace

    from shuhari.loop import resume
    from shuhari.store import Store

    nan = float("nan")
    with Store.open(home / "new") as store, pytest.MonkeyPatch.context() as patch:
        patch.setattr(resume, "summarise", lambda run: {"before": {"greedy": nan, "mean": 0.5}, "steps": 3})
        stage = SimpleNamespace(evaluate=None, evaluation_rollout=None)
        run: Any = SimpleNamespace(store=store, ctx=None, stage=stage, progress=SimpleNamespace(ended=""))
        resume.finish(run, lambda *_: {"greedy": nan})
    text = (home / "new" / "summary.json").read_text()
    found = {"before": {"greedy": None, "mean": 0.5}, "steps": 3, "chance": {"greedy": None}}
    assert json.loads(text, parse_constant=pytest.fail) == found


def test_another_recipe_at_the_same_place_is_refused(shuhari, home: Path) -> None:
    done = shuhari("train", "tiny.toml", "--set", "rollout.n=2", "--run", "runs/s0")
    assert done.code == 2 and "another recipe" in done.err and "Traceback" not in done.err


def test_without_a_path_the_run_goes_under_runs(shuhari, home: Path) -> None:
    assert shuhari("train", "tiny.toml", "--set", "steps=1").code == 0
    new = {p.name for p in (home / "runs").iterdir()} - {"s0", "s1"}
    assert len(new) == 1 and new.pop().startswith("tiny-s0")


def test_a_fork_starts_from_the_weights_of_a_step(shuhari, home: Path) -> None:
    import torch

    lr = ["--set", "part.policy.optimiser.lr=1e-30", "--set", "steps=1"]
    assert shuhari("train", "tiny.toml", "--run", "runs/fork", "--init", "s0@4", *lr).code == 0
    (old, new) = (Run(p).load()["models"]["policy"] for p in ("runs/s0", "runs/fork"))
    assert all(torch.allclose(old[k], new[k]) for k in old)
    (_, other) = (Run(p).load()["models"]["policy"] for p in ("runs/s0", "runs/s1"))
    assert not all(torch.allclose(old[k], other[k]) for k in old)


def test_a_dry_run_tells_sources_and_arithmetic_and_makes_nothing(shuhari, home: Path) -> None:
    done = shuhari("train", "tiny.toml", "--dry-run", "--set", "part.policy.minibatches=2", "--run", "runs/none")
    assert done.code == 0 and not (home / "runs/none").exists()
    lines = {line.split(" = ")[0]: line.rpartition("# ")[2] for line in done.out.splitlines() if " = " in line}
    assert lines["rollout.n"] == "tiny" and lines["part.policy.minibatches"] == "--set"
    assert lines["part.policy.epochs"] == "default" and lines["rollout.sampling.top_p"] == "default"
    sizes = "4 problems x 4 = 16 rows, 2 minibatches x 1 epoch = 2 optimiser steps, micro-batch <= 4k tokens"
    assert sizes in done.out.splitlines()[1]  # before all values


def test_a_dry_run_of_more_than_a_machine_holds_says_so(shuhari, home: Path) -> None:
    done = shuhari("train", "tiny.toml", "--dry-run", "--set", "rollout.n=1000000")
    assert "4,000,000 rows a step" in done.err
    assert not shuhari("train", "tiny.toml", "--dry-run").err


def test_a_dry_run_tries_the_models_of_every_stage(shuhari, home: Path) -> None:
    done = shuhari("train", "baselines/sac_pendulum", "--set", "task.name=gym/CartPole-v1", "--dry-run")
    assert done.code == 2 and "'squashed' needs a Box action space" in done.err and not done.out


def test_a_folder_of_other_files_is_no_place_for_a_run(shuhari, home: Path) -> None:
    (home / "mine").mkdir()
    (home / "mine" / "thesis.tex").write_text("x")
    done = shuhari("train", "tiny.toml", "--run", "mine")
    assert done.code == 2 and "holds thesis.tex" in " ".join(done.err.replace("│", " ").split())
    assert [p.name for p in (home / "mine").iterdir()] == ["thesis.tex"]


def test_a_picture_that_cannot_be_written_is_a_note(shuhari, home: Path) -> None:
    (home / "runs/s0/curves.png").unlink(missing_ok=True)
    (home / "runs/s0/curves.png").mkdir()
    done = shuhari("train", "tiny.toml", "--seed", 0, "--run", "runs/s0")
    assert done.code == 0 and "no picture: " in done.err and "summary: " in done.out


def test_an_alarm_is_told_while_it_trains_and_again_at_the_end(shuhari, home: Path) -> None:
    done = shuhari("train", "tiny.toml", "--set", "rollout.sampling.max_new=1", "--run", "runs/cut")
    assert done.err.count("alarm: answers-too-long") == 1 and "diagnosis: answers-too-long" in done.out
    found = shuhari("diagnose", "cut", "--json").out
    assert '"rule": "answers-too-long"' in found and "show RUN" not in done.out
    assert "diagnosis: answers-too-long" in shuhari("show", "cut").out


def test_a_dry_run_of_stages_has_the_defaults_of_each_apart(shuhari, home: Path) -> None:
    (home / "staged.toml").write_text(
        'extends = "tiny.toml"\n[[stage]]\nname = "warm-up"\nsteps = 3\nbuffer = {use = "demos", size = 16}\n'
        "remove = ['collect.advantage', 'part.policy.terms.loss']\npart.policy.terms.nll.stream = 'ce'\n"
        "[[stage]]\nname = 'rl'"
    )
    out = shuhari("train", "staged.toml", "--dry-run").out
    assert "warm-up: 3 steps; 16 rows of demos" in out and "rl: 4 steps; 4 problems x 4 = 16 rows" in out
    sections = read_sections(out)
    assert sections["warm-up: the rest"]["buffer.draws"] == "default"
    assert not any("buffer.draws" in rows for name, rows in sections.items() if not name.startswith("warm-up"))


def read_sections(out: str) -> dict[str, dict[str, str]]:
    """Heading -> key -> source of what a dry run prints."""
    found: dict[str, dict[str, str]] = {}
    for line in out.splitlines():
        if line.startswith("## "):
            found[line[3:]] = {}
        elif found and " = " in line:
            found[list(found)[-1]][line.split(" = ")[0]] = line.rpartition("# ")[2]
    return found


def test_a_dry_run_has_a_list_for_each_stage_and_what_a_method_changes_first(shuhari) -> None:
    sections = read_sections(shuhari("train", "baselines/grpo_chain", "--with", "data/rlgf", "--dry-run").out)
    stages = list(dict.fromkeys(name.partition(":")[0] for name in sections))
    assert stages == ["the run", "warm-up", "teach", "rl"]
    assert not any(key.startswith("stage.") for rows in sections.values() for key in rows)
    assert set(sections["rl: what is changed"].values()) == {"with data/rlgf"}
    assert "rollout.share" in sections["rl: what is changed"] and "task.terms" in sections["rl: the rest"]
    for name in ("warm-up", "warm-up: the rest"):
        assert not any("guide" in key or "share" in key for key in sections.get(name, ()))
    for stage in ("teach", "rl"):
        first, rest = (sections[f"{stage}: {part}"] for part in ("what is changed", "the rest"))
        assert not first.keys() & rest.keys()


# ---------------------------------------------------------------- mistakes and failures


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["baselines/grop"], "no recipe 'baselines/grop'; did you mean 'baselines/grpo'?"),
        (["nothing.toml"], "no recipe file 'nothing.toml'"),
        (["tiny.toml", "--set", "steps"], "expected key=value"),
        (["tiny.toml", "--set", "stepz=3"], "stepz: no such key in a recipe; did you mean 'steps'?"),
        (["tiny.toml", "--set", "part.policy.terms.loss.hihg=3"], "loss.hihg: no setting of objective 'clip'"),
        (["tiny.toml", "--set", "part.policy.terms.loss.wieght=3"], "did you mean 'weight'?"),
        (["tiny.toml", "--set", "task.name=arithmetik"], "did you mean 'arithmetic'?"),
        (["tiny.toml", "--set", "task.name=file/none.jsonl"], "file/none.jsonl: no such file"),
        (["tiny.toml", "--set", "rollout.n=x"], "rollout.n: 'x': expected a whole number"),
        (["tiny.toml", "--set", "reward.weights.scor=1"], "no grader gives a reward 'scor'"),
        (["tiny.toml", "--set", "models.other.init=polcy"], "did you mean 'policy'?"),
        (["tiny.toml", "--init", "s7"], "no run 's7'"),
        (["tiny.toml", "--init", "s0@99"], "no checkpoint of step 99"),
        (["tiny.toml", "--init", "s0@x"], "--init"),
        (["tiny.toml", "--sed", "3"], "--se"),
        ([], "Missing argument"),
    ],
)
def test_a_users_mistake_is_said_without_a_traceback(shuhari, home: Path, argv: list[str], message: str) -> None:
    done = shuhari("train", *argv)
    told = " ".join(done.err.replace("│", " ").split())  # boxes of the usage errors are wrapped
    assert done.code == 2 and message in told and "Traceback" not in done.err


def test_a_missing_extra_names_the_command(shuhari, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    done = shuhari("train", "tiny.toml", "--set", "task.name=reasoning-gym/chain_sum")
    assert done.code == 2 and "pip install" in done.err and "Traceback" not in done.err


FAILING = """
from dataclasses import dataclass, field
from typing import Any

@dataclass
class Failing:
    at: int = 2
    needs: tuple = field(init=False, default=())
    couples: str = field(init=False, default="row")

    def __call__(self, batch: Any, ctx: Any) -> Any:
        if ctx.step >= self.at:
            raise RuntimeError("the loss went wrong")
        return batch["mask"] * sum(p.sum() for p in ctx.models["policy"].module.parameters()) * 0, {}
"""


def test_a_run_that_fails_keeps_what_it_stored_and_ends_with_one(shuhari, home: Path) -> None:
    (home / "failing.py").write_text(FAILING)
    argv = ["train", "tiny.toml", "--run", "runs/bad", "--set", "part.policy.terms.own.use=failing.py:Failing"]
    done = shuhari(*argv)
    assert done.code == 1 and "RuntimeError: the loss went wrong" in done.err and "--debug" in done.err
    assert "Traceback" not in done.err and "step 2 in runs/bad" in done.err
    assert Run("runs/bad").step == 2 and Run("runs/bad").status == "failed"
    shown = shuhari(*argv, "--debug")
    assert shown.code == 1 and "Traceback" in shown.err and "failing.py" in shown.err


def test_a_damaged_checkpoint_is_named(shuhari, home: Path) -> None:
    assert shuhari("train", "tiny.toml", "--run", "runs/cut", "--set", "steps=2").code == 0
    for file in (home / "runs/cut/checkpoints").rglob("*.safetensors"):
        file.write_bytes(b"nothing")
    done = shuhari("eval", "cut", "-n", 2, "--samples", 1)
    assert done.code == 1 and "runs/cut" in done.err and "Traceback" not in done.err


# ---------------------------------------------------------------- signals


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_names_the_command_that_goes_on(shuhari, home: Path, sent: signal.Signals) -> None:
    settings = ["--run", "runs/cut", "--set", "steps=100000", "--set", "store.every=1000", "--remove", "evaluate"]
    command = [sys.executable, "-m", "shuhari", "train", "tiny.toml", *settings]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(shuhari_package.__file__).parents[1])}
    child = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env=env)
    try:
        _wait(lambda: _step(home / "runs/cut") >= 2, child)
        child.send_signal(sent)
        _, err = child.communicate(timeout=30)
    finally:
        child.kill()
    assert child.returncode == 130
    assert "To go on: shuhari train tiny.toml --run runs/cut --set steps=100000" in err
    run = Run("runs/cut")
    assert run.status == "stopped" and run.cursor is not None and run.cursor["step"] == run.step  # nothing to redo


def _step(run: Path) -> int:
    try:
        return Run(run).step
    except StoreError:  # not there yet, or being made
        return -1


def _wait(true, child: subprocess.Popen[str], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if child.poll() is not None:
            raise AssertionError(child.communicate()[1])
        if true():
            return
        time.sleep(0.05)
    raise AssertionError("the run did not get so far")


@pytest.mark.parametrize("setting", ["buffer.by=retrun", "buffer.data.policy=nowhere.py:act", "task.kwargs.nope=1"])
def test_a_run_that_is_refused_leaves_no_folder(shuhari, tmp_path: Path, monkeypatch, setting: str) -> None:
    monkeypatch.chdir(tmp_path)
    done = shuhari("train", "baselines/bc_cartpole", "--set", setting)
    assert done.code in (1, 2) and done.err.startswith("error:")
    assert not list(tmp_path.iterdir())


def test_a_dry_run_says_when_the_first_step_is_more_than_the_budget(shuhari, home: Path) -> None:
    done = shuhari("train", "baselines/qr_dqn_cartpole", "--dry-run", "--set", "env_steps=400")
    assert "main: its first step alone collects 1,000 decisions: expected a budget of as many env_steps" in done.err
    assert "rollout.sampling.temperature = " in done.out and "rollout.sampling = " not in done.out
    assert "first step" not in shuhari("train", "baselines/qr_dqn_cartpole", "--dry-run").err


def test_the_regret_of_a_planner_is_told_and_drawn(shuhari, home: Path) -> None:
    done = shuhari("train", "baselines/ucrl2_riverswim", "--set", "steps=1", "--run", "runs/river")
    assert "  regret " in done.out and "last ucrl/regret_sum: " in done.out
    assert (home / "runs/river/curves.png").exists()


@pytest.mark.parametrize("command", ["board", "serve"])
def test_a_server_that_is_not_installed_names_the_command(shuhari, monkeypatch, command: str) -> None:
    for name in [n for n in sys.modules if n.startswith(("shuhari.desk.serving", "shuhari.desk.board", "starlette"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "starlette", None)
    done = shuhari(*([command] if command == "board" else [command, "runs/s0"]))
    assert f'pip install "shuhari[{command}]"' in done.err
