"""An operator's actions are learnt from as experience and as demonstrations, drawn by how much there is to learn."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from harness import make, part, stage, train
from hil import Operator, Taught
from toys import Watch

from shuhari.buffers.replay import Replay
from shuhari.learners.parts import Term
from shuhari.models.critics import ContinuousQ, ScalarModel
from shuhari.models.follow import Ema
from shuhari.models.gaussian import SquashedPolicy
from shuhari.objectives.likelihood import Nll
from shuhari.objectives.reparam import Reparam
from shuhari.objectives.td import SoftTD
from shuhari.rollouts.vector.vector import VectorRollout
from shuhari.tasks.gym import Gym
from shuhari.testing import Role, check_resumed

OPERATOR = f"{Operator.__module__}.{Operator.__qualname__}"
TASK = Gym("Pendulum-v1", {"max_episode_steps": 40}, wrappers=(OPERATOR,),
           tells={"operator": "action", "speed": "reward"})  # fmt: skip


def taught(watch: Watch | None = None, steps: int = 4) -> Any:
    buffer = Replay(capacity=400, size=64, collect=16, warmup=96, by="td_error", power=0.6, beta=0.4)
    parts = {
        "critic": part("critic", td=Term(SoftTD(n=3))),
        "policy": part(reparam=Term(Reparam()), nll=Term(Nll(), stream="imitate", weight=0.5)),
    }
    models = {"policy": SquashedPolicy((16,)), "critic": ContinuousQ(2, (16,), norm=True),
              "temperature": ScalarModel(0.1), "target": Role(init="critic")}  # fmt: skip
    return stage(parts, task=TASK, models=models, buffer=buffer, rollout=VectorRollout(lanes=2), steps=steps,
                 transforms={"taught": Taught(), **({"watch": watch} if watch else {})},
                 follows={"target": Ema("target", "critic", 0.05)})  # fmt: skip


def test_what_the_operator_did_is_the_decision_and_is_imitated() -> None:
    watch = Watch()
    run = make(taught(watch))
    reports = list(train(run))
    rows = watch.seen[-1]
    speed, replaced = rows["context"][:, 2], rows["replaced"] == 1
    assert 0 < int(replaced.sum()) < len(rows)
    over = speed.abs() > 1
    assert not bool((replaced & ~over).any()) and int((over & ~replaced).sum()) < 5  # who brakes alike is not replaced
    brake = (-speed).clamp(-2, 2) / 2  # a decision lies in [-1, 1]
    assert torch.allclose(rows["action"][over, 0], brake[over], atol=1e-5)
    assert bool(rows["logp"][replaced].isnan().all()) and not rows["logp"][~replaced].isnan().any()
    assert torch.equal(rows.weight("imitate")[:, 0] > 0, replaced)
    assert all(r["policy/loss/nll"] == pytest.approx(r["policy/loss/nll"]) for r in reports)  # no NaN on the way
    priorities = run.stage.learners["main"].buffer.state["ring"].columns["td_error"]  # type: ignore[attr-defined]
    assert int((~priorities.isnan()).sum()) > 64
    assert float(rows.weight("rl").max()) == 1 > float(rows.weight("rl").min())
    assert reports[-1]["rollout/speed"] > 0  # the cost of an episode, as it was told


def test_it_resumes() -> None:
    check_resumed(lambda: make(taught(steps=2)))
