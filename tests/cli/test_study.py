"""A study on the command line: it is trained, listed, shown and compared as any run."""

from __future__ import annotations

from pathlib import Path

from small_runs import BANDIT

STUDY = """[study]
use = "mbtl"
pick = "equidistant"
contexts = {"task.seed" = [0, 1, 2]}
trainings = 2
"""


def test_a_study_is_trained_listed_shown_and_compared(shuhari, home: Path) -> None:
    (home / "study.toml").write_text(BANDIT.replace("steps = 12", "steps = 2") + STUDY)
    dry = shuhari("train", "study.toml", "--dry-run")
    assert dry.code == 0 and 'study.slope = "fitted"' in dry.out and not (home / "runs/a").exists()
    wrong = shuhari("train", "study.toml", "--set", "study.pik=random", "--dry-run")
    assert wrong.code == 2 and "did you mean 'pick'" in wrong.err
    for name, pick in (("a", "equidistant"), ("b", "random")):
        done = shuhari("train", "study.toml", "--run", f"runs/{name}", "--set", f"study.pick={pick}")
        assert done.code == 0 and "study/coverage" in done.out and (home / f"runs/{name}/curves.png").exists()
    assert "nothing to do" in shuhari("train", "runs/a").err
    listed, every = shuhari("runs"), shuhari("runs", "--all").out
    assert "study/coverage" in listed.out and "children" not in listed.out and "--all" in listed.err + listed.out
    assert "a/children/context-1" in every
    shown = shuhari("show", "a")
    assert shown.code == 0 and "study/trained" in shown.out
    both = shuhari("compare", "a", "b", "--metric", "study/coverage")
    assert both.code == 0 and "study/coverage" in both.out
    for command in (("eval", "a"), ("train", "study.toml", "--run", "runs/c", "--profile")):
        refused = shuhari(*command)
        assert refused.code != 0 and "children/" in refused.err and "Traceback" not in refused.err
    missed = shuhari("show", "a", "--samples")
    assert missed.code == 2 and "runs/a/children/context-1 (or context-2)" in missed.err
    refused = shuhari("train", "study.toml", "--set", "task.seed=3", "--dry-run")
    assert refused.code == 2 and "change study.contexts" in refused.err  # each run has one of its own


CLASSROOM = """extends = "baselines/bandit"
[study]
use = "classroom"
teacher = "uniform"
side = 3
steps = 1_000
"""


def test_a_study_that_trains_no_run_says_so_and_reads_no_settings_of_runs(shuhari, home: Path) -> None:
    (home / "study.toml").write_text(CLASSROOM)
    dry = shuhari("train", "study.toml", "--set", "study.side=4", "--seed", 3, "--dry-run").out
    assert "study.side = 4" in dry and "No run is trained" in dry and "classroom: " in dry and "seed = 3" in dry
    assert "task.name" not in dry and "100 steps" not in dry and "steps = 100 " not in dry
    for key, near in (("steps=2", "'study.steps'"), ("task.arms=4", "study.side"), ("threads=2", "study.side")):
        for more in ((), ("--dry-run",)):
            refused = shuhari("train", "study.toml", "--set", key, "--run", "runs/x", *more)
            assert refused.code == 2 and "trains no run" in refused.err and near in refused.err, refused.err
    with_method = shuhari("train", "study.toml", "--with", "curriculum/mopps")
    assert with_method.code == 2 and "curriculum/mopps: a method changes runs" in with_method.err
    assert shuhari("train", "study.toml", "--run", "runs/x").code == 0 and not (home / "runs/x/children").exists()
    for command in (("show", "x", "--samples"), ("eval", "x")):
        refused = shuhari(*command)
        assert refused.code == 2 and "no run was trained in it" in refused.err and "children" not in refused.err
