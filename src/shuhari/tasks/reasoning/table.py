"""Which scorer grades which generator of reasoning-gym, and why: every scorer was read, at version 0.1.25.

`theirs`: the package's scorer evaluates no text and its work is bounded by the length of the answer. `ours`: it
evaluates text, can be made to hang, or can be fooled; see `grading`. `refused`: not offered. A generator that is not in
this table is refused until its scorer has been read.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from shuhari.tasks.reasoning import alone
from shuhari.tasks.reasoning import grading as ours
from shuhari.tasks.reasoning.grading import Entry, Grader
from shuhari.tasks.separators import stands_alone

LONGEST = 8192  # characters read of an answer, or twice the truth's length if that is more

BOOK = "àçéêëïôû—‘’“”•™"  # beyond ASCII in the book from which some generators take words and sentences


@dataclass(frozen=True)
class Graded:
    """How the answers of a generator are graded.

    path: `theirs`, `ours` or `refused`; why: the reason. grader: for `ours`. malformed: exceptions of their scorer on
    text that is no answer, which scores 0. rows: number of problems, for a generator that lists them. characters: of
    its problems, beyond printable ASCII, at its default settings.
    """

    path: str
    why: str
    grader: Grader | None = None
    malformed: tuple[type[Exception], ...] = ()
    rows: int = 0
    characters: str = ""


def score(name: str, text: str, entry: Entry, generator: Any) -> float:
    """Returns a number in [0, 1] for an answer, 1 if it is right. Surrounding white space does not matter; an answer
    that is too long, or has a separator around it that the truth does not (`separators`), scores 0. Raises a scorer's
    error if the text is not at fault, ValueError for a number outside."""
    graded, truth = GRADING[name], entry["answer"] or ""
    if len(text) > max(LONGEST, 2 * len(truth)) or not stands_alone(text, truth):
        return 0.0
    best = 0.0
    for answer in dict.fromkeys((text, text.strip())):
        if graded.grader is not None:
            raw = graded.grader(answer, entry, generator)
        else:
            try:
                raw = float(generator.score_answer(answer, copy.deepcopy(entry)))  # some modify the entry
            except graded.malformed:
                raw = 0.0
        if not 0 <= raw <= 1:
            raise ValueError(f"reasoning-gym/{name}: its scorer gave {raw}: expected a number in [0, 1]")
        best = max(best, raw)
    return best


def _theirs(why: str, names: str, malformed: tuple[type[Exception], ...] = ()) -> dict[str, Graded]:
    return {name: Graded("theirs", why, malformed=malformed) for name in names.split()}


def _ours(why: str, **graders: Grader) -> dict[str, Graded]:
    return {name: Graded("ours", why, grader) for name, grader in graders.items()}


_EVAL = "theirs runs `eval` on the answer"
_SYMPY = "theirs parses the answer with sympy, which evaluates it"
_PREFIX = "theirs takes the right answer with more behind it for right"

_TABLE: dict[str, Graded] = {
    **_theirs(
        "compares text (the package's default scorer)",
        "acre aiw arc_1d base_conversion basic_arithmetic bf binary_alternation caesar_cipher count_bits count_primes "
        "course_schedule gcd isomorphic_strings largest_island lcm leg_counting letter_counting list_functions "
        "mahjong_puzzle maze modulo_grid number_filtering number_sequence ransom_note rotate_matrix rotten_oranges "
        "simple_equations simple_geometry string_manipulation string_splitting string_synthesis syllogism "
        "word_sequence_reversal",
    ),
    **_theirs(
        "compares text, or its words or letters",
        "ab circuit_logic color_cube_rotation dice emoji_mystery family_relationships manipulate_matrix "
        "needle_haystack palindrome_generation path_star self_reference sentence_reordering tsumego word_ladder "
        "zebra_puzzles",
    ),
    **_theirs(
        "compares numbers, read by float, int or Decimal",
        "advanced_geometry chain_sum decimal_arithmetic decimal_chain_sum fraction_simplification number_format "
        "power_function prime_factorization products rectangle_count time_intervals",
        (ValueError, OverflowError),
    ),
    **_theirs(
        "compares a grid, read cell by cell",
        "arc_agi futoshiki mini_sudoku rearc sudoku",
        (ValueError,),
    ),
    **_theirs(
        "reads JSON, and compares or replays it",
        "game_of_life graph_color group_anagrams jugs knight_swap palindrome_partitioning",
        (KeyError, TypeError, ValueError),
    ),
    **_theirs("replays moves", "shortest_path"),
    **_ours(_EVAL, binary_matrix=ours.grade_rows, n_queens=ours.grade_queens),
    **_ours(_EVAL, spiral_matrix=ours.grade_items, string_insertion=ours.grade_characters),
    **_ours(_SYMPY, countdown=ours.grade_countdown, polynomial_multiplication=ours.grade_product),
    **_ours(_SYMPY, simple_integration=ours.grade_antiderivative, intermediate_integration=ours.grade_antiderivative),
    **_ours(f"{_SYMPY}; it does not check which numbers were used", puzzle24=ours.grade_puzzle24),
    **_ours("theirs runs `eval` on the problem", bitwise_arithmetic=ours.grade_hexadecimal),
    **_ours("theirs computes powers such as 1e999999999 exactly: it hangs", coin_flip=ours.grade_probability),
    **_ours(
        "theirs tries all assignments of any names in the answer: it hangs", propositional_logic=ours.grade_conclusion
    ),
    **_ours("theirs repeats a turn as often as the answer says: it hangs", rubiks_cube=ours.grade_cube),
    **_ours("theirs repeats a move as often as the answer says: it hangs", rush_hour=ours.grade_cars),
    **_ours("theirs raises on plans of another shape, and its search is quadratic", boxnet=ours.grade_boxes),
    **_ours("theirs prints the answer, and checks another move than it makes", tower_of_hanoi=ours.grade_hanoi),
    **_ours(
        "theirs gives more than 1 for a wrong number where the truth is -1", calendar_arithmetic=ours.grade_calendar
    ),
    **_ours("theirs prints the answer in a warning", pool_matrix=ours.grade_grid),
    **_ours("theirs takes `nan` for right", complex_arithmetic=ours.grade_complex_result),
    **_ours(
        "theirs takes `[NaN, ...]`, and numbers that are off by 1, for right", number_sorting=ours.grade_sorted_numbers
    ),
    **_ours("theirs takes any words for right where there is no solution", polynomial_equations=ours.grade_roots),
    **_ours("theirs takes every answer for right", game_of_life_halting=ours.grade_same_text),
    **_ours("theirs reads the first digits in a text, without their sign", gsm_symbolic=ours.grade_same_number),
    **_ours(
        _PREFIX,
        figlet_font=ours.grade_same_word,
        letter_jumble=ours.grade_same_text,
        spell_backward=ours.grade_same_text,
    ),
    **_ours(
        "theirs skips what is no part of an answer: words around it, and a second answer behind it, go through",
        cryptarithm=alone.grade_letters,
        kakurasu=alone.grade_digits,
        knights_knaves=alone.grade_statements,
        quantum_lock=alone.grade_presses,
        sokoban=alone.grade_pushes,
        survo=alone.grade_digits,
        word_sorting=alone.grade_words,
    ),
    "codeio": Graded("refused", "runs packaged programs with `exec`; their answers differ from process to process"),
    "composite": Graded("refused", "a mixture of generators: use the task `mixture`"),
}

_ROWS = {"acre": 2048, "gsm_symbolic": 1 << 20, "list_functions": 1 << 20, "word_ladder": 20_000}


def _range(*bounds: tuple[int, int]) -> str:
    return "".join(
        chr(c)
        for first, last in bounds
        for c in range(first, last + 1)
    )


_HIDDEN = _range((0xFE00, 0xFE0F), (0xE0100, 0xE01EF))  # variation selectors, one per byte of a hidden sentence
_EMOJI = "☠❣❤💌💋💩🖤🧡🤍🤎" + _range(
    (0x1F479, 0x1F480), (0x1F493, 0x1F49F), (0x1F600, 0x1F64F), (0x1F910, 0x1F92F), (0x1F970, 0x1F97A)
)
_CHARACTERS = {
    "acre": "→",
    "advanced_geometry": "°·∠",
    "circuit_logic": "’↑↓⊕─│┌┐└┘├",
    "complex_arithmetic": "×÷",
    "emoji_mystery": _EMOJI + _HIDDEN + BOOK,
    "figlet_font": "\u00a0·•▪\ufffd─│┌┐└┘├┤┬┴┼" + _range((0x2550, 0x259F)),
    "futoshiki": "∧∨",
    "gsm_symbolic": "£€×÷•",
    "intermediate_integration": "∫",
    "knight_swap": "→↔",
    "modulo_grid": "✅❌❔",
    "needle_haystack": "’",
    "prime_factorization": "×",
    "propositional_logic": "¬→↔∧∨",
    "quantum_lock": "→",
    "rectangle_count": "█",
    "self_reference": "≤“”",
    "simple_geometry": "°",
    "simple_integration": "∫",
    "syllogism": "“”",
    **dict.fromkeys(
        "caesar_cipher letter_counting letter_jumble sentence_reordering spell_backward word_sequence_reversal "
        "word_sorting".split(),
        BOOK,
    ),
}


def _fill(name: str, graded: Graded) -> Graded:
    more = _CHARACTERS.get(name, "")
    return Graded(graded.path, graded.why, graded.grader, graded.malformed, _ROWS.get(name, 0), more)


GRADING: Mapping[str, Graded] = MappingProxyType({name: _fill(name, g) for name, g in sorted(_TABLE.items())})
