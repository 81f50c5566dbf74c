"""A trained reward model as a grader, of whole answers or of their steps: a directory that transformers reads as a
classifier, or a role of the run with a value head.

Left out: several labels; adapters of a directory; steps of answers of several turns, except as one number.

Axes: `S` steps of an answer, `K` its tokens.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np

from shuhari.bounds import Length, check
from shuhari.data import ContractError, Step, Trajectory, find_last, is_tokens
from shuhari.kernel.registry import register
from shuhari.models.devices import find_device
from shuhari.models.text import classifier
from shuhari.models.text.folder import Reads
from shuhari.ports import Ctx
from shuhari.rewards.steps import REDUCTIONS, Form, credit_steps, find_steps
from shuhari.tasks.source import CALLS, answer_text, last_decision

Grade = Mapping[str, Any] | None


class TooLong(ValueError):
    """A text with more tokens than the model reads."""


class NoScore(ValueError):
    """A score that is not a finite number."""


class NoPlace(ValueError):
    """Steps that have no place among the tokens of an answer."""


@register("reward", "reward_model")
@dataclass
class RewardModel:
    """A trained reward model as a grader, from exactly one of `path` (a directory) and `role` (a role of the run).

    A directory is a Hugging Face classifier with one output, for `level = "step"` a classifier of tokens with one, or
    with two labels whose second is the good one. Its own tokenizer encodes the text: a conversation by its chat
    template, a text prompt with the completion and the end token after it. A role has a value head, `after = "last"`
    for answers, `after = true` for steps; it may be frozen or trained, and is scored by the engine.

    A step is what lies between separators, and is scored at the token at which it ends (`rewards.steps`). Its reward
    falls on the token of the policy's answer at which the same step ends, unless the form gives one number.

    Samples without a decision are ungraded; so are texts longer than the model reads, scores that are not finite, and
    steps that do not lie in one turn, which are counted as `failed_graders` and shown. Raises ValueError before a run
    begins if the directory is no such model, or settings do not fit each other; ContractError for a role that has other
    values.
    """

    path: str = field(default="")
    """Directory of the model (safetensors only), as `shuhari export RUN DIR --reward-model` writes, or a hub id; or
    else set `role`."""
    rows: Length = 8
    """Number of texts in one forward pass; more are faster and take more memory."""
    device: str = "cpu"
    """Device of the reward model: `cpu`, `cuda`, `cuda:<number>` or `mps`."""
    name: str = "reward_model"
    """Name of the grade, so that its column is `reward/<name>`."""
    role: str = ""
    """Role with a value head that scores, a name under `[models]`, in the place of a directory."""
    level: Literal["answer", "step"] = "answer"
    """What one score is of: the whole `answer` (an outcome reward model, or one of pairs), or each `step` of it (a
    process reward model)."""
    separator: str = "\n"
    """Text between the steps of an answer, as the model was trained with."""
    scale: Literal["auto", "score", "probability"] = "auto"
    """Number that is read of a score: the `score` itself, or its sigmoid, the `probability` of a good label; `auto` is
    the score of an answer, and the probability of a step."""
    form: Form = "raw"
    """Reward that is made of the numbers r of steps: `raw`, `clip`, `delta`, `clip_delta` and `first_wrong` give each
    step one; `min`, `last` and `product` give the answer one. For `level = "answer"` only `raw`."""
    threshold: float = 0.5
    """Number r from which on a step counts as right: `clip` then gives it 0 (the paper's eta), `first_wrong` 1."""

    @property
    def stamps(self) -> tuple[str, ...]:
        return (f"reward/{self.name}",)

    @property
    def roles(self) -> tuple[str, ...]:
        return (self.role,) if self.role else ()

    @property
    def reads_as(self) -> Reads:
        """The kind of classifier that a directory is."""
        return "tokens" if self.level == "step" else "text"

    def __post_init__(self) -> None:
        check(self)
        if not self.path and not self.role:
            raise ValueError("reward_model: a path is missing: expected a directory, as export --reward-model writes, "
                             "or a role with a value head")  # fmt: skip
        if self.path and self.role:
            raise ValueError(f"reward_model: path is {self.path!r} and role is {self.role!r}: expected one of them")
        if self.level == "answer" and self.form != "raw":
            expected = "expected level = 'step', or form = 'raw'"
            raise ValueError(f"reward_model: form is {self.form!r}, which is of steps: {expected}")
        if self.form == "product" and self.scale == "score":
            raise ValueError("reward_model: form is 'product' of scores: expected scale = 'probability'")
        if not self.separator:
            raise ValueError("reward_model: separator is '': expected the text between two steps, such as a line break")
        if self.path:
            classifier.find(self.path, self.reads_as)

    @cached_property
    def model(self) -> classifier.Classifier:
        """The model of the directory, loaded with the first text."""
        found = classifier.load(self.path, self.reads_as)
        found.hf.to(find_device(self.device))
        return found

    async def grade(self, group: Sequence[Trajectory], ctx: Ctx) -> list[Grade]:
        """Returns one grade per leaf."""
        leaves = [
            (t, path)
            for t in group
            for path in t.paths()
        ]
        steps = [
            [t.steps[i] for i in path]
            for t, path in leaves
        ]
        asked = {
            i: (t.request.problem.prompt, answer_text(steps[i]))
            for i, (t, _) in enumerate(leaves)
            if any(s.action is not None for s in steps[i])
        }
        found = await self._ask_role(list(asked.values()), ctx) if self.role else self._ask_model(list(asked.values()))
        grades: list[Grade] = [None] * len(leaves)
        for i, scores in zip(asked, found, strict=True):
            try:
                t, path = leaves[i]
                grades[i] = {self.name: self._reward(scores, t, path, asked[i][1], ctx)}
            except ContractError:
                raise
            except ValueError as error:
                ctx.record_failure("failed_graders", error, f"reward {self.name!r}")
        return grades

    # ---------------------------------------------------------------- scores: [1] of an answer, [S] of steps

    def _ask_model(self, asked: Sequence[tuple[Any, str]]) -> list[list[float] | ValueError]:
        """Returns the scores of each (prompt, answer) by the directory's model, or why there are none."""
        out: list[list[float] | ValueError] = []
        texts: dict[int, list[int]] = {}
        places: dict[int, list[int]] = {}
        for i, (prompt, said) in enumerate(asked):
            ids = self._encode(prompt, said, places, i)
            if len(ids) <= self.model.limit:
                texts[i] = ids
            out.append(TooLong(f"{len(ids)} tokens: the model reads {self.model.limit}"))
        given = list(texts.values())
        if self.level == "answer":
            scores = [[x] for x in self.model.score(given, self.rows)]
        else:
            tokens = self.model.score_tokens(given, self.rows)
            scores = [
                [x[k] for k in places[i]]
                for i, x in zip(texts, tokens, strict=True)
            ]
        for i, x in zip(texts, scores, strict=True):
            out[i] = x
        return out

    def _encode(self, prompt: Any, said: str, places: dict[int, list[int]], i: int) -> list[int]:
        """Returns the token ids of a text; of steps also notes where they end, as `places[i]`."""
        if self.level == "answer":
            return self.model.encode(prompt, said)
        if not self.model.closed and not said.endswith(self.separator):
            said += self.separator  # as TRL trains them: the last step has one too
        start, action = self.model.encode_apart(prompt, said)
        ids = np.array(action, np.int32)
        places[i] = [len(start) + k for k in find_steps(ids, self.model.text.decode, self.separator)]
        return [*start, *action]

    async def _ask_role(self, asked: Sequence[tuple[Any, str]], ctx: Ctx) -> list[list[float] | ValueError]:
        """Returns the scores of each (prompt, answer) by the role, or why there are none."""
        calls = (self._ask_once(prompt, said, ctx) for prompt, said in asked)
        out: list[list[float] | ValueError] = []
        for x in await asyncio.gather(*calls, return_exceptions=True):
            if isinstance(x, BaseException) and (isinstance(x, ContractError) or not isinstance(x, ValueError)):
                raise x
            out.append(x)
        return out

    async def _ask_once(self, prompt: Any, said: str, ctx: Ctx) -> list[float]:
        context, action = ctx.encode(prompt, self.role), ctx.encode_answer(prompt, said, self.role)
        value = (await ctx.engine.score(self.role, context, action, ["value"]))["value"]
        if value.ndim != 1:
            raise ContractError(f"reward {self.name!r}: role {self.role!r} has {value.shape[1]} values: expected one")
        if self.level == "answer":
            return [float(value[-1])]
        if len(value) > 1 and value[-1] != 0 and not value[:-1].any():
            expected = "expected after = true, which values each token"
            raise ContractError(f"reward {self.name!r}: role {self.role!r} values the last token alone: {expected}")
        return [float(value[k]) for k in find_steps(action, self._spell(self.role, ctx), self.separator)]  # type: ignore[arg-type]

    @staticmethod
    def _spell(role: str, ctx: Ctx) -> Any:
        return lambda ids: ctx.text(ids, role)

    # ---------------------------------------------------------------- rewards

    def _reward(
        self, scores: list[float] | ValueError, t: Trajectory, path: Sequence[int], text: str, ctx: Ctx
    ) -> float | np.ndarray[Any, Any]:
        """Returns the reward of an answer: one number, or [K] with those of steps where they end. Raises ValueError if
        it has none."""
        if isinstance(scores, ValueError):
            raise scores
        if wrong := [x for x in scores if not math.isfinite(x)]:
            raise NoScore(f"a text of {len(text)} characters scores {wrong[0]}: expected a finite number")
        share = self.scale == "probability" or (self.scale == "auto" and self.level == "step")
        r = [0.5 + 0.5 * math.tanh(x / 2) for x in scores] if share else scores  # the sigmoid, without overflow
        if self.level == "answer":
            return r[0]
        if self.form in REDUCTIONS:
            return REDUCTIONS[self.form](r)
        step = self._find_turn(t, path)
        places = find_steps(step.action, self._spell(step.role, ctx), self.separator)  # type: ignore[arg-type]
        if len(places) != len(r):
            found = f"{len(r)} steps by the reward model's tokens, and {len(places)} by the policy's"
            raise NoPlace(f"{found}: expected as many of both")
        out = np.zeros(len(step.mask), np.float32)
        np.add.at(out, places, credit_steps(r, self.form, self.threshold))
        return out

    def _find_turn(self, t: Trajectory, path: Sequence[int]) -> Step:
        """Returns the turn that is the whole answer, and gets the grade."""
        steps = [t.steps[i] for i in path]
        role = last_decision(steps).role
        said = [i for i in path if t.steps[i].action is not None and t.steps[i].role == role]
        said = [i for i in said if not t.steps[i].info.get(CALLS)]
        if said != [find_last(t.steps, path)] or not is_tokens(t.steps[said[0]].action):
            names = ", ".join(REDUCTIONS)
            raise NoPlace(f"an answer of {len(said)} turns: expected one for form {self.form!r}; for several: {names}")
        return t.steps[said[0]]
