"""The arms of these claims differ in the loss, or in what the paper changes of credit, and in nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from shuhari.lab.claims.claim import read


def leaves(tree: Mapping[str, Any], at: str = "") -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in tree.items():
        out |= leaves(value, f"{at}{key}.") if isinstance(value, Mapping) and value else {f"{at}{key}": value}
    return out


def apart(one: str, other: str, arms: Mapping[str, Any]) -> set[str]:
    stages = [arms[name].stages[-1] for name in (one, other)]
    a, b = (leaves({k: v for k, v in s.items() if k not in ("laid", "paper", "summary")}) for s in stages)
    return {".".join(k.split(".")[:4]) for k in {*a, *b} if a.get(k) != b.get(k)}


@pytest.mark.parametrize("method", ["clip_cov", "kl_cov", "lp_reg"])
def test_another_loss_in_the_place_of_the_clip(method: str) -> None:
    arms = read(f"rlvr/{method}").arms
    terms = {name: arm.stages[-1]["part"]["policy"]["terms"] for name, arm in arms.items()}
    uses = {name: {term: table["use"] for term, table in found.items()} for name, found in terms.items()}
    assert uses.pop("method") == {"loss": method} and uses.pop("baseline") == {"loss": "clip"}
    assert "bounds" in uses and all(found == {"loss": method} for found in uses.values())
    assert apart("method", "baseline", arms) == {"part.policy.terms.loss"}
    assert all(found["loss"]["reduce"] == "decision" for found in terms.values())


@pytest.mark.parametrize(
    ("method", "off"), [("clip_cov", {"fraction": 0.0}), ("lp_reg", {"fraction": 0.1, "beta": 0.0})]
)
def test_what_is_counted_of_grpo_is_counted_of_grpo(method: str, off: Mapping[str, float]) -> None:
    """The arm `counted` has the method's loss and the baseline's bounds; it reports what the method would do."""
    terms = {name: arm.stages[-1]["part"]["policy"]["terms"] for name, arm in read(f"rlvr/{method}").arms.items()}
    assert terms["counted"] == {"loss": {**terms["baseline"]["loss"], "use": method, **off}}


@pytest.mark.parametrize("method", ["clip_cov", "kl_cov"])
def test_the_same_bounds_without_the_mechanism(method: str) -> None:
    """More entropy than GRPO may come from the bounds alone; whether it is the selection is asked apart."""
    claim = read(f"rlvr/{method}")
    arms = {name: leaves(arm.stages[-1]) for name, arm in claim.arms.items()}
    fraction = "part.policy.terms.loss.fraction"
    assert {k for k in {*arms["method"], *arms["bounds"]} if arms["method"].get(k) != arms["bounds"].get(k)} == {
        fraction
    }
    assert arms["bounds"][fraction] == 0
    asked = {c.rule.role: c for c in claim.checks}
    assert asked["headline"].quantity == asked["because"].quantity
    assert (asked["headline"].rule.against, asked["because"].rule.against) == ("baseline", "bounds")


def test_copg_is_compared_with_a_baseline_of_its_own_pairs() -> None:
    claim = read("rlvr/copg")
    term, centre = "part.policy.terms.loss", "collect.advantage.centre"
    assert apart("method", "baseline", claim.arms) == {term}
    assert apart("method", "group", claim.arms) == {term, centre}
    assert apart("baseline", "group", claim.arms) == {centre}
    tested = {c.rule.role: c.rule.against for c in claim.checks if c.trains and c.rule.arm == "method"}
    assert tested == {"headline": "baseline", "because": "group"}


def test_the_ladder_of_oreal() -> None:
    """Credit is one rung, what is made of rewards the other; every policy moves equally often."""
    arms = read("rlvr/oreal").arms
    neg = "part.policy.terms.neg"
    credit = apart("method", "reshaped", arms)
    assert credit and all(k.startswith(("models.credit", "transform.oreal", "part.credit")) for k in credit)
    rung = apart("reshaped", "baseline", arms)
    assert {k for k in rung if not k.startswith("transform.advantage")} == {neg} and len(rung) > 1


def test_lite_ppo_differs_in_two_settings() -> None:
    found = apart("method", "baseline", read("rlvr/lite_ppo").arms)
    assert found == {"collect.advantage.scale", "part.policy.terms.loss"}
