"""In 16 bits the loss has the correction by default, and what a recipe says itself stands."""

from __future__ import annotations

from typing import Any

import pytest

from shuhari.config.precision import correct_losses, is_half, lacks_correction
from shuhari.config.recipe import load
from shuhari.loop import tuned
from shuhari.loop.checks import make_stages
from shuhari.loop.tuned import list_slow

BF16 = {"engine.dtype": "bfloat16"}


def loss_of(**settings: Any) -> tuple[Any, dict[str, Any]]:
    stage = make_stages(load("baselines/grpo", settings=settings))[-1]
    return stage.learners["main"].parts["policy"].terms["loss"].objective, dict(stage.defaults)


@pytest.mark.parametrize("more", [BF16, {"models.policy.dtype": "bfloat16"}, {"engine.dtype": "float16"}])
def test_the_correction_is_the_default_of_16_bits(more: dict[str, Any]) -> None:
    loss, defaults = loss_of(**more)
    assert (loss.behaviour, loss.truncate) == ("old", 2.0)
    assert defaults["part.policy.terms.loss.behaviour"] == "old" and defaults["part.policy.terms.loss.truncate"] == 2.0


def test_float32_has_none_and_what_a_recipe_says_stands() -> None:
    plain = loss_of()[0]
    assert (plain.behaviour, plain.truncate) == ("behaviour", 0.0)
    own = loss_of(**BF16, **{"part.policy.terms.loss.behaviour": "behaviour"})[0]
    assert (own.behaviour, own.truncate) == ("behaviour", 0.0)
    tighter = loss_of(**BF16, **{"part.policy.terms.loss.behaviour": "old", "part.policy.terms.loss.truncate": 5.0})[0]
    assert tighter.truncate == 5.0


def test_only_clip_terms_change_wherever_they_stand_and_the_table_does_not() -> None:
    def parts(**loss: Any) -> dict[str, Any]:
        return {"policy": {"terms": {"clip": dict(loss), "nll": {"stream": "ce"}, "kl": {"use": "divergence"}}}}

    table = {"engine": {"dtype": "bfloat16"}, "part": parts(), "learner": {"b": {"part": parts(low=0.1)}}}
    new, added = correct_losses(table)
    assert new["part"] == parts(behaviour="old", truncate=2.0) and table["part"] == parts()
    assert new["learner"]["b"]["part"] == parts(low=0.1, behaviour="old", truncate=2.0)
    places = ("part.policy.terms.clip", "learner.b.part.policy.terms.clip")
    assert set(added) == {f"{at}.behaviour" for at in places} | {f"{at}.truncate" for at in places}
    assert correct_losses({**table, "engine": {}}) == ({**table, "engine": {}}, {})
    assert is_half(table) and not lacks_correction(table) and not lacks_correction(new)
    assert lacks_correction({**table, "part": parts(behaviour="behaviour")})
    assert not lacks_correction({**table, "engine": {}, "part": parts(behaviour="behaviour")})


def test_a_processor_without_bfloat16_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = load("baselines/grpo", settings={**BF16, "models.policy.dtype": "bfloat16"})
    monkeypatch.setattr(tuned, "lacks_bfloat16", lambda: True)
    (told,) = list_slow(asked)
    assert "engine.dtype and models.policy.dtype" in told and "several times slower" in told
    assert not list_slow(load("baselines/grpo"))
    monkeypatch.setattr(tuned, "lacks_bfloat16", lambda: False)
    assert not list_slow(asked)
