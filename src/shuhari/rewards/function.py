"""A plain function as a reward: `[reward.<name>] use = "package.module.function"`, or `"rewards.py:function"`.

It has the form of TRL's reward functions, so that one works in both; its result for each sample is one number under the
reward's name. Left out: completions as messages (they are text), and token ids.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from shuhari.bounds import Seconds, check
from shuhari.data import ContractError, Trajectory, nearest
from shuhari.engines.time_limit import EscapeError, Overdue, call_within
from shuhari.kernel import registry
from shuhari.kernel.registry import register
from shuhari.ports import Ctx, ability
from shuhari.tasks.source import answer_text

TEXTS = ("prompts", "completions")


@register("reward", "function")
@dataclass
class Function:
    """A plain function as a reward, in the form of TRL's: `f(prompts, completions, **columns) -> list[float | None]`.

    It is called once per group, may be async, and returns None for an ungraded sample. Each argument is a list over the
    samples: `prompts` (text, or messages as the problem has them), `completions` (text), `answer`, `solution` (also as
    `completion`), and every name in the problems' `info`, None for a problem without it. It gets those it names, by
    keyword, or all if it takes `**columns`. A sample without a decision (a rollout that failed) is not passed and is
    ungraded.

    If the function raises or takes longer than `timeout`, its samples are ungraded, counted and shown. Raises
    ContractError, which ends the run, if it names an unknown argument or returns anything but a list of one number or
    None per sample.
    """

    function: str
    """Function that grades, as a dotted path or `file.py:function`."""
    name: str = "function"
    """Name of the grade, so that its column is `reward/<name>`."""
    timeout: Seconds | None = 300.0
    """Seconds that one call may take, at most a day; None (`none` in a recipe) sets no limit."""
    call: Callable[..., Any] = field(init=False, repr=False)

    @property
    def stamps(self) -> tuple[str, ...]:
        return (f"reward/{self.name}",)

    def __post_init__(self) -> None:
        check(self)
        self._bind(registry.find("reward", self.function))

    @classmethod
    def of(cls, call: Callable[..., Any], name: str) -> Function:
        """Wraps a function object, without a dotted path."""
        made = cls.__new__(cls)
        made.function, made.name = getattr(call, "__qualname__", repr(call)), name
        made._bind(call)
        return made

    def _bind(self, found: Any) -> None:
        if not callable(found) or isinstance(found, type):
            raise ValueError(f"{self.function!r} is {found!r:.60}: expected a function")
        self.call = found
        asked = inspect.signature(found).parameters.values()
        closed = [p.name for p in asked if p.kind is p.POSITIONAL_ONLY and p.default is p.empty]
        if closed:
            raise ValueError(f"{self} takes {closed[0]!r} by position only: expected {', '.join(TEXTS)} by name")
        self._all = any(p.kind is p.VAR_KEYWORD for p in asked)
        self._named = [p.name for p in asked if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        self._needed = [p.name for p in asked if p.name in self._named and p.default is p.empty]
        self._reads_no_answer = "completion" in self._needed and "completions" not in self._named

    def __str__(self) -> str:
        return f"reward {self.name!r} ({self.function})"

    async def grade(self, group: Sequence[Trajectory], ctx: Ctx) -> list[Mapping[str, float] | None]:
        """Returns one grade per leaf: {name: number}, or None."""
        leaves = [
            (t, path)
            for t in group
            for path in t.paths()
        ]
        played = [
            i
            for i, (t, path) in enumerate(leaves)
            if any(t.steps[j].action is not None for j in path)
        ]
        grades: list[Mapping[str, float] | None] = [None] * len(leaves)
        if not played:
            return grades
        columns = _collect_columns([leaves[i][0] for i in played])
        columns["completions"] = [
            answer_text([leaves[i][0].steps[j] for j in leaves[i][1]])
            for i in played
        ]
        missing = next((n for n in self._needed if n not in columns), None)
        if missing is not None:
            p = leaves[played[0]][0].request.problem
            near = nearest(missing, columns)
            for own, column in ability(ctx.task, "read_from").items():
                near = f"that column is read as {own!r} ([task] columns)" if column == missing else near
            raise ContractError(f"{self} asks for {missing!r}, which problem {p.id!r} of {p.task} has not; {near}")
        if self._reads_no_answer and not any(columns["completion"]):
            p = leaves[played[0]][0].request.problem
            raise ContractError(f"{self} asks for 'completion', the demonstration, of which problem {p.id!r} of "
                                f"{p.task} has none: the policy's answers are 'completions'")  # fmt: skip
        try:
            chosen = {k: v for k, v in columns.items() if self._all or k in self._named}
            given = await call_within(self.timeout, lambda: self.call(**chosen))
        except Overdue:
            limit = f"{self.timeout:g} s ([reward.{self.name}] timeout)"
            raise Overdue(f"{self} has not returned within {limit}") from None
        except EscapeError as error:
            raise EscapeError(f"{self}: {error}") from None
        for i, number in zip(played, self._check_numbers(given, len(played)), strict=True):
            grades[i] = None if number is None else {self.name: number}
        return grades

    def _check_numbers(self, given: Any, n: int) -> list[float | None]:
        values = given.tolist() if hasattr(given, "tolist") else given  # arrays and tensors too
        if not isinstance(values, list | tuple) or len(values) != n:
            length = f" of length {len(values)}" if isinstance(values, list | tuple) else ""
            shown = f"{type(given).__name__}{length}: {str(given)[:60]}"
            raise ContractError(f"{self} returned {shown}: expected a list of {n}, a number or None for each sample")
        return [self._check_number(v) for v in values]

    def _check_number(self, value: Any) -> float | None:
        plain = value.tolist() if hasattr(value, "tolist") else value  # a scalar of numpy or torch
        if plain is None or (isinstance(plain, float) and math.isnan(plain)):
            return None
        try:
            number = float(plain) if isinstance(plain, bool | int | float) else math.inf
        except OverflowError:
            number = math.inf
        if not math.isfinite(number):
            raise ContractError(f"{self} returned {str(value)[:60]!r} for a sample: expected a finite number or None")
        return number


def _collect_columns(trajectories: Sequence[Trajectory]) -> dict[str, list[Any]]:
    """Returns name -> the value for each trajectory's problem."""
    problems = [t.request.problem for t in trajectories]
    names = dict.fromkeys(
        n
        for p in problems
        for n in p.info
    )
    own = {"prompts": "prompt", "answer": "answer", "solution": "solution", "completion": "solution"}
    columns = {
        column: [getattr(p, attribute) for p in problems]
        for column, attribute in own.items()
    }
    return columns | {
        n: [p.info.get(n) for p in problems]
        for n in names
        if n not in TEXTS
    }
