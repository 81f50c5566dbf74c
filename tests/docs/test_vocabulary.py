"""The words of CONTRIBUTING.md that have one meaning as a name: a function, class, method, field or module with one of
them in its name is defined only where the tables there allow it: below the places of its one meaning, or in a module
that is listed as an exception."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "shuhari"
PIECE = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
REASONS = ("setting", "public", "source")
Row = tuple[str, str, tuple[str, ...], str]  # word, meaning, places, reason ("" for the one meaning)


def read_rows(page: str) -> list[Row]:
    """The rows of both tables of the section Words."""
    section = page.partition("\n## Words\n")[2].partition("\n## ")[0]
    rows: list[Row] = []
    for line in section.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| `"):
            rows.append((cells[0].strip("`"), cells[1], tuple(re.findall(r"`([^`]+)`", cells[2])), "".join(cells[3:])))
    return rows


ROWS = read_rows((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"))
WORDS = {word for word, *_ in ROWS}


def find_names(node: ast.AST, in_class: bool = False) -> Iterator[str]:
    """The names of the functions, classes and methods below a node, and of the annotated fields of its classes."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield child.name
            yield from find_names(child, isinstance(child, ast.ClassDef))
        elif in_class and isinstance(child, ast.AnnAssign) and isinstance(child.target, ast.Name):
            yield child.target.id
        elif not isinstance(child, ast.expr):
            yield from find_names(child, in_class)


def find_words(name: str) -> set[str]:
    """The words of the tables that are pieces of a name, such as `card` of `make_card` and `Card`."""
    return {piece.lower() for piece in PIECE.findall(name)} & WORDS


def list_definitions() -> list[tuple[str, str, str]]:
    """(word, module, name) of every definition with such a word; a module is written as a path, `lab/claims/looks`."""
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        module = "/".join(parts[:-1] if parts[-1] == "__init__" else parts)
        names = [module.rpartition("/")[2], *find_names(ast.parse(path.read_text(encoding="utf-8")))]
        found += [(word, module, name) for name in names for word in find_words(name)]
    return found


DEFINITIONS = list_definitions()


def lies_in(module: str, place: str) -> bool:
    return module == place or module.startswith(f"{place}/")


def is_allowed(word: str, module: str) -> bool:
    """Whether a module may define names with a word: the one meaning has packages, each exception lists its modules."""
    return any(
        module in places if reason else any(lies_in(module, place) for place in places)
        for w, _, places, reason in ROWS
        if w == word
    )


def test_a_word_is_defined_in_its_one_meaning_only() -> None:
    stray = [
        f"src/shuhari/{module}: {name}"
        for word, module, name in DEFINITIONS
        if not is_allowed(word, module)
    ]
    assert not stray, f"{stray}: expected another name, or a line in the section Words of CONTRIBUTING.md"


def test_an_exception_is_for_its_module_alone() -> None:
    assert is_allowed("look", "tasks/lanes") and not is_allowed("look", "tasks/chain")
    assert is_allowed("score", "tasks/chain") and not is_allowed("score", "objectives/entropy")


def test_the_tables_have_one_meaning_a_word_and_no_place_without_a_name() -> None:
    own = [word for word, _, _, reason in ROWS if not reason]
    assert sorted(own) == sorted(WORDS) and len(WORDS) >= 11
    for word, _, places, reason in ROWS:
        assert places and (not reason or reason in REASONS), f"{word}: {reason!r} is not one of {REASONS}"
        for place in places:
            there = {module for w, module, _ in DEFINITIONS if w == word}
            used = place in there if reason else any(lies_in(module, place) for module in there)
            assert used, f"{word}: {place}: expected a {'module' if reason else 'place'} that defines such a name"
            assert not (reason == "source" and place.split("/")[0] in ("desk", "lab", "testing")), (
                f"{word}: {place} is outside of the source that results count: expected another name"
            )
    both = [(word, place) for word, _, places, _ in ROWS for place in places]
    assert len(both) == len(set(both)), "a place stands in two lines of one word"


@pytest.mark.parametrize(
    ("code", "names"),
    [
        ("def tell_it(): ...", {"tell_it"}),
        ("class A:\n    look: int = 0\n    def score(self):\n        def room(): ...", {"A", "look", "score", "room"}),
        ("if 1:\n    class HTTPCard: ...", {"HTTPCard"}),
        ("tell: int = 0\nspread = 1", set()),
    ],
)
def test_definitions_are_found_and_variables_are_not(code: str, names: set[str]) -> None:
    assert set(find_names(ast.parse(code))) == names


@pytest.mark.parametrize(
    ("name", "words"),
    [("_make_card", {"card"}), ("HTTPCard", {"card"}), ("NoRoom", {"room"}), ("scoreboard", set()), ("tells", set())],
)
def test_a_word_is_a_whole_piece_of_a_name(name: str, words: set[str]) -> None:
    assert find_words(name) == words
