"""Scores of whole texts, or of their tokens: Hugging Face classifiers, read from a directory, or written as one.

A classifier of texts has one output. One of tokens has one, or two, whose score is the logit of the second less that of
the first: its sigmoid is the probability of the second label. Directories are checked like those of language models
(`folder.py`). Left out: several labels, adapters of classifiers.

Axes: `B` texts, `T` tokens of the longest.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from shuhari.models.text import pretrained
from shuhari.models.text.clean import checked_copy, forget
from shuhari.models.text.folder import (
    AUTO,
    Reads,
    check_config,
    check_size,
    check_tokenizer,
    check_weights,
    holds_adapters,
    read_json,
    reading,
)
from shuhari.models.text.hub import fetch
from shuhari.models.text.tokenizers import Tokenizer, plain_chat
from shuhari.store.files import follow_umask

OFFSET = "score_offset"  # in config.json: added to a score, as the heads of transformers have no bias


class Classifier:
    """A model `hf`, and its tokenizer: `score` of texts, or `score_tokens`. `limit`: tokens of the longest text.
    `closed`: whether it was written by `save`, and scores a conversation at the end of its last turn instead of after
    all that the chat template writes."""

    def __init__(self, hf: Any, text: Tokenizer, offset: float = 0.0, closed: bool = False) -> None:
        self.hf, self.text, self.offset, self.closed = hf.eval().requires_grad_(False), text, offset, closed
        config = hf.config.get_text_config()
        self.pad = config.pad_token_id
        self.limit = int(getattr(config, "max_position_embeddings", None) or 1 << 30)
        self.pairs = has_pairs(text.hf)
        self.typed = self.pairs and "token_type_ids" in text.hf.model_input_names

    @torch.no_grad()
    def score(self, ids: Sequence[Sequence[int]], rows: int = 8) -> list[float]:
        """Returns one number for each text, given as token ids; `rows` at once, or one if the model has no padding."""
        return [
            float(x[0])
            for logits, _ in self._run(ids, rows)
            for x in logits.float() + self.offset
        ]

    @torch.no_grad()
    def score_tokens(self, ids: Sequence[Sequence[int]], rows: int = 8) -> list[list[float]]:
        """Returns the score of each token of each text, with the text up to it, by a classifier of tokens."""
        out: list[list[float]] = []
        for logits, lengths in self._run(ids, rows):
            score = logits.float()[..., -1] - (logits.float()[..., 0] if logits.shape[-1] == 2 else 0.0)
            out += [x[:n].tolist() for x, n in zip(score, lengths, strict=True)]
        return out

    def _run(self, ids: Sequence[Sequence[int]], rows: int) -> Iterator[tuple[torch.Tensor, list[int]]]:
        """Yields (logits [B, ...], length of each text) of some texts at a time."""
        rows = rows if self.pad is not None else 1
        for at in range(0, len(ids), rows):
            some = [torch.as_tensor(x, dtype=torch.long) for x in ids[at : at + rows]]
            width = max(map(len, some))
            fill, device = 0 if self.pad is None else int(self.pad), self.hf.device
            padded = torch.stack([torch.nn.functional.pad(x, (0, width - len(x)), value=fill) for x in some])
            there = torch.stack([(torch.arange(width) < len(x)).long() for x in some])
            more = {"token_type_ids": self._types(padded, there).to(device)} if self.typed else {}
            logits = self.hf(input_ids=padded.to(device), attention_mask=there.to(device), **more).logits
            yield logits, [len(x) for x in some]

    def _types(self, padded: torch.Tensor, there: torch.Tensor) -> torch.Tensor:
        """Returns [B, T] 1 after the first separator of each text: the second part of a pair."""
        ends = (padded == self.text.hf.sep_token_id).long()
        return ((ends.cumsum(1) - ends) > 0).long() * there

    def encode(self, prompt: Any, completion: str) -> list[int]:
        """Returns the token ids of a prompt (text, or messages) and its answer: a conversation by the chat template,
        text as it is, with the end token; for an encoder (BERT) the pair of prompt and completion."""
        hf = self.text.hf
        if self.pairs and (isinstance(prompt, str) or not getattr(hf, "chat_template", None)):
            first = prompt if isinstance(prompt, str) else plain_chat(prompt)
            return list(hf([first], [completion])["input_ids"][0])  # alone, an empty completion would be no second text
        if isinstance(prompt, str) and not self.text.chat:
            return [*self.text.encode_text(prompt + completion, begin=True).tolist(), self.text.end]
        messages = self.text.as_messages(prompt)
        if self.closed:
            return [*self.text.encode(messages).tolist(), *self.text.encode_answer(messages, completion).tolist()]
        if self.text.has_template:
            whole = [*messages, {"role": "assistant", "content": completion}]
            return list(self.text.encode_chat(whole, reply=False).tolist())
        said = plain_chat(messages) + completion
        return [*self.text.encode_text(said, begin=True).tolist(), self.text.end]

    def encode_apart(self, prompt: Any, completion: str) -> tuple[list[int], list[int]]:
        """Returns the token ids of a prompt (text, or messages), and of its answer with the end token."""
        return self.text.encode(prompt).tolist(), self.text.encode_answer(prompt, completion).tolist()


def has_pairs(hf: Any) -> bool:
    """Whether a Hugging Face tokenizer is that of an encoder, which puts its own tokens around texts."""
    return hf.cls_token_id is not None and hf.sep_token_id is not None


def find(path: str, reads: Reads = "text") -> Path:
    """Returns the directory of a classifier, of texts or of tokens, checked but not loaded; fetches a hub id. Raises
    ValueError for another kind of directory, FileNotFoundError if there is none."""
    place = Path(path).expanduser()
    if not place.is_dir():
        place = fetch(path, place)
    with reading(place):
        if holds_adapters(place):
            raise ValueError(f"{place} holds adapters: expected a whole classifier, with them merged into it")
        check_config(place, reads)
        config = read_json(place / "config.json")
        _check_kind(place, config, reads)
        named = config.get("id2label")
        if not isinstance(named, dict | None):
            raise ValueError(f"{place / 'config.json'}: id2label is {str(named)[:60]!r}: expected a table")
        said = [config.get("num_labels"), len(named) if named else None]
        labels = [n for n in said if n is not None] or [2]  # the default of transformers
        most, expected = (1, "one output, a score (num_labels = 1)") if reads == "text" else (2, "one output, or two")
        if wrong := [n for n in labels if n not in (1, most)]:
            raise ValueError(f"{place} tells {wrong[0]} labels apart: expected {expected}")
        _read_offset(place)
        check_tokenizer(place)
    return place


def _check_kind(place: Path, config: Mapping[str, Any], reads: Reads) -> None:
    """Raises ValueError if config.json names a class of the other kind."""
    made = [str(x) for x in config.get("architectures") or ()] if isinstance(config.get("architectures"), list) else []
    for name in made:
        if reads == "tokens" and name.endswith("ForSequenceClassification"):
            raise ValueError(f"{place} is a {name}, which scores whole texts: expected one that scores tokens, or "
                             "level = 'answer'")  # fmt: skip
        if reads == "text" and name.endswith("ForTokenClassification"):
            raise ValueError(f"{place} is a {name}, which scores tokens: expected one that scores whole texts, or "
                             "level = 'step'")  # fmt: skip


def load(path: str, reads: Reads = "text") -> Classifier:
    """Returns the classifier of a directory (or a hub id), in float32. Raises as `find`, and ValueError if its weights
    do not match its config.json, or if it is an encoder (BERT) that is to score tokens."""
    import transformers
    from transformers import AutoTokenizer

    place = find(path, reads)
    how: dict[str, Any] = {"trust_remote_code": False, "local_files_only": True}
    with reading(place), pretrained.silence(), checked_copy(place) as copied:
        stored = check_weights(place, "model")
        check_size(place, copied, stored, reads)
        hf, found = getattr(transformers, AUTO[reads]).from_pretrained(
            str(copied), output_loading_info=True, dtype=torch.float32, use_safetensors=True, **how
        )
        words = AutoTokenizer.from_pretrained(str(copied), **how)
        forget(copied, place, hf, words)
    if missing := sorted(found["missing_keys"]):
        raise ValueError(f"{place}: {len(missing)} of the model's weights are not there, such as {missing[0]}: "
                         "expected those of a classifier, with its head")  # fmt: skip
    size, pad = int(hf.get_input_embeddings().num_embeddings), hf.config.get_text_config().pad_token_id
    if pad is not None and not (isinstance(pad, int) and 0 <= pad < size):
        raise ValueError(f"{place / 'config.json'}: pad_token_id is {pad!r}: expected a token, 0 to {size - 1}")
    if reads == "tokens" and has_pairs(words):
        raise ValueError(f"{place} is an encoder, which reads both ways: expected a model that scores a beginning of a "
                         "text without what follows")  # fmt: skip
    with reading(place):
        ends = (words.sep_token_id,) if has_pairs(words) else ()
        closed = OFFSET in read_json(place / "config.json")
        return Classifier(hf, Tokenizer(words, ends, size), _read_offset(place), closed)


def _read_offset(place: Path) -> float:
    given = read_json(place / "config.json").get(OFFSET, 0.0)
    if not isinstance(given, int | float) or not abs(given) <= torch.finfo(torch.float32).max:
        message = f"{OFFSET} is {str(given)[:60]}: expected a finite number, as float32"
        raise ValueError(f"{place / 'config.json'}: {message}")
    return float(given)


def save(
    lm: Any, head: Mapping[str, torch.Tensor], text: Tokenizer, directory: Path, *, dtype: str, shard: str,
    reads: Reads = "text",
) -> None:  # fmt: skip
    """Writes the trunk of a language model with a linear head of one output as a classifier.

    Of texts: the score is the head's at the last token that is not padding; its bias becomes `score_offset` in
    config.json, which transformers does not add. Of tokens: the score at each token is the logit of the label `good`,
    and 0 that of `bad`. Raises ValueError for an architecture without such a classifier in transformers, and if padding
    cannot be told from the end of a text."""
    import transformers

    config = copy.deepcopy(lm.config)
    inner = config.get_text_config()
    pad = text.pad if text.pad not in text.ends else _find_padding(text)
    config.num_labels, inner.pad_token_id = 1, pad
    if reads == "tokens":
        config.id2label, config.label2id = {0: "bad", 1: "good"}, {"bad": 0, "good": 1}
    setattr(config, OFFSET, float(head["bias"]) if reads == "text" else 0.0)
    with pretrained.silence():
        try:
            made = getattr(transformers, AUTO[reads]).from_config(config, dtype=lm.dtype)
        except (ValueError, KeyError):
            what = "classifier" if reads == "text" else "classifier of tokens"
            raise ValueError(f"transformers has no {what} of the architecture {config.model_type!r}") from None
    heads = {n for n in made.state_dict() if not n.startswith(f"{made.base_model_prefix}.")}
    if reads == "text" and heads != {"score.weight"}:
        raise ValueError(f"the classifier of {config.model_type!r} is not a linear head on the last token")
    if reads == "tokens" and heads not in ({"score.weight", "score.bias"}, {"classifier.weight", "classifier.bias"}):
        raise ValueError(f"the classifier of {config.model_type!r} is not a linear head on each token")
    made.base_model.load_state_dict(lm.base_model.state_dict())
    if reads == "text":
        made.score.weight.data.copy_(head["weight"])
    else:
        own = made.get_submodule(heads.pop().partition(".")[0])
        for name in ("weight", "bias"):
            given = head[name].reshape(1, -1) if name == "weight" else head[name].reshape(1)
            getattr(own, name).data.copy_(torch.cat([torch.zeros_like(given), given]))
    if dtype:
        made = made.to(pretrained.dtype_of(dtype))
    with pretrained.silence():
        made.save_pretrained(directory, max_shard_size=shard)
    follow_umask(directory)
    words = copy.deepcopy(text.hf)
    words.pad_token = words.convert_ids_to_tokens(pad)
    words.save_pretrained(str(directory))


def _find_padding(text: Tokenizer) -> int:
    """Returns a special token that occurs in no text, for a tokenizer whose padding is its end token, which
    transformers would treat as following the text. Raises ValueError if there is none."""
    turns: Any = ({"role": "user", "content": "."},)
    said = {*text.ends, text.start, *text.begin, *text.encode(turns).tolist(), *text.encode_answer(turns, ".").tolist()}
    free = [i for i in sorted(text.special) if i not in said and i < text.limit]
    if not free:
        raise ValueError("its padding token is its end token too, so that transformers would not see where a text "
                         "ends: give the tokenizer a padding token of its own")  # fmt: skip
    unknown = text.hf.unk_token_id
    return int(unknown) if unknown in free else free[0]
