"""Several objectives: which points none other beats, and the volume that they cover."""

from __future__ import annotations

from shuhari.data import Array


def find_front(values: Array) -> list[int]:
    """Return the places of the points [n, objectives] that no other is at least as good as in each objective and better
    in one; more is better. Of equal points the first; of one objective, the best."""
    out = []
    for i, point in enumerate(values):
        worse = (values >= point).all(1) & (values > point).any(1)
        equal = (values[:i] == point).all(1)
        if not worse.any() and not equal.any():
            out.append(i)
    return out


def compute_hypervolume(front: Array, reference: Array) -> float:
    """Return the volume of the union of the boxes between a reference point and each point [n, objectives]; more is
    better, and what is below the reference in an objective counts nothing. Exact, by slices of the last objective."""
    points = front[(front > reference).all(1)]
    if not len(points):
        return 0.0
    if points.shape[1] == 1:
        return float(points.max() - reference[0])
    order = points[points[:, -1].argsort()[::-1]]
    total = 0.0
    for i in range(len(order)):
        below = order[i + 1, -1] if i + 1 < len(order) else reference[-1]
        height = order[i, -1] - below
        total += height * compute_hypervolume(order[: i + 1, :-1], reference[:-1]) if height > 0 else 0.0
    return float(total)
