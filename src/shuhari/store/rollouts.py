"""Which rollouts are kept, and as what bytes: a few groups a step, so that a person can see what the policy does."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from shuhari.store import codec

_LIMIT = 2**30


def pick(scores: Sequence[float], n: int = 3, seed: int = 0) -> list[tuple[int, str]]:
    """Up to `n` groups of a step, (index, why), each once: "best", "worst", then "random" ones, drawn from `seed`.

    scores: one a group; groups without one (NaN) are never best or worst."""
    order = [i for i in np.argsort(np.asarray(scores, np.float64), kind="stable").tolist() if not np.isnan(scores[i])]
    chosen = [(i, why) for i, why in zip(order[:-2:-1] + order[:1], ("best", "worst"), strict=False)][:n]
    if len(order) == 1:
        chosen = chosen[:1]
    rest = [i for i in range(len(scores)) if i not in {c for c, _ in chosen}]
    drawn = np.random.default_rng(seed).permutation(len(rest))[: max(0, n - len(chosen))]
    return chosen + [(rest[i], "random") for i in drawn.tolist()]


def pack(group: Mapping[str, Any]) -> bytes:
    """A group (trajectories, rewards, reasons, anything the codec takes) as compressed bytes."""
    return zlib.compress(codec.dumps(dict(group)), 1)


def unpack(data: bytes) -> dict[str, Any]:
    """The group of `pack`; CodecError where the bytes are none."""
    unzip = zlib.decompressobj()
    try:
        plain = unzip.decompress(data, _LIMIT)
    except zlib.error as error:
        raise codec.CodecError(f"a stored rollout: {error}") from error
    if unzip.unconsumed_tail or not unzip.eof:
        raise codec.CodecError(f"a stored rollout is cut short, or unpacks to more than {_LIMIT} bytes")
    group = codec.loads(plain)
    if not isinstance(group, dict):
        raise codec.CodecError(f"a stored rollout is a {type(group).__name__}: expected a mapping")
    return group
