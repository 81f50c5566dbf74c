"""Demonstrated: the solution as one of the samples of its own prompt."""

from types import SimpleNamespace

import pytest
import torch

from pupils import Pupil, collected, context, request
from shuhari.data import ContractError
from shuhari.kernel.pack import pack
from shuhari.rollouts.demonstrated import Demonstrated


def setting(solution="y", n=4, **fields):
    model = Pupil(lambda hint, u: u < 0.5)
    ctx = context(model, **fields)
    ctx.models = {"policy": model}
    return Demonstrated(), ctx, request(n, solution)


def test_the_last_sample_is_the_solution():
    rollout, ctx, asked = setting()
    group = collected(rollout, ctx, asked)
    assert len(group) == 4 and [t.info["demo"] for t in group] == [0.0, 0.0, 0.0, 1.0]
    assert ctx.ledger["tokens"] == 3 * 2  # a demonstration is not sampled
    batch = pack(group)
    assert batch["group"].unique().numel() == 1 and batch["demo"].tolist() == [0.0, 0.0, 0.0, 1.0]
    assert batch["mask"].all() and bool(batch["logp"][3].isnan().all()) and bool(batch["logp"][:3].isfinite().all())
    assert batch["action"][3].tolist() == [*ctx.encode("y", "policy"), ctx.models["policy"].end]
    assert torch.equal(torch.tensor(batch.steps[0].context), torch.tensor(batch.steps[3].context))


def test_a_wrong_solution_is_left_out():
    assert [t.info["demo"] for t in collected(*setting("n"))] == [0.0] * 3


def test_what_cannot_be_demonstrated_is_refused():
    with pytest.raises(ContractError, match="problem 'p' of t: expected a solution"):
        collected(*setting(None))
    with pytest.raises(ContractError, match=r"set rollout\.n to 2 or more"):
        collected(*setting(n=1))
    rollout, ctx, asked = setting()
    ctx.task = SimpleNamespace(environment=lambda problem: object())
    with pytest.raises(ContractError, match="not an environment"):
        collected(rollout, ctx, asked)
