"""Where in the weights RL moved: off the largest singular directions and large weights? (The Path Not Taken, Zhu et
al. 2025, arXiv 2511.08567.) Also the rank of the change, and the share of weights that are as they were (arXiv
2505.11711).

Left out: training inside a mask, and rotations that keep the function."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import torch
from torch import Tensor

from shuhari.bounds import Positive, ProperShare, check
from shuhari.data import nearest
from shuhari.kernel.coverage import bootstrap, name_each
from shuhari.kernel.findings import AnalysisError, Finding, Given, Number, Panel, Reads
from shuhari.kernel.registry import register
from shuhari.needs import role_model

LEAST = 4  # rows and columns of a matrix that has principal directions
ROUNDS = 100  # in which a random change gets the norms of rows and columns
MEASURES = {
    "still": "share of weights in rows and columns that never changed, left out below",
    "unchanged": "share of weights that are as they were, in single precision",
    "unchanged bf16": "the same, stored in bfloat16",
    "changed": "share of weights that differ by more than the tolerance",
    "principal": "share of the change's energy in the largest entries of the leading part",
    "small": "share of the change's energy in the smallest weights",
    "spectrum": "change of the singular values, of their norm",
    "rotation": "radians, mean angle of the leading subspaces",
    "rank": "numerical rank of the change, of the full rank",
}


@register("run_analysis", "principals")
@dataclass
class Principals:
    """Where in the weights a run moved: in the leading singular directions, in small weights, and by what rank.

    The first run is the start; each other is compared with it, matrix by matrix, and a single run with where its last
    stage began. Compare runs at equal score and equal distance: a larger step moves everything more.

    Numbers, the mean over matrices: `still`, the share of weights in rows and columns none of which changed, such as
    those of tokens that no text has; they are left out of the others. `unchanged` and `unchanged bf16`, the share of
    weights that are exactly as they were, in single precision and rounded to bfloat16: a small step does not reach the
    next number that bfloat16 has, so that the second is large whatever moved the weights; `changed`, the share with |w1
    - w0| > `tolerance` max(|w0|, |w1|), about what bfloat16 tells apart; `principal`, the share of the squared change
    that lies in the `share` largest entries of the leading part of the start's matrix, U_k S_k V_k'; `small`, the same
    of its smallest entries; `spectrum`, the norm of the change of the singular values over theirs; `rotation`, the mean
    angle between the leading subspaces before and after; `rank`, of the change. The null of each is a random change
    with the same norm of each row and column: `principal` and `small` are near `share` only if these are alike, and
    rows that hold large weights often change more. Intervals: bootstrap over matrices.
    """

    role: str = "policy"
    """Role whose weights are compared."""
    share: ProperShare = 0.5
    """Share of a matrix's entries that count as principal, or as small."""
    leading: ProperShare = 0.1
    """Share of the singular directions that are the leading ones, at least one."""
    tolerance: Annotated[Positive, "relative"] = 1e-3
    """Relative difference above which a weight counts as changed; 1e-3 is a little less than half a unit in the last
    place of bfloat16."""

    reads: ClassVar[Reads] = "policies"
    from_start: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check(self)

    def __call__(self, given: Given) -> Finding:
        """Raises AnalysisError for models of other shapes, and for a model without a matrix."""
        start = self._read(given, 0)
        numbers: dict[str, Number] = {}
        rows, panels = list[tuple[object, ...]](), dict[str, Panel]()
        for i in range(1, len(given.names)):
            later, rng = self._read(given, i), given.draw_from("random change")
            found: dict[str, list[tuple[float, float]]] = {name: [] for name in MEASURES}
            for name, before, after in match(start, later, given.names[i]):
                still, before, after = leave_out_still(before, after)
                own = {"still": still, **self.compare(before, after)}
                null = {"still": math.nan, **self.compare(before, move_randomly(before, after, rng))}
                for key, value in own.items():
                    found[key].append((value, null[key]))
                rows.append((given.names[i], name, *own.values()))
            numbers |= name_each(_average(found, given.draw_from("matrices")), given.names[i], len(given.names) - 1)
            pairs = np.array(found["principal"])
            places = np.arange(len(pairs))
            lines = {"change": (places, pairs[:, 0]), "random change": (places, pairs[:, 1])}
            panels[given.names[i]] = Panel(lines, "matrix", "energy in principal entries", tuple(lines))
            kept = {key: np.array(found[key]) for key in MEASURES if key.startswith("unchanged")}
            lines = {key: (places, pairs[:, 0]) for key, pairs in kept.items()}
            lines["random change, bf16"] = places, kept["unchanged bf16"][:, 1]
            panels[f"{given.names[i]}, unchanged"] = Panel(lines, "matrix", "share of weights", tuple(lines))
        return Finding(numbers, panels, ("run", "matrix", *MEASURES), rows)

    def _read(self, given: Given, i: int) -> dict[str, Tensor]:
        with given.open(i) as opened:
            if self.role not in opened.models:
                raise AnalysisError(f"{opened.name} has no role {self.role!r}; {nearest(self.role, opened.models)}")
            named = role_model(opened.models, self.role).module.named_parameters()
            found = {name: x.detach().double().clone() for name, x in named if x.ndim == 2 and min(x.shape) >= LEAST}
        if not found:
            raise AnalysisError(f"{opened.name}: {self.role!r} has no matrix of at least {LEAST} rows and columns")
        return found

    def compare(self, before: Tensor, after: Tensor) -> dict[str, float]:
        """Return the numbers of one matrix [r, c], before and after."""
        change = after - before
        u, s, v = torch.linalg.svd(before, full_matrices=False)
        w, t, x = torch.linalg.svd(after, full_matrices=False)
        k = max(1, round(self.leading * len(s)))
        energy = change.square()
        whole = float(energy.sum())
        bound = self.tolerance * torch.maximum(before.abs(), after.abs())
        lead = ((u[:, :k] * s[:k]) @ v[:k]).abs()
        return {
            "unchanged": find_unchanged(before, after, torch.float32),
            "unchanged bf16": find_unchanged(before, after, torch.bfloat16),
            "changed": float((change.abs() > bound).double().mean()),
            "principal": float(energy[_mark_largest(lead, self.share)].sum()) / whole if whole else math.nan,
            "small": float(energy[_mark_largest(-before.abs(), self.share)].sum()) / whole if whole else math.nan,
            "spectrum": float((t - s).norm() / s.norm()),
            "rotation": (find_angle(u[:, :k], w[:, :k]) + find_angle(v[:k].T, x[:k].T)) / 2,
            "rank": find_rank(change) / min(change.shape),
        }


def find_unchanged(before: Tensor, after: Tensor, dtype: torch.dtype) -> float:
    """Return the share of entries that are equal if both are rounded to `dtype`, to nearest, ties to even."""
    return float((before.to(dtype) == after.to(dtype)).double().mean())


def _mark_largest(x: Tensor, share: float) -> Tensor:
    """Return a mask of the `share` largest entries of a matrix."""
    out = torch.zeros(x.numel(), dtype=torch.bool)
    out[x.flatten().argsort(descending=True)[: round(share * x.numel())]] = True
    return out.reshape(x.shape)


def find_angle(a: Tensor, b: Tensor) -> float:
    """Return the mean principal angle, in radians, between the spaces of two orthonormal bases [r, k]."""
    return float(torch.linalg.svdvals(a.T @ b).clamp(-1, 1).arccos().mean())


def find_rank(x: Tensor) -> int:
    """Return the numerical rank in single precision: singular values above eps max(r, c) of the largest."""
    s = torch.linalg.svdvals(x)
    bound = float(torch.finfo(torch.float32).eps) * max(x.shape) * float(s.max())
    return int((s > bound).sum()) if float(s.max()) else 0


def move_randomly(before: Tensor, after: Tensor, rng: np.random.Generator) -> Tensor:
    """Return `before` with a random change that has the norm of each row and column of the change to `after`: Gaussian,
    with rows and columns scaled in turn (Sinkhorn)."""
    change, noise = after - before, torch.from_numpy(rng.normal(size=tuple(before.shape)))
    for axis in (0, 1) * ROUNDS:
        wanted, there = (x.norm(dim=axis, keepdim=True) for x in (change, noise))
        noise = noise * (wanted / there.clamp_min(torch.finfo(there.dtype).tiny))
    return before + noise


def leave_out_still(before: Tensor, after: Tensor) -> tuple[float, Tensor, Tensor]:
    """Return the share of entries in rows and columns none of which changed, and both matrices without these; whole
    ones if nothing changed."""
    moved = before != after
    rows, columns = moved.any(1), moved.any(0)
    if not rows.any():
        return 1.0, before, after
    kept = rows.double().mean() * columns.double().mean()
    return 1 - float(kept), before[rows][:, columns], after[rows][:, columns]


def match(
    start: Mapping[str, Tensor], later: Mapping[str, Tensor], name: str
) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yield (name, before, after) of each matrix. Raises AnalysisError for one that the other has not, or of another
    shape."""
    for key, before in start.items():
        if key not in later or later[key].shape != before.shape:
            there = f"of shape {tuple(later[key].shape)}" if key in later else nearest(key, later)
            message = f"{name} has no matrix {key} of shape {tuple(before.shape)} ({there})"
            raise AnalysisError(f"{message}: expected a policy that began with the first one")
        yield key, before, later[key]


def _average(found: Mapping[str, list[tuple[float, float]]], rng: np.random.Generator) -> dict[str, Number]:
    out = {}
    for key, pairs in found.items():
        values, nulls = (np.array(x)[np.isfinite(x)] for x in zip(*pairs, strict=True))
        if not len(values):
            continue
        ends = bootstrap(lambda i, x=values: float(x[i].mean()), len(values), rng)  # type: ignore[misc]
        null = float(nulls.mean()) if len(nulls) else math.nan
        out[key] = Number(float(values.mean()), *ends, null=null, says=MEASURES[key])
    return out
