"""TokenDist against torch.distributions, whole and in chunks."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Categorical, kl_divergence
from torch.utils._python_dispatch import TorchDispatchMode

from shuhari.models.text import tokens
from shuhari.models.text.fused import taken_log_prob
from shuhari.models.text.tokens import NEVER, TokenDist

B, K, D, V = 3, 4, 5, 7


def make(seed: int = 0, width: int = V, linear: bool = False, **columns: Any) -> tuple[TokenDist, Tensor]:
    """A distribution over a random linear head, and its logits [B, K, V]; hidden and head want gradients. `linear`: the
    distribution knows the weights of its head."""
    g = torch.Generator().manual_seed(seed)
    hidden = torch.randn(B * K, D, generator=g, requires_grad=True)
    head = nn.Linear(D, width)
    with torch.no_grad():
        head.weight.copy_(torch.randn(width, D, generator=g))
        head.bias.copy_(torch.randn(width, generator=g))
    action = torch.randint(0, V, (B * K,), generator=torch.Generator().manual_seed(9))
    mask = torch.ones(B * K, dtype=torch.bool)
    fields = {"mask": mask, **columns}
    if linear:
        fields["linear"] = head.weight, head.bias
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


RESTRICTED = {
    "temperature": torch.linspace(0.5, 2, B * K),
    "support": torch.full((B * K, 3), -1).index_put((torch.tensor([0, 5]),), torch.tensor([[4, 1, 6], [2, -1, -1]])),
    "ban": torch.full((B * K, 2), -1).index_put((torch.tensor([1]),), torch.tensor([0, 3])),
    "suppressed": torch.tensor([5]),
    "mask": torch.arange(B * K) != 7,
}


@pytest.mark.usefixtures("_size")
@pytest.mark.parametrize("columns", [{}, {"stretch": 0.7}, RESTRICTED, {**RESTRICTED, "stretch": 1.3}])
def test_the_fused_log_probability_is_that_of_the_whole_softmax(columns) -> None:
    stretch = columns.get("stretch", 1.0)
    (a, _), (b, _) = make(linear=True, **columns), make(**columns)
    head = b.head
    b.head = lambda hidden: head(hidden) * stretch
    weight = torch.randn(B, K, generator=torch.Generator().manual_seed(3))
    possible = b.log_prob() > -1e29  # a token outside of what was possible has a log-probability, and no gradient
    torch.testing.assert_close(a.log_prob(), b.log_prob(), rtol=1e-5, atol=1e-6)
    assert ("support" in columns) == (not possible.all())
    for x in (weight, weight * possible):
        of = [(d.hidden, h.weight, h.bias) for d, h in ((a, a.head), (b, head))]
        got, want = (
            torch.autograd.grad((d.log_prob() * x).sum(), p, retain_graph=True) for d, p in zip((a, b), of, strict=True)
        )
        if x is weight and not possible.all():
            assert all(g.isfinite().all() for g in got)
            continue
        for g, w in zip(got, want, strict=True):
            torch.testing.assert_close(g, w, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("chunk", [2, 100])
def test_the_fused_log_probability_has_the_gradient_that_it_says(chunk) -> None:
    g = torch.Generator().manual_seed(0)
    hidden, weight, bias = (torch.randn(*s, generator=g, dtype=torch.float64) for s in ((5, 3), (V, 3), (V,)))
    scale, action = torch.rand(5, 1, generator=g, dtype=torch.float64) + 0.5, torch.tensor([0, 6, 2, 2, 4])

    def f(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return taken_log_prob(hidden, weight, bias, action, lambda z, s: z.index_fill_(1, torch.tensor([5]), NEVER),
                              scale, chunk)  # fmt: skip

    inputs = [x.requires_grad_() for x in (hidden, weight, bias)]
    assert torch.autograd.gradcheck(f, inputs)
    assert torch.autograd.gradcheck(lambda h, w: f(h, w, None), inputs[:2])


@pytest.mark.parametrize("chunk", [1, 100])
def test_what_is_wholly_ruled_out_has_no_gradient(chunk) -> None:
    """Row 1 may say nothing: its logits are constants."""
    g = torch.Generator().manual_seed(0)
    hidden, weight = (torch.randn(*s, generator=g, dtype=torch.float64) for s in ((3, 4), (V, 4)))
    action, out = torch.tensor([0, 1, 2]), torch.tensor([[False], [True], [False]])

    def fused(h: Tensor, w: Tensor) -> Tensor:
        return taken_log_prob(h, w, None, action, lambda z, s: z.masked_fill_(out[s], NEVER), None, chunk)

    def plain(h: Tensor, w: Tensor) -> Tensor:
        return (h @ w.T).masked_fill(out, NEVER).log_softmax(-1).gather(1, action[:, None])

    inputs = [x.requires_grad_() for x in (hidden, weight)]
    got, want = (torch.autograd.grad(f(*inputs).sum(), inputs) for f in (fused, plain))
    assert not got[0][1].any()
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize("grad", [True, False])
def test_probabilities_are_kept_for_a_gradient_only(monkeypatch, grad) -> None:
    exps, exp = [], Tensor.exp_
    monkeypatch.setattr(Tensor, "exp_", lambda x: exps.append(len(x)) or exp(x))
    (dist, _) = make(linear=True)
    with torch.set_grad_enabled(grad):
        dist.log_prob()
    assert bool(exps) == grad


def test_many_decisions_never_stand_over_the_vocabulary_at_once(monkeypatch) -> None:
    n, width, chunk = 64, 500, 8
    monkeypatch.setattr(tokens, "ENTRIES", chunk * width)
    head = nn.Linear(4, width)
    dist = TokenDist(
        hidden=torch.randn(n, 4, requires_grad=True), action=torch.arange(n), mask=torch.ones(n, dtype=torch.bool),
        head=head, vocabulary=width, shape=(n, 1), linear=(head.weight, head.bias),
    )  # fmt: skip
    largest = 0

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            nonlocal largest
            out = func(*args, **(kwargs or {}))
            for x in out if isinstance(out, tuple | list) else (out,):
                if isinstance(x, Tensor):
                    largest = max(largest, x.numel())
            return out

    with Watch():
        dist.log_prob().sum().backward()
    assert head.weight.grad is not None and largest == chunk * width
    largest, head.weight.grad = 0, None
    monkeypatch.setattr(tokens, "ENTRIES", n * width)
    with Watch():
        dist.log_prob().sum().backward()
    assert largest == n * width  # what the measure sees where all of it may stand


def test_a_frozen_head_gives_the_hidden_states_their_gradient_whatever_the_chunk() -> None:
    """As one chunk, which keeps its probabilities, and as several, which keep a slope for each decision; the head's own
    gradient, where it is asked for, makes them do it the third way."""
    gen = torch.Generator().manual_seed(3)
    hidden, weight = torch.randn(7, 4, generator=gen), torch.randn(9, 4, generator=gen)
    action, scale = torch.randint(9, (7,), generator=gen), torch.rand(7, 1, generator=gen) + 0.5
    up, never = torch.randn(7, generator=gen), torch.zeros(7, 9, dtype=torch.bool)
    never[2, action[2]] = True  # impossible: a constant

    def slope(chunk: int, own: bool) -> Tensor:
        h, w = hidden.clone().requires_grad_(), weight.clone().requires_grad_(own)
        told = taken_log_prob(h, w, None, action, lambda z, s: z.masked_fill_(never[s], NEVER), scale, chunk)
        told.backward(up)
        assert h.grad is not None
        return h.grad

    want = slope(7, False)
    assert not bool(want[2].any())
    assert bool(want[3].any())
    for chunk, own in ((2, False), (1, False), (2, True)):
        torch.testing.assert_close(slope(chunk, own), want)


def test_only_some_positions_have_a_hidden_state() -> None:
    """Decisions have one, and here position 3, which is none, has one too."""
    mask = torch.arange(B * K) % 4 == 1
    seen = mask.clone()
    seen[3] = True
    full, _ = make(mask=mask, scalar=lambda h: h.sum(-1))
    for linear in (True, False):
        part, _ = make(mask=mask, scalar=lambda h: h.sum(-1), linear=linear)
        part = replace(part, hidden=part.hidden[seen], seen=seen)
        torch.testing.assert_close(part.log_prob(), full.log_prob())
        torch.testing.assert_close(part.entropy(), full.entropy())
        s = seen.view(B, K)
        torch.testing.assert_close(part.value(), torch.where(s, full.value(), 0.0))
        torch.testing.assert_close(part.features(), torch.where(s[..., None], full.features(), 0.0))
        torch.testing.assert_close(part.parameters(), torch.where(s[..., None], full.parameters(), 0.0))
        index = torch.tensor([9, 1])
        torch.testing.assert_close(part.at(index).log_prob(), full.log_prob().flatten()[index])
        torch.testing.assert_close(part.at(index).value(), full.value().flatten()[index])
