"""A run that stops and goes on is, bit for bit, the run that never stopped."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from shuhari.config.recipe import RecipeError, dump
from shuhari.data import Info
from shuhari.loop.roles import load_initial
from shuhari.loop.run import train
from shuhari.store import Run
from shuhari.store.rows import write_rows
from shuhari.testing.compare import contents, differences
from small_runs import ALL, recipe

# recipe -> the steps after which it stops. In `text`, step 12 is the border of its stages and 18 the end, before the
# summary; `stages` has borders after 3 and 6.
STOPS = {
    "text": (5, 12, 14, 18),
    "dqn": (3, 17, 29),  # before the ring is full, and after
    "sac": (1, 7),
    "ppo": (1, 5),
    "bandit": (1, 6, 12),
    "gridworld": (3, 4),
    "stages": (1, 3, 5, 6, 7),
}


def test_a_run_goes_on_without_the_run_that_its_weights_came_from(tmp_path: Path) -> None:
    source = tmp_path / "source"
    list(train(recipe("bandit", tmp_path, steps=1), source))
    policy = {"use": "tabular", "from": str(source), "frozen": False}
    begun = recipe("bandit", tmp_path, steps=4, models={"policy": policy})
    list(train(begun, tmp_path / "whole"))
    sitting(begun, tmp_path / "parts", 2)
    source.rename(tmp_path / "moved")
    sitting(begun, tmp_path / "parts", None)
    assert not differences(contents(tmp_path / "whole"), contents(tmp_path / "parts"))
    with pytest.raises(Exception, match="source"):
        list(train(begun, tmp_path / "another"))


class References:
    """Uninterrupted runs, made when first asked for: recipe -> (path, reports)."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.made: dict[str, tuple[Path, list[Info]]] = {}

    def __call__(self, name: str) -> tuple[Path, list[Info]]:
        if name not in self.made:
            path = self.folder / name
            self.made[name] = path, list(train(recipe(name, self.folder), path))
        return self.made[name]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> References:
    return References(tmp_path_factory.mktemp("references"))


def sitting(made: Any, path: Path, stop: int | None, *, crash: bool = False, **more: Any) -> list[Info]:
    """The reports of one sitting, which ends after step `stop`: closed, or by an error."""
    reports: list[Info] = []
    run = train(made, path, **more)
    for report in run:
        reports.append(report)
        if report["step"] == stop:
            if not crash:
                run.close()
                break
            with pytest.raises(KeyError, match="power"):
                run.throw(KeyError("power"))
            break
    return reports


def timeless(reports: list[Info]) -> list[Info]:
    return [{k: v for k, v in r.items() if k != "seconds"} for r in reports]


@pytest.mark.parametrize("name", ALL)
def test_a_run_in_sittings_is_the_run_in_one(name: str, reference: References, tmp_path: Path) -> None:
    path, reports = reference(name)
    there = tmp_path / name
    made, mine = recipe(name, tmp_path), []
    for stop in (*STOPS[name], None):
        mine += sitting(made, there, stop)
    assert not differences(timeless(reports), timeless(mine))
    assert not differences(contents(path), contents(there))
    wall = Run(there).metrics()["wall"]
    assert wall == sorted(wall) and wall[0] > 0  # time adds up over sittings


def test_the_recipes_learn(reference: References) -> None:
    """Else equal bits would say nothing: in each run, in each stage, weights move at nearly every step."""
    for name in ALL:
        path, reports = reference(name)
        norms = [v for r in reports for k, v in r.items() if k.endswith("/grad_norm")]
        assert sum(n > 0 for n in norms) > 0.6 * len(reports), name
        assert len({r["stage"] for r in reports}) == len(Run(path).recipe.get("stage", [1])), name


@pytest.mark.parametrize("name", ["text", "dqn", "stages"])
def test_steps_after_the_last_checkpoint_are_redone(name: str, reference: References, tmp_path: Path) -> None:
    path, reports = reference(name)
    there, made = tmp_path / name, recipe(name, tmp_path, store__every=3)
    first = sitting(made, there, 5, crash=True)
    assert Run(there).step == 5 and Run(there).cursor["step"] == 3  # type: ignore[index]
    second = sitting(made, there, 7)
    assert [r["step"] for r in second] == [4, 5, 6, 7]  # 4 and 5 again
    assert Run(there).cursor["step"] == 7  # type: ignore[index]  # closed in peace: nothing is lost
    last = sitting(made, there, None)
    assert not differences(timeless(reports), timeless(first[:3] + second + last))
    assert not differences(contents(path), contents(there))


def test_a_run_that_is_kept_nowhere_is_the_same_run(reference: References, tmp_path: Path) -> None:
    _, reports = reference("bandit")
    assert not differences(timeless(reports), timeless(list(train(recipe("bandit", tmp_path)))))


def test_a_complete_run_ends_at_once_and_stays_as_it_is(reference: References) -> None:
    path, _ = reference("bandit")
    before, written = contents(path), (path / "summary.json").stat().st_mtime_ns
    assert list(train(recipe("bandit", reference.folder), path)) == []
    assert not differences(before, contents(path)) and (path / "summary.json").stat().st_mtime_ns == written
    assert Run(path).status == "complete"


def test_the_summary_tells_before_and_after(reference: References, tmp_path: Path) -> None:
    path, reports = reference("text")
    summary = json.loads((path / "summary.json").read_text())
    measured = {k.removeprefix("evaluate/"): v for k, v in reports[-1].items() if k.startswith("evaluate/")}
    assert summary["after"] == measured and summary["before"].keys() == measured.keys()
    assert summary["steps"] == 18 and summary["seed"] == 0 and summary["wall_s"] > 0


def test_a_run_may_start_from_the_weights_of_another(reference: References, tmp_path: Path) -> None:
    path, reports = reference("bandit")
    weights = Run(path).load()["models"]
    made, whole, there = recipe("bandit", tmp_path), tmp_path / "whole", tmp_path / "parts"
    first = sitting(made, whole, None, init=weights)
    assert first[0]["reward/mean"] != reports[0]["reward/mean"]
    assert Run(whole).summary["before"]["greedy"] == Run(path).summary["after"]["greedy"]  # type: ignore[index]
    second = sitting(made, there, 4, init=weights)
    second += sitting(made, there, None)  # from here on the checkpoint counts, with or without `init`
    assert not differences(timeless(first), timeless(second))
    assert not differences(contents(whole), contents(there))


def test_weights_that_fit_nowhere_are_an_error(reference: References, tmp_path: Path) -> None:
    weights = Run(reference("gridworld")[0]).load()["models"]
    with pytest.raises(ValueError, match=r"weights given for role 'policy' do not fit: logits is \(\d+, 4\) there"):
        list(train(recipe("bandit", tmp_path), tmp_path / "run", init=weights))


def test_another_recipe_on_the_same_path_is_refused(reference: References, tmp_path: Path) -> None:
    path, _ = reference("bandit")
    before = contents(path)
    changed = recipe("bandit", tmp_path, **{"part.policy.optimiser.lr": 0.2})
    told = r"another recipe \(part\.policy\.optimiser\.lr: 0\.1 there, 0\.2 here\): choose"
    with pytest.raises(RecipeError, match=told):
        list(train(changed, path))
    with pytest.raises(RecipeError, match=r"evaluate\.\w+: \d+ there, not set here"):
        list(train(recipe("bandit", tmp_path, remove=["evaluate"]), path))
    also = recipe("bandit", tmp_path, steps=999, **{"part.policy.optimiser.lr": 0.2})  # a budget alone would extend it
    told = r"\(part\.policy\.optimiser\.lr: 0\.1 there, 0\.2 here; steps: \d+ there, 999"
    with pytest.raises(RecipeError, match=told):
        list(train(also, path))
    assert not differences(before, contents(path))


def test_a_run_goes_on_with_its_work_spread_otherwise(reference: References, tmp_path: Path) -> None:
    """Threads, parts of a step, workers: here none changes what is computed, so all of the bits are the same."""
    path, reports = reference("stages")
    there, first = tmp_path / "run", recipe("stages", tmp_path)
    mine = sitting(first, there, 4)
    spread = {"rollout.workers": 1, "engine.tokens": 512, "stage.third.micro_batch": 8192, "threads": 1}
    other = first.with_settings(spread)
    mine += sitting(other, there, None)
    assert not differences(timeless(reports), timeless(mine))
    theirs, ours = contents(path), contents(there)
    for tree in (theirs, ours):
        del tree["summary"]
    assert not differences(theirs, ours)
    assert Run(there).recipe["rollout"]["workers"] == 1 and (there / "recipe.toml").read_text() == dump(other)
    (event,) = Run(there).events("spread")
    assert event["step"] == 4 and event["data"] == {key: [None, value] for key, value in spread.items()}
    assert list(train(other, there)) == [] and list(train(first, there)) == []  # complete, however it is spread


def test_what_is_done_may_not_change_with_how_it_is_spread(reference: References, tmp_path: Path) -> None:
    there = tmp_path / "run"
    sitting(recipe("bandit", tmp_path), there, 2)
    before = (there / "recipe.toml").read_text()
    for key, value in (("rollout.n", 8), ("seed", 1), ("evaluate.n", 4), ("steps", 13)):
        with pytest.raises(RecipeError, match=f"another recipe .{key}: "):
            list(train(recipe("bandit", tmp_path, **{"threads": 1, key: value}), there))
    assert (there / "recipe.toml").read_text() == before and not Run(there).events("spread")


def test_a_checkpoint_of_other_components_is_refused(tmp_path: Path) -> None:
    path, made = tmp_path / "run", recipe("bandit", tmp_path)
    sitting(made, path, 2)
    text = (path / "recipe.toml").read_text()
    part = {"trains": ["policy"], "terms": {"clip": {}}, "optimiser": {"lr": 0.1}}
    other = recipe("bandit", tmp_path, part__other=part).with_settings({"remove": ["part.policy"]})
    (path / "recipe.toml").write_text(dump(other))
    with pytest.raises(RecipeError, match=r"another recipe \(part\.other"):  # what the file says counts no more
        list(train(other, path))
    with closing(sqlite3.connect(path / "run.sqlite")) as db, db:
        db.execute("delete from meta where key in ('recipe', 'sets')")  # as a run of an older version
        write_rows(db, "meta", [("format", "5")])  # from before sets of rows had checksums
    with pytest.raises(ValueError, match=r"state for 'main/learners/main/parts/policy/optim.*was the recipe changed"):
        list(train(other, path))
    (path / "recipe.toml").write_text(text)
    assert [r["step"] for r in train(made, path)] == list(range(3, 13))  # no harm was done


def test_the_runs_of_two_seeds_differ(reference: References, tmp_path: Path) -> None:
    list(train(recipe("gridworld", tmp_path, seed=1), tmp_path / "run"))
    found = differences(contents(reference("gridworld")[0])["checkpoint"], contents(tmp_path / "run")["checkpoint"])
    assert any("logits" in place for place in found)


def test_the_end_of_a_stage_stays_to_start_from(tmp_path: Path) -> None:
    """Of 12 steps of imitation and 6 of RL, a checkpoint each, step 12 stays beside the last one and the best."""
    text = recipe("text", tmp_path, store__keep=1, evaluate__every=0)
    for _ in train(text, tmp_path / "run"):
        pass
    steps = [c["step"] for c in Run(tmp_path / "run").checkpoints()]
    assert {12, 18} <= {*steps} and len(steps) <= 3, steps
    assert load_initial(f"{tmp_path / 'run'}@12")
    for _ in train(text.with_settings({"steps": 8}), tmp_path / "run"):
        pass
    steps = [c["step"] for c in Run(tmp_path / "run").checkpoints()]
    assert {12, 20} <= {*steps} and len(steps) <= 3, "the end of a last stage that was given more is none"
