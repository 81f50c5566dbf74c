"""SAPO: two nodes in lockstep; without sharing they are the runs that they would be alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import harness
import pytest
import torch
from sapo import Bus, Foreign, Sharing, Swarm
from toys import Echo, Watch

from shuhari.buffers.fresh import Fresh
from shuhari.curricula.sequential import Sequential
from shuhari.data import EMPTY, Problem
from shuhari.learners.parts import Term
from shuhari.objectives.clip import Clip
from shuhari.ports import Curriculum, Rollout, Study
from shuhari.testing import Run, check_resumed
from shuhari.transforms.advantage import Advantage

study: Study = Swarm()
curriculum: Curriculum = Sharing(Sequential(), Bus("folder"))
rollout: Rollout = Foreign()


def node(curriculum: Curriculum, seed: int, steps: int = 3, behaviour: Any = "old") -> tuple[Run, Watch]:
    parts = {"policy": harness.part(clip=Term(Clip(high=0.28, behaviour=behaviour)))}
    common: dict[str, Any] = {"rollout": Foreign(), "collect": {"advantage": Advantage(eps=1e-8)}, "n": 6, "max_new": 1}
    watch = Watch()
    stage = harness.stage(
        parts,
        task=Echo("abc"),
        curriculum=curriculum,
        buffer=Fresh(4),
        transforms={"watch": watch},
        steps=steps,
        **common,
    )
    return harness.make(stage, seed=seed), watch


def swarm(folder: Path, external: int, nodes: int = 2) -> tuple[list[Run], list[Watch], Any]:
    """The runs of a swarm after three rounds."""
    runs, watches = [], []

    class Nodes:
        seed = 0

        def train(self, name: str, settings: Mapping[str, Any] = EMPTY) -> Any:
            assert name == f"node{settings['curriculum.node']}"
            sharing = Sharing(Sequential(), Bus(str(folder)), settings["curriculum.node"], external)
            run, watch = node(sharing, settings["seed"])
            runs.append(run)
            watches.append(watch)
            return harness.train(run)

        def evaluate(self, name: str, settings: Mapping[str, Any] = EMPTY) -> Any: ...

    table = list(Swarm(nodes)(Nodes()))
    return runs, watches, table


def test_two_nodes_learn_from_each_other(tmp_path: Path) -> None:
    _, watches, table = swarm(tmp_path, external=2)
    assert [(r["node"], r["step"]) for r in table] == [(i, t) for t in (1, 2, 3) for i in (0, 1)]
    foreign = 0
    for watch in watches:
        assert "foreign" not in watch.seen[0]  # nobody had said anything
        for batch in watch.seen[1:]:
            assert len(batch["group"].unique()) == 4  # the budget of groups is fixed
            if "foreign" not in batch:
                continue
            theirs = ~batch["foreign"].isnan()
            foreign += int(theirs.sum())
            unknown = (batch["logp"].isnan() & batch["mask"]).any(1)
            assert torch.equal(unknown, theirs)
            assert bool(batch["advantage"][theirs].abs().sum(1).gt(0).all())  # never a group all of one kind
            old = batch["policy/log_prob"]
            assert not old.isnan().any() and bool((old[batch["mask"]] < 0).all())
    assert foreign


def test_foreign_text_is_tokenised_and_graded_here(tmp_path: Path) -> None:
    bus = Bus(str(tmp_path))
    problem, other = (Problem("echo", x, f"{x}=", x) for x in "ab")
    texts = ("a", "b", "", "ab", "aa", "c")
    alike = {"problem": other, "texts": ("b", "b")}
    unreadable = {"problem": problem, "texts": ("a", "ü")}
    bus.publish(7, 0, [alike, unreadable, {"problem": problem, "texts": texts}])
    bus.publish(7, 0, [alike, unreadable, {"problem": problem, "texts": texts}])
    run, watch = node(Sharing(Sequential(), bus, 0, 3), seed=0, steps=1)
    next(harness.train(run))
    batch = watch.seen[0]
    theirs = ~batch["foreign"].isnan()
    assert int(theirs.sum()) == 6  # the group all right is never chosen, the unreadable one neither
    assert batch.outcome()[theirs].tolist() == [1, 0, 0, 0, 0, 0]
    assert [len(s.action) for s in batch.take(theirs).steps] == [2, 2, 1, 3, 3, 2]  # type: ignore[arg-type]
    said = Bus(str(tmp_path)).read(1, exclude=9)
    assert len(said) == 3 and {g["problem"].task for g in said} == {"echo"}  # its own groups alone


def test_unknown_behaviour_is_refused_unless_it_is_our_own(tmp_path: Path) -> None:
    bus = Bus(str(tmp_path))
    bus.publish(7, 0, [{"problem": Problem("echo", "a", "a=", "a"), "texts": ("a", "b")}])
    run, _ = node(Sharing(Sequential(), bus, 0, 1), seed=0, behaviour="behaviour")
    with pytest.raises(ValueError, match="behaviour = 'old'"):
        next(harness.train(run))


@pytest.mark.parametrize("nodes", [1, 2])
def test_without_sharing_every_node_is_a_run_of_its_own(tmp_path: Path, nodes: int) -> None:
    runs, _, _ = swarm(tmp_path, external=0 if nodes > 1 else 2, nodes=nodes)
    for seed, run in enumerate(runs):
        alone, _ = node(Sequential(), seed)
        list(harness.train(alone))
        assert torch.equal(harness.weights(alone), harness.weights(run))
    assert nodes == 1 or not torch.equal(*map(harness.weights, runs))


def test_a_restored_node_goes_on_as_if_never_stopped(tmp_path: Path) -> None:
    bus = Bus(str(tmp_path))
    theirs = {"problem": Problem("echo", "a", "a=", "a"), "texts": ("a", "b")}
    for step in range(3):
        bus.publish(7, step, [theirs])
    check_resumed(lambda: node(Sharing(Sequential(), bus, 0, 1), seed=0)[0])
