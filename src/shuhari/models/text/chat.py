"""Renders messages as one text by the chat template of a model, which is an untrusted program.

transformers runs it in a process of its own (`chat_child.py`) with limits on memory, processor time and the length of
the text: nested loops, or a text repeated a billion times, are refused without a wait. Left out: tools.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shuhari.models.text.child import ChildError, Pool

CPU, MEMORY, LENGTH = 1, 1024, 1 << 24  # seconds of processor time per text, MiB, characters
CLOCK = 60.0  # seconds of wall clock per text
LONGEST = 1 << 20  # characters of a template
CHILD = Path(__file__).with_name("chat_child.py")

_children = Pool(1, CHILD, str(MEMORY), str(CPU), str(LENGTH))


def render(
    template: str, messages: Sequence[Mapping[str, Any]], special: Mapping[str, Any], *, reply: bool = True
) -> str:
    """Returns the text of messages, up to where the reply begins; without `reply` up to their end. `special`: names of
    special tokens -> their texts. Raises ValueError if the template refuses the messages, is not a template, or exceeds
    the limits."""
    roles = ", ".join(str(m.get("role")) for m in messages)
    if len(template) > LONGEST:
        raise ValueError(f"the chat template has {len(template)} characters: expected at most {LONGEST}")
    request = {"template": template, "messages": [dict(m) for m in messages], "special": dict(special),
               "reply": reply}  # fmt: skip
    try:
        with _children.child() as child:
            answer = child.ask(request, CLOCK)
    except ChildError as error:
        raise ValueError(f"the chat template of the tokenizer cannot be run: {error}") from None
    if text := str(answer.get("text", "")):
        return text
    if "text" in answer:
        raise ValueError(f"the chat template of the tokenizer writes nothing for messages of {roles}: expected a text")
    if "refused" in answer:
        raise ValueError(f"the chat template of the tokenizer refuses messages of {roles}: {answer['refused']}")
    raise ValueError(f"the chat template of the tokenizer wants more for messages of {roles} than {CPU} s of processor "
                     f"time, {MEMORY} MiB and {LENGTH} characters: expected one that writes the messages")  # fmt: skip
