"""Problems that no answer solves, asked for again in other words: to be taken apart, then to mend an own wrong answer.

Source: "Cog-Rethinker: Hierarchical Metacognitive Reinforcement Learning for LLM Reasoning" (Sun et al. 2025, arXiv
2510.15979). What is right in the later rounds is also put behind the problem's own prompt, to be imitated there, as
tests have that prompt. Left out: problems that were solved before, found by their words, as examples in the prompt.
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
    """Prompts a problem that no sample solves in other words: first to take it apart, then to mend a wrong answer
    (Cog-Rethinker).

    A group whose n samples are all wrong is sampled anew by the template `decompose`, and if these are all wrong too by
    `refine`; the last samples drawn are the group. Samples that nothing graded do not count, and a group without any
    graded is not prompted again. The wrong answer in a template is drawn at random from the samples before, without the
    names of special tokens, which would be read as these. Of later rounds each right answer comes once more, behind the
    problem's own prompt, with unknown log-probability. Info of each sample, so columns: `attached`, 1 for these and
    else 0; `asked`, the round, from 0. With neither template it is `of` alone, bit for bit. Charged: `rounds`.

    ValueError for templates without {problem}; ContractError for a prompt that is not of the template `direct`, for
    answers that are more than one call, or not of text, and for a problem that begins with hints.
    """

    direct: str = PROBLEM
    """Template with {problem} that the task's own prompts were made with, so that the problem can be found in them."""
    decompose: str = ""
    """Template of the second prompt, with {problem} once; "" leaves this round out."""
    refine: str = ""
    """Template of the third prompt, with {problem} once and, if wanted, a wrong {answer}; "" leaves this round out."""
    measure: str = "score"
    """Name of the reward by which an answer is wrong: 0 or less."""
    of: Rollout = field(default_factory=Single)
    """Rollout that draws the samples of each round."""

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
            raise ValueError(f"cascade: expected {ANSWER} in refine alone: nothing was answered before")

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
        """What one of the wrong samples said, without an end token; each as likely."""
        wrong = [t for t in group if sum_reward(t.steps, self.measure) <= 0]
        at = int(torch.randint(len(wrong), (), generator=ctx.rng("cascade", request.key, asked)))
        said = find_call(wrong[at])
        return strip_names(str(said.info.get("text", "")), list_special(ctx.models[said.role]))

    def _attach(self, t: Trajectory, ctx: Ctx) -> Trajectory:
        """A right answer behind the problem's own prompt, with its grade."""
        said = find_call(t)
        context = ctx.encode(t.request.problem.prompt, said.role)
        step = Step.of(context, said.action, version=-1, role=said.role, info=said.info, reward=said.reward)
        return copy_with(t, steps=(step,), info={**t.info, "attached": 1.0})


def find_problem(request: Request, direct: str) -> str:
    """What a prompt has in the place of {problem}. ContractError where it was not made by the template `direct`, and
    where the request begins with hints."""
    before, after = direct.split(PROBLEM)
    prompt, whose = request.problem.prompt, f"cascade: problem {request.problem.id!r} of {request.problem.task}"
    if request.prefix:
        raise ContractError(f"{whose} begins with hints: expected a prompt alone")
    whole = isinstance(prompt, str) and len(prompt) >= len(before + after)
    if not (isinstance(prompt, str) and whole and prompt.startswith(before) and prompt.endswith(after)):
        raise ContractError(f"{whose}: its prompt is {prompt!r:.80}: expected the template {direct!r} (rollout.direct)")
    return prompt[len(before) : len(prompt) - len(after)]


def fill(template: str, problem: str, answer: str) -> str:
    """A template with a problem and an answer in their places; braces in these stay what they are."""
    said = {PROBLEM: problem, ANSWER: answer}
    return re.sub(r"\{problem\}|\{answer\}", lambda match: said[match[0]], template)


def list_special(model: Any) -> list[str]:
    """The names of a model's special tokens: a turn's end, say, that a text can name. [] where it has no tokenizer."""
    try:
        hf = model.text.hf
    except AttributeError:
        return []
    added = (str(token) for token in hf.added_tokens_decoder.values() if token.special)
    return sorted({*hf.all_special_tokens, *added} - {""})


def strip_names(text: str, names: Sequence[str]) -> str:
    """A text without these names, nor those that come of others being cut out of them."""
    before = None
    while text != before:
        before = text
        for name in names:
            text = text.replace(name, "")
    return text


def find_call(t: Trajectory) -> Step:
    """The one step of an answer. ContractError where there are more, or it is no text: unlike `branch.find_answer` it
    takes no forced beginning, which would be missing where the answer is put behind another prompt."""
    if len(t.steps) != 1 or not is_tokens(t.steps[0].action):
        raise ContractError(f"cascade: an answer of {len(t.steps)} steps, or not of text: expected one, of token ids")
    return t.steps[0]


def _tell(t: Trajectory, request: Request, asked: int) -> Trajectory:
    return copy_with(t, request=request, info={**t.info, "asked": float(asked), "attached": 0.0})
