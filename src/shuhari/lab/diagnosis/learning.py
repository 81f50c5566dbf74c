"""Rules about updates: whether the models learn from the data."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, isfinite, nan
from typing import Any

from shuhari.lab.diagnosis.evidence import Evidence, growth, highest, recent, share_not_finite, upper_decile
from shuhari.lab.diagnosis.rule import Rule


def samples_nothing(e: Evidence) -> bool:
    """if all data are recorded"""
    return e.spent("env_steps") == 0 and not e.writes_text


def largest_where_rewards_differ(e: Evidence, name: str) -> float:
    """the largest value of the steps at which rewards differ within some group"""
    alike: Sequence[Any] = e.columns.get("rollout/alike") or [None] * len(e)
    x = [v for v, a in zip(e.columns[name], alike, strict=True) if isinstance(v, int | float) and a != 1.0]
    return max((v for v in x if isfinite(v)), default=nan)


RULES = (
    Rule(
        "loss-not-finite",
        "*/loss/*",
        share_not_finite,
        (0.0, 0.0),
        "a loss is NaN or infinite: the weights are lost, or will be",
        "a smaller learning rate, optimiser.clip = 1.0, rewards of a moderate size; then start anew",
        at_once=True,
    ),
    Rule(
        "gradient-not-finite",
        "*/grad_norm",
        share_not_finite,
        (0.0, 0.0),
        "a gradient is NaN or infinite: the weights are lost, or will be",
        "an optimiser that refuses it (adamw does), a smaller learning rate, a loss without log of 0 or division by 0",
        at_once=True,
        covers=("loss-not-finite",),
    ),
    Rule(
        "gradient-zero",
        "*/grad_norm",
        largest_where_rewards_differ,
        (1e-30, inf),
        "rewards differ, and yet the gradient is 0: nothing is learnt from them",
        "a loss that depends on what the model says now (a need with live = True, no .detach() on it), terms whose "
        "weight and stream are not 0",
        least=3,
        at_once=True,
    ),
    Rule(
        "learning-rate-zero",
        "*/lr",
        highest,
        (1e-30, inf),
        "the learning rate is 0, so nothing is learnt",
        "part.policy.optimiser.lr above 0 (a number, or a schedule that does not begin and end at 0)",
        least=3,
        at_once=True,
    ),
    Rule(
        "clips-too-much",
        "*/clip_fraction",
        recent,
        (0.0, 0.3),
        "most of what a step could learn is clipped away: the policy moves far within one step",
        "a smaller part.policy.optimiser.lr, fewer part.policy.epochs or minibatches",
        least=4,
    ),
    Rule(
        "moves-too-far",
        "*/approx_kl",
        recent,
        (-inf, 0.5),
        "within one step the policy moves far from the one that sampled",
        "a smaller part.policy.optimiser.lr, fewer part.policy.epochs, optimiser.clip = 1.0, a KL term to a reference",
        least=4,
        covers=("moves-in-leaps",),
    ),
    Rule(
        "moves-in-leaps",
        "*/approx_kl",
        upper_decile,
        (-inf, 0.5),
        "in more than one step in ten the policy moves far from the one that sampled, if not in the last ones",
        "a part.policy.optimiser.lr that begins smaller, tighter bounds of the ratio (low, high of the policy's term), "
        "fewer part.policy.epochs, optimiser.clip = 1.0",
        least=10,
    ),
    Rule(
        "critic-explains-nothing",
        "*/explained_variance",
        upper_decile,
        (0.02, inf),
        "the critic predicts returns no better than one number for all of them, so advantages are mostly noise",
        "a larger learning rate or more epochs of the critic, a larger critic, rewards of a moderate size "
        "(a normaliser), a smaller gamma",
        least=10,
    ),
    Rule(
        "imitation-stalls",
        "*/loss/nll",
        growth,
        (-inf, 1.1),
        "the loss on demonstrations does not fall",
        "another learning rate (a hundred times smaller for a model that is trained already), more steps, data that "
        "the model can read",
        least=20,
        when=samples_nothing,
    ),
)
