"""Rows that are longer than a model reads, found before a run starts, and what becomes of them: refused, left out, or
cut.

A row is measured by what is to stand in the model at once: its prompt with each of its replies and the end token, or
with the tokens that are to be sampled. Most rows are not encoded: a token is at least a byte, so that a row of no more
bytes than the model reads tokens fits. Left out: what rollouts put into a prompt (tools, hints), turns of an episode.
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
END = 1  # the token behind a reply
SLACK = 8  # tokens that a tokenizer may put before a text
MOST = 1 << 24  # bytes that are encoded; of rows beyond those, the longest first, the ones that seem to be too long
MARGIN = 1.5  # by how much more tokens a byte may have there than any row before
SHOWN = 3  # places that a message names


@dataclass(frozen=True)
class Shown:
    """What a model is to read at once: `prompt` with each of `replies` (None: nothing), or, where there are none, with
    room for an answer. `place`: how messages name it."""

    place: str
    prompt: Payload
    replies: tuple[Payload, ...] = ()


@dataclass(frozen=True)
class Lengths:
    """`long`: index of a row that does not fit -> its tokens, of which the model reads `limit`; `count`: of how many;
    `room`: tokens of an answer that are in them, where one is to be sampled."""

    long: Mapping[int, int]
    limit: int
    count: int
    room: int = 0


def measure(rows: Sequence[Shown], encode: Encode, limit: int, room: int = 0) -> Lengths:
    """Which of some rows are longer than `limit` tokens. encode: text or messages -> token ids; room: tokens of an
    answer to a row that has no replies."""
    base: dict[tuple[str, ...], int] = {}  # roles -> bytes and more that a template puts around their texts
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
    """How a model of text reads a row: (prompt -> the prompt as it is told: of a model that chats, a text as a turn of
    its user), (prompt or reply -> token ids)."""
    tokens = ability(model, "text")
    if tokens is None or not tokens.chat:
        return lambda prompt: prompt, model.encode

    def tell(prompt: Payload) -> Payload:
        return tuple(FrozenDict(m) for m in tokens.as_messages(prompt))

    return tell, lambda said: tokens.encode_text(said) if isinstance(said, str) else model.encode(said)


def count_tokens(row: Shown, encode: Encode, room: int = 0) -> int:
    """The tokens that a row takes. ValueError, which names its place, where it cannot be read."""
    try:
        replies = max((len(encode(r)) for r in row.replies), default=0)
        return len(encode(row.prompt)) + (replies + END if row.replies else room)
    except ValueError as error:  # of a letter that the alphabet has not, or messages that a template refuses
        raise ValueError(f"{row.place}: {error}") from None


def describe(
    found: Lengths, rows: Sequence[Shown], *, did: str = "", context: str = "", most: int = 0,
    setting: str = "task.too_long",
) -> str:  # fmt: skip
    """What does not fit, in words. did: what became of it ("" where it is refused, with the ways on). context: the
    setting of how many tokens the model reads, "" where nothing can be set; most: the largest that it can be, 0 for no
    bound."""
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
    """A row that fits: the end of a reply is cut, and the beginning of a prompt where that alone leaves too little: of
    a reply half of what the model reads, or all of it. ValueError where nothing of the prompt would be left."""
    if not row.replies:
        return Shown(row.place, cut_prompt(row, encode, limit - max(room, 1)))
    longest = max(len(encode(r)) for r in row.replies)
    prompt, left = row.prompt, limit - END - min(longest, (limit - END) // 2)
    if len(encode(prompt)) > left:
        prompt = cut_prompt(row, encode, left)
    left = limit - END - len(encode(prompt))
    return Shown(row.place, prompt, tuple(_cut_text(r, encode, left, first=True) for r in row.replies))


def cut_prompt(row: Shown, encode: Encode, most: int) -> Payload:
    """The end of a prompt that has at most `most` tokens. Of messages the first go (a system message stays), then the
    beginning of the only one that is left."""
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
    """The bytes of a text, or of all that messages say."""
    messages: Any = payload
    return len(payload.encode()) if isinstance(payload, str) else sum(len(spell_message(m).encode()) for m in messages)


def _measure_template(prompt: Payload, encode: Encode, base: dict[tuple[str, ...], int]) -> int:
    """Twice the tokens of a conversation whose messages say next to nothing, of its roles; 0 of a text."""
    if isinstance(prompt, str):
        return 0
    roles = tuple(str(m["role"]) for m in prompt)  # type: ignore[union-attr, call-overload, index]
    if roles not in base:
        try:
            base[roles] = 2 * len(encode(tuple(FrozenDict({"role": r, "content": "x"}) for r in roles)))
        except ValueError:  # a template that reads more of a message: then each row is encoded
            base[roles] = 1 << 30
    return base[roles]


def _cut_text(text: Any, encode: Encode, most: int, *, first: bool) -> str:
    """The longest beginning (or end) of a text that has at most `most` tokens, found by halving."""
    low, high = 0, len(text)
    while low < high:
        middle = (low + high + 1) // 2
        if len(encode(text[:middle] if first else text[len(text) - middle :])) <= most:
            low = middle
        else:
            high = middle - 1
    return str(text[:low] if first else text[len(text) - low :])
