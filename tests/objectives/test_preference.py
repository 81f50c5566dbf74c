"""Preference losses by hand-worked numbers: s of the better 0.5, of the worse -0.8, so a difference of 1.3."""

from math import exp, log1p

import pytest
import torch

from shuhari.batch import Batch
from shuhari.data import Ramp
from shuhari.needs import Need
from shuhari.objectives.preference import Kto, Preference
from shuhari.testing import context

CTX = context(count=5)
NAN = float("nan")
LIVE, REF = Need(("policy",), "log_prob", live=True), Need(("reference",), "log_prob")


def softplus(x):
    return log1p(exp(x))


def sigmoid(x):
    return 1 / (1 + exp(-x))


def rows(new, old, mask=None, **columns):
    new, old = torch.tensor(new), torch.tensor(old)
    mask = torch.ones(new.shape, dtype=torch.bool) if mask is None else torch.tensor(mask)
    return Batch({"mask": mask, "logp": old, LIVE.key: new.requires_grad_(), REF.key: old, **columns})


def pair():
    """Row 2 beats row 0: log pi -1 against -2, reference -1.5 against -1.2. The last position of row 2 and all of row 1
    do not count."""
    new = [[-0.7, -1.3, 0.0], [-9.0, -9.0, -9.0], [-0.4, -0.6, -5.0]]
    old = [[-1.0, -0.2, 0.0], [-1.0, -1.0, -1.0], [-0.9, -0.6, -7.0]]
    mask = [[True, True, False], [True, True, True], [True, True, False]]
    return rows(new, old, mask).link("pairs", torch.tensor([[2, 0]]))


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, softplus(-0.13)),
        ({"beta": 0.5}, softplus(-0.65)),
        ({"beta": Ramp(0.25, 0.75, over=10)}, softplus(-0.65)),
        ({"label_smoothing": 0.2}, 0.8 * softplus(-0.13) + 0.2 * softplus(0.13)),
        ({"form": "hinge"}, 0.87),
        ({"form": "hinge", "beta": 1.0}, 0.0),
        ({"form": "ipo"}, (1.3 - 5) ** 2),
        ({"form": "ipo", "level": "sequence"}, (0.25 + 0.4 - 5) ** 2),  # the mean over tokens, as TRL has it
        ({"margin": 0.4}, softplus(-0.13 + 0.4)),
        ({"reference_free": True}, softplus(-0.1)),
        # SimPO: the mean log-probabilities are -0.5 and -1
        ({"reference_free": True, "level": "sequence", "beta": 2.0, "margin": 0.5}, softplus(-(2 * 0.5 - 0.5))),
    ],
)
def test_the_losses_of_a_pair_by_hand(settings, expected):
    loss, info = Preference(**settings)(pair(), CTX)
    assert loss.shape == (1,) and loss.item() == pytest.approx(expected, rel=1e-5, abs=1e-6)
    assert info["accuracy"].tolist() == [1.0] and not any(v.requires_grad for v in info.values())


def test_the_gradient_is_that_of_equation_7():
    """beta sigma(-h) up for each token of the better, down for each of the worse; nothing else moves."""
    batch = pair()
    loss, info = Preference(beta=0.1)(batch, CTX)
    (gradient,) = torch.autograd.grad(loss.sum(), batch[LIVE])
    g = 0.1 * sigmoid(-0.13)
    torch.testing.assert_close(gradient, torch.tensor([[g, g, 0.0], [0.0, 0.0, 0.0], [-g, -g, 0.0]]))
    got = [info[k].item() for k in ("chosen", "rejected", "margin")]
    assert got == pytest.approx([0.05, -0.08, 0.13])


def test_a_pair_the_wrong_way_round_is_seen_as_wrong():
    batch = pair()
    swapped = batch.link("pairs", torch.tensor([[0, 2]]))
    loss, info = Preference()(swapped, CTX)
    assert loss.item() == pytest.approx(softplus(0.13)) and info["accuracy"].item() == 0


def test_a_tie_is_not_seen_as_right():
    """As at the first step, where policy and reference are one model."""
    batch = pair()
    assert Preference()(batch.link("pairs", torch.tensor([[0, 0]])), CTX)[1]["accuracy"].item() == 0


def told(settings, **columns):
    """The loss and the info of the pair whose links have some columns."""
    index = torch.tensor([[2, 0]])
    batch = pair().link("pairs", index, {k: torch.tensor([v]) for k, v in columns.items()})
    loss, info = Preference(**settings)(batch, CTX)
    return loss.item(), info, batch, loss


@pytest.mark.parametrize(
    ("settings", "columns", "expected"),
    [
        ({}, {"margin": 0.4}, softplus(-0.13 + 0.4)),
        ({"margin": 0.1}, {"margin": 0.4}, softplus(-0.13 + 0.5)),  # both
        ({}, {"margin": NAN}, softplus(-0.13)),
        ({"form": "hinge"}, {"margin": -0.5}, 1 - 0.63),
        ({"form": "ipo"}, {"margin": 0.1}, (1.3 - 1 - 5) ** 2),  # h / beta is less by 0.1 / beta
        ({}, {"label": 0.7}, 0.7 * softplus(-0.13) + 0.3 * softplus(0.13)),
        ({}, {"label": 0.0}, softplus(0.13)),
        ({}, {"label": NAN}, softplus(-0.13)),
        ({}, {"label": 0.7, "margin": 0.4}, 0.7 * softplus(0.27) + 0.3 * softplus(-0.27)),
        ({"label_smoothing": 0.2}, {"label": 1.0}, 0.8 * softplus(-0.13) + 0.2 * softplus(0.13)),
        ({"label_smoothing": 0.2}, {"label": 0.7}, 0.62 * softplus(-0.13) + 0.38 * softplus(0.13)),
        ({"form": "hinge"}, {"label": 0.7}, 0.7 * 0.87 + 0.3 * 1.13),
    ],
)
def test_what_a_pair_says_of_itself_by_hand(settings, columns, expected):
    assert told(settings, **columns)[0] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("form", ["sigmoid", "hinge", "ipo"])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_a_margin_of_0_and_a_label_of_1_say_nothing(form, smoothing):
    settings = {"form": form, "label_smoothing": smoothing}
    plain, info, batch, loss = told(settings)
    same, also, other, lost = told(settings, margin=0.0, label=1.0, user=7.0)
    assert also["accuracy"].equal(info["accuracy"])
    (a,), (b,) = (torch.autograd.grad(x.sum(), y[LIVE]) for x, y in ((loss, batch), (lost, other)))
    torch.testing.assert_close(a, b)
    assert same == pytest.approx(plain) and (smoothing or (same == plain and a.equal(b)))  # to the bit


def test_the_gradient_of_a_soft_label_under_a_margin_is_that_of_the_formula():
    """d/dh of -p log sigma(h) - (1 - p) log sigma(-h) is sigma(h) - p, and h is beta times a difference of sums."""
    *_, batch, loss = told({}, label=0.7, margin=0.4)
    (gradient,) = torch.autograd.grad(loss.sum(), batch[LIVE])
    g = 0.1 * (0.7 - sigmoid(0.13 - 0.4))
    torch.testing.assert_close(gradient, torch.tensor([[g, g, 0.0], [0.0, 0.0, 0.0], [-g, -g, 0.0]]))
    x = torch.tensor([-0.7, -1.3, -0.4, -0.6], requires_grad=True)  # the same by autograd of what the paper writes
    h = 0.1 * ((x[2:].sum() + 1.5) - (x[:2].sum() + 1.2)) - 0.4
    (-0.7 * h.sigmoid().log() - 0.3 * (1 - h.sigmoid()).log()).backward()
    torch.testing.assert_close(gradient[[0, 2], :2].flatten(), x.grad)


def test_a_pair_that_its_label_turns_round_is_right_the_other_way():
    assert told({}, label=0.4)[1]["accuracy"].item() == 0 and told({}, label=0.6)[1]["accuracy"].item() == 1


@pytest.mark.parametrize(("column", "value"), [("label", 1.5), ("label", -0.1), ("weight", -1.0)])
def test_what_a_pair_cannot_say_is_named(column, value):
    with pytest.raises(ValueError, match=f"links 'pairs': a {column} is {value:g}: expected"):
        told({}, **{column: value})


def test_samples_of_several_rows_are_summed_over_their_episode():
    episode, parent = torch.tensor([0, 0, 1]), torch.tensor([-1, 0, -1])
    batch = rows([[0.1], [0.4], [-0.8]], [[0.0]] * 3, episode=episode, parent=parent).link(
        "pairs", torch.tensor([[1, 2]])
    )
    assert Preference(level="episode")(batch, CTX)[0].item() == pytest.approx(softplus(-0.13))
    assert Preference()(batch, CTX)[0].item() == pytest.approx(softplus(-0.12))


def labelled():
    """s = 0.5 good, -0.2 bad, 0.6 good, and a fourth row that nobody labelled."""
    return rows([[-0.5], [-1.2], [-0.4], [2.0]], [[-1.0]] * 4).link(
        "labels", torch.tensor([[0], [1], [2]]), {"label": torch.tensor([1.0, 0.0, 1.0])}
    )


def test_kto_by_hand():
    """z0 is the mean 0.3 of what was labelled, and no gradient flows through it."""
    batch = labelled()
    loss, info = Kto(beta=0.5, desirable=1.5, undesirable=2.0)(batch, CTX)
    logits = [0.5 * (0.5 - 0.3), 0.5 * (0.3 + 0.2), 0.5 * (0.6 - 0.3)]
    weights = [1.5, 2.0, 1.5]
    assert loss.tolist() == pytest.approx([w * (1 - sigmoid(x)) for w, x in zip(weights, logits, strict=True)])
    assert info["kl"].item() == pytest.approx(0.3)
    assert info["chosen"].tolist() == pytest.approx([0.25, 0.3]) and info["rejected"].tolist() == pytest.approx([-0.1])
    (gradient,) = torch.autograd.grad(loss.sum(), batch[LIVE])
    slopes = [s * w * 0.5 * sigmoid(x) * sigmoid(-x) for s, w, x in zip((-1, 1, -1), weights, logits, strict=True)]
    assert gradient[:, 0].tolist() == pytest.approx([*slopes, 0.0])


def test_the_reference_point_is_of_mismatched_rows_where_there_are_any_and_never_negative():
    batch = labelled().link("mismatched", torch.tensor([[3], [1]]))  # s = 3 and -0.2
    assert Kto()(batch, CTX)[1]["kl"].item() == pytest.approx(1.4)
    loss, info = Kto(beta=1.0)(labelled().link("mismatched", torch.tensor([[1]])), CTX)
    assert info["kl"].item() == 0 and loss.tolist() == pytest.approx([sigmoid(-0.5), sigmoid(-0.2), sigmoid(-0.6)])


def test_without_links_nothing_is_learnt_and_without_their_name_it_is_told():
    batch = labelled().link("pairs", torch.zeros(0, 2, dtype=torch.long))
    assert Preference()(batch, CTX)[0].shape == (0,)
    empty = batch.link("labels", torch.zeros(0, 1, dtype=torch.long), {"label": torch.zeros(0)})
    loss, info = Kto()(empty, CTX)
    assert loss.shape == (0,) and info["kl"] == 0
    with pytest.raises(KeyError, match=r"no links 'paris' .* did you mean 'pairs'.*transform.pairs"):
        Preference(links="paris")(batch, CTX)


def test_what_is_asked():
    assert Preference().needs == (LIVE, REF) and Preference(reference_free=True).needs == (LIVE,)
    assert Preference().couples == Kto().couples == "batch"
