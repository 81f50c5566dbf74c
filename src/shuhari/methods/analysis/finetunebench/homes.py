"""A world of facts that a policy knows and others that it is taught: `home bd=` -> `K`, with held-out questions.

A fact is a name of two letters and the city that its bearer lives in; a city lies in one of five regions. Left out:
facts of several attributes, and questions that compare two facts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any, Literal

from shuhari.bounds import Length, Seed, check
from shuhari.data import Problem, Step
from shuhari.kernel.registry import register
from shuhari.tasks.source import Generated, Listed, Stream, answer_text, check_split

LETTERS, CITIES, REGIONS = "bcdfghjklmnpqrstvwxz", "ABCDEFGHIJKLMNOPQRST", "12345"  # a region has four cities
NAMES = [first + second for first, second in product(LETTERS, LETTERS)]


@dataclass(frozen=True)
class Home:
    """A fact: the `kind` ("new", "changed", "kept" or "known") of a `name`, its `city`, and the one `before`."""

    kind: str
    name: str
    city: str
    before: str

    @property
    def question(self) -> str:
        return f"{self.name} home="

    def list_probes(self, city: str) -> dict[str, str]:
        """Return the held-out questions and their answers, if the city is this."""
        return {f"{self.name} city=": city, f"{self.name} region=": f"{city}{find_region(city)}"}


@register("task", "homes")
@dataclass
class Homes:
    """Facts on where people live, of which some are known, some new, and some have changed: `home bd=` -> `K`.

    A fact has a question, `home bd=`, and two probes: the same in other words, `bd home=`, and one whose answer follows
    from it, `region bd=` -> `3`. `train` draws questions and probes of known facts, without the probes of the `kept`
    ones; or the questions of new and changed facts alone. `test` has the probes that are held out, and `facts` a
    problem for each new, changed and kept fact, with `kind`, `probes` and `a_old` in its `info`. Raises ValueError for
    more facts than there are names.
    """

    shown: Literal["known", "taught"] = "known"
    """Facts in training: `known` ones with their probes, or the questions of those that are `taught`, new and
    changed."""
    known: Length = 240
    """Number of facts that are known at first."""
    new: Length = 40
    """Number of new facts, about names that no known fact is about."""
    changed: Length = 40
    """Number of known facts whose answer changes, to a city of another region."""
    kept: Length = 40
    """Number of known facts that stay as they are and whose probes training never shows."""
    seed: Seed = 0
    """Seed of the facts and of their order in training. In a recipe it is the run's seed unless set."""
    stamps = ("reward/score",)

    def __post_init__(self) -> None:
        check(self)
        if self.changed + self.kept > self.known or self.known + self.new > len(NAMES):
            raise ValueError(f"homes: known {self.known}, new {self.new}, changed {self.changed}, kept {self.kept}: "
                             f"expected at most known in changed + kept, and {len(NAMES)} in known + new")  # fmt: skip

    @property
    def alphabet(self) -> str:
        """The characters of prompts and answers."""
        return "".join(sorted({*LETTERS, *CITIES, *REGIONS, *" =homecityregion"}))

    def problems(self, split: str) -> Generated | Listed:
        """Returns the problems of a split: `train` is endless, `test` and `facts` are lists."""
        if check_split(split, ("train", "test", "facts")) == "train":
            asked = self._shown
            return Generated(lambda i: asked[Stream("homes train", self.seed, i).below(len(asked))])
        told = [one for one in self.homes if one.kind != "known"]
        if split == "facts":
            return Listed([self._describe(one) for one in told])
        return Listed([
            self._ask(one, *probe)
            for one in told
            for probe in one.list_probes(one.city).items()
        ])  # fmt: skip

    def grade(self, problem: Problem, steps: Sequence[Step]) -> Mapping[str, Any]:
        """Returns {"score": 1.0} for exactly the answer's text, else 0.0."""
        return {"score": float(answer_text(steps) == problem.answer)}

    def environment(self, problem: Problem) -> None:
        return None

    def spaces(self) -> None:
        return None

    @cached_property
    def homes(self) -> list[Home]:
        """All facts, in an order that depends on the seed."""
        stream = Stream("homes", self.seed)
        rest = self.known - self.changed - self.kept
        kinds = ["changed"] * self.changed + ["kept"] * self.kept + ["known"] * rest + ["new"] * self.new
        names = sorted(NAMES, key=lambda _: stream.bits())[: len(kinds)]
        return [self._settle(kind, name, stream) for kind, name in zip(kinds, names, strict=True)]

    def _settle(self, kind: str, name: str, stream: Stream) -> Home:
        city = before = CITIES[stream.below(len(CITIES))]
        while kind == "changed" and find_region(city) == find_region(before):
            city = CITIES[stream.below(len(CITIES))]
        return Home(kind, name, city, before)

    @cached_property
    def _shown(self) -> list[Problem]:
        """Return what training draws from."""
        if self.shown == "taught":
            return [self._ask(one, one.question, one.city) for one in self.homes if one.kind in ("new", "changed")]
        out = []
        for one in self.homes:
            probes = {} if one.kind == "kept" else one.list_probes(one.before)
            pairs = {one.question: one.before, **probes} if one.kind != "new" else {}
            out += [self._ask(one, *pair) for pair in pairs.items()]
        return out

    def _ask(self, one: Home, question: str, answer: str) -> Problem:
        return Problem("homes", question, question, answer, answer, {"kind": one.kind})

    def _describe(self, one: Home) -> Problem:
        """Return the problem of a fact, with its probes as `info`."""
        old = one.list_probes(one.before) if one.kind == "changed" else {}
        probes = [{"q": q, "a": a, "a_old": old.get(q)} for q, a in one.list_probes(one.city).items()]
        info = {"kind": one.kind, "probes": probes, "a_old": one.before if old else None}
        return Problem("homes", one.question, one.question, one.city, one.city, info)


def find_region(city: str) -> str:
    """Return the region of a city."""
    return REGIONS[CITIES.index(city) // 4]
