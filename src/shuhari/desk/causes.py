"""Tests why a reward is 0 everywhere, on the answers stored in a run: are they right by a grader that compares numbers
by value, do they contain the reference answer, were they cut, was the model's chat template left out?
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from shuhari.data import Status, sum_reward
from shuhari.lab.diagnosis.evidence import list_trained
from shuhari.lab.diagnosis.judge import Finding, find_table
from shuhari.rewards.maths import JudgeError, Maths
from shuhari.store import Run, StoreError
from shuhari.tasks.source import answer_text

STEPS, ANSWERS = 3, 64  # the most stored steps and answers that are tested
LONG = 200  # characters; no answer repeats a longer reference answer word for word
Answer = tuple[str, str, float, bool]  # text, reference answer, trained score (0 if there is none), cut


def try_causes(finding: Finding, path: Path) -> str:
    """Return a sentence about the likely cause, with the setting that helps, for a finding that no answer earned a
    reward; "" if the stored answers of the stage show none, or for other findings. `path`: of the run."""
    if not finding.rule.unpaid:
        return ""
    try:
        run = Run(path)
        table = find_table(run.recipe, finding.stage)
        steps = [s for s in run.kept_steps() if finding.begin <= s <= finding.end][-STEPS:]
        answers = list(chain.from_iterable(_read_answers(run.rollouts(step), table) for step in steps))[:ANSWERS]
    except (StoreError, TypeError):
        return ""  # damaged, or no text: reported elsewhere
    found = list(_judge(answers, table))
    return f"Of {len(answers)} kept answers {'; '.join(found)}." if found else ""


def _judge(answers: Sequence[Answer], table: Mapping[str, Any]) -> Iterator[str]:
    paid = sum(score > 0 for *_, score, _ in answers)
    right = 0 if "maths" in list_trained(table.get("reward") or {}) else _count_right(answers)
    if right > paid:
        yield (f"{right} {_are(right)} right by `maths`, which compares numbers by value: "
               "--set reward.maths={} --set reward.weights={maths=1}")  # fmt: skip
    else:
        found = sum(len(truth) <= LONG and _contains(text, truth) for text, truth, *_ in answers)
        if found > paid:
            yield (f"{found} contain{'s' * (found == 1)} the reference answer, and the grader does not count it: "
                   "--set task.format=... or a reward of your own (docs/judges.md)")  # fmt: skip
    cut = sum(c for *_, c in answers)
    if 2 * cut > len(answers):
        new = ((table.get("rollout") or {}).get("sampling") or {}).get("max_new")
        bigger = f"{4 * new}" if isinstance(new, int) else "256"
        yield f"{cut} {_are(cut)} cut at the limit of tokens: --set rollout.sampling.max_new={bigger}"
    if _leaves_template_out(table):
        yield "none was asked for by the model's chat template, which this recipe turns off: --set task.chat=true"


def _are(n: int) -> str:
    return "is" if n == 1 else "are"


def _count_right(answers: Sequence[Answer]) -> int:
    """Count the answers that are right by `maths`; 0 if math-verify is not installed."""
    judge, right = Maths(judges=1), 0
    try:
        for text, truth, *_ in answers:
            try:
                right += judge.judge(text, truth) == 1.0
            except JudgeError:
                continue
            except ModuleNotFoundError:
                return 0
    finally:
        judge.close()
    return right


def _contains(text: str, truth: str) -> bool:
    """Whether a text contains the reference answer as a word, in upper or lower case."""
    truth = truth.strip()
    return bool(truth) and re.search(rf"(?<!\w){re.escape(truth)}(?!\w)", text, re.IGNORECASE) is not None


def _leaves_template_out(table: Mapping[str, Any]) -> bool:
    """Whether a setting sends prompts to a trained model as plain text."""
    models: Mapping[str, Any] = table.get("models") or {}
    policy: Mapping[str, Any] = models.get("policy") or {}
    chat = policy.get("chat", (table.get("task") or {}).get("chat"))
    return bool(policy.get("path")) and chat is False


def _read_answers(groups: Sequence[Mapping[str, Any]], table: Mapping[str, Any]) -> Iterator[Answer]:
    """Yield the text answers of groups whose problems have a reference answer."""
    names = list_trained(table.get("reward") or {}) or ["score"]
    for group in groups:
        for trajectory in group["trajectories"]:
            truth = trajectory.request.problem.answer
            if isinstance(truth, str | int | float) and any(s.action is not None for s in trajectory.steps):
                score = np.nansum([sum_reward(trajectory.steps, name) for name in names])
                cut = trajectory.status is Status.TRUNCATED
                yield answer_text(trajectory.steps), str(truth), float(score), cut
