"""A program in the place of the language model that labels messages: of the world `key_door`."""

from __future__ import annotations

from collections.abc import Sequence

from shuhari.tasks.worlds.key_door import GOAL, KEY, UNLOCK


def find_progress(messages: Sequence[int]) -> list[float]:
    """Returns for each message whether it reports progress: 1 for the key, the unlocked door and the goal, else 0."""
    return [float(message in (KEY, UNLOCK, GOAL)) for message in messages]
