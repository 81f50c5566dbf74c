"""Lookup of facts, some of which a policy knows, half knows or does not know: `bdhafc=` -> `kip`.

A fact is a pair of letters, and the letter that answers it. A prompt is a row of facts; the right answer is their
letters, in this order and nothing else. So there is one right answer, and a policy's probabilities are known exactly.
Demonstrations get a fact right at the rate of its kind: a policy that imitates them solves a problem about as often as
the product of its facts' rates. Settings alone give problems that are solved always, sometimes and never, facts that
several domains share or contradict, a required form of answers, and prompts that grow: see the recipes
`beds/ladder/...`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import zip_longest
from typing import Annotated, Any

from shuhari.bounds import AtLeast0, Bounds, Count, Length, ProperShare, Seed, Share, check
from shuhari.data import Problem, Step, code
from shuhari.kernel.registry import register
from shuhari.ports.answers import Answers
from shuhari.tasks.source import Generated, Listed, Stream, answer_text, check_split, draw_distinct, draw_item

ALPHABETS = (("abcdefgh", "ijklmnopqr"), ("ABCDEFGH", "IJKLMNOPQR"), ("stuvwxyz", "0123456789"))  # of pairs, answers
MARKS = "=:;<>"  # last characters of prompts
FACTS = 64  # pairs of eight letters
ANSWERS = 10


@dataclass(frozen=True)
class Level:
    """A level of difficulty: problems with these numbers of facts."""

    of: tuple[tuple[Count, ...], ...]
    """Number of facts of each kind in a problem, [kinds]; several rows are drawn equally often."""
    share: AtLeast0 = 1.0
    """Frequency in training relative to the other levels; 0 only tests it."""

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True)
class Domain:
    """A way of writing the facts, marked by the last character of the prompt."""

    mark: str = "="
    """Last character of prompts of this domain, one of `=:;<>`; no two domains share one."""
    alphabet: Annotated[int, Bounds(0, len(ALPHABETS) - 1)] = 0
    """Number of the alphabet, 0, 1 or 2, for facts and answers."""
    changed: Share = 0.0
    """Share of the facts whose answer differs from the common one."""
    share: AtLeast0 = 1.0
    """Frequency in training relative to the other domains; 0 only tests it."""

    def __post_init__(self) -> None:
        check(self)


def _levels() -> dict[str, Level]:
    return {"known": Level(((3, 0, 0),)), "useful": Level(((2, 1, 0), (1, 2, 0))), "rare": Level(((0, 0, 3),))}


@register("task", "ladder")
@dataclass
class Ladder:
    """Facts to look up and recite, some known, some half known and some unknown after imitation: `bdhafc=` -> `kip`.

    A prompt is a row of facts, each two letters; the answer is the letter of each, in this order. An answer that is
    right except for the frame scores 0 and has the label `bare`. Training problems are endless and disjoint from the
    test prompts. `info`: `level`, `domain`. Raises ValueError for settings that do not fit together.
    """

    facts: tuple[Count, ...] = (20, 20, 20)
    """Number of facts of each kind, [kinds], at most 64 together."""
    rates: tuple[Share, ...] = (0.985, 0.35, 0.02)
    """Probability that a demonstration gets a fact of each kind right, [kinds]; all 1 demonstrate right answers, as
    hints need."""
    levels: Mapping[str, Level] = field(default_factory=_levels)
    """Levels of difficulty by name, tables of `of` and `share`; by default `known`, `useful` and `rare`."""
    domains: Mapping[str, Domain] = field(default_factory=lambda: {"all": Domain()})
    """Ways of writing the facts by name, tables of `mark`, `alphabet`, `changed` and `share`; by default one."""
    frame: str = ""
    """Two characters that must enclose an answer; empty needs none."""
    framed: Share = 1.0
    """Probability that a demonstration has the frame."""
    test_fraction: ProperShare = 0.25
    """Share of the prompts that is held out for testing, by a hash of the prompt; training never draws them."""
    test_size: Length = 512
    """Number of problems in the test split, spread evenly over domains and levels; fewer if there are no more."""
    codes: Seed = 0
    """Seed of the facts themselves; change it for other facts."""
    seed: Seed = 0
    """Seed of the drawn problems and demonstrations, not of the facts. In a recipe it is the run's seed unless set."""
    stamps = ("reward/score",)

    def __post_init__(self) -> None:
        check(self)
        if not 0 < sum(self.facts) <= FACTS:
            raise ValueError(f"ladder: facts are {self.facts}: expected 1 to {FACTS} together")
        if len(self.rates) != len(self.facts):
            raise ValueError(f"ladder: rates are {self.rates}: expected one for each of the {len(self.facts)} kinds")
        for name, level in self.levels.items():
            if not level.of or any(len(row) != len(self.facts) or not any(row) for row in level.of):
                expected = f"rows of {len(self.facts)} numbers, of facts of each kind, not all 0"
                raise ValueError(f"ladder: level {name!r}: of is {level.of}: expected {expected}")
            if any(
                n and not there
                for row in level.of
                for n, there in zip(row, self.facts, strict=True)
            ):
                raise ValueError(f"ladder: level {name!r}: of is {level.of}: expected kinds with facts; their numbers "
                                 f"are {self.facts}")  # fmt: skip
        for what, shares in {"levels": _shares(self.levels), "domains": _shares(self.domains)}.items():
            if not any(shares.values()):
                raise ValueError(f"ladder: {what} {', '.join(shares) or '(none)'}: expected one with a share above 0")
        marks = [domain.mark for domain in self.domains.values()]
        if len(set(marks)) < len(marks) or not all(len(m) == 1 and m in MARKS for m in marks):
            raise ValueError(f"ladder: marks of domains are {marks}: expected different ones of {MARKS!r}")
        if self.frame and (len(self.frame) != 2 or set(self.frame) & set(self._letters)):
            raise ValueError(f"ladder: frame is {self.frame!r}: expected two characters that stand for nothing else")

    @property
    def alphabet(self) -> str:
        """The characters of prompts and answers."""
        return self._letters + "".join(dict.fromkeys(self.frame))

    def problems(self, split: str) -> Generated | Listed:
        return self._test if check_split(split) == "test" else Generated(self._train)

    def grade(self, problem: Problem, steps: Sequence[Step]) -> Mapping[str, Any]:
        """Returns {"score": 1.0} if the whole answer is right, else 0.0."""
        return {"score": float(answer_text(steps) == problem.answer)}

    def answers(self, problem: Problem) -> Answers:
        """Returns the right answer, and the same without its frame."""
        right = str(problem.answer)
        return Answers((right, right[1:-1]), (1.0, 0.0), ("", "bare")) if self.frame else Answers((right,), (1.0,))

    def environment(self, problem: Problem) -> None:
        return None

    def spaces(self) -> None:
        return None

    # ---------------------------------------------------------------- facts

    @cached_property
    def _letters(self) -> str:
        used = sorted({domain.alphabet for domain in self.domains.values()})
        return "".join(
            x
            for i in used
            for x in ALPHABETS[i]
        ) + "".join(d.mark for d in self.domains.values())

    @cached_property
    def _kinds(self) -> tuple[tuple[int, ...], ...]:
        """The facts of each kind, numbers in 0..63."""
        order = iter(sorted(range(FACTS), key=lambda fact: code("ladder", self.codes, fact)))
        return tuple(
            tuple(next(order) for _ in range(n))
            for n in self.facts
        )

    def _answer(self, fact: int, domain: str) -> int:
        """Returns the number of the letter that answers a fact."""
        common = Stream("ladder answer", self.codes, fact)
        right = common.below(ANSWERS)
        return _other(right, common) if common.uniform() < self.domains[domain].changed else right

    # ---------------------------------------------------------------- problems

    @cached_property
    def _test(self) -> Listed:
        """The levels of each domain in turn, until they run out."""
        cells = [
            (domain, level)
            for domain in self.domains
            for level in self.levels
        ]
        size = max(self.test_size // len(cells), 1)
        found = [draw_distinct(partial(self._item, "test", *cell), size).problems for cell in cells]
        return Listed(
            [
                p
                for row in zip_longest(*found)
                for p in row
                if p is not None
            ][: self.test_size]
        )

    def _train(self, index: int) -> Problem:
        stream = Stream("ladder", self.seed, index)
        domain, level = _draw(_shares(self.domains), stream), _draw(_shares(self.levels), stream)
        return self._item("train", domain, level, index)[1]

    def _item(self, split: str, domain: str, level: str, index: int) -> tuple[str, Problem]:
        """Returns (prompt, problem) number `index` of a domain's level."""
        stream, style = Stream("ladder", self.seed, split, domain, level, index), self.domains[domain]
        letters, says = ALPHABETS[style.alphabet]

        def draw() -> tuple[str, list[tuple[int, int]]]:
            drawn = list(self._facts(level, stream))
            return "".join(letters[fact // 8] + letters[fact % 8] for fact, _ in drawn) + style.mark, drawn

        prompt, drawn = draw_item(split, self.test_fraction, draw, "ladder")
        right = [self._answer(fact, domain) for fact, _ in drawn]
        shown = [
            x if stream.uniform() < self.rates[kind] else _other(x, stream)
            for x, (_, kind) in zip(right, drawn, strict=True)
        ]
        solution = self._put("".join(says[x] for x in shown), stream.uniform() < self.framed)
        answer = self._put("".join(says[x] for x in right))
        return prompt, Problem("ladder", prompt, prompt, answer, solution, {"level": level, "domain": domain})

    def _facts(self, level: str, stream: Stream) -> Iterator[tuple[int, int]]:
        """Yields (fact, its kind) of one problem, in any order."""
        rows = self.levels[level].of
        kinds = [
            kind
            for kind, n in enumerate(rows[stream.below(len(rows))])
            for _ in range(n)
        ]
        while kinds:
            kind = kinds.pop(stream.below(len(kinds)))
            yield self._kinds[kind][stream.below(len(self._kinds[kind]))], kind

    def _put(self, text: str, framed: bool = True) -> str:
        return f"{self.frame[0]}{text}{self.frame[1]}" if self.frame and framed else text


def _other(x: int, stream: Stream) -> int:
    """Returns any answer but x."""
    return (x + 1 + stream.below(ANSWERS - 1)) % ANSWERS


def _shares(of: Mapping[str, Level] | Mapping[str, Domain]) -> dict[str, float]:
    return {name: one.share for name, one in of.items()}


def _draw(shares: Mapping[str, float], stream: Stream) -> str:
    """Draws a name, by the shares."""
    u = stream.uniform() * sum(shares.values())
    for name, share in shares.items():
        if u < share:
            return name
        u -= share
    return max(shares, key=lambda name: shares[name])  # after rounding of sums
