"""Problems that no answer of their group solved: queued, and their solutions learnt once there are enough.

Source: "Learning What Reinforcement Learning Can't: Interleaved Online Fine-Tuning for Hardest Questions" (ReLIFT, Ma
et al. 2025, arXiv 2506.07527), and its released trainer. Left out: solutions fetched, and checked, on demand.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from shuhari.batch import Batch
from shuhari.bounds import Size, check
from shuhari.buffers.fresh import put_on_stream
from shuhari.data import code, list_scores
from shuhari.events import Collected, Event
from shuhari.kernel.pack import pack
from shuhari.kernel.registry import register
from shuhari.ports import Ctx
from shuhari.rollouts.demonstrations import find_solution, show_solution


@register("buffer", "hard_problems")
@dataclass
class Aside:
    """Queues problems that no sample of their group solved, and yields their solutions for imitation once there are
    enough (ReLIFT).

    A problem is queued, newest first, if no graded answer of its group has a `measure` above 0; an ungraded group is
    not queued. Once `size` of them wait, a draw takes the newest of these and yields their solutions on `stream`, as
    the buffer `demos` does: prompt, then solution and end token, with unknown log-probability; the others keep waiting.
    Otherwise it yields one solution, of the first training problem, with weight 0, so that the stream exists.

    It requests no groups: use it in a `mixture` with a buffer that does. Charges `decisions`, of the solutions. Raises
    ValueError for a problem without one.
    """

    samples = False
    size: Size = 64
    """Number of solutions in a batch, and of problems that must wait for one."""
    most: Size = 1024
    """Largest number of waiting problems; the oldest are dropped."""
    measure: str = "score"
    """Name of the reward that is above 0 for a right answer."""
    role: str = "policy"
    """Role of the model that imitates, whose tokenizer encodes the solutions."""
    stream: str = "ce"
    """Name of the weights `weight/<stream>` that the rows carry; the imitating loss has the same stream."""
    state: dict[str, Any] = field(init=False, default_factory=lambda: {"queue": [], "rows": 0})

    @property
    def stamps(self) -> tuple[str, ...]:
        return f"weight/{self.stream}", "info/*"

    @property
    def reads(self) -> tuple[str, ...]:
        return (f"reward/{self.measure}",)

    def __post_init__(self) -> None:
        check(self)

    def wanted(self) -> int:
        return 0

    def observe(self, event: Event) -> None:
        for group in event.groups if isinstance(event, Collected) else ():
            scores = list_scores(group, self.measure)
            if scores and max(scores) <= 0:
                self.state["queue"] = [group[0].request.problem, *self.state["queue"]][: self.most]

    def draw(self, ctx: Ctx) -> Iterator[Batch]:
        queue, enough = self.state["queue"], len(self.state["queue"]) >= self.size
        taken = queue[: self.size] if enough else [ctx.task.problems("train")[0]]
        start = code("aside", self.role, self.stream) >> 8
        shown = [show_solution(p, find_solution(p), ctx, self.role) for p in taken]
        batch = put_on_stream(pack(shown, start=start + self.state["rows"]), self.stream)
        self.state["rows"] += len(batch)
        if enough:
            self.state["queue"] = queue[self.size :]
            ctx.charge("decisions", int(batch["mask"].sum()))
            yield batch
        else:
            yield batch.put({f"weight/{self.stream}": torch.zeros(batch["mask"].shape)})
