"""No sketch needs a private import: what is public is read from docs/public.md."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import shuhari
from shuhari.kernel.registry import entries

HERE = Path(__file__).parent
ROW = re.compile(r"^\| (?P<names>.*) \| (?P<where>.*) \|$", re.MULTILINE)


def read_public() -> tuple[set[str], set[tuple[str, str]]]:
    """The modules of which every name is public, and the names (module, name) that are listed one by one."""
    whole, named = set[str](), {("shuhari", name) for name in shuhari.__all__} | {("shuhari", "testing")}
    for row in ROW.finditer((HERE.parents[1] / "docs" / "public.md").read_text(encoding="utf-8")):
        modules = re.findall(r"`(shuhari[\w.]*)`", row["where"])
        names = re.findall(r"`(\w+)`", row["names"])
        named |= {(module, name) for module in modules for name in names}
        whole |= set() if names else {*modules}
    return whole, named


def list_private(text: str) -> Iterator[str]:
    """The imports from shuhari in a source that are not public, as `module.name`."""
    whole, named = read_public()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (x.name for x in node.names if x.name.startswith("shuhari.") and x.name not in whole)
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "shuhari":
            module = str(node.module)
            for name in (x.name for x in node.names):
                if module not in whole and (module, name) not in named and not is_component(module, name):
                    yield f"{module}.{name}"


def is_component(module: str, name: str) -> bool:
    return getattr(importlib.import_module(module), name) in {*entries().values()}


@pytest.mark.parametrize("path", sorted({*HERE.glob("*.py")} - {Path(__file__)}), ids=lambda path: path.stem)
def test_a_sketch_imports_what_is_public(path: Path) -> None:
    assert not [*list_private(path.read_text(encoding="utf-8"))]


def test_what_is_listed_is_there_and_the_rest_is_private() -> None:
    whole, named = read_public()
    assert {"shuhari.testing", "shuhari.ports", "shuhari.data"} <= whole and "shuhari.loop" not in whole
    listed = {(module, name) for module, name in named if not hasattr(importlib.import_module(module), name)}
    alone = {module for module, _ in named if all((module, n) in listed for m, n in named if m == module)}
    assert not alone, "none of the names beside these modules are theirs"
    text = "import shuhari.loop.run\nfrom shuhari.kernel import state\n"
    text += "from shuhari.buffers.fresh import Fresh, dataclass"
    assert [*list_private(text)] == ["shuhari.loop.run", "shuhari.kernel.state", "shuhari.buffers.fresh.dataclass"]
