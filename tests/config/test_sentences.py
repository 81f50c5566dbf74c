"""Each setting has a sentence that says what it is; those that have none yet grow fewer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from shuhari.config.evaluation import Evaluation
from shuhari.data import Sampling
from shuhari.kernel import registry
from shuhari.kernel.field_docs import read_field_docs

UNWRITTEN = 0


def own_classes() -> Iterator[Any]:
    yield from (Evaluation, Sampling)
    for kind in registry.KINDS:
        for name in registry.names(kind):
            cls: Any = registry.find(kind, name)
            if isinstance(cls, type) and cls.__module__.startswith("shuhari.") and hasattr(cls, "__dataclass_fields__"):
                yield cls


def test_settings_without_a_sentence_grow_fewer() -> None:
    silent = {
        f"{cls.__module__}.{cls.__qualname__}.{f.name}"
        for cls in set(own_classes())
        for f in fields(cls)
        if f.init and not read_field_docs(cls).get(f.name)
    }
    assert len(silent) <= UNWRITTEN, sorted(silent)[:20]
