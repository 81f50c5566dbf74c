"""One choice, worked out by hand; and stop strings."""

import numpy as np
import pytest
import torch

from shuhari.data import Sampling
from shuhari.models.text.choice import choose, make_stops

P = torch.tensor([0.15, 0.5, 0.1, 0.25])  # by rank: ids 1, 3, 0, 2
LOGITS = P.log()[None]


def at(u: float, temperature: float = 1.0, ban: tuple[int, ...] = (), **settings):
    banned = torch.tensor(ban) if ban else None
    return choose(LOGITS, Sampling(**settings), temperature, torch.tensor([u], dtype=torch.float64), banned)


@pytest.mark.parametrize(("u", "token"), [(0.01, 0), (0.14, 0), (0.16, 1), (0.64, 1), (0.66, 2), (0.74, 2), (0.76, 3)])
def test_the_inverse_distribution_function_in_order_of_ids(u: float, token: int) -> None:
    choice = at(u)
    assert choice.ids.tolist() == [token] and choice.support is None
    assert choice.logp[0].exp().item() == pytest.approx(P[token].item())


@pytest.mark.parametrize(
    ("settings", "kept", "mass"),
    [
        ({"top_k": 2}, [1, 3], 0.75),
        ({"top_p": 0.5}, [1], 0.5),  # reached exactly
        ({"top_p": 0.51}, [1, 3], 0.75),
        ({"top_p": 0.76}, [1, 3, 0], 0.9),
        ({"min_p": 0.4}, [1, 3], 0.75),  # at least 0.2
        ({"min_p": 0.25}, [1, 3, 0], 0.9),  # at least 0.125
        ({"top_k": 3, "top_p": 0.8}, [1, 3], 0.75),  # of 0.9: 0.556, 0.278, 0.167
        ({"top_k": 3, "min_p": 0.9}, [1], 0.5),
    ],
)
def test_truncation_by_hand(settings: dict, kept: list[int], mass: float) -> None:
    choice = at(0.999, **settings)
    assert choice.support is not None and choice.support[0].tolist() == kept
    assert choice.ids.item() == kept[-1]
    assert choice.logp.exp().item() == pytest.approx(P[kept[-1]].item() / mass)
    assert at(1e-9, **settings).ids.item() == kept[0]


def test_rows_keep_different_numbers_of_ids() -> None:
    logits = torch.stack([P, torch.full((4,), 0.25)]).log()
    choice = choose(logits, Sampling(top_p=0.6), 1.0, torch.full((2,), 0.99, dtype=torch.float64))
    assert choice.support is not None and choice.support.tolist() == [[1, 3, -1], [0, 1, 2]]
    torch.testing.assert_close(choice.logp.exp(), torch.tensor([1 / 3, 1 / 3]))


def test_temperature_comes_before_truncation() -> None:
    hot = P.sqrt() / P.sqrt().sum()  # temperature 2: 0.201, 0.366, 0.164, 0.259
    choice = at(0.999, temperature=2.0, top_p=0.7)
    assert choice.support is not None and choice.support[0].tolist() == [1, 3, 0]
    assert choice.logp.exp().item() == pytest.approx((hot[0] / (1 - hot[2])).item(), rel=1e-5)


def test_a_ban_is_renormalised_and_never_drawn() -> None:
    for u in np.linspace(0.001, 0.999, 50):
        choice = at(float(u), ban=(1,))
        assert choice.ids.item() != 1
        assert choice.logp.exp().item() == pytest.approx((P[choice.ids] / 0.5).item())
    assert at(0.5, ban=(1,), top_k=1).ids.item() == 3


def test_greedy_takes_the_mode_at_the_log_probability_of_the_temperature() -> None:
    choice = at(0.999, greedy=True, temperature=2.0)
    assert choice.ids.item() == 1
    assert choice.logp.exp().item() == pytest.approx((P[1].sqrt() / P.sqrt().sum()).item())


def test_alternatives_are_those_of_the_distribution_drawn_from() -> None:
    top = at(0.5, top=2).top
    assert top is not None and top[0].tolist() == [[1, 3]]
    torch.testing.assert_close(top[1].exp(), torch.tensor([[0.5, 0.25]]))
    top = at(0.5, top=3, top_k=2).top
    assert top is not None and top[0].tolist() == [[1, 3]]
    torch.testing.assert_close(top[1].exp(), torch.tensor([[2 / 3, 1 / 3]]))


def test_frequencies_over_an_even_grid_are_the_probabilities() -> None:
    n = 2000
    u = (torch.arange(n, dtype=torch.float64) + 0.5) / n
    for settings, want in (({}, P), ({"top_k": 2}, torch.tensor([0, 2 / 3, 0, 1 / 3]))):
        ids = choose(LOGITS.expand(n, -1), Sampling(**settings), 1.0, u).ids
        assert (torch.bincount(ids, minlength=4) - n * want).abs().max() <= 1


def test_stop_strings_by_spelling_and_by_text() -> None:
    text = {2: "a", 3: "b", 4: "ab\n", -1: "?"}

    def decode(ids: np.ndarray) -> str:
        return "".join(text[i] for i in ids.tolist())

    tokens = np.array([[2, 3, 2], [2, 2, 3], [3, 2, 4], [2, 3, -1]], np.int32)
    spelled = make_stops(("ab",), [np.array([2, 3], np.int32)], decode)
    read = make_stops(("b\n", "aab"), None, decode)
    assert spelled is not None and read is not None
    assert spelled(tokens).tolist() == [False, True, False, False]
    assert read(tokens).tolist() == [False, True, True, False]
    assert spelled(tokens[:, :1]).tolist() == [False] * 4
    assert make_stops((), None, decode) is None
    with pytest.raises(ValueError, match="empty"):
        make_stops(("a", ""), None, decode)


def test_many_ids_are_drawn_as_few_are() -> None:
    """Blocks of ids: against the inverse distribution function in float64, with banned ids and at both ends."""
    V = 3000
    g = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(1, V, generator=g)
    ban = torch.tensor([0, 5, 700, *range(1024, 1280), V - 1])
    p = logits.double().index_fill(1, ban, -torch.inf).softmax(-1)
    sums = p.cumsum(-1)
    edges = torch.cat([sums[0] - 1e-6, sums[0] + 1e-6]).clamp(1e-12, 1 - 2**-53)  # both sides of each step
    u = torch.cat([edges, torch.rand(500, dtype=torch.float64, generator=g)])
    want = torch.searchsorted(sums, u[None])[0]
    choice = choose(logits.expand(len(u), -1), Sampling(), 1.0, u, ban)
    differ = (choice.ids != want).nonzero()[:, 0]  # only where u is within rounding of a step
    assert all((sums[0] - u[i]).abs().min() < 2e-6 for i in differ.tolist()) and len(differ) < 0.2 * len(u)
    assert (choice.ids[-500:] == want[-500:]).float().mean() > 0.99
    assert not torch.isin(choice.ids, ban).any()
    torch.testing.assert_close(choice.logp.double(), p[0, choice.ids].log(), atol=1e-5, rtol=0)


def test_each_row_has_its_temperature() -> None:
    t = torch.tensor([[0.5], [2.0]])
    u = torch.full((2,), 0.7, dtype=torch.float64)
    both = choose(LOGITS.expand(2, -1), Sampling(), t, u)
    for i in range(2):
        alone = choose(LOGITS, Sampling(), float(t[i]), u[:1])
        assert alone.ids[0] == both.ids[i] and alone.logp[0] == both.logp[i]
