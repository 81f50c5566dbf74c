"""The model contract: the suite of `shuhari.testing`, for every registered policy as the smallest recipe has it, and
for those of `cases.py`."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from cases import CASES
from registry_examples import Example, make_case

from shuhari.data import Sampling
from shuhari.kernel.registry import entries
from shuhari.testing import ModelCase, check_model
from shuhari.testing.models import BY_MODEL, BY_SETTING

SETTINGS = [pytest.param(c, s, id=f"{c.name}-{i}") for c in CASES for i, s in enumerate(c.settings)]
MODELS = [pytest.param(c, id=c.name) for c in CASES]
POLICIES = [name for (kind, name), cls in sorted(entries().items()) if kind == "model" and hasattr(cls, "sample")]


@pytest.mark.parametrize("name", POLICIES)
def test_as_the_smallest_recipe_has_it(name: str, found: dict[tuple[str, str], Example]) -> None:
    with found["model", name].begin() as (component, run):
        case = make_case(name, component, run)
        (model := case.make()).build(case.task)
        if not [*model.module.parameters()]:
            pytest.skip("it has no weights, and scores nothing")
        check_model(case)


@pytest.mark.parametrize(("case", "sampling"), SETTINGS)
@pytest.mark.parametrize("check", BY_SETTING, ids=lambda f: f.__name__)
def test_under_each_setting(check: Callable[[ModelCase, Sampling], None], case: ModelCase, sampling: Sampling) -> None:
    check(case, sampling)


@pytest.mark.parametrize("case", MODELS)
@pytest.mark.parametrize("check", BY_MODEL, ids=lambda f: f.__name__)
def test_of_each_model(check: Callable[[ModelCase], None], case: ModelCase) -> None:
    check(case)
