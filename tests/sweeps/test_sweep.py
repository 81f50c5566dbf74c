"""Sweeps: what is varied, the same proposals as optuna by itself, resumed to the bit, pruned, tested on other seeds."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib import rc_context

from shuhari.config.overlay import RecipeError
from shuhari.config.recipe import load
from shuhari.kernel.pareto import compute_hypervolume, find_front
from shuhari.lab.sweeps.picture import draw_sweep, find_history
from shuhari.lab.sweeps.space import Choice, Range, read_space
from shuhari.lab.sweeps.sweep import Objective, Sweep, find_importance, run_sweep
from shuhari.lab.sweeps.trials import DONE, FAILED, PRUNED, Trial, add_trial, make_study, propose, read_trials
from shuhari.store.files import StoreError

optuna = pytest.importorskip("optuna")
LR = "part.policy.optimiser.lr"
SPACE = {LR: Range(1e-3, 1.0, log=True)}
UP = (Objective("reward/mean"),)


def make(**given: object) -> Sweep:
    recipe = load("baselines/bandit", settings={"steps": 8})
    return Sweep(recipe, **{"space": SPACE, "objectives": UP, "trials": 3, **given})  # type: ignore[arg-type]


# ---------------------------------------------------------------- what is varied


def test_ranges_and_lists() -> None:
    found = read_space(["a.b=log 1e-5..1e-2", "n = 1..8", 'x=["p", "q"]', "s=-0.5..2"])
    assert found == {"a.b": Range(1e-5, 1e-2, True), "n": Range(1, 8), "x": Choice(("p", "q")), "s": Range(-0.5, 2.0)}
    assert found["n"].whole and not found["s"].whole  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("lr", "expected KEY=..."),
        ("lr=3", "lr=3: expected LOW..HIGH, log LOW..HIGH, or a list"),
        ("lr=[1]", "of two values or more"),
        ("lr=2..1", "from 2 to 1: expected a smaller number first"),
        ("lr=log 0..1", "expected a smaller number above 0 first"),
        ("lr=a..b", "'a' is no number"),
    ],
)
def test_mistakes_in_what_is_varied(text: str, said: str) -> None:
    with pytest.raises(RecipeError, match=said):
        read_space([text])


# ---------------------------------------------------------------- several objectives


def test_the_hypervolume_by_hand() -> None:
    front, origin = np.array([[1.0, 3.0], [2.0, 2.0], [3.0, 1.0]]), np.zeros(2)
    assert compute_hypervolume(front, origin) == 6
    assert compute_hypervolume(np.vstack([front, [1.0, 1.0]]), origin) == 6  # covered already
    assert compute_hypervolume(front[[2, 0, 1]], origin) == 6
    assert compute_hypervolume(np.array([[4.0], [7.0]]), np.array([2.0])) == 5
    assert compute_hypervolume(np.array([[1.0, 1.0, 1.0], [2.0, 0.5, 0.5]]), np.zeros(3)) == pytest.approx(1 + 0.25)


def test_the_hypervolume_of_three_objectives_by_sampling() -> None:
    rng = np.random.default_rng(0)
    front = rng.random((6, 3))
    drawn = rng.random((40_000, 3))
    covered = (drawn[:, None] <= front[None]).all(2).any(1).mean()
    assert compute_hypervolume(front, np.zeros(3)) == pytest.approx(covered, abs=0.01)


def test_the_front_has_what_no_other_beats() -> None:
    values = np.array([[1.0, 3.0], [1.0, 2.0], [3.0, 1.0], [3.0, 1.0], [0.0, 4.0]])
    assert find_front(values) == [0, 2, 4]
    assert find_front(np.array([[1.0], [3.0], [2.0]])) == [1]


# ---------------------------------------------------------------- as optuna by itself


def test_proposals_are_those_of_optuna_by_itself_seeded_likewise() -> None:
    """Optuna with one study in memory, whose sampler is seeded anew before each trial, on the same scores."""
    space = {"x": Range(0.1, 10.0, log=True), "n": Range(1, 9), "c": Choice(("a", "b", "d"))}

    def score(settings: dict[str, object]) -> float:
        x: Any = settings
        return float(-((np.log10(x["x"]) - 0.3) ** 2) - 0.01 * x["n"] + (x["c"] == "b"))

    ours: list[Trial] = []
    study = optuna.create_study(direction="maximize", study_name="sweep")
    for number in range(25):
        made = make_study(ours, space, seed=7, directions=["maximize"], sampler="tpe", hyperband=False)
        asked, settings = propose(made, space)
        study.sampler = optuna.samplers.TPESampler(seed=7 * 1_000_003 + number, multivariate=True)
        trial = study.ask()
        plain = {"x": trial.suggest_float("x", 0.1, 10.0, log=True), "n": trial.suggest_int("n", 1, 9),
                 "c": ("a", "b", "d")[trial.suggest_categorical("c", [0, 1, 2])]}  # fmt: skip
        assert settings == plain
        value = float(score(settings))
        study.tell(trial, value)
        kept = made.tell(asked, value)
        notes = {"asked": dict(kept.params), "system": dict(kept.system_attrs)}
        ours.append(Trial(number, DONE, settings, (value,), (), notes))
    assert max(trial.values[0] for trial in ours[12:]) > max(trial.values[0] for trial in ours[:4])
    importance = find_importance(make(space=space), ours)
    assert importance["c"] > max(importance["x"], importance["n"])


# ---------------------------------------------------------------- trials in a file


def test_trials_are_kept_a_line_each_and_a_cut_line_is_written_again(tmp_path: Path) -> None:
    file = tmp_path / "trials.jsonl"
    every = [Trial(0, DONE, {"a": 0.1}, (1.5,), ((1, 0.5), (2, 1.5)), {"asked": {"a": 0.1}, "system": {}}),
             Trial(1, FAILED, {"a": 0.2}, (), (), {"asked": {"a": 0.2}, "system": {}}, "ValueError: x")]  # fmt: skip
    for trial in every:
        add_trial(file, trial)
    whole = file.read_bytes()
    assert read_trials(file) == every
    file.write_bytes(whole[:-9])
    assert read_trials(file) == every[:1]
    add_trial(file, every[1])
    assert file.read_bytes() == whole
    file.write_text("{}\n" + whole.decode())
    with pytest.raises(StoreError, match="line 1"):
        read_trials(file)


def test_a_sweep_that_was_killed_goes_on_to_the_bit(tmp_path: Path) -> None:
    words = [sys.executable, "-B", "-m", "shuhari", "sweep", "baselines/bandit", "--over", f"{LR}=log 1e-3..1.0",
             "--set", "steps=30", "--metric", "reward/mean", "--trials", "5", "--test-seeds", "9"]  # fmt: skip
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*words, "--out", str(tmp_path / "whole")], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    killed = subprocess.Popen([*words, "--out", str(tmp_path / "cut")], env=env, stderr=subprocess.DEVNULL,
                              stdout=subprocess.DEVNULL)  # fmt: skip
    file, deadline = tmp_path / "cut" / "trials.jsonl", time.monotonic() + 100
    while not file.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(killed.pid, signal.SIGKILL)
    killed.wait()
    assert file.exists() and len(read_trials(file)) < 5
    again = subprocess.run([*words, "--out", str(tmp_path / "cut")], env=env, capture_output=True, text=True)
    assert again.returncode == 0, again.stderr
    assert file.read_bytes() == (tmp_path / "whole" / "trials.jsonl").read_bytes()
    results = [json.loads((tmp_path / name / "result.json").read_text()) for name in ("whole", "cut")]
    assert results[0] == results[1]


def test_steps_that_a_killed_run_makes_again_are_heard_once(tmp_path: Path) -> None:
    """The process dies as a step has been stored, and the run's checkpoint lies before it."""
    whole = run_sweep(make(trials=1), tmp_path / "whole")["trials"][0]
    (tmp_path / "die.py").write_text(f"""
import os
from pathlib import Path
from shuhari.config.recipe import load
from shuhari.lab.sweeps.sweep import Objective, Sweep, train_once
sweep = Sweep(load("baselines/bandit", settings={{"steps": 8}}), {{}}, (Objective("reward/mean"),), 1)
train_once(sweep, {whole["settings"]!r}, 0, Path({str(tmp_path / "cut/trials/0000/s0")!r}),
           lambda step, value: os._exit(9) if step == 5 else False)
""")
    died = subprocess.run([sys.executable, "-B", str(tmp_path / "die.py")], env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert died.returncode == 9
    again = run_sweep(make(trials=1), tmp_path / "cut")["trials"][0]
    assert again == whole and [step for step, _ in again["path"]] == list(range(1, 9))


# ---------------------------------------------------------------- whole sweeps


def test_the_best_is_tested_on_other_seeds_beside_the_recipes_own(tmp_path: Path) -> None:
    found = run_sweep(make(trials=4, seeds=(0, 1), tests=(1000, 1001)), tmp_path)
    best = max(found["trials"], key=lambda trial: trial["values"][0])
    assert [one["number"] for one in found["best"]] == [best["number"]]
    own, tested = found["test"]
    assert own["of"] == "own" and len(own["values"]) == 2
    assert tested["overfit"][0] == pytest.approx(best["values"][0] - tested["mean"][0])
    assert tested["gain"][0][0] == pytest.approx(tested["mean"][0] - own["mean"][0])
    more = run_sweep(make(trials=5, seeds=(0, 1), tests=(1000, 1001)), tmp_path)  # goes on
    assert more["trials"][:4] == found["trials"] and len(more["trials"]) == 5


def test_two_objectives_give_a_front_and_its_hypervolume(tmp_path: Path) -> None:
    goals = (Objective("reward/mean"), Objective("policy/grad_norm", up=False))
    found = run_sweep(make(objectives=goals, trials=4), tmp_path)
    assert found["hypervolume"] >= 0 and 1 <= len(found["best"]) <= 4 and found["importance"] == {}


def test_the_history_of_trials_by_hand() -> None:
    trials = [{"number": i, "values": v} for i, v in enumerate([(2.0, 5.0), (), (1.0, 3.0), (4.0, 6.0)])]
    number, value, record = find_history(trials, 0, up=True)
    assert (number.tolist(), value.tolist(), record.tolist()) == ([0, 2, 3], [2, 1, 4], [2, 2, 4])
    assert find_history(trials, 1, up=False)[2].tolist() == [5, 3, 3]


def test_a_picture_has_a_panel_for_each_objective_and_one_of_importances(tmp_path: Path) -> None:
    """An SVG, whose texts can be read: what was asked, and the largest share above the other."""
    trials = [{"number": 0, "state": DONE, "values": [1.0], "path": []},
              {"number": 1, "state": PRUNED, "values": [], "path": [[3, 0.5]]}]  # fmt: skip
    result = {"recipe": "b", "objectives": [{"metric": "reward/mean", "up": True}], "trials": trials,
              "best": [{"number": 0}], "importance": {"part.lr": 0.75, "rollout.n": 0.25}}  # fmt: skip
    with rc_context({"svg.fonttype": "none"}):
        text = draw_sweep(result, tmp_path / "a.svg").read_text()
        for name in ("reward/mean", "best so far", "ended early", "importance", "sweep of b"):
            assert name in text
        assert text.index("rollout.n") < text.index("part.lr")  # from below
        alone = draw_sweep({**result, "importance": {}}, tmp_path / "b.svg").read_text()
    assert "reward/mean" in alone and "importance" not in alone
    found = run_sweep(make(trials=2), tmp_path / "whole")
    assert found["best"] and (tmp_path / "whole" / "sweep.png").read_bytes().startswith(b"\x89PNG")


def test_hyperband_ends_trials_early_and_their_runs_say_so(tmp_path: Path) -> None:
    found = run_sweep(make(trials=8, hyperband=True), tmp_path)
    ended = [trial for trial in found["trials"] if trial["state"] == PRUNED]
    assert ended and all(trial["path"][-1][0] < 7 for trial in ended)
    assert found["counts"] == {DONE: 8 - len(ended), PRUNED: len(ended), FAILED: 0}


def test_what_cannot_be_asked_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"by one objective, and there are 2 \(reward/mean and spent/tokens\)"):
        make(objectives=(*UP, Objective("spent/tokens", up=False)), hyperband=True)
    with pytest.raises(RecipeError, match="5 is a tuning seed too"):
        make(seeds=(4, 5), tests=(5, 6))
    run_sweep(make(trials=1), tmp_path)
    with pytest.raises(RecipeError, match="holds another sweep: its sampler is 'tpe', not 'random'"):
        run_sweep(make(trials=2, sampler="random"), tmp_path)


def test_a_sweep_whose_trials_all_fail_is_given_up(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"the first 3 trials have failed; the last: RecipeError.*lr"):
        run_sweep(make(space={LR: Range(-2.0, -1.0)}, trials=9), tmp_path)
    assert len(read_trials(tmp_path / "trials.jsonl")) == 3


def test_a_misspelt_metric_ends_the_sweep_at_its_first_trial_and_leaves_the_folder_free(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"no metric 'reward/men'; did you mean 'reward/mean'"):
        run_sweep(make(objectives=(Objective("reward/men"),)), tmp_path)
    assert run_sweep(make(trials=1), tmp_path)["trials"]


def test_equal_gains_of_a_few_seeds_have_no_interval() -> None:
    from shuhari.lab.sweeps.sweep import _compare

    assert _compare([1.0, 1.0], [1.0, 1.0]) == [0.0, None, None]
    value, low, high = _compare([1.0, 1.0, 1.0], [2.0, 2.5, 3.0])
    assert value == 1.5 and low is not None and high is not None and low < 1.5 < high
