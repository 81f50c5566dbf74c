"""Finds the final answer in a mathematical text as one formula, and rejects hedges and other relations.

Model output is hostile, and RL learns to exploit lenient grading: `$13=12$`, `$\\le 12$`, `12%`, `12 or 13` and `$12
\\pm 1$` are not 12. All searches are simple regular expressions, linear in the text. Left out: the meaning of formulas,
which `maths_child.py` checks with math-verify, and units.
"""

from __future__ import annotations

import re

from shuhari.tasks.separators import CHOICE, stands_alone

# marks that an answer may contain only if the truth does: name -> pattern
MARKS = {
    "relation": re.compile(
        r"[<>≤≥≠≈≡∼]|\\(?:le|ge|lt|gt|ne|leq|geq|neq|leqslant|geqslant|approx|sim|simeq|equiv|cong|not)(?![a-zA-Z])"
    ),
    "plus or minus": re.compile(r"±|∓|\\(?:pm|mp)(?![a-zA-Z])"),
    "percent": re.compile(r"\\?%|\\percent|\bper ?cent\b", re.IGNORECASE),
    "line break": re.compile(r"\\\\|\\newline|\\cr(?![a-zA-Z])|\\(?=\d)"),
    "choice": CHOICE,
    "angle": re.compile(r"°|\\(?:circ|degree|textdegree)(?![a-zA-Z])"),
    "dots": re.compile(r"\.\.|…|\\[lcd]?dots(?![a-zA-Z])"),
    "index": re.compile(r"[0-9]\}?\s?_"),  # on a number
}  # fmt: skip
NAME = re.compile(r"\s*\\?[a-zA-Z]+(?:_\{?\w+\}?)?(?:\s*\([\w,\s]*\))?\s*")  # x, a_1, f(x), \theta
_MATHS = re.compile(  # of bounded length, so that an unclosed formula is not searched to the end
    r"\$\$(.{1,2000}?)\$\$|(?<!\\)\$(.{1,2000}?)(?<!\\)\$|\\\(((?:(?!\\\().){1,2000}?)\\\)|"
    r"\\\[((?:(?!\\\[).){1,2000}?)\\\]", re.DOTALL
)
_NUMBER = re.compile(r"[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:\s*/\s*\d+)?\s*\\?%?|[-+]?\.\d+")
_PLAIN = re.compile(  # characters that math-verify reads; it skips all others, so that 12#13 and 12–13 would be 12
    r"[a-zA-Z0-9\s+\-*/^_=.,:!()\[\]{}\\$%<>≤≥≠≈≡∼±∓∪∩∈∅°…|'\u0391-\u03c9]"
)
_WRITTEN = str.maketrans({"·": " \\cdot ", "⋅": " \\cdot ", "∗": " \\cdot ", "×": " \\times ", "÷": " \\div ", "−": "-",
                          "∕": "/", "π": " \\pi ", "∞": " \\infty ", "~": " "})  # fmt: skip
_COMMAND = re.compile(r"\\([a-zA-Z]+|.)", re.DOTALL)
_COMMANDS = frozenset(
    "frac dfrac tfrac cfrac sqrt cdot times div left right big Big bigl bigr Bigl Bigr infty log ln exp lg sin cos "
    "tan cot  sec csc arcsin arccos arctan sinh cosh tanh text textbf textit mathrm mathbf mathbb mathcal mbox "
    "operatorname cup cap  in setminus emptyset varnothing begin end binom dbinom choose overline bar vec hat sum "
    "prod int lim max min gcd lcm mod  pmod bmod pi displaystyle quad qquad boxed alpha beta gamma delta epsilon "
    "varepsilon zeta eta theta vartheta kappa  lambda mu nu xi rho sigma tau phi varphi chi psi omega Gamma Delta "
    "Theta Lambda Xi Pi Sigma Phi Psi Omega lfloor rfloor  lceil rceil langle rangle vert lvert rvert dots ldots "
    "cdots circ degree le ge lt gt ne leq geq neq leqslant geqslant "
    "approx sim simeq equiv cong not pm mp percent prime mid lor vee newline cr".split()
) | frozenset("{},;:! %$\\")
_TEXT = re.compile(r"\\(?:text\w*|mathrm|mbox|operatorname)\s?\{([^{}]*)\}")
_OPEN, _CLOSED = re.compile(r"[*/^_:+\-=\\]$"), re.compile(r"^[*/^_:,;=]")  # an incomplete formula
_UNIT = "€£¥¢$"  # around a number it does not change the answer
_WORD = re.compile(  # a word of a language, not a function or constant
    r"(?<!\\)\b(?!(?:sqrt|cbrt|abs|exp|log|ln|inf|infinity|pi|theta|alpha|beta|a?(?:sin|cos|tan|cot|sec|csc)h?)\b)"
    r"(?:[a-zA-Z]{3,}|is|it|or|so|to|of|in|by)\b|\\text|[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]"
    r"|[\u00c0-\u024f\u0400-\u05ff\u0620-\u064a\u0900-\u0fff]{3,}"
)
_END = re.compile(r"[.!?;]\s|\n")
LONGEST, DEPTH = 500, 32  # characters of a text that may be one formula; depth of nested brackets


def find_final(text: str, truth: str) -> list[str]:
    """Returns the formulas that must each equal `truth`: the sides of the last equation, or the last formula. Empty if
    there is none, or if the answer contains a mark that the truth does not (`MARKS`)."""
    formula, around = _locate(text.strip())
    formula = _trim(formula)
    if not formula or _measure_depth(formula) > DEPTH or not _is_whole(formula, truth):
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
    """Returns a truth that is one bare formula in dollar signs, so that all of it is read; any other as it is."""
    bare = truth.strip()
    if not bare or len(bare) > LONGEST or _WORD.search(bare) or _MATHS.search(bare) or "\\boxed" in bare:
        return truth
    return f"${write_latex(bare)}$"


def write_latex(formula: str) -> str:
    """Rewrites powers, products and percent signs of code and text as LaTeX, and drops dollar signs."""
    plain = re.sub(r"(?<!\\)\$", "", " ".join(formula.split())).replace("**", "^").replace("*", " \\cdot ")
    return re.sub(r"(?<!\\)%", r"\\%", re.sub(r"(?<![\\a-zA-Z])pi\b", r"\\pi", plain))


def _trim(formula: str) -> str:
    """Strips the full stop that ends a sentence, and currency signs."""
    plain = formula.translate(_WRITTEN).strip().strip(_UNIT).strip()
    return plain[:-1].rstrip() if plain.endswith(".") and not plain.endswith("..") else plain


def _is_whole(formula: str, truth: str) -> bool:
    """Whether a formula is complete and has only known signs and commands, or ones that the truth has too."""
    if set(_PLAIN.sub("", formula)) - set(truth) or not stands_alone(formula, truth):
        return False
    if (
        {m[1] for m in _COMMAND.finditer(formula)}
        - _COMMANDS
        - {m[1] for m in _COMMAND.finditer(truth)}
    ):
        return False
    if (
        any(
            not c.isalpha() and c not in " .-"
            for m in _TEXT.finditer(formula)
            for c in m[1]
        )
        and "\\text" not in truth
    ):
        return False
    if any(c in formula and c not in truth for c in "|'") or _OPEN.search(formula) or _CLOSED.search(formula):
        return False
    return _is_closed(formula) or not _is_closed(truth)


def _is_closed(formula: str) -> bool:
    """Whether brackets balance, of whatever kind: an interval may be half open."""
    depth = 0
    for char in formula:
        depth += (char in "([{") - (char in ")]}")
        if depth < 0:
            return False
    return depth == 0


def _locate(text: str) -> tuple[str, str]:
    """Returns (the last formula, the rest of its sentence): the boxed one, else in dollar signs, else the text, else
    its last number. A choice beside a box is no hedge: the box is the answer."""
    if (boxed := _find_boxed(text)) is not None:
        return boxed, ""
    spans = [
        (next(g for g in m.groups() if g is not None), m.start(), m.end())
        for m in _MATHS.finditer(text)
    ]
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
    """Returns the content of the last `\\boxed{..}`, with nested braces; None if there is none that closes."""
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
