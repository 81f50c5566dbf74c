"""Steered and filtered policies around flows that are affine maps, and scores of Gaussians, known in closed form."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from shuhari.batch import Batch
from shuhari.data import Sampling
from shuhari.kernel.noise import CounterNoise, keys
from shuhari.models.chain import ChainPolicy
from shuhari.models.gaussian import GaussianPolicy, SquashedPolicy
from shuhari.models.steering import Filtered, Steered
from shuhari.needs import Need, evaluate

SEEN = spaces.Box(-np.inf, np.inf, (3,))
ARM = spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 4.0], np.float32))
MIDDLE, HALF = torch.tensor([0.0, 2.0]), torch.tensor([2.0, 2.0])
PLANE = spaces.Box(-np.inf, np.inf, (2,))


def built(model: Any, does: Any = ARM, seed: int = 0, **roles: Any) -> Any:
    torch.manual_seed(seed)
    model.build(SimpleNamespace(spaces=lambda: (SEEN, does)))
    if roles:
        model.bind(roles)
    return model


def says(chain: Any, answer: Any) -> Any:
    """Let the network of a chain say answer(point)."""
    chain._net = SimpleNamespace(body=lambda row: answer(row[..., 3:5]), spread=chain.module.spread)
    return chain


def seen(n: int) -> Tensor:
    return torch.randn(n, 3, generator=torch.Generator().manual_seed(0))


def noise(n: int, *name: object) -> CounterNoise:
    return CounterNoise(keys(0, *name, n=n))


def rows(contexts: Tensor, traces: Any) -> Batch:
    mask = torch.ones(traces.logp.shape, dtype=torch.bool)
    return Batch({"mask": mask, "context": contexts, "action": traces.action, **traces.info})


# ---------------------------------------------------------------- steered


@pytest.mark.parametrize("does", [ARM, PLANE])
def test_the_environment_gets_the_answer_of_the_flow_to_the_noise(does: Any) -> None:
    """Velocities -0.8 x + 0.6 over four steps: x shrinks to 0.8⁴ x, and 0.15 (1 + 0.8 + 0.64 + 0.512) is added."""
    base = says(built(ChainPolicy(4, hidden=(8,)), does), lambda x: -0.8 * x + 0.6)
    model = built(Steered(bound=1.5, hidden=(8,)), does, base=base)
    x = seen(200)
    for sampling in (Sampling(), Sampling(greedy=True), Sampling(epsilon=1.0)):
        drawn = model.sample(x, sampling, noise=noise(200))
        made = 0.4096 * 1.5 * drawn.action + 0.4428
        torch.testing.assert_close(drawn.info["base"][:, 0], made)
        wanted = made if does is PLANE else (MIDDLE + HALF * made).clamp(MIDDLE - HALF, MIDDLE + HALF)
        torch.testing.assert_close(drawn.taken, wanted)
        assert bool((drawn.action.abs() <= 1).all())  # so noise is within its bound
        assert drawn.logp.shape == (200, 1)
    assert float(drawn.action.abs().mean()) == pytest.approx(0.5, abs=0.06)  # uniform, at epsilon 1


def test_the_noise_is_a_squashed_normal() -> None:
    """Its density is that of `squashed` with the same weights, whatever the base."""
    base, alone = built(ChainPolicy(2, hidden=(8,))), built(SquashedPolicy((8,)), seed=3)
    model = built(Steered(hidden=(8,)), base=base)
    model.module.load_state_dict(alone.module.state_dict())
    x = seen(50)
    drawn, plain = (m.sample(x, Sampling(), noise=noise(50)) for m in (model, alone))
    assert torch.equal(drawn.action, plain.action) and torch.equal(drawn.logp, plain.logp)
    batch = rows(x, drawn)
    torch.testing.assert_close(model(batch).log_prob(), drawn.logp, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(model(batch).mode(), alone(batch).mode())


def test_greedy_noise_of_nothing_is_what_the_base_does_from_nothing() -> None:
    base = built(ChainPolicy(3, hidden=(8,)))
    model = built(Steered(hidden=(8,)), base=base)
    with torch.no_grad():
        for p in model.module.body.layers[-1].parameters():
            p.zero_()
    x = seen(9)
    drawn = model.sample(x, Sampling(greedy=True), noise=noise(9))
    bare = Batch({"mask": torch.ones(9, 1, dtype=torch.bool), "context": x, "action": torch.zeros(9, 2)})
    with torch.no_grad():
        torch.testing.assert_close(drawn.taken, MIDDLE + HALF * base(bare).mode().clamp(-1, 1))


def test_the_base_gets_no_gradient_and_a_copy_steers_the_same_one() -> None:
    base = built(ChainPolicy(2, hidden=(8,)))
    models = {"base": base, "policy": built(Steered(hidden=(8,)), base=base)}
    x = seen(5)
    batch = rows(x, models["policy"].sample(x, Sampling(), noise=noise(5)))
    need = Need(("policy",), "log_prob", live=True)
    column = evaluate(batch, [need], models, trains=("policy", "base"))[need.key]
    found = torch.autograd.grad(column.sum(), [*base.module.parameters()], allow_unused=True)
    assert all(g is None for g in found)
    twin = copy.deepcopy(models["policy"])
    says(base, lambda x: 0 * x + 7)
    assert bool((twin.sample(x, Sampling(), noise=noise(5)).taken == MIDDLE + HALF).all())


# ---------------------------------------------------------------- filtered

MEAN, S = 0.4, 0.5


def gaussian_score(chain: Any) -> Any:
    """A chain whose network is that of decisions N(MEAN, S²), at the time before the step that it is asked about."""

    def answer(features: Tensor, x: Tensor, k: int) -> Tensor:
        keep, add = chain.schedule.keep[k], chain.schedule.add[k]
        z = add * (x - keep * MEAN) / (keep**2 * S**2 + add**2)  # the noise in x, on average
        return z if chain.law == "ddpm" else (x - z) / keep  # the velocity a - z, of x = keep a + add z, add = 1 - keep

    chain.answer = answer
    return chain


@pytest.mark.parametrize("law", ["noise", "sde", "ddpm"])
@pytest.mark.parametrize("steps", [1, 2])
def test_a_correction_by_the_score_of_a_gaussian(law: Any, steps: int) -> None:
    """a - rate (a - m) / (s² + noise²), the noise that of the last steps: of flows of four 1, then 1/3."""
    base = built(GaussianPolicy((8,)), PLANE)
    score = gaussian_score(built(ChainPolicy(4, law, hidden=(8,)), PLANE))
    model = built(Filtered(rate=0.2, steps=steps), PLANE, base=base, score=score)
    x = seen(40)
    a = base.sample(x, Sampling(), noise=noise(40)).action
    levels = [1.0, 1 / 3]
    if law == "ddpm":  # a = exp(-(0.1 s + 9.95 s²)) at s = 1/2 and 1/4
        levels = [(np.exp(0.1 * s + 9.95 * s * s) - 1) ** 0.5 for s in (0.5, 0.25)]
    wanted = a
    for level in levels[-steps:]:
        wanted = wanted - 0.2 * (wanted - MEAN) / (S**2 + level**2)
    drawn = model.sample(x, Sampling(), noise=noise(40))
    torch.testing.assert_close(drawn.taken, wanted, atol=1e-5, rtol=1e-5)
    assert torch.equal(drawn.action, a)


def test_a_mean_is_a_fixed_point_and_one_step_may_reach_it() -> None:
    score = gaussian_score(built(ChainPolicy(4, hidden=(8,)), PLANE))
    features = score.features(seen(1))
    assert float(score.gradient(features, torch.full((1, 2), MEAN), 3).abs().max()) < 1e-6
    base = built(GaussianPolicy((8,)), PLANE)
    model = built(Filtered(rate=S**2 + 1 / 9), PLANE, base=base, score=score)
    taken = model.sample(seen(5), Sampling(), noise=noise(5)).taken
    torch.testing.assert_close(taken, torch.full((5, 2), MEAN))


@pytest.mark.parametrize("greedy", [False, True])
def test_a_rate_of_nothing_is_the_base_to_the_bit(greedy: bool) -> None:
    for base in (built(GaussianPolicy((8,))), built(SquashedPolicy((8,))), built(ChainPolicy(2, hidden=(8,)))):
        model = built(Filtered(rate=0.0), base=base, score=built(ChainPolicy(3, hidden=(8,))))
        x = seen(30)
        mine, theirs = (m.sample(x, Sampling(greedy=greedy), noise=noise(30)) for m in (model, base))
        assert torch.equal(mine.action, theirs.action) and torch.equal(mine.taken, theirs.taken)
        assert torch.equal(mine.logp, theirs.logp) and model.kind == base.kind


def test_corrections_are_in_units_of_the_score_and_keep_to_the_bounds() -> None:
    """A base in the environment's own units or in [-1, 1], a score in [-1, 1]; beyond the bounds counts as there."""
    score, x = gaussian_score(built(ChainPolicy(4, hidden=(8,)))), seen(300)
    for base in (built(SquashedPolicy((8,))), built(GaussianPolicy((8,), log_std=1.5))):
        model = built(Filtered(rate=0.1), base=base, score=score)
        free, drawn = (m.sample(x, Sampling(), noise=noise(300)) for m in (base, model))
        a = ((free.taken - MIDDLE) / HALF).clamp(-1, 1)
        torch.testing.assert_close(drawn.taken, MIDDLE + HALF * (a - 0.1 * (a - MEAN) / (S**2 + 1 / 9)))
    assert bool((free.action != free.taken).any())  # some were beyond
    away = built(Filtered(rate=5.0), base=base, score=score).sample(x, Sampling(), noise=noise(300)).taken
    assert bool((away >= MIDDLE - HALF).all()) and bool((away <= MIDDLE + HALF).all())
    assert bool((away == MIDDLE - HALF).any())


@pytest.mark.parametrize("law", ["noise", "ddpm"])
def test_a_score_that_is_taught_a_point_leads_to_it(law: Any) -> None:
    score = built(ChainPolicy(3, law, hidden=(32,)), PLANE)
    adam = torch.optim.Adam(score.module.parameters(), 1e-2)
    n, point = 256, torch.tensor([0.5, -0.3])
    batch = Batch({"mask": torch.ones(n, 1, dtype=torch.bool), "context": torch.zeros(n, 3),
                   "action": point.expand(n, 2)})  # fmt: skip
    for i in range(300):
        loss = score(batch).denoising(noise(n, i)).mean()
        adam.zero_grad()
        loss.backward()
        adam.step()
    level = float(score.schedule.add[2] / score.schedule.keep[2])
    model = built(Filtered(rate=level**2), PLANE, base=built(GaussianPolicy((8,), log_std=-1.0), PLANE), score=score)
    drawn = model.sample(torch.zeros(100, 3), Sampling(), noise=noise(100))
    near, far = ((y - point).norm(dim=1).mean() for y in (drawn.taken, drawn.action))
    assert float(near) < 0.35 * float(far)


# ---------------------------------------------------------------- errors


def test_what_cannot_be_is_told() -> None:
    chain, plain = built(ChainPolicy(2, hidden=(8,))), built(GaussianPolicy((8,)))
    with pytest.raises(TypeError, match=r"steered: the model of role 'base' is a GaussianPolicy.*'chain'"):
        built(Steered(), base=plain)
    with pytest.raises(TypeError, match=r"filtered: the model of role 'score' is a GaussianPolicy.*'chain'"):
        built(Filtered(), base=chain, score=plain)
    with pytest.raises(ValueError, match=r"law 'noise' in 2 steps.*3 steps or more"):
        built(Filtered(steps=3), base=plain, score=chain)
    with pytest.raises(ValueError, match="law 'consistency'"):
        built(Filtered(), base=plain, score=built(ChainPolicy(2, "consistency", hidden=(8,))))
    with pytest.raises(ValueError, match="nobody knows of which noise the role 'base'"):
        built(Steered(), base=chain).decision(torch.zeros(1, 2))
    filtered = built(Filtered(), base=plain, score=chain)
    assert torch.equal(filtered.decision(torch.ones(1, 2))["action"], torch.ones(1, 2))
    with pytest.raises(ValueError, match="bound"):
        Steered(bound=0.0)
