"""The arms of these claims differ in the loss, or in what the paper changes of credit, and in nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from shuhari.claims.claim import read


def leaves(tree: Mapping[str, Any], at: str = "") -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in tree.items():
        out |= leaves(value, f"{at}{key}.") if isinstance(value, Mapping) and value else {f"{at}{key}": value}
    return out


def apart(one: str, other: str, arms: Mapping[str, Any]) -> set[str]:
    a, b = (leaves(arms[name].stages[-1]) for name in (one, other))
    return {".".join(k.split(".")[:4]) for k in {*a, *b} if a.get(k) != b.get(k)}


@pytest.mark.parametrize("method", ["clip_cov", "kl_cov", "lp_reg"])
def test_another_loss_in_the_place_of_the_clip(method: str) -> None:
    arms = read(f"rlvr/{method}").arms
    terms = {name: set(arm.stages[-1]["part"]["policy"]["terms"]) for name, arm in arms.items()}
    assert terms["method"] == {method} and terms["baseline"] == {"clip"}
    assert apart("method", "baseline", arms) == {"part.policy.terms.clip", f"part.policy.terms.{method}"}
    for arm in arms.values():
        assert all(t["reduce"] == "decision" for t in arm.stages[-1]["part"]["policy"]["terms"].values())


def test_lite_ppo_differs_in_two_settings() -> None:
    found = apart("method", "baseline", read("rlvr/lite_ppo").arms)
    assert found == {"collect.advantage.scale", "part.policy.terms.clip"}
