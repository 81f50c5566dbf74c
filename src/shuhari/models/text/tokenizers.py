"""Text to token ids and back: any Hugging Face fast tokenizer (`made_tokenizers` builds two).

Left out: byte offsets, truncation, padding (models pad). Character tokenizers have a fast path, a table lookup, since
small models read and write short texts very often. Token ids are one-dimensional int32 arrays.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import numpy as np

from shuhari.data import Array, Payload
from shuhari.models.text.conversation import Conversation

KEPT = 1 << 16  # number of cached texts
LONGEST = 1 << 12  # characters of a cached text


class Template(str):
    """A text whose special tokens count, as a chat template writes them: `before`, then `said`, which has none, then
    `after`."""

    parts: tuple[str, str, str]

    def __new__(cls, before: str, said: str = "", after: str = "") -> Template:
        made = super().__new__(cls, before + said + after)
        made.parts = before, said, after
        return made


class Tokenizer:
    """A Hugging Face fast tokenizer, `hf`, as models use it: `encode`, `decode`, `end`, `pad`, `size`.

    A text ends with `end`, and a sampled one with any of `ends`: the end of turn of its chat template, the tokenizer's
    own end, then those given. `limit`: number of ids of the model, 0 for the tokenizer's; if padding is beyond it,
    `end` is used instead.

    `chat`: whether a text prompt is one user turn of the chat template; by default, if there is a template. `system`:
    the system message of conversations without one. A plain text begins with the tokenizer's start tokens (`begin`:
    `<s>`), never twice; no end token is added to a prompt.

    A special token counts only if a chat template, or a `Template`, writes it: a text, or the content of a message,
    that names it (`<|im_end|>`) is plain text, so that no data row, tool result or model output can forge the end of a
    turn. Raises ValueError if there is no end-of-sequence token, or the model lacks tokens that texts consist of.
    """

    def __init__(self, hf: Any, ends: Sequence[int] = (), limit: int = 0) -> None:
        self.hf, self.system, self.chat = hf, "", bool(getattr(hf, "chat_template", None))
        own = [] if hf.eos_token_id is None else [int(hf.eos_token_id)]
        self.ends = tuple(dict.fromkeys([*own, *map(int, ends)]))
        if not self.ends:
            raise ValueError("the tokenizer has no end-of-sequence token: expected `eos_token` in "
                             "tokenizer_config.json or `eos_token_id` in generation_config.json")  # fmt: skip
        self.size, self.limit = len(hf), limit or len(hf)
        characters = _characters(hf)
        self.characters = characters is not None  # one character, one token
        needed = max([*self.ends, *(set(hf.get_vocab().values()) - set(hf.added_tokens_decoder))])
        if needed >= self.limit:
            raise ValueError(f"its tokenizer has ids up to {needed}, its model {self.limit} embeddings: expected the "
                             "tokenizer that it was trained with")  # fmt: skip
        padded = hf.pad_token_id is not None and int(hf.pad_token_id) < self.limit
        self.pad = int(hf.pad_token_id) if padded else self.ends[0]
        self.start = self.ends[0] if hf.bos_token_id is None else int(hf.bos_token_id)
        if characters is not None:
            self._alphabet = "".join(characters)
            points = np.fromiter(map(ord, characters), np.int64, len(characters))
            self._table = np.full(int(points.max()) + 1, -1, np.int32)
            self._table[points] = list(characters.values())
            names = {i: n for n, i in hf.get_vocab().items()}
            self._names = [names.get(i, "") for i in range(self.limit)]
        self._kept: dict[tuple[Any, ...], Array] = {}
        self.conversation = Conversation(self)
        if self.chat and (closing := self.conversation.closing) is not None:
            self.ends = tuple(dict.fromkeys([*self.ends, closing]))

    @property
    def end(self) -> int:
        """The id that ends an answer: for a model that chats the end of its turn, else the end of a text."""
        closing = self.conversation.closing if self.chat else None
        return self.ends[0] if closing is None else closing

    def encode(self, prompt: Payload) -> Array:
        """Returns [k] int32, read-only, of the prompt that a row begins with: messages (mappings with `role` and
        `content`), a string (see `chat`), or a `Template`, read as it is. An empty prompt is only the start token.
        Raises ValueError, naming the character, for one outside a character alphabet."""
        if not isinstance(prompt, str) or (self.chat and not isinstance(prompt, Template)):
            return self._keep(("chat", prompt), lambda: self.encode_chat(self.as_messages(prompt)))
        return self._encode(prompt, begin=not isinstance(prompt, Template))

    def encode_text(self, text: str, *, begin: bool = False) -> Array:
        """Returns [k] int32, read-only, of a text, or a `Template`, that continues a row. begin: the text begins a row
        without a chat, and gets the tokenizer's start tokens unless it names them."""
        return self._encode(text, begin=begin) if begin else self._keep((2, text), lambda: self._list_going_on(text))

    def encode_answer(self, prompt: Payload, answer: str) -> Array:
        """Returns [k] int32, read-only, of an answer to a prompt, with its end token: the ids after those of the prompt
        in the encoding of both, if that begins with them."""
        if isinstance(prompt, Template) or (isinstance(prompt, str) and not self.chat):
            return self._finish([*self._list_joined(prompt, answer), self.ends[0]])
        if not self.has_template:
            return self._finish([*self._list_joined(plain_chat(self.as_messages(prompt)), answer), self.ends[0]])
        return self._finish(self.conversation.encode_answer(self.as_messages(prompt), answer))

    def encode_turn(self, said: Payload, prompt: Payload = "", last: int = -1) -> Array:
        """Returns [k] int32, read-only, of what a model reads after its own turn: a text, or messages, as its chat
        template writes them; without a chat the plain text. prompt: the beginning of the row. last: the last token of
        its turn, which is not repeated."""
        chats = not isinstance(prompt, str) or self.chat
        if isinstance(said, Template) or (isinstance(said, str) and not chats):
            return self._finish(self._list_going_on(said))
        if not self.has_template:
            ids = self._list_going_on(f"\n{plain_chat(self.as_messages(said))}")
        elif isinstance(said, str):
            between, after = self.conversation.frame
            ids = self._read(Template(between, said, after))
        else:
            ids = self.conversation.encode_turn(said)  # type: ignore[arg-type]
        return self._finish(ids[1:] if len(ids) > 1 and ids[0] == last else ids)

    def encode_chat(self, messages: Sequence[Mapping[str, Any]], *, reply: bool = True) -> Array:
        """Returns [k] int32, read-only, of messages: by the tokenizer's chat template up to where the reply begins
        (without `reply` to their end), else as plain lines `role: content` and `assistant:`."""
        if not self.has_template:
            return self._encode(plain_chat(messages), begin=True)
        return self._finish(self.conversation.encode(messages, reply=reply))

    def set_chat(self, chat: bool | None, system: str) -> None:
        """Sets whether text prompts are user turns (None: if there is a chat template), and the system message. Raises
        ValueError for what the tokenizer does not support."""
        if chat and not self.has_template:
            raise ValueError("chat is true, and the tokenizer has no chat template: expected chat = false, or a model "
                             "with one (an instruct or chat model)")  # fmt: skip
        self.chat, self.system = self.has_template if chat is None else chat, system
        if system and not self.chat and chat is not None:
            raise ValueError("system is set and chat is false: a text as it is has no system message; expected "
                             "chat = true, or no system")  # fmt: skip

    @property
    def has_template(self) -> bool:
        """Whether it has a chat template."""
        return bool(getattr(self.hf, "chat_template", None))

    def as_messages(self, prompt: Any) -> tuple[Any, ...]:
        """Returns a prompt as messages: a text as one user message, after `system`, if there is one."""
        messages = ({"role": "user", "content": prompt},) if isinstance(prompt, str) else tuple(prompt)
        first = self.system and not (messages and messages[0].get("role") == "system")
        return ({"role": "system", "content": self.system}, *messages) if first else messages

    @cached_property
    def begin(self) -> list[int]:
        """The ids that the tokenizer writes before each text (`<s>`); empty for most."""
        if self.characters:
            return []
        with told_panics("a"):
            bare, whole = (self.hf.encode("a", add_special_tokens=more) for more in (False, True))
        at = next((i for i in range(len(whole)) if whole[i : i + len(bare)] == bare), 0)
        return [int(i) for i in whole[:at]]

    def _encode(self, text: str, *, begin: bool) -> Array:
        def make() -> Any:
            ids, first = self._read(text), self.begin if begin and text else []
            return ids if not first or list(ids[: len(first)]) == first else [*first, *ids]

        return self._keep((isinstance(text, Template), begin, text), make)

    def _keep(self, key: tuple[Any, ...], make: Callable[[], Any]) -> Array:
        try:
            ids = self._kept.get(key)
        except TypeError:  # messages as a program builds them: dicts, which are not hashable
            return self._finish(make())
        if ids is None:
            ids = self._finish(make())
            if len(self._kept) >= KEPT:
                self._kept.clear()
            if _measure(key[-1]) <= LONGEST:  # many longer texts would fill the memory of a server
                self._kept[key] = ids
        return ids

    def _list_joined(self, prompt: str, answer: str) -> Any:
        """Returns the ids of an answer after a text."""
        if self.characters or isinstance(prompt, Template):
            return self._read(answer)
        before, whole = self._read(prompt), self._read(prompt + answer)
        return whole[len(before) :] if whole[: len(before)] == before else self.list_continued(answer)

    def _list_going_on(self, text: str) -> Any:
        return self._read(text) if self.characters or isinstance(text, Template) else self.list_continued(text)

    def decode(self, ids: Array) -> str:
        """Returns the text of token ids, without a closing end token; other special tokens appear by name."""
        tokens = ids.tolist()
        if tokens and tokens[-1] in self.ends:
            del tokens[-1]
        if self.characters:
            return "".join(map(self._names.__getitem__, tokens))
        with told_panics(tokens):
            return str(self.hf.decode(tokens, skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def stops(self, strings: Sequence[str]) -> list[Array] | None:
        """Returns the token ids of each stop string if strings have exactly one spelling (characters), else None."""
        return [self._characters(s) for s in strings] if self.characters else None

    def save(self, directory: str) -> None:
        """Saves it as a Hugging Face tokenizer directory."""
        self.hf.save_pretrained(directory)

    def _finish(self, ids: Any) -> Array:
        found = np.asarray(ids if len(ids) else [self.start], np.int32)
        found.flags.writeable = False
        return found

    def _read(self, text: str) -> Any:
        if self.characters:
            return self._characters(text)
        if not isinstance(text, Template):
            return self._plain(text)
        before, said, after = text.parts
        if not self.find_special(said):
            return self.list_special(str(text))
        parts = (before, self.list_special), (said, self._plain), (after, self.list_special)
        return [
            i
            for part, read in parts
            if part
            for i in read(part)
        ]

    def list_special(self, text: str) -> list[int]:
        """Returns token ids, with special ones wherever they are named."""
        with told_panics(text):
            return self._check(self.hf.encode(text, add_special_tokens=False), text)

    def list_continued(self, text: str) -> list[int]:
        """Returns token ids, none special, of a text that continues another: without the space that some tokenizers put
        before each text."""
        if not self._spaces:
            return self._plain(text)
        before, whole = self._plain("\n"), self._plain(f"\n{text}")
        return whole[len(before) :] if whole[: len(before)] == before else self._plain(text)

    @cached_property
    def _spaces(self) -> bool:
        """Whether it puts a space before each text."""
        first = self.hf.convert_ids_to_tokens(self._plain("a")[:1])
        return bool(first) and str(first[0])[:1] in ("\u2581", "\u0120")

    def _plain(self, text: str) -> list[int]:
        """Returns token ids, none special except those of one character, which cannot be written otherwise."""
        with told_panics(text):
            ids = self.hf.encode(text, add_special_tokens=False)
        if not self.special.isdisjoint(ids):
            ids = self._blind.encode(text, add_special_tokens=False).ids
            if any(len(self._special_names[i]) > 1 for i in self.special.intersection(ids)):  # its vocabulary has it
                ids = []
                at = 0
                for start, end in self.find_special(text):
                    first = start + 1 if end - start > 1 else end
                    ids += [
                        i
                        for part in (text[at:first], text[first:end])
                        if part
                        for i in self._plain(part)
                    ]
                    at = end
                ids += self._plain(text[at:]) if text[at:] else []
        return self._check(ids, text)

    def find_special(self, text: str) -> list[tuple[int, int]]:
        """Returns the spans where a text names special tokens of more than one character."""
        found = self.hf(text, add_special_tokens=False, return_offsets_mapping=True)
        spans = zip(found["input_ids"], found["offset_mapping"], strict=True)
        return [(int(a), int(b)) for i, (a, b) in spans if i in self.special and len(self._special_names[i]) > 1]

    def _check(self, ids: list[int], text: str) -> list[int]:
        if (highest := max(ids, default=0)) >= self.limit:
            raise ValueError(f"token {self.hf.convert_ids_to_tokens(highest)!r} (id {highest}) of {text[:60]!r} is "
                             f"beyond the vocabulary of the model: expected an id below {self.limit}")  # fmt: skip
        return ids

    @cached_property
    def _special_names(self) -> dict[int, str]:
        """id -> text of the special tokens, except the unknown token."""
        added = {i: str(t) for i, t in self.hf.added_tokens_decoder.items() if t.special}
        named = dict(zip(self.hf.all_special_ids, map(str, self.hf.all_special_tokens), strict=True))
        return {i: n for i, n in {**added, **named}.items() if i != self.hf.unk_token_id or i in self.ends}

    @cached_property
    def special(self) -> frozenset[int]:
        return frozenset(self._special_names)

    @cached_property
    def _blind(self) -> Any:
        """A copy of the tokenizer that knows no special tokens: toggling a switch of one would affect other threads."""
        made = copy.deepcopy(self.hf.backend_tokenizer)
        made.encode_special_tokens = True
        return made

    def _characters(self, text: str) -> Array:
        points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
        inside = points < len(self._table)
        ids: Array = self._table[np.where(inside, points, 0)]
        wrong = ~inside | (ids < 0)
        if wrong.any():
            char = text[int(wrong.argmax())]
            raise ValueError(
                f"the alphabet has no {char!r} (U+{ord(char):04X}), which {text[:60]!r} contains; "
                f"it is {self._alphabet!r}: set models.policy.alphabet (or that of the role) to all characters that "
                'prompts, answers and tools have, or models.policy.tokenizer = "bpe", which reads every text'
            )
        return ids


@contextmanager
def told_panics(given: Any) -> Iterator[None]:
    """Turns a panic of the tokenizers library, which is no Exception, into a ValueError."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise ValueError(f"the tokenizer fails on {str(given)[:60]!r}: {str(error)[:200]}") from None


def _measure(prompt: Any) -> int:
    """Returns the number of characters of a text or of messages."""
    return len(prompt) if isinstance(prompt, str) else sum(len(str(m.get("content"))) for m in prompt)


def _characters(hf: Any) -> dict[str, int] | None:
    """Returns character -> id if every token except the special ones is one character, as `character_tokenizer` makes
    it."""
    from tokenizers import models

    backend = getattr(hf, "backend_tokenizer", None)
    if backend is None or not isinstance(backend.model, models.WordLevel):
        return None
    special = set(hf.all_special_tokens)
    letters = {t: i for t, i in sorted(hf.get_vocab().items(), key=lambda x: x[1]) if t not in special}
    return letters if letters and all(len(t) == 1 for t in letters) else None


def plain_chat(messages: Sequence[Mapping[str, Any]]) -> str:
    """Returns messages as text, for a tokenizer without a chat template."""
    return "".join(f"{m['role']}: {m.get('content') or ''}\n" for m in messages) + "assistant:"
