"""The final answer in a text of mathematics, as one formula; and what makes one no answer: a hedge, another relation.

Text from a model is hostile and lenient grading is learnt: `$13=12$`, `$\\le 12$`, `12%`, `12 or 13` and `$12 \\pm 1$`
are not 12. Everything here is a search by plain expressions, linear in the text. Left out: what formulas mean, which
`maths_child.py` asks math-verify, and units.
"""

from __future__ import annotations

import re

# what an answer may not say unless the truth does: name -> how it is written
MARKS = {
    "relation": re.compile(
        r"[<>≤≥≠≈≡∼]|\\(?:le|ge|lt|gt|ne|leq|geq|neq|leqslant|geqslant|approx|sim|simeq|equiv|cong|not)(?![a-zA-Z])"
    ),
    "plus or minus": re.compile(r"±|∓|\\(?:pm|mp)(?![a-zA-Z])"),
    "percent": re.compile(r"\\?%|\\percent|\bper ?cent\b", re.IGNORECASE),
    "line break": re.compile(r"\\\\|\\newline|\\cr(?![a-zA-Z])|\\(?=\d)"),
    "choice": re.compile(r"\b(?:or|maybe|perhaps|possibly|either)\b|\\(?:vee|lor)(?![a-zA-Z])", re.IGNORECASE),
}  # fmt: skip
NAME = re.compile(r"\s*\\?[a-zA-Z]+(?:_\{?\w+\}?)?(?:\s*\(\s*[\w,\s]*\))?\s*")  # x, a_1, f(x), \theta
_MATHS = re.compile(  # of a bounded length: one that is opened and never closed is not looked for to the end
    r"\$\$(.{1,2000}?)\$\$|(?<!\\)\$(.{1,2000}?)(?<!\\)\$|\\\((.{1,2000}?)\\\)|\\\[(.{1,2000}?)\\\]", re.DOTALL
)
_NUMBER = re.compile(r"[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:\s*/\s*\d+)?\s*\\?%?|[-+]?\.\d+")
_WORD = re.compile(  # of a language, and no function or constant
    r"(?<!\\)\b(?!(?:sqrt|cbrt|abs|exp|log|ln|inf|infinity|pi|theta|alpha|beta|a?(?:sin|cos|tan|cot|sec|csc)h?)\b)"
    r"(?:[a-zA-Z]{3,}|is|it|or|so|to|of|in|by)\b|\\text"
)
_END = re.compile(r"[.!?;]\s|\n")
LONGEST, DEPTH = 500, 32  # characters of a text that may be one formula; brackets in each other


def find_final(text: str, truth: str) -> list[str]:
    """The formulas that must each equal `truth`: the sides of the last equation, or the last formula. Empty where the
    answer says something that the truth does not (`MARKS`), or where there is none."""
    formula, around = _locate(text.strip())
    if not formula.strip() or _measure_depth(formula) > DEPTH:
        return []
    for name, mark in MARKS.items():
        if not mark.search(truth) and (mark.search(formula) or (name == "choice" and mark.search(around))):
            return []
    if "=" in truth or r"\begin" in formula:
        return [write_latex(formula)]
    sides = formula.split("=")
    if len(sides) > 1 and NAME.fullmatch(sides[0]):
        del sides[0]
    return [*map(write_latex, sides)] if all(side.strip() for side in sides) else []


def write_formula(truth: str) -> str:
    """A truth that is one bare formula in dollar signs, so that all of it is read; any other as it is."""
    bare = truth.strip()
    if not bare or len(bare) > LONGEST or _WORD.search(bare) or _MATHS.search(bare) or "\\boxed" in bare:
        return truth
    return f"${write_latex(bare)}$"


def write_latex(formula: str) -> str:
    """Powers, products and percent signs as code and text write them, in LaTeX; dollar signs left out."""
    plain = re.sub(r"(?<!\\)\$", "", formula.strip()).replace("**", "^").replace("*", " \\cdot ")
    return re.sub(r"(?<!\\)%", r"\\%", re.sub(r"(?<![\\a-zA-Z])pi\b", r"\\pi", plain))


def _locate(text: str) -> tuple[str, str]:
    """(the last formula, the rest of its sentence): what is boxed, else in dollar signs, else the text, else its last
    number. A choice that stands beside what is boxed is no hedge: the box is the answer."""
    if (boxed := _find_boxed(text)) is not None:
        return boxed, ""
    spans = [(next(g for g in m.groups() if g is not None), m.start(), m.end()) for m in _MATHS.finditer(text)]
    if not spans and len(text) <= LONGEST and _WORD.search(text) is None:
        return text, ""
    if not spans:
        spans = [(m[0], m.start(), m.end()) for m in _NUMBER.finditer(text)]
    if not spans:
        return text[-LONGEST:], ""
    formula, start, end = spans[-1]
    begins = max((m.end() for m in _END.finditer(text, 0, start)), default=0)
    ends = _END.search(text, end)
    return formula, f"{text[begins:start]} {text[end : ends.start() if ends else len(text)]}"


def _measure_depth(formula: str) -> int:
    depth = most = 0
    for char in formula:
        depth += (char in "([{") - (char in ")]}")
        most = max(most, depth)
    return most


def _find_boxed(text: str) -> str | None:
    """The content of the last `\\boxed{..}`, braces and all that is in them; None where there is none that closes."""
    at = text.rfind("\\boxed{")
    if at < 0:
        return None
    depth = 0
    for i in range(at + len("\\boxed"), len(text)):
        if text[i] == "{" and text[i - 1] != "\\":
            depth += 1
        elif text[i] == "}" and text[i - 1] != "\\":
            depth -= 1
            if depth == 0:
                return text[at + len("\\boxed{") : i]
    return None
