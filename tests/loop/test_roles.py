"""Casting over stages: who plays what, when a sharing ends, and what is missed before the first step."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from shuhari.config.build import build_stage
from shuhari.config.overlay import RecipeError
from shuhari.config.recipe import load
from shuhari.config.stage import Role
from shuhari.data import EMPTY
from shuhari.loop.answers import answers, check_answers
from shuhari.loop.checks import make_stages
from shuhari.loop.roles import cast_roles, check_roles, sort_roles
from shuhari.loop.run import Run, train
from shuhari.models.gaussian import SquashedPolicy
from shuhari.models.text.causal import Causal
from shuhari.needs import Need
from shuhari.objectives.clip import Clip
from shuhari.objectives.reparam import Reparam


@dataclass
class Net:
    """A number that the seed decides."""

    module: nn.Module = field(init=False, repr=False)

    def build(self, task: Any) -> None:
        self.module = nn.Linear(1, 1, bias=False)

    def __call__(self, batch: Any) -> Any:
        raise NotImplementedError


def value(model: Any) -> float:
    return float(model.module.weight.detach())


def test_a_sharing_holds_for_its_stage() -> None:
    models: dict[str, Any] = {}
    shared: set[str] = set()

    def cast(**roles: Role) -> None:
        cast_roles(roles, models, None, 7, EMPTY, shared)  # type: ignore[arg-type]

    policy, other = Role(Net()), Role(Net())
    cast(policy=policy, other=other, judge=Role(same_as="policy"))
    assert models["judge"] is models["policy"]
    assert value(models["policy"]) != value(models["other"])
    cast(policy=policy)  # a role that a stage does not list stays as it is
    assert models["judge"] is models["policy"]
    cast(policy=policy, other=other, judge=Role(same_as="other"))
    assert models["judge"] is models["other"]
    with torch.no_grad():
        models["policy"].module.weight.fill_(5.0)
    cast(policy=policy, other=other, judge=Role(init="policy"))
    judge = models["judge"]
    assert judge is not models["policy"]
    assert value(judge) == 5.0
    with torch.no_grad():
        models["policy"].module.weight.fill_(6.0)
    cast(policy=policy, other=other, judge=Role(init="policy"))  # and then it lives on
    assert models["judge"] is judge
    assert value(judge) == 5.0
    cast(policy=policy, other=other, judge=Role(same_as="policy"))
    cast(policy=policy, other=other, judge=Role(Net()))
    assert models["judge"] not in (judge, models["policy"])
    assert not shared


BANDIT = {
    "task": {"name": "bandit"}, "models": {"policy": {"use": "tabular"}}, "rollout": {"n": 4}, "buffer": {"size": 2},
    "collect": {"advantage": {}}, "steps": 1,
    "part": {"policy": {"terms": {"clip": {}}, "optimiser": {"lr": 0.1}}},
}  # fmt: skip


def run_of(*stages: dict[str, Any]) -> Run:
    tables = [{**BANDIT, "name": f"stage {i}", **s} for i, s in enumerate(stages)]
    return Run(SimpleNamespace(seed=0, stages=tables, threads=1, tree={}, sources={}))  # type: ignore[arg-type]


def test_a_learner_follows_its_role_to_other_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """The part trains `judge`: first the policy's own table, then a copy of it; the policy then stands still."""
    part = {"policy": {**BANDIT["part"]["policy"], "trains": ["judge"]}}
    tables = [
        {"part": part, "models": {"policy": {"use": "tabular"}, "judge": judge}}
        for judge in ({"same_as": "policy"}, {"init": "policy"})
    ]
    run = run_of(*tables)
    assert run.progress.stages[0].learners["main"] is run.progress.stages[1].learners["main"]
    monkeypatch.setattr("shuhari.loop.run.open_run", lambda *_, **__: run)
    reports = train(run.recipe)
    next(reports)
    models = run.ctx.models
    assert models["judge"] is models["policy"]
    optimiser = run.stage.learners["main"].parts["policy"].optimiser  # type: ignore[attr-defined]
    assert optimiser.state["steps"].tolist() == [1]
    run.done()
    run.enter_stage()
    assert models["judge"] is not models["policy"]
    bound = run.stage.learners["main"]._params["policy"]  # type: ignore[attr-defined]
    assert [id(p) for p in bound] == [id(p) for p in models["judge"].module.parameters()]
    assert optimiser.state["steps"].tolist() == [0]  # other weights, other moments
    run.install(run.stage)
    assert run.stage.learners["main"]._params["policy"] is bound  # type: ignore[attr-defined]  # nothing happens twice
    run.ctx.close()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"follow": {"target": {"of": "polcy"}}, "models": {**BANDIT["models"], "target": {"init": "policy"}}},
         r"follow\.target: role 'polcy' is not .* stage 'stage 0'; did you mean 'policy'"),
        ({"follow": {"target": {}}}, r"follow\.target: role 'target'"),
        ({"part": {"policy": {**BANDIT["part"]["policy"], "trains": ["polizy"]}}},
         r"part\.policy\.trains: role 'polizy' .* did you mean 'policy'"),
        ({"part": {"policy": {"terms": {"divergence": {"to": "referense"}}, "optimiser": {"lr": 0.1}}}},
         r"part\.policy\.terms\.divergence: role 'referense'"),
        ({"transform": {"kl_in_reward": {}}}, r"transform\.kl_in_reward: role 'reference'"),
        ({"collect": {"kl_in_reward": {}}}, r"collect\.kl_in_reward: role 'reference'"),
        ({"learner": {"other": {"part": {"critic": {"trains": ["policy"], "terms": {"value": {}}, "optimiser": {}}}}}},
         r"learner\.other\.part\.critic\.terms\.value: role 'critic'"),
        ({"models": {**BANDIT["models"], "judge": {"init": "polciy"}}}, r"models\.judge: role 'polciy'"),
        ({"rollout": {"n": 2, "role": "polcy"}}, r"rollout\.role: role 'polcy' .* did you mean 'policy'"),
        ({"rollout": {"n": 2, "use": "episode", "acts": ["policy", "helper"]}}, r"rollout\.acts: role 'helper'"),
        ({"rollout": {"n": 2, "use": "hint_ladder", "of": {"use": "single", "role": "pupil"}}},
         r"rollout\.of\.role: role 'pupil'"),
        ({"evaluate": {"n": 4, "rollout": {"use": "episode", "role": "polcy"}}},
         r"evaluate\.rollout\.role: role 'polcy'"),
        ({"evaluate": {"n": 4, "more": {"vote": {"rollout": {"use": "episode", "role": "polcy"}}}}},
         r"evaluate\.more\.vote\.rollout\.role: role 'polcy' .* did you mean 'policy'"),
        ({"evaluate": {"n": 0, "more": {"vote": {"n": 4, "rollout": {"use": "episode", "role": "polcy"}}}}},
         r"evaluate\.more\.vote\.rollout\.role: role 'polcy'"),
        ({"evaluate": {"n": 0, "more": {"few": {"n": 2}}, "rollout": {"use": "episode", "role": "polcy"}}},
         r"evaluate\.rollout\.role: role 'polcy'"),
    ],
)  # fmt: skip
def test_a_role_that_nobody_plays_is_missed_before_the_first_step(change: dict[str, Any], told: str) -> None:
    with pytest.raises(RecipeError, match=told):
        run_of(change)


def test_a_role_lives_from_the_stage_that_lists_it() -> None:
    reference = {**BANDIT["models"], "reference": {"init": "policy"}}
    kl = {"transform": {"kl_in_reward": {}}}
    run_of({"models": reference, **kl}, kl).ctx.close()
    with pytest.raises(RecipeError, match="stage 'stage 0'"):
        run_of(kl, {"models": reference, **kl})


def test_roles_that_an_objective_calls_itself_and_columns_of_two_functionals() -> None:
    def functional(dists: Any, action: Any, column: Any) -> Any:
        return action

    stage = build_stage({**BANDIT, "name": "main"})
    main: Any = stage.learners["main"]
    terms = main.parts["policy"].terms
    terms["reparam"] = replace(terms["clip"], objective=Reparam())
    with pytest.raises(RecipeError, match=r"part\.policy\.terms\.reparam: role 'critic'"):
        check_roles([stage])
    terms["reparam"].objective.critic = terms["reparam"].objective.temperature = "policy"
    check_roles([stage])
    first, same_name = Need(("policy",), functional), Need(("policy",), functional)
    object.__setattr__(same_name, "name", lambda *_: None)
    terms["a"], terms["b"] = (
        replace(terms["clip"], objective=SimpleNamespace(needs=(n,), couples="row")) for n in (first, same_name)
    )
    with pytest.raises(RecipeError, match=r"terms\.b: two needs share the column 'policy/functional'"):
        check_roles([stage])


def test_roles_stand_in_any_order_but_no_circle() -> None:
    order = sort_roles({"target": Role(init="policy"), "policy": Role(Net()), "judge": Role(same_as="target")})
    assert order == ["policy", "target", "judge"]
    models: dict[str, Any] = {}
    cast_roles({"target": Role(init="policy"), "policy": Role(Net())}, models, None, 7, EMPTY)  # type: ignore[arg-type]
    assert value(models["target"]) == value(models["policy"])
    run_of({"models": {"judge": {"init": "policy"}, **BANDIT["models"]}}).ctx.close()
    with pytest.raises(RecipeError, match=r"models: roles name each other in a circle: a -> b -> a"):
        run_of({"models": {**BANDIT["models"], "a": {"init": "b"}, "b": {"init": "a"}}})
    product = {"use": "product", "of": {"policy": 1.0, "polciy": 1.0}}
    with pytest.raises(RecipeError, match=r"models\.mix: role 'polciy' .* did you mean 'policy'"):
        run_of({"models": {**BANDIT["models"], "mix": product}})


def test_a_frozen_role_takes_no_gradient() -> None:
    models: dict[str, Any] = {}
    roles = {"policy": Role(Net()), "base": Role(Net(), source="policy", frozen=True)}
    cast_roles(roles, models, None, 7, EMPTY)  # type: ignore[arg-type]
    assert value(models["base"]) == value(models["policy"]) and models["base"] is not models["policy"]
    assert [p.requires_grad for p in models["base"].module.parameters()] == [False]
    assert [p.requires_grad for p in models["policy"].module.parameters()] == [True]


def test_a_method_that_a_distribution_lacks_is_missed_before_the_first_step() -> None:
    """Also in a later stage, and of a copy."""
    part = {"policy": {**BANDIT["part"]["policy"], "terms": {"clip": {}, "token_rewards": {"role": "judge"}}}}
    judge = {**BANDIT["models"], "judge": {"init": "policy"}}
    with pytest.raises(RecipeError, match=r"token_rewards: role 'judge' \(Tabular\) is asked for 'value', which"):
        run_of({}, {"models": judge, "part": part})
    near = {"policy": {"terms": {"clip": {"score": "logprob"}}, "optimiser": {"lr": 0.1}}}
    with pytest.raises(RecipeError, match=r"asked for 'logprob', .* did you mean 'log_prob'"):
        run_of({"part": near})
    assert answers(Causal()) is not None and "value" not in answers(Causal())  # type: ignore[operator]
    assert {"value", "after"} <= set(answers(Causal(value_head=True)) or ())
    assert "kl" in (answers(SquashedPolicy()) or ()) and "entropy" not in (answers(SquashedPolicy()) or ())
    assert answers(Net()) is None and answers(SimpleNamespace()) is None  # they do not say


def test_a_ratio_of_bounds_is_refused_before_the_first_step() -> None:
    stage = build_stage({**BANDIT, "name": "main"})
    policy = stage.models["policy"].model
    policy.kind = "bound"
    with pytest.raises(RecipeError, match=r"terms\.clip: role 'policy' .* by a bound alone .* score = "):
        check_answers([stage])
    main: Any = stage.learners["main"]
    terms = main.parts["policy"].terms
    for fine in (Clip(behaviour="present"), Clip(score="parameters")):
        main.parts["policy"].terms = {"clip": replace(terms["clip"], objective=fine)}
        check_answers([stage])


def test_a_buffer_of_decisions_is_of_a_role_that_makes_some() -> None:
    message = "buffer.role: role 'critic' makes no decisions in stage 'main'; known: policy"
    with pytest.raises(RecipeError, match=message):
        make_stages(load("baselines/iql_pendulum").with_settings({"buffer.role": "critic"}))
    make_stages(load("baselines/dsrl_insert"))  # its first stage teaches another role than the policy


@pytest.mark.parametrize("misspelt", ["polcy", "policy2"])
def test_a_misspelt_role_that_nothing_asks_is_missed_before_a_model_is_made(misspelt: str) -> None:
    check_roles([build_stage(BANDIT)])
    spare = {**BANDIT, "models": {"policy": {"use": "tabular"}, misspelt: {"use": "tabular"}}}
    with pytest.raises(RecipeError, match=rf"models\.{misspelt}: nothing asks role '{misspelt}' .* mean 'policy'"):
        check_roles([build_stage(spare)])
    source = {"use": "tabular", "from": misspelt}  # what another begins from is asked
    asked = {**spare, "models": {misspelt: {"use": "tabular"}, "policy": source}}
    check_roles([build_stage(asked)])
