"""FOCOPS as its recipe says it: its loss is least at the best policy of the trust region, and what it sets."""

from __future__ import annotations

import torch

from built import POLICY, built, holds
from shuhari.batch import Batch
from shuhari.objectives.constrained import Focops
from shuhari.testing import context


def test_numbers_of_the_paper() -> None:
    """lambda 1.5 and delta 0.02; both advantages standardised, and mixed without a division by 1 + nu."""
    gae, price = "learners.main.transforms", "learners.main.parts.multiplier.optimiser"
    stage = holds(
        "control/focops",
        {
            f"{POLICY}.terms.focops.objective": Focops(bound=0.02, temperature=1.5),
            f"{POLICY}.epochs": 10,
            f"{gae}.gae.scale": "batch",
            f"{gae}.cost_gae.scale": "batch",
            f"{gae}.constrain.share": False,
            f"{gae}.constrain.limit": 9.5,
            f"{price}.lr": 0.2,
            f"{price}.eps": 10.0,
            "models.multiplier.model.initial": 1.0,
        },
    )
    assert list(stage.learners["main"].parts["policy"].terms) == ["focops"]  # type: ignore[attr-defined]


def test_its_loss_is_least_at_the_best_policy_within_the_region() -> None:
    """pi* in proportion to pi_k exp(A / lambda), whose gradient is 0; at pi_k it is not. The actions come as often as
    pi_k draws them, and pi* is within the bound."""
    focops = built("control/focops").learners["main"].parts["policy"].terms["focops"].objective  # type: ignore[attr-defined]
    old, advantage = torch.tensor([0.5, 0.3, 0.2]).log(), torch.tensor([0.2, -0.1, -0.25])
    log_prob, divergence = focops.needs
    slopes = []
    for logits in (old + advantage / 1.5, old.clone()):
        new = logits.requires_grad_().log_softmax(0)
        kl = (new.exp() * (new - old)).sum()
        assert kl.item() < 0.02
        columns = {"logp": old[:, None], "advantage": advantage[:, None], "mask": torch.ones(3, 1, dtype=torch.bool)}
        batch = Batch({**columns, log_prob.key: new[:, None], divergence.key: kl.expand(3, 1)})
        loss, _ = focops(batch, context())
        slopes += torch.autograd.grad((old.exp() * loss[:, 0]).sum(), logits)
    torch.testing.assert_close(slopes[0], torch.zeros(3), atol=1e-6, rtol=0)
    assert float(slopes[1].abs().max()) > 0.02
