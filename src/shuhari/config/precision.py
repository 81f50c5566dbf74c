"""Sampling and scoring in 16 bits, and the default correction of a policy's loss in that case.

The log-probabilities of sampling and of training then differ by rounding for the same weights, by 0.05 nats a token or
so. A ratio over those of sampling mistakes that for a step of the policy; one over those of the policy before the
update does not, and the difference becomes a weight of its own, cut at TRUNCATE (truncated importance sampling, see
`clip`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from shuhari.config.overlay import Path, Tree, format_path

HALF = ("bfloat16", "float16")
TRUNCATE = 2.0
CORRECTED = {"behaviour": "old", "truncate": TRUNCATE}
TERM, OWN = "clip", ("behaviour", "truncate", "centre", "role")  # the loss; what a recipe says of its ratio itself


def is_half(table: Mapping[str, Any], role: str = "policy") -> bool:
    """Whether a stage samples, or scores this role, in 16 bits."""
    models, engine = table.get("models"), table.get("engine")
    places = (engine, models.get(role) if isinstance(models, Mapping) else None)
    return any(isinstance(place, Mapping) and place.get("dtype") in HALF for place in places)


def lacks_correction(table: Mapping[str, Any]) -> bool:
    """Whether a loss over the log-probabilities of sampling has none, though a stage samples or scores in 16 bits."""
    terms = [term for _, term in _walk_losses(table)]
    return is_half(table) and any(not (_is_default(t) or t.get("truncate")) for t in terms)


def correct_losses(table: Mapping[str, Any]) -> tuple[Mapping[str, Any], dict[str, Any]]:
    """Return (a stage's table, with the correction in each loss whose ratio the recipe does not set; the settings
    added, by dotted key)."""
    places = [path for path, term in _walk_losses(table) if is_half(table) and _is_default(term)]
    added: dict[str, Any] = {}
    for path in places:
        added |= {format_path((*path, key)): value for key, value in CORRECTED.items()}
        table = _lay(table, path)
    return table, added


def _is_default(term: Mapping[str, Any]) -> bool:
    return not any(key in term for key in OWN)


def _walk_losses(table: Mapping[str, Any]) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """Yield (place, term) of each loss of a stage that is `clip`."""
    owners: list[tuple[Path, Any]] = [((), table)]
    owners += [(("learner", name), x) for name, x in _tables(table, "learner")]
    for at, owner in owners:
        for name, part in _tables(owner, "part"):
            for key, term in _tables(part, "terms"):
                if term.get("use", key) == TERM:
                    yield (*at, "part", name, "terms", key), term


def _tables(owner: Any, key: str) -> list[tuple[str, Mapping[str, Any]]]:
    found = owner.get(key) if isinstance(owner, Mapping) else None
    return [(k, v) for k, v in found.items() if isinstance(v, Mapping)] if isinstance(found, Mapping) else []


def _lay(table: Mapping[str, Any], path: Path) -> Tree:
    """Return a copy of a table with the correction in the table at a path."""
    if not path:
        return {**table, **CORRECTED}
    return {**table, path[0]: _lay(table[path[0]], path[1:])}
