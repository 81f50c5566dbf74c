"""Labels of what an environment says, by an annotator that answers late.

Source: Zheng et al. 2024, "Online Intrinsic Rewards for Decision Making Agents from Large Language Model Feedback",
section 3.1. Left out: texts (messages are numbers that the annotator understands), captions of several messages.

Axes: `B` rows, `M` messages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from shuhari.batch import Batch
from shuhari.bounds import Count, Length, Share, check
from shuhari.data import ContractError
from shuhari.kernel import registry
from shuhari.kernel.registry import register
from shuhari.needs import Need
from shuhari.ports import Ctx


@register("transform", "annotate")
@dataclass
class Annotate:
    """Has the messages of collected decisions labelled beside training, newest first, by an annotator that is slow.

    A message that was not seen before goes on a stack. The annotator takes the newest `size` of it and answers once
    `delay` more decisions have been collected; then it takes the next. Stamps `helpful` [B], the label of a row's
    message as known now, in [0, 1], NaN if there is none (yet); nothing waits for labels. A transform of `[collect]`,
    where each decision passes once. Counted: `labels`. Raises ValueError for a labeller that is no function,
    ContractError for one that does not return a number in [0, 1] for each message.
    """

    labeller: str
    """Function that labels, `file.py:name` or a dotted path: `f(messages) -> list of numbers in [0, 1]`, how helpful
    each is."""
    column: str = "message"
    """Column [B] with the number of what the environment says after a decision; 0 or less is nothing."""
    delay: Count = 1000
    """Number of later decisions that are collected before an answer arrives; 0 answers at once."""
    size: Length = 4
    """Number of messages that are labelled together."""
    wrong: Share = 0.0
    """Probability that a label y is 1 - y instead, drawn once for each message, for annotators that err."""
    needs: tuple[Need, ...] = field(default=(), init=False)
    state: dict[str, Any] = field(
        init=False,
        default_factory=lambda: {"decisions": 0, "known": [], "stack": [], "asked": [], "due": 0, "labels": {}},
    )
    call: Callable[[Sequence[int]], Sequence[float]] = field(init=False, repr=False)
    stamps = ("helpful",)

    def __post_init__(self) -> None:
        check(self)
        self.call = registry.find("reward", self.labeller)
        if not callable(self.call) or isinstance(self.call, type):
            raise ValueError(f"annotate: labeller {self.labeller!r} is {self.call!r:.60}: expected a function")

    @property
    def reads(self) -> tuple[str, ...]:
        return (self.column,)

    def __call__(self, batch: Batch, ctx: Ctx) -> Batch:
        state, said = self.state, batch[self.column].long().reshape(-1) * batch.decides
        for message in said.tolist():
            if message > 0 and message not in state["known"]:
                state["known"].append(message)
                state["stack"].append(message)
        state["decisions"] += int(batch.decides.sum())
        while state["asked"] or state["stack"]:
            if not state["asked"]:
                state["asked"], state["due"] = self.take_newest(), state["decisions"] + self.delay
            if state["due"] > state["decisions"]:
                break
            self._receive(ctx)
        labels = [state["labels"].get(str(message), torch.nan) for message in said.tolist()]
        return batch.put({"helpful": torch.tensor(labels, dtype=torch.float32)})

    def take_newest(self) -> list[int]:
        """Returns the last `size` messages of the stack, and takes them off."""
        stack = self.state["stack"]
        taken, stack[:] = stack[-self.size :], stack[: -self.size]
        return list(taken)

    def _receive(self, ctx: Ctx) -> None:
        asked, self.state["asked"] = self.state["asked"], []
        found = [float(x) for x in self.call(asked)]
        if len(found) != len(asked) or not all(0 <= x <= 1 for x in found):
            what = f"labeller {self.labeller!r} gave {str(found)[:60]} for {len(asked)} messages"
            raise ContractError(f"annotate: {what}: expected a number in [0, 1] for each")
        for i, message in enumerate(asked):
            if self.wrong and float(torch.rand((), generator=ctx.rng("annotate", message))) < self.wrong:
                found[i] = 1 - found[i]
            self.state["labels"][str(message)] = found[i]
        ctx.charge("labels", len(asked))
