"""TokenDist against torch.distributions, whole and in chunks."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Categorical, kl_divergence

from shuhari.models import tokens
from shuhari.models.tokens import NEVER, TokenDist

B, K, D, V = 3, 4, 5, 7


def make(seed: int = 0, width: int = V, **columns: Any) -> tuple[TokenDist, Tensor]:
    """A distribution over a random linear head, and its logits [B, K, V]; hidden and head want gradients."""
    g = torch.Generator().manual_seed(seed)
    hidden = torch.randn(B * K, D, generator=g, requires_grad=True)
    head = nn.Linear(D, width)
    with torch.no_grad():
        head.weight.copy_(torch.randn(width, D, generator=g))
    action = torch.randint(0, V, (B * K,), generator=torch.Generator().manual_seed(9))
    mask = torch.ones(B * K, dtype=torch.bool)
    fields = {"mask": mask, **columns}
    dist = TokenDist(hidden, action, head=head, vocabulary=width, shape=(B, K), **fields)
    return dist, head(hidden).view(B, K, width)


@pytest.fixture(params=["whole", "chunks"])
def _size(request, monkeypatch) -> None:
    if request.param == "chunks":
        monkeypatch.setattr(tokens, "ENTRIES", 2 * V)


@pytest.mark.usefixtures("_size")
def test_against_torch_distributions() -> None:
    (p, x), (q, y) = make(0), make(1)
    P, Q = Categorical(logits=x), Categorical(logits=y)
    torch.testing.assert_close(p.log_prob(), P.log_prob(p.action.view(B, K)))
    torch.testing.assert_close(p.entropy(), P.entropy())
    torch.testing.assert_close(p.kl(q), kl_divergence(P, Q))
    assert torch.equal(p.mode(), x.argmax(-1))
    torch.testing.assert_close(p.parameters(), x)
    assert torch.equal(p.features(), p.hidden.view(B, K, D))


@pytest.mark.usefixtures("_size")
def test_gradients_are_those_of_the_naive_computation() -> None:
    (p, x), (q, y) = make(0), make(1)
    weight = torch.randn(3, B, K, generator=torch.Generator().manual_seed(3))
    of = [p.hidden, p.head.weight, q.hidden, q.head.weight]

    def total(log_prob: Tensor, entropy: Tensor, kl: Tensor) -> Tensor:
        return (weight[0] * log_prob + weight[1] * entropy + weight[2] * kl).sum()

    got = torch.autograd.grad(total(p.log_prob(), p.entropy(), p.kl(q)), of)
    P, Q = Categorical(logits=x), Categorical(logits=y)
    want = torch.autograd.grad(total(P.log_prob(p.action.view(B, K)), P.entropy(), kl_divergence(P, Q)), of)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.usefixtures("_size")
def test_temperature_support_and_ban_restrict_the_distribution() -> None:
    temperature = torch.linspace(0.5, 2, B * K)
    support = torch.full((B * K, 3), -1)
    support[0] = torch.tensor([4, 1, 6])
    support[5] = torch.tensor([2, -1, -1])
    ban = torch.full((B * K, 2), -1)
    ban[1] = torch.tensor([0, 3])
    p, x = make(temperature=temperature, support=support, ban=ban)
    logits = (x.flatten(0, 1) / temperature[:, None]).detach()
    allowed = torch.ones(B * K, V, dtype=torch.bool)
    allowed[0], allowed[5] = False, False
    allowed[0, [4, 1, 6]], allowed[5, 2] = True, True
    allowed[1, [0, 3]] = False
    P = Categorical(logits=logits.masked_fill(~allowed, -torch.inf))
    p.action[:] = torch.where(allowed[torch.arange(B * K), p.action], p.action, allowed.int().argmax(1))
    torch.testing.assert_close(p.log_prob().flatten(), P.log_prob(p.action))
    torch.testing.assert_close(p.entropy().flatten(), P.entropy())
    assert p.parameters().view(-1, V)[5, 0] == NEVER
    p.action[0] = 0  # outside of the support: probability 0, and still a number
    assert p.log_prob()[0, 0] < -1e29 and p.entropy().isfinite().all()
    gradient = torch.autograd.grad(p.entropy().sum(), p.hidden)[0]
    assert gradient.isfinite().all()


@pytest.mark.usefixtures("_size")
def test_nothing_is_said_where_nothing_was_decided() -> None:
    mask = torch.arange(B * K) % 3 == 0
    (p, x), (q, _) = make(mask=mask), make(1, mask=mask)
    P = Categorical(logits=x)
    m = mask.view(B, K)
    torch.testing.assert_close(p.log_prob(), torch.where(m, P.log_prob(p.action.view(B, K)), 0.0))
    assert (p.kl(q)[~m] == 0).all() and (p.kl(q)[m] > 0).all()


def test_a_part_of_the_decisions() -> None:
    p, _ = make(temperature=torch.linspace(0.5, 2, B * K))
    index = torch.tensor([7, 2])
    part = p.at(index)
    assert part.shape == (2,)
    torch.testing.assert_close(part.log_prob(), p.log_prob().flatten()[index])
    torch.testing.assert_close(part.parameters(), p.parameters().view(-1, V)[index])
    assert part.parameters().shape == (2, V)


def test_a_distribution_made_without_gradient_gives_none() -> None:
    with torch.no_grad():
        reference, _ = make(1)
    policy, _ = make(0)
    assert not reference.log_prob().requires_grad and not reference.at(torch.tensor([1])).log_prob().requires_grad
    kl = policy.kl(reference)
    found = torch.autograd.grad(kl.sum(), [policy.head.weight, reference.head.weight], allow_unused=True)
    assert found[0] is not None and found[1] is None


def test_asked_first_without_gradient_and_then_with() -> None:
    p, _ = make()
    with torch.no_grad():
        assert not p.log_prob().requires_grad
    assert p.log_prob().requires_grad


def test_vocabularies_must_agree_and_a_value_needs_a_head() -> None:
    with pytest.raises(ValueError, match="7 and 8 tokens"):
        make()[0].kl(make(width=8)[0])
    with pytest.raises(AttributeError, match="value_head"):
        make()[0].value()
