"""Tokenizers made for a task: over characters, and over byte pairs learnt from its texts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from shuhari.data import Payload, read_first
from shuhari.models.text.tokenizers import Tokenizer

PAD, END = "<pad>", "<end>"
PRINTABLE = "\n" + "".join(map(chr, range(32, 127)))  # newline and printable ASCII


def character_tokenizer(alphabet: str = "") -> Tokenizer:
    """Returns a tokenizer: `<pad>` 0, `<end>` 1, then the characters of `alphabet` in order (default: newline and
    printable ASCII)."""
    from tokenizers import Regex, decoders, models, pre_tokenizers
    from tokenizers import Tokenizer as Backend

    vocabulary = {n: i for i, n in enumerate([PAD, END, *dict.fromkeys(alphabet or PRINTABLE)])}
    backend = Backend(models.WordLevel(vocabulary, unk_token=PAD))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    backend.decoder = decoders.Fuse()
    return Tokenizer(_wrap(backend))


def bpe_tokenizer(texts: Iterable[str], size: int) -> Tokenizer:
    """Returns a tokenizer of byte pairs learnt from `texts`, `size` tokens in all: `<pad>` 0, `<end>` 1, the 256 bytes,
    then merges. Raises ValueError for a size below 258."""
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
    """Returns the strings of the first n training problems of a task: prompts, answers, solutions."""
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
        payload = tuple(payload.values())
    if not isinstance(payload, tuple):
        return []
    return [
        t
        for v in payload
        for t in _strings(v)
    ]


def _wrap(backend: Any) -> Any:
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(tokenizer_object=backend, pad_token=PAD, eos_token=END)
