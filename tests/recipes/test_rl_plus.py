"""RL-PLUS as its recipe says it: the gradient at each token of a group of own answers and a demonstration."""

from __future__ import annotations

from math import log

from built import OLD, answers, built, credited, learnt, padded, same, table

from shuhari.rollouts.demonstrated import Demonstrated
from shuhari.rollouts.single import Single

SAID = ["a", "bcd", "ef", "xy"]
LOGP = [[-0.5], [-1.0, -2.0, -3.0], [-1.0, -1.0], [log(0.36), log(0.19)]]
RATIO = [[3.0], [0.25, 1.0, 2.0], [1.0, 5.0]]  # of own answers: beyond any clip
BEFORE = [0.2, 0.3]  # of the demonstration's tokens, the old policy's probabilities


def group(score):
    """The stage, the group whose last answer is the demonstration, its models and what the gradient is by."""
    stage = built("data/rl_plus")
    log_prob, entropy = padded(*LOGP).requires_grad_(), padded(*([1.0] * len(s) for s in SAID)).requires_grad_()
    own = [[x - log(r) for x, r in zip(*row, strict=True)] for row in zip(LOGP[:3], RATIO, strict=True)]
    batch = answers(stage, SAID, score, demo=[0.0, 0.0, 0.0, 1.0]).put({OLD: padded(*own, [log(p) for p in BEFORE])})
    return stage, batch, (log_prob, entropy), {"policy": table(log_prob=log_prob, entropy=entropy)}


def test_own_answers_and_a_demonstration():
    """Own rewards 1, 0, 0: less their mean, 2/3, -1/3, -1/3, and the demonstration's is 1 - 1/3. Own tokens have the
    gradient -rho A; the demonstration's -w A (1 - pi)^0.5 with w = 2 pi / (1.5 pi_old + 0.5): 0.72 / 0.8 and a factor
    of 0.8 at pi = 0.36, 0.38 / 0.95 and 0.9 at pi = 0.19. All over the longest answer, 5, and the four answers."""
    stage, batch, leaves, models = group([1.0, 0.0, 0.0, 1.0])
    found, entropy = learnt(stage, batch, *leaves, **models)
    own = [[-r * a for r in row] for row, a in zip(RATIO, (2 / 3, -1 / 3, -1 / 3), strict=True)]
    demo = [-0.72 / 0.8 * 2 / 3 * 0.8, -0.38 / 0.95 * 2 / 3 * 0.9]
    same(found, [[g / (5 * 4) for g in row] for row in [*own, demo]])
    same(entropy, [[-0.001 / 8] * len(s) for s in SAID])  # a bonus of 0.001, the mean over the 8 tokens


def test_a_solved_group_learns_nothing_of_its_demonstration():
    stage, batch, _, models = group([1.0, 1.0, 1.0, 1.0])
    assert not credited(stage, batch, **models)[0]["advantage"].any()


def test_there_is_nothing_else():
    """No clip, no KL term, and no demonstrations in what is measured."""
    stage = built("data/rl_plus")
    part = stage.learners["main"].parts["policy"]
    assert list(part.terms) == ["mixed_policy", "entropy"] and list(stage.collect) == ["advantage"]
    assert set(stage.models) == {"policy"} and stage.sampling.max_new == 5 and stage.sampling.temperature == 1
    assert isinstance(stage.rollout, Demonstrated) and isinstance(stage.evaluation_rollout, Single)
