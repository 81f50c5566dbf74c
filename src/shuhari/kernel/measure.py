"""Numbers of a step's report: running means, and statistics of a collected batch.

Axes: `B` rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from shuhari.batch import STATUS, Batch
from shuhari.data import Info, Status, code
from shuhari.kernel.pack import find_usable
from shuhari.kernel.reduce import mean_by


class Meter:
    """Running means of named numbers, each with its own count."""

    def __init__(self) -> None:
        self.sums: dict[str, tuple[Any, Any]] = {}

    def add(self, name: str, total: Any, count: Any = 1) -> None:
        a, n = self.sums.get(name, (0.0, 0))
        self.sums[name] = a + total, n + count

    def update(self, info: Info, prefix: str = "") -> None:
        for name, value in info.items():
            self.add(f"{prefix}/{name}" if prefix else name, value)

    def why(self) -> str:
        """Return why no samples of a step are left to train on: nothing was graded, or a filter rejected them."""
        means = self.means()
        if means.get("rollout/ungraded") == 1:
            silent = [k for k, x in means.items() if k.startswith("reward/") and "@" not in k and k != "reward/mean"]
            named = ", ".join(repr(k.removeprefix("reward/")) for k in silent if means[k] != means[k])
            return f"no sample was graded: every reward was None or NaN{f', of {named}' if named else ''}"
        return "a filter rejects nearly all (are a group's outcomes all equal?)"

    def means(self) -> dict[str, float]:
        return {k: float(a) / float(n) if n else float("nan") for k, (a, n) in self.sums.items()}


def summarise_batch(batch: Batch, tasks: Iterable[str] = ()) -> Info:
    """Return the metrics of a batch. reward/<name>: the mean outcome of the graded episodes (not of one that ended in
    an error); rollout/*: shares of episodes, decisions and turns an episode.

    Over the groups with several graded episodes: reward/std, the mean standard deviation of the trained reward within
    one, and rollout/alike, the share of those with none, which teach nothing. If the batch has problems of several
    `tasks`, the same again for each, as `<name>@<task>`."""
    if not len(batch):
        return {"rollout/episodes": 0.0}
    info = _facts(batch)
    named = dict.fromkeys(tasks)
    for task in named if len(named) > 1 else ():
        rows = batch["task"] == code(task)
        if bool(rows.any()):
            info |= {f"{name}@{task}": value for name, value in _facts(batch.take(rows)).items()}
    return info


def explain_returns(batch: Batch) -> Info:
    """Return `<role>/explained_variance` of each role whose values before the update are in the batch, with the column
    `return`: 1 - Var(return - value) / Var(return) over its decisions; 1 is perfect, 0 as good as a constant."""
    if "return" not in batch:
        return {}
    info: Info = {}
    seen, target = batch["mask"], batch["return"]
    for name in batch.names():
        role, _, what = name.partition("/")
        if what != "value" or (value := batch[name]).shape[:2] != target.shape:
            continue
        of = target[seen]
        spread = float(of.var()) if len(of) > 1 else 0.0
        if spread > 0:
            value = value.mean(2) if value.dim() == 3 else value
            info[f"{role}/explained_variance"] = 1 - float((of - value[seen]).var()) / spread
    return info


def count_decisions(batch: Batch) -> Tensor:
    """Return [B] the decisions of a row as its environment saw them: one if its positions are steps of denoising
    (`chain`)."""
    made = batch["mask"].sum(1)
    return made.clamp(max=1) if "chain" in batch else made


def count_turns(batch: Batch) -> Tensor:
    """Return [B] the number of calls of a policy that the row's decisions come from."""
    last = batch["segment"].masked_fill(~batch["mask"], -1).cummax(1).values  # segments count up along a row
    return (last[:, 0] >= 0).long() + (last[:, 1:] > last[:, :-1]).sum(1)


def _facts(batch: Batch) -> Info:
    leaf = batch["leaf"]
    n = int(leaf.sum())
    status, usable = batch["status"][leaf], find_usable(batch)[leaf]
    info: Info = {
        "rollout/episodes": float(n),
        "rollout/length": float(count_decisions(batch).sum()) / n,
        "rollout/truncated": float((status == STATUS[Status.TRUNCATED]).sum()) / n,
    }
    if bool((batch["segment"] > 0).any()):
        info["rollout/turns"] = float(count_turns(batch).sum()) / n
    logp = batch["logp"][batch["mask"]]
    if bool(logp.isfinite().any()):
        info["rollout/entropy"] = -float(logp[logp.isfinite()].mean())  # the mean of -log p of what was sampled
    errors = int((~usable).sum())
    if errors:
        info["rollout/errors"] = errors / n
    for name in sorted(c for c in batch.names() if c == "reward" or c.startswith("reward/")):
        outcome = batch.outcome(name)[leaf]
        graded = ~outcome.isnan() & usable
        info[name if name != "reward" else "reward/mean"] = (
            float(outcome[graded].mean()) if bool(graded.any()) else float("nan")
        )
        if name == "reward" and "group" in batch:
            info |= _within_groups(outcome[graded], batch["group"][leaf][graded])
        if name == "reward" and not bool(graded.all()):
            info["rollout/ungraded"] = 1 - float(graded.float().mean())
    return info


def _within_groups(outcome: Tensor, group: Tensor) -> Info:
    """Return statistics of the outcomes [E] of episodes within the groups [E] that have several."""
    _, unit, n = torch.unique(group, return_inverse=True, return_counts=True)
    if not len(n) or int(n.max()) < 2:
        return {}
    mean, _ = mean_by(outcome, unit, len(n))
    deviation = mean_by((outcome - mean[unit]) ** 2, unit, len(n))[0][n > 1].sqrt()
    return {"reward/std": float(deviation.mean()), "rollout/alike": float((deviation < 1e-6).float().mean())}
