"""Prompts and answers between text and the token ids of a role's model."""

from __future__ import annotations

from collections.abc import Mapping

from shuhari.data import Payload
from shuhari.needs import role_model
from shuhari.ports import Model, is_text


def encode(prompt: Payload, models: Mapping[str, Model], role: str) -> Payload:
    """A string or messages as the token ids of the role's model; any other payload as it is. Raises TypeError if that
    model reads no text."""
    model = role_model(models, role)
    if not _is_words(prompt):
        return prompt
    if not is_text(model):
        raise TypeError(f"the model of role {role!r} reads no text, but the prompt is {str(prompt)[:60]!r}")
    return model.encode(prompt)


def decode(ids: Payload, models: Mapping[str, Model], role: str) -> str:
    """Token ids of the role's model as text."""
    return role_model(models, role).decode(ids)


def _is_words(prompt: Payload) -> bool:
    """Whether it is a string, or messages (mappings, one or more)."""
    if isinstance(prompt, tuple):
        return bool(prompt) and all(isinstance(message, Mapping) for message in prompt)
    return isinstance(prompt, str)
