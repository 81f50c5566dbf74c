"""The temperature of an entropy: closed forms of two logits, and a policy's own answers at it."""

from __future__ import annotations

import asyncio
import logging
from contextlib import nullcontext
from dataclasses import replace
from math import exp, log
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from shuhari.data import Problem, Request, Sampling, Status, Step, Trajectory
from shuhari.events import StageStarted
from shuhari.kernel.pack import pack
from shuhari.methods.data.acereason_11.entropy_temperature import Calibrated, find_root, measure_entropy
from shuhari.models.text.causal import Causal
from shuhari.needs import Need
from shuhari.ports import Curriculum
from shuhari.testing import context


class Given:
    """A curriculum that asks for as many as it is asked for."""

    stamps = ()

    def __init__(self, sampling: Any = None) -> None:
        self.sampling = sampling

    async def select(self, n: int, ctx: Any) -> list[Request]:
        return [Request(Problem("t", f"p{i}", ""), sampling=self.sampling) for i in range(n)]


def binary(logit: float, t: float) -> float:
    """The entropy of two logits (logit, 0) at temperature t, worked out directly."""
    p = 1 / (1 + exp(-logit / t))
    return -(p * log(p) + (1 - p) * log(1 - p))


class Two:
    """A run whose policy has at each decision two logits, (`logit`, 0); the second position is of no decision."""

    def __init__(self, logits: tuple[float, ...], broken: int = 0) -> None:
        self.logits, self.broken = logits, broken  # so many times all answers end in an error
        self.scored, self.probed = list[float](), list[Request]()

    def phase(self, *name: object) -> Any:
        return nullcontext()

    async def probe(self, requests: Any, *, tag: str) -> Any:
        assert tag == "probe"
        self.probed += requests
        ones = np.ones(2, np.int32)
        step = replace(Step.of(np.ones(1, np.int32), ones, np.zeros(2, np.float32)), mask=np.array([True, False]))
        status, self.broken = Status.ERROR if self.broken else Status.FINISHED, max(0, self.broken - 1)
        ended = [Trajectory(Request(Problem("t", "p", "")), (step,), status) for _ in self.logits]
        return pack(ended)

    def score(self, batch: Any, needs: Any) -> Any:
        (need,) = needs
        assert need.key == "policy/entropy"
        t = batch["temperature"]
        self.scored.append(float(t[0, 0]))
        found = torch.tensor([[binary(x, float(row[0])), 99.0] for x, row in zip(self.logits, t, strict=True)])
        return {need: found}


curriculum: Curriculum = Calibrated(Given())


def test_the_entropy_at_a_temperature_by_hand() -> None:
    batch = asyncio.run(Two((0.0, 1.0)).probe([], tag="probe"))
    assert measure_entropy(batch, 1.0, "policy", Two((0.0, 0.0))) == pytest.approx(log(2))  # type: ignore[arg-type]
    assert measure_entropy(batch, 7.0, "policy", Two((0.0, 0.0))) == pytest.approx(log(2))  # type: ignore[arg-type]
    one = measure_entropy(batch, 1.0, "policy", Two((1.0, 1.0)))  # type: ignore[arg-type]
    assert one == pytest.approx(0.5822, abs=1e-4)


def test_bisection_finds_the_temperature_of_the_entropy() -> None:
    ctx, of = Two((1.0, 3.0)), Calibrated(Given(), entropy=0.3, problems=2, n=4)
    (request,) = asyncio.run(of.select(1, ctx))  # type: ignore[arg-type]
    t = request.sampling["temperature"]  # type: ignore[index]
    assert (binary(1.0, t) + binary(3.0, t)) / 2 == pytest.approx(0.3, abs=1e-4)
    assert [r.n for r in ctx.probed] == [4, 4]
    assert of.report() == {"curriculum/temperature": t, "curriculum/entropy": pytest.approx(0.3, abs=1e-4)}
    asked = len(ctx.scored)
    assert asyncio.run(of.select(2, ctx))[1].sampling == {"temperature": t}  # type: ignore[arg-type]
    assert len(ctx.scored) == asked  # found once a stage
    of.observe(StageStarted("next"))
    assert of.report() == {}


@pytest.mark.parametrize(("target", "end"), [(0.69, 2.0), (0.01, 0.5)])
def test_what_cannot_be_reached_is_the_end_next_to_it(target: float, end: float) -> None:
    assert find_root(lambda t: binary(1.0, t), target, 0.5, 2.0) == (end, binary(1.0, end))


def test_without_a_usable_decision_a_step_has_the_run_s_own_temperature_and_the_next_asks_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ctx, of = Two((1.0, 3.0), broken=1), Calibrated(Given(), problems=2, n=4)
    with caplog.at_level(logging.WARNING, "shuhari"):
        (request,) = asyncio.run(of.select(1, ctx))  # type: ignore[arg-type]
    assert "no usable decision among 8 answers" in caplog.text
    assert request.sampling is None and of.report() == {} and not ctx.scored
    assert of.state == {"temperature": None, "entropy": None}  # as it would be resumed
    (request,) = asyncio.run(of.select(1, ctx))  # type: ignore[arg-type]
    assert len(ctx.probed) == 4 and of.report()["curriculum/entropy"] == pytest.approx(0.3, abs=1e-4)
    assert request.sampling == {"temperature": of.state["temperature"]}


def test_no_answer_at_all_is_no_usable_decision() -> None:
    of = Calibrated(Given())
    assert asyncio.run(of.select(1, Two(())))[0].sampling is None  # type: ignore[arg-type]


def test_a_request_keeps_its_own_temperature() -> None:
    own = Calibrated(Given(Sampling(temperature=0.7)))
    assert asyncio.run(own.select(1, Two((1.0,))))[0].sampling == Sampling(temperature=0.7)  # type: ignore[arg-type]
    beside = Calibrated(Given({"max_new": 3}), entropy=0.3)
    (request,) = asyncio.run(beside.select(1, Two((1.0,))))  # type: ignore[arg-type]
    assert set(request.sampling) == {"max_new", "temperature"}  # type: ignore[arg-type]


def test_against_the_logits_of_a_language_model() -> None:
    """On real rows: the mean over decisions of the entropy of softmax(logits / T), from the logits themselves."""
    model = Causal(hidden=16, layers=1, heads=2, intermediate=16)
    model.build(SimpleNamespace(spaces=lambda: None, alphabet="abc"))
    with torch.no_grad():
        for x in model.module.parameters():
            x *= 4  # so that entropy is far from its largest
    ctx = context(models={"policy": model})
    said = (([1, 2], [1, 2, 3]), ([2], [3]))
    steps = [Step.of(np.array(c, np.int32), np.array(a, np.int32), np.zeros(len(a), np.float32)) for c, a in said]
    batch = pack([Trajectory(Request(Problem("t", str(i), "")), (s,), Status.FINISHED) for i, s in enumerate(steps)])
    need = Need(("policy",), "parameters")
    logits = ctx.score(batch, [need])[need].double()
    found = []
    for t in (0.5, 1.0, 1.7):
        p = (logits / t).softmax(-1)
        each = -(p * p.clamp_min(1e-300).log()).sum(-1)
        found.append(measure_entropy(batch, t, "policy", ctx))
        assert found[-1] == pytest.approx(float(each[batch["mask"]].mean()), abs=1e-5)
    assert found[0] < found[1] < found[2]
