"""Where code of methods stands: what one method alone uses lies in its folder, no folder needs another's, and each has
its page and its test. Read from the source and the recipes, nothing is imported."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from shuhari.config.overlay import USE

ROOT = Path(__file__).parents[2] / "src" / "shuhari"
TESTS = Path(__file__).parents[1]
STATED = ("recipe.toml", "claim.toml", "demonstration.toml", "finding.toml")
METHODS = sorted({file.parent for name in STATED for file in (ROOT / "methods").glob(f"*/*/{name}")})
SHARED = ("analysis", "buffers", "curricula", "learners", "metrics", "models", "objectives", "optimisers", "rewards",
          "rollouts", "studies", "transforms")  # fmt: skip
KEPT = (
    "best.py",  # the stored result of data/raft has its digest under this name
    "label_outcomes.py",  # and that of reward/spct
    "mixed.py",  # for users with problems that are always or never solved, whose page is docs/choosing.md
    "segments.py",  # for recorded preferences of controllers
    "product.py",  # for policies made of several, whose page is docs/several-roles.md
    "judge.py",  # for users of judges, whose page is docs/judges.md
    "reward_model.py",  # for users of reward models, whose page is docs/reward-models.md
)
NAMES = re.compile(r'^@register\("(\w+)", "([\w-]+)"', re.MULTILINE)
IMPORTS = re.compile(r"^\s*(?:from|import) (shuhari[\w.]*)(?: import ([\w, ]+))?", re.MULTILINE)


def walk_names(value: Any) -> Iterator[str]:
    """Every key and every text of a table."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from walk_names(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from walk_names(inner)
    elif isinstance(value, str):
        yield value


def read_names(*files: Path) -> frozenset[str]:
    return frozenset(n for file in files for n in walk_names(tomllib.loads(file.read_text(encoding="utf-8"))))


@cache
def list_imported() -> dict[Path, frozenset[str]]:
    """The modules of shuhari that each file imports, inside of functions too."""
    found = {}
    for file in ROOT.rglob("*.py"):
        pairs = IMPORTS.findall(file.read_text(encoding="utf-8"))
        found[file] = frozenset({m for m, _ in pairs} | {f"{m}.{n.strip()}" for m, ns in pairs for n in ns.split(",")})
    return found


def name_module(file: Path) -> str:
    return ".".join(("shuhari", *file.relative_to(ROOT).with_suffix("").parts))


def test_what_one_method_uses_lies_in_its_folder() -> None:
    """A second method, a baseline or a bed that names a component, or a module that imports it, makes it shared; so
    does nobody, for then it is there for the library's users."""
    texts = {folder: read_names(*folder.glob("*.toml")) for folder in METHODS}
    for said in list(texts):  # a method that extends another names what that does
        texts[said] |= frozenset().union(*(texts[f] for f in METHODS if f"{f.parent.name}/{f.name}" in texts[said]))
    common = read_names(*(ROOT / "recipes").rglob("*.toml")) | set(USE.values())
    alone = {}
    for file in (f for room in SHARED for f in (ROOT / room).rglob("*.py")):
        names = {name for _, name in NAMES.findall(file.read_text(encoding="utf-8"))}
        users = [folder for folder, said in texts.items() if names & said]
        imported = any(name_module(file) in found for other, found in list_imported().items() if other != file)
        if len(users) == 1 and not names & common and not imported and file.name not in KEPT:
            alone[str(file.relative_to(ROOT))] = str(users[0].relative_to(ROOT))
    assert not alone, f"only one method names what is in these modules: move each to its folder: {alone}"


@pytest.mark.parametrize("folder", METHODS, ids=lambda folder: f"{folder.parent.name}/{folder.name}")
def test_a_folder_is_whole(folder: Path) -> None:
    """It imports no other method, and what it holds is its recipe, how it is tested, its page and its modules."""
    own = f"shuhari.methods.{folder.parent.name}.{folder.name}"
    for file in folder.glob("*.py"):
        others = {m for m in list_imported()[file] if m.startswith("shuhari.methods.") and not m.startswith(own)}
        assert not others, f"{file.name} imports {', '.join(sorted(others))}: move what both use to a shared package"
    modules = [f for f in folder.glob("*.py") if f.name != "__init__.py"]
    assert (folder / "__init__.py").exists() == bool(modules)
    named = read_names(*(file for name in STATED for file in folder.glob(name)))
    named |= set(re.findall(r"`(\w+)`", (folder / "README.md").read_text(encoding="utf-8")))  # an analysis by itself
    for file in modules:
        names = {name for _, name in NAMES.findall(file.read_text(encoding="utf-8"))}
        used = any(name_module(file) in list_imported()[other] for other in modules if other != file)
        used |= any(name.startswith(f"{name_module(file)}.") for name in named)  # a function, by its dotted path
        assert names & named or used, f"{file.name} is named neither by the recipe nor by the claim or the page"


@pytest.mark.parametrize("folder", METHODS, ids=lambda folder: f"{folder.parent.name}/{folder.name}")
def test_a_method_has_its_page_and_its_test(folder: Path) -> None:
    assert (folder / "README.md").is_file()
    test = Path(__file__).parent / folder.parent.name / f"test_{folder.name}.py"
    assert test.is_file(), f"no test of its own: expected {test.relative_to(TESTS)}"


def test_a_test_among_the_methods_is_of_one() -> None:
    found = {f"{f.parent.name}/{f.stem.removeprefix('test_')}" for f in Path(__file__).parent.glob("*/test_*.py")}
    assert found - {f"{folder.parent.name}/{folder.name}" for folder in METHODS} == set()


def test_shared_code_imports_no_method() -> None:
    wrong = {f"{file.relative_to(ROOT)} imports {m}" for file, found in list_imported().items() for m in found
             if m.startswith("shuhari.methods.") and ROOT / "methods" not in file.parents}  # fmt: skip
    assert not wrong
