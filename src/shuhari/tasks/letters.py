"""Strings that people with different tastes compare: `bc=` -> `dab`, with all answers, rewards and preferences known.

A prompt is two topic letters and `=`; an answer has `length` letters. Each taste gives every letter a value in [0, 1]
that depends on the prompt, and the reward of an answer by a taste is the mean value of its letters. Of two answers a
and b somebody with taste u prefers a with probability

    sigmoid(sharpness (r_u(a) - r_u(b)) + cycle s(a, b)),   s = 1, 0 or -1

where s compares the letters' numbers, summed modulo 3: 1 beats 0, 2 beats 1 and 0 beats 2. So with `cycle` above 0
there is no reward whose differences are the preferences. Everything can be enumerated: rewards, win rates, the policy
that solves a game of preferences. Pairs of recorded answers, with the taste of who compared them, are the training
split's `chosen` and `rejected`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from math import exp
from typing import Annotated, Any, Literal, TypeAlias

from shuhari.bounds import AtLeast0, Bounds, Positive, Seed, Share, ShareBelow1, check
from shuhari.data import Problem, Step
from shuhari.kernel.registry import register
from shuhari.ports.answers import Answers
from shuhari.tasks.source import Generated, Listed, Stream, answer_text, check_split, is_held_out

LETTERS = "abcdef"
TOPICS = "pqrs"
LARGEST = 6561  # answers that are listed

Values: TypeAlias = tuple[tuple[float, ...], ...]  # of each letter, by each taste


@register("task", "letters")
@dataclass
class Letters:
    """Strings whose rewards by several tastes, and preferences, are known exactly: `pq=` -> `dab`.

    The score of an answer is its mean reward over `tastes` by `weights`; `taste<u>` is that of taste u alone. Answers
    of another length, or with other letters, score 0. `info` of a training problem: `chosen` and `rejected`, two
    different answers, `user`, the number of the taste that compared them, and `margin<u>`, the reward of the chosen
    less that of the rejected one by taste u. Demonstrations are answers whose letters are the floor(n u^skew)-th, for
    uniform u, in an order of the prompt's own. Raises ValueError for settings that do not fit together.
    """

    letters: Annotated[int, Bounds(2, 6)] = 3
    """Number of different letters in answers."""
    length: Annotated[int, Bounds(1, 8)] = 3
    """Number of letters of an answer; at most 6,561 answers may exist."""
    tastes: Annotated[int, Bounds(1, 4)] = 1
    """Number of tastes, each with its own values of letters."""
    against: Share = 0.0
    """How far every second taste is the opposite of the one before: at 1 its values are 1 less those, at 0 its own."""
    weights: tuple[AtLeast0, ...] = (1.0,)
    """Weight of each taste in the score; one number means equal weights."""
    users: tuple[AtLeast0, ...] = (1.0,)
    """Share of the pairs that each taste has compared; one number means equal shares."""
    sharpness: AtLeast0 = 8.0
    """How strongly a difference of rewards decides which of two answers is preferred; 0 leaves it to chance."""
    cycle: AtLeast0 = 0.0
    """Strength, in logits, of a preference that goes in a circle over three kinds of answers; 0 has none."""
    skew: Positive = 1.5
    """How uneven demonstrated letters are: 1 draws all alike, larger prefers the first of the prompt's order."""
    held_out: ShareBelow1 = 0.0
    """Share of the prompts in the test split, by a hash; 0 gives both splits all prompts, to test only optimisation."""
    codes: Seed = 0
    """Seed of the values of letters; change it for other tastes."""
    seed: Seed = 0
    """Seed of demonstrations and pairs. In a recipe it is the run's seed unless set."""
    _values: dict[str, Values] = field(init=False, default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        check(self)
        if self.letters**self.length > LARGEST:
            found = f"letters is {self.letters} and length {self.length}"
            raise ValueError(f"letters: {found}, {self.letters**self.length} answers: expected at most {LARGEST}")
        for name, row in (("weights", self.weights), ("users", self.users)):
            if len(row) not in (1, self.tastes) or not any(row):
                expected = f"one number, or {self.tastes} of which one is above 0"
                raise ValueError(f"letters: {name} is {row}, for {self.tastes} tastes: expected {expected}")

    @property
    def stamps(self) -> tuple[str, ...]:
        return ("reward/score", *(f"reward/taste{u}" for u in range(self.tastes)))

    @property
    def alphabet(self) -> str:
        """The characters of prompts and answers."""
        return f"{LETTERS[: self.letters]}{TOPICS}="

    def problems(self, split: str) -> Generated | Listed:
        return self._test if check_split(split) == "test" else Generated(lambda i: self._problem("train", i))

    def grade(self, problem: Problem, steps: Sequence[Step]) -> Mapping[str, Any]:
        """Returns {"score": ..., "taste<u>": ... for each taste}, each in [0, 1]."""
        return self._grade(problem.id, answer_text(steps))

    def answers(self, problem: Problem) -> Answers:
        """Returns all answers, with the number of their kind (0, 1 or 2) as label."""
        scores = tuple(self._grade(problem.id, text)["score"] for text in self._texts)
        return Answers(self._texts, scores, tuple(str(find_kind(text)) for text in self._texts), complete=True)

    def compare(self, problem: Problem, first: str, second: str) -> float:
        """Returns the probability that the first answer is preferred to the second, over users by their shares. An
        answer that is none loses to one that is; two of them are equal."""
        there = [self._is_answer(text) for text in (first, second)]
        if not all(there):
            return 0.5 + 0.5 * (there[0] - there[1])
        return sum(share * self._prefer(problem.id, u, first, second) for u, share in enumerate(self._shares))

    def environment(self, problem: Problem) -> None:
        return None

    def spaces(self) -> None:
        return None

    # ---------------------------------------------------------------- rewards and preferences

    def rate(self, prompt: str, taste: int, text: str) -> float:
        """Returns the reward of an answer by a taste, in [0, 1]."""
        values = self._find_values(prompt)[taste]
        return sum(values[LETTERS.index(x)] for x in text) / self.length

    def _prefer(self, prompt: str, user: int, first: str, second: str) -> float:
        gap = self.rate(prompt, user, first) - self.rate(prompt, user, second)
        turn = (find_kind(first) - find_kind(second)) % 3
        logit = self.sharpness * gap + self.cycle * (0, 1, -1)[turn]
        return 1 / (1 + exp(-logit))

    def _grade(self, prompt: str, text: str) -> dict[str, float]:
        if not self._is_answer(text):
            return dict.fromkeys(("score", *(f"taste{u}" for u in range(self.tastes))), 0.0)
        each = {f"taste{u}": self.rate(prompt, u, text) for u in range(self.tastes)}
        return {"score": sum(w * x for w, x in zip(self._weights, each.values(), strict=True)), **each}

    def _is_answer(self, text: str) -> bool:
        return len(text) == self.length and set(text) <= set(LETTERS[: self.letters])

    def _find_values(self, prompt: str) -> Values:
        """Returns the value of each letter by each taste, computed once."""
        if prompt not in self._values:
            found: list[tuple[float, ...]] = []
            for u in range(self.tastes):
                stream = Stream("letters", self.codes, prompt, u)
                own = [stream.uniform() for _ in range(self.letters)]
                if u % 2:
                    own = [self.against * (1 - x) + (1 - self.against) * y for x, y in zip(found[-1], own, strict=True)]
                found.append(tuple(own))
            self._values[prompt] = tuple(found)
        return self._values[prompt]

    @cached_property
    def _weights(self) -> tuple[float, ...]:
        return _normalise(self.weights, self.tastes)

    @cached_property
    def _shares(self) -> tuple[float, ...]:
        return _normalise(self.users, self.tastes)

    # ---------------------------------------------------------------- problems

    @cached_property
    def _texts(self) -> tuple[str, ...]:
        return tuple("".join(word) for word in product(LETTERS[: self.letters], repeat=self.length))

    @cached_property
    def _prompts(self) -> dict[str, tuple[str, ...]]:
        """split -> its prompts."""
        every = tuple(f"{a}{b}=" for a, b in product(TOPICS, repeat=2))
        test = tuple(p for p in every if self.held_out and is_held_out(f"letters {p}", self.held_out))
        train = tuple(p for p in every if p not in test)
        if self.held_out and not (test and train):
            expected = "a share that leaves some in each split"
            raise ValueError(f"letters: held_out is {self.held_out} of {len(every)} prompts: expected {expected}")
        return {"train": train, "test": test or every}

    @cached_property
    def _test(self) -> Listed:
        return Listed([self._problem("test", i) for i in range(len(self._prompts["test"]))])

    def _problem(self, split: str, index: int) -> Problem:
        prompts, stream = self._prompts[split], Stream("letters", self.seed, split, index)
        prompt = prompts[index % len(prompts)]
        shown = self._draw(prompt, stream)
        best = max(self._texts, key=lambda text: self._grade(prompt, text)["score"])
        return Problem("letters", prompt, prompt, best, shown, self._record(prompt, stream))

    def _record(self, prompt: str, stream: Stream) -> dict[str, Any]:
        """Returns a pair of answers as somebody has compared it."""
        user, one = _choose(self._shares, stream), self._draw(prompt, stream)
        other = self._draw(prompt, stream)
        while other == one:
            other = self._texts[stream.below(len(self._texts))]
        if stream.uniform() >= self._prefer(prompt, user, one, other):
            one, other = other, one
        gaps = {f"margin{u}": self.rate(prompt, u, one) - self.rate(prompt, u, other) for u in range(self.tastes)}
        return {"chosen": one, "rejected": other, "user": user, **gaps}

    def _draw(self, prompt: str, stream: Stream) -> str:
        order = self._find_order(prompt)
        return "".join(order[int(self.letters * stream.uniform() ** self.skew)] for _ in range(self.length))

    def _find_order(self, prompt: str) -> str:
        """Returns the letters in the prompt's own order, in which demonstrations prefer the first."""
        stream = Stream("letters", self.codes, prompt, "order")
        return "".join(sorted(LETTERS[: self.letters], key=lambda _: stream.uniform()))


def find_kind(text: str) -> Literal[0, 1, 2]:
    """Return the sum of an answer's letter numbers modulo 3, which the cycle of preferences goes by."""
    return sum(LETTERS.index(x) for x in text) % 3  # type: ignore[return-value]


def _normalise(row: tuple[float, ...], n: int) -> tuple[float, ...]:
    row = row * n if len(row) == 1 else row
    return tuple(x / sum(row) for x in row)


def _choose(shares: Sequence[float], stream: Stream) -> int:
    u = stream.uniform()
    for i, share in enumerate(shares):
        if u < share:
            return i
        u -= share
    return len(shares) - 1
