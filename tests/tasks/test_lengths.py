"""Which rows a model cannot read, what is said of them, and how they are cut."""

from __future__ import annotations

from typing import Any

import pytest

from shuhari.models.text.tokenizers import plain_chat
from shuhari.tasks.lengths import Shown, count_tokens, cut, describe, measure


class Words:
    """A token for each word, and a template of two tokens for a message and one for the reply."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, payload: Any) -> list[int]:
        self.calls += 1
        if isinstance(payload, str):
            return [0] * len(payload.split())
        return [0] * (1 + sum(2 + len(m["content"].split()) for m in payload))


def words(n: int, of: str = "word") -> str:
    return " ".join([of] * n)


def chat(*texts: str) -> tuple[dict[str, str], ...]:
    roles = ("system", "user", "assistant", "user", "assistant", "user")
    return tuple({"role": r, "content": t} for r, t in zip(roles, texts, strict=False))


def test_short_rows_are_not_encoded() -> None:
    encode = Words()
    rows = [Shown(f"line {i}", "ab", ("cd",)) for i in range(1000)]
    assert not measure(rows, encode, 64).long and encode.calls == 0
    rows = [Shown(f"line {i}", chat("ab", "cd")) for i in range(1000)]
    assert not measure(rows, encode, 64).long and encode.calls == 1  # what the template adds, once for those roles


def test_what_is_longer_is_found_to_the_token() -> None:
    rows = [Shown(f"line {n}", words(n), (words(3),)) for n in range(1, 30)]
    found = measure(rows, Words(), 20)
    assert found.long == {n - 1: n + 4 for n in range(17, 30)} and found.count == 29  # prompt, 3 words, the end
    sampled = [Shown(f"line {n}", words(n)) for n in range(1, 30)]
    assert measure(sampled, Words(), 20, room=5).long == {n - 1: n + 5 for n in range(16, 30)}
    pairs = [Shown("line 1", words(5), (words(2), words(9)))]
    assert measure(pairs, Words(), 14).long == {0: 15} and not measure(pairs, Words(), 15).long
    talks = [Shown("line 1", chat(words(3), words(4)))]
    assert measure(talks, Words(), 11).long == {0: 12} and not measure(talks, Words(), 12).long


def test_a_row_that_cannot_be_read_is_named() -> None:
    def refuse(payload: Any) -> list[int]:
        raise ValueError(f"no template for {len(payload)}")

    with pytest.raises(ValueError, match="line 7: no template for 1"):
        measure([Shown("line 7", chat("hi"))], refuse, 100)


def test_of_very_much_text_only_what_may_be_too_long_is_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shuhari.tasks.lengths.MOST", 2000)
    rows = [Shown(f"line {n}", words(n)) for n in range(1, 101)]
    encode = Words()
    assert measure(rows, encode, 95).long == {n - 1: n for n in range(96, 101)}
    assert encode.calls < 45  # of 82 that have more bytes than the model reads tokens


def test_what_is_said() -> None:
    rows = [Shown(f"line {n}", words(n)) for n in (3, 30, 5, 25, 26, 27, 28)]
    found = measure(rows, Words(), 20)
    told = describe(found, rows, context="models.policy.context")
    assert told == (
        "5 of 7 rows are longer than the 20 tokens that the model reads (longest 30: line 30; also line 28, line 27 "
        'and 2 more): set models.policy.context = 32, or task.too_long = "leave_out" or "cut"'
    )
    assert "set task.too_long" in describe(found, rows, context="models.policy.context", most=20)
    assert "context = 31, or" in describe(found, rows, context="models.policy.context", most=31)
    assert describe(found, rows, did="left out").endswith("and 2 more): left out")
    one = describe(measure(rows[:2], Words(), 20, room=4), rows[:2])
    assert one.startswith("1 of 2 rows is longer with the 4 of an answer than the 20 tokens")


@pytest.mark.parametrize(
    ("row", "prompt", "replies"),
    [
        (Shown("", words(4), (words(50),)), words(4), (words(15),)),  # the end of what is shown
        (Shown("", words(50, "p"), (words(2),)), words(17, "p"), (words(2),)),  # the beginning of the prompt
        (Shown("", words(50), (words(50),)), words(10), (words(9),)),  # half each
        (Shown("", words(4), (words(50), words(3))), words(4), (words(15), words(3))),
        (Shown("", words(50)), words(16), ()),
    ],
)
def test_rows_are_cut_to_fit(row: Shown, prompt: str, replies: tuple[str, ...]) -> None:
    made = cut(row, Words(), 20, room=4)
    assert str(made.prompt).strip() == prompt and tuple(str(r).strip() for r in made.replies) == replies
    assert count_tokens(made, Words(), 4) <= 20


def test_the_first_messages_of_a_conversation_go() -> None:
    talk = chat("be kind", words(9, "first"), words(9, "second"), words(9, "third"))
    made = cut(Shown("line 1", talk), Words(), 24, room=4)
    assert made.prompt == (talk[0], talk[3])
    alone = cut(Shown("line 1", chat("be kind", words(40, "x"))), Words(), 24, room=4)
    assert alone.prompt[1]["content"].split() == ["x"] * 13  # 4 of the system, 2 and 1 of the template
    with pytest.raises(ValueError, match="line 1: nothing of its prompt is left in 5 tokens"):
        cut(Shown("line 1", chat(words(40), words(4))), Words(), 9, room=4)


def test_a_cut_text_ends_with_its_end() -> None:
    def encode(payload: Any) -> list[int]:
        return [*map(ord, payload if isinstance(payload, str) else plain_chat(payload))]

    assert cut(Shown("", "0123456789"), encode, 6, room=2).prompt == "6789"
    assert cut(Shown("", "01", ("abcdefgh",)), encode, 8).replies == ("abcde",)
