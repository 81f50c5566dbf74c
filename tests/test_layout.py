"""The rooms of the source, and what may import what: kernel, then the store, then components, then configuration and
the loop, then what a person touches. Read from the source."""

from __future__ import annotations

import ast
import builtins
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

from shuhari.kernel.field_docs import find_text

ROOT = Path(__file__).parents[1] / "src" / "shuhari"
ROOMS = (  # from the bottom; a room imports from itself and from those before it
    frozenset("batch bounds data events kernel needs ports".split()),
    frozenset(["store"]),
    frozenset(
        "buffers curricula engines learners methods metrics models objectives optimisers rewards rollouts tasks "
        "transforms".split()
    ),
    frozenset(["config", "distributed", "loop"]),
    frozenset("__init__ __main__ desk lab recipes testing".split()),
)
LAYERS, TOP, STATEMENTS = 16, 30, 250


def modules() -> dict[str, Path]:
    """`loop.run` and the like -> its file; a package is its `__init__`."""
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)] = path
    return found


MODULES = modules()


@cache
def parse(name: str) -> ast.Module:
    return ast.parse(MODULES[name].read_text(encoding="utf-8"))


@cache
def imports(name: str, *, types: bool = True, later: bool = False) -> frozenset[str]:
    """The modules that one imports as it is loaded. types: for annotations too; later: inside of functions too."""
    found: set[str] = set()

    def visit(nodes: list[ast.stmt]) -> None:
        for node in nodes:
            if isinstance(node, ast.If) and not types and "TYPE_CHECKING" in ast.unparse(node.test):
                continue
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "shuhari":
                at = (node.module or "").partition(".")[2]
                inner = {f"{at}.{alias.name}".lstrip(".") for alias in node.names}
                found.update({i if i in MODULES else at for i in inner} & MODULES.keys())
            for body in ("body", "orelse", "handlers", "finalbody"):
                if later or not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    visit(getattr(node, body, []))

    visit(parse(name).body)
    return frozenset(found - {name})


def room(name: str) -> int:
    top = name.split(".")[0]
    found = [i for i, names in enumerate(ROOMS) if top in names]
    assert found, f"{top} is in no room of this test: add it to one"
    return found[0]


@pytest.mark.parametrize("name", [n for n in MODULES if room(n) < len(ROOMS) - 1])
def test_imports_point_down(name: str) -> None:
    up = [other for other in imports(name, later=True) if room(other) > room(name)]
    assert not up, f"{name} imports {', '.join(up)}: that room is above it"


def test_nothing_imports_in_a_circle() -> None:
    """Annotations and imports inside of functions count too: what two modules say of each other belongs into one below
    them."""
    done: set[str] = set()

    def walk(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, " -> ".join((*path[path.index(name) :], name))
        if name not in done:
            for other in sorted(imports(name, later=True)):
                walk(other, (*path, name))
            done.add(name)

    for name in MODULES:
        walk(name, ())


def test_layers_are_few() -> None:
    @cache
    def layer(name: str) -> int:
        return 1 + max((layer(other) for other in imports(name, types=False)), default=0)

    deepest = max(MODULES, key=layer)
    assert layer(deepest) <= LAYERS, f"{deepest} is on layer {layer(deepest)}"


def test_the_top_is_one_screen() -> None:
    seen = [p for p in ROOT.iterdir() if p.suffix == ".py" or (p.is_dir() and p.name != "__pycache__")]
    seen = [p for p in seen if not p.name.startswith("__")]
    assert len(seen) <= TOP


FRAMES = frozenset(  # classes of others that are there to be derived from
    "nn.Module torch.autograd.Function gymnasium.Env gymnasium.Wrapper DynamicLayer asyncio.SelectorEventLoop "
    "selectors.SelectSelector".split()
)
VALUES = frozenset(  # and protocols
    "Generic NamedTuple TypedDict StrEnum Sequence Awaitable dict float str tuple".split()
)


def list_classes(node: ast.AST) -> Iterator[ast.ClassDef]:
    """Those of a module, also where one lies in a function, a class or an `if`. No expression is walked: that takes
    most of the time."""
    for field in ("body", "orelse", "handlers", "finalbody", "cases"):
        for inner in getattr(node, field, ()):
            if isinstance(inner, ast.ClassDef):
                yield inner
            yield from list_classes(inner)


def derived(sources: Iterable[ast.Module]) -> set[str]:
    """`Class(Base)` wherever a class is derived from what has code of ours, or from a protocol that has code."""
    classes = [c for tree in sources for c in list_classes(tree)]
    pairs = [(c, ast.unparse(base).partition("[")[0]) for c in classes for base in c.bases]
    bases = {name: [base for c, base in pairs if c.name == name] for name in {c.name for c in classes}}

    def is_contract(base: str) -> bool:
        error = getattr(builtins, base, None)
        if base == "Protocol" or (isinstance(error, type) and issubclass(error, BaseException)):
            return True
        return bool(bases.get(base)) and all(map(is_contract, bases[base]))

    def has_code(c: ast.ClassDef) -> bool:
        bodies = [f.body for f in c.body if isinstance(f, ast.FunctionDef | ast.AsyncFunctionDef)]
        return any(not isinstance(s, ast.Expr) or not isinstance(s.value, ast.Constant) for b in bodies for s in b)

    wrong = {(c, b) for c, b in pairs if (has_code(c) if b == "Protocol" else not is_contract(b))}
    return {f"{c.name}({b})" for c, b in wrong if b not in FRAMES | VALUES}


def test_nothing_inherits_code_of_ours() -> None:
    """A class of ours is derived from only where it is a protocol, which has no code, or an error, which is caught."""
    found = derived(map(parse, MODULES))
    assert not found, f"{', '.join(sorted(found))}: make it a field, or a function that both call"


def test_inherited_code_is_found() -> None:
    def written(*texts: str) -> set[str]:
        return derived(map(ast.parse, texts))

    port = "class Port(Protocol):\n    def size(self) -> int: ...\n"
    assert written(port, "class Wider(Port, Protocol): ...\nclass Own(Wider): ...\n") == set()
    assert written("class Lost(LookupError): ...\nclass Gone(Lost): ...\n") == set()
    assert written("class A:\n    x = 1\n", "class B(A): ...") == {"B(A)"}
    assert written("class A(Protocol):\n    def size(self) -> int:\n        return 1\n") == {"A(Protocol)"}


@pytest.mark.parametrize("name", MODULES)
def test_a_file_is_short(name: str) -> None:
    """Of statements, not of lines: to write several on one line makes no file shorter. The sentences under settings are
    none."""
    tree = parse(name)
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    pairs = [pair for c in classes for pair in pairwise(c.body)]
    told = sum(isinstance(one, ast.AnnAssign) and find_text(text) is not None for one, text in pairs)
    statements = sum(isinstance(node, ast.stmt) for node in ast.walk(tree)) - told
    assert statements <= (180 if name == "loop.run" else STATEMENTS), "split it by what belongs together"


@pytest.mark.parametrize("name", MODULES)
def test_a_line_has_one_comprehension(name: str) -> None:
    found = Counter(loop.target.lineno for node in ast.walk(parse(name)) for loop in getattr(node, "generators", ()))
    assert max(found.values(), default=1) == 1, f"a line for each `for`: {sorted(n for n in found if found[n] > 1)}"


def test_most_files_are_shorter() -> None:
    sizes = sorted(len(p.read_text(encoding="utf-8").splitlines()) for p in MODULES.values() if p.name != "__init__.py")
    assert sizes[len(sizes) // 2] < 150


def test_no_two_files_of_tests_have_one_name() -> None:
    """Outside of packages pytest imports them by their names alone."""
    places = [p for p in Path(__file__).parent.rglob("test_*.py") if not (p.parent / "__init__.py").exists()]
    names = [p.name for p in places]
    assert not {name for name in names if names.count(name) > 1}
