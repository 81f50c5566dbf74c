"""The messages between a run and its workers: plain data as bytes of our own codec, no objects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from shuhari.config.overlay import RecipeError
from shuhari.data import ContractError, Request, Trajectory
from shuhari.kernel.ramp import Count
from shuhari.store import codec

LIMIT = 2**48  # bytes of a message between processes of one run
ERRORS: dict[str, type[Exception]] = {  # that end a run by their own name; any other is a RuntimeError that names it
    c.__name__: c
    for c in (ContractError, FloatingPointError, MemoryError, ValueError, TypeError, KeyError, LookupError, OSError)
}


class LostWorkerError(RuntimeError):
    """The error if a worker's process has ended or cannot be reached: its request is to be sent again."""


def pack(tree: Any) -> bytes:
    """Encode a message. Raises TypeError, with the place, for what is no plain data."""
    return codec.dumps(tree)


def unpack(data: bytes) -> Any:
    """Decode a message."""
    return codec.loads(data, LIMIT)


def write_count(count: float) -> list[Any]:
    """Convert the position of schedules (`Context.count`) to plain data."""
    return [float(count), *((count.spent, count.whole, count.in_steps) if isinstance(count, Count) else ())]


def read_count(saved: Sequence[Any]) -> float:
    """Invert `write_count`."""
    first, *more = saved
    return Count(first, more[0], more[1], in_steps=more[2]) if more else first


def write_group(group: Sequence[Trajectory], request: Request) -> list[dict[str, Any]]:
    """Convert a graded group to plain data, without the request if it is the one that was sent."""
    return [
        {"steps": t.steps, "status": t.status, "info": t.info, "graded_by": t.graded_by,
         "request": None if t.request is request else t.request}
        for t in group
    ]  # fmt: skip


def read_group(saved: Sequence[Mapping[str, Any]], request: Request) -> list[Trajectory]:
    """Invert `write_group`; trajectories refer to the request that was sent."""
    return [Trajectory(**{**t, "request": t["request"] or request}) for t in saved]


def write_error(error: BaseException) -> dict[str, Any]:
    """Convert an error to plain data."""
    return {"kind": type(error).__name__, "text": str(error.args[0] if len(error.args) == 1 else error),
            "notes": list(vars(error).get("__notes__", ())),
            "where": error.where if isinstance(error, RecipeError) else ""}  # fmt: skip


def read_error(saved: Mapping[str, Any], who: str) -> Exception:
    """Return the exception to raise here for an error that `write_error` has converted."""
    kind, text = saved["kind"], saved["text"]
    error = ERRORS[kind](text) if kind in ERRORS else RuntimeError(f"{kind}: {text}")
    for note in (*saved["notes"], f"raised in {who}"):
        error.add_note(note)
    return error
