"""Text to token ids and back: any Hugging Face fast tokenizer, and two built here, over characters and byte pairs.

Left out: byte offsets, truncation, padding (models pad). Characters take a path of their own, a table lookup, since
small models read and write short texts very often. Token ids are one-dimensional int32 arrays.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from shuhari.data import Array, Payload
from shuhari.models.text import chat
from shuhari.tasks.source import read_first

PAD, END = "<pad>", "<end>"
PRINTABLE = "\n" + "".join(map(chr, range(32, 127)))  # newline and printable ASCII
KEPT = 1 << 16  # encoded texts kept
LONGEST = 1 << 12  # characters of a text that is kept


class Tokenizer:
    """A Hugging Face fast tokenizer, `hf`, as models use it: `encode`, `decode`, `end`, `pad`, `size`.

    A text ends with `end`, and where it is sampled with any of `ends` ([0] is `end`): the tokenizer's own, then those
    given. `limit`: ids that the model has, 0 for those of the tokenizer; padding beyond them is `end` instead.

    Texts are encoded as they are: no begin or end token is added (a chat template writes its own). A special token that
    a text names (`<|im_end|>`) is that token, as chat templates need it; with characters it is plain text. Raises
    ValueError where there is no end-of-sequence token, or where the model lacks tokens that texts are made of.
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
        self._kept: dict[str, Array] = {}

    def encode(self, prompt: Payload) -> Array:
        """[k] int32, read-only, of a string or of messages (mappings with `role` and `content`). An empty prompt is the
        start token alone. Raises ValueError for a character outside of a character alphabet, and names it."""
        text = prompt if isinstance(prompt, str) else self.render(prompt)  # type: ignore[arg-type]
        ids = self._kept.get(text)
        if ids is None:
            ids = self._characters(text) if self.characters else np.asarray(self._pieces(text), np.int32)
            ids = ids if len(ids) else np.array([self.start], np.int32)
            ids.flags.writeable = False
            if len(self._kept) >= KEPT:
                self._kept.clear()
            if len(text) <= LONGEST:  # of texts beyond it, many would fill the memory of a server
                self._kept[text] = ids
        return ids

    def decode(self, ids: Array) -> str:
        """The text of token ids, without an end token that closes it; other special tokens show by their names."""
        tokens = ids.tolist()
        if tokens and tokens[-1] in self.ends:
            del tokens[-1]
        if self.characters:
            return "".join(map(self._names.__getitem__, tokens))
        return str(self.hf.decode(tokens, skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def render(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """Messages as one string that ends where the reply begins: the tokenizer's chat template, else plain lines
        `role: content` and `assistant:`."""
        if getattr(self.hf, "chat_template", None):
            return chat.render(self.hf.get_chat_template(), messages, self.hf.special_tokens_map)
        return plain_chat(messages)

    def stops(self, strings: Sequence[str]) -> list[Array] | None:
        """The token ids of each stop string where a string has exactly one spelling (characters), else None."""
        return [self._characters(s) for s in strings] if self.characters else None

    def save(self, directory: str) -> None:
        """As a Hugging Face tokenizer directory."""
        self.hf.save_pretrained(directory)

    def _pieces(self, text: str) -> list[int]:
        ids: list[int] = self.hf.encode(text, add_special_tokens=False)
        if (highest := max(ids, default=0)) >= self.limit:
            raise ValueError(f"token {self.hf.convert_ids_to_tokens(highest)!r} (id {highest}) of {text[:60]!r} is "
                             f"none that the model has ({self.limit})")  # fmt: skip
        return ids

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
        texts += [t for part in (problem.prompt, problem.answer, problem.solution) for t in _strings(part)]
    return texts


def _strings(payload: Payload) -> list[str]:
    if isinstance(payload, str):
        return [payload]
    if isinstance(payload, Mapping):
        return [t for v in payload.values() for t in _strings(v)]
    return [t for v in payload for t in _strings(v)] if isinstance(payload, tuple) else []


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
