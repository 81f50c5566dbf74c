"""A model that breaks its contract is found by the suite, a sound one passes all of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from gymnasium import spaces

from shuhari.models.tabular import Tabular
from shuhari.testing import ModelCase, check_model

TASK = SimpleNamespace(spaces=lambda: (spaces.Discrete(6), spaces.Discrete(4)))


def states(n: int) -> torch.Tensor:
    return torch.randint(0, 6, (n,), generator=torch.Generator().manual_seed(5))


@dataclass
class Broken:
    """A table whose samples have what `fault` says."""

    fault: str = ""
    kind: str = "exact"

    def build(self, task: Any) -> None:
        self.inner = Tabular()
        self.inner.build(task)
        self.module = self.inner.module

    def __call__(self, batch: Any) -> Any:
        return self.inner(batch)

    def sample(self, contexts: Any, sampling: Any, *, noise: Any) -> Any:
        found = self.inner.sample(contexts, sampling, noise=noise)
        if self.fault == "likelihood":
            return replace(found, logp=found.logp + 0.1)
        if self.fault == "global":
            torch.rand(())
        if self.fault == "neighbours":
            return replace(found, action=found.action.roll(1, 0), logp=found.logp.roll(1, 0))
        return found


def test_a_sound_model_passes() -> None:
    check_model(ModelCase("table", Broken, TASK, states, crowd=200, rows=1000))


@pytest.mark.parametrize("fault", ["likelihood", "global", "neighbours"])
def test_a_model_that_breaks_its_contract_is_found(fault: str) -> None:
    with pytest.raises(AssertionError):
        check_model(ModelCase("table", lambda: Broken(fault), TASK, states, crowd=200, rows=1000))
