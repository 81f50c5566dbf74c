"""What a component may ask of a run: streams by step, phase and name; requests filled in; costs under their tags."""

from __future__ import annotations

import asyncio

import pytest
import torch

from grading import context, requests
from shuhari.batch import Batch
from shuhari.data import Problem, Ramp, Request, Sampling


def graded(problem, sample):
    return {"score": 1.0}


def batch(n: int, **columns: torch.Tensor) -> Batch:
    return Batch({"mask": torch.ones(n, 1, dtype=torch.bool), **columns})


def test_noise_is_that_of_the_step_the_phase_the_name_and_the_row() -> None:
    ctx = context(graded)

    def drawn(step=3, within=("main", 0), name="fresh") -> torch.Tensor:
        ctx.step, ctx.within = step, within
        return ctx.noise(batch(4), name).uniform(0)

    assert torch.equal(drawn(), drawn())
    others = [drawn(step=4), drawn(within=("main", 1)), drawn(within=("collect", 0)), drawn(name="next")]
    for i, a in enumerate([drawn(), *others]):
        assert len(set(a.tolist())) == 4
        assert not any(torch.equal(a, b) for b in others[i:])
    ctx.step, ctx.within = 3, ("main", 0)
    pieces = [ctx.noise(batch(len(rows), _row=torch.tensor(rows)), "fresh").uniform(0) for rows in ([2, 0], [3, 1])]
    assert torch.equal(torch.cat(pieces)[[1, 3, 0, 2]], drawn())


def test_a_stream_of_one_name_is_another_one_in_another_draw() -> None:
    ctx = context(graded)

    def seed(step, within, *name):
        ctx.step, ctx.within = step, within
        return ctx.rng(*name).initial_seed()

    phases = [(0, ("collect", 1)), (0, ("collect", 2)), (0, ("main", 0)), (0, ("main", 1)), (1, ("main", 1))]
    seeds = [seed(*p, "pick") for p in phases]
    assert len(set(seeds)) == len(seeds)
    assert seeds == [seed(*p, "pick") for p in phases]
    assert seed(0, ("a",), "b", "c") != seed(0, ("a", "b"), "c")  # phase and name do not run into each other


def test_a_request_that_leaves_n_and_sampling_open_gets_the_runs() -> None:
    ctx = context(graded, n=16)
    for tag in ("", "probe"):
        open_ = ctx.stamp_request(Request(Problem("t", "p", "")), tag)
        assert (open_.n, open_.sampling) == (16, Sampling(temperature=0.7))
        told = ctx.stamp_request(Request(Problem("t", "p", ""), 1, Sampling()), tag)
        assert (told.n, told.sampling) == (1, Sampling())
    assert len({ctx.stamp_request(Request(Problem("t", "p", "")), "").key for _ in range(3)}) == 3
    ctx.count, ctx.sampling = 5.0, Sampling(epsilon=Ramp(1.0, 0.0, 10))
    assert ctx.stamp_request(Request(Problem("t", "p", "")), "").sampling.epsilon == 0.5
    part = Request(Problem("t", "p", ""), 1, {"temperature": 1.2, "max_new": 5})  # type: ignore[arg-type]
    ctx.count = 10.0
    assert ctx.stamp_request(part, "").sampling == Sampling(temperature=1.2, max_new=5)  # epsilon: the run's, 0 now
    with pytest.raises(ValueError, match="no field 'temprature'; did you mean 'temperature'"):
        ctx.stamp_request(Request(Problem("t", "p", ""), 1, {"temprature": 1.0}), "")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="n is -1"):
        Request(Problem("t", "p", ""), -1)


def test_a_tag_stands_within_the_one_around_it() -> None:
    ctx = context(graded)
    with ctx.charging_to("evaluate"):
        with ctx.charging_to("judge"):
            ctx.charge("tokens", 2)
        ctx.charge("tokens", 3)
    ctx.charge("tokens", 5)
    assert ctx.ledger == {"evaluate/judge/tokens": 2, "evaluate/tokens": 3, "tokens": 5}


def test_probes_are_paid_for_and_leave_nothing_else() -> None:
    ctx = context(graded)
    assert len(ctx.wait(ctx.probe(requests(3), tag="probe"))) == 6
    assert ctx.ledger == {"probe/decisions": 6}
    assert not ctx.groups


def test_what_a_context_holds_it_lets_go_of() -> None:
    before = torch.get_num_threads()
    ctx = context(graded)
    assert ctx.eventloop.made is None  # made when it is needed
    ctx.wait(asyncio.sleep(0))
    loop = ctx.eventloop.made
    ctx.close()
    assert loop.is_closed()
    assert torch.get_num_threads() == before
    ctx.close()


def test_a_phase_lies_within_another_or_alone_and_ends_also_by_an_error() -> None:
    ctx = context(graded)

    def seed() -> int:
        return ctx.rng("x").initial_seed()

    outside = seed()
    with ctx.phase("a", 1):
        first = seed()
        with ctx.phase("b"):
            assert ctx.within == ("a", 1, "b")
            assert seed() not in (first, outside)
        with ctx.phase("a", 1, root=True):
            assert seed() == first
        with pytest.raises(ValueError, match="there"), ctx.phase("c"):
            raise ValueError("there")
        assert seed() == first
    assert seed() == outside
