"""The loop: phases and their streams, stage borders, problems that are kept. Resuming has a file of its own."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from shuhari.batch import Batch
from shuhari.config.recipe import Recipe, load
from shuhari.data import Request
from shuhari.events import Collected, StageStarted
from shuhari.loop.run import loop, open_run, train
from shuhari.ports import Rollout
from shuhari.rollouts.single import Single
from shuhari.store import Run
from shuhari.testing.compare import contents, differences
from small_runs import BANDIT, DQN, often, recipe

HERE = __name__


@dataclass
class Noisy:
    """Adds noise to the reward, and remembers the stream that it was given."""

    needs: tuple[Any, ...] = field(init=False, default=())

    def __call__(self, batch: Batch, ctx: Any) -> Batch:
        STREAMS.append((ctx.step, ctx.rng("noisy").initial_seed()))
        noise = ctx.noise(batch, "noisy").uniform(0, 1).float()
        mixed = torch.rand(len(batch), 1, generator=ctx.rng("more"))
        return batch.put({"reward": batch["reward"] + noise + mixed})


STREAMS: list[tuple[int, int]] = []


@dataclass
class Wanders:
    """A curriculum that draws its problems from the run's streams."""

    async def select(self, n: int, ctx: Any) -> list[Request]:
        source = ctx.task.problems("train")
        return [Request(source[int(i)]) for i in torch.randint(0, 8, (n,), generator=ctx.rng("problems"))]


@dataclass
class Flaky:
    """Grades until its second group, then fails once."""

    state: dict[str, Any] = field(init=False, default_factory=lambda: {"asked": 0})

    async def grade(self, group: Any, ctx: Any) -> list[Any]:
        self.state["asked"] += 1
        if self.state["asked"] == 2:
            raise TimeoutError("no answer\x1b[31m")
        return [{"style": 0.0}] * len(group)


@pytest.fixture(autouse=True)
def _empty() -> None:
    STREAMS.clear()


def made(text: str, folder: Path, **settings: Any) -> Recipe:
    file = folder / "own.toml"
    file.write_text(text)
    return often(load(file)).with_settings({k.replace("__", "."): v for k, v in settings.items()})


def noisy(folder: Path) -> Recipe:
    more = f'[collect.noisy]\nuse = "{HERE}.Noisy"\nbefore = "advantage"\n[curriculum]\nuse = "{HERE}.Wanders"\n'
    return made(BANDIT + more, folder, steps=5)


def test_noise_asked_for_by_a_transform_or_a_curriculum_outlives_a_stop(tmp_path: Path) -> None:
    whole = list(train(noisy(tmp_path), tmp_path / "whole"))
    for stop in (1, 3):
        sitting = train(noisy(tmp_path), tmp_path / "parts")
        assert next(r for r in sitting if r["step"] == stop)
        sitting.close()  # type: ignore[attr-defined]
    list(train(noisy(tmp_path), tmp_path / "parts"))
    assert len(whole) == 5
    assert not differences(contents(tmp_path / "whole"), contents(tmp_path / "parts"))


def test_each_draw_has_streams_of_its_own(tmp_path: Path) -> None:
    draws = made(DQN + f'[transform.noisy]\nuse = "{HERE}.Noisy"\n', tmp_path, steps=6)
    list(train(draws))
    assert len({step for step, _ in STREAMS}) < len(STREAMS)  # several draws a step
    assert len(set(STREAMS)) == len({seed for _, seed in STREAMS}) == len(STREAMS)


def test_each_round_of_collection_has_streams_of_its_own(tmp_path: Path) -> None:
    run = open_run(noisy(tmp_path))
    tell, lost = run.tell, iter(range(2))
    run.tell = lambda event: (isinstance(event, Collected) and next(lost, None) is not None) or tell(event)  # type: ignore
    next(loop(run))
    assert [step for step, _ in STREAMS] == [0, 0, 0]  # two batches never reached the buffer
    assert len({seed for _, seed in STREAMS}) == 3


def test_the_border_of_two_stages_is_measured_once(tmp_path: Path) -> None:
    text = BANDIT.replace("steps = 12", "") + '[[stage]]\nname = "a"\nsteps = 2\n[[stage]]\nname = "b"\nsteps = 2\n'
    once = list(train(made(text, tmp_path), tmp_path / "once"))
    per = once[0]["spent/evaluate/decisions"]  # before stage a
    assert [r["spent/evaluate/decisions"] / per for r in once] == [1, 2, 2, 3]
    summary = Run(tmp_path / "once").summary
    assert summary is not None and summary["before"]["greedy"] == once[1]["evaluate/greedy"]
    other = made(text + "evaluate.n = 6\n", tmp_path)  # of stage b
    assert [r["spent/evaluate/decisions"] for r in train(other)] == [per, 2 * per, 2 * per + 6, 2 * per + 12]


def test_a_stop_at_the_border_changes_nothing(tmp_path: Path) -> None:
    text = BANDIT.replace("steps = 12", "") + '[[stage]]\nname = "a"\nsteps = 2\n[[stage]]\nname = "b"\nsteps = 2\n'
    list(train(made(text, tmp_path), tmp_path / "whole"))
    first = train(made(text, tmp_path), tmp_path / "parts")
    next(first), next(first)
    first.close()  # type: ignore[attr-defined]
    list(train(made(text, tmp_path), tmp_path / "parts"))
    assert not differences(contents(tmp_path / "whole"), contents(tmp_path / "parts"))


def test_weights_that_move_at_a_border_are_measured_anew(tmp_path: Path) -> None:
    text = BANDIT.replace("steps = 12", "") + (
        '[models.start]\ninit = "policy"\n[[stage]]\nname = "a"\nsteps = 2\n[[stage]]\nname = "b"\nsteps = 2\n'
        '[stage.follow.policy]\nuse = "copy"\nof = "start"\non = "stage"\n'
    )
    reports = list(train(made(text, tmp_path)))
    per = reports[0]["spent/evaluate/decisions"]
    assert [r["spent/evaluate/decisions"] / per for r in reports] == [1, 2, 3, 4]


def test_what_went_wrong_is_kept_once(tmp_path: Path) -> None:
    more = f'[reward.weights]\nscore = 1.0\nstyle = 1.0\n[reward.style]\nuse = "{HERE}.Flaky"\n'
    flaky = made(BANDIT + more, tmp_path, steps=3, remove=["evaluate"], store__every=100)
    reports = train(flaky, tmp_path / "run")
    first = next(reports)
    told = ["failed_graders (reward 'style'): TimeoutError: no answer\x1b[31m"]
    assert list(first["problems"]) == told
    reports.close()  # type: ignore[attr-defined]  # saves the step once more
    assert Run(tmp_path / "run").events("problem") == [{"step": 1, "kind": "problem", "data": told[0]}]
    assert json.loads(json.dumps(Run(tmp_path / "run").events()))


def test_an_event_told_by_a_listener_comes_after_the_one_it_hears(tmp_path: Path) -> None:
    with open_run(recipe("bandit", tmp_path)) as run:
        run.enter_stage()
        heard: list[str] = []

        class First:
            def observe(self, event: Any) -> None:
                heard.append(type(event).__name__)
                if isinstance(event, Collected):
                    run.ctx.tell(StageStarted("inner"))

        class Second:
            def observe(self, event: Any) -> None:
                heard.append("second " + type(event).__name__)

        run.listeners = [First(), Second()]
        run.tell(Collected(run.collect(1)))
    assert heard == ["Collected", "second Collected", "StageStarted", "second StageStarted"]


def test_the_rollout_of_evaluation_is_remembered(tmp_path: Path) -> None:
    with open_run(recipe("ppo", tmp_path, evaluate={"n": 1})) as run:
        places = run.stage.list_memories()
        assert places["evaluate"]["rollout"] is run.stage.evaluation_rollout is not run.stage.rollout


def test_a_run_that_is_stored_nowhere_keeps_the_groups_of_one_step(tmp_path: Path) -> None:
    run = open_run(recipe("bandit", tmp_path))
    for _ in loop(run):
        assert len(run.ctx.groups) == 4


@dataclass
class Holds:
    """A rollout and a reward that notes when it is opened and closed."""

    name: str = ""
    of: Rollout | None = None
    accepts: dict[str, Any] = field(init=False, default_factory=dict)

    async def group(self, request: Request, ctx: Any) -> Any:
        assert ("open", self.name) in HELD
        return await Single().group(request, ctx)

    async def grade(self, group: Any, ctx: Any) -> list[Any]:
        return [{"style": 0.0}] * len(group)

    def open(self, task: Any, seed: int) -> None:
        HELD.append(("open", self.name))

    def close(self) -> None:
        HELD.append(("close", self.name))


HELD: list[tuple[str, str]] = []


def test_rollouts_of_evaluation_and_within_others_are_opened_and_what_a_stage_held_is_closed(tmp_path: Path) -> None:
    HELD.clear()

    def holds(name: str, **more: Any) -> dict[str, Any]:
        return {"use": f"{HERE}.Holds", "name": name, **more}

    style = f'reward.style = {{use = "{HERE}.Holds", name = "style"}}\nreward.weights = {{score = 1.0}}\n'
    text = BANDIT.replace("steps = 12", "") + (
        f'[[stage]]\nname = "a"\nsteps = 1\n{style}[[stage]]\nname = "b"\nsteps = 1\nremove = ["evaluate"]\n'
    )
    tested = {"rollout": holds("tested", of=holds("inner")), "more": {"way": {"rollout": holds("way")}}}
    list(train(made(text, tmp_path).with_settings({f"evaluate.{k}": v for k, v in tested.items()})))
    assert [name for what, name in HELD if what == "open"] == ["tested", "inner", "way"]
    assert sorted(name for what, name in HELD if what == "close") == ["inner", "style", "tested", "way"]


@dataclass
class Hears:
    """A follower that hears a stage's start and each step, and notes them."""

    role: str
    on: tuple[str, ...] = ("stage", "step")

    def __call__(self, models: Any, event: Any) -> None:
        HEARD.append(type(event).__name__)


@dataclass
class Reads:
    """A curriculum that reads what was said in the groups that are collected."""

    async def select(self, n: int, ctx: Any) -> list[Request]:
        source = ctx.task.problems("train")
        return [Request(source[i]) for i in range(n)]

    def observe(self, event: Any) -> None:
        if isinstance(event, Collected):
            steps = [s for group in event.groups for t in group for s in t.steps]
            assert [int(s.action) for s in steps] == event.batch["action"].flatten().tolist()
            assert {t.request.n for group in event.groups for t in group} == {len(group) for group in event.groups}
            HEARD.append(f"{len(event.groups)} groups")


HEARD: list[str] = []


def test_a_follower_hears_several_kinds_and_a_curriculum_the_groups_of_the_round(tmp_path: Path) -> None:
    HEARD.clear()
    more = f'[models.average]\ninit = "policy"\n[follow.average]\nuse = "{HERE}.Hears"\n'
    own = made(BANDIT + more + f'[curriculum]\nuse = "{HERE}.Reads"\n', tmp_path, steps=2)
    list(train(own))
    groups = own.tree["buffer"]["size"]
    assert ["StageStarted", f"{groups} groups", "Committed", f"{groups} groups", "Committed"] == HEARD
