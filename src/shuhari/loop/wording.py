"""Conversion of prompts, answers and turns between text and the token ids of a role's model. The tokenizer alone
defines how each is written; a model without one of ours encodes all of them alike."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np

from shuhari.data import Payload, is_tokens
from shuhari.models.text.conversation import ANSWERED, SAID
from shuhari.models.text.tokenizers import Template
from shuhari.needs import role_model
from shuhari.ports import Model, ability, is_text

Models = Mapping[str, Model]


def encode(prompt: Payload, models: Models, role: str) -> Payload:
    """Convert a string or messages to token ids of the role's model; return any other payload as it is. Raises
    TypeError if that model reads no text."""
    return _find(prompt, models, role).encode(prompt) if _is_words(prompt) else prompt


def encode_text(text: Payload, models: Models, role: str) -> Payload:
    """Convert a text that continues a row, after other text: without what a tokenizer or a chat template puts before a
    prompt."""
    if not _is_words(text):
        return text
    model = _find(text, models, role)
    tokens = ability(model, "text")
    return model.encode(text) if tokens is None else tokens.encode_text(text)


def encode_answer(prompt: Payload, answer: Payload, models: Models, role: str) -> Payload:
    """Convert an answer to a prompt, text or token ids, to token ids with the token that ends an answer; return any
    other payload as it is."""
    if not (is_tokens(answer) or _is_words(answer)):
        return answer
    model = _find(answer, models, role)
    tokens = ability(model, "text")
    if tokens is not None and isinstance(answer, str) and _is_words(prompt):
        return tokens.encode_answer(prompt, answer)
    ids: Any = encode_text(answer, models, role)
    end = model.end
    return ids if len(ids) and ids[-1] == end else np.append(ids, np.int32(end))


def encode_turn(said: Payload, prompt: Payload, last: int, models: Models, role: str) -> Payload:
    """Convert what the role reads next, after its own turn, in a row that began with `prompt`, to token ids."""
    if not _is_words(said):
        return said
    model = _find(said, models, role)
    tokens = ability(model, "text")
    if tokens is not None:
        return tokens.encode_turn(said, prompt, last)
    if isinstance(prompt, str) or not isinstance(said, str):
        return model.encode(said)
    turns = ("user", "."), ("assistant", SAID), ("user", ANSWERED)
    shown = model.decode(model.encode(tuple({"role": r, "content": c} for r, c in turns)))
    between, answered, after = shown.partition(SAID)[2].partition(ANSWERED)
    if not answered:
        raise ValueError(f"the chat format of the model of role {role!r} drops earlier turns: {shown[-60:]!r}")
    ids: Any = model.encode(Template(between, said, after))
    return ids[1:] if len(ids) > 1 and int(ids[0]) == last else ids


def decode(ids: Payload, models: Models, role: str) -> str:
    """Convert token ids of the role's model to text."""
    return role_model(models, role).decode(ids)


def describe_reading(models: Models, prompt: Payload) -> list[str]:
    """Describe how the roles' models read a task's prompts, such as `prompt`: by a chat template, and what is odd about
    that."""
    out: dict[str, None] = {}
    for role, model in models.items():
        tokens = ability(model, "text") if _is_words(prompt) and is_text(model) else None
        if tokens is None or not tokens.has_template:
            continue
        name = f"models.{role}"
        if isinstance(prompt, str):
            chats = "each prompt is a turn of a user, written by its chat template (task.chat = false: text as it is)"
            out[f"{name}: {chats if tokens.chat else 'prompts are text as it is, without its chat template'}"] = None
        if isinstance(prompt, str) and not tokens.chat:
            continue
        with suppress(ValueError):  # of a template that wants other turns
            out |= dict.fromkeys(f"{name}: its chat template is odd: {odd}" for odd in tokens.conversation.check())
    return list(out)


def _find(words: Payload, models: Models, role: str) -> Any:
    model = role_model(models, role)
    if not is_text(model):
        raise TypeError(f"the model of role {role!r} reads no text, but the prompt is {str(words)[:60]!r}")
    return model


def _is_words(prompt: Payload) -> bool:
    """Whether a payload is a string, or messages (mappings, one or more)."""
    if isinstance(prompt, tuple):
        return bool(prompt) and all(isinstance(message, Mapping) for message in prompt)
    return isinstance(prompt, str)
