"""Short words whose answers can all be listed, so that a policy's probabilities are known exactly: `BD1=` -> `CABD`.

A prompt is two or three topic letters, optionally a digit for its level, and `=`. A strategy gives every prompt one
word: letter i is (a x + b y + c z + d) mod 4 of the topic's letters, with separate numbers a to d for each i, so that
learning on one prompt generalises to others. The score of a strategy's word depends only on the prompt's level.
Demonstrations are a mixture of the strategies' words, with slips, and of random words; so their shares are the policy's
after imitation. Settings alone give levels that need each other's words, right words that are rare, long words that are
hardly ever complete, and several right answers: see the recipes `beds/trie/...`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

from shuhari.bounds import Bounds, Count, Seed, Share, ShareBelow1, check
from shuhari.data import Problem, Step
from shuhari.kernel.registry import register
from shuhari.ports.answers import Answers
from shuhari.tasks.source import Generated, Listed, Stream, answer_text, check_split, is_held_out

LETTERS = "ABCD"
UNSAFE = "DDD"  # the end of an unsafe word
LARGEST = 6  # longest words that are all listed: 4,096 words

Rows: TypeAlias = tuple[tuple[Share, ...], ...]
T = TypeVar("T")


@dataclass(frozen=True)
class Sheet:
    """The facts of a prompt: its level by number, the strategies' words, and their scores."""

    level: int
    words: tuple[str, ...]
    scores: tuple[float, ...]


@register("task", "trie")
@dataclass
class Trie:
    """Short words whose answers can all be listed, so that a policy's probabilities are known exactly: `BD1=` ->
    `CABD`.

    A prompt is two or three topic letters, optionally a digit for its level, and `=`. Each strategy gives every prompt
    one word, whose score depends on the level; any other word scores 0. Labels of wrong answers: `trap`, a strategy's
    word that is wrong at this level; `unsafe`, a word that ends in `DDD`, if `unsafe` is above 0; then no strategy's
    word may end like that.

    Demonstrations are strategies' words by `shares`; the rest are random words, whose letters are floor(4 u^1.5) for
    uniform u. Training cycles through all its prompts, endlessly. `info`: `level`, by name. Raises ValueError for
    settings that do not fit together.
    """

    topics: Literal[16, 64] = 16
    """Number of topics: 16, written in two letters, or 64, in three."""
    length: Annotated[int, Bounds(1, 16)] = 4
    """Number of letters of a word; at most 6 if `listed` is `all`."""
    levels: tuple[str, ...] = ("easy", "hard")
    """Names of the levels, one or two."""
    cue: bool = True
    """Show the level in the prompt by a digit; if false, the second level is that of topics whose letters sum to 0
    modulo 4."""
    scores: Rows = ((1.0, 1.0, 0.0, 0.0), (0.0, 0.0, 1.0, 1.0))
    """Score of each strategy's word, of up to four strategies: one row for all levels, or one for each."""
    listed: Literal["all", "right"] = "all"
    """Answers that the task lists for exact measures: `all` words (of up to 6 letters), or the `right` ones and those
    with a label."""
    shares: Rows = ((0.175, 0.175, 0.06, 0.06),)
    """Share of the demonstrations that are each strategy's word, rows as in `scores`; the rest are random words."""
    slip: tuple[Share, Share] = (0.0, 0.0)
    """Lowest and highest probability that a letter of a demonstrated strategy's word is wrong; each prompt has its own
    value in between."""
    firm: Count = 1
    """Number of first letters that never slip."""
    unsafe: tuple[Share, ...] = (0.0,)
    """Share of the demonstrations that end in `DDD`, for all levels or for each; 0 has no unsafe words."""
    held_out: ShareBelow1 = 0.0
    """Share of the prompts in the test split, by a hash; 0 gives both splits all prompts, to test only optimisation."""
    codes: Seed = 0
    """Seed of the strategies' words; change it for other words."""
    seed: Seed = 0
    """Seed of the demonstrations, not of the words. In a recipe it is the run's seed unless set."""
    stamps = ("reward/score",)
    _sheets: dict[str, Sheet] = field(init=False, default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        check(self)
        if not 1 <= len(self.levels) <= 2 or len(set(self.levels)) < len(self.levels):
            raise ValueError(f"trie: levels are {self.levels}: expected one name, or two that differ")
        for name, rows in {"scores": self.scores, "shares": self.shares, "unsafe": self.unsafe}.items():
            if len(rows) not in (1, len(self.levels)):
                expected = f"one for all levels, or one for each of {self.levels}"
                raise ValueError(f"trie: {name} has {len(rows)} entries: expected {expected}")
        strategies = {len(row) for row in (*self.scores, *self.shares)}
        if len(strategies) > 1 or not strategies <= {1, 2, 3, 4}:
            expected = "rows of one length, the number of strategies, 1 to 4"
            raise ValueError(f"trie: scores are {self.scores} and shares {self.shares}: expected {expected}")
        if not all(map(any, self.scores)):
            raise ValueError(f"trie: scores are {self.scores}: expected one above 0 in every row")
        if any(sum(row) > 1 + 1e-9 for row in self.shares):
            raise ValueError(f"trie: shares are {self.shares}: expected rows that sum to 1 or less")
        if self.listed == "all" and self.length > LARGEST:
            expected = f"listed = 'right', or a length of {LARGEST} or less"
            raise ValueError(f"trie: length is {self.length} and listed is 'all': expected {expected}")
        if any(self.unsafe) and self.length <= len(UNSAFE):
            raise ValueError(f"trie: length is {self.length}: expected {len(UNSAFE) + 1} or more, as unsafe is above 0")
        if any(self.unsafe) and any(
            w.endswith(UNSAFE)
            for p in self._every
            for w in self._sheet(p).words
        ):
            raise ValueError(f"trie: codes is {self.codes}, which gives a word that ends in {UNSAFE}: try another "
                             "number")  # fmt: skip

    @property
    def alphabet(self) -> str:
        """The characters of prompts and answers."""
        return f"{LETTERS}{self._cues}="

    def problems(self, split: str) -> Generated | Listed:
        return self._test if check_split(split) == "test" else Generated(lambda i: self._problem("train", i))

    def grade(self, problem: Problem, steps: Sequence[Step]) -> Mapping[str, Any]:
        """Returns {"score": of the word, at the level of the prompt}."""
        return {"score": _score(self._sheet(problem.id), answer_text(steps))}

    def answers(self, problem: Problem) -> Answers:
        """Returns all words, or those that are right or have a label."""
        sheet = self._sheet(problem.id)
        texts = self._words if self.listed == "all" else tuple(dict.fromkeys((*sheet.words, *self._unsafe)))
        scores = tuple(_score(sheet, text) for text in texts)
        labels = tuple("" if score else self._label(sheet, text) for text, score in zip(texts, scores, strict=True))
        return Answers(texts, scores, labels, complete=self.listed == "all")

    def environment(self, problem: Problem) -> None:
        return None

    def spaces(self) -> None:
        return None

    # ---------------------------------------------------------------- prompts and their words

    @property
    def _cues(self) -> str:
        return "01" if self.cue and len(self.levels) == 2 else ""

    @cached_property
    def _every(self) -> tuple[str, ...]:
        """All prompts, the levels of a topic side by side."""
        topics = ("".join(x) for x in product(LETTERS, repeat=2 if self.topics == 16 else 3))
        return tuple(
            f"{topic}{cue}="
            for topic in topics
            for cue in self._cues or ("",)
        )

    @cached_property
    def _prompts(self) -> dict[str, tuple[str, ...]]:
        """split -> its prompts."""
        every = self._every
        test = tuple(p for p in every if self.held_out and is_held_out(f"trie {p}", self.held_out))
        train = tuple(p for p in every if p not in test)
        if self.held_out and not (test and train):
            expected = "a share that leaves some in each split"
            raise ValueError(f"trie: held_out is {self.held_out} of {len(every)} prompts: expected {expected}")
        return {"train": train, "test": test or every}

    @cached_property
    def _test(self) -> Listed:
        return Listed([self._problem("test", i) for i in range(len(self._prompts["test"]))])

    @cached_property
    def _words(self) -> tuple[str, ...]:
        return tuple("".join(word) for word in product(LETTERS, repeat=self.length))

    @cached_property
    def _unsafe(self) -> tuple[str, ...]:
        """All words with an unsafe end, if some demonstrations have one."""
        begins = product(LETTERS, repeat=self.length - len(UNSAFE)) if any(self.unsafe) else ()
        return tuple("".join(begin) + UNSAFE for begin in begins)

    def _problem(self, split: str, index: int) -> Problem:
        prompts = self._prompts[split]
        prompt = prompts[index % len(prompts)]
        sheet = self._sheet(prompt)
        best = sheet.words[sheet.scores.index(max(sheet.scores))]
        shown = self._demonstrate(prompt, sheet, Stream("trie", self.seed, split, index))
        return Problem("trie", prompt, prompt, best, shown, {"level": self.levels[sheet.level]})

    def _sheet(self, prompt: str) -> Sheet:
        """Returns the facts of a prompt, computed once."""
        if prompt not in self._sheets:
            topic = [LETTERS.index(x) for x in prompt if x in LETTERS]
            unsaid = len(self.levels) == 2 and not self._cues and sum(topic) % len(LETTERS) == 0
            level = int(unsaid or "1" in prompt)
            scores = _row(self.scores, level)
            self._sheets[prompt] = Sheet(level, tuple(self._word(i, topic) for i in range(len(scores))), scores)
        return self._sheets[prompt]

    def _word(self, strategy: int, topic: Sequence[int]) -> str:
        """Returns the word of a strategy; no two of them begin with the same letter."""
        common = Stream("trie", self.codes)
        letters = [sum(x * (1 + common.below(3)) for x in topic) + strategy]
        for i in range(1, self.length):
            own = Stream("trie", self.codes, strategy, i)
            letters.append(sum(x * own.below(4) for x in topic) + own.below(4))
        return "".join(LETTERS[x % len(LETTERS)] for x in letters)

    # ---------------------------------------------------------------- demonstrations

    def _demonstrate(self, prompt: str, sheet: Sheet, stream: Stream) -> str:
        word = self._slip(prompt, _choose(sheet.words, _row(self.shares, sheet.level), stream), stream)
        spoilt = stream.uniform() < _row(self.unsafe, sheet.level)
        return word[: -len(UNSAFE)] + UNSAFE if spoilt else word

    def _slip(self, prompt: str, word: str, stream: Stream) -> str:
        """Returns the word with slips; if it is empty, a random one."""
        if not word:
            return "".join(LETTERS[int(len(LETTERS) * stream.uniform() ** 1.5)] for _ in range(self.length))
        low, high = self.slip
        chance, out = low + (high - low) * Stream("trie slip", self.codes, prompt).uniform(), word[: self.firm]
        for letter in word[self.firm :]:
            wrong = LETTERS[(LETTERS.index(letter) + 1 + stream.below(3)) % len(LETTERS)]
            out += wrong if stream.uniform() < chance else letter
        return out

    def _label(self, sheet: Sheet, text: str) -> str:
        """Returns the label of a wrong word."""
        return "trap" if text in sheet.words else "unsafe" if any(self.unsafe) and text.endswith(UNSAFE) else ""


def _row(rows: tuple[T, ...], level: int) -> T:
    return rows[min(level, len(rows) - 1)]


def _score(sheet: Sheet, text: str) -> float:
    return sheet.scores[sheet.words.index(text)] if text in sheet.words else 0.0


def _choose(words: Sequence[str], shares: Sequence[float], stream: Stream) -> str:
    """Returns one of the words by their shares, or ""."""
    u = stream.uniform()
    for word, share in zip(words, shares, strict=True):
        if u < share:
            return word
        u -= share
    return ""
