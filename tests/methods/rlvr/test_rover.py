"""ROVER as its recipe says it: the residual of centred rewards, a mean over tokens, before it moves and after."""

from __future__ import annotations

from math import log

import torch

from built import OLD, answers, built, learnt, padded, same
from shuhari.models.categorical import Categorical
from shuhari.objectives.soft_q import UniformQ


def gradient(said, score, logit):
    """Of a policy over two ids that began at one half each: by the logit of the id that was said, the other one's 0."""
    stage, z = built("rlvr/rover"), padded(*logit).requires_grad_()
    half = torch.full_like(z, log(1 / 2)).detach()
    batch = answers(stage, said, score).put({OLD: half, "policy/mean_log_prob": half})

    def policy(rows):
        both = torch.stack([z, torch.zeros_like(z)], -1)[rows["id"]]
        return Categorical(both, torch.zeros(both.shape[:2], dtype=torch.long))

    return learnt(stage, batch.put({"action": torch.zeros(z.shape, dtype=torch.long)}), z, policy=policy)[0]


def test_before_it_moves_it_is_the_policy_gradient_of_centred_rewards():
    """-2 r grad log pi, the mean over all four tokens, r = 1 - 1/2 and 0 - 1/2; grad log pi is 1 - 1/2 by the logit."""
    same(gradient(["a", "bcd"], [1, 0], [[0.0], [0.0] * 3]), [[-0.125], [0.125] * 3])


def test_after_it_has_moved_the_mean_over_the_vocabulary_is_backed_up():
    """At log 3 the id has 3/4: Q = log 3/2, and the value behind the first token is the mean of log 3/2 and log 1/2.
    The mean is over three tokens, and grad log pi is 1 - 3/4."""
    q, behind = log(3 / 2), (log(3 / 2) + log(1 / 2)) / 2
    residuals = [q - (0.5 + behind), q - 0.5]
    same(gradient(["ab", "c"], [1, 0], [[log(3)] * 2, [0.0]]), [[2 * r / 3 / 4 for r in residuals], [2 * 0.5 / 3 / 2]])


def test_there_is_nothing_else():
    """No clip, KL, reference or deviation; the policy of before is that of the batch, and the samples are its own."""
    stage = built("rlvr/rover")
    part = stage.learners["main"].parts["policy"]
    [term] = part.terms.values()
    assert (term.objective, term.reduce, term.weight, term.stream) == (UniformQ(scale=1.0), "decision", 1.0, "rl")
    assert list(stage.collect) == ["advantage"] and set(stage.models) == {"policy"}
    assert stage.sampling.temperature == 1 and stage.sampling.top_p == 1
    assert (part.epochs, part.minibatches) == (1, 4)  # with one minibatch nothing has ever moved: no backup
