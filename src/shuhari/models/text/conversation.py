"""The chat template of a tokenizer: token ids of messages, of the answer to them, and of the turn after that.

The same rules for policy, teacher, reward model and server: a conversation is encoded as the template writes it; an
answer ends with what the template writes after it, up to its end of turn. The content of a message is plain text,
whatever it contains. Left out: tools in the template; `rollouts.tools` describes them in the prompt.
"""

from __future__ import annotations

import re
import secrets
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

from shuhari.models.text import chat

Messages = Sequence[Mapping[str, Any]]
SAID, ANSWERED = "\ue101", "\ue102"  # placeholders for a turn and its answer: no white space, which templates strip
ONE = {"role": "user", "content": "."}


class Conversation:
    """The output of the chat template of the tokenizer `of` (a `Tokenizer`)."""

    def __init__(self, of: Any) -> None:
        self._of = of
        self._told: set[str] = set()

    def encode(self, messages: Messages, *, reply: bool = True) -> list[int]:
        """Returns the ids of messages, up to where the reply begins; without `reply` to their end."""
        plain, read = self._hide(messages)
        return read(self._render(plain, reply=reply))

    def encode_answer(self, messages: Messages, answer: str) -> list[int]:
        """Returns the ids of an answer to messages, with its end of turn: those that continue the prompt to the whole
        conversation. If the template writes an answer after another prompt than the sampled one, the ids of the answer
        itself."""
        plain, read = self._hide([*messages, {"role": "assistant", "content": answer}])
        before, whole = self._render(plain[:-1], reply=True), self._render(plain, reply=False)
        if not whole.startswith(before):
            self._tell("writes an answer behind another prompt than the one that is sampled from: demonstrations are "
                       "the prompt, then the answer, then the end of turn")  # fmt: skip
            return [*self._of.list_continued(answer), self.end]
        behind = whole[len(before) :]
        prompt, ids = read(before), read(whole)
        rest = ids[len(prompt) :] if ids[: len(prompt)] == prompt else read(behind)
        at = next((i for i, token in enumerate(rest) if token in self._of.ends), None)
        if at is not None:
            return rest[: at + 1]
        said = str(plain[-1]["content"])
        until = behind.rfind(said)
        return [*read(behind.rstrip() if until < 0 else behind[: until + len(said)]), self.end]

    def encode_turn(self, messages: Messages) -> list[int]:
        """Returns the ids from the end of the model's turn on, with `messages` after it, to where its next turn
        begins."""
        plain, read = self._hide(messages)
        text = self._render([ONE, {"role": "assistant", "content": SAID}, *plain], reply=True)
        before, said, rest = text.partition(SAID)
        if not said:
            raise ValueError(f"the chat template leaves out what was said: {before[-60:]!r}")
        return read(rest)

    @cached_property
    def frame(self) -> tuple[str, str]:
        """The texts between the model's turn and the next user turn, and between that and the model's next turn."""
        turns = [ONE, {"role": "assistant", "content": SAID}, {"role": "user", "content": ANSWERED}]
        text = self._render(turns, reply=True)
        before, said, rest = text.partition(SAID)
        between, answered, after = rest.partition(ANSWERED)
        if not (said and answered):
            raise ValueError(f"the chat template leaves out what was said: {before[-60:]!r}")
        return between, after

    @cached_property
    def closing(self) -> int | None:
        """The special token that the template writes after an answer; None if it writes none."""
        try:
            text = self._render([ONE, {"role": "assistant", "content": SAID}], reply=False)
        except ValueError:  # a template that needs other turns: use the tokenizer's own end
            return None
        behind = self._of.list_special(text.partition(SAID)[2])
        return next((i for i in behind if i in self._of.special), None)

    @property
    def end(self) -> int:
        """The token that ends an answer."""
        return self._of.end if self.closing is None else self.closing

    def check(self) -> list[str]:
        """Returns warnings about the template."""
        out = []
        asked, plain = (self._render([ONE], reply=reply) for reply in (True, False))
        answered = self._render([ONE, {"role": "assistant", "content": SAID}], reply=False)
        head = answered.partition(SAID)[0][len(plain) :]
        if asked == plain and head.strip():
            out.append(f"it has no generation prompt: a model has to write {head!r} itself before each answer")
        if not answered.startswith(asked):
            out.append("it writes an answer behind another prompt than the one that is sampled from")
        return out

    # ------------------------------------------------------------------ inside

    def _hide(self, messages: Messages) -> tuple[list[dict[str, Any]], Callable[[str], list[int]]]:
        """Returns (messages in which no special token is named, a function that encodes their rendered text with the
        hidden parts as plain text)."""
        sign, names = f"\ue000{secrets.randbelow(10**18):018}", list[str]()

        def hide(value: Any) -> Any:
            if isinstance(value, Mapping):
                return {k: hide(v) for k, v in value.items()}
            if isinstance(value, list | tuple):
                return [hide(v) for v in value]
            if not isinstance(value, str) or self._of.characters:
                return value
            out, at = "", 0
            for start, end in self._of.find_special(value):
                out, at = f"{out}{value[at:start]}{sign}{len(names):06}", end
                names.append(value[start:end])
            return out + value[at:]

        def read(text: str) -> list[int]:
            if not names:
                return self._of.list_special(text)
            first, *rest = re.split(f"{sign}([0-9]{{6}})", text)
            ids = self._of.list_special(first) if first else []
            for n, after in zip(rest[::2], rest[1::2], strict=True):
                ids += self._of.list_continued(names[int(n)])
                ids += self._of.list_special(after) if after else []
            return ids

        return [hide(m) for m in messages], read

    def _render(self, messages: Messages, *, reply: bool) -> str:
        hf = self._of.hf
        return chat.render(hf.get_chat_template(), messages, hf.special_tokens_map, reply=reply)

    def _tell(self, what: str) -> None:
        if what not in self._told:
            self._told.add(what)
            warnings.warn(f"the chat template {what}", stacklevel=4)
