"""A run that is there, measured in further ways; and runs, or stages, that only measure."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from shuhari.config.overlay import RecipeError
from shuhari.config.recipe import Recipe, load
from shuhari.data import EMPTY, Request, Step, Trajectory
from shuhari.desk.api import read_trained
from shuhari.loop.measuring import measure
from shuhari.loop.run import open_run, train
from shuhari.ports import Ctx
from shuhari.store import Run
from shuhari.testing import check_recipe, shrink
from shuhari.testing.compare import contents, differences
from small_runs import BANDIT, recipe

HERE = __name__
LOOK = """# measures a bandit's table, drawn once and by a vote
steps = 0
[task]
name = "bandit"
[models.policy]
use = "tabular"
[evaluate]
n = 16
samples = 2
more.vote.rollout = {use = "HERE.Vote", n = 25}
"""
WAYS: dict[str, Any] = {"evaluate.more.cold.sampling.temperature": 0.5, "evaluate.metrics.exact.use": "exact"}


@dataclass
class Vote:
    """Draws `n` answers to a prompt for each that is asked for, and gives the one that most of them say."""

    n: int = 5
    role: str = "policy"
    accepts: Mapping[str, Any] = EMPTY
    stamps = ()

    async def group(self, request: Request, ctx: Ctx) -> list[Trajectory]:
        context, many = ctx.encode(request.problem.prompt, self.role), request.n * self.n
        traces = await ctx.engine.sample(self.role, context, request.sampling, many, key=(request.key, "vote"))
        out = []
        for i in range(request.n):
            drawn = traces[i * self.n : (i + 1) * self.n]
            (best, _), *_ = Counter(trace.action.tobytes() for trace in drawn).most_common(1)
            one = next(trace for trace in drawn if trace.action.tobytes() == best)
            step = Step.of(context, one.action, one.logp, one.version, role=self.role, info=one.info)
            out.append(Trajectory(request, (step,)))
        return out


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    """A bandit that has learnt a little, whose evaluation plays in one way."""
    for _ in train(recipe("bandit", tmp_path, evaluate__samples=4), tmp_path / "run"):
        pass
    return tmp_path / "run"


def look(folder: Path, text: str = LOOK) -> Recipe:
    (folder / "look.toml").write_text(text.replace("HERE", HERE))
    return load(folder / "look.toml")


def test_a_further_way_is_measured_as_a_run_that_had_it_measures_it(trained: Path, tmp_path: Path) -> None:
    """Evaluation changes nothing of a run, so the other one ends with the same weights, and plays by the same noise."""
    for _ in train(recipe("bandit", tmp_path, evaluate__samples=4).with_settings(WAYS), tmp_path / "other"):
        pass
    theirs = {k.removeprefix("evaluate/"): v[-1] for k, v in Run(tmp_path / "other").metrics().items()
              if k.startswith("evaluate/")}  # fmt: skip
    before = contents(trained)
    found = measure(trained, None, {}, over=WAYS)
    assert {"cold.mean", "cold.pass@2", "exact.mean", "tokens"} <= theirs.keys()
    assert found.scores == theirs and found.settings == WAYS
    assert not differences(before, contents(trained)), "nothing is stored"
    assert read_trained(trained).evaluate(samples=4, **WAYS) == theirs
    again = measure(tmp_path / "other", None, {})  # it has them of its own
    assert again.scores == theirs and not again.settings
    assert set(measure(tmp_path / "other", None, {}, further=False).scores) < theirs.keys()


def test_a_vote_over_a_trained_run_gains(trained: Path) -> None:
    """Its likeliest arm is the best one, which so is most of 25 samples more often than one of them."""
    over = {"evaluate": {"samples": 4, "more": {"vote": {"rollout": {"use": f"{HERE}.Vote", "n": 25}}}}}
    found = read_trained(trained).evaluate(64, **over)
    assert found["greedy"] == 1 and found["vote.mean"] > found["mean"] + 0.1, found


def test_the_settings_reach_the_stage_at_hand(tmp_path: Path) -> None:
    """The first stage has an [evaluate] of its own, the second another, which is what the last checkpoint is in."""
    text = BANDIT.replace("steps = 12\n", "").replace("every = 5\nn = 8\n", "n = 8\n")
    text += '[[stage]]\nname = "a"\nsteps = 1\nevaluate.n = 3\n[[stage]]\nname = "b"\nsteps = 1\nevaluate.n = 5\n'
    (tmp_path / "two.toml").write_text(text)
    for _ in train(load(tmp_path / "two.toml"), tmp_path / "run"):
        pass
    asked = {"evaluate.n": 7, "rollout.sampling.temperature": 0.5}
    assert [len(measure(tmp_path / "run", step, {}, over=over).outcomes.ids)
            for step, over in ((1, {}), (2, {}), (1, asked), (2, asked))] == [3, 5, 7, 7]  # fmt: skip


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("part.policy.optimiser.lr", 1.0, "part.policy.optimiser.lr: a stored run is evaluated"),
        ("rollout.n", 2, r"rollout.n: .* expected evaluate.<setting>, or rollout.sampling.<setting>"),
        ("rollout", {"sampling": {"temperature": 1.0}, "use": "tree"}, r"rollout.use: a stored run is evaluated"),
        ("steps", 3, "steps: a stored run is evaluated"),
        ("remove", ["evaluate.every"], "remove: a stored run is evaluated"),
        ("evaluate.mor", 1, "evaluate.mor: no setting .* did you mean 'more'"),
        ("evaluate.more.hot.sampling.temperature", -1.0, "evaluate.more.hot.sampling.temperature"),
    ],
)
def test_any_other_setting_is_refused(trained: Path, key: str, value: Any, told: str) -> None:
    with pytest.raises(RecipeError, match=told):
        measure(trained, None, {}, over={key: value})


# ---------------------------------------------------------------- what only measures


def test_a_run_of_no_steps_measures_the_weights_it_starts_from(trained: Path, tmp_path: Path) -> None:
    weights = Run(trained).load()["models"]
    (report,) = train(look(tmp_path), tmp_path / "look", init=weights)
    assert (report["step"], report["stage"]) == (0, "main")
    over = {"evaluate.more.vote.rollout.use": f"{HERE}.Vote", "evaluate.more.vote.rollout.n": 25}
    theirs = measure(trained, None, {"n": 16, "samples": 2}, over=over).scores
    assert {k.removeprefix("evaluate/"): v for k, v in report.items() if k.startswith("evaluate/")} == theirs
    run = Run(tmp_path / "look")
    assert run.status == "complete" and run.step == 0 and [c["step"] for c in run.checkpoints()] == [0]
    summary = json.loads((tmp_path / "look" / "summary.json").read_text())
    assert summary["after"] == theirs and summary["before"] == {} and summary["steps"] == 0
    assert not [*train(look(tmp_path), tmp_path / "look")], "it is complete"
    assert measure(tmp_path / "look", 0, {}).scores == theirs
    mine = run.load()["models"]["policy"]["logits"]
    assert torch.equal(mine, weights["policy"]["logits"])


def test_a_stage_between_two_is_one_step_and_leaves_the_others_as_they_are(tmp_path: Path) -> None:
    """Steps 1 and 2 learn, 3 looks, 4 and 5 learn on; without it the last weights are the same, at step 4."""
    folder = Path(__file__).parents[1] / "runs"
    found = load(folder / "measured.toml")
    reports = [*train(found, tmp_path / "with")]
    assert [(r["step"], r["stage"]) for r in reports] == [
        (1, "learn"), (2, "learn"), (3, "look"), (4, "go-on"), (5, "go-on")
    ]  # fmt: skip
    assert found.total == 5 and reports[-1]["spent/steps"] == 4
    assert {"evaluate/cold.mean", "evaluate/exact.mean"} <= reports[2].keys() and "evaluate/greedy" in reports[2]
    plain = [*train(found.with_settings({"remove": ["stage.look"]}), tmp_path / "without")]
    assert [r["step"] for r in plain] == [1, 2, 3, 4]


def test_what_only_measures_passes_the_checks_of_recipes(tmp_path: Path) -> None:
    check_recipe(look(tmp_path), tmp_path / "checked")
    assert shrink(look(tmp_path)).total == 0


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("n = 16", "n = 0", ""),  # the vote asks for none either
        ("[evaluate]", "[store]\nkeep = 1\n[evaluate]\nevery = 3", ""),
        ("[evaluate]\nn = 16\nsamples = 2\nmore.vote.rollout = {use = \"HERE.Vote\", n = 25}\n", "",
         "evaluate: stage 'main' of 0 steps only measures, and nothing is measured: give"),
        ("[evaluate]", "[part.policy]\noptimiser.lr = 0.1\nterms.loss = {use = \"clip\"}\n[evaluate]",
         "steps: 0 in stage 'main', which has parts that learn: expected 1 or more; or nothing that learns"),
        ("steps = 0", "steps = 1", "part: missing: nothing learns; .* or steps = 0, and the stage only measures"),
        ("steps = 0", "tokens = 0", "tokens: 0: expected a number of 1 or more"),
        ("steps = 0", "steps = -1", "steps: -1: expected a number of 0 or more"),
    ],
)  # fmt: skip
def test_what_cannot_measure_alone_is_refused(tmp_path: Path, old: str, new: str, told: str) -> None:
    assert old in LOOK
    if not told:
        open_run(look(tmp_path, LOOK.replace(old, new))).ctx.close()
        return
    with pytest.raises(RecipeError, match=told):
        open_run(look(tmp_path, LOOK.replace(old, new)))
