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
    listed = shuhari("runs").out
    assert "study/coverage" in listed and "a/children/context-1" in listed
    shown = shuhari("show", "a")
    assert shown.code == 0 and "study/trained" in shown.out
    both = shuhari("compare", "a", "b", "--metric", "study/coverage")
    assert both.code == 0 and "study/coverage" in both.out
    for command in (("eval", "a"), ("train", "study.toml", "--run", "runs/c", "--profile")):
        refused = shuhari(*command)
        assert refused.code != 0 and "children/" in refused.err and "Traceback" not in refused.err
