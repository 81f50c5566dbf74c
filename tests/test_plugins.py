"""What other packages add: distributions as an installer leaves them on the path, whole and broken."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from shuhari.config.library import list_names
from shuhari.config.overlay import RecipeError
from shuhari.config.recipe import load
from shuhari.config.settings import look_up
from shuhari.kernel import plugins, registry
from shuhari.lab.claims.kept_results import list_methods
from shuhari.tasks import catalogue

TASK = '''
from dataclasses import dataclass
from shuhari.tasks.arithmetic import Arithmetic

@dataclass
class Chess(Arithmetic):
    """Sums on a board."""

class Bare:
    pass
'''
RECIPE = 'format = 1\nextends = "baselines/grpo"\nsummary = "sums on a board"\n[task]\nname = "chess"\n'


def distribution(folder: Path, name: str, points: dict[str, dict[str, str]], files: dict[str, str]) -> None:
    """A package and its metadata, as an installer would have put them there."""
    info = folder / f"{name}-1.2.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n")
    groups = [f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in entries.items()) for group, entries in points.items()]
    (info / "entry_points.txt").write_text("\n".join(groups))
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of packages on the path, until the test is over."""
    registry.entries()
    monkeypatch.setattr(registry, "_ENTRIES", dict(registry._ENTRIES))
    monkeypatch.syspath_prepend(tmp_path)
    plugins.find_offered.cache_clear()
    before = set(sys.modules)
    yield tmp_path
    for name in [m for m in sys.modules if m not in before and m.partition(".")[0].endswith("pkg")]:
        del sys.modules[name]
    plugins.find_offered.cache_clear()


@pytest.fixture
def packages(site: Path) -> Path:
    """A package that works, and one that raises wherever it is imported."""
    whole = {"shuhari.task": {"chess": "chesspkg.tasks:Chess", "bare": "chesspkg.tasks:Bare"}}
    files = {"chesspkg/__init__.py": "", "chesspkg/tasks.py": TASK, "chesspkg/recipes/blitz.toml": RECIPE}
    distribution(site, "chesspkg", {**whole, "shuhari.recipes": {"chess": "chesspkg.recipes"}}, files)
    broken = {"shuhari.task": {"torn": "tornpkg.tasks:Torn"}, "shuhari.recipes": {"torn": "tornpkg.recipes"}}
    raises = "raise RuntimeError('torn apart')"
    distribution(site, "tornpkg", broken, {"tornpkg/__init__.py": raises, "tornpkg/recipes/a.toml": RECIPE})
    return site


@pytest.mark.usefixtures("packages")
def test_a_task_and_a_recipe_of_another_package_are_listed_found_and_resolved() -> None:
    tasks = {t["use"]: t for t in catalogue.list_tasks()}
    assert tasks["chess"]["summary"] == "Sums on a board." and tasks["chess"]["example"]["prompt"].endswith("=")
    listed = {m.name: m for m in list_methods()}
    assert (listed["chess/blitz"].family, listed["chess/blitz"].summary) == ("chess", "sums on a board")
    assert {"baselines/grpo", "chess/blitz"} <= set(list_names())
    recipe = load("chess/blitz", ["task.digits=1"])
    assert recipe.tree["task"] == {"name": "chess", "digits": 1} and recipe.tree["models"]  # of what it extends
    assert look_up("task", "chess", "task.name").__module__ == "chesspkg.tasks"


@pytest.mark.usefixtures("packages")
def test_a_broken_package_breaks_its_own_names_only() -> None:
    tasks = {t["use"]: t["problem"] for t in catalogue.list_tasks()}
    assert "torn apart" in tasks["torn"] and "Bare is not a dataclass" in tasks["bare"]
    assert tasks["arithmetic"] is tasks["chess"] is None
    recipes = {m.name: m.problem for m in list_methods()}
    assert "torn apart" in str(recipes["torn"]) and recipes["chess/blitz"] is None and "torn" not in list_names()
    with pytest.raises(
        RecipeError, match=r"recipes 'torn' of tornpkg 1.2 \(tornpkg.recipes\) cannot be read: RuntimeEr"
    ):
        load("torn/a")
    with pytest.raises(RecipeError, match=r"task.name: task 'torn' of tornpkg 1.2 .* cannot be loaded: .*torn apart"):
        look_up("task", "torn", "task.name")
    with pytest.raises(RecipeError, match="did you mean 'chess/blitz'"):
        load("chess/blitze")
    with pytest.raises(RecipeError, match="did you mean 'chess'"):
        look_up("task", "ches", "task.name")


def test_a_name_that_two_packages_offer_is_neither(site: Path) -> None:
    for name in ("one", "two"):
        files = {f"{name}pkg.py": TASK}
        distribution(site, name, {"shuhari.task": {"go": f"{name}pkg:Chess", "arithmetic": "nowhere:None"}}, files)
    with pytest.raises(LookupError, match=r"task 'go' is offered by several packages \(one, two\)"):
        registry.find("task", "go")
    assert registry.find("task", "arithmetic").__module__ == "shuhari.tasks.arithmetic"  # a name of ours is ours


def test_a_recipe_of_our_name_is_ours_and_a_malformed_one_is_listed(site: Path) -> None:
    files = {"badpkg/__init__.py": "", "badpkg/recipes/grpo.toml": RECIPE, "badpkg/recipes/odd.toml": "paper = 'x'\n"}
    distribution(site, "badpkg", {"shuhari.recipes": {"baselines": "badpkg.recipes"}}, files)
    listed = [m for m in list_methods() if m.name == "baselines/grpo"]
    assert len(listed) == 1 and listed[0].summary == load("baselines/grpo").tree["summary"]
    assert "baselines/odd" in list_names()


def test_nothing_of_another_package_is_looked_for_or_imported_before_it_is_asked_for(packages: Path) -> None:
    """In a new interpreter: help, a recipe and a component of ours do not look, and a list of names imports nothing."""
    code = """
import json, sys
from shuhari.kernel import plugins
from shuhari.kernel import registry
from shuhari.desk.cli import main
from shuhari.config.recipe import load
try:
    sys.argv = ["shuhari", "--help"]
    main()
except SystemExit as end:
    assert not end.code
load("baselines/grpo")
registry.find("curriculum", "sequential")
looked = plugins.find_offered.cache_info().currsize
registry.names("task")
print(json.dumps([looked, [m for m in sys.modules if m.partition(".")[0] in ("chesspkg", "tornpkg")]]))
"""
    env = {**os.environ, "PYTHONPATH": f"{Path(__file__).parents[1] / 'src'}{os.pathsep}{packages}"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == [0, []] and "torn" not in done.stderr
