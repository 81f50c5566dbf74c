"""Safety by beginnings: Bayes' rule by hand, chunks by a loop, and what loss and gradient come of it."""

from __future__ import annotations

from math import log
from typing import Any

import pytest
import torch

from shuhari.batch import Batch
from shuhari.kernel.reduce import reduced, weights
from shuhari.methods.data.star_dss.safety_weights import Safety, at_chunk_ends
from shuhari.objectives.divergence import Divergence
from shuhari.objectives.likelihood import Nll
from shuhari.testing import context

CTX: Any = context()


def shaped(made: Safety, safe: list[list[float]], unsafe: list[list[float]], mask: Any = None) -> tuple[Any, Any]:
    """The two weights, of log-probabilities that are logs of these."""
    p, q = torch.tensor(safe).log(), torch.tensor(unsafe).log()
    mask = torch.ones(p.shape, dtype=torch.bool) if mask is None else torch.tensor(mask, dtype=torch.bool)
    columns = dict(zip((n.key for n in made.needs), (p, q), strict=True))
    batch = made(Batch({"mask": mask, "weight/ce": mask.float(), **columns}), CTX)
    return batch["weight/ce"], batch["weight/held"]


def test_bayes_by_hand() -> None:
    """Of equal priors: 1/2 : 1/4 is 2/3, then times 1/4 : 1/1 is 1/2 : 1, a third. With 3 of 4 safe: 6/7 and 3/5."""
    for prior, wanted in ((0.5, [2 / 3, 1 / 3]), (0.75, [6 / 7, 3 / 5])):
        ce, held = shaped(Safety(size=1, prior=prior), [[0.5, 0.25]], [[0.25, 1.0]])
        torch.testing.assert_close(ce, torch.tensor([wanted]))
        torch.testing.assert_close(held, 1 - torch.tensor([wanted]))


def test_one_chunk_is_one_score_for_the_answer() -> None:
    safe, unsafe = [[0.5, 0.25, 0.3], [0.9, 0.1, 1.0]], [[0.25, 1.0, 0.1], [0.1, 0.9, 0.5]]
    whole, by_chunk = (shaped(made, safe, unsafe) for made in (Safety(by="answer"), Safety(size=3)))
    for a, b in zip(whole, by_chunk, strict=True):
        torch.testing.assert_close(a, b)
        assert (a == a[:, :1]).all()
    torch.testing.assert_close(whole[0][:, 0], torch.tensor([0.5 / 0.25 * 0.25 * 3 / (1 + 1.5), 2 / 3]))


def test_rejection_and_nothing() -> None:
    """Odds of 3/2 and of 1/2."""
    ce, held = shaped(Safety(by="reject"), [[0.5, 0.75], [1.0, 0.25]], [[0.5, 0.5], [1.0, 0.5]])
    assert ce.tolist() == [[1, 1], [0, 0]] and not held.any()
    ce, held = shaped(Safety(by="nothing"), [[0.5], [0.1]], [[0.5], [1.0]])
    assert ce.eq(1).all() and not held.any()


@pytest.mark.parametrize("size", [1, 2, 3, 9])
def test_a_chunk_has_the_number_of_its_end(size: int) -> None:
    """Against a loop, with gaps between decisions; what lies between them is not asked for."""
    mask = torch.rand(20, 8, generator=torch.Generator().manual_seed(size)) < 0.7
    x = torch.arange(160.0).view(20, 8)
    found = at_chunk_ends(x, mask, size)
    for row in range(20):
        places = mask[row].nonzero().flatten().tolist()
        for i, place in enumerate(places):
            ending = places[min((i // size + 1) * size, len(places)) - 1]
            assert found[row, place] == x[row, ending]


def losses(ce: Any, held: Any, logits: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """Imitation and KL as the learner reduces them, a mean over decisions each; the ids that are shown are 0."""
    from shuhari.models.categorical import Categorical
    from shuhari.needs import evaluate

    mask = torch.ones(ce.shape, dtype=torch.bool)
    batch = Batch({"mask": mask, "action": torch.zeros(ce.shape, dtype=torch.long)})
    models = {
        "policy": lambda b: Categorical(logits, b["action"]), "reference": lambda b: Categorical(reference, b["action"])
    }
    total = torch.zeros(())
    for objective, weight in ((Nll(), ce), (Divergence(form="exact"), held)):
        loss, _ = objective(batch.put(evaluate(batch, objective.needs, models, trains=("policy",))), CTX)
        total = total + reduced(loss, weights(weight, batch, "decision"))
    return total


def test_the_loss_by_hand() -> None:
    """Two decisions, S = (1, 0), pi = pi_ref, one half each: half of log 2, and no gradient where S is 0."""
    z = torch.zeros(1, 2, 2, requires_grad=True)
    ce, _ = shaped(Safety(size=1), [[1.0, 1e-30]], [[1e-30, 1.0]])
    assert ce[0, 0] > 0.999 and ce[0, 1] == pytest.approx(0.5)  # what was safe so far is undone
    loss = losses(torch.tensor([[1.0, 1e-6]]), torch.tensor([[1e-6, 1.0]]), z, torch.zeros(1, 2, 2))
    assert loss.item() == pytest.approx(log(2) / 2, abs=1e-5)
    (gradient,) = torch.autograd.grad(loss, z)
    assert gradient[0, 1].abs().max() < 1e-6 and gradient[0, 0].tolist() == pytest.approx([-0.25, 0.25])


def test_half_safe_is_the_mean_of_both_gradients() -> None:
    z = torch.randn(1, 2, 3, generator=torch.Generator().manual_seed(0), requires_grad=True)
    reference = torch.randn(1, 2, 3, generator=torch.Generator().manual_seed(1))
    one, no = torch.ones(1, 2), torch.full((1, 2), 1e-12)
    imitate, hold, both = (
        torch.autograd.grad(losses(ce, held, z, reference), z)[0]
        for ce, held in ((one, no), (no, one), (one / 2, one / 2))
    )
    torch.testing.assert_close(both, (imitate + hold) / 2)


def test_rows_that_go_on_are_refused() -> None:
    made = Safety()
    columns = {n.key: torch.zeros(2, 1) for n in made.needs}
    batch = Batch({"mask": torch.ones(2, 1, dtype=torch.bool), "child": torch.tensor([1, -1]), **columns})
    with pytest.raises(ValueError, match="one row an answer"):
        made(batch, CTX)
