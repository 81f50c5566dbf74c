"""SAPO's swarm: alone or without sharing it is GRPO bit for bit, what is taken teaches, and it goes on after a kill."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from shuhari.config.recipe import Recipe, load
from shuhari.loop.study import train
from shuhari.store import Run
from shuhari.store.codec import loads
from shuhari.studies.swarm import Swarm
from shuhari.testing.compare import contents, differences

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
terms.clip = {}
optimiser.lr = 1e-2
[store]
every = 2
[[stage]]
name = "warm-up"
steps = 25
buffer = {use = "demos", size = 32}
collect.advantage = false
part.policy.terms = {clip = false, nll = {stream = "ce"}}
[[stage]]
name = "rl"
"""
SWARM = """[rollout]
use = "foreign"
n = 6
sampling.max_new = 3
[curriculum]
use = "shared"
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
    return dict(Run(path).load()["models"]["policy"])


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
    columns = Run(path / "children/node-0").metrics()
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
    rows = Run(path).metrics()
    assert rows["study/round"] == list(range(1, WARM + 6))
    each = [Run(path / f"children/node-{k}").metrics()["curriculum/own_reward"] for k in range(2)]
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
    a, b = Run(whole[0]).metrics(), Run(path).metrics()
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
