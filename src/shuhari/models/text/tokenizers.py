"""Text to token ids and back: any Hugging Face fast tokenizer, and two built here, over characters and byte pairs.

Left out: byte offsets, truncation, padding (models pad). Characters take a path of their own, a table lookup, since
small models read and write short texts very often. Token ids are one-dimensional int32 arrays.
"""

from __future__ import annotations

import copy
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import numpy as np

from shuhari.data import Array, Payload
from shuhari.models.text import chat
from shuhari.tasks.source import read_first

PAD, END = "<pad>", "<end>"
PRINTABLE = "\n" + "".join(map(chr, range(32, 127)))  # newline and printable ASCII
KEPT = 1 << 16  # encoded texts kept
LONGEST = 1 << 12  # characters of a text that is kept


class Template(str):
    """A text whose special tokens are meant, as a chat template writes them: `before`, then `said`, in which none is,
    then `after`."""

    parts: tuple[str, str, str]

    def __new__(cls, before: str, said: str = "", after: str = "") -> Template:
        made = super().__new__(cls, before + said + after)
        made.parts = before, said, after
        return made


class Tokenizer:
    """A Hugging Face fast tokenizer, `hf`, as models use it: `encode`, `decode`, `end`, `pad`, `size`.

    A text ends with `end`, and where it is sampled with any of `ends` ([0] is `end`): the tokenizer's own, then those
    given. `limit`: ids that the model has, 0 for those of the tokenizer; padding beyond them is `end` instead.

    Texts are encoded as they are: no begin or end token is added (a chat template writes its own). A special token is
    one only where a chat template, or a `Template`, writes it: a text, or the content of a message, that names it
    (`<|im_end|>`) is plain text, so that no row of data, answer of a tool or text of a model can forge the end of a
    turn. Raises ValueError where there is no end-of-sequence token, or where the model lacks tokens that texts are made
    of.
    """

    def __init__(self, hf: Any, ends: Sequence[int] = (), limit: int = 0) -> None:
        own = [] if hf.eos_token_id is None else [int(hf.eos_token_id)]
        self.ends = tuple(dict.fromkeys([*own, *map(int, ends)]))
        if not self.ends:
            raise ValueError("the tokenizer has no end-of-sequence token: expected `eos_token` in "
                             "tokenizer_config.json or `eos_token_id` in generation_config.json")  # fmt: skip
        self.hf, self.size, self.end = hf, len(hf), self.ends[0]
        self.limit = limit or self.size
        needed = max([*self.ends, *(set(hf.get_vocab().values()) - set(hf.added_tokens_decoder))])
        if needed >= self.limit:
            raise ValueError(f"its tokenizer has ids up to {needed}, its model {self.limit} embeddings: expected the "
                             "tokenizer that it was trained with")  # fmt: skip
        padded = hf.pad_token_id is not None and int(hf.pad_token_id) < self.limit
        self.pad = int(hf.pad_token_id) if padded else self.end
        self.start = self.end if hf.bos_token_id is None else int(hf.bos_token_id)
        characters = _characters(hf)
        self.characters = characters is not None  # one character, one token
        if characters is not None:
            self._alphabet = "".join(characters)
            points = np.fromiter(map(ord, characters), np.int64, len(characters))
            self._table = np.full(int(points.max()) + 1, -1, np.int32)
            self._table[points] = list(characters.values())
            names = {i: n for n, i in hf.get_vocab().items()}
            self._names = [names.get(i, "") for i in range(self.limit)]
        self._kept: dict[tuple[bool, str], Array] = {}

    def encode(self, prompt: Payload) -> Array:
        """[k] int32, read-only, of a string, a `Template` or messages (mappings with `role` and `content`). An empty
        prompt is the start token alone. Raises ValueError for a character outside of a character alphabet, and names
        it."""
        if not isinstance(prompt, str):
            return self.encode_chat(prompt)  # type: ignore[arg-type]
        key = isinstance(prompt, Template), prompt
        ids = self._kept.get(key)
        if ids is None:
            ids = self._finish(self._read(prompt))
            if len(self._kept) >= KEPT:
                self._kept.clear()
            if len(prompt) <= LONGEST:  # of texts beyond it, many would fill the memory of a server
                self._kept[key] = ids
        return ids

    def encode_chat(self, messages: Sequence[Mapping[str, Any]], *, reply: bool = True) -> Array:
        """[k] int32, read-only, of messages: by the tokenizer's chat template up to where the reply begins (without
        `reply` to their end), else as plain lines `role: content` and `assistant:`."""
        if not getattr(self.hf, "chat_template", None):
            return self.encode(plain_chat(messages))
        sign, names = f"\ue000{secrets.randbelow(10**18):018}", list[str]()  # stands for names while a template runs

        def mark(value: Any) -> Any:
            if not isinstance(value, str) or self.characters:
                return value
            out, at = "", 0
            for start, end in self._find_special(value):
                out, at = f"{out}{value[at:start]}{sign}{len(names):06}", end
                names.append(value[start:end])
            return out + value[at:]

        safe = [
            {k: mark(v) for k, v in m.items()}
            for m in messages
        ]
        text = chat.render(self.hf.get_chat_template(), safe, self.hf.special_tokens_map, reply=reply)
        if not names:
            return self.encode(Template(text))
        first, *rest = re.split(f"{sign}([0-9]{{6}})", text)
        ids = self._pieces(first) if first else []
        for n, after in zip(rest[::2], rest[1::2], strict=True):
            ids += self._plain(names[int(n)]) + (self._pieces(after) if after else [])
        return self._finish(ids)

    def decode(self, ids: Array) -> str:
        """The text of token ids, without an end token that closes it; other special tokens show by their names."""
        tokens = ids.tolist()
        if tokens and tokens[-1] in self.ends:
            del tokens[-1]
        if self.characters:
            return "".join(map(self._names.__getitem__, tokens))
        with told_panics(tokens):
            return str(self.hf.decode(tokens, skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def stops(self, strings: Sequence[str]) -> list[Array] | None:
        """The token ids of each stop string where a string has exactly one spelling (characters), else None."""
        return [self._characters(s) for s in strings] if self.characters else None

    def save(self, directory: str) -> None:
        """As a Hugging Face tokenizer directory."""
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
        if not self._find_special(said):
            return self._pieces(str(text))
        return [i for part, read in ((before, self._pieces), (said, self._plain), (after, self._pieces)) if part
                for i in read(part)]  # fmt: skip

    def _pieces(self, text: str) -> list[int]:
        """Token ids, special ones where they are named."""
        with told_panics(text):
            return self._check(self.hf.encode(text, add_special_tokens=False), text)

    def _plain(self, text: str) -> list[int]:
        """Token ids, none special but those of one character, which cannot be written otherwise."""
        with told_panics(text):
            ids = self.hf.encode(text, add_special_tokens=False)
        if not self._special.isdisjoint(ids):
            ids = self._blind.encode(text, add_special_tokens=False).ids
            if any(len(self._special_names[i]) > 1 for i in self._special.intersection(ids)):  # its vocabulary has it
                ids = []
                at = 0
                for start, end in self._find_special(text):
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

    def _find_special(self, text: str) -> list[tuple[int, int]]:
        """Where a text names special tokens of more than one character."""
        found = self.hf(text, add_special_tokens=False, return_offsets_mapping=True)
        spans = zip(found["input_ids"], found["offset_mapping"], strict=True)
        return [(int(a), int(b)) for i, (a, b) in spans if i in self._special and len(self._special_names[i]) > 1]

    def _check(self, ids: list[int], text: str) -> list[int]:
        if (highest := max(ids, default=0)) >= self.limit:
            raise ValueError(f"token {self.hf.convert_ids_to_tokens(highest)!r} (id {highest}) of {text[:60]!r} is "
                             f"none that the model has ({self.limit})")  # fmt: skip
        return ids

    @cached_property
    def _special_names(self) -> dict[int, str]:
        """id -> how it is written, of the special tokens but the one for what is unknown."""
        added = {i: str(t) for i, t in self.hf.added_tokens_decoder.items() if t.special}
        named = dict(zip(self.hf.all_special_ids, map(str, self.hf.all_special_tokens), strict=True))
        return {i: n for i, n in {**added, **named}.items() if i != self.hf.unk_token_id or i in self.ends}

    @cached_property
    def _special(self) -> frozenset[int]:
        return frozenset(self._special_names)

    @cached_property
    def _blind(self) -> Any:
        """A copy of the tokenizer that knows no special tokens: a switch of one would be thrown by other threads."""
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
                "prompts, answers and tools have, or models.policy.tokenizer = \"bpe\", which reads every text"
            )
        return ids


@contextmanager
def told_panics(given: Any) -> Iterator[None]:
    """A panic of the tokenizers library, which is no Exception, as a ValueError."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise ValueError(f"the tokenizer fails on {str(given)[:60]!r}: {str(error)[:200]}") from None


def character_tokenizer(alphabet: str = "") -> Tokenizer:
    """`<pad>` 0, `<end>` 1, then the characters of `alphabet` in order (default: newline and printable ASCII)."""
    from tokenizers import Regex, decoders, models, pre_tokenizers
    from tokenizers import Tokenizer as Backend

    vocabulary = {n: i for i, n in enumerate([PAD, END, *dict.fromkeys(alphabet or PRINTABLE)])}
    backend = Backend(models.WordLevel(vocabulary, unk_token=PAD))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    backend.decoder = decoders.Fuse()
    return Tokenizer(_wrap(backend))


def bpe_tokenizer(texts: Iterable[str], size: int) -> Tokenizer:
    """Byte pairs learnt from `texts`, `size` tokens in all: `<pad>` 0, `<end>` 1, the 256 bytes, then merges. Raises
    ValueError for a size below 258."""
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, models, pre_tokenizers, trainers

    if size < 258:
        raise ValueError(f"vocabulary is {size}: expected at least 258 (2 special tokens and 256 bytes)")
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    letters = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=[PAD, END], initial_alphabet=sorted(letters), show_progress=False
    )
    backend.train_from_iterator(texts, trainer)
    return Tokenizer(_wrap(backend))


def task_texts(task: Any, n: int = 4096) -> list[str]:
    """The strings of the first n training problems of a task: prompts, answers, solutions."""
    texts: list[str] = []
    for problem in read_first(task.problems("train"), n):
        texts += [
            t
            for part in (problem.prompt, problem.answer, problem.solution)
            for t in _strings(part)
        ]
    return texts


def _strings(payload: Payload) -> list[str]:
    if isinstance(payload, str):
        return [payload]
    if isinstance(payload, Mapping):
        return [
            t
            for v in payload.values()
            for t in _strings(v)
        ]
    return (
        [
            t
            for v in payload
            for t in _strings(v)
        ]
        if isinstance(payload, tuple)
        else []
    )


def _wrap(backend: Any) -> Any:
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(tokenizer_object=backend, pad_token=PAD, eos_token=END)


def _characters(hf: Any) -> dict[str, int] | None:
    """character -> id where every token but the special ones is one character, as `character_tokenizer` makes it."""
    from tokenizers import models

    backend = getattr(hf, "backend_tokenizer", None)
    if backend is None or not isinstance(backend.model, models.WordLevel):
        return None
    special = set(hf.all_special_tokens)
    letters = {t: i for t, i in sorted(hf.get_vocab().items(), key=lambda x: x[1]) if t not in special}
    return letters if letters and all(len(t) == 1 for t in letters) else None


def plain_chat(messages: Sequence[Mapping[str, Any]]) -> str:
    """Messages where no tokenizer brings a template of its own."""
    return "".join(f"{m['role']}: {m['content']}\n" for m in messages) + "assistant:"
