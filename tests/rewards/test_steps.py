"""Steps of a text and the tokens at which they end: by hand, and against a search of all beginnings."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chat_models import make_words
from shuhari.models.text.made_tokenizers import character_tokenizer
from shuhari.models.text.tokenizers import Tokenizer
from shuhari.rewards.steps import REDUCTIONS, Form, credit_steps, find_steps, find_tokens, split_steps


@pytest.mark.parametrize(
    ("text", "separator", "steps"),
    [
        ("a\nb", "\n", ["a\n", "b"]),
        ("a\nb\n", "\n", ["a\n", "b\n"]),
        ("\n\na\n \n\nb", "\n", ["a\n", "b"]),
        ("a\n\nb\nc", "\n\n", ["a\n\n", "b\nc"]),
        ("a", "\n", ["a"]),
        ("", "\n", [""]),
        (" \n ", "\n", [""]),
        ("a ки b ки", " ки", ["a ки", "b ки"]),
    ],
)
def test_steps_by_hand(text: str, separator: str, steps: list[str]) -> None:
    """Each step as its own end: what stands before is white space, or other steps."""
    ends = split_steps(text, separator)
    assert len(ends) == len(steps) and all(text[:e].endswith(s) for e, s in zip(ends, steps, strict=True))
    assert ends[-1] == len(text) or not text[ends[-1] :].strip()


PIECES = ["ab", "b\nc", "\n", "\n\n", "d\ne\nf", "xyz"]  # tokens that begin, end and hold several steps


def spell(ids: np.ndarray) -> str:
    return "".join(PIECES[i] for i in ids)


@pytest.mark.parametrize(
    ("ids", "places"),
    [
        ([0, 2, 5], [1, 2]),  # ab | \n | xyz
        ([0, 1, 5], [1, 2]),  # ab b\nc xyz: the step ends inside of the second token
        ([4], [0, 0, 0]),  # three steps in one token
        ([0, 3, 5, 2], [1, 2 + 1]),
        ([3, 0, 3], [2]),
        ([2], [0]),
    ],
)
def test_places_by_hand(ids: list[int], places: list[int]) -> None:
    assert find_steps(np.array(ids, np.int32), spell) == places


@settings(deadline=None)
@given(st.lists(st.integers(0, len(PIECES) - 1), min_size=1, max_size=40))
def test_places_are_those_of_a_search_of_all_beginnings(ids: list[int]) -> None:
    tokens = np.array(ids, np.int32)
    text = spell(tokens)
    wanted = [
        next(k for k in range(len(ids)) if len(spell(tokens[: k + 1])) >= end)
        for end in split_steps(text)
    ]
    assert find_tokens(tokens, spell, text, split_steps(text)) == wanted


BYTES = Tokenizer(make_words())


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 299), min_size=1, max_size=30))
def test_any_tokens_of_a_byte_tokenizer_have_places(ids: list[int]) -> None:
    """Half characters, bytes that are none, special tokens: a place for each step, in order."""
    tokens = np.array([i % BYTES.size for i in ids], np.int32)
    places, text = find_steps(tokens, BYTES.decode), BYTES.decode(tokens)
    assert len(places) == len(split_steps(text)) and places == sorted(places)
    assert places[0] >= 0 and places[-1] < len(tokens)


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=30))
def test_characters_of_several_tokens_are_complete(text: str) -> None:
    """The beginning up to a step's token has the step, and the beginning before it does not."""
    ids = BYTES.encode_answer("", text)
    whole = BYTES.decode(ids)
    for place, end in zip(find_steps(ids, BYTES.decode), split_steps(whole), strict=True):
        assert BYTES.decode(ids[: place + 1])[:end] == whole[:end]
        assert place == 0 or BYTES.decode(ids[:place])[:end] != whole[:end]


def test_the_end_token_belongs_to_no_step() -> None:
    text = character_tokenizer("ab\n")
    ids = text.encode_answer("", "a\nb")
    assert ids[-1] == text.end and find_steps(ids, text.decode) == [1, 2]
    assert find_steps(text.encode_answer("", ""), text.decode) == [0]


R = [0.9, 0.8, 0.7, 0.6]


@pytest.mark.parametrize(
    ("r", "form", "threshold", "wanted"),
    [
        (R, "raw", 0.5, R),
        (R, "clip", 0.75, [0, 0, -0.05, -0.15]),
        (R, "delta", 0.5, [0.1, 0.1, 0.7, 0]),
        ([0.7, 0.2, 0.4, 0.8], "delta", 0.5, [0.5, -0.2, 0.4, 0]),  # as the paper's figure: up, down, up, none
        (R, "clip_delta", 0.75, [0, 0.05, -0.05, 0]),
        ([0.9], "delta", 0.5, [0]),
        ([0.9, 0.6], "delta", 0.5, [0.9, 0]),
        ([0.6, 0.5, 0.4, 0.9], "first_wrong", 0.5, [1, 1, 0, 0]),
        ([0.9, 0.9], "first_wrong", 0.5, [1, 1]),
        ([0.1, 0.9], "first_wrong", 0.5, [0, 0]),
    ],
)
def test_rewards_of_steps_by_hand(r: list[float], form: Form, threshold: float, wanted: list[float]) -> None:
    assert credit_steps(r, form, threshold) == pytest.approx(wanted)


@settings(deadline=None)
@given(st.lists(st.floats(0, 1), min_size=2, max_size=20))
def test_from_any_step_on_delta_adds_up_to_that_step(r: list[float]) -> None:
    """So that a repeated step gains nothing; what clips gains nothing at all."""
    found = credit_steps(r, "delta")
    assert all(sum(found[k:]) == pytest.approx(r[k], abs=1e-9) for k in range(len(r) - 1))
    assert all(x <= 0 for x in credit_steps(r, "clip", 0.3))


def test_reductions_by_hand() -> None:
    assert {name: f(R) for name, f in REDUCTIONS.items()} == pytest.approx({"min": 0.6, "last": 0.6, "product": 0.3024})
