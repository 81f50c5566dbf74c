"""Rules about rollouts: whether episodes are sampled as they should be."""

from __future__ import annotations

from math import inf

from shuhari.config.precision import is_half, lacks_correction
from shuhari.lab.diagnosis.evidence import Evidence, growth, recent, spent_in_stage, spent_per_episode
from shuhari.lab.diagnosis.rewards import LOOK, is_unsolved
from shuhari.lab.diagnosis.rule import Rule

ROUNDED = 0.15  # nats a token; measured with 16 bits: 0.05 to 0.07, on models of 135M parameters
ENDLESS = 10_000  # steps in an environment without one episode that ended


def writes_text(e: Evidence) -> bool:
    """if text is sampled"""
    return e.writes_text


def is_exact(e: Evidence) -> bool:
    """if nothing samples or scores in 16 bits"""
    return not is_half(e.table)


def is_uncorrected(e: Evidence) -> bool:
    """if 16 bits sample or score, and the loss has no correction"""
    return lacks_correction(e.table)


def is_rounded(e: Evidence) -> bool:
    """if 16 bits sample or score, and the loss has the correction"""
    return is_half(e.table) and not lacks_correction(e.table)


def nothing_ended(e: Evidence) -> bool:
    """if no episode has ended"""
    x = e.finite("rollout/episodes")
    return bool(len(x)) and float(x.max()) == 0


RULES = (
    Rule(
        "truncation",
        "rollout/truncated",
        recent,
        (0.0, 0.25),
        "many answers reach the length limit and are cut, mostly before what is graded",
        "a larger rollout.sampling.max_new (and the model's context), a warm-up that teaches to end, or a penalty on "
        "length (reward.length)",
        least=4,
        when=writes_text,
    ),
    Rule(
        "length-drift",
        "rollout/length",
        growth,
        (1 / 3, 3.0),
        "answers became much longer or shorter than they were",
        "a loss without a bias by length (reduce = \"constant:<max_new>\" of the policy's term), a penalty on length "
        f"(reward.length), a KL term to a reference; {LOOK}",
        least=8,
        when=writes_text,
    ),
    Rule(
        "entropy-collapsed",
        "rollout/entropy",
        growth,
        (0.05, inf),
        "the policy samples nearly always the same, before it solves its problems: it no longer explores",
        "a smaller part.policy.optimiser.lr, an entropy bonus (part.policy.terms.entropy), a wider upper clip bound "
        "(part.policy.terms.loss.high = 0.28), a KL term to a reference",
        least=8,
        when=is_unsolved,
    ),
    Rule(
        "entropy-rises",
        "rollout/entropy",
        growth,
        (-inf, 2.0),
        "the policy becomes ever more random",
        "a smaller entropy bonus, a smaller learning rate, or a KL term to a reference",
        least=8,
        when=writes_text,
    ),
    Rule(
        "engine-differs",
        "engine/gap",
        recent,
        (0.0, 0.02),
        "the log-probabilities of sampling and of training differ for the same weights: ratios are wrong",
        "one precision for both (models.policy.dtype, engine.dtype), or a correction: part.policy.terms.loss with "
        "behaviour = \"old\", truncate = 2",
        when=is_exact,
        at_once=True,
    ),
    Rule(
        "engine-uncorrected",
        "engine/gap",
        recent,
        (0.0, 0.02),
        "16 bits round the log-probabilities of sampling, and the loss's ratios take that for a step of the policy",
        "the correction that a loss of 16 bits has by default: part.policy.terms.loss with behaviour = \"old\", "
        "truncate = 2; or engine.dtype and models.policy.dtype = \"float32\"",
        when=is_uncorrected,
        at_once=True,
    ),
    Rule(
        "engine-rounds",
        "engine/gap",
        recent,
        (0.0, ROUNDED),
        "the log-probabilities of sampling and of training differ by more than 16 bits usually make them",
        "engine.dtype = \"float32\"; if it is no smaller then, the two do not have the same weights",
        when=is_rounded,
        at_once=True,
    ),
    Rule(
        "stale",
        "rollout/staleness",
        recent,
        (0.0, 4.0),
        "what is learnt from was sampled by weights of several versions ago",
        "a smaller engine.staleness, or the decoupled loss: part.policy.terms.loss with behaviour = \"old\", "
        "truncate = 5, beyond = \"drop\"",
        least=4,
    ),
    Rule(
        "rollouts-fail",
        "spent/failed_rollouts",
        spent_per_episode,
        (0.0, 0.01),
        "rollouts raised errors, and their groups are left out",
        "the errors stand in `shuhari show RUN`",
        at_once=True,
    ),
    Rule(
        "filters-reject",
        "rollout/rounds",
        recent,
        (0.0, 5.0),
        "a step collects many times over, as a filter rejects most of what is sampled",
        "problems of a fitting difficulty (a curriculum), a larger rollout.n, or no filter",
        least=4,
    ),
    Rule(
        "never-ends",
        "spent/env_steps",
        spent_in_stage,
        (0.0, ENDLESS),
        "no episode has ended, so that there is no return to report and none to compare",
        "a time limit: task.kwargs = {max_episode_steps = 500}, or an environment that terminates",
        when=nothing_ended,
        at_once=True,
    ),
)
