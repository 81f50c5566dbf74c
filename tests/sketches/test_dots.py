"""DOTS: selection and prediction by hand, replayed groups whole and of other problems, and a step of training."""

from __future__ import annotations

from typing import Any

import harness
import pytest
import torch
from dots import Adapter, GroupReplay, TargetSuccess, selection
from toys import Echo, Watch

from shuhari.batch import Batch
from shuhari.buffers.fresh import Fresh
from shuhari.buffers.mixture import Mixture
from shuhari.learners.gradient import Term
from shuhari.objectives.clip import Clip
from shuhari.ports import Buffer, Collected, Curriculum, Event, Model
from shuhari.roles import Role
from shuhari.transforms.advantage import Advantage
from shuhari.transforms.filters import Mixed

curriculum: Curriculum = TargetSuccess()
replay: Buffer = GroupReplay(1)
model: Model = Adapter()


def adapter() -> Adapter:
    made = Adapter()
    made.build(Echo())
    return made


def run_of(buffer: Buffer, steps: int = 3, seed: int = 0, **others: Any) -> Any:
    models = {"policy": harness.tiny(), "embed": Role(init="policy"), "adapter": Adapter()}
    curriculum = TargetSuccess(references=4, n=4, pool=6)
    collect = {"mixed": Mixed(), "advantage": Advantage()}
    parts = {"policy": harness.part(clip=Term(Clip()))}
    common: dict[str, Any] = {
        "curriculum": curriculum,
        "collect": collect,
        "models": models,
        "n": 8,
        "max_new": 1,
        **others,
    }
    return harness.make(harness.stage(parts, task=Echo("abcdefgh"), buffer=buffer, steps=steps, **common), seed=seed)


def test_selection_by_hand() -> None:
    p = selection(torch.tensor([0.5, 0.4, 0.9]), 0.5, 0.1).softmax(0)
    torch.testing.assert_close(p, torch.tensor([0.7214, 0.2654, 0.0132]), atol=5e-5, rtol=0)


def test_equal_scores_predict_the_mean_and_an_uncalibrated_adapter_is_the_identity() -> None:
    v = torch.tensor([0.0, 0.25, 1.0])
    p = adapter().predict(torch.randn(5, 32), torch.ones(3, 32), v)
    torch.testing.assert_close(p, v.mean().expand(5))
    # one reference that matches, the others far away: its own success
    z = 30 * torch.eye(32)[:3]
    torch.testing.assert_close(adapter().predict(z, z, v), v.clamp(1e-4, 1 - 1e-4), atol=1e-5, rtol=1e-4)


def test_problems_near_the_target_are_asked_for() -> None:
    run = run_of(Fresh(2))
    run.enter_stage()
    curriculum = run.stage.curriculum
    run.ctx.wait(curriculum.select(2, run.ctx))
    assert len(curriculum.state["v"]) == 4
    assert run.ctx.ledger["probe/tokens"] == 16  # references are paid for
    assert "tokens" not in run.ctx.ledger
    p = torch.tensor([0.1, 0.5, 0.9, 0.45, 0.0, 1.0])
    run.ctx.models["adapter"].predict = lambda z, references, v: p
    asked = []
    problems = run.ctx.task.problems

    def watched(split: str) -> Any:
        asked.append(problems(split))
        return asked[-1]

    run.ctx.task.problems = watched
    chosen = run.ctx.wait(curriculum.select(2, run.ctx))
    order = torch.randperm(8, generator=run.ctx.rng("pool"))[:6]
    assert {r.problem.id for r in chosen} == {asked[0][int(order[i])].id for i in (1, 3)}


def test_replayed_groups_are_whole_and_keep_their_own_advantage_and_behaviour() -> None:
    collected: list[Batch] = []

    class Listen(GroupReplay):
        def observe(self, event: Event) -> None:
            super().observe(event)
            if isinstance(event, Collected):
                collected.append(event.batch)

    watch = Watch()
    buffers = Mixture({"fresh": Fresh(2), "replay": Listen(2)})
    run = run_of(buffers, seed=3, transforms={"watch": watch})  # a run in which early groups are mixed
    for report in harness.train(run):
        assert report["policy/rows"] > 0
    first, last = watch.seen[0], watch.seen[-1]
    assert int(first["version"].max()) == 0 == int(first["version"][first["mask"]].min())
    old = last["version"][:, 0] < 2
    assert int(old.sum()) == 16 and int((~old).sum()) >= 16
    assert not set(last["problem"][old].tolist()) & set(last["problem"][~old].tolist())
    stored = {int(i): (b, r) for b in collected for r, i in enumerate(b["id"])}
    for row in old.nonzero().squeeze(1).tolist():
        batch, r = stored[int(last["id"][row])]
        assert last["logp"][row, 0] == batch["logp"][r, 0]
        assert last["advantage"][row, 0] == batch["advantage"][r, 0] != 0
    for g in last["group"][old].unique():
        rows = last["group"] == g
        assert int(rows.sum()) == 8
        assert float(last["advantage"][rows].sum()) == pytest.approx(0.0, abs=1e-5)


def test_a_fresh_fraction_of_one_is_no_replay_at_all() -> None:
    weights = []
    for buffer in (Fresh(2), Mixture({"fresh": Fresh(2), "replay": GroupReplay(0)})):
        run = run_of(buffer)
        list(harness.train(run))
        weights.append(harness.weights(run))
    assert torch.equal(*weights)


def test_a_restored_run_goes_on_as_if_never_stopped() -> None:
    assert harness.resumes(lambda: run_of(Mixture({"fresh": Fresh(2), "replay": GroupReplay(2)})))
