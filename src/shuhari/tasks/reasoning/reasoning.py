"""Problems of the reasoning-gym package: more than a hundred procedural puzzles as text.

Its scorers run on model output, so each was read before it was used: `table` lists which generators are graded by their
scorer, by ours, or refused, and why. Left out: the package's curricula, and answers inside other text. The package is
an extra, imported when a task is made, never when this module is.
"""

from __future__ import annotations

import importlib
import io
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np

from shuhari.bounds import Length, PositiveShare, ProperShare, Seed, check
from shuhari.data import EMPTY, Problem, Step, nearest
from shuhari.kernel.registry import register
from shuhari.tasks.reasoning.table import GRADING, score
from shuhari.tasks.source import Splits, Stream, answer_text, draw_item

_OURS = ("seed", "size")  # keys of the generators that this task sets
_ROWS = 1 << 31  # problems of a generator that makes them on demand; one of them needs seeds below 2^32
_KEPT = 1024  # number of cached entries, so that grading a group makes its problem once
_UNSTABLE = {"intermediate_integration", "knight_swap"}  # which right answer an entry has depends on the process
_EXAMPLES = ("example_answer", "example_correct_answer", "possible_answer")  # where an entry without answer has one
PRINTABLE = "\n" + "".join(map(chr, range(32, 127)))


@register("task", "reasoning-gym")
@dataclass
class ReasoningGym:
    """A generator of the reasoning-gym package, named as `reasoning-gym/<generator>`: procedural puzzles as text.

    The scorer's number is the reward `partial`, which is summed only if `[reward.weights]` names it. Raises ValueError
    for a generator whose scorer is refused, ModuleNotFoundError without the package.
    """

    path: str = "chain_sum"
    """Generator of reasoning-gym, such as `chain_sum`."""
    config: Mapping[str, Any] = EMPTY
    """Settings of the generator, such as `{min_terms = 2, max_terms = 4}`; the task sets its `seed` and `size`."""
    solved: PositiveShare = 1.0
    """Scorer's number from which `score` is 1, else 0; many scorers give a little for a wrong answer."""
    test_fraction: ProperShare = 1 / 16
    """Share of the prompts that is held out for testing, by a hash of the prompt; training never draws them."""
    test_size: Length = 256
    """Number of problems in the test split, no two alike; fewer if the task has no more."""
    seed: Seed = 0
    """Seed of the drawn problems; which problems are held out does not depend on it. In a recipe it is the run's seed
    unless set."""
    stamps = ("reward/score", "reward/partial")

    def __post_init__(self) -> None:
        check(self)
        name = f"reasoning-gym/{self.path}"
        graded = GRADING.get(self.path)
        if graded is not None and graded.path == "refused":
            raise ValueError(f"{name} is refused: {graded.why}")
        if graded is None:
            if self.path in _import_package(name).DATASETS:
                raise ValueError(f"{name} is refused: its scorer was not read yet, and answers are hostile text")
            usable = [n for n, g in GRADING.items() if g.path != "refused"]
            raise ValueError(f"{name}: no such generator; {nearest(self.path, usable)}")
        _ = self._generator  # so that a missing package or a bad setting raises before a run starts

    @classmethod
    def preview(cls) -> dict[str, Any]:
        """Returns an example for listings, without the package."""
        prompt = "State the final answer to the following arithmetic problem: 4 + 3 - 12 ="
        return {"prompt": prompt, "answer": "-5", "name": "reasoning-gym/chain_sum"}

    @property
    def alphabet(self) -> str:
        """Printable ASCII, and the other characters of the generator's problems at its default settings."""
        return PRINTABLE + GRADING[self.path].characters

    @cached_property
    def problems(self) -> Splits:
        return Splits(self._item, self.test_size)

    def grade(self, problem: Problem, steps: Sequence[Step]) -> Mapping[str, Any]:
        """Returns {"score": 1.0 or 0.0, "partial": the scorer's number in [0, 1]}. Raises a scorer's error if the text
        is not at fault."""
        raw = score(self.path, answer_text(steps), self._entry(int(problem.id)), self._generator)
        return {"score": float(raw >= self.solved), "partial": raw}

    def environment(self, problem: Problem) -> None:
        return None

    def spaces(self) -> None:
        return None

    def _item(self, split: str, index: int) -> tuple[str, Problem]:
        stream = Stream(self.path, self.seed, split, index)
        name = f"reasoning-gym/{self.path}"

        def draw() -> tuple[str, Problem]:
            row = stream.below(GRADING[self.path].rows or _ROWS)
            entry = self._entry(row)
            solution = self._solution(entry)
            if solution is None and self.path == "propositional_logic":  # its premises show nothing
                return draw()
            return entry["question"], Problem(name, str(row), entry["question"], entry["answer"], solution)

        return draw_item(split, self.test_fraction, draw, name)

    def _entry(self, row: int) -> Mapping[str, Any]:
        """Returns {"question", "answer", "metadata"} of a row, which depends only on the row number (and `config`)."""
        entry = self._entries.get(row)
        if entry is None:
            with _seed(row):
                entry = self._generator[row]
            if self.path in _UNSTABLE:
                entry = entry | {"answer": None}
            if len(self._entries) >= _KEPT:
                self._entries.clear()
            self._entries[row] = entry
        return entry

    def _solution(self, entry: Mapping[str, Any]) -> str | None:
        """Returns a right answer, if the entry has one."""
        metadata = entry["metadata"]
        if entry["answer"] is not None or self.path in _UNSTABLE:
            return entry["answer"]
        shown = [metadata[k] for k in _EXAMPLES if metadata.get(k)] + list(metadata.get("premises", ()))
        texts = (x if isinstance(x, str) else json.dumps(x) for x in shown)
        return next((x for x in texts if score(self.path, x, entry, self._generator) == 1), None)

    @cached_property
    def _entries(self) -> dict[int, Mapping[str, Any]]:
        return {}

    @cached_property
    def _generator(self) -> Any:
        name = f"reasoning-gym/{self.path}"
        factory = _import_package(name)
        defaults = factory.DATASETS[self.path][1]()
        known = {f.name: getattr(defaults, f.name) for f in fields(defaults) if f.name not in _OURS}
        config = {}
        for key, value in self.config.items():
            if key not in known:
                hint = "it belongs to the task, beside config" if key in _OURS else nearest(key, known)
                raise ValueError(f"{name}: no setting {key!r} in config; {hint}")
            config[key] = _convert(value, known[key], f"{name}: config.{key}")
        try:
            generator = factory.create_dataset(self.path, seed=0, size=GRADING[self.path].rows or _ROWS, **config)
        except (AssertionError, ValueError, TypeError) as error:
            raise ValueError(f"{name}: config {dict(self.config)}: {error}") from None
        return _tame(self.path, generator)


def _import_package(name: str) -> Any:
    """Returns the package's `factory`, with its generators registered."""
    try:
        importlib.import_module("reasoning_gym")
        return importlib.import_module("reasoning_gym.factory")
    except ModuleNotFoundError as error:
        if error.name != "reasoning_gym":
            raise
        raise ModuleNotFoundError(
            f'{name} needs the package reasoning-gym: pip install "shuhari[lm]"', name=error.name
        ) from None


def _convert(value: Any, default: Any, what: str) -> Any:
    """Converts a recipe's value to the type of the setting's default, lists to its tuple or list. Raises ValueError
    with the setting's name, never TypeError."""
    if isinstance(default, list | tuple) and isinstance(value, list | tuple):
        first = default[0] if default else None
        items = [v if first is None else _convert(v, first, f"{what}[{i}]") for i, v in enumerate(value)]
        return type(default)(items)
    if type(default) is float and type(value) is int:
        return float(value)
    if isinstance(default, bool | int | float | str | list | tuple) and type(value) is not type(default):
        raise ValueError(f"{what} is {value!r}: expected {type(default).__name__}, such as {default!r}")
    return value


@contextmanager
def _seed(row: int) -> Iterator[None]:
    """Seeds the global generators of Python and NumPy with `row`, and restores them afterwards: some problems are drawn
    from them. Output that a generator prints is dropped."""
    python, numbers = random.getstate(), np.random.get_state()  # noqa: NPY002
    random.seed(row)
    np.random.seed(row)  # noqa: NPY002
    try:
        with redirect_stdout(io.StringIO()):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numbers)  # noqa: NPY002


class _Letters(tuple[str, ...]):
    """A set with a fixed order: Python's order of strings differs from process to process."""

    def __sub__(self, other: Any) -> _Letters:
        return _Letters(x for x in self if x not in other)


def _tame(path: str, generator: Any) -> Any:
    """Returns the generator, with any set that it draws from put in order, so that a row is one problem in all runs."""
    if path in ("isomorphic_strings", "ransom_note"):
        generator.letters = _Letters(sorted(generator.letters))
    elif path == "polynomial_multiplication":
        monomials = generator._get_monomials
        generator._get_monomials = lambda rng: sorted(monomials(rng), key=str)
    elif path == "word_ladder":
        graphs = generator.word_graphs.items()
        generator.word_graphs = {
            n: {word: sorted(near) for word, near in graph.items()}
            for n, graph in graphs
        }
    return generator
