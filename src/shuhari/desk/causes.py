"""Why a reward is 0 everywhere, tried on the answers that a run has kept: whether they are right by a grader that
compares numbers by value, whether they contain the reference answer, whether they were cut, whether the model's chat
template was left out.
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

STEPS, ANSWERS = 3, 64  # how many kept answers are looked at, at most
LONG = 200  # characters of a reference answer above which nobody gives it word for word
Answer = tuple[str, str, float, bool]  # text, reference answer, trained score (0 if there is none), cut


def try_causes(finding: Finding, path: Path) -> str:
    """A sentence about the cause that helps, with its setting, for a finding that no answer was paid; "" where the kept
    answers of the stage tell none, or the finding is of another kind. `path`: of the run."""
    if not finding.rule.unpaid:
        return ""
    try:
        run = Run(path)
        table = find_table(run.recipe, finding.stage)
        steps = [s for s in run.kept_steps() if finding.begin <= s <= finding.end][-STEPS:]
        answers = list(chain.from_iterable(_read_answers(run.rollouts(step), table) for step in steps))[:ANSWERS]
    except (StoreError, TypeError):
        return ""  # damaged, or no text: said elsewhere
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
    """How many are right by `maths`; 0 where math-verify is not installed."""
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
    """Whether a text has the reference answer as a word of it, upper or lower case."""
    truth = truth.strip()
    return bool(truth) and re.search(rf"(?<!\w){re.escape(truth)}(?!\w)", text, re.IGNORECASE) is not None


def _leaves_template_out(table: Mapping[str, Any]) -> bool:
    """Whether prompts go to a trained model as plain text because a setting says so."""
    models: Mapping[str, Any] = table.get("models") or {}
    policy: Mapping[str, Any] = models.get("policy") or {}
    chat = policy.get("chat", (table.get("task") or {}).get("chat"))
    return bool(policy.get("path")) and chat is False


def _read_answers(groups: Sequence[Mapping[str, Any]], table: Mapping[str, Any]) -> Iterator[Answer]:
    """The answers in text of some kept groups whose problems have a reference answer."""
    names = list_trained(table.get("reward") or {}) or ["score"]
    for group in groups:
        for trajectory in group["trajectories"]:
            truth = trajectory.request.problem.answer
            if isinstance(truth, str | int | float) and any(s.action is not None for s in trajectory.steps):
                score = np.nansum([sum_reward(trajectory.steps, name) for name in names])
                cut = trajectory.status is Status.TRUNCATED
                yield answer_text(trajectory.steps), str(truth), float(score), cut
