"""Weights that follow others: by hand, by event, and after a restore."""

from __future__ import annotations

from contextlib import closing
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from shuhari.config.build import build_stage, make_component
from shuhari.config.evaluation import Evaluation
from shuhari.config.recipe import Recipe, load
from shuhari.events import Committed, Evaluated, StageStarted, Updated
from shuhari.learners.loss import Loss
from shuhari.loop.evaluation import evaluate
from shuhari.loop.run import loop, open_run
from shuhari.models.follow import Copy, Ema
from shuhari.needs import gather
from shuhari.objectives.clip import Clip
from shuhari.transforms.advantage import Advantage
from shuhari.transforms.filters import Mixed
from small_runs import TEXT

UPDATE = Updated("main", {})


class Net(nn.Module):
    """A weight, a float buffer and a count."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((2,), value))
        self.register_buffer("mean", torch.full((3,), value))
        self.register_buffer("count", torch.tensor(int(value)))


def roles(target: float = 0.0, source: float = 8.0) -> dict[str, Any]:
    return {"target": SimpleNamespace(module=Net(target)), "policy": SimpleNamespace(module=Net(source))}


def weight(models: dict[str, Any], role: str = "target") -> float:
    net = models[role].module
    assert torch.equal(net.weight, net.weight[0].expand(2))
    return float(net.weight[0].detach())


def test_an_average_moves_by_its_rate() -> None:
    models, rule = roles(), Ema("target", rate=0.25)
    rule(models, UPDATE)
    assert weight(models) == 2.0  # 0 + (8 - 0) / 4
    rule(models, UPDATE)
    assert weight(models) == 3.5  # 2 + (8 - 2) / 4
    assert int(models["target"].module.count) == 8 and weight(models, "policy") == 8.0
    assert models["target"].module.mean.tolist() == [8.0] * 3  # buffers are copied
    assert models["target"].module.weight.requires_grad


def test_a_rate_of_one_is_a_copy_bit_for_bit() -> None:
    models = roles(1 / 3, 0.1)
    for rule in (Ema("target", rate=1.0), Copy("target")):
        models = roles(1 / 3, 0.1)
        rule(models, UPDATE)
        mine, theirs = (models[r].module.state_dict() for r in ("target", "policy"))
        assert all(torch.equal(mine[k], theirs[k]) for k in mine)


def test_only_the_events_of_its_kind_and_learner_count() -> None:
    rule = Copy("target", every=3, learner="main")
    acts = []
    for event in (UPDATE, Updated("world", {}), UPDATE, Committed(1), StageStarted("s"), UPDATE, UPDATE):
        models = roles()
        rule(models, event)
        acts.append(weight(models) == 8.0)
    assert acts == [False, False, False, False, False, True, False]
    assert rule.state["heard"] == 4


def test_several_kinds_of_events_of_a_recipe() -> None:
    rule = make_component("follow", {"use": "copy", "role": "target", "on": ["stage", "step"], "every": 2})
    acts = []
    for event in (StageStarted("rl"), UPDATE, Committed(1), Committed(2), StageStarted("rl")):
        models = roles()
        rule(models, event)
        acts.append(weight(models) == 8.0)
    assert acts == [False, False, True, False, True]


@pytest.mark.parametrize(("on", "event"), [("step", Committed(3)), ("stage", StageStarted("rl"))])
def test_each_kind_of_event(on: Any, event: Any) -> None:
    models = roles()
    Copy("target", on=on)(models, UPDATE)
    assert weight(models) == 0.0
    Copy("target", on=on)(models, event)
    assert weight(models) == 8.0


def test_a_plateau_is_evaluations_without_a_new_best() -> None:
    rule = Copy("target", on="plateau", patience=2, metric="mean")
    acts = []
    for score in (0.1, 0.3, 0.2, 0.3, 0.2, 0.4, 0.4, 0.1):
        models = roles()
        rule(models, Evaluated("test", {"mean": score, "greedy": 0.0}))
        acts.append(weight(models) == 8.0)
    assert acts == [False, False, False, True, False, False, False, True]
    with pytest.raises(KeyError, match="no score 'mean'; did you mean 'meant'"):
        rule(roles(), Evaluated("test", {"meant": 1.0}))


def test_a_restored_rule_goes_on_counting() -> None:
    first = Ema("target", every=2, rate=0.5)
    first(roles(), UPDATE)
    second = Ema("target", every=2, rate=0.5)
    second.state = dict(first.state)
    models = roles()
    second(models, UPDATE)
    assert weight(models) == 4.0


def test_a_role_that_is_replaced_is_followed_by_its_new_weights() -> None:
    models, rule = roles(), Copy("target")
    rule(models, UPDATE)
    models["policy"] = SimpleNamespace(module=Net(5.0))
    rule(models, UPDATE)
    assert weight(models) == 5.0


def test_what_only_the_leader_has_is_left_out() -> None:
    models = roles()
    models["policy"].module.head = nn.Linear(2, 2)
    Copy("target")(models, UPDATE)
    assert weight(models) == 8.0
    models = roles()
    models["target"].module.head = nn.Linear(2, 2)
    with pytest.raises(ValueError, match=r"head\.weight \(2, 2\) has no match in role 'policy'"):
        Copy("target")(models, UPDATE)


def test_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match="on is 'updates': did you mean 'update'"):
        Copy("target", on="updates")  # type: ignore[arg-type]
    with pytest.raises(KeyError, match=r"no role 'polcy'.*did you mean 'policy'"):
        Copy("target", of="polcy")(roles(), UPDATE)
    models = roles()
    models["target"] = models["policy"]
    with pytest.raises(ValueError, match="same weights as 'policy'"):
        Copy("target")(models, UPDATE)


def test_where_learning_stalls_the_reference_and_the_moments_start_anew(tmp_path: Path) -> None:
    """ProRL (arXiv 2505.24864): right after it the KL is 0, its gradient is 0, and so are the moments of Adam."""
    stalled = {"on": "plateau", "metric": "mean", "patience": 3}
    file = tmp_path / "text.toml"
    file.write_text(TEXT)
    recipe = load(file).with_settings({
        "steps": 20, "stage.rl.evaluate.every": 1, "stage.rl.follow.reference": {"use": "copy", **stalled},
        "stage.rl.part.policy.optimiser.reset": stalled, "stage.rl.part.policy.minibatches": 1,
    })  # fmt: skip
    run = open_run(recipe)
    with closing(loop(run)) as steps:
        kl = 0.0
        for report in steps:
            follow = run.stage.follows.get("reference")
            if follow is not None and follow.state["heard"]:  # type: ignore[attr-defined]
                break
            kl = report.get("policy/kl", 0.0)
        assert kl > 0, "the policy had not left its reference: the test shows nothing"
        mine, theirs = (run.ctx.models[r].module.state_dict() for r in ("policy", "reference"))
        assert all(torch.equal(mine[k], theirs[k]) for k in mine)
        learner: Any = run.stage.learners["main"]
        part = learner.parts["policy"]
        assert not part.optimiser.state["steps"].any()
        assert not any(x.any() for name in ("mean", "square") for x in part.optimiser.state[name].values())
        batch = run.apply(run.stage.collect, run.collect(8))
        batch = batch.put({"weight/rl": batch["mask"].float(), "advantage": batch["mask"].float()})
        batch = gather(run.apply(learner.transforms, batch, learner.needs), part.needs, run.ctx.models)
        loss = Loss(batch, part, "policy", run.ctx, learner._params["policy"], None, {})
        gradients = loss.gradients()
        assert loss.values()["divergence"] == 0 and not gradients["divergence"].any()
        assert gradients["loss"].any(), "no gradient at all: the test shows nothing"
        assert next(steps)["policy/kl"] < kl and part.optimiser.state["steps"].max() <= 1


def test_resets_hear_the_problems_set_apart_and_not_those_that_are_reported(tmp_path: Path) -> None:
    """`watch` problems lie behind the `n` that are reported; the run is otherwise the same bit for bit."""
    file = tmp_path / "text.toml"
    file.write_text(TEXT)
    heard: list[Any] = []
    reported = []
    for watch in (0, 1):
        recipe = load(file).with_settings(
            {"evaluate.watch": watch, "evaluate.n": 2, "remove": ["stage.warm-up"], "steps": 4}
        )
        with open_run(recipe) as run, closing(loop(run)) as steps:
            next(steps)
            run.listeners.append(SimpleNamespace(observe=heard.append))
            last = [next(steps) for _ in range(3)][-1]
            reported.append({k: v for k, v in last.items() if k.startswith("evaluate/")})
            asked = evaluate(run.ctx, Evaluation(n=1, samples=2), run.stage.evaluation_rollout, 2)
            test = run.ctx.task.problems("test")
            assert asked.ids == [test[2].id]
    assert reported[0] == reported[1] and reported[0]
    first, second = ([e.scores for e in heard if isinstance(e, Evaluated)][i] for i in (1, 3))  # at steps 2 and 4
    assert {f"evaluate/{k}": v for k, v in first.items()} == reported[0]
    assert second == asked.scores(Evaluation(n=1, samples=2))


def test_a_claim_on_broadened_rollouts_starts_from_the_stalled_policy_with_an_anchor_there() -> None:
    """BroRL: whether its stage follows in one run, or starts from the weights that a run left, as in a claim: the
    anchor is the policy, though the run before had a reference that is not; the resets move it."""
    small = {"models.policy.hidden": 16, "models.policy.layers": 1, "evaluate.n": 0, "rollout.n": 4, "buffer.size": 2}
    changes = {"remove": ["stage.warm-up"], "stage.rl.steps": 1, "stage.broad.rollout.n": 4}
    recipe = load("rlvr/brorl").with_settings({**small, **changes})
    assert recipe.stages[0]["follow"]["reference"]["patience"] == 1_000_000  # the stall is that of ProRL's baseline
    assert recipe.stages[0]["part"]["policy"]["optimiser"]["reset"]["patience"] == 1_000_000
    with open_run(recipe) as run:
        run.enter_stage()
        with torch.no_grad():
            for p in run.ctx.models["policy"].module.parameters():
                p.add_(0.1)
        init = {r: deepcopy(m.module.state_dict()) for r, m in run.ctx.models.items()}
        assert list(init) == ["policy", "reference"]
        run.commit()
        assert not run.done()
        run.enter_stage()
        _anchored(run)
    with open_run(recipe.with_settings({"remove": ["stage.rl"]}), init=init) as run:
        run.enter_stage()
        _anchored(run)
        assert all(torch.equal(x, init["policy"][k]) for k, x in run.ctx.models["policy"].module.state_dict().items())


def _anchored(run: Any) -> None:
    """The stage is the broad one, its anchor is the policy, what is compared is the anchor, and a plateau moves it."""
    term = run.stage.learners["main"].parts["policy"].terms["divergence"]
    policy, anchor = (run.ctx.models[r].module for r in ("policy", "anchor"))
    assert run.stage.name == "broad" and term.objective.to == "anchor" and policy is not anchor
    assert all(torch.equal(x, anchor.state_dict()[k]) for k, x in policy.state_dict().items())
    first = next(iter(anchor.parameters()))
    with torch.no_grad():
        first.add_(1.0)
    for _ in range(4):  # a best, then three without a new one
        assert not torch.equal(first, next(iter(policy.parameters())))
        run.tell(Evaluated("test", {"exact.mean": 0.3}))
    assert torch.equal(first, next(iter(policy.parameters())))


def long(completions: list[str]) -> list[float]:
    """A reward that tells samples apart."""
    return [float(len(text)) for text in completions]


def test_without_resets_and_at_weight_0_prolonged_training_is_dapo() -> None:
    """The recipe's clip, filter and advantages are DAPO's (but for high = 0.4 and its punishment of long answers), and
    what it adds changes no bit of the weights."""
    small = {"models.policy.hidden": 16, "models.policy.layers": 1, "evaluate.n": 2, "rollout.n": 4, "buffer.size": 4}
    graded = {"reward.long.use": f"{__file__}:long", "reward.weights.long": 1.0}  # answers of an untrained policy
    recipe = load("rlvr/prorl").with_settings({**small, **graded, "stage.warm-up.steps": 1, "steps": 3})
    made = build_stage(recipe.stages[-1])
    term = made.learners["main"].parts["policy"].terms["loss"]  # type: ignore[attr-defined]
    assert (term.objective, term.reduce) == (Clip(low=0.2, high=0.4), "decision")
    assert list(made.collect.values()) == [Mixed(), Advantage()]
    own, ends = "stage.rl.part.policy", []
    never = {"stage.rl.follow.reference.patience": 99, f"{own}.optimiser.reset.patience": 99}
    dapo = deepcopy(recipe.tree)
    added = dapo["stage"]["rl"]
    del added["models"], added["follow"], added["part"]["policy"]["terms"]["divergence"]
    del added["part"]["policy"]["optimiser"]["reset"]
    for arm in (recipe.with_settings({**never, f"{own}.terms.divergence.weight": 0.0}), Recipe("dapo", dapo)):
        with open_run(arm) as run, closing(loop(run)) as steps:
            *_, last = steps
            ends.append([p.detach().clone() for p in run.ctx.models["policy"].module.parameters()])
            assert ("policy/kl" in last) is (len(ends) == 1) and last["policy/grad_norm"] > 0
    assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))
