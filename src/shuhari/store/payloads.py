"""The stored bytes of a kept group of rollouts, of bounded size."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

from shuhari.store import codec, sizes


def pack(group: Mapping[str, Any]) -> bytes:
    """Return a group (trajectories, rewards, reasons, anything the codec takes) as compressed bytes. SizeError if it is
    too large for `unpack`."""
    plain = codec.dumps(dict(group), sizes.GROUP)
    if len(plain) > sizes.GROUP:
        raise sizes.SizeError(f"{len(plain)} bytes: expected at most {sizes.GROUP}")
    if len(plain) > sizes.ELEMENTS and (n := codec.count_elements(plain)) > sizes.ELEMENTS:
        raise sizes.SizeError(f"{n} elements of JSON: expected at most {sizes.ELEMENTS}")
    return zlib.compress(plain, 1)


def unpack(data: bytes) -> dict[str, Any]:
    """Return the group of `pack`; CodecError if the bytes are not of `pack`."""
    try:
        plain = sizes.unzip(data)
    except (zlib.error, sizes.SizeError, TypeError) as error:  # no bytes: a row without a checksum may have text there
        raise codec.CodecError(f"a stored rollout: {error}") from error
    group = codec.loads(plain, sizes.GROUP, sizes.ELEMENTS, sizes.GROUP)
    if not isinstance(group, dict):
        raise codec.CodecError(f"a stored rollout is a {type(group).__name__}: expected a mapping")
    return group
