"""Answers that the policy gave at the start of a stage, used throughout it: for rehearsal, or as a data set.

Source of the split into solved and other problems: DPH-RL (Li et al. 2025, "The Choice of Divergence", arXiv
2509.07430), section 4. Left out: sampling again later; the use of the problems that are not kept
(curriculum `unseen_problems`).

Axes: `B` rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from shuhari.batch import Batch
from shuhari.bounds import Count, Size, check
from shuhari.buffers.fresh import put_on_stream
from shuhari.buffers.groups import copy_rows
from shuhari.data import Request, code
from shuhari.events import Event, Loaded, StageStarted
from shuhari.kernel.pack import find_usable
from shuhari.kernel.reduce import ends, group_mean
from shuhari.kernel.registry import register
from shuhari.ports import Ctx


@register("buffer", "kept_answers")
@dataclass
class Sampled:
    """Answers that the policy gave at the start of the stage, kept and drawn at random in every later step: for
    rehearsal, or as an offline data set.

    At the first draw of a stage, before any update, the run's rollout answers the first `pool` problems of `split`, `n`
    times each, graded and charged as probes. Problems whose mean outcome lies in [`low`, `high`] are kept, with the
    answers that `keep` names and the log-probabilities at which they were sampled. The event `Loaded` then carries the
    kept answers; if there are none, one answer is drawn with weight 0. Raises ValueError for an endless split with pool
    = 0.
    """

    samples = False
    asks = True
    size: Size = 32
    """Largest number of answers in a batch, drawn at random."""
    draws: Count = 1
    """Number of batches drawn in each step."""
    split: str = "train"
    """Split of the task whose problems are answered."""
    pool: Count = 0
    """Number of first problems of the split that are answered; 0: all of them, which needs a finite split."""
    n: Count = 0
    """Number of answers per problem; 0: as many as a group of the run has (`rollout.n`)."""
    low: float = 0.0
    """Smallest mean outcome of a problem whose answers are kept."""
    high: float = 1.0
    """Largest mean outcome of a problem whose answers are kept; below 1 it leaves out problems that are always
    solved."""
    keep: Literal["all", "right", "one"] = "all"
    """Which answers are kept: "all" graded ones, the "right" ones, or "one" right answer per problem, the first."""
    solved: float = 1.0
    """Smallest outcome of a right answer; lower it if rewards are graded."""
    reward: str = "reward"
    """Reward column that is the outcome of an answer; `reward` is the weighted sum that is trained."""
    stream: str = "rl"
    """Name of the weights `weight/<stream>` that the rows carry; losses with this stream learn from them."""
    name: str = "sampled"
    """Name that seeds the random draws; give each buffer of a run its own."""
    state: dict[str, Any] = field(init=False, default_factory=lambda: {"kept": None})

    @property
    def stamps(self) -> tuple[str, ...]:
        return (f"weight/{self.stream}",)

    @property
    def reads(self) -> tuple[str, ...]:
        return (self.reward,)

    def __post_init__(self) -> None:
        check(self)

    def wanted(self) -> int:
        return 0

    def observe(self, event: Event) -> None:
        if isinstance(event, StageStarted):
            self.state["kept"] = None

    def draw(self, ctx: Ctx) -> Iterator[Batch]:
        if self.state["kept"] is None:
            kept = self._sample(ctx)
            self.state["kept"] = kept
            if bool((kept.weight(self.stream) != 0).any()):
                ctx.tell(Loaded(kept))
        kept = self.state["kept"]
        answers = kept["episode"].unique()
        for i in range(self.draws):
            drawn = answers[torch.randperm(len(answers), generator=ctx.rng(self.name, i))[: self.size]]
            yield kept.take(torch.isin(kept["episode"], drawn))

    def _sample(self, ctx: Ctx) -> Batch:
        source = ctx.task.problems(self.split)
        size = source.size()
        if size is None and not self.pool:
            raise ValueError(f"sampled: the split {self.split!r} has no end: set pool, how many to sample")
        count = min(self.pool or size or 0, self.pool if size is None else size)
        asked = [Request(source[i], self.n) for i in range(count)]
        batch = put_on_stream(ctx.wait(ctx.probe(asked, tag="probe")), self.stream)
        rows = self._choose(batch)
        if bool(rows.any()):
            return self._copy(batch.take(rows))
        none = batch.take(batch["episode"] == batch["episode"][0])
        return self._copy(none.put({f"weight/{self.stream}": torch.zeros_like(none["mask"], dtype=torch.float32)}))

    def _choose(self, batch: Batch) -> Tensor:
        """Returns [B] bool: the rows of the kept answers."""
        outcome = batch.outcome(self.reward)
        rate, _ = group_mean(batch, outcome.masked_fill(~find_usable(batch), torch.nan))  # without failed episodes
        good = ends(batch) & find_usable(batch) & (rate >= self.low) & (rate <= self.high) & ~outcome.isnan()
        if self.keep != "all":
            good &= outcome >= self.solved
        if self.keep == "one":
            first = {p: i for i, p in reversed(list(enumerate(batch["problem"].tolist()))) if good[i]}
            good = torch.zeros_like(good).index_fill_(0, torch.tensor([*first.values()], dtype=torch.long), True)
        return torch.isin(batch["episode"], batch["episode"][good])

    def _copy(self, batch: Batch) -> Batch:
        """Returns copies of the rows with new ids."""
        return copy_rows(batch, id=(code("sampled", self.name, self.stream) >> 8) + torch.arange(len(batch)))
