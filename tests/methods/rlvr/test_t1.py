"""Shares of repeated n-grams, counted by hand.

T1 as its recipe says it: leave-one-out after the KL, a reference that follows, the entropy bonus's gradient.
"""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
import torch

from built import answers, built, credited, learnt, padded, same, table
from shuhari.config.recipe import load
from shuhari.data import Problem, Ramp, Request, Status, Step, Trajectory
from shuhari.kernel.reduce import reduced
from shuhari.kernel.reduce import weights as weights_of
from shuhari.lab.demonstrations import read
from shuhari.loop.run import loop, open_run
from shuhari.methods.rlvr.t1.repetition import Repetition
from shuhari.needs import evaluate
from shuhari.testing import context
from shuhari.transforms import apply

CTX = context(count=5)
REQUEST = Request(Problem("t", "p", ""))


def step(text, parent=None):
    return Step.of(np.ones(1, np.int32), np.ones(1, np.int32), parent=parent, info={"text": text})


def grades(reward, *texts):
    group = [Trajectory(REQUEST, (step(text),), Status.FINISHED) for text in texts]
    return [g[reward.name] for g in asyncio.run(reward.grade(group, CTX))]


@pytest.mark.parametrize(
    ("text", "n", "share"),
    [
        ("a b a b a", 2, 2 / 4),  # ab ba ab ba
        ("a b c d e", 2, 0),
        ("a a a a", 1, 3 / 4),
        ("a b", 3, 0),  # no n-gram at all
        ("", 1, 0),
        ("a  b\na\tb", 2, 1 / 3),  # ab ba ab: white space is white space
    ],
)
def test_words_by_hand(text, n, share):
    assert grades(Repetition(n=n), text) == [pytest.approx(-share)]


def test_characters_weights_and_names():
    reward = Repetition("again", n=2, unit="character", weight=Ramp(0.0, 1.0, over=10))  # at 5: 0.5
    assert grades(reward, "abab", "abcd") == [pytest.approx(-0.5 / 3), 0]  # ab ba ab


def test_one_grade_a_leaf_and_none_where_nothing_was_said():
    tree = Trajectory(REQUEST, (step("a b "), step("a b", 0), step("c d", 0)), Status.FINISHED)
    closed = Trajectory(REQUEST, (Step.closing(np.ones(2), None, 0.0),), Status.ERROR)
    found = asyncio.run(Repetition(n=2).grade([tree, closed], CTX))
    assert found == [{"repetition": pytest.approx(-1 / 3)}, {"repetition": 0.0}, None]


SMALL = [
    'remove=["stage.warm-up", "evaluate"]',
    "models.policy.hidden=16",
    "models.policy.layers=1",
    "rollout.n=4",
    "buffer.size=3",
    "part.policy.optimiser.lr=1e-2",
    "steps=3",
]


def opened(*more):
    run = open_run(load("rlvr/t1", [*SMALL, *more]))
    run.enter_stage()
    return run


def weights(run, role):
    return {k: v.clone() for k, v in run.ctx.models[role].module.state_dict().items()}


def test_the_reference_takes_a_hundredth_of_the_way_after_each_step():
    run = open_run(load("rlvr/t1", SMALL))
    reports = loop(run)
    next(reports)
    policy, reference = weights(run, "policy"), weights(run, "reference")
    next(reports)
    for name, new in weights(run, "policy").items():
        wanted = reference[name] + 0.01 * (new - reference[name])
        torch.testing.assert_close(weights(run, "reference")[name], wanted)
    assert any(not torch.equal(policy[k], reference[k]) for k in policy)


@pytest.mark.parametrize(
    ("setting", "frozen"), [('remove=["follow.reference"]', True), ("follow.reference.rate=1", False)]
)
def test_rate_0_is_a_frozen_reference_and_rate_1_takes_the_penalty_away(setting, frozen):
    run = open_run(load("rlvr/t1", [*SMALL, setting]))
    run.enter_stage()
    start = weights(run, "reference")
    reports = loop(run)
    for _ in range(2):
        next(reports)
    policy, reference = weights(run, "policy"), weights(run, "reference")
    assert not all(torch.equal(policy[k], start[k]) for k in start)
    assert all(torch.equal(reference[k], (start if frozen else policy)[k]) for k in start)
    penalty = apply([run.stage.collect["kl_in_reward"]], run.collect(run.wanted()), run.ctx)["reward/kl"].abs().max()
    assert penalty > 1e-4 if frozen else penalty < 1e-6


def graded(run, reward, beta):
    """Collected rows, regraded, through the recipe's own transforms of credit."""
    batch = run.collect(run.wanted())
    own = torch.zeros_like(batch["reward"])
    own[:, 0] = reward(batch)
    stage = [t for name, t in run.stage.collect.items() if name in ("kl_in_reward", "advantage")]
    stage[0].beta = beta
    return apply(stage, batch.put({"reward": own}), run.ctx)


def test_two_samples_with_rewards_1_and_0_have_advantages_1_and_minus_1():
    run = opened("rollout.n=2", "buffer.size=1")
    out = graded(run, lambda batch: torch.tensor([1.0, 0.0]), beta=0.0)
    a = [float(out["advantage"][i][out["mask"][i]].mean()) for i in range(2)]
    assert a == pytest.approx([1.0, -1.0])


def test_the_kl_is_in_the_reward_before_the_baseline():
    """A_i = R_i - mean of the others' R, with R = r - beta sum log(pi / reference) of the whole answer."""
    run = opened("buffer.size=2")
    with torch.no_grad():
        for p in run.ctx.models["reference"].module.parameters():
            p.add_(0.3 * torch.randn(p.shape, generator=torch.Generator().manual_seed(1)))
    out = graded(run, lambda batch: torch.arange(len(batch)).remainder(2).float(), beta=0.05)
    log = [out[n] for n in run.stage.collect["kl_in_reward"].needs]
    total = torch.arange(8).remainder(2) - 0.05 * ((log[0] - log[1]) * out["mask"]).sum(1)
    others = (total.view(2, 4).sum(1, keepdim=True) - total.view(2, 4)) / 3
    wanted = (total.view(2, 4) - others).flatten()[:, None] * out["mask"]
    torch.testing.assert_close(out["advantage"], wanted)
    assert float((log[0] - log[1]).abs().max()) > 0.1


def test_the_entropy_bonus_has_the_gradient_of_minus_the_entropy():
    """On a softmax dH/dz = -pi (log pi + H): of the policy's own logits over 1.2, at the tokens that were decided."""
    run = opened()
    term = run.stage.learners["main"].parts["policy"].terms["entropy"]
    policy, batch = run.ctx.models["policy"], run.collect(run.wanted())
    with torch.no_grad():  # away from the start, where the distribution is all but uniform
        for p in policy.module.parameters():
            p.add_(0.3 * torch.randn(p.shape, generator=torch.Generator().manual_seed(1)))
    batch = batch.put({"mask": batch["mask"] & (torch.arange(batch.width) != 1)})  # and a gap
    scored = evaluate(batch, term.objective.needs, {"policy": policy}, ["policy"])
    loss, info = term.objective(batch.put(scored), None)
    dist, decided = policy(batch), batch["mask"].flatten()
    z = dist.head(dist.hidden) / 1.2
    z = z if dist.suppressed is None else z.index_fill(1, dist.suppressed, -1e30)
    z = z[decided if dist.seen is None else decided[dist.seen]]
    log_pi = z.detach().log_softmax(1)
    h = -(log_pi.exp() * log_pi).sum(1, keepdim=True)
    torch.testing.assert_close(info["entropy"].flatten()[decided], h[:, 0])
    assert not info["entropy"].flatten()[~decided].any() and not decided.all() and h.min() < 0.9 * h.max()
    by_hand = (log_pi.exp() * (log_pi + h) * z).sum() / decided.sum()
    own = reduced(loss, weights_of(batch["mask"].float(), batch, term.reduce))
    parameters = list(policy.module.parameters())
    for found, wanted in zip(
        *(torch.autograd.grad(x, parameters, allow_unused=True) for x in (own, by_hand)), strict=True
    ):
        torch.testing.assert_close(found, wanted)
    assert term.weight == 1e-3 and term.reduce == "decision"


def test_many_hot_samples_and_arms_that_differ_in_the_reference_alone():
    arms = {name: recipe.stages[-1] for name, recipe in read("rlvr/t1").claim.arms.items()}
    own, frozen = arms["method"], arms["baseline"]
    assert own["rollout"]["n"] == 64 and own["rollout"]["sampling"]["temperature"] == 1.2
    assert {k for k in {*own, *frozen} if own.get(k) != frozen.get(k)} == {"follow"}


def test_the_loss_is_the_sum_over_tokens():
    """-sum_i A_i log pi(y_i), the mean over answers alone: of rewards 1 and 0 each token has -1/2 and 1/2, however many
    they are; beside it the bonus, a thousandth of the entropy of a token."""
    stage = built("rlvr/t1", usual=True)
    log_prob, entropy = (padded([x] * 2, [x] * 3).requires_grad_() for x in (-1.0, 1.0))
    models = {"policy": table(log_prob=log_prob, entropy=entropy), "reference": table(log_prob=log_prob.detach())}
    found, bonus = learnt(stage, answers(stage, ["ab", "cde"], [1, 0]), log_prob, entropy, **models)
    same(found, [[-1 / 2] * 2, [1 / 2] * 3])
    same(bonus, [[-1e-3 / 5] * 2, [-1e-3 / 5] * 3])


def test_repetition_length_and_kl_are_all_in_the_reward():
    """Of four answers the first is right, at a log-ratio of 2 to the reference in all, and costs 0.05 times that; the
    second repeats three of its four 9-grams; the third is right with 23 tokens of 24, half of the way to what costs 1;
    the fourth is wrong, and cut. So R = 0.9, 0.25, 0.5, -1, and A_i = R_i less the mean of the others."""
    stage, alphabet = built("rlvr/t1", usual=True), "abcdefghijklmnopqrstuvwxyz"
    said = [alphabet[:22], "a" * 12, alphabet[:23], alphabet[:24]]
    log_prob = padded(*([-3.0] * len(text) for text in said))
    reference = log_prob.clone()
    reference[0, :4] = -3.5
    models = {"policy": table(log_prob=log_prob, entropy=log_prob), "reference": table(log_prob=reference)}
    batch, _ = credited(stage, answers(stage, said, [1, 1, 1, 0]), **models)
    R = [1 - 0.05 * 2, 1 - 3 / 4, 1 - 1 / 2, 0 - 1]
    assert batch["reward"].sum(1).tolist() == pytest.approx(R)
    A = [r - (sum(R) - r) / 3 for r in R]
    same(batch["advantage"].tolist(), [[a] * len(s) + [0.0] * (24 - len(s)) for a, s in zip(A, said, strict=True)])
