"""The held-out curve of a controller whose recipe does not set `evaluate.every`: a few episodes between the two ends.

`shuhari train` and `shuhari.train` use it, so that a plot has a curve rather than two points; claims and studies do
not. It changes nothing in the run: it sends no event, makes no checkpoint, and is charged under `curve/`. Left out:
text, whose recipes set how often, and other results of an evaluation (samples, further ways, metrics).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from shuhari.data import Count
from shuhari.kernel.profile import spanned
from shuhari.loop.evaluation import evaluate
from shuhari.loop.progress import Progress, counts

if TYPE_CHECKING:
    from shuhari.loop.context import Context

POINTS = 20  # shares of the budget: at the end of each the curve may get a point
EPISODES = 4  # of a point: the first ones of those that evaluation plays
SHARE = 0.03  # of what training has spent, the most that the points before may have cost for another
SPENT = "curve/evaluate/decisions"
UPDATE = 4  # decisions of one episode after the other that take as long as an update of small nets


def is_open(progress: Progress) -> bool:
    """Whether the stage's recipe leaves open how often its controller is evaluated."""
    stage = progress.stage
    tested, plain = stage.evaluate, "evaluate.every" in stage.defaults
    if tested is None or not plain or not tested.n or tested.more or tested.metrics or tested.watch:
        return False
    return (tested.task or stage.task).spaces() is not None


def is_due(progress: Progress, began: Count, ledger: Mapping[str, float]) -> bool:
    """Whether the step that has just ended, and began at the count `began`, passed a mark on the budget, and the
    earlier points have cost no more than SHARE of training. It depends on counts, not on the clock, so a resumed run
    makes the same points."""
    now = progress.count()
    marks = [int(POINTS * spent / now.whole) for spent in (began.spent, now.spent)]
    trained = sum(v * (UPDATE if counts(k, "updates") else counts(k, "decisions")) for k, v in ledger.items())
    return marks[1] > marks[0] and ledger.get(SPENT, 0.0) <= SHARE * trained


@spanned("evaluate")
def score_between(ctx: Context, progress: Progress) -> dict[str, float]:
    """Return the held-out scores of a point, by their names in reports, with `evaluate/episodes`, the number of
    episodes. Empty if none is due."""
    tested, rollout, began = progress.stage.evaluate, progress.stage.evaluation_rollout, ctx.count
    if tested is None or not isinstance(began, Count) or not is_open(progress):
        return {}
    if not is_due(progress, began, ctx.ledger):
        return {}
    few = replace(tested, n=min(tested.n, EPISODES), samples=1, k=(), tail=())
    with ctx.charging_to("curve"):
        found = evaluate(ctx, few, rollout)
    return {f"evaluate/{k}": v for k, v in {**found.scores(few), "episodes": float(len(found.ids))}.items()}
