"""In what the arms of a claim differ: in the loss, or in what the paper changes of credit, and in nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shuhari.lab.claims.claim import read


def leaves(tree: Mapping[str, Any], at: str = "") -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in tree.items():
        out |= leaves(value, f"{at}{key}.") if isinstance(value, Mapping) and value else {f"{at}{key}": value}
    return out


def differ(one: Mapping[str, Any], other: Mapping[str, Any]) -> set[str]:
    """Where two stages differ, beside what they are called."""
    a, b = (leaves({k: v for k, v in s.items() if k not in ("laid", "paper", "summary")}) for s in (one, other))
    return {k for k in {*a, *b} if a.get(k) != b.get(k)}


def apart(one: str, other: str, arms: Mapping[str, Any]) -> set[str]:
    """Where the last stages of two arms differ, to four names."""
    return {".".join(k.split(".")[:4]) for k in differ(*(arms[name].stages[-1] for name in (one, other)))}


def in_the_place_of_the_clip(method: str) -> None:
    """The method's loss stands where GRPO has its clip, and nothing else is changed."""
    arms = read(f"rlvr/{method}").arms
    terms = {name: arms[name].stages[-1]["part"]["policy"]["terms"] for name in ("method", "baseline", "bounds")}
    uses = {name: {term: table["use"] for term, table in found.items()} for name, found in terms.items()}
    assert uses.pop("method") == {"loss": method} and uses.pop("baseline") == {"loss": "clip"}
    assert "bounds" in uses and all(found == {"loss": method} for found in uses.values())
    assert apart("method", "baseline", arms) == {"part.policy.terms.loss"}
    assert all(found["loss"]["reduce"] == "decision" for found in terms.values())


def same_bounds_without_the_mechanism(method: str) -> None:
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
