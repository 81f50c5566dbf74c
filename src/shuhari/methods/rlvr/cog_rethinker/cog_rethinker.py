"""Prompts unsolved problems again with other templates: to decompose the problem, then to correct a wrong answer.

Source: "Cog-Rethinker: Hierarchical Metacognitive Reinforcement Learning for LLM Reasoning" (Sun et al. 2025, arXiv
2510.15979). Right answers of later rounds are also put after the problem's own prompt, to be imitated there, since
tests use that prompt. Left out: similar solved problems as examples in the prompt.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from shuhari.bounds import check
from shuhari.data import ContractError, Request, Step, Trajectory, copy_with, is_tokens, list_scores, sum_reward
from shuhari.kernel.registry import register
from shuhari.ports import Ctx, Rollout
from shuhari.ports.declares import together
from shuhari.rollouts.single import Single

PROBLEM, ANSWER = "{problem}", "{answer}"


@register("rollout", "cog_rethinker")
@dataclass
class Cascade:
    """Prompts a problem that no sample solves with other templates: first to decompose it, then to correct a wrong
    answer (Cog-Rethinker).

    A group whose n samples are all wrong is sampled again with the template `decompose`, and if these are all wrong too
    with `refine`; the last samples form the group. Ungraded samples do not count, and a group without graded ones is
    not prompted again. The wrong answer in a template is drawn at random from the previous samples, without the names
    of special tokens, which would be read as such. Each right answer of a later round is added once more, after the
    problem's own prompt, with unknown log-probability. Adds to the info of each sample, and so as columns: `attached`,
    1 for these and else 0; `asked`, the round, from 0. With neither template it equals `of`, bit for bit. Charges
    `rounds`.

    Raises ValueError for templates without {problem}; ContractError for a prompt that does not match the template
    `direct`, for answers that are more than one call, or not of text, and for a problem that begins with hints.
    """

    direct: str = PROBLEM
    """Template of the task's own prompts, with {problem}, from which the problem is extracted."""
    decompose: str = ""
    """Template of the second prompt, with {problem} once; "" leaves this round out."""
    refine: str = ""
    """Template of the third prompt, with {problem} once and, if wanted, a wrong {answer}; "" leaves this round out."""
    measure: str = "score"
    """Name of the reward that is 0 or less for a wrong answer."""
    of: Rollout = field(default_factory=Single)
    """Rollout that samples each round."""

    @property
    def stamps(self) -> tuple[str, ...] | None:
        return together(("attached", "asked"), self.of)

    @property
    def reads(self) -> tuple[str, ...]:
        return (f"reward/{self.measure}",)

    def __post_init__(self) -> None:
        check(self)
        for name in ("direct", "decompose", "refine"):
            template = getattr(self, name)
            if (template or name == "direct") and template.count(PROBLEM) != 1:
                raise ValueError(f"cascade: {name} is {template!r}: expected {PROBLEM} in it, once")
        if not self.decompose and not self.refine:
            log = logging.getLogger("shuhari")
            log.warning("cascade: decompose and refine are empty, so nothing is asked for again: give one, such "
                        "as decompose = 'Solve this in parts: {problem}'")  # fmt: skip
        if ANSWER in self.direct + self.decompose:
            raise ValueError(f"cascade: direct or decompose contains {ANSWER}: expected it only in refine, which "
                             "corrects an answer")  # fmt: skip

    @property
    def accepts(self) -> Mapping[str, Any]:
        return self.of.accepts

    async def group(self, request: Request, ctx: Ctx) -> list[Trajectory]:
        ctx.charge("rounds", 1)
        group = [_tell(t, request, 0) for t in await self.of.group(request, ctx)]
        for asked, template in enumerate((t for t in (self.decompose, self.refine) if t), start=1):
            group = await ctx.grade(group, until=self.measure)
            scores = list_scores(group, self.measure)
            if not scores or max(scores) > 0:
                break
            ctx.charge("rounds", 1)
            problem = request.problem
            prompt = fill(template, find_problem(request, self.direct), self._pick_wrong(group, asked, request, ctx))
            again = replace(request, problem=replace(problem, prompt=prompt), key=f"{request.key}/{asked}")
            group = [_tell(t, request, asked) for t in await self.of.group(again, ctx)]
        if not group or not group[0].info["asked"]:
            return group
        group = await ctx.grade(group, until=self.measure)
        return [*group, *(self._attach(t, ctx) for t in group if sum_reward(t.steps, self.measure) > 0)]

    def _pick_wrong(self, group: list[Trajectory], asked: int, request: Request, ctx: Ctx) -> str:
        """Returns the text of a uniformly drawn wrong sample, without an end token."""
        wrong = [t for t in group if sum_reward(t.steps, self.measure) <= 0]
        at = int(torch.randint(len(wrong), (), generator=ctx.rng("cascade", request.key, asked)))
        said = find_call(wrong[at])
        return strip_names(str(said.info.get("text", "")), list_special(ctx.models[said.role]))

    def _attach(self, t: Trajectory, ctx: Ctx) -> Trajectory:
        """Returns a right answer after the problem's own prompt, with its grade."""
        said = find_call(t)
        context = ctx.encode(t.request.problem.prompt, said.role)
        step = Step.of(context, said.action, version=-1, role=said.role, info=said.info, reward=said.reward)
        return copy_with(t, steps=(step,), info={**t.info, "attached": 1.0})


def find_problem(request: Request, direct: str) -> str:
    """Returns the text of {problem}, extracted from the prompt with the template `direct`. Raises ContractError if the
    prompt does not match it, or the request begins with hints."""
    before, after = direct.split(PROBLEM)
    prompt, whose = request.problem.prompt, f"cascade: problem {request.problem.id!r} of {request.problem.task}"
    if request.prefix:
        raise ContractError(f"{whose} begins with hints: expected a prompt alone")
    whole = isinstance(prompt, str) and len(prompt) >= len(before + after)
    if not (isinstance(prompt, str) and whole and prompt.startswith(before) and prompt.endswith(after)):
        raise ContractError(f"{whose}: its prompt is {prompt!r:.80}: expected the template {direct!r} (rollout.direct)")
    return prompt[len(before) : len(prompt) - len(after)]


def fill(template: str, problem: str, answer: str) -> str:
    """Fills a problem and an answer into a template; braces in them are kept."""
    said = {PROBLEM: problem, ANSWER: answer}
    return re.sub(r"\{problem\}|\{answer\}", lambda match: said[match[0]], template)


def list_special(model: Any) -> list[str]:
    """Returns the names of a model's special tokens, such as an end of turn; empty without a tokenizer."""
    try:
        hf = model.text.hf
    except AttributeError:
        return []
    added = (str(token) for token in hf.added_tokens_decoder.values() if token.special)
    return sorted({*hf.all_special_tokens, *added} - {""})


def strip_names(text: str, names: Sequence[str]) -> str:
    """Removes these names from a text, including those that appear by removing others."""
    before = None
    while text != before:
        before = text
        for name in names:
            text = text.replace(name, "")
    return text


def find_call(t: Trajectory) -> Step:
    """Returns the only step of an answer. Raises ContractError for several, or no text. Unlike `branch.find_answer` it
    accepts no forced prefix, which would be missing after another prompt."""
    if len(t.steps) != 1 or not is_tokens(t.steps[0].action):
        raise ContractError(f"cascade: an answer of {len(t.steps)} steps, or not of text: expected one, of token ids")
    return t.steps[0]


def _tell(t: Trajectory, request: Request, asked: int) -> Trajectory:
    return copy_with(t, request=request, info={**t.info, "asked": float(asked), "attached": 0.0})
