"""Every registered component, in a real run: some steps, save, restore in another process, go on; not a bit may differ.

A component comes under test by standing in a recipe of `tests/runs` (or of `small_runs`), with whatever state it has; a
component without state shows that it needs none, since the restored one is new while the other has lived. Packaged
recipes are looked at in `tests/contracts/test_recipes.py`. A component that no recipe uses fails
`test_every_component_is_covered`: write a small one, as a file of `tests/runs`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

import run_files
import shuhari.loop.run
import small_runs
from buildable import list_buildable
from shuhari.batch import Batch
from shuhari.config.build import build_stage
from shuhari.config.recipe import Recipe, load
from shuhari.kernel import state
from shuhari.kernel.registry import entries
from shuhari.loop.run import Run
from shuhari.ports import Ctx
from shuhari.store.codec import dumps, loads
from shuhari.testing import shrink
from shuhari.testing.compare import contents, differences, to_plain

pytestmark = pytest.mark.timeout(300)  # all runs are made once, before the first test
BEFORE = 2  # steps before the save, or half of them where there are fewer than four
OPTIONAL = {"reasoning-gym": "reasoning_gym", "minari": "minari"}  # component -> the same
SERVED = {"vllm", "openai"}  # engines of another process, which a recipe here cannot start: tests/engines has theirs
OUTSIDE = {"study", "analysis", "run_analysis", "quantity", "world"}  # of whole runs, of none; a task makes it anew


@dataclass
class Counting:
    """Adds to each advantage how often it was called; `honest`: the count is in the state."""

    honest: bool = False
    needs: tuple[()] = field(default=(), init=False)
    state: dict[str, Any] = field(init=False, default_factory=lambda: {"calls": 0})

    def __post_init__(self) -> None:
        self.calls = 0

    def __call__(self, batch: Batch, ctx: Ctx) -> Batch:
        self.state["calls"] += self.honest
        self.calls += not self.honest
        return batch.put({"advantage": batch["advantage"] + self.state["calls"] + self.calls})


def recipes(folder: Path) -> dict[str, Recipe]:
    """Every recipe of this test, its files in `folder`."""
    counting = {}
    for honest in ("true", "false"):
        table = f'[collect.counting]\nuse = "{__file__}:Counting"\nhonest = {honest}\n'
        counting[f"honest-{honest}"] = small_runs.BANDIT.replace("steps = 12", "steps = 4") + table
    return {name: small_runs.often(recipe) for name, recipe in run_files.recipes(folder, counting).items()}


# ---------------------------------------------------------------- two processes


def steps(recipe: Recipe, path: Path) -> tuple[Run, Iterator[Any]]:
    """A run as it stands at `path`, and the reports of its loop."""
    run = shuhari.loop.run.open_run(recipe, path)
    return run, shuhari.loop.run.loop(run)


def attributes(run: Run) -> dict[str, Any]:
    """path.attribute -> value, of every component and of all that the codec can write: also what is in no state."""
    out = {}
    for path, component in state.walk({s.name: s.list_memories() for s in run.progress.stages}):
        for name, value in getattr(component, "__dict__", {}).items():
            if value is None and getattr(type(component), name, 0) is None:  # a default, set or not
                continue
            try:
                out[f"{path}.{name}"] = to_plain(loads(dumps(value)))
            except TypeError:  # modules, functions, other components
                continue
    return out


def go_on(folder: Path) -> None:
    """In the other process: every run there, from its checkpoint to its end."""
    torch.set_num_threads(1)
    for name, recipe in recipes(folder).items():
        run, reports = steps(recipe, folder / "restored" / name)
        said = [to_plain(r) for r in reports]
        (folder / "restored" / name / "said.bin").write_bytes(dumps({"reports": said, "attributes": attributes(run)}))


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """recipe -> where the run that went on and the run that was restored differ."""
    folder = tmp_path_factory.mktemp("state")
    source = str(Path(shuhari.__file__).parents[1])
    path = (source, str(Path(small_runs.__file__).parent), os.environ.get("PYTHONPATH"))
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with subprocess.Popen(  # it imports while this process works
        [sys.executable, __file__], env=env, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as other:
        lived = live(folder)
        _, errors = other.communicate(str(folder))
    assert other.returncode == 0, errors[-3000:]
    out = {}
    for name, mine in lived.items():
        theirs = loads((folder / "restored" / name / "said.bin").read_bytes())
        for report in (*mine["reports"], *theirs["reports"]):
            del report["json"]["seconds"]
        assert mine["reports"], f"{name} made no step after it was restored"
        out[name] = differences(mine, theirs)
        out[name] += differences(contents(folder / "lived" / name), contents(folder / "restored" / name))
    torch.set_num_threads(threads)
    return out


def live(folder: Path) -> dict[str, Any]:
    """Every run from start to end, with a copy of what was saved on the way: recipe -> what it said since."""
    lived: dict[str, Any] = {}
    for name, recipe in recipes(folder).items():
        run, reports = steps(recipe, folder / "lived" / name)
        for _ in range(min(BEFORE, recipe.total // 2) if recipe.total else BEFORE):
            next(reports)
        shutil.copytree(folder / "lived" / name, folder / "restored" / name)
        lived[name] = {"reports": [to_plain(r) for r in reports], "attributes": attributes(run)}
    return lived


# ---------------------------------------------------------------- the tests


@pytest.mark.parametrize("name", [*small_runs.ALL, *(f.stem for f in run_files.FILES), "honest-true"])
def test_a_restored_run_goes_on_as_if_nothing_had_been(name: str, found: dict[str, list[str]]) -> None:
    if name not in found:
        pytest.skip(f"{run_files.LIBRARIES[name]} is not installed")
    assert not found[name], "\n".join(found[name][:20])


def test_what_is_kept_outside_of_the_state_is_found(found: dict[str, list[str]]) -> None:
    where = [place for place in found["honest-false"] if ".calls" in place]
    assert where and any("checkpoint" in place for place in found["honest-false"])


def test_every_component_is_covered(tmp_path: Path) -> None:
    used = set()
    packaged = (load(name) for name in list_buildable())
    for recipe in (*recipes(tmp_path).values(), *(shrink(r) for r in packaged if "study" not in r.tree)):
        shared: dict[str, Any] = {}
        for stage in [build_stage(table, shared) for table in recipe.stages]:
            used |= {type(c) for _, c in state.walk(stage.list_memories())}
    known = {c for _, c in entries().items() if c.__module__.startswith("shuhari.")}
    missing = [
        f"{kind} {name!r}"
        for (kind, name), c in sorted(entries().items())
        if c in known - used and kind not in OUTSIDE and name not in SERVED and find_spec(OPTIONAL.get(name, "os"))
    ]
    told = f"no packaged recipe and no file of {run_files.RUNS} uses {', '.join(missing)}: write a small recipe there"
    assert not missing, told


if __name__ == "__main__":
    if told := sys.stdin.read():
        go_on(Path(told))
