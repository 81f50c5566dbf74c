"""Nash-MP by enumeration: the half-step's closed form, its rate to the equilibrium, and the roles that take turns."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from shuhari.config.build import build_stage
from shuhari.config.recipe import load
from shuhari.events import Committed, Updated

GAME = torch.tensor([[0.5, 0.9, 0.2], [0.1, 0.5, 0.8], [0.8, 0.2, 0.5]], dtype=torch.float64)  # round in a circle
ROLES = ("policy", "anchor", "opponent")


def prox(pi: Tensor, against: Tensor, reference: Tensor, beats: Tensor, beta: float, eta: float) -> Tensor:
    """The half-step from pi against another policy; log-probabilities [A]."""
    return ((pi + eta * beta * reference + eta * beats @ against.exp()) / (1 + eta * beta)).log_softmax(-1)


def find_gap(pi: Tensor, beats: Tensor, reference: Tensor, beta: float) -> Tensor:
    """How much more the best reply to pi earns in the game with the price beta on the KL; 0 at the equilibrium."""
    best = beta * (reference + beats @ pi.exp() / beta).logsumexp(-1)
    return best - (0.5 - beta * (pi.exp() * (pi - reference)).sum())


def test_the_half_step_maximises_what_the_terms_of_the_recipe_sum_up_to() -> None:
    """Policy gradient on the win rate, beta KL to the reference and KL / eta to the anchor: no gradient is left."""
    terms: Any = load("preference/nash_mp").stages[-1]["part"]["policy"]["terms"]
    beta, eta = terms["near"]["weight"], 1 / terms["prox"]["weight"]
    assert (beta, eta) == (0.1, 2.0) and terms["near"]["to"] == "reference" and terms["prox"]["to"] == "anchor"
    g = torch.Generator().manual_seed(1)
    pi, mu, ref = torch.randn(3, 3, generator=g, dtype=torch.float64).log_softmax(-1)
    theta = prox(pi, mu, ref, GAME, beta, eta).clone().requires_grad_()
    new = theta.log_softmax(-1)
    wins = GAME @ mu.exp()
    advantage = wins - new.exp().detach() @ wins
    loss = -(new.exp().detach() * advantage * new).sum()
    loss = loss + beta * (new.exp() * (new - ref)).sum() + (new.exp() * (new - pi)).sum() / eta
    (gradient,) = torch.autograd.grad(loss, theta)
    torch.testing.assert_close(gradient, torch.zeros_like(gradient), atol=1e-12, rtol=0)


@pytest.mark.parametrize("seed", range(3))
def test_each_iteration_shrinks_the_distance_to_the_equilibrium_by_its_rate(seed: int) -> None:
    beta, eta = 0.1, 2.0
    m = torch.rand(4, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    beats = 0.5 + (m - m.T) / 2
    ref = torch.full((4,), 0.25, dtype=torch.float64).log()
    path = [torch.randn(4, generator=torch.Generator().manual_seed(seed + 9), dtype=torch.float64).log_softmax(-1)]
    for _ in range(400):
        half = prox(path[-1], path[-1], ref, beats, beta, eta)
        path.append(prox(path[-1], half, ref, beats, beta, eta))
    assert float(find_gap(path[-1], beats, ref, beta)) == pytest.approx(0, abs=1e-9)
    kl = [float((path[-1].exp() * (path[-1] - p)).sum()) for p in path[:20]]
    assert all(after <= before / (1 + 2 * beta) + 1e-12 for before, after in pairwise(kl))


def make_roles() -> dict[str, Any]:
    roles = {name: SimpleNamespace(module=nn.Linear(1, 1)) for name in ROLES}
    for name in ROLES:
        set_weight(roles, name, 0.0)
    return roles


def set_weight(roles: dict[str, Any], name: str, value: float) -> None:
    with torch.no_grad():
        for weights in roles[name].module.parameters():
            weights.fill_(value)


def read_weights(roles: dict[str, Any]) -> tuple[float, ...]:
    return tuple(roles[name].module.weight.item() for name in ROLES)


def make_rules(half: int) -> list[Any]:
    """The rules of the recipe, in its order, with another length of a half-step."""
    moved = {"opponent.every": half, "anchor.every": 2 * half, "policy.every": 2 * half, "policy.first": half}
    sets = {f"stage.rl.follow.{key}": n for key, n in moved.items()}
    stage = build_stage(load("preference/nash_mp", settings=sets).stages[-1], {})
    return list(stage.follows.values())


def test_the_second_half_begins_at_the_anchor_against_the_half_step() -> None:
    """By hand: training moves the policy to 1, 2, 3 and 4, two updates a half."""
    roles, rules = make_roles(), make_rules(2)
    seen = []
    for value in (1.0, 2.0, 3.0, 4.0):
        set_weight(roles, "policy", value)
        for event in (Updated("main", {}), Committed(1)):  # the second is not counted
            for rule in rules:
                rule(roles, event)
        seen.append(read_weights(roles))
    assert seen == [(1.0, 0.0, 0.0), (0.0, 0.0, 2.0), (3.0, 0.0, 2.0), (4.0, 4.0, 4.0)]


def test_the_count_goes_on_where_it_was() -> None:
    roles, rules, again = make_roles(), make_rules(2), make_rules(2)
    set_weight(roles, "policy", 1.0)
    for rule, other in zip(rules, again, strict=True):
        rule(roles, Updated("main", {}))
        other.state = dict(rule.state)
        other(roles, Updated("main", {}))
    assert read_weights(roles) == (0.0, 0.0, 1.0)
