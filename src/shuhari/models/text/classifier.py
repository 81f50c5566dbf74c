"""Scores of whole texts: Hugging Face classifiers with one output, read from a directory, or written as one.

Directories are checked like those of language models (`folder.py`). Left out: several labels, adapters of classifiers.

Axes: `B` texts, `T` tokens of the longest.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from shuhari.models.text import pretrained
from shuhari.models.text.clean import checked_copy, forget
from shuhari.models.text.folder import (
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
    """A model `hf` with one output, and its tokenizer: `score` of texts. `limit`: tokens of the longest text. `closed`:
    whether it scores a conversation at the end of its last turn, as models written by `save` do, instead of after all
    that the chat template writes."""

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
        out: list[float] = []
        rows = rows if self.pad is not None else 1
        for at in range(0, len(ids), rows):
            some = [torch.as_tensor(x, dtype=torch.long) for x in ids[at : at + rows]]
            width = max(map(len, some))
            fill, device = 0 if self.pad is None else int(self.pad), self.hf.device
            padded = torch.stack([torch.nn.functional.pad(x, (0, width - len(x)), value=fill) for x in some])
            there = torch.stack([(torch.arange(width) < len(x)).long() for x in some])
            more = {"token_type_ids": self._types(padded, there).to(device)} if self.typed else {}
            logits = self.hf(input_ids=padded.to(device), attention_mask=there.to(device), **more).logits
            out += (logits[:, 0].float() + self.offset).tolist()
        return out

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


def has_pairs(hf: Any) -> bool:
    """Whether a Hugging Face tokenizer is that of an encoder, which puts its own tokens around texts."""
    return hf.cls_token_id is not None and hf.sep_token_id is not None


def find(path: str) -> Path:
    """Returns the directory of a classifier with one output, checked but not loaded; fetches a hub id. Raises
    ValueError for another kind of directory, FileNotFoundError if there is none."""
    place = Path(path).expanduser()
    if not place.is_dir():
        place = fetch(path, place)
    with reading(place):
        if holds_adapters(place):
            raise ValueError(f"{place} holds adapters: expected a whole classifier, with them merged into it")
        check_config(place, scores=True)
        config = read_json(place / "config.json")
        named = config.get("id2label")
        if not isinstance(named, dict | None):
            raise ValueError(f"{place / 'config.json'}: id2label is {str(named)[:60]!r}: expected a table")
        said = [config.get("num_labels"), len(named) if named else None]
        labels = [n for n in said if n is not None] or [2]  # the default of transformers
        if wrong := [n for n in labels if n != 1]:
            raise ValueError(f"{place} tells {wrong[0]} labels apart: expected one output, a score (num_labels = 1)")
        _read_offset(place)
        check_tokenizer(place)
    return place


def load(path: str) -> Classifier:
    """Returns the classifier of a directory (or a hub id), in float32. Raises as `find`, and ValueError if its weights
    do not match its config.json."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    place = find(path)
    how: dict[str, Any] = {"trust_remote_code": False, "local_files_only": True}
    with reading(place), pretrained.silence(), checked_copy(place) as copied:
        stored = check_weights(place, "model")
        check_size(place, copied, stored, scores=True)
        hf, found = AutoModelForSequenceClassification.from_pretrained(
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
    lm: Any, head: Mapping[str, torch.Tensor], text: Tokenizer, directory: Path, *, dtype: str, shard: str
) -> None:
    """Writes the trunk of a language model with a linear head of one output as a classifier: the score of a text is the
    head's at its last token that is not padding. A bias of the head becomes `score_offset` in config.json, which
    transformers does not add. Raises ValueError for an architecture without a classifier in transformers, and if
    padding cannot be told from the end of a text."""
    from transformers import AutoModelForSequenceClassification

    config = copy.deepcopy(lm.config)
    inner = config.get_text_config()
    pad = text.pad if text.pad not in text.ends else _find_padding(text)
    config.num_labels, inner.pad_token_id = 1, pad
    setattr(config, OFFSET, float(head["bias"]))
    with pretrained.silence():
        try:
            made = AutoModelForSequenceClassification.from_config(config, dtype=lm.dtype)
        except (ValueError, KeyError):
            raise ValueError(f"transformers has no classifier of the architecture {config.model_type!r}") from None
    if {n for n in made.state_dict() if not n.startswith(f"{made.base_model_prefix}.")} != {"score.weight"}:
        raise ValueError(f"the classifier of {config.model_type!r} is not a linear head on the last token")
    made.base_model.load_state_dict(lm.base_model.state_dict())
    made.score.weight.data.copy_(head["weight"])
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
