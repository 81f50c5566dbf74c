"""How far docstrings, recipes and pages are from the field's plain words: idioms of this house per 1,000 words.

    python benchmarks/words.py            a table by package, and of recipes, pages and messages
    python benchmarks/words.py --show 20  the sentences of the worst files

Counted are "say", "ask" and "tell" in all their forms, "where" in the place of "if", "of a X:" in the place of a
subject, "of which", and "those that" or "those of". A number is a hint: a page is judged by reading it.
"""

from __future__ import annotations

import argparse
import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SRC = ROOT / "src" / "shuhari"
IDIOMS = {
    "say, ask, tell": r"\b(?:says?|said|saying|asks?|asked|asking|tells?|told|telling)\b",
    "where for if": r"\bwhere (?:it|an?|the|there|that|no|one|what|they|all|nothing|none|this|these|some)\b",
    "of a X:": r"(?:^|[.;] )Of (?:an? |the )?\w+:",
    "of which": r"\bof which\b",
    "those that, of": r"\bthose (?:that|of)\b",
}
_ANY = re.compile("|".join(f"(?:{p})" for p in IDIOMS.values()), re.IGNORECASE | re.MULTILINE)
_WORD = re.compile(r"[A-Za-z][A-Za-z'-]*")
_FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`[^`\n]*`")
GENERATED = {"api.md", "settings.md", "scoreboard.md", "papers.md", "metrics.md"}  # made of the texts that are counted


def read_texts() -> Iterator[tuple[str, Path, str]]:
    """(group, file, text) of each text that a user reads."""
    for file in sorted(SRC.rglob("*.py")):
        inside = file.relative_to(SRC).parts
        yield inside[0] if len(inside) > 1 else "(top)", file, "\n".join(_read_docstrings(file))
    for file in sorted(SRC.rglob("*.toml")):
        lines = (line for line in file.read_text(encoding="utf-8").splitlines() if line.startswith("#"))
        yield "recipes' comments", file, "\n".join(line.lstrip("# ") for line in lines)
    for file in sorted((*SRC.rglob("README.md"), *(ROOT / "docs").glob("*.md"), ROOT / "README.md")):
        if file.name not in GENERATED:
            yield "pages", file, _FENCE.sub("", file.read_text(encoding="utf-8"))


def _read_docstrings(file: Path) -> Iterator[str]:
    """Docstrings, and the sentences under settings."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            alone = [one.value for one in node.body if isinstance(one, ast.Expr)]
            yield from (x.value for x in alone if isinstance(x, ast.Constant) and isinstance(x.value, str))


def count(text: str) -> tuple[int, int]:
    """(idioms, words) of a text, without what it quotes as code."""
    plain = _CODE.sub("", text)
    return len(_ANY.findall(plain)), len(_WORD.findall(plain))


def measure() -> tuple[dict[str, tuple[int, int]], dict[Path, tuple[int, int]]]:
    """(idioms, words) of each group, `all` among them, and of each file."""
    groups: dict[str, tuple[int, int]] = defaultdict(lambda: (0, 0))
    files = {}
    for group, file, text in read_texts():
        found, words = files[file] = count(text)
        for name in (group, "all"):
            groups[name] = groups[name][0] + found, groups[name][1] + words
    return dict(groups), files


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--show", type=int, default=0, metavar="N", help="the N files with the most of them, and which")
    given = parser.parse_args()
    groups, files = measure()
    for name, (found, words) in sorted(groups.items(), key=lambda g: -g[1][0] / max(1, g[1][1])):
        print(f"{name:<20} {found:>5} in {words:>7,} words  {1000 * found / max(1, words):5.1f}")
    worst = sorted(files, key=lambda f: -files[f][0])[: given.show]
    for file in worst:
        print(f"\n{file.relative_to(ROOT)}: {files[file][0]} in {files[file][1]} words")


if __name__ == "__main__":
    main()
