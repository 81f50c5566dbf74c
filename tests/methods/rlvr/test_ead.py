"""Annealed temperatures: the law by hand, requests, samples of a model, and the gradient by enumeration."""

from __future__ import annotations

import asyncio
from math import exp, inf, log
from typing import Any

import pytest
import torch

from shuhari.batch import Batch
from shuhari.config.recipe import load
from shuhari.data import Problem, Ramp, Request, Sampling
from shuhari.loop.run import loop, open_run
from shuhari.methods.rlvr.ead.annealed_temperature import Annealed, find_temperature
from shuhari.methods.rlvr.ead.untempered_logp import Unheated
from shuhari.objectives.clip import Clip
from shuhari.ports import Curriculum
from shuhari.testing import context


class Given:
    """A curriculum that asks for these."""

    stamps = ()

    def __init__(self, *requests: Request) -> None:
        self.requests = requests

    async def select(self, n: int, ctx: Any) -> list[Request]:
        return list(self.requests[:n])


REQUEST = Request(Problem("t", "a", "a"))
curriculum: Curriculum = Annealed(Given())


def each(n: int, high: float = 1.2, low: float = 0.1, decay: float = 1.0, plain: int = 0) -> list[float]:
    temperature = find_temperature(n, high, low, decay, plain)
    return Sampling(temperature=temperature).temperatures(n).tolist()


def test_the_law_by_hand() -> None:
    """1.2 at first, 1 where e^x is 1.2, and from e^x = 2.1 on, x = 0.742, the floor."""
    assert each(4, decay=1 / log(1.2)) == pytest.approx([1.2, 1.0, 2.2 - 1.44, 2.2 - 1.728])
    assert each(3, decay=1 / 0.742) == pytest.approx([1.2, 0.1, 0.1], abs=1e-3)
    assert each(5, decay=10.0) == pytest.approx([2.2 - exp(n / 10) for n in range(5)])
    assert each(5, decay=10.0, plain=2) == pytest.approx([1.0, 1.0] + [2.2 - exp(n / 10) for n in (2, 3, 4)])


def test_where_it_stays_alike_it_is_a_number() -> None:
    assert find_temperature(9, 1.0, 1.0, 2.0, 3) == 1.0
    assert each(9, decay=1e12) == pytest.approx([1.2] * 9)
    assert each(3, decay=1e-300) == pytest.approx([1.2, 0.1, 0.1])  # nothing overflows
    assert find_temperature(9, 1.2, 0.1, 2.0, 9) == 1.0


def select(made: Annealed, count: float = 0.0, max_new: int = 4) -> list[Request]:
    return asyncio.run(made.select(9, context(count=count, sampling=Sampling(max_new=max_new))))


def test_requests_get_the_temperature_of_their_step_unless_they_have_their_own() -> None:
    own = Request(REQUEST.problem, sampling=Sampling(temperature=0.5))
    named = Request(REQUEST.problem, sampling={"temperature": 0.7})
    other = Request(REQUEST.problem, sampling={"top": 2})
    made = Annealed(Given(REQUEST, own, named, other), decay=2.0, growth=3.0, longest=7.0, plain=0)
    first, kept, said, more = select(made)
    assert kept is own and said is named and more.sampling == {"top": 2, **first.sampling}
    for count, d in ((0.0, 2.0), (1.0, 5.0), (9.0, 7.0)):
        ramp = select(made, count)[0].sampling["temperature"]  # type: ignore[index]
        assert isinstance(ramp, Ramp)
        assert [float(ramp(n)) for n in range(4)] == pytest.approx([max(2.2 - exp(n / d), 0.1) for n in range(4)])


def test_low_above_high_is_refused() -> None:
    with pytest.raises(ValueError, match=r"low is 1\.5 and high 1\.2"):
        Annealed(Given(), low=1.5)


def test_with_unbounded_weights_it_is_the_gradient_on_policy() -> None:
    """Three tokens: the mean over the sampler's draws of the weighted gradient is that over the policy's own, whatever
    the temperature; with weights up to 2 it is not."""
    z = torch.tensor([1.0, 0.0, -1.0], dtype=torch.float64, requires_grad=True)
    reward = torch.tensor([0.0, 1.0, 3.0], dtype=torch.float64)
    (wanted,) = torch.autograd.grad(-(z.softmax(0) * reward).sum(), z)
    found = {}
    for truncate in (inf, 2.0):
        made = Clip(behaviour="old", truncate=truncate, low=inf, high=inf)
        new = z.log_softmax(0)[:, None]
        sampler = (z.detach() / 0.5).log_softmax(0)
        columns = {"mask": torch.ones(3, 1, dtype=torch.bool), "logp": sampler[:, None], "advantage": reward[:, None]}
        keys = dict(zip([n.key for n in made.needs], (new, new.detach()), strict=True))
        loss, _ = made(Batch({**columns, **keys}), context())  # type: ignore[arg-type]
        (found[truncate],) = torch.autograd.grad((sampler.exp() * loss[:, 0]).sum(), z)
    torch.testing.assert_close(found[inf], wanted)
    assert not torch.allclose(found[2.0], wanted, atol=0.01)


def test_rows_are_scored_at_one() -> None:
    batch = Batch({"mask": torch.ones(2, 3, dtype=torch.bool), "temperature": torch.full((2, 3), 0.5)})
    assert Unheated()(batch, context())["temperature"].eq(1).all()  # type: ignore[arg-type]


def test_pi_old_is_at_one_and_the_sampler_is_not() -> None:
    """With one update a batch the ratio of the policy to its score before that is 1, and the weight, of that score over
    the sampler's at 1.2 and less, is what differs: as the batch is known at 1 before the learner scores it."""
    small = {"stage.warm-up.steps": 1, "steps": 1, "models.policy.hidden": 16, "buffer.size": 4, "evaluate.every": 0}
    curriculum = {"curriculum.decay": 9.0, "curriculum.plain": 0}
    *_, told = loop(open_run(load("rlvr/ead", settings={**small, **curriculum})))
    assert told["policy/ratio"] == pytest.approx(1, abs=1e-5)
    assert told["policy/sampler_kl"] > 0.01
