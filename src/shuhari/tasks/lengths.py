"""Finds rows longer than a model reads, before a run starts, and refuses, drops or cuts them.

The length of a row is the most that the model holds at once: its prompt with each of its replies and the end token, or
with the tokens to be sampled. Most rows are not encoded: a token is at least a byte, so a row with no more bytes than
the model's limit fits. Left out: additions of rollouts to a prompt (tools, hints), turns of an episode.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from shuhari.data import FrozenDict, Payload
from shuhari.ports import ability
from shuhari.tasks.messages import spell_message

Encode = Callable[[Payload], Any]  # token ids
TooLong = Literal["refuse", "leave_out", "cut"]
END = 1  # the token after a reply
SLACK = 8  # most tokens that a tokenizer may put before a text
MOST = 1 << 24  # bytes that are encoded; of rows beyond those, the longest first, only those that seem too long
MARGIN = 1.5  # how many times more tokens per byte they may have than any row before
SHOWN = 3  # places that a message names


@dataclass(frozen=True)
class Shown:
    """What a model reads at once: `prompt` with each of `replies` (None: nothing), or, if there are none, with room for
    an answer. `place`: its name in messages."""

    place: str
    prompt: Payload
    replies: tuple[Payload, ...] = ()


@dataclass(frozen=True)
class Lengths:
    """`long`: index of a row that does not fit -> its tokens, while the model reads `limit`; `count`: number of all
    rows; `room`: tokens of an answer included in them, if one is sampled."""

    long: Mapping[int, int]
    limit: int
    count: int
    room: int = 0


def measure(rows: Sequence[Shown], encode: Encode, limit: int, room: int = 0) -> Lengths:
    """Finds the rows longer than `limit` tokens. encode: text or messages -> token ids; room: tokens of an answer to a
    row without replies."""
    base: dict[tuple[str, ...], int] = {}  # roles -> bytes, generously, that a template adds around their texts
    sizes = []
    for i, row in enumerate(rows):
        around = _measure_template(row.prompt, encode, base)
        replies = max((count_bytes(r) for r in row.replies), default=0)
        least = (END if row.replies else room) + SLACK
        size = count_bytes(row.prompt) * (1 if isinstance(row.prompt, str) else 2) + around + replies + least
        if size > limit:
            sizes.append((size, i))
    long: dict[int, int] = {}
    read, most = 0, 0.0
    for size, i in sorted(sizes, reverse=True):
        if read > MOST and size * most * MARGIN <= limit:
            continue
        tokens = count_tokens(rows[i], encode, room)
        read, most = read + size, max(most, tokens / size)
        if tokens > limit:
            long[i] = tokens
    return Lengths(dict(sorted(long.items())), limit, len(rows), room)


def read_by(model: Any) -> tuple[Callable[[Payload], Payload], Encode]:
    """Returns how a text model reads a row: (prompt -> the prompt as encoded: for a chat model, a text becomes a user
    turn), (prompt or reply -> token ids)."""
    tokens = ability(model, "text")
    if tokens is None or not tokens.chat:
        return lambda prompt: prompt, model.encode

    def tell(prompt: Payload) -> Payload:
        return tuple(FrozenDict(m) for m in tokens.as_messages(prompt))

    return tell, lambda said: tokens.encode_text(said) if isinstance(said, str) else model.encode(said)


def count_tokens(row: Shown, encode: Encode, room: int = 0) -> int:
    """Returns the number of tokens of a row. Raises ValueError, naming its place, if it cannot be read."""
    try:
        replies = max((len(encode(r)) for r in row.replies), default=0)
        return len(encode(row.prompt)) + (replies + END if row.replies else room)
    except ValueError as error:  # a letter outside the alphabet, or messages that a template refuses
        raise ValueError(f"{row.place}: {error}") from None


def describe(
    found: Lengths, rows: Sequence[Shown], *, did: str = "", context: str = "", most: int = 0,
    setting: str = "task.too_long",
) -> str:  # fmt: skip
    """Describes the rows that do not fit. did: what was done with them ("" if refused, with the remedies). context: the
    setting of the model's limit, "" if there is none; most: its largest value, 0 for no limit."""
    order = sorted(found.long, key=lambda i: -found.long[i])
    places = [rows[i].place for i in order]
    more = f" and {len(places) - SHOWN} more" if len(places) > SHOWN else ""
    also = f"; also {', '.join(places[1:SHOWN])}{more}" if places[1:] else ""
    answer = f" with the {found.room} of an answer" if found.room > 1 else ""
    are = "row is" if found.count == 1 else "rows are" if len(order) > 1 else "rows is"
    told = (f"{len(order)} of {found.count} {are} longer{answer} than the {found.limit} tokens that the model reads "
            f"(longest {found.long[order[0]]}: {places[0]}{also})")  # fmt: skip
    if did:
        return f"{told}: {did}"
    wanted = 1 << (found.long[order[0]] - 1).bit_length()
    wanted = most if most and most >= found.long[order[0]] and wanted > most else wanted
    way = f"{context} = {wanted}, or " if context and not 0 < most < wanted else ""
    return f"{told}: set {way}{setting} = \"leave_out\" or \"cut\""


def cut(row: Shown, encode: Encode, limit: int, room: int = 0) -> Shown:
    """Returns a row that fits: the end of a reply is cut, down to half of the model's limit, and the beginning of a
    prompt if that leaves too little room. Raises ValueError if nothing of the prompt would be left."""
    if not row.replies:
        return Shown(row.place, cut_prompt(row, encode, limit - max(room, 1)))
    longest = max(len(encode(r)) for r in row.replies)
    prompt, left = row.prompt, limit - END - min(longest, (limit - END) // 2)
    if len(encode(prompt)) > left:
        prompt = cut_prompt(row, encode, left)
    left = limit - END - len(encode(prompt))
    return Shown(row.place, prompt, tuple(_cut_text(r, encode, left, first=True) for r in row.replies))


def cut_prompt(row: Shown, encode: Encode, most: int) -> Payload:
    """Returns the end of a prompt, with at most `most` tokens. The first messages are dropped (a system message stays),
    then the beginning of the only one left."""
    prompt: Any = row.prompt
    if isinstance(prompt, str):
        found = _cut_text(prompt, encode, most, first=False)
        if not found:
            raise ValueError(f"{row.place}: nothing of its prompt is left in {most} tokens")
        return found
    kept = prompt[:1] if prompt[0]["role"] == "system" and len(prompt) > 1 else ()
    rest = prompt[len(kept) :]
    while len(rest) > 1 and len(encode((*kept, *rest))) > most:
        rest = rest[1:]
        while len(rest) > 1 and rest[0]["role"] != "user":  # a conversation begins with the user
            rest = rest[1:]
    last = rest[0]

    def put(text: str) -> Payload:
        return (*kept, FrozenDict({**last, "content": text}), *rest[1:])

    if len(encode((*kept, *rest))) <= most:
        return (*kept, *rest)
    text = _cut_text(last["content"], lambda t: encode(put(str(t))), most, first=False)
    if not text:
        raise ValueError(f"{row.place}: nothing of its prompt is left in {most} tokens beside what is around it")
    return put(text)


def count_bytes(payload: Payload) -> int:
    """Returns the number of bytes of a text, or of all messages."""
    messages: Any = payload
    return len(payload.encode()) if isinstance(payload, str) else sum(len(spell_message(m).encode()) for m in messages)


def _measure_template(prompt: Payload, encode: Encode, base: dict[tuple[str, ...], int]) -> int:
    """Returns twice the tokens of a conversation of the same roles with one-letter messages; 0 for a text."""
    if isinstance(prompt, str):
        return 0
    roles = tuple(str(m["role"]) for m in prompt)  # type: ignore[union-attr, call-overload, index]
    if roles not in base:
        try:
            base[roles] = 2 * len(encode(tuple(FrozenDict({"role": r, "content": "x"}) for r in roles)))
        except ValueError:  # a template that needs more of a message: then each row is encoded
            base[roles] = 1 << 30
    return base[roles]


def _cut_text(text: Any, encode: Encode, most: int, *, first: bool) -> str:
    """Returns the longest beginning (or end) of a text with at most `most` tokens, by bisection."""
    low, high = 0, len(text)
    while low < high:
        middle = (low + high + 1) // 2
        if len(encode(text[:middle] if first else text[len(text) - middle :])) <= most:
            low = middle
        else:
            high = middle - 1
    return str(text[:low] if first else text[len(text) - low :])
