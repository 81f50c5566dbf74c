"""Functions of strings, one called on the result of another: `.BAabd>` -> `..Bbda>...adb`.

A prompt is a row of names, the outermost first, in `slots` places (`.` for an empty one), and a string. The work
rewrites it: each step applies the innermost function and drops its name, until no name is left; the last step is the
answer. So every step is the same operation, and a problem of three functions needs only one more step than one of two.
Demonstrations stop early more often than not, which makes a policy that knows each function and seldom composes them.
After "From f(x) and g(x) to f(g(x)): LLMs Learn New Skills in RL by Composing Old Ones", with a character tokenizer
instead of a language model that knows nested calls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import permutations
from typing import Annotated, Any

from shuhari.bounds import AtLeast0, Bounds, Length, ProperShare, Seed, Share, check
from shuhari.data import Problem, Step, code
from shuhari.kernel.registry import register
from shuhari.tasks.source import Generated, Listed, Stream, answer_text, check_split, draw_distinct, draw_item

NAMES = "ABCDEFGHIJKLMNOP"
LETTERS = "abcd"


@register("task", "strings")
@dataclass
class Strings:
    """Functions of strings, one called on the result of another: `.BAabd>` -> `..Bbda>...adb`. The number of calls is
    the level.

    A function permutes the letters abcd; all differ, and none is the identity. The last step is graded, after the last
    `>` if there is one, so an answer without work is right too. Training never uses test prompts. A problem's task is
    its level (`level2`), so numbers are also reported for each level, as `mean@level2`. `info`: `level`.
    """

    functions: Annotated[int, Bounds(1, len(NAMES))] = 8
    """Number of functions, named A, B, C and so on."""
    length: Annotated[int, Bounds(1, 8)] = 3
    """Number of letters of a string, each one of abcd."""
    slots: Annotated[int, Bounds(1, 8)] = 3
    """Largest number of functions that a problem calls, and so the number of levels."""
    shares: tuple[AtLeast0, ...] = (1.0, 1.0, 1.0)
    """Frequency of each level in training relative to the others, from level 1; levels beyond the list are only
    tested."""
    on: Share = 1.0
    """Probability that a demonstration continues after a step that leaves functions to call; else it drops the rest and
    ends."""
    slip: Share = 0.0
    """Probability that a letter of a demonstrated step is wrong; the work continues from the written letters."""
    test_fraction: ProperShare = 0.25
    """Share of the prompts that is held out for testing, by a hash of the prompt; training never draws them."""
    test_size: Length = 300
    """Number of problems in the test split, spread evenly over the levels; fewer if there are no more."""
    codes: Seed = 0
    """Seed of the functions themselves; change it for other functions."""
    seed: Seed = 0
    """Seed of the drawn problems and demonstrations, not of the functions. In a recipe it is the run's seed unless
    set."""
    stamps = ("reward/score",)

    def __post_init__(self) -> None:
        check(self)
        if len(self.shares) > self.slots or not any(self.shares):
            expected = f"at most {self.slots}, the slots, and one above 0"
            raise ValueError(f"strings: shares are {self.shares}: expected {expected}")

    @property
    def alphabet(self) -> str:
        """The characters of prompts and answers."""
        return f"{NAMES[: self.functions]}{LETTERS}.>"

    def problems(self, split: str) -> Generated | Listed:
        return self._test if check_split(split) == "test" else Generated(self._train)

    def grade(self, problem: Problem, steps: Sequence[Step]) -> Mapping[str, Any]:
        """Returns {"score": 1.0} if the last step is the answer, else 0.0."""
        return {"score": float(answer_text(steps).rpartition(">")[2] == problem.answer)}

    def environment(self, problem: Problem) -> None:
        return None

    def spaces(self) -> None:
        return None

    def apply(self, name: str, text: str) -> str:
        """Returns a function's result for a string. Raises KeyError for an unknown name."""
        return text.translate(str.maketrans(LETTERS, self._rules[name]))

    # ---------------------------------------------------------------- problems

    @cached_property
    def _rules(self) -> dict[str, str]:
        """Name -> the image of abcd."""
        every = ["".join(rule) for rule in permutations(LETTERS)][1:]  # the first is the identity
        mixed = sorted(every, key=lambda rule: code("strings", self.codes, rule))
        return dict(zip(NAMES[: self.functions], mixed, strict=False))

    @cached_property
    def _test(self) -> Listed:
        """The levels one after another."""
        found = [draw_distinct(partial(self._item, "test", level), max(self.test_size // self.slots, 1)).problems
                 for level in range(1, self.slots + 1)]  # fmt: skip
        return Listed(
            [
                p
                for row in zip(*found, strict=False)
                for p in row
            ]
        )

    def _train(self, index: int) -> Problem:
        u = Stream("strings level", self.seed, index).uniform() * sum(self.shares)
        level = next((i for i in range(1, len(self.shares)) if u < sum(self.shares[:i])), len(self.shares))
        return self._item("train", level, index)[1]

    def _item(self, split: str, level: int, index: int) -> tuple[str, Problem]:
        """Returns (prompt, problem) number `index` of a level."""
        stream = Stream("strings", self.seed, split, level, index)

        def draw() -> tuple[str, tuple[str, str]]:
            names = "".join(NAMES[stream.below(self.functions)] for _ in range(level))
            text = "".join(LETTERS[stream.below(len(LETTERS))] for _ in range(self.length))
            return f"{self._write(names, text)}>", (names, text)

        prompt, (names, text) = draw_item(split, self.test_fraction, draw, "strings")
        right = text
        for name in reversed(names):
            right = self.apply(name, right)
        shown = self._demonstrate(names, text, stream)
        return prompt, Problem(f"level{level}", prompt, prompt, self._write("", right), shown, {"level": level})

    def _write(self, names: str, text: str) -> str:
        """Returns a step: the remaining names, and the string that they are called on."""
        return names.rjust(self.slots, ".") + text

    def _demonstrate(self, names: str, text: str, stream: Stream) -> str:
        steps = []
        while names:
            text = "".join(self._slip(letter, stream) for letter in self.apply(names[-1], text))
            names = names[:-1] if stream.uniform() < self.on else ""
            steps.append(self._write(names, text))
        return ">".join(steps)

    def _slip(self, letter: str, stream: Stream) -> str:
        if stream.uniform() >= self.slip:
            return letter
        return LETTERS[(LETTERS.index(letter) + 1 + stream.below(len(LETTERS) - 1)) % len(LETTERS)]
