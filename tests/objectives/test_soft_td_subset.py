"""RLPD's targets (Ball et al. 2023, arXiv 2302.02948): an ensemble of critics with layer norms, of which each update
takes the least of a random two, without the entropy of the next action."""

from __future__ import annotations

import pytest

from shuhari.config.recipe import load
from shuhari.testing import loop, open_run

RLPD = {
    "env_steps": 150, "evaluate.n": 0, "evaluate.every": 0, "models.policy.hidden": [8], "models.critic.hidden": [8],
    "models.critic.n": 5, "models.critic.norm": True, "buffer.warmup": 64, "buffer.size": 32, "buffer.ratio": 0.2,
    "rollout.random": 32, "part.critic.terms.soft_td": {"subset": 2, "entropy": False},
}  # fmt: skip


def test_a_micro_batch_sees_the_same_members_as_its_whole_batch() -> None:
    """Were members drawn for each piece, targets would depend on the cut; over all members they are lower, over one
    higher."""

    def targets(**settings: object) -> list[float]:
        reports = list(loop(open_run(load("baselines/sac_pendulum").with_settings({**RLPD, **settings}))))
        return [r["critic/target"] for r in reports if "critic/target" in r]

    whole = targets()
    assert len(whole) > 1 and targets(micro_batch=8) == pytest.approx(whole, rel=1e-5)
    every, one = (targets(**{"part.critic.terms.soft_td.subset": n})[0] for n in (5, 1))
    assert every < whole[0] - 1e-3 and one > every + 1e-3
