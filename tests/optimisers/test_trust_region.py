"""Steps of CPO and PCPO by hand and against a solver of convex programmes; conjugate gradients; the line search."""

import math

import numpy as np
import pytest
import torch
from scipy import optimize
from torch import nn

from shuhari.config.recipe import RecipeError, load
from shuhari.loop.checks import make_stages
from shuhari.optimisers.trust_region import TrustRegion, solve, step_cpo, step_pcpo, step_trpo

G, B = torch.tensor([1.0, 1.0], dtype=torch.float64), torch.tensor([1.0, 0.0], dtype=torch.float64)


def test_the_numbers_of_a_unit_metric():
    assert step_cpo(G, B, 0.0, G, B, 0.5).tolist() == pytest.approx([0.0, 1.0])
    assert step_pcpo(G, B, 0.0, G, B, 0.5).tolist() == pytest.approx([0.0, math.sqrt(0.5)])
    # a limit that no step within the region reaches: TRPO's, along g to its edge
    assert step_cpo(G, B, -9.0, G, B, 0.5).tolist() == pytest.approx([math.sqrt(0.5)] * 2)
    assert step_cpo(G, B, -9.0, G, B, 0.5).tolist() == step_trpo(G, G, 0.5).tolist()
    assert step_pcpo(G, B, -9.0, G, B, 0.5).tolist() == step_trpo(G, G, 0.5).tolist()
    # exceeded beyond what a step mends: straight down the cost, to the edge
    assert step_cpo(G, B, 2.0, G, B, 0.5).tolist() == pytest.approx([-1.0, 0.0])
    # exceeded by what a step mends: on the limit, the rest of the region for the reward
    assert step_cpo(G, B, 0.6, G, B, 0.5).tolist() == pytest.approx([-0.6, 0.8])


@pytest.mark.parametrize("scale", [1e-12, 1e12])
@pytest.mark.parametrize("c", [-0.4, 0.0, 0.6, 2.0])
def test_units_of_reward_and_cost_do_not_matter(c, scale):
    for step in (step_cpo, step_pcpo):
        want = step(G, B, c, G, B, 0.5)
        torch.testing.assert_close(step(scale * G, B, c, scale * G, B, 0.5), want)
        torch.testing.assert_close(step(G, scale * B, scale * c, G, scale * B, 0.5), want)


def test_a_reward_along_the_cost_leaves_the_region_by_no_rounding():
    """Singles, and g a multiple of b: what is left of it beside the constraint is rounding, and is not blown up."""
    b = torch.rand(50, generator=torch.Generator().manual_seed(0))
    for times in (3.0, 1 / 3, 0.7):
        x = step_cpo(times * b, b, 0.0, times * b, b, 0.01)
        assert float(x @ x) / 2 <= 0.01 * 1.01 and abs(float(b @ x)) < 1e-3 * float(b.norm())


@pytest.mark.parametrize("c", [-0.4, -0.1, 0.0, 0.05, 0.3])
@pytest.mark.parametrize("seed", range(6))
def test_cpo_is_the_optimum_of_its_programme(seed, c):
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(3, 3))
    H, g, b, bound = root @ root.T + 0.3 * np.eye(3), rng.normal(size=3), rng.normal(size=3), 0.1
    if c**2 / (b @ np.linalg.solve(H, b)) > 2 * bound:
        pytest.skip("the plane misses the region")
    v, w = np.linalg.solve(H, g), np.linalg.solve(H, b)
    x = step_cpo(*(torch.tensor(y) if np.ndim(y) else y for y in (g, b, c, v, w)), bound).numpy()
    limits = [
        {"type": "ineq", "fun": lambda x: bound - x @ H @ x / 2},
        {"type": "ineq", "fun": lambda x: -(c + b @ x)},
    ]
    start = -max(c, 0.0) / (b @ w) * w  # the nearest that keeps to the limit
    best = optimize.minimize(lambda x: -g @ x, start, constraints=limits, tol=1e-12)
    assert x @ H @ x / 2 <= bound + 1e-9 and c + b @ x <= 1e-9
    assert g @ x == pytest.approx(-best.fun, abs=1e-5)


def test_conjugate_gradients_solve_in_as_many_steps_as_there_are_axes():
    root = torch.randn(6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    H, b = root @ root.T + torch.eye(6), torch.arange(6.0, dtype=torch.float64)
    torch.testing.assert_close(solve(lambda v: H @ v, b, 20), torch.linalg.solve(H, b))


class Quadratic:
    """Losses of parameters theta: reward -g'theta, kl theta'theta / 2, cost c + b'theta + bend theta'theta."""

    def __init__(self, theta, c=0.0, bend=0.0):
        self.theta, self.c, self.bend = theta, c, bend

    def losses(self):
        x, g, b = self.theta.flatten(), G.float(), B.float()
        return {"reward": -(g @ x), "kl": x @ x / 2, "cost": self.c + b @ x + self.bend * x @ x}

    def backward(self):
        return {}

    def values(self):
        return {k: float(v.detach()) for k, v in self.losses().items()}

    def gradients(self):
        return {k: torch.autograd.grad(v, self.theta)[0].flatten() for k, v in self.losses().items()}

    def hvp(self, term, vector):
        assert term == "kl"
        return vector


class Alone(Quadratic):
    """Without a cost."""

    def losses(self):
        return {k: v for k, v in super().losses().items() if k != "cost"}


def stepped(method, of=Quadratic, **more):
    theta = nn.Parameter(torch.zeros(1, 2))
    optimiser = TrustRegion(method, bound=0.5, damping=0.0)
    optimiser.bind([theta])
    info = optimiser.step(of(theta, **more), 0)
    return theta.detach().flatten().tolist(), info


def test_a_whole_step_moves_the_parameters():
    theta, info = stepped("trpo", Alone)
    assert theta[0] == theta[1] == pytest.approx(math.sqrt(0.5) * 0.8 ** info["search"]) and info["search"] < 2
    assert "bent" not in info
    theta, info = stepped("pcpo")
    assert theta == pytest.approx([0.0, math.sqrt(0.5)], abs=1e-6)
    assert info["gain"] == pytest.approx(math.sqrt(0.5)) and info["bent"] == 1.0
    assert all(stepped(method, c=-9.0)[1]["bent"] == 0.0 for method in ("cpo", "pcpo"))  # the limit is far


def test_the_search_looks_at_the_cost():
    # beyond its plane the cost bends upwards: at 0 any step along the plane costs, and nothing moves
    theta, info = stepped("cpo", bend=0.1)
    assert theta == [0.0, 0.0] and info["search"] == 15 and info["gain"] == 0
    # with room of 0.05 the longest step of 0.8^k that keeps to it: 0.1 theta^2 <= 0.05 asks for 0.8^k <= 0.71
    theta, info = stepped("cpo", c=-0.05, bend=0.1)
    assert 0 < info["search"] < 15
    assert -0.05 + theta[0] + 0.1 * (theta[0] ** 2 + theta[1] ** 2) <= 0


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"remove": ["terms.cost"], "terms.costs": {"use": "constraint"}}, r"terms\.cost: .*did you mean 'costs'"),
        ({"remove": ["terms.kl"]}, r"terms\.kl: none in stage 'main', and TrustRegion, as it is set, needs it"),
        ({"optimiser.method": "trpo"}, r"terms\.cost: one in stage .* has no use: expected none"),
        ({"remove": ["terms.reward"]}, r"part\.policy\.terms: cost, kl in stage .* needs a loss beside them"),
    ],
)
def test_terms_that_do_not_fit_are_told_before_the_first_step(changes, said):
    cpo = load("control/cpo")
    make_stages(cpo.with_settings({"part.policy.optimiser.method": "trpo", "remove": ["part.policy.terms.cost"]}))
    removed = {"remove": [f"part.policy.{key}" for key in changes.get("remove", [])]}
    settings = removed | {f"part.policy.{k}": v for k, v in changes.items() if k != "remove"}
    with pytest.raises(RecipeError, match=said):
        make_stages(cpo.with_settings(settings))
