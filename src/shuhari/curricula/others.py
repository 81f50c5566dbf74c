"""Problems that a rehearsal buffer does not hold: what is rehearsed from a data set is not explored as well.

Source: DPH-RL (Li et al. 2025, "The Choice of Divergence", arXiv 2509.07430), section 4: RL on the problems that the
first policy does not solve, rehearsal on the others. Left out: the order of the problems (`inner` chooses).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

from shuhari.bounds import Length, check
from shuhari.curricula.target import name_of
from shuhari.data import Request
from shuhari.events import Event, Loaded
from shuhari.kernel.registry import register
from shuhari.ports import Ctx, Curriculum
from shuhari.ports.declares import together


@register("curriculum", "unseen_problems")
@dataclass
class Others:
    """The problems of another curriculum except those in the rehearsal data set.

    The data set is the last one loaded (`Loaded`, as by the buffer `kept_answers` at the end of a stage's first step);
    before that, all problems of `inner` are used. If `looks` draws do not give enough, problems of the data set fill
    the batch.
    """

    inner: Curriculum
    """Curriculum that supplies the problems."""
    looks: Length = 8
    """Largest number of draws from `inner` in a step to find enough problems outside the data set."""
    state: dict[str, Any] = field(init=False, default_factory=lambda: {"held": []})

    @property
    def stamps(self) -> tuple[str, ...] | None:
        return together((), self.inner)

    def __post_init__(self) -> None:
        check(self)

    def observe(self, event: Event) -> None:
        if isinstance(event, Loaded) and "problem" in event.batch:
            self.state["held"] = [str(p) for p in event.batch["problem"].unique().tolist()]

    async def select(self, n: int, ctx: Ctx) -> list[Request]:
        held = set(self.state["held"])
        kept, beside = await look_for(self.inner, n, self.looks, ctx, lambda r: name_of(r.problem) not in held)
        return kept + beside[: n - len(kept)]


async def look_for(
    inner: Curriculum, n: int, looks: int, ctx: Ctx, wanted: Callable[[Request], bool]
) -> tuple[list[Request], list[Request]]:
    """Returns (at most n problems that are wanted, the others that were offered), of at most `looks` draws."""
    kept, beside = list[Request](), list[Request]()
    for i in range(looks):
        for request in await look(inner, n - len(kept), i, ctx):
            (kept if wanted(request) else beside).append(request)
        if len(kept) == n:
            break
    return kept, beside


async def look(inner: Curriculum, n: int, i: int, ctx: Ctx) -> list[Request]:
    """Returns n problems of a curriculum that is called several times in a step; call number `i` has draws of its
    own."""
    with ctx.phase("look", i) if i else nullcontext():
        return await inner.select(n, ctx)
