"""Judgements of candidates by a query: `a?abc,bca,aab,cab=` -> `a:a,a,aa,a[2,2,3,2]`.

A query is a letter, and the best candidate has the most of it. A judgement is a principle, the letter that is to
count; a critique, for each candidate the letters found; and scores, their numbers plus 1. Demonstrations choose wrong
principles and slip in scores by the settings. Only the scores are graded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any

from shuhari.bounds import Bounds, Length, ProperShare, Seed, Share, check
from shuhari.data import Problem, Step
from shuhari.kernel.registry import register
from shuhari.rewards.pointwise import is_right, read_scores
from shuhari.tasks.source import Splits, Stream, answer_text, draw_item

LETTERS = "abcdef"


@register("task", "judging")
@dataclass
class Judging:
    """Candidates that are to be scored by how much they have of a letter: `a?abc,bca,aab,cab=` ->
    `a:a,a,aa,a[2,2,3,2]`.

    The score of a judgement is 1 if its last list has a number for each candidate and the best candidate's is the
    largest, alone; no two candidates are best. `info`: `candidates`, their texts, which stand in the prompt joined by
    commas. The answer is the number of the best one, from 1.
    """

    candidates: Annotated[int, Bounds(2, 9)] = 4
    """Number of candidates."""
    letters: Annotated[int, Bounds(2, 6)] = 3
    """Number of different letters in candidates and queries."""
    length: Annotated[int, Bounds(1, 8)] = 4
    """Number of letters of a candidate."""
    strays: Share = 0.2
    """Share of the demonstrations whose principle is another letter, which their critique and scores then follow."""
    slip: Share = 0.15
    """Probability that a demonstrated score is one too large or too small."""
    test_fraction: ProperShare = 1 / 16
    """Share of all possible problems that is held out for testing, by a hash of their content; training never draws
    them."""
    test_size: Length = 256
    """Number of problems in the test split, no two alike; fewer if the task has no more."""
    seed: Seed = 0
    """Seed of the drawn problems and demonstrations; which problems are held out does not depend on it. In a recipe it
    is the run's seed unless set."""
    stamps = ("reward/score",)

    def __post_init__(self) -> None:
        check(self)

    @property
    def alphabet(self) -> str:
        """The characters of prompts and answers."""
        return f"0123456789?=,:[]{LETTERS[: self.letters]}"

    @cached_property
    def problems(self) -> Splits:
        return Splits(self._item, self.test_size)

    def grade(self, problem: Problem, steps: Sequence[Step]) -> Mapping[str, Any]:
        """Returns {"score": 1.0} if the best candidate has the largest score, alone, else 0.0."""
        return {"score": float(is_right(read_scores(answer_text(steps), self.candidates), problem.answer))}

    def environment(self, problem: Problem) -> None:
        return None

    def spaces(self) -> None:
        return None

    def _item(self, split: str, index: int) -> tuple[str, Problem]:
        stream = Stream("judging", self.seed, split, index)
        content, (query, texts) = draw_item(split, self.test_fraction, lambda: self._draw(stream), "judging")
        counts = [text.count(query) for text in texts]
        answer, shown = str(counts.index(max(counts)) + 1), self._judge(query, texts, stream)
        return content, Problem("judging", content, f"{content}=", answer, shown, {"candidates": texts})

    def _draw(self, stream: Stream) -> tuple[str, tuple[str, tuple[str, ...]]]:
        """Returns a problem as text, and its query and candidates, of which one is best."""
        while True:
            query = LETTERS[stream.below(self.letters)]
            texts = tuple(
                "".join(LETTERS[stream.below(self.letters)] for _ in range(self.length))
                for _ in range(self.candidates)
            )
            counts = sorted(text.count(query) for text in texts)
            if counts[-1] > counts[-2]:
                return f"{query}?{','.join(texts)}", (query, texts)

    def _judge(self, query: str, texts: Sequence[str], stream: Stream) -> str:
        principle = query
        if stream.uniform() < self.strays:
            principle = LETTERS[(LETTERS.index(query) + 1 + stream.below(self.letters - 1)) % self.letters]
        found = [principle * text.count(principle) for text in texts]
        scores = [len(x) + 1 for x in found]
        for i in range(len(scores)):
            if stream.uniform() < self.slip:
                scores[i] = max(0, min(9, scores[i] + (1, -1)[stream.below(2)]))
        return f"{principle}:{','.join(found)}[{','.join(map(str, scores))}]"
