"""RL-PLUS by hand, and without demonstrations against the surrogate without a clip.

RL-PLUS as its recipe says it: the gradient at each token of a group of own answers and a demonstration.
"""

from __future__ import annotations

from math import inf, log, sqrt

import pytest
import torch

from built import OLD, answers, credited, demonstrated, learnt, padded, same, table
from shuhari.batch import Batch
from shuhari.methods.data.rl_plus.mixed_policy import MixedPolicy
from shuhari.needs import Need
from shuhari.objectives.clip import Clip
from shuhari.rollouts.demonstrated import Demonstrated
from shuhari.rollouts.single import Single
from shuhari.testing import context

CTX = context()
LIVE, BEHAVIOUR = Need(("policy",), "log_prob", live=True), Need(("policy",), "log_prob")


def rows(new, old, advantage, demo):
    mask = torch.ones(new.shape, dtype=torch.bool)
    columns = {"mask": mask, "logp": old, "advantage": advantage, "demo": torch.tensor(demo)}
    return Batch({**columns, LIVE.key: new, BEHAVIOUR.key: old})


def one(pi, old, a=1.0, gamma=0.5, demo=1.0):
    """(loss, d loss / d log pi, weight) of one token."""
    new = torch.tensor([[log(pi)]], dtype=torch.float64, requires_grad=True)
    old = torch.tensor([[log(old)]], dtype=torch.float64)
    loss, info = MixedPolicy(gamma=gamma)(rows(new, old, torch.tensor([[a]], dtype=torch.float64), [demo]), CTX)
    return float(loss.detach()), float(torch.autograd.grad(loss.sum(), new)[0]), float(info["ratio"])


@pytest.mark.parametrize(("pi", "old", "w"), [(1.0, 1.0, 1.0), (0.5, 0.5, 0.8), (0.2, 0.2, 0.5), (1.0, 1e-9, 4.0)])
def test_the_weight_of_a_demonstrated_token(pi, old, w):
    assert one(pi, old)[2] == pytest.approx(w)


def test_weight_and_gradient_are_bounded_as_the_old_probability_falls():
    for old in (1e-2, 1e-6, 1e-12):
        for pi in (old, 0.3, 1.0):
            _, gradient, w = one(pi, old)
            assert w <= 4 and abs(gradient) <= 4


def test_unlikely_tokens_are_boosted_and_the_boost_has_no_gradient():
    loss, gradient, w = one(0.19, 0.3, a=2.0)
    assert sqrt(1 - 0.19) == pytest.approx(0.9)
    assert loss == pytest.approx(-w * 2.0 * 0.9) and gradient == pytest.approx(loss)  # dw / d log pi = w
    assert one(0.19, 0.3, a=2.0, gamma=0.0)[0] == pytest.approx(-w * 2.0)
    assert one(1.0, 1.0)[0] == 0.0  # what is certain teaches nothing


def test_own_samples_have_the_plain_ratio():
    loss, gradient, ratio = one(0.6, 0.2, a=-1.5, demo=0.0)
    assert ratio == pytest.approx(3.0) and loss == pytest.approx(4.5) and gradient == pytest.approx(4.5)


def test_without_demonstrations_it_is_the_surrogate_without_a_clip():
    draw = torch.Generator().manual_seed(0)
    new, old, a = (torch.randn(3, 4, generator=draw) - shift for shift in (3.0, 3.0, 0.0))
    new.requires_grad_()
    batch = rows(new, old, a, [0.0] * 3)
    ours, theirs = MixedPolicy()(batch, CTX)[0], Clip(low=inf, high=inf, behaviour="old")(batch, CTX)[0]
    torch.testing.assert_close(ours, theirs)
    gradients = [torch.autograd.grad(x.sum(), new, retain_graph=True)[0] for x in (ours, theirs)]
    torch.testing.assert_close(*gradients)


SAID = ["a", "bcd", "ef", "xy"]
LOGP = [[-0.5], [-1.0, -2.0, -3.0], [-1.0, -1.0], [log(0.36), log(0.19)]]
RATIO = [[3.0], [0.25, 1.0, 2.0], [1.0, 5.0]]  # of own answers: beyond any clip
BEFORE = [0.2, 0.3]  # of the demonstration's tokens, the old policy's probabilities


def group(score):
    """The stage, the group whose last answer is the demonstration, its models and what the gradient is by."""
    stage = demonstrated("data/rl_plus")
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
    stage = demonstrated("data/rl_plus")
    part = stage.learners["main"].parts["policy"]
    assert list(part.terms) == ["loss", "entropy"] and list(stage.collect) == ["advantage"]
    assert set(stage.models) == {"policy"} and stage.sampling.max_new == 5 and stage.sampling.temperature == 1
    assert isinstance(stage.rollout, Demonstrated) and isinstance(stage.evaluation_rollout, Single)
