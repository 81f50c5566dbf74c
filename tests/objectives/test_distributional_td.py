"""Losses whose targets are distributions: C51's projection by hand and by enumeration, noise of its own for each use of
a noisy net, TQC's truncated atoms by hand."""

import math
from types import SimpleNamespace

import pytest
import torch
from gymnasium import spaces

from shuhari import testing
from shuhari.batch import Batch
from shuhari.kernel.noise import CounterNoise, keys
from shuhari.models.critics import ContinuousQ, DiscreteQ
from shuhari.models.quantiles import Quantiles
from shuhari.models.readout import Bins
from shuhari.needs import evaluate
from shuhari.objectives.td import QLearning, SoftTD
from shuhari.testing.models import perturb

ATOMS = Bins(-2.5, 2.5, 5, 0.0)  # centres -2, -1, 0, 1, 2
FEW = SimpleNamespace(spaces=lambda: (spaces.Box(-9, 9, (2,)), spaces.Discrete(3)))
BOX = SimpleNamespace(spaces=lambda: (spaces.Box(-9, 9, (2,)), spaces.Box(-1, 1, (1,))))


def built(model, task=FEW, seed=0):
    torch.manual_seed(seed)
    model.build(task)
    return perturb(model, 0.5, seed=seed + 1)


def context(**models):
    return testing.context(models=models, noise=lambda batch, name: CounterNoise(keys(3, name, n=len(batch))))


def chain(reward=(0.5, -0.25, 1.0), cont=(1.0, 1.0, 1.0, 1.0), drawn=(0, 1, 2)):
    """Three decisions in a row and the state behind them; `cont` of the last is 0 where the episode has ended."""
    return Batch(
        {
            "context": torch.randn(4, 2, generator=torch.Generator().manual_seed(0)),
            "action": torch.tensor([2, 0, 1, 0]),
            "reward": torch.tensor([*reward, 0.0])[:, None],
            "cont": torch.tensor(cont),
            "child": torch.tensor([1, 2, 3, -1]),
            "mask": torch.tensor([[True], [True], [True], [False]]),
            "logp": torch.zeros(4, 1),
        },
        torch.tensor(drawn),
        stream="rl",
    )


def learnt(objective, batch, ctx):
    return objective(batch.put(evaluate(batch, objective.needs, ctx.models, [objective.role])), ctx)


# ---------------------------------------------------------------- C51


def test_a_projection_by_hand():
    """0.5 of the mass at 0.25 goes three to one to 0 and 1; 0.3 at 7 to the last atom; 0.2 stands on -1."""
    found = ATOMS.project(torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.25, 7.0, -1.0]))
    assert found.tolist() == pytest.approx([0.0, 0.2, 0.375, 0.125, 0.3])
    with pytest.raises(ValueError, match=r"sigma = 0\.75: set sigma = 0"):
        Bins(-1, 1).project(torch.ones(1), torch.zeros(1))


def enumerate_projection(share, reward, discount, low, high):
    """Algorithm 1 of Bellemare et al. 2017, atom by atom."""
    n, m = len(share), [0.0] * len(share)
    delta = (high - low) / (n - 1)
    for j, p in enumerate(share):
        moved = min(max(reward + discount * (low + j * delta), low), high)
        b = (moved - low) / delta
        lower, upper = math.floor(b), math.ceil(b)
        if lower == upper:
            m[lower] += p
        else:
            m[lower] += p * (upper - b)
            m[upper] += p * (b - lower)
    return m


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("ends", [False, True])
def test_categorical_q_learning_is_algorithm_1(double, n, ends):
    """Two rows of a chain: the successors of the last one are those that there are, and nothing follows an end."""
    policy, target = (built(DiscreteQ((8,), bins=ATOMS), seed=i) for i in (0, 5))
    batch = chain(cont=(1.0, 1.0, 1.0, 0.0 if ends else 1.0), drawn=(0, 2))
    objective = QLearning(gamma=0.5, double=double, loss="categorical", n=n)
    loss, info = learnt(objective, batch, context(policy=policy, target=target))
    ours, theirs = (net.module(batch.whole["context"]).unflatten(-1, (3, 5)).softmax(-1).detach()
                    for net in (policy, target))  # fmt: skip
    centres = torch.arange(-2.0, 3.0)
    last = 0.0 if ends else 0.5
    cases = [  # state, action, summed reward, discount, successor
        (0, 2, 0.5, 0.5, 1) if n == 1 else (0, 2, 0.5 - 0.125, 0.25, 2),
        (2, 1, 1.0, last, 3),
    ]
    for i, (state, action, reward, discount, after) in enumerate(cases):
        best = int(((ours if double else theirs)[after] @ centres).argmax())
        goal = torch.tensor(enumerate_projection(theirs[after, best].tolist(), reward, discount, -2.0, 2.0))
        p = ours[state, action]
        assert float(goal.sum()) == pytest.approx(1.0)
        assert float(loss[i].detach()) == pytest.approx(float(-(goal * p.log()).sum()), rel=1e-5)
        assert float(info["value"][i]) == pytest.approx(float(p @ centres), abs=1e-6)
        assert float(info["target"][i]) == pytest.approx(reward + discount * float(theirs[after, best] @ centres))
        kl = float(torch.where(goal > 0, goal * (goal / p).log(), 0.0).sum())
        assert float(batch.stamps["td_error"][i]) == pytest.approx(kl, rel=1e-4)


def test_its_gradient_is_the_difference_of_probabilities():
    policy, target = (built(DiscreteQ((), bins=ATOMS), seed=i) for i in (0, 5))
    batch = chain(cont=(1.0, 1.0, 1.0, 0.0), drawn=(2,))  # ends: all mass moves to the reward, which is an atom
    loss, _ = learnt(QLearning(loss="categorical"), batch, context(policy=policy, target=target))
    loss.sum().backward()
    bias = policy.module.body.layers[0].bias.grad.view(3, 5)
    p = policy.module(batch["context"]).view(3, 5)[1].softmax(-1).detach()
    torch.testing.assert_close(bias[1], p - torch.tensor([0.0, 0.0, 0.0, 1.0, 0.0]))
    assert float(bias[[0, 2]].abs().max()) == 0
    assert all(p.grad is None for p in target.module.parameters())


def test_what_does_not_fit_categorical():
    smeared, plain = built(DiscreteQ((8,), bins=Bins(-1, 1))), built(DiscreteQ((8,)))
    for policy, target, why in [(smeared, smeared, "set sigma = 0"), (plain, plain, "has none: set bins"),
                                (built(DiscreteQ((8,), bins=ATOMS)), plain, "has none: set bins")]:  # fmt: skip
        with pytest.raises(ValueError, match=why):
            learnt(QLearning(loss="categorical"), chain(), context(policy=policy, target=target))


# ---------------------------------------------------------------- noise


def test_each_use_of_a_noisy_net_has_a_draw_of_its_own():
    """Trained values, the choice and the target's are those of three draws, each of which all rows share."""
    net = built(DiscreteQ((8,), noisy=True, sigma0=5.0))
    ctx, batch = context(policy=net, target=net), chain()
    objective = QLearning(gamma=0.5, double=True, noisy=True, loss="squared")
    assert objective.needs == ()
    loss, info = objective(batch, ctx)
    uses = {use: net.with_noise(ctx.rng("noise", use)) for use in ("values", "target", "choice")}
    with torch.no_grad():
        best = uses["choice"](batch.successors(1)).mode()
        after = uses["target"](batch.successors(1)).all()[:, 0].gather(1, best)[:, 0]
        value = uses["values"](batch).value()[:, 0]
    torch.testing.assert_close(info["value"], value)
    torch.testing.assert_close(info["target"], batch["reward"][:, 0] + 0.5 * after)
    others = [uses[use](batch.successors(1)).mode() for use in ("values", "target")]
    assert all(bool((other != best).any()) for other in others) and bool((others[0] != others[1]).any())
    part, _ = objective(chain(drawn=(1,)), ctx)
    torch.testing.assert_close(part, loss[1:2])


@pytest.mark.parametrize("noisy", [False, True])
def test_the_loss_and_its_nets_are_noisy_together(noisy):
    policy, target = built(DiscreteQ((8,), noisy=not noisy)), built(DiscreteQ((8,), noisy=noisy))
    for models in ({"policy": policy, "target": target}, {"policy": target, "target": policy}):
        said = rf"noisy is {str(noisy).lower()}, and the model of role '\w+' (has no|draws) noise"
        with pytest.raises(ValueError, match=said):
            learnt(QLearning(noisy=noisy), chain(), context(**models))


# ---------------------------------------------------------------- TQC


class Given:
    """A critic of given quantiles [B, n, m], and a policy that always does 0.5 with log-probability -2."""

    def __init__(self, z):
        self.z, self.quantiles = torch.tensor(z), Quantiles(len(z[0][0]))

    def __call__(self, batch):
        z = self.z[: len(batch), None].requires_grad_()
        return SimpleNamespace(quantiles=lambda: z, value=lambda: z.mean(-1))


POLICY = lambda batch: SimpleNamespace(  # noqa: E731
    rsample=lambda noise: (torch.full((len(batch), 1), 0.5), torch.full((len(batch), 1), -2.0))
)
TEMPERATURE = lambda batch: SimpleNamespace(value=lambda: torch.tensor(0.1))  # noqa: E731


def test_truncated_atoms_by_hand():
    """Of 1, 4, 9 and 2, 3, 5 the largest two fall: 1, 2, 3, 4 remain, and 0.2 for the entropy."""
    critic, target = Given([[[0.0, 1.0, 2.0], [5.0, 5.0, 5.0]]]), Given([[[4.0, 1.0, 9.0], [2.0, 5.0, 3.0]]])
    models = {"critic": critic, "target": target, "policy": POLICY, "temperature": TEMPERATURE}
    batch = chain(reward=(10.0, 0.0, 0.0), drawn=(0,))
    loss, info = learnt(SoftTD(gamma=0.5, loss="quantile", drop=1), batch, context(**models))
    y = [10 + 0.5 * (z + 0.2) for z in (1.0, 2.0, 3.0, 4.0)]
    assert float(info["target"]) == pytest.approx(sum(y) / 4)
    assert float(info["value"]) == pytest.approx((1 + 5) / 2)
    by_hand = 0.0
    for member in ([0.0, 1.0, 2.0], [5.0, 5.0, 5.0]):
        for share, z in zip((1 / 6, 1 / 2, 5 / 6), member, strict=True):
            by_hand += sum(share * (abs(t - z) - 0.5) for t in y) / 4  # all targets lie above, by more than 1
    assert float(loss) == pytest.approx(by_hand)
    assert float(batch.stamps["td_error"]) == pytest.approx((abs(1 - sum(y) / 4) + abs(5 - sum(y) / 4)) / 2)


def test_what_does_not_fit_tqc():
    with pytest.raises(ValueError, match="expected loss = 'quantile'"):
        SoftTD(drop=1)
    with pytest.raises(ValueError, match="bins and quantiles"):
        ContinuousQ(bins=Bins(-1, 1), quantiles=Quantiles())
    critic = built(ContinuousQ(2, (8,), quantiles=Quantiles(3)), BOX)
    plain = built(ContinuousQ(2, (8,)), BOX)
    batch = chain().put({"action": torch.zeros(3, 1)})
    for target, drop, why in [(critic, 3, "drop is 3: expected less than the 3 quantiles"),
                              (plain, 1, "has none: set quantiles")]:  # fmt: skip
        models = {"critic": critic, "target": target, "policy": POLICY, "temperature": TEMPERATURE}
        with pytest.raises(ValueError, match=why):
            learnt(SoftTD(loss="quantile", drop=drop), batch, context(**models))


def test_quantiles_of_an_ensemble_are_its_net_and_their_mean_its_value():
    critic = built(ContinuousQ(2, (8,), quantiles=Quantiles(3)), BOX)
    batch = chain().put({"action": torch.zeros(3, 1)})
    found = critic(batch)
    every = critic.module.body(torch.cat([batch["context"], batch["action"]], 1))  # [n, B, m]
    assert found.quantiles().shape == (3, 1, 2, 3) and found.value().shape == (3, 1, 2)
    torch.testing.assert_close(found.quantiles()[:, 0], every.transpose(0, 1))
    torch.testing.assert_close(found.value()[:, 0], every.mean(2).T)
    with pytest.raises(ValueError, match="has none: set bins"):
        found.logits()
