"""Context windows and turns of two roles: who sees what, by hand, and a step of training on it."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import harness
import pytest
import torch
from toys import Relay, Watch
from windows import Answer, CarryOver, Chunks, KeepLast, Summary

from shuhari import RecipeError
from shuhari.config.build import make_component
from shuhari.data import Request, code
from shuhari.kernel.pack import pack
from shuhari.learners.parts import Term
from shuhari.needs import Need
from shuhari.objectives.clip import Clip
from shuhari.ports import Environment, Environments, Window
from shuhari.rollouts.episode import Episode
from shuhari.testing import check_resumed
from shuhari.transforms.advantage import Advantage
from shuhari.transforms.filters import Only
from shuhari.transforms.returns import Returns

windows: list[Window] = [KeepLast(), Summary(8, "?"), CarryOver(2)]
environments: Environments = Chunks()
environment: Environment = Answer()


def run_of(
    rollout: Episode,
    *,
    steps: int = 2,
    max_new: int = 1,
    watch: Any = None,
    credit: Any = None,
    reduce: str = "decision",
    **fields: Any,
) -> Any:
    models = {role: harness.tiny() for role in rollout.roles}
    parts = {r: harness.part(r, pg=Term(Clip(role=r, behaviour="present"), r, reduce=reduce)) for r in models}
    collect: dict[str, Any] = {r: Only("role", r, stream=r, of="rl") for r in models}
    collect |= credit or {"advantage": Advantage(scale="none")}
    if watch is not None:
        collect["watch"] = watch
    common: dict[str, Any] = {"task": Relay(), "models": models, "rollout": rollout, "collect": collect, "n": 3}
    return harness.make(harness.stage(parts, max_new=max_new, steps=steps, **common, **fields))


def played(rollout: Episode, **fields: Any) -> tuple[Any, Any]:
    """One episode of the first problem, `aaaa=`, and its run."""
    run = run_of(rollout, **fields)
    run.enter_stage()
    request = run.ctx.stamp_request(Request(run.ctx.task.problems("train")[0]), "")
    [trajectory, *_] = run.ctx.wait(rollout.group(request, run.ctx))
    return trajectory, run


def read(trajectory: Any, run: Any, role: str = "policy") -> tuple[list[str], list[str]]:
    """(contexts, what was said in them) of the steps that decide, as text."""
    steps = [s for s in trajectory.steps if s.action is not None]
    return [run.ctx.text(s.context, role) for s in steps], [run.ctx.text(s.action, role) for s in steps]


@pytest.mark.parametrize("k", [0, 1, 2])
def test_the_last_turns_are_kept(k: int) -> None:
    trajectory, run = played(Episode(context=KeepLast(k)))
    contexts, said = read(trajectory, run)
    past = [f"{text}/" for text in said]
    assert contexts == ["aaaa=" + "".join(past[max(0, t - k) : t]) for t in range(4)]
    batch = pack([trajectory])
    rows = int(batch.decides.sum())
    assert rows == 4 - k  # the first k + 1 turns share a prefix, so a row
    assert batch["parent"].tolist() == [-1, *range(rows)]


def test_a_summary_is_asked_of_the_policy_and_learnt_from() -> None:
    trajectory, run = played(Episode(context=Summary(8, "?")))
    contexts, said = read(trajectory, run)
    a, b, c, s, _ = said  # `aaaa=` and two turns are 9 tokens, more than 8
    assert len(trajectory.steps) == 6
    past = "aaaa=" + f"{a}/" + f"{b}/"
    assert contexts == ["aaaa=", f"aaaa={a}/", f"{past}?", f"aaaa={c}", f"aaaa={c}{s}/"]
    assert ["observation" in x.info for x in trajectory.steps] == [True, True, False, True, True, False]
    assert all(x.mask.all() and x.logp is not None for x in trajectory.steps[:5])
    batch = pack([trajectory])
    assert batch["mask"].sum(1).tolist() == [3, 2, 0] and batch["segment"].amax(1).tolist()[:2] == [2, 1]


def test_a_long_answer_goes_on_from_its_end() -> None:
    rollout = Episode(environments=Chunks(), context=CarryOver(2), max_steps=3)
    trajectory, run = played(rollout, max_new=3)
    contexts, said = read(trajectory, run)
    whole = ""
    for context, text in zip(contexts, said, strict=True):
        assert context == "aaaa=" + whole[-2:]
        whole += text


def test_what_is_seen_in_a_window_is_what_is_scored() -> None:
    """The log-probability of each row, scored afresh in its own context, is the one that it was sampled with."""
    for window in (KeepLast(1), Summary(8, "?")):
        trajectory, run = played(Episode(context=window))
        need = Need(("policy",), "log_prob")
        batch = run.ctx.score(pack([trajectory]), [need])
        torch.testing.assert_close(batch[need][batch["mask"]], batch["logp"][batch["mask"]], atol=1e-4, rtol=0)


@pytest.mark.parametrize("window", [KeepLast(1), Summary(8, "?")])
def test_every_turn_of_an_episode_gets_its_advantage(window: Window) -> None:
    watch = Watch()
    run = run_of(Episode(context=window), watch=watch)
    reports = list(harness.train(run))
    [batch, *_] = watch.seen
    assert bool((batch["advantage"] != 0).any())
    for episode in batch["episode"].unique():
        mine = batch["advantage"][(batch["episode"] == episode) & batch.decides]
        own = mine[mine != 0].unique()
        assert len(own) <= 1  # one outcome, in every context that led to it
    assert reports[0]["policy/rows"] == int(batch.decides.sum()) > 12


def test_turns_are_discounted_pooled_over_the_group_and_weighed_alike() -> None:
    """IterResearch (catalogue 21): every turn has a row and a return of its own, geometric in the turns that follow."""
    watch = Watch()
    returns, pool = Returns(0.5, level="row", stream="policy"), Advantage(column="return", stream="policy")
    credit = {"returns": returns, "pool": pool}
    run = run_of(Episode(context=KeepLast(0)), watch=watch, credit=credit, reduce="turn", steps=1, max_new=2)
    report = next(harness.train(run))
    [batch] = watch.seen
    decides = batch.decides
    back = batch["return"][decides, 0].view(-1, 3, 4)  # groups of three episodes of four turns
    last = batch.outcome()[decides].view(-1, 3, 4)[:, :, :1]
    torch.testing.assert_close(back, last * torch.tensor([0.125, 0.25, 0.5, 1.0]))
    earned = back.flatten(1)
    wanted = (earned - earned.mean(1, keepdim=True)) / (earned.std(1, keepdim=True) + 1e-4)
    torch.testing.assert_close(batch["advantage"][decides, 0], wanted.flatten())
    mean = batch["advantage"][batch["mask"]].mean()
    assert abs(float(mean)) > 1e-3  # turns are of one or two tokens, so that of the tokens it is no 0
    assert report["policy/loss/pg"] == pytest.approx(-float(wanted.mean()), abs=1e-4)  # the ratio is 1


def test_two_roles_take_turns_and_each_learns_from_its_own() -> None:
    watch = Watch()
    run = run_of(Episode(acts=("policy", "helper")), watch=watch)
    run.enter_stage()
    before = {r: harness.weights(run, r) for r in ("policy", "helper")}
    list(harness.train(run))
    [batch, *_] = watch.seen
    decides = batch.decides
    assert int(decides.sum()) == 4 * 3 * 4  # whoever is next begins a row
    turns = batch["role"][decides].view(-1, 4)
    assert bool((turns == torch.tensor([code("policy"), code("helper")] * 2)).all())
    steps = [s for s in batch.steps if s.action is not None]
    words = [run.ctx.text(s.context) for s in steps[:4]]
    assert all(b.startswith(a) and len(b) > len(a) for a, b in pairwise(words))  # all is heard
    for role, weights in before.items():
        assert not torch.equal(weights, harness.weights(run, role)), role
    for role in ("policy", "helper"):  # both turns of a role share the outcome, centred over the role's own ends
        mine = batch["advantage"][decides & (batch["role"] == code(role))].amax(1)
        other = batch["advantage"][decides & (batch["role"] == code(role))].amin(1)
        assert torch.equal(mine + other, (mine + other).view(-1, 2)[:, :1].expand(-1, 2).flatten())


def test_a_recipe_names_windows_environments_and_who_acts() -> None:
    table: dict[str, Any] = {"use": "episode", "acts": ["policy", "helper"], "environments": {"use": "windows.Chunks"}}
    made = make_component("rollout", {**table, "context": {"use": "windows.KeepLast", "k": 2}})
    assert made == Episode(acts=("policy", "helper"), environments=Chunks(), context=KeepLast(2))
    with pytest.raises(RecipeError, match=r"rollout\.context\.kk: no setting of window 'windows.KeepLast'; did you"):
        make_component("rollout", {"use": "episode", "context": {"use": "windows.KeepLast", "kk": 2}})


def test_a_restored_run_goes_on_as_if_never_stopped() -> None:
    check_resumed(lambda: run_of(Episode(context=Summary(8, "?"))))
