"""The model contract: the suite of `shuhari.testing`, for every policy of `cases.py`."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from cases import CASES

from shuhari.data import Sampling
from shuhari.testing import ModelCase
from shuhari.testing.models import BY_MODEL, BY_SETTING

SETTINGS = [pytest.param(c, s, id=f"{c.name}-{i}") for c in CASES for i, s in enumerate(c.settings)]
MODELS = [pytest.param(c, id=c.name) for c in CASES]


@pytest.mark.parametrize(("case", "sampling"), SETTINGS)
@pytest.mark.parametrize("check", BY_SETTING, ids=lambda f: f.__name__)
def test_under_each_setting(check: Callable[[ModelCase, Sampling], None], case: ModelCase, sampling: Sampling) -> None:
    check(case, sampling)


@pytest.mark.parametrize("case", MODELS)
@pytest.mark.parametrize("check", BY_MODEL, ids=lambda f: f.__name__)
def test_of_each_model(check: Callable[[ModelCase], None], case: ModelCase) -> None:
    check(case)
