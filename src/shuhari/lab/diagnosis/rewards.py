"""Rules about rewards: whether there is anything to learn from."""

from __future__ import annotations

from math import inf

from shuhari.lab.diagnosis.evidence import (
    Evidence,
    first,
    highest,
    lowest,
    recent,
    share_not_finite,
    spent_per_episode,
    spread,
)
from shuhari.lab.diagnosis.rule import Rule

SOLVED = 0.9  # a mean score above this leaves little to learn
LOOK = "look at the samples and what each was given: shuhari show RUN --rollouts"


def is_unsolved(e: Evidence) -> bool:
    """if the problems are not nearly all solved, and the reward does not rise"""
    if e.trains_score and recent(e, "reward/score") >= SOLVED:
        return False
    x = e.finite("reward/mean")
    if len(x) < 8:
        return True
    begin = x[: len(x) // 4]
    return not recent(e, "reward/mean") > begin.mean() + 2 * max(float(begin.std()), 1e-6)


def is_weighed(e: Evidence) -> bool:
    """if a reward is trained"""
    return any(f"reward/{name}" in e.find("reward/*") for name in e.trained)


def is_long_enough(e: Evidence) -> bool:
    """after 5 steps or 100 episodes"""
    return len(e) >= 5 or float(e.finite("rollout/episodes").sum()) >= 100


def trains_score(e: Evidence) -> bool:
    """if the task's score is trained"""
    return e.trains_score


def solves_nothing(e: Evidence) -> bool:
    """after 5 steps or 100 episodes, if the task's score is trained, and was 0 at every step, or no group had two
    different rewards"""
    if not (e.trains_score and is_long_enough(e)):
        return False
    return highest(e, "reward/score") == 0 or lowest(e, "rollout/alike") == 1.0


def has_ended_often(e: Evidence) -> bool:
    """if 20 episodes or more have ended"""
    x = e.finite("rollout/episodes")
    return bool(len(x)) and float(x.max()) >= 20


RULES = (
    Rule(
        "answers-too-long",
        "rollout/answers_too_long",
        first,
        (0.0, 0.05),
        "right answers have more tokens than the policy may write, so it can never give them",
        "a larger rollout.sampling.max_new (and the model's context)",
        at_once=True,
        covers=("starts-at-zero", "no-group-differs", "groups-alike", "truncation"),
    ),
    Rule(
        "starts-at-zero",
        "reward/score",
        first,
        (1e-9, inf),
        "the task's score is 0 for every sample of the first step, so by it no group has a difference to learn from",
        "a warm start that solves some problems (a [[stage]] of imitation before, --init RUN, a better models.policy), "
        f"easier problems, or a larger rollout.n; {LOOK}",
        when=solves_nothing,
        at_once=True,
        covers=("no-group-differs", "groups-alike", "reward-constant"),
        unpaid=True,
    ),
    Rule(
        "starts-solved",
        "reward/score",
        first,
        (-inf, 0.99),
        "the first step solves (nearly) all problems, so nothing is left to learn",
        "harder problems, or a shorter warm-up",
        when=trains_score,
        at_once=True,
        covers=("no-group-differs", "groups-alike", "reward-constant"),
    ),
    Rule(
        "no-group-differs",
        "rollout/alike",
        lowest,
        (0.0, 1.0 - 1e-9),
        "in every group so far all samples got one reward, so all advantages are 0 and nothing is learnt",
        f"a reward that tells samples apart, problems of a fitting difficulty, a larger rollout.n; {LOOK}",
        when=is_long_enough,
        at_once=True,
        covers=("groups-alike",),
        unpaid=True,
    ),
    Rule(
        "groups-alike",
        "rollout/alike",
        recent,
        (0.0, 0.95),
        "in nearly every group all samples get one reward, so their advantages are 0 and teach nothing",
        f"problems of a fitting difficulty (a curriculum), a larger rollout.n, a reward of finer steps; {LOOK}",
        least=4,
        when=is_unsolved,
        unpaid=True,
    ),
    Rule(
        "reward-constant",
        "reward/mean",
        spread,
        (1e-9, inf),
        "the reward was the same at every step, whatever the policy did",
        f"a reward that depends on the answer; {LOOK}",
        least=10,
        at_once=True,
        covers=("no-group-differs", "groups-alike", "gradient-zero"),
        unpaid=True,
    ),
    Rule(
        "return-constant",
        "rollout/return",
        spread,
        (1e-9, inf),
        "every episode had the same return, whatever the policy did",
        "an environment whose reward depends on the actions: step through it by hand",
        least=10,
        when=has_ended_often,
        at_once=True,
        covers=("gradient-zero",),
    ),
    Rule(
        "reward-not-finite",
        "reward/mean",
        share_not_finite,
        (0.0, 0.0),
        "at some steps nothing was graded: every reward was None or NaN",
        f"a reward that gives a number; what it raised stands in `shuhari show RUN`; {LOOK}",
        when=is_weighed,
        at_once=True,
        covers=("ungraded",),
    ),
    Rule(
        "return-not-finite",
        "rollout/return",
        share_not_finite,
        (0.0, 0.0),
        "the environment pays NaN or infinity, which no critic can learn",
        "an environment whose step() returns a finite number as reward",
        at_once=True,
    ),
    Rule(
        "ungraded",
        "rollout/ungraded",
        recent,
        (0.0, 0.05),
        "many samples have no grade, and teach nothing",
        f"a reward that gives a number for every answer, 0 for one that it cannot read; {LOOK}",
    ),
    Rule(
        "graders-fail",
        "spent/failed_graders",
        spent_per_episode,
        (0.0, 0.01),
        "a reward or the task's grading raised errors",
        "the errors stand in `shuhari show RUN`; a reward should return None or 0 for what it cannot read",
        at_once=True,
        covers=("ungraded",),
    ),
)
