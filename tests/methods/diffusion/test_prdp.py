"""PRDP's pairs: by hand, by algebra, and by enumeration."""

from __future__ import annotations

from itertools import combinations
from types import SimpleNamespace
from typing import Any, TypeAlias

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from shuhari.batch import Batch
from shuhari.data import Sampling
from shuhari.kernel.noise import CounterNoise, keys
from shuhari.methods.diffusion.prdp.proximal_pairs import ProximalPairs
from shuhari.models.chain import ChainPolicy
from shuhari.needs import Need
from shuhari.objectives.log_ratio import LogRatio
from shuhari.testing import context

CTX = context(count=5)
LIVE, OLD = Need(("policy",), "log_prob", live=True), Need(("policy",), "log_prob")
REF = Need(("reference",), "log_prob")


Objective: TypeAlias = LogRatio | ProximalPairs


def prdp(beta: float = 1.0, hold: float = 0.1) -> ProximalPairs:
    return ProximalPairs(beta=beta, hold=hold)


def rows(moved: Any, rewards: Any, group: Any = None, before: float = 0.0) -> Batch:
    """Log-ratios to the policy before the update `moved` [B, K], which has one of `before` to the reference."""
    x = torch.as_tensor(moved, dtype=torch.float64).view(len(rewards), -1)
    old, ref = torch.full_like(x, -1.0), torch.full_like(x, -1.0 - before)
    advantage = torch.as_tensor(rewards, dtype=torch.float64)[:, None].expand_as(x)
    return Batch({
        "mask": torch.ones(x.shape, dtype=torch.bool), "advantage": advantage, LIVE.key: (x + old).requires_grad_(),
        OLD.key: old, REF.key: ref, "group": torch.zeros(len(x), dtype=torch.long) if group is None else group,
    })  # fmt: skip


def slope(objective: Objective, batch: Batch) -> tuple[float, Tensor]:
    loss = objective(batch, CTX)[0].mean()
    return float(loss.detach()), torch.autograd.grad(loss, batch[LIVE])[0]


def test_a_pair_by_hand() -> None:
    """beta 2, log-ratios .3 and -.1, rewards 1 and 0: (0.8 - 1)² = 0.04, over 2 beta and less a constant."""
    assert slope(prdp(2.0, 9.0), rows([0.3, -0.1], [1.0, 0.0]))[0] == pytest.approx((0.04 - 1.0) / 4)


def test_a_wide_clip_is_none() -> None:
    s, r = [0.4, -0.3, 0.1, 0.7, 0.2, 0.0], [0.2, 0.9, 0.0, 1.0, 0.5, 0.1]
    group = torch.tensor([0, 0, 0, 0, 1, 1])
    plain = LogRatio(centre="leave-one-out", over="reference", beta=0.5)
    one, two = (slope(o, rows(s, r, group)) for o in (prdp(0.5, 9.0), plain))
    assert one[0] == pytest.approx(two[0])
    torch.testing.assert_close(one[1], two[1])


def test_a_group_is_the_mean_over_its_pairs_of_the_larger_error() -> None:
    """Of four samples of two steps, one clipped here and there: 4 / (2 x 3) of the mean, over 2 beta."""
    moved = torch.tensor([[0.4, -0.02], [-0.3, 0.05], [0.1, 0.09], [0.0, 0.7]], dtype=torch.float64)
    r, beta, before = [0.2, 0.9, 0.0, 1.0], 0.5, 0.25
    loss, g = slope(prdp(beta), rows(moved, r, before=before))
    x = moved.clone().requires_grad_()
    s, held = (x + before).sum(1), (x.clamp(-0.1, 0.1) + before).sum(1)
    pairs = [
        torch.maximum((r[i] - r[j] - beta * (s[i] - s[j])) ** 2, (r[i] - r[j] - beta * (held[i] - held[j])) ** 2)
        - (r[i] - r[j]) ** 2
        for i, j in combinations(range(4), 2)
    ]  # fmt: skip
    whole = 4 / (2 * 3) * torch.stack(pairs).mean() / (2 * beta)
    assert loss == pytest.approx(float(whole.detach()))
    torch.testing.assert_close(g, torch.autograd.grad(whole, x)[0])


def test_a_step_that_went_far_enough_gets_no_gradient_and_one_that_went_astray_does() -> None:
    """Steps are clipped, not their sum: of 0.3 and -0.3 nothing is left in the sum, and both are beyond 0.1."""
    g = slope(prdp(), rows([0.3, 0.0], [1.0, 0.0]))[1].flatten().tolist()  # 0.7² < 0.9²
    assert g == pytest.approx([0.0, 0.9])
    g = slope(prdp(), rows([0.3, 0.0], [0.0, 1.0]))[1].flatten().tolist()  # 1.3² > 1.1²
    assert g == pytest.approx([1.3, -1.3])
    _, info = prdp()(rows([[0.3, -0.3], [0.0, 0.05]], [1.0, 0.0]), CTX)
    assert info["held"].tolist() == [1.0, 0.0]


def test_at_the_reference_it_is_the_policy_gradient_and_what_prompts_differ_in_falls_out() -> None:
    """-(r - the mean of the others) of each, twice over the pairs; a prompt's own reward changes nothing."""
    r = torch.tensor([1.0, 0.0, 0.5, 0.5], dtype=torch.float64)
    group = torch.tensor([0, 0, 1, 1])
    g = slope(prdp(), rows([0.0] * 4, r, group))[1].flatten()
    assert g.tolist() == pytest.approx([-0.5, 0.5, 0.0, 0.0])
    again = slope(prdp(), rows([0.0] * 4, r + torch.tensor([7.0, 7.0, -3.0, -3.0]), group))[1].flatten()
    torch.testing.assert_close(g, again)


def test_its_fixed_point_is_the_tilt_of_the_reference() -> None:
    """Three outcomes, each pair of them alike often, in proximal updates of the whole table."""
    reference, r, beta = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64), torch.tensor([1.0, 0.0, 0.4]), 0.5
    which = torch.tensor([(i, j) for i in range(3) for j in range(3) if i != j]).flatten()
    group = torch.arange(6).repeat_interleave(2)
    z, ref = reference.log(), reference.log()[which][:, None]
    for _ in range(150):
        old = z.log_softmax(0)[which][:, None]
        for _ in range(4):
            x = z.clone().requires_grad_()
            batch = rows([0.0] * 12, r[which], group)
            live = x.log_softmax(0)[which][:, None]
            loss = prdp(beta, 0.3)(batch.put({LIVE.key: live, OLD.key: old, REF.key: ref}), CTX)[0].mean()
            z = z - 0.5 * torch.autograd.grad(loss, x)[0]
    tilt = reference * (r / beta).exp()
    assert z.softmax(0).tolist() == pytest.approx((tilt / tilt.sum()).tolist(), abs=1e-4)


def test_a_step_of_a_diffusion_is_the_difference_of_two_squares() -> None:
    """(|x - mean of the reference|² - |x - mean of the policy|²) / (2 sigma²), summed over the chain."""
    seen, does = spaces.Box(-np.inf, np.inf, (3,)), spaces.Box(-np.inf, np.inf, (2,))
    models = [ChainPolicy(law="ddpm", steps=4, hidden=(8,)) for _ in range(2)]
    for i, model in enumerate(models):
        torch.manual_seed(i)
        model.build(SimpleNamespace(spaces=lambda: (seen, does)))  # type: ignore[arg-type]
    points = torch.randn(5, 3)
    traces = models[0].sample(points, Sampling(), noise=CounterNoise(keys(1, n=5)))
    mask = torch.ones(5, 4, dtype=torch.bool)
    batch = Batch({"mask": mask, "context": points, "action": traces.action, **traces.info})
    laws = [model(batch).steps.law for model in models]
    after = torch.cat([batch["chain"][:, 1:], batch["action"][:, None]], 1)
    far = [((after - law.mean) ** 2).sum(-1) for law in laws]
    wanted = (far[1] - far[0]) / (2 * laws[0].log_std[..., 0].exp() ** 2)
    torch.testing.assert_close(models[0](batch).log_prob() - models[1](batch).log_prob(), wanted, atol=1e-4, rtol=1e-4)


def test_it_asks_for_the_policy_before_the_update_and_compares_a_group() -> None:
    assert prdp().needs == (LIVE, REF, OLD) and prdp().couples == "batch" and prdp().least_n == 2
    with pytest.raises(ValueError, match="hold"):
        ProximalPairs(hold=-0.1)
