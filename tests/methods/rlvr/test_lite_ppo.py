"""LitePPO as its recipe says it: group mean, deviation of the raw rewards of the batch, token mean."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from arms import apart
from built import CLIP, built, holds, one_loss
from shuhari.batch import Batch
from shuhari.data import Problem, Request, Status, Step, Trajectory
from shuhari.kernel.pack import pack
from shuhari.kernel.reduce import reduced, weights
from shuhari.lab.claims.claim import read
from shuhari.needs import Need
from shuhari.objectives.clip import Clip
from shuhari.testing import context
from shuhari.transforms.advantage import Advantage

CTX = context()
LIVE = Need(("policy",), "log_prob", live=True)


@pytest.fixture(scope="module")
def stage():
    return built("rlvr/lite_ppo")


def advantages(transform, *groups):
    rows = []
    for i, outcomes in enumerate(groups):
        request = Request(Problem("t", str(i), ""), key=str(i))
        for x in outcomes:
            step = Step.of(np.ones(1, np.int32), np.ones(1, np.int32), np.zeros(1, np.float32), reward={"r": x})
            rows.append(Trajectory(request, (step,), Status.FINISHED))
    batch = pack(rows)
    return transform(batch.put({"reward": batch["reward/r"]}), CTX)["advantage"][:, 0].tolist()


def test_the_deviation_is_of_the_raw_rewards(stage):
    """Rewards (1, 0), (1, 1): their unbiased deviation is 0.5 (that of the centred ones is 0.41)."""
    assert advantages(stage.collect["advantage"], (1.0, 0.0), (1.0, 1.0)) == pytest.approx([1, -1, 0, 0], rel=1e-3)


def test_of_a_single_group_it_is_grpo(stage):
    x = (1.0, 0.0, 0.0, 1.0, 1.0)
    grpo = built("baselines/grpo_chain").collect["advantage"]
    assert advantages(stage.collect["advantage"], x) == pytest.approx(advantages(grpo, x))


def test_a_group_that_nearly_agrees_is_not_blown_up(stage):
    easy, mixed = (1.0,) * 7 + (0.0,), (1.0, 0.0) * 4
    lite = advantages(stage.collect["advantage"], easy, mixed)
    grpo = advantages(built("baselines/grpo_chain").collect["advantage"], easy, mixed)
    assert abs(lite[7]) == pytest.approx(0.875 / np.std([*easy, *mixed], ddof=1), rel=1e-3)
    assert abs(grpo[7]) == pytest.approx(0.875 / np.std(easy, ddof=1), rel=1e-3) and abs(grpo[7]) > abs(lite[7])


def loss(how, lengths):
    """Weights of the decisions of answers of these lengths."""
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    return weights(torch.ones(mask.shape), Batch({"mask": mask}), how)


def test_every_token_weighs_the_same(stage):
    term = stage.learners["main"].parts["policy"].terms["loss"]
    assert term.reduce == "decision" and (term.objective.low, term.objective.high) == (0.2, 0.2)
    lite, grpo = loss(term.reduce, [1, 3]), loss("row", [1, 3])
    assert float(lite[0, 0]) == pytest.approx(1 / 4) and float(grpo[0, 0]) == pytest.approx(1 / 2)
    x = torch.randn(2, 3, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(reduced(x, loss("decision", [3, 3])), reduced(x, loss("row", [3, 3])))


def test_there_is_nothing_else(stage):
    part = stage.learners["main"].parts["policy"]
    assert list(part.terms) == ["loss"] and list(stage.collect) == ["advantage"]
    assert list(stage.learners) == ["main"] and list(stage.learners["main"].parts) == ["policy"]


def test_numbers_of_the_paper() -> None:
    stage = holds(
        "rlvr/lite_ppo",
        {
            "collect": {"advantage": Advantage(centre="mean", scale="raw", ddof=1)},
            f"{CLIP}.objective": Clip(low=0.2, high=0.2),
            f"{CLIP}.reduce": "decision",
        },
    )
    one_loss(stage)


def test_it_differs_from_grpo_in_two_settings() -> None:
    found = apart("method", "baseline", read("rlvr/lite_ppo").arms)
    assert found == {"collect.advantage.scale", "part.policy.terms.loss"}
