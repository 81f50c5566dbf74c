"""Batch renormalisation: torch's batch normalisation as the oracle, the correction in closed form, moments that count
once an update; and CrossQ's losses on it."""

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from gymnasium import spaces
from torch import nn

from shuhari import testing
from shuhari.batch import Batch
from shuhari.events import Committed, Updated
from shuhari.kernel.noise import CounterNoise, keys
from shuhari.learners.loss import Loss
from shuhari.learners.parts import Part, Term
from shuhari.models.critics import ContinuousQ, ScalarModel
from shuhari.models.gaussian import SquashedPolicy
from shuhari.models.renorm import EPSILON, Norm, Renorm, Renormed
from shuhari.objectives.joint_td import JointTD
from shuhari.objectives.reparam import Reparam
from shuhari.optimisers.adamw import AdamW
from shuhari.testing.models import perturb

TASK = SimpleNamespace(spaces=lambda: (spaces.Box(-9, 9, (2,)), spaces.Box(-1, 1, (1,))))


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def seasoned(norm, seed=1):
    """With moments and parameters of its own."""
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for x in (norm.mean, norm.shift):
            x += 0.3 * torch.randn(x.shape, generator=g)
        for x in (norm.var, norm.scale):
            x += 0.5 * torch.rand(x.shape, generator=g)
    return norm


@pytest.mark.parametrize("trains", [False, True])
def test_it_is_torchs_batch_normalisation(trains):
    """By a batch, with its gradient; or by the running moments. Members are normalised each by itself."""
    norm, x = seasoned(Norm(2, 3)), drawn(2, 50, 3).mul(2).add(1).requires_grad_()
    found = norm(x, [] if trains else None)
    theirs = torch.stack([
        F.batch_norm(x[i], norm.mean[i, 0].clone(), norm.var[i, 0].clone(), norm.scale[i, 0], norm.shift[i, 0],
                     training=trains, eps=EPSILON)
        for i in range(2)
    ])  # fmt: skip
    torch.testing.assert_close(found, theirs)
    weight = drawn(2, 50, 3, seed=4)
    ours, other = (torch.autograd.grad((y * weight).sum(), x)[0] for y in (found, theirs))
    torch.testing.assert_close(ours, other, atol=1e-6, rtol=1e-4)


def test_within_its_bounds_the_correction_leads_to_the_running_moments():
    norm, x = seasoned(Norm(1, 3)), drawn(1, 200, 3)
    torch.testing.assert_close(norm(x, [], corrects=True), norm(x), atol=1e-5, rtol=1e-5)


def test_beyond_them_it_is_cut_by_hand():
    """A batch of mean 10 and deviation 6 beside running moments of 0 and 1: r is 3, not 6, and d is 5, not 10."""
    x = torch.tensor([4.0, 16.0]).view(1, 2, 1)
    found = Norm(1, 1)(x, [], corrects=True).flatten().tolist()
    assert found == pytest.approx([-1 * 3 + 5, 1 * 3 + 5], abs=1e-3)


def test_the_correction_has_no_gradient():
    """r times that of the batch's normalisation."""
    norm, x = seasoned(Norm(1, 1)), drawn(1, 40, 1).requires_grad_()
    weight = drawn(1, 40, 1, seed=3)
    plain, corrected = (torch.autograd.grad((norm(x, [], corrects=c) * weight).sum(), x)[0] for c in (False, True))
    own = (x.detach().var(1, correction=0) + EPSILON).sqrt()
    torch.testing.assert_close(corrected, plain * own / (norm.var + EPSILON).sqrt())


def test_running_moments_go_a_share_of_the_way_and_warm_up_ends():
    body = Renormed(1, (2, 1), "relu", Renorm(momentum=0.25, warmup=1))
    x, mean = drawn(30, 2), torch.zeros(2)
    for updates in range(1, 4):
        seen = []
        out = body(x, seen)
        own = F.batch_norm(x, None, None, training=True, eps=EPSILON)
        by_running = (x - body.norms[0].mean[0]) / (body.norms[0].var[0] + EPSILON).sqrt()
        used = by_running if updates > 2 else own  # the third follows two updates, more than warmup
        torch.testing.assert_close(out[0], used @ body.weights[0][0] + body.biases[0][0], atol=1e-5, rtol=1e-5)
        body.count(seen)
        mean = mean + 0.25 * (x.mean(0) - mean)
        torch.testing.assert_close(body.norms[0].mean[0, 0], mean)
        assert int(body.updates) == updates


# ---------------------------------------------------------------- CrossQ


def models():
    torch.manual_seed(0)
    critic, policy = ContinuousQ(2, (8,), renorm=Renorm()), SquashedPolicy((8,), renorm=Renorm())
    temperature = ScalarModel(0.2)
    for model in (critic, policy, temperature):
        model.build(TASK)
    for model in (critic, policy):
        perturb(model, 0.3)
    return {"critic": critic, "policy": policy, "temperature": temperature}


def context(found):
    return testing.context(models=found, noise=lambda batch, name: CounterNoise(keys(3, name, n=len(batch))))


def chain(n=6):
    """n decisions in a row and the state behind them, where the episode ends."""
    return Batch(
        {
            "context": 2 * drawn(n + 1, 2) + 1,
            "action": torch.tanh(drawn(n + 1, 1, seed=5)),
            "reward": drawn(n + 1, 1, seed=6),
            "cont": torch.tensor([1.0] * n + [0.0]),
            "child": torch.tensor([*range(1, n + 1), -1]),
            "mask": torch.tensor([[True]] * n + [[False]]),
            "logp": torch.zeros(n + 1, 1),
        },
        torch.arange(n),
        stream="rl",
    )


def test_one_forward_of_both_by_their_joint_moments():
    critic, batch = models()["critic"], chain()
    both = critic.by_batch(batch, batch.successors())
    features = torch.cat([torch.cat([b["context"], b["action"]], 1) for b in (batch, batch.successors())])
    out = critic.module.body(features, [])
    for i, values in enumerate(both):
        torch.testing.assert_close(values.value()[:, 0], out[:, 6 * i : 6 * i + 6, 0].T)
    apart = critic.by_batch(batch)[0].value()
    assert not torch.allclose(both[0].value(), apart) and not torch.allclose(critic(batch).value(), apart)


def test_the_critics_loss_and_its_gradient_by_hand():
    found, batch = models(), chain()
    ctx, objective = context(found), JointTD(gamma=0.9)
    loss, info = objective(batch, ctx)
    body = found["critic"].module.body
    ours = torch.autograd.grad(loss.sum(), list(body.parameters()))
    ahead = batch.successors()
    with torch.no_grad():
        action, logp = found["policy"](ahead).rsample(ctx.noise(batch, "next"))
    features = torch.cat([torch.cat([batch["context"], batch["action"]], 1), torch.cat([ahead["context"], action], 1)])
    x = features
    x = x.expand(2, -1, -1)
    for i, norm in enumerate(body.norms):
        x = (x - x.mean(1, keepdim=True)) / (x.var(1, correction=0, keepdim=True) + EPSILON).sqrt()
        x = (x * norm.scale + norm.shift) @ body.weights[i] + body.biases[i]
        x = x.relu() if i == 0 else x
    q, after = x[:, :6, 0], x[:, 6:, 0].min(0).values.detach()
    cont = torch.tensor([1.0] * 5 + [0.0])
    y = batch["reward"][:, 0] + 0.9 * cont * (after - 0.2 * logp[:, 0])
    torch.testing.assert_close(info["target"], y)
    expected = ((q - y) ** 2 / 2).sum(0)
    torch.testing.assert_close(loss, expected)
    theirs = torch.autograd.grad(expected.sum(), list(body.parameters()))
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(batch.stamps["td_error"], (q - y).abs().mean(0).detach())


def test_the_policy_is_normalised_by_its_batch_and_its_critic_by_running_moments():
    found, batch = models(), chain()
    ctx = context(found)
    loss, _ = Reparam(by_batch=True)(batch, ctx)
    action, logp = found["policy"].by_batch(batch)[0].rsample(ctx.noise(batch, "fresh"))
    q = found["critic"](batch.put({"action": action})).value()[:, 0].min(1).values
    torch.testing.assert_close(loss, 0.2 * logp[:, 0] - q)
    plain, _ = Reparam()(batch, ctx)
    assert not torch.allclose(plain, loss)
    means = found["policy"](batch).mean, found["policy"](batch.take(torch.arange(3))).mean
    torch.testing.assert_close(means[0][:3], means[1])  # asked alone, as asked beside others


def test_moments_count_once_an_update_however_often_the_loss_is_asked():
    found, batch = models(), chain()
    ctx, body = context(found), found["critic"].module.body
    for _ in range(3):
        JointTD()(batch, ctx)
    with torch.no_grad():
        JointTD()(chain(3), ctx)  # a report of what is held out: nothing is learnt
    found["critic"].observe(Committed(1))
    assert int(body.updates) == 0 and float(body.norms[0].mean.abs().max()) == 0
    found["critic"].observe(Updated("main", {}))
    with torch.no_grad():
        action, _ = found["policy"](batch.successors()).rsample(ctx.noise(batch, "next"))
    features = torch.cat([torch.cat([batch["context"], batch["action"]], 1),
                          torch.cat([batch.successors()["context"], action], 1)])  # fmt: skip
    torch.testing.assert_close(body.norms[0].mean[0, 0], 0.01 * features.mean(0))
    found["critic"].observe(Updated("main", {}))
    assert int(body.updates) == 1


def test_what_does_not_fit():
    found = models()
    plain = ContinuousQ(2, (8,))
    plain.build(TASK)
    with pytest.raises(ValueError, match=r"role 'critic' has no batch renormalisation: set its renorm"):
        JointTD()(chain(), context({**found, "critic": plain}))
    for make in (ContinuousQ, SquashedPolicy):
        with pytest.raises(ValueError, match="norm and renorm are both set: expected one"):
            make(norm=True, renorm=Renorm())


def test_its_batch_cannot_be_cut():
    found = models()
    part = Part(("critic",), {"joint": Term(JointTD())}, AdamW())
    params = [p for p in found["critic"].module.parameters() if isinstance(p, nn.Parameter)]
    whole = Loss(chain(), part, "critic", context(found), params, None)
    whole.backward()
    assert params[0].grad is not None
    with pytest.raises(ValueError, match="its batch cannot be cut; expected no micro_batch"):
        Loss(chain(), part, "critic", context(found), params, 2).backward()
