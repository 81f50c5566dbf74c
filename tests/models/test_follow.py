"""Weights that follow others: by hand, by event, and after a restore."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from shuhari.models.follow import Copy, Ema
from shuhari.ports import Committed, Evaluated, StageStarted, Updated

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
    with pytest.raises(ValueError, match="rate is 0"):
        Ema("target", rate=0.0)
    with pytest.raises(ValueError, match="on is 'updates'; did you mean 'update'"):
        Copy("target", on="updates")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="every is 0"):
        Copy("target", every=0)
    with pytest.raises(KeyError, match=r"no role 'polcy'.*did you mean 'policy'"):
        Copy("target", of="polcy")(roles(), UPDATE)
    models = roles()
    models["target"] = models["policy"]
    with pytest.raises(ValueError, match="same weights as 'policy'"):
        Copy("target")(models, UPDATE)
