"""Forms of the preference loss by hand-worked numbers: s of the better 0.5, of the worse -0.8; beta 0.1 or 0.5."""

from __future__ import annotations

from math import exp, log, log1p

import pytest
import torch
from test_preference import CTX, LIVE, REF, pair, rows, sigmoid, softplus

from shuhari.batch import Batch
from shuhari.objectives.pair_losses import log1mexp
from shuhari.objectives.preference import Preference

E = 0.1


def losses(batch: Batch, **settings: object) -> list[float]:
    return Preference(**settings)(batch, CTX)[0].tolist()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        # (1 - e) of the loss as labelled less e of that of the other label, over 1 - 2 e
        ({"form": "robust", "label_smoothing": E}, (0.9 * softplus(-0.13) - 0.1 * softplus(0.13)) / 0.8),
        # KL of (sigma(h), sigma(-h)) to (1 - e, e)
        (
            {"form": "exo", "label_smoothing": E},
            sigmoid(0.13) * log(sigmoid(0.13) / 0.9) + sigmoid(-0.13) * log(sigmoid(-0.13) / 0.1),
        ),
        ({"form": "nca"}, softplus(-0.05) + 0.5 * softplus(0.05) + 0.5 * softplus(-0.08)),
        ({"form": "bco"}, softplus(-0.05) + softplus(-0.08)),
        ({"form": "sppo"}, (0.5 - 5) ** 2 + (-0.8 + 5) ** 2),
        ({"form": "apo_zero"}, sigmoid(-0.05) + sigmoid(-0.08)),
        ({"form": "apo_down"}, sigmoid(0.05) + sigmoid(-0.13)),
        (
            {"form": "discopop"},
            softplus(-0.13) * sigmoid(-0.13 / 0.05) + exp(-0.13) * sigmoid(0.13 / 0.05),
        ),
        ({"form": "aot"}, softplus(-0.13)),  # of one pair: nothing to sort
        ({"form": "aot_unpaired", "label_smoothing": 0.2}, 0.8 * softplus(-0.13) + 0.2 * softplus(0.13)),
        # 1 - exp(-s): 1 - e^-0.5 and 1 - e^0.8
        ({"divergence": "forward_kl"}, softplus(-0.1 * (exp(0.8) - exp(-0.5)))),
        ({"divergence": "js"}, softplus(-0.1 * (log(sigmoid(0.5)) - log(sigmoid(-0.8))))),
        ({"divergence": "alpha", "alpha": 0.5}, softplus(-0.1 * (exp(0.4) - exp(-0.25)) / 0.5)),
        ({"divergence": "alpha", "alpha": 1.0}, softplus(-0.13)),
        ({"form": "nll"}, 0.5),  # log pi of the better is -1, over two tokens
        # mean log-probabilities -0.5 and -1
        (
            {"form": "odds", "level": "sequence", "beta": 0.7},
            softplus(-(0.5 - (log(1 - exp(-0.5)) - log(1 - exp(-1.0))))),
        ),
    ],
)
def test_a_form_by_hand(settings: dict[str, object], expected: float) -> None:
    (loss,) = losses(pair(), **settings)
    assert loss == pytest.approx(expected, rel=1e-5, abs=1e-6)


def three() -> Batch:
    """Pairs (0, 1), (2, 3), (4, 5) of one token each: s of the better 0.5, -0.1, 0.3, of the worse 0.2, 0.4, -0.3."""
    new = [[-0.5], [-1.0], [-0.9], [-0.2], [-0.6], [-1.5]]
    old = [[-1.0], [-1.2], [-0.8], [-0.6], [-0.9], [-1.2]]
    return rows(new, old).link("pairs", torch.tensor([[0, 1], [2, 3], [4, 5]]))


def test_sorted_forms_compare_the_k_th_of_one_order_with_the_k_th_of_the_other() -> None:
    # sorted s: better -0.1, 0.3, 0.5; worse -0.3, 0.2, 0.4
    expected = [softplus(-x) for x in (0.2, 0.1, 0.1)]
    assert losses(three(), form="aot_unpaired", beta=1.0) == pytest.approx(expected, abs=1e-6)
    # margins of the policy 0.5, -0.8, 0.9, of the reference 0.2, -0.6, 0.3
    expected = [softplus(-x) for x in (-0.5, 0.3, 0.6)]
    assert losses(three(), form="aot", beta=1.0) == pytest.approx(expected, abs=1e-6)


def test_the_mean_of_nll_is_that_of_tokens() -> None:
    """Two better samples of two tokens and of one: -(-1 - 0.4) / 3."""
    mask = [[True, True], [True, False], [True, True]]
    batch = rows([[-0.7, -0.3], [-0.4, 0.0], [-2.0, -2.0]], [[0.0, 0.0]] * 3, mask)
    batch = batch.link("pairs", torch.tensor([[0, 2], [1, 2]]))
    found = losses(batch, form="nll")
    assert sum(found) / 2 == pytest.approx(1.4 / 3) and found == pytest.approx([2 / 3, 0.8 / 3])
    assert Preference(form="nll").needs == (LIVE,)


def test_a_tail_behind_the_shorter_sample_weighs_less() -> None:
    """Row 0 has three tokens of log-ratios 0.5, 0.1, 0.2, row 1 one of -0.4: two are the tail."""
    batch = rows([[-0.5, -0.9, -0.8], [-1.4, 0.0, 0.0]], [[-1.0] * 3] * 2, [[True] * 3, [True, False, False]])
    batch = batch.link("pairs", torch.tensor([[0, 1]]))
    for tail in (0.0, 0.5):
        expected = softplus(-(0.5 + tail * 0.3 + 0.4))
        assert losses(batch, tail=tail, beta=1.0) == pytest.approx([expected], abs=1e-6)


def test_labels_turn_a_pair_round() -> None:
    batch = pair().link("pairs", torch.tensor([[2, 0]]), {"label": torch.tensor([0.25])})
    straight, turned = softplus(-0.05) + softplus(-0.08), softplus(0.08) + softplus(0.05)
    assert losses(batch, form="bco") == pytest.approx([0.25 * straight + 0.75 * turned], abs=1e-6)


def test_gradients_are_those_of_differences() -> None:
    """Of every form, in double precision, of log-probabilities that matter."""
    old = torch.tensor([[-1.0], [-1.2], [-0.8], [-0.6]], dtype=torch.float64)
    forms = [{"form": f} for f in ("sigmoid", "ipo", "nca", "bco", "sppo", "apo_zero", "apo_down", "discopop", "nll")]
    forms += [{"form": f, "label_smoothing": 0.1} for f in ("exo", "robust", "aot", "aot_unpaired")]
    forms += [{"divergence": d} for d in ("forward_kl", "js", "alpha")] + [{"form": "odds", "level": "sequence"}]
    for settings in forms:
        term = Preference(**settings)  # type: ignore[arg-type]

        def total(new: torch.Tensor, term: Preference = term) -> torch.Tensor:
            columns = {"mask": torch.ones(4, 1, dtype=torch.bool), "logp": old, LIVE.key: new, REF.key: old}
            return term(Batch(columns).link("pairs", torch.tensor([[0, 1], [2, 3]])), CTX)[0].sum()

        at = torch.tensor([[-0.5], [-1.1], [-0.9], [-0.3]], dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(total, (at,)), settings


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"form": "bco", "label_smoothing": 0.1}, "label_smoothing is 0.1: form 'bco' has none"),
        ({"form": "exo"}, "label_smoothing is 0: form 'exo' expects a number above 0"),
        ({"form": "nca", "divergence": "js"}, "divergence is 'js'"),
        ({"form": "odds"}, "expects 'sequence'"),
        ({"form": "aot", "reference_free": True}, "compares with a reference"),
        ({"tail": 0.5, "level": "sequence"}, "tail is 0.5: expected level = 'row'"),
    ],
)
def test_settings_that_a_form_does_not_use_are_refused(settings: dict[str, object], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        Preference(**settings)  # type: ignore[arg-type]


def test_columns_and_margins_that_a_form_cannot_use_are_refused() -> None:
    links = torch.tensor([[2, 0]])
    with pytest.raises(ValueError, match="a column 'margin', which form 'sppo' cannot use"):
        losses(pair().link("pairs", links, {"margin": torch.tensor([1.0])}), form="sppo")
    with pytest.raises(ValueError, match="a column 'label', which form 'exo' cannot use"):
        losses(pair().link("pairs", links, {"label": torch.tensor([0.5])}), form="exo", label_smoothing=0.1)
    with pytest.raises(ValueError, match=r"margin is 0\.5: form 'bco' expects 0"):
        losses(pair(), form="bco", margin=0.5)


@pytest.mark.parametrize("x", [-1e-6, -0.1, -0.7, -5.0, -40.0])
def test_log1mexp(x: float) -> None:
    exact = log(-x) if x > -1e-5 else log1p(-exp(x))
    assert log1mexp(torch.tensor(x, dtype=torch.float64)).item() == pytest.approx(exact, rel=1e-5)
