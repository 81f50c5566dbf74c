"""What a node takes of what others told: groups that differ by its own grading, nothing that it cannot read.

SAPO's swarm: alone or without sharing it is GRPO bit for bit, what is taken teaches, and it goes on after a kill.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from shuhari.config.recipe import Recipe, load
from shuhari.curricula.sequential import Sequential
from shuhari.data import ContractError, Problem, Request, copy_with
from shuhari.loop.run import Run, open_run
from shuhari.loop.study import train
from shuhari.methods.engine.sapo.shared_answers import SAID, Foreign
from shuhari.methods.engine.sapo.shared_groups import Shared, describe_group, read_told, show_group
from shuhari.methods.engine.sapo.swarm import Swarm
from shuhari.store import Run as Stored
from shuhari.store.codec import dumps, loads
from shuhari.testing.compare import contents, differences

RECIPE = """steps = 2
[task]
name = "arithmetic"
kind = "carry"
digits = 1
[models.policy]
use = "causal"
hidden = 16
layers = 1
heads = 2
[rollout]
use = "shared_answers"
n = 2
sampling.max_new = 4
sampling.temperature = 0.5
[buffer]
size = 2
[collect.advantage]
[part.policy]
terms.loss = {use = "clip"}
optimiser.lr = 1e-2
"""


@pytest.fixture
def run(tmp_path: Path) -> Any:
    (tmp_path / "r.toml").write_text(RECIPE)
    with open_run(load(tmp_path / "r.toml")) as opened:
        opened.enter_stage()
        opened.ctx.step = 1  # round 0 was told
        yield opened


def tell(folder: Path, run: Run, answers: list[list[Any]], node: str = "other", round: int = 0) -> list[Problem]:
    """Groups that another node told: of problem i the texts answers[i], all ended."""
    source = run.ctx.task.problems("train")
    problems = [source[i] for i in range(len(answers))]
    told = [{"problem": p, "answers": [[x, True] for x in said]} for p, said in zip(problems, answers, strict=True)]
    path = folder / node / f"{round:08d}.told"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(dumps(told))
    return problems


def select(curriculum: Shared, n: int, run: Run) -> Any:
    return asyncio.run(curriculum.select(n, run.ctx))


def right(run: Run, i: int) -> str:
    return str(run.ctx.task.problems("train")[i].answer)


def test_groups_that_are_all_right_or_all_wrong_are_never_taken(run: Any, tmp_path: Path) -> None:
    good, other = right(run, 1), right(run, 2)
    problems = tell(tmp_path, run, [["+", "+"], [good, "+"], [other, other]])
    for useful, expected in ((True, {problems[1].id}), (False, {p.id for p in problems})):
        asked = select(Shared(Sequential(), str(tmp_path), useful=useful, external=1.0), 3, run)
        taken = {r.problem.id: r for r in asked if SAID in r.settings}
        assert taken.keys() == expected and len(asked) == 3, "own problems take the place of what is lacking"
    (mixed,) = (r for r in asked if r.problem.id == problems[1].id)
    assert [t.steps[0].reward["score"] for t in mixed.settings[SAID]] == [1.0, 0.0], "by this run's own grading"


def test_what_a_node_told_itself_and_other_rounds_are_left_alone(run: Any, tmp_path: Path) -> None:
    good = right(run, 0)
    tell(tmp_path, run, [[good, "+"]], node="me")
    tell(tmp_path, run, [[good, "+"]], round=1)
    assert not [r for r in select(Shared(Sequential(), str(tmp_path), "me", 1.0), 2, run) if r.settings]
    run.ctx.step = 3
    for window, expected in ((1, 0), (2, 1)):
        asked = select(Shared(Sequential(), str(tmp_path), "me", 1.0, window), 2, run)
        assert len([r for r in asked if r.settings]) == expected


def test_a_step_takes_no_group_twice(run: Any, tmp_path: Path) -> None:
    tell(tmp_path, run, [[right(run, i), "+"] for i in range(3)])
    curriculum = Shared(Sequential(), str(tmp_path), "me", external=0.5)
    taken = [r.problem.id for _ in range(2) for r in select(curriculum, 4, run) if r.settings]
    assert len(taken) == 3 == len(set(taken))


def test_a_share_of_the_batch_is_rounded_down(run: Any, tmp_path: Path) -> None:
    tell(tmp_path, run, [[right(run, i), "+"] for i in range(10)])
    for external, n, expected in ((0.3, 10, 3), (0.5, 5, 2), (0.0, 8, 0)):
        asked = select(Shared(Sequential(), str(tmp_path), "me", external), n, run)
        assert len([r for r in asked if r.settings]) == expected and len(asked) == n


def test_external_answers_have_the_log_probabilities_of_the_policy_now(run: Any, tmp_path: Path) -> None:
    """Against the policy's own samples: told as text and read back, they get what sampling said of them."""
    own = asyncio.run(
        Foreign().group(run.ctx.stamp_request(Request(run.ctx.task.problems("train")[0], 6), ""), run.ctx)
    )
    curriculum = Shared(Sequential(), str(tmp_path), "other", external=1.0, useful=False)
    told = describe_group(own)
    assert told["problem"].solution is None and [a[0] for a in told["answers"]] == [
        t.steps[0].info["text"] for t in own
    ]
    shown = show_group(told, run.ctx, "policy")
    request = run.ctx.stamp_request(Request(own[0].request.problem, 6, settings={SAID: tuple(shown)}), "")
    again = asyncio.run(Foreign().group(request, run.ctx))
    for a, b in zip(own, again, strict=True):
        assert a.steps[0].action.tolist() == b.steps[0].action.tolist() and a.status is b.status
        assert b.steps[0].logp == pytest.approx(a.steps[0].logp, abs=1e-5)
    assert curriculum.report() == {}


def test_with_groups_in_flight_over_steps_they_are_refused(run: Any) -> None:
    """The weights now are of no version that the engine samples by."""
    request = run.ctx.stamp_request(Request(run.ctx.task.problems("train")[0], 2), "")
    own = asyncio.run(Foreign().group(request, run.ctx))
    told = copy_with(request, settings={SAID: tuple(own)})
    assert len(asyncio.run(Foreign().group(told, run.ctx))) == 2
    run.ctx.engine.staleness = 1
    with pytest.raises(ContractError, match=r"engine\.staleness is 1.*expected 0"):
        asyncio.run(Foreign().group(told, run.ctx))


@pytest.mark.parametrize(
    "written",
    [b"", b"shuhari1", b"\x80\x04K\x01.", dumps({"problem": 1}), dumps([1, "x", {"problem": "p", "answers": []}]),
     dumps([{"problem": Problem("arithmetic", "a", "1+1="), "answers": [["\u20ac", True], [3, True], "x"]}]),
     dumps([{"problem": Problem("arithmetic", "a", "1+1="), "answers": [["1" * 99, True], ["2", True]]}])],
)  # fmt: skip
def test_what_is_no_group_is_left_out(written: bytes, run: Any, tmp_path: Path) -> None:
    """Also a pickle, letters that the tokenizer has not, and answers that are too long."""
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "00000000.told").write_bytes(written)
    asked = select(Shared(Sequential(), str(tmp_path), external=1.0, useful=False), 2, run)
    assert len(asked) == 2 and not any(r.settings for r in asked)


def test_a_folder_that_is_not_there_tells_nothing(run: Any, tmp_path: Path) -> None:
    assert read_told(tmp_path / "none") == []
    assert len(select(Shared(Sequential(), str(tmp_path / "none")), 2, run)) == 2
    with pytest.raises(ValueError, match="expected the name of a folder"):
        Shared(Sequential(), node="../up")


BASE = """steps = 5
[task]
name = "arithmetic"
kind = "carry"
digits = 1
[models.policy]
use = "causal"
hidden = 16
layers = 1
heads = 2
intermediate = 32
[rollout]
n = 6
sampling.max_new = 3
[buffer]
size = 4
[collect.advantage]
[part.policy]
terms.loss = {use = "clip"}
optimiser.lr = 1e-2
[store]
every = 2
[[stage]]
name = "warm-up"
steps = 25
buffer = {use = "demos", size = 32}
remove = ["collect.advantage", "part.policy.terms.loss"]
part.policy.terms.nll.stream = "ce"
[[stage]]
name = "rl"
"""
SWARM = """[rollout]
use = "shared_answers"
n = 6
sampling.max_new = 3
[curriculum]
use = "shared_groups"
inner.use = "sequential"
[study]
use = "swarm"
nodes = 2
"""
WARM = 25


def made(folder: Path, text: str, **settings: Any) -> Recipe:
    folder.mkdir(exist_ok=True)
    file = folder / "recipe.toml"
    file.write_text(text)
    return load(file, settings={k.replace("__", "."): v for k, v in settings.items()})


def swarm(folder: Path, **settings: Any) -> Recipe:
    text = BASE.replace("[rollout]\nn = 6\nsampling.max_new = 3\n", SWARM.split("[study]")[0])
    return made(folder, text + "[study]" + SWARM.split("[study]")[1], **settings)


def weights(path: Path) -> dict[str, torch.Tensor]:
    return dict(Stored(path).load()["models"]["policy"])


def same(a: Any, b: Any) -> bool:
    """Whether two trees of weights are the same bits."""
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    return torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Any]]:
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("swarm")
    return folder / "run", list(train(swarm(folder), folder / "run"))


def test_with_nothing_external_each_node_is_grpo(tmp_path: Path) -> None:
    """Oracle of the paper's 8/0: independent GRPO of the same seeds, by a recipe that knows no swarm."""
    torch.set_num_threads(1)
    path = tmp_path / "run"
    list(train(swarm(tmp_path, curriculum__external=0.0), path))
    for k in range(2):
        seed = load(path / "children" / f"node-{k}").seed
        alone = tmp_path / f"alone-{k}"
        list(train(made(tmp_path / f"r{k}", BASE, seed=seed), alone))
        assert same(weights(path / "children" / f"node-{k}"), weights(alone))
    assert not same(weights(path / "children/node-0"), weights(path / "children/node-1"))


def test_a_swarm_of_one_is_grpo(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    list(train(swarm(tmp_path, study__nodes=1), tmp_path / "run"))
    list(train(made(tmp_path / "alone", BASE), tmp_path / "alone" / "run"))
    assert same(weights(tmp_path / "run/children/node-0"), weights(tmp_path / "alone/run"))


def test_half_of_each_batch_is_what_the_other_said_a_round_before(whole: tuple[Path, list[Any]]) -> None:
    path, _ = whole
    columns = Stored(path / "children/node-0").metrics()
    taken = [x for x, stage in zip(columns["curriculum/external"], columns["stage"], strict=True) if stage == "rl"]
    assert taken[0] == 0 and all(x <= 2 for x in taken) and sum(taken) > 0
    rl = [i for i, stage in enumerate(columns["stage"]) if stage == "rl"]
    assert all(columns["policy/rows"][i] == 24 for i in rl), "a batch is always as large"
    told = {r: loads((path / f"shared/node-1/{r:08d}.told").read_bytes()) for r in range(WARM, WARM + 5)}
    for i, r in zip(rl, range(WARM, WARM + 5), strict=True):
        before = told.get(r - 1, [])
        assert columns["curriculum/offered"][i] == len(before)


def test_rows_sum_the_rewards_of_own_answers(whole: tuple[Path, list[Any]]) -> None:
    path, _ = whole
    rows = Stored(path).metrics()
    assert rows["study/round"] == list(range(1, WARM + 6))
    each = [Stored(path / f"children/node-{k}").metrics()["curriculum/own_reward"] for k in range(2)]
    sums = [a + b for a, b in zip(*each, strict=True) if a is not None]
    found = [x for x in rows["study/reward"] if x is not None]
    assert found == pytest.approx(sums) and rows["study/total"][-1] == pytest.approx(sum(sums))


@pytest.mark.parametrize("kill", [3, 58])
def test_a_killed_swarm_goes_on(kill: int, whole: tuple[Path, list[Any]], tmp_path: Path) -> None:
    """Killed in the first steps, and while nodes share, one of them ahead of the other."""
    recipe, path = swarm(tmp_path), tmp_path / "run"
    script = f"""
import os, signal, torch
from pathlib import Path
from shuhari.config.recipe import load
from shuhari.loop.study import train
torch.set_num_threads(1)
at = 0
for report in train(load({str(tmp_path / "recipe.toml")!r}), Path({str(path)!r})):
    at += "child" in report
    if at == {kill}:
        os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == -9
    list(train(recipe, path))
    for k in range(2):
        a, b = contents(whole[0] / f"children/node-{k}"), contents(path / f"children/node-{k}")
        assert not differences(a, b)
    a, b = Stored(whole[0]).metrics(), Stored(path).metrics()
    assert {k: v for k, v in a.items() if k != "wall"} == {k: v for k, v in b.items() if k != "wall"}
    files = sorted(p.relative_to(path / "shared") for p in (path / "shared").rglob("*.told"))
    assert files and all((path / "shared" / f).read_bytes() == (whole[0] / "shared" / f).read_bytes() for f in files)


class Told:
    """Runs that report 1, 2, 3, .. in each of three steps."""

    seed, folder = 3, Path("there")

    def __init__(self) -> None:
        self.order: list[str] = []
        self.asked: dict[str, Any] = {}

    def train(self, name: str, settings: Any) -> Iterator[dict[str, Any]]:
        self.asked[name] = settings
        return self._go(name)

    def _go(self, name: str) -> Iterator[dict[str, Any]]:
        for step in range(1, 4):
            self.order.append(f"{name} {step}")
            yield {"child": name, "step": step, "curriculum/own_reward": step / 4, "x": float(name[-1])}

    def reports(self, name: str) -> list[dict[str, Any]]:
        return []


def test_nodes_take_turns_and_rewards_are_summed_by_hand() -> None:
    runs: Any = Told()
    rows = [r for r in Swarm(2, {"task.x": (5, 6)}, ("x",))(runs) if "child" not in r]
    assert runs.order == ["node-0 1", "node-1 1", "node-0 2", "node-1 2", "node-0 3", "node-1 3"]
    assert [(r["study/reward"], r["study/total"], r["x"]) for r in rows] == [
        (0.5, 0.5, 0.5),
        (1, 1.5, 0.5),
        (1.5, 3, 0.5),
    ]
    assert [s["task.x"] for s in runs.asked.values()] == [5, 6] and "seed" not in runs.asked["node-0"]
    with pytest.raises(ValueError, match=r"task.x has 1 values: expected one for each of 2"):
        Swarm(2, {"task.x": (5,)})
