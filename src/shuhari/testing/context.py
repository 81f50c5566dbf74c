"""Fakes for tests of components: a run's context without a run, and an engine with scripted answers.

The context is the one of real runs, without a run behind it, so a component behaves in a test as in a run.

Axes: `K` positions of an answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from shuhari.data import EMPTY, Array, Sampling
from shuhari.events import Event
from shuhari.loop.context import Context, Of
from shuhari.needs import Trace
from shuhari.ports import Model
from shuhari.rollouts.single import Single


@dataclass
class ScriptedEngine:
    """An engine that gives the answers of a script, in order, and remembers what it was asked.

    `answers`: role -> answers, each an array of token ids, an action, or a `Trace`; or a function (context, i) -> one,
    where i counts the samples of the role. `scores`: name -> a function (context, action) -> [K] or a number. `asked`
    lists the calls as ("sample" | "score", role, context). Raises IndexError if the script of a role has no further
    answer.
    """

    answers: Mapping[str, Sequence[Any] | Callable[[Any, int], Any]] = field(default_factory=dict)
    scores: Mapping[str, Callable[[Any, Any], Any]] = field(default_factory=dict)
    asked: list[tuple[str, str, Any]] = field(default_factory=list, init=False)
    versions: list[int] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self._given: dict[str, int] = {}

    async def sample(
        self, role: str, context: Any, sampling: Sampling, n: int = 1, *, key: Sequence[object]
    ) -> list[Trace]:
        """The next n answers of the role's script."""
        self.asked.append(("sample", role, context))
        return [self._next(role, context) for _ in range(n)]

    async def score(self, role: str, context: Any, action: Any, names: Sequence[str]) -> dict[str, Array]:
        """Return name -> [K] for an action, by the script's functions."""
        self.asked.append(("score", role, context))
        return {name: np.atleast_1d(np.asarray(self.scores[name](context, action), np.float32)) for name in names}

    def sync(self, models: Mapping[str, Model], version: int) -> None:
        """Record that the weights have changed."""
        self.versions.append(version)

    def _next(self, role: str, context: Any) -> Trace:
        i = self._given.get(role, 0)
        script = self.answers[role]
        if not callable(script) and i >= len(script):
            raise IndexError(f"role {role!r} was asked for answer {i + 1}: its script has {len(script)}")
        self._given[role] = i + 1
        answer = script(context, i) if callable(script) else script[i]
        if isinstance(answer, Trace):
            return answer
        k = len(answer) if isinstance(answer, np.ndarray) and answer.ndim else 1
        return Trace(answer, np.zeros(k, np.float32))


def context(
    seed: int = 0,
    *,
    step: int = 0,
    count: float | None = None,
    models: Mapping[str, Any] = EMPTY,
    task: Any = None,
    engine: Any = None,
    tell: Callable[[Event], None] | None = None,
    **fields: Any,
) -> Context:
    """The context of a run at `step` that has these models by role, and this task and engine.

    `count`: position of schedules, by default the step. `tell`: called with each event that a component sends.
    `fields`: any other field of the context (`rewards`, `weights`, `n`, `sampling`, `rollout`). Probes use the rollout
    `single`, unless another is given. Spending is in `ctx.ledger`, failures that components reported are in
    `ctx.problems`. Raises TypeError for an unknown field.
    """
    ctx = Context(seed, task, ScriptedEngine() if engine is None else engine)
    ctx.step, ctx.version, ctx.count = step, step, float(step if count is None else count)
    ctx.models.update(models)
    ctx.rollout = Single()
    if tell is not None:
        ctx.tell = tell
    for name, value in fields.items():
        if not hasattr(ctx, name):
            raise TypeError(f"a context has no {name!r}: expected one of {', '.join(_list_fields(ctx))}")
        setattr(ctx, name, value)
    return ctx


def _list_fields(ctx: Context) -> list[str]:
    """List the names that `fields` may have."""
    of_parts = [name for name, value in vars(Context).items() if isinstance(value, Of)]
    return sorted(name for name in (*vars(ctx), *of_parts) if not name.startswith("_"))
