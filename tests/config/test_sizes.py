"""Every size and every count has an upper bound: one that no machine can hold is refused before a run begins."""

from __future__ import annotations

import math
import typing
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import pytest

from shuhari import bounds
from shuhari.bounds import Bounds
from shuhari.config.distributed import Distributed
from shuhari.config.evaluation import Evaluation
from shuhari.config.scalars import KINDS
from shuhari.config.stage import Checkpointing
from shuhari.data import Sampling
from shuhari.desk.cli import main
from shuhari.desk.cli.text import describe_error
from shuhari.kernel import registry
from shuhari.learners.parts import Part

PLAIN = (Checkpointing, Distributed, Evaluation, Part, Sampling)


def list_whole_numbers(hint: Any, found: Bounds | None = None) -> Iterator[Bounds | None]:
    """The bounds of each whole number that an annotation takes; None: without any."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        yield from list_whole_numbers(inner[0], next((x for x in inner if isinstance(x, Bounds)), None))
    elif hint is int:
        yield found
    elif origin is not typing.Literal:
        for part in inner:
            yield from list_whole_numbers(part)


def test_every_whole_number_of_a_recipe_is_bounded() -> None:
    classes = {c for c in registry.entries().values() if is_dataclass(c) and c.__module__.startswith("shuhari.")}
    hints = {f"{c.__name__}.{f.name}": bounds.hints(c)[f.name] for c in (*classes, *PLAIN) for f in fields(c) if f.init}
    hints |= KINDS
    numbers = {name: [*list_whole_numbers(hint)] for name, hint in hints.items()}
    assert sum(map(len, numbers.values())) > 250  # or the walk sees none
    ends = {name: [math.inf if b is None else min(b.high, b.most) for b in found] for name, found in numbers.items()}
    free = [name for name, most in ends.items() if math.inf in most]
    assert not free, f"without an upper bound: {', '.join(sorted(free))}"


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("threads=1e9", "threads: 1000000000: expected at most 1,024"),
        ("buffer.size=1e12", "buffer.size: 1000000000000.0: expected at most 100,000,000"),
        ("rollout.n=1e9", "rollout.n: 1000000000.0: expected at most 1,000,000"),
        ("models.policy.hidden=1e7", "models.policy.hidden: 10000000.0: expected at most 65,536"),
        ("seed=-1", "seed: -1: expected a number of 0 or more"),
        ("distributed.learners=5000", "distributed.learners: 5000: expected at most 1,024"),
    ],
)
def test_a_size_that_no_machine_holds_is_refused_in_the_dry_run(
    setting: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(["train", "baselines/grpo", "--dry-run", "--set", setting])
    assert end.value.code == 2 and told in capsys.readouterr().err


def test_an_error_without_words_gets_some() -> None:
    assert "not enough memory; expected a smaller model" in describe_error(MemoryError())
    assert "not enough memory: Unable to allocate 8 GiB" in describe_error(MemoryError("Unable to allocate 8 GiB"))
    assert describe_error(ValueError()) == "ValueError, without a word"
