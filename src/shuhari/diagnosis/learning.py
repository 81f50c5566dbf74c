"""Rules about updates: whether the models learn what the data say."""

from __future__ import annotations

from math import inf

from shuhari.diagnosis.evidence import Evidence, growth, highest, recent, share_not_finite, usually_at_best
from shuhari.diagnosis.rule import Rule


def samples_nothing(e: Evidence) -> bool:
    """where all is learnt from recorded data"""
    return e.spent("env_steps") == 0 and not e.writes_text


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
    ),
    Rule(
        "critic-explains-nothing",
        "*/explained_variance",
        usually_at_best,
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
