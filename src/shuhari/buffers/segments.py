"""Pairs of segments of recorded episodes, of which one is preferred: preference data for controllers.

As `offline`, it requests no collection. Left out: segments longer than the episodes that have them (shorter episodes
are skipped), and preferences that somebody has recorded for given pairs.

Axes: `N` rows of the data set, `P` pairs, `T` decisions of a segment; a batch has 2 P T rows, segment after segment.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from shuhari.batch import Batch
from shuhari.bounds import AtLeast0, Count, Length, Seed, Size, check
from shuhari.buffers.recording import check_columns, digest
from shuhari.data import code, nearest
from shuhari.events import Event, Loaded, StageStarted
from shuhari.kernel.registry import register
from shuhari.needs import decisions, role_model
from shuhari.ports import Ctx, Recording, ability
from shuhari.ports.declares import together


@register("buffer", "segments")
@dataclass
class Segments:
    """Preference pairs of segments: each step draws `draws` batches of `size` pairs from a recorded data set.

    A segment is `length` decisions in a row of one episode, each equally likely. Of two, somebody prefers the first
    with probability sigmoid(sharpness * d), d the difference of the sums of column `by` over the segments; at sharpness
    0 the larger sum always wins (and the first of equal ones).

    Columns: those of the data set; `action`; `logp`, unknown (NaN); `version` -1; `episode`, a number of the segment,
    so that the level `episode` of a loss is the segment; `weight/<stream>`, 1 for all, and `weight/<better>`, 1 in the
    preferred segments alone. The links "pairs" [P, 2] are the last rows of (preferred, other).

    At the first draw of a stage the event `Loaded` carries the whole data set, from which normalisers take their
    statistics. Raises ValueError if the data set does not fit the task, has no column `by` or no episode as long as a
    segment, or is not the one that the run began with.
    """

    samples = False
    data: Recording
    """The data set: `file`, `minari`, `played` by a scripted policy, or several `joined`."""
    size: Size = 64
    """Number of pairs in a batch."""
    length: Length = 8
    """Number of decisions of a segment."""
    by: str = "advantage"
    """Column whose sum over a segment decides which one is preferred: advantages, or rewards such as
    `reward/task`."""
    sharpness: AtLeast0 = 0.0
    """How strongly a difference of sums decides, in logits a unit; 0 always prefers the larger one."""
    draws: Count = 1
    """Number of batches drawn in each step."""
    role: str = "policy"
    """Role of the policy to which the actions are attributed; it maps recorded actions to the columns it would have
    stored."""
    stream: str = "rl"
    """Name of the weights `weight/<stream>` that all rows carry; losses with this stream learn from them."""
    better: str = "better"
    """Name of the weights `weight/<better>` that the rows of preferred segments alone carry."""
    seed: Seed = 0
    """Seed of a data set that is `played`; independent of the run's seed."""
    name: str = "segments"
    """Name that seeds the random draws; give each buffer of a run its own."""
    state: dict[str, Any] = field(init=False, default_factory=lambda: {"told": False, "digest": ""})

    def __post_init__(self) -> None:
        check(self)
        if self.better == self.stream:
            expected = "expected another name, as the first is of the preferred segments alone"
            raise ValueError(f"segments: better and stream are both {self.stream!r}: {expected}")
        self._whole: dict[str, Tensor] = {}
        self._starts = torch.empty(0, dtype=torch.long)  # rows at which a segment may begin

    @property
    def stamps(self) -> tuple[str, ...] | None:
        return together((f"weight/{self.stream}", f"weight/{self.better}", "links/pairs", "last"), self.data)

    @property
    def unknown(self) -> str:
        return ability(self.data, "unknown")

    def wanted(self) -> int:
        return 0

    def observe(self, event: Event) -> None:
        if isinstance(event, StageStarted):
            self.state["told"] = False  # models that are new in the stage have not received it

    def restart(self, ctx: Ctx) -> None:
        """Sends the data set again in a resumed run, to components that keep no memory of it."""
        if self.state["told"]:
            ctx.tell(Loaded(Batch(self._load(ctx)), again=True))

    def draw(self, ctx: Ctx) -> Iterator[Batch]:
        whole = self._load(ctx)
        if not self.state["told"]:
            again = self.state["digest"] != ""  # sent in an earlier stage
            self.state |= {"told": True, "digest": digest(whole)}
            ctx.problems.extend(() if again else ability(self.data, "odd"))
            ctx.tell(Loaded(Batch(whole), again))
        for i in range(self.draws):
            rng = ctx.rng(self.name, i)
            first = self._starts[torch.randint(len(self._starts), (self.size, 2), generator=rng)]
            yield self._pair(first, torch.rand(self.size, generator=rng, dtype=torch.float64))

    def _pair(self, first: Tensor, u: Tensor) -> Batch:
        """Returns the batch of pairs that begin at rows `first` [P, 2]; u [P] in [0, 1) decides."""
        P, T = len(first), self.length
        rows = (first.flatten()[:, None] + torch.arange(T)).flatten()  # [2 P T]
        columns = {name: x[rows] for name, x in self._whole.items()}
        total = columns[self.by].double().view(P, 2, -1).sum(2)
        gap = total[:, 0] - total[:, 1]
        wins = gap >= 0 if self.sharpness == 0 else u < torch.sigmoid(self.sharpness * gap)
        end = torch.arange(2 * P) * T + T - 1  # [2 P] the last rows
        at = torch.arange(2 * P * T)
        columns["child"] = torch.where(torch.isin(at, end), -1, at + 1)
        columns["last"] = end.repeat_interleave(T)
        columns["episode"] = (code(self.name, "segment") >> 8) + torch.arange(2 * P).repeat_interleave(T)
        preferred = torch.stack([wins, ~wins], 1).flatten().repeat_interleave(T)
        columns[f"weight/{self.stream}"] = columns["mask"].float()
        columns[f"weight/{self.better}"] = columns["mask"] * preferred[:, None].float()
        pairs = torch.where(wins[:, None], end.view(P, 2), end.view(P, 2).flip(1))
        return Batch(columns, full=True).link("pairs", pairs)

    def _load(self, ctx: Ctx) -> dict[str, Tensor]:
        """Returns the columns of the data set, read once."""
        if self._whole:
            return self._whole
        columns = dict(self.data.read(ctx.task, self.seed))
        check_columns(columns, ctx.task.spaces(), "segments")
        if self.by not in columns:
            raise ValueError(f"segments: by is {self.by!r}: the data set has no such column; "
                             f"{nearest(self.by, columns)}")  # fmt: skip
        decides, episode = columns["mask"].any(1), columns["episode"]
        end = len(episode) - (self.length - 1)
        starts = torch.arange(max(end, 0))
        far = starts + self.length - 1
        fits = (episode[starts] == episode[far]) & decides[far]  # a closing row is the last of its episode
        if not bool(fits.any()):
            longest = int(torch.bincount(episode[decides]).max())
            raise ValueError(f"segments: length is {self.length}: expected at most {longest}, the longest episode")
        self._starts = starts[fits]
        if bool((known := columns[self.by][decides]).isnan().any()):
            raise ValueError(f"segments: column {self.by!r} is NaN in {int(known.isnan().sum())} decisions: "
                             "expected a number in each")  # fmt: skip
        if "taken" in columns:
            columns |= decisions(role_model(ctx.models, self.role), columns.pop("taken"))
        columns.setdefault("logp", torch.where(columns["mask"], torch.nan, 0.0))
        columns.setdefault("version", torch.full(columns["mask"].shape, -1))
        columns["id"] = (code(self.name) >> 8) + torch.arange(len(episode))
        if self.state["digest"] not in ("", found := digest(columns)):
            raise ValueError(f"segments: the data set is not the one that the run began with: its digest is {found}, "
                             f"and was {self.state['digest']}")  # fmt: skip
        self._whole = columns
        return columns
