"""What rows say, as text: whole characters, stop strings, names; against Python's own UTF-8 and `str.find`."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from served import TEXTS

from shuhari.desk.serving.replies import make_names
from shuhari.desk.serving.telling import Pieces, Said, Telling
from shuhari.models.text.made_tokenizers import bpe_tokenizer, character_tokenizer
from shuhari.models.text.tokenizers import Tokenizer

BYTES = bpe_tokenizer(TEXTS, 258)  # no merges: a token is a byte
MERGED = bpe_tokenizer(TEXTS * 4, 300)


def byte_ids(data: bytes) -> list[int]:
    """The ids of bytes, by the table of GPT-2: what is printable stands for itself, the others follow from 256 on."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    names = {b: chr(b) for b in plain}
    names |= {b: chr(256 + i) for i, b in enumerate(b for b in range(256) if b not in plain)}
    return [BYTES.hf.get_vocab()[names[b]] for b in data]


def told(text: Tokenizer, ids: list[int]) -> list[str]:
    pieces = Pieces(text.decode)
    return [*(pieces.add(i) for i in ids), pieces.rest()]


@given(st.text(st.characters(exclude_characters="\ufffd", exclude_categories=["Cs"]), max_size=12))
@settings(deadline=None)
def test_pieces_are_whole_characters(text: str) -> None:
    pieces = told(BYTES, byte_ids(text.encode()))
    assert "".join(pieces) == text and all("\ufffd" not in p for p in pieces)
    ends = np.cumsum([len(c.encode()) for c in text])  # a character is out with its last byte
    assert [i + 1 for i, p in enumerate(pieces) if p] == ends.tolist()


@given(st.binary(max_size=12))
@settings(deadline=None)
def test_bytes_that_are_no_text_come_as_python_reads_them(data: bytes) -> None:
    pieces = told(BYTES, byte_ids(data))
    assert "".join(pieces) == data.decode("utf-8", "replace")


def test_no_more_than_a_character_is_held_back() -> None:
    pieces, out = Pieces(BYTES.decode), ""
    for n, i in enumerate(byte_ids(b"\x80" * 40 + b"\xf0\x9f" * 40), 1):
        out += pieces.add(i)
        assert n - pieces.read <= (1 if n <= 40 else 4)  # a byte that begins no character is out with the next
    assert len(pieces.ids) == 120


@given(st.lists(st.integers(2, 299), max_size=20))
@settings(deadline=None)
def test_pieces_of_any_tokens_are_the_text_of_all(ids: list[int]) -> None:
    assert "".join(told(MERGED, ids)) == MERGED.decode(np.array(ids, np.int32))


def test_an_end_token_adds_nothing_and_has_a_name() -> None:
    for text in (MERGED, character_tokenizer()):
        ids = [*text.encode("a b").tolist(), text.end]
        assert "".join(told(text, ids)) == "a b"
        name = make_names(text.decode, text.end)
        assert name(text.end) == "<end>" and name(int(text.encode("a")[0])) == "a"


LETTERS = character_tokenizer("abc")


@given(
    st.text("abc", max_size=24),
    st.lists(st.text("abc", min_size=1, max_size=4), max_size=3),
    st.lists(st.integers(0, 24), max_size=5),
)
@settings(deadline=None, max_examples=200)
def test_an_answer_ends_before_its_first_stop(said: str, stops: list[str], cuts: list[int]) -> None:
    """Also where it comes in parts: what is out is never taken back. The stop that is complete first ends it; one that
    begins before it, and is longer, has not been said."""
    ends = [said.find(s) + len(s) for s in stops if s in said]
    seen = said[: min(ends)] if ends else said
    wanted = said[: min([seen.find(s) for s in stops if s in seen], default=len(said))]
    tokens = [Said(int(i), -0.5) for i in (LETTERS.encode(said) if said else ())]
    telling, out = Telling(LETTERS.decode, stops), ""
    at = sorted({c for c in cuts if c < len(tokens)})
    for a, z in zip([0, *at], [*at, len(tokens)], strict=True):
        for piece in telling.add(tokens[a:z], last=z == len(tokens)):
            assert piece.at == len(out)
            out += piece.text
        assert wanted.startswith(out)
    assert out == wanted and telling.cut == bool(ends)


def test_what_may_be_a_stop_is_held_back_until_it_is_known() -> None:
    telling = Telling(LETTERS.decode, ["abc"])

    def add(text: str, **last: bool) -> str:
        return "".join(p.text for p in telling.add([Said(int(i), 0.0) for i in LETTERS.encode(text)], **last))

    assert [add("c"), add("a"), add("b"), add("a"), add("b")] == ["c", "", "", "ab", ""]
    assert add("c") == "" and telling.cut and telling.count == 6


def test_what_was_held_back_comes_with_the_end() -> None:
    telling = Telling(LETTERS.decode, ["abc"])
    ids = [Said(int(i), 0.0) for i in LETTERS.encode("ab")]
    assert telling.add(ids[:1]) == []
    assert [p.text for p in telling.add(ids[1:], last=True)] == ["a", "b"]


@pytest.mark.parametrize("make", [lambda: BYTES, lambda: LETTERS])
def test_nothing_said_is_nothing_told(make: Callable[[], Tokenizer]) -> None:
    assert Telling(make().decode, ["x"]).add([], last=True) == []
