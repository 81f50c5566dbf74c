"""Online Intrinsic Rewards for Decision Making Agents from LLM Feedback (ONI, 2024), catalogue 27.

What the environment says (messages) is labelled beside training by a slow annotator, newest first, and becomes an
intrinsic reward: the label itself (`retrieval`), or a score fitted to pairs of messages (`ranking`). Labels arrive by
the run's clock; nothing waits for them. The rest is PPO.
Left out: the classifier, the language model behind the annotator.

Axes: `B` rows, `M` messages (0: nothing was said), `P` pairs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shuhari.batch import Batch
from shuhari.data import Info
from shuhari.events import Amended, Collected, Event
from shuhari.models.readout import Values
from shuhari.needs import Need
from shuhari.ports import Ctx, Task


class Labeller(Protocol):
    def __call__(self, messages: Sequence[int]) -> list[float]: ...  # how helpful each is, in [0, 1]


@dataclass
class Messages:
    """Stamps `message` [B]: what is said where the decision leads; `says` [S]: by state of a small world."""

    says: tuple[int, ...]
    needs: tuple[Need, ...] = field(default=(), init=False)

    def __call__(self, batch: Batch, ctx: Ctx) -> Batch:
        said = torch.tensor(self.says)[batch.successors()["context"].reshape(-1)]
        return batch.put({"message": said * batch.decides})


@dataclass
class Annotations:
    """The buffer of labels: messages not seen before go on a stack; the newest `size` of it are with the annotator for
    `delay` seconds of the clock, one batch in the background; when they are back, `draws` batches of random pairs of
    all that is labelled go to the learner, on stream `labels`, and the news to whoever keeps labels (`Amended`). It
    never asks for rollouts."""

    labeller: Labeller
    delay: float = 20.0
    size: int = 256
    draws: int = 32
    pairs: int = 256
    limit: int = 25_000
    state: dict[str, Any] = field(
        init=False, default_factory=lambda: {"seen": [], "stack": [], "job": [], "labels": {}}
    )

    def wanted(self) -> int:
        return 0

    def observe(self, event: Event) -> None:
        if isinstance(event, Collected):
            for m in event.batch["message"].tolist():
                if m and m not in self.state["seen"]:
                    self.state["seen"].append(m)
                    self.state["stack"].append(m)

    def draw(self, ctx: Ctx) -> Iterator[Batch]:
        s, back, found = self.state, [], []
        if s["job"] and (job := self.restart(ctx)).done:
            back, found, s["job"] = s["job"], job.result(), []
        if not s["job"]:
            s["job"] = self.newest()
            self.restart(ctx)
        if not back:
            return
        s["labels"] |= {str(m): x for m, x in zip(back, found, strict=True)}
        ctx.charge("labels", len(back))
        ctx.tell(Amended(torch.tensor(back), {"helpful": torch.tensor(found)}))
        for i in range(self.draws if len(s["labels"]) < self.limit else 0):
            yield paired(s["labels"], self.pairs, ctx.rng("pairs", i))

    def restart(self, ctx: Ctx) -> Any:
        """The job of the messages that are with the annotator."""
        return ctx.background("labels", self.label(tuple(self.state["job"]))) if self.state["job"] else None

    async def label(self, messages: Sequence[int]) -> list[float]:
        await asyncio.sleep(self.delay)
        return self.labeller(messages)

    def newest(self) -> list[int]:
        """The last `size` of the stack, taken off it."""
        stack = self.state["stack"]
        taken, stack[:] = stack[-self.size :], stack[: -self.size]
        return taken


def paired(labels: Mapping[str, float], n: int, rng: torch.Generator) -> Batch:
    """A row a labelled message, and links `pairs` [n, 2] of two of them with `label`: 1, 0 or 0.5 for a tie."""
    message, value = torch.tensor([int(k) for k in labels]), torch.tensor(list(labels.values()))
    M = len(message)
    first = torch.randint(M, (n,), generator=rng)
    other = (first + torch.randint(1, max(2, M), (n,), generator=rng)) % M
    columns = {"mask": torch.ones(M, 1, dtype=torch.bool), "logp": torch.full((M, 1), torch.nan), "message": message}
    label = 0.5 + (value[first] - value[other]).sign() / 2
    return Batch(columns, stream="labels").link("pairs", torch.stack([first, other], 1), {"label": label})


@dataclass
class Helpful:
    """A score of each message, in a table of `messages`."""

    messages: int
    module: nn.Module = field(init=False, repr=False)

    def build(self, task: Task) -> None:
        self.module = self._table = nn.Embedding(self.messages, 1)
        nn.init.zeros_(self._table.weight)

    def __call__(self, batch: Batch) -> Values:
        return Values(self._table(batch["message"].long()))


@dataclass
class BradleyTerry:
    """-log of the probability of the label under sigmoid(score of the first - of the second), [P]; a tie is 0.5."""

    role: str = "helpful"
    links: str = "pairs"
    couples: Literal["row", "batch"] = field(default="batch", init=False)

    @property
    def needs(self) -> tuple[Need, ...]:
        return (Need((self.role,), "value", live=True),)

    def __call__(self, batch: Batch, ctx: Ctx) -> tuple[Tensor, Info]:
        index, columns = batch.links[self.links]
        score = batch[self.needs[0]][:, 0]
        margin, label = score[index[:, 0]] - score[index[:, 1]], columns["label"]
        right = ((margin > 0) == (label > 0.5)).float()
        return F.binary_cross_entropy_with_logits(margin, label, reduction="none"), {"accuracy": right[label != 0.5]}


@dataclass
class Intrinsic:
    """reward = extrinsic · reward + intrinsic · r̂(m) / N(m)^power, N(m): how often m was said in the episode, this time
    counted. r̂: the label, 0 until there is one (`retrieval`); or the score by its running mean and deviation, 0 below
    `least` (`ranking`)."""

    kind: str = "retrieval"
    extrinsic: float = 0.1
    intrinsic: float = 0.4
    power: float = 3.0
    least: float = -0.5
    role: str = "helpful"
    state: dict[str, Any] = field(init=False, default_factory=lambda: {"labels": {}, "n": 0, "sum": 0.0, "square": 0.0})

    @property
    def needs(self) -> tuple[Need, ...]:
        return (Need((self.role,), "value"),) if self.kind == "ranking" else ()

    def observe(self, event: Event) -> None:
        if isinstance(event, Amended) and "helpful" in event.columns:
            told = zip(event.ids.tolist(), event.columns["helpful"].tolist(), strict=True)
            self.state["labels"] |= {str(m): x for m, x in told}

    def __call__(self, batch: Batch, ctx: Ctx) -> Batch:
        message = batch["message"].long()
        said = message > 0
        if self.kind == "ranking":
            r = self.standard(batch[self.needs[0]][:, 0], said)
        else:
            r = torch.tensor([self.state["labels"].get(str(m), 0.0) for m in message.tolist()])
        bonus = torch.where(said, r / occurrences(batch["episode"], message) ** self.power, 0.0)
        return batch.put({"reward": self.extrinsic * batch["reward"] + self.intrinsic * bonus[:, None] * batch["mask"]})

    def standard(self, score: Tensor, said: Tensor) -> Tensor:
        """[B] scores by the mean and deviation of all that were said so far; 0 where they lie below `least`."""
        s, x = self.state, score[said].double()
        s |= {"n": s["n"] + len(x), "sum": s["sum"] + float(x.sum()), "square": s["square"] + float(x.square().sum())}
        n = max(1, s["n"])
        mean = s["sum"] / n
        deviation = max(1e-8, s["square"] / n - mean**2) ** 0.5
        z = (score - mean) / deviation
        return torch.where(z < self.least, 0.0, z)


def occurrences(episode: Tensor, message: Tensor) -> Tensor:
    """[B] which time this is that the message is said in the episode, from 1; rows in order of time."""
    _, kind = torch.unique(torch.stack([episode, message.long()], 1), dim=0, return_inverse=True)
    order = kind.argsort(stable=True)
    here = kind[order]
    start = torch.searchsorted(here, here)  # where the run of a kind begins
    count = torch.empty_like(kind)
    count[order] = torch.arange(len(kind)) - start + 1
    return count
