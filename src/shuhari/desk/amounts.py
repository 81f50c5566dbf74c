"""The amounts of a stage in one line: batch sizes, optimiser steps, micro-batches. Left out: the budget."""

from __future__ import annotations

from typing import Any

from shuhari.config.stage import Components
from shuhari.ports import ability


def describe_work(stage: Components) -> str:
    """Describe a step in one line: what is collected, how often it is used for updates, and in what micro-batches."""
    out = [] if stage.learners else ["measures only"]
    for name, learner in stage.learners.items():
        parts = ability(learner, "parts")
        out.append((f"{name}: " if len(stage.learners) > 1 else "") + _describe_draws(learner.buffer, stage.n))
        for part_name, part in parts.items():
            m, e = part.minibatches, part.epochs
            factors = f"{_format_count(m, 'minibatch', 'es')} x {_format_count(e, 'epoch')}"
            steps = f"{factors} = {_format_count(m * e, 'optimiser step')}"
            out.append(f"{part_name} {steps}" if len(parts) > 1 else steps)
    if stage.imitates:
        out.append(f"imitates {stage.imitates}")
    if stage.grades:
        out.append(f"score: {stage.grades}")
    limit = "= minibatch" if stage.tokens is None else f"<= {_format_number(stage.tokens)} tokens"
    out.append(f"micro-batch {limit}")
    return ", ".join(out)


def _describe_draws(buffer: Any, n: int) -> str:
    size, unit = ability(buffer, "size"), ability(buffer, "unit")
    if size is None:
        return type(buffer).__name__.lower()
    if unit is None:
        return f"{size} rows of {type(buffer).__name__.lower()}"
    return (
        f"{_format_count(size, 'problem')} x {n} = {_format_count(size * n, 'row')}"
        if unit == "group"
        else f"{size} decisions"
    )


def _format_count(n: int, what: str, plural: str = "s") -> str:
    return f"{n} {what}{'' if n == 1 else plural}"


def _format_number(n: int) -> str:
    return f"{n // 1024}k" if n % 1024 == 0 else str(n)
