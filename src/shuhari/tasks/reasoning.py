"""Problems of the reasoning-gym package, graded by us: its own scorers run on text from a model and are not trusted.

One generator has been reviewed so far, `chain_sum`; another is refused. The package is an extra, imported when a task
is made, never when this module is.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

from shuhari.data import EMPTY, Problem, Step, nearest
from shuhari.registry import register
from shuhari.tasks.source import Generated, Listed, Stream, answer_text, check_sizes, check_split, distinct, drawn

_OURS = ("seed", "size")  # keys of the generators' own that this task sets
_INTEGER = re.compile(r"[+-]?[0-9]{1,100}", re.ASCII)


def _same_integer(text: str, answer: str) -> bool:
    text = text.strip(" ")
    return _INTEGER.fullmatch(text) is not None and int(text) == int(answer)


# generator -> exact comparison of an answer with the truth
_SCORERS = {"chain_sum": _same_integer}


@register("task", "reasoning-gym")
@dataclass
class ReasoningGym:
    """A generator of reasoning-gym, named as `reasoning-gym/<generator>`: procedural puzzles as text.

    path: the generator (`chain_sum`). config: its settings, such as {min_terms, max_terms, min_digits, max_digits}.
    test_fraction, test_size, seed: as for `arithmetic`; the content is the question's text.
    """

    path: str = "chain_sum"
    config: Mapping[str, Any] = EMPTY
    test_fraction: float = 1 / 16
    test_size: int = 256
    seed: int = 0

    def __post_init__(self) -> None:
        if self.path not in _SCORERS:
            raise ValueError(
                f"reasoning-gym/{self.path}: its scorer has not been reviewed yet, and answers are never graded by one "
                f"that was not; usable now: {', '.join(_SCORERS)}"
            )
        check_sizes(f"reasoning-gym/{self.path}", self.test_fraction, self.test_size)
        _ = self._generator  # a missing package or a bad setting shows here, before a run starts

    @classmethod
    def preview(cls) -> dict[str, Any]:
        """An example for listings, without the package."""
        prompt = "State the final answer to the following arithmetic problem: 4 + 3 - 12 ="
        return {"prompt": prompt, "answer": "-5", "name": "reasoning-gym/chain_sum"}

    def problems(self, split: str) -> Generated | Listed:
        """`train` has no end; `test` is `test_size` problems of pairwise distinct content."""
        return self._test if check_split(split) == "test" else Generated(lambda i: self._item("train", i)[1])

    def grade(self, problem: Problem, steps: Sequence[Step]) -> Mapping[str, Any]:
        """{"score": 1.0} where the whole answer is the right integer (leading zeros and a + allowed), else 0.0."""
        return {"score": float(_SCORERS[self.path](answer_text(steps), str(problem.answer)))}

    def environment(self, problem: Problem) -> None:
        return None

    def spaces(self) -> None:
        return None

    @cached_property
    def _test(self) -> Listed:
        return distinct(lambda i: self._item("test", i), self.test_size)

    def _item(self, split: str, index: int) -> tuple[str, Problem]:
        stream = Stream(self.path, self.seed, split, index)
        name = f"reasoning-gym/{self.path}"

        def draw() -> tuple[str, tuple[int, Mapping[str, Any]]]:
            row = stream.below(2**48)  # the generators seed random.Random with their seed (0) + this
            entry = self._generator[row]
            return entry["question"], (row, entry)

        question, (row, entry) = drawn(split, self.test_fraction, draw, name)
        return question, Problem(name, str(row), question, entry["answer"], entry["answer"])

    @cached_property
    def _generator(self) -> Any:
        try:
            importlib.import_module("reasoning_gym")  # registers the generators
            factory = importlib.import_module("reasoning_gym.factory")
        except ModuleNotFoundError as error:
            if error.name != "reasoning_gym":
                raise
            raise ModuleNotFoundError(
                f'reasoning-gym/{self.path} needs the package reasoning-gym: pip install "shuhari[lm]"', name=error.name
            ) from None
        _, config_type = factory.DATASETS[self.path]
        known = {f.name: f for f in fields(config_type) if f.name not in _OURS}
        for name, value in self.config.items():
            if name not in known:
                hint = "it belongs to the task, beside config" if name in _OURS else nearest(name, known)
                raise ValueError(f"reasoning-gym/{self.path}: no setting {name!r} in config; {hint}")
            default = known[name].default
            if isinstance(default, bool | int) and type(value) is not type(default):
                raise ValueError(
                    f"reasoning-gym/{self.path}: config.{name} is {value!r}: expected {type(default).__name__}"
                )
        try:
            return factory.create_dataset(self.path, seed=0, **self.config)
        except AssertionError as error:
            raise ValueError(f"reasoning-gym/{self.path}: config {dict(self.config)}: {error}") from None
