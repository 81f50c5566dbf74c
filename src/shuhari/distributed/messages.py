"""What a run and its workers say to each other: plain data of our own codec as bytes, no objects."""

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
    """A worker's process has ended, or cannot be reached: what it was asked is to be asked again."""


def pack(tree: Any) -> bytes:
    """A message; TypeError for what is no plain data, with its place."""
    return codec.dumps(tree)


def unpack(data: bytes) -> Any:
    """The tree of a message."""
    return codec.loads(data, LIMIT)


def write_count(count: float) -> list[Any]:
    """Where schedules stand (`Context.count`)."""
    return [float(count), *((count.spent, count.whole, count.in_steps) if isinstance(count, Count) else ())]


def read_count(saved: Sequence[Any]) -> float:
    """The inverse of `write_count`."""
    first, *more = saved
    return Count(first, more[0], more[1], in_steps=more[2]) if more else first


def write_group(group: Sequence[Trajectory], request: Request) -> list[dict[str, Any]]:
    """A graded group, without the request where that is the one that was asked."""
    return [
        {"steps": t.steps, "status": t.status, "info": t.info, "graded_by": t.graded_by,
         "request": None if t.request is request else t.request}
        for t in group
    ]  # fmt: skip


def read_group(saved: Sequence[Mapping[str, Any]], request: Request) -> list[Trajectory]:
    """The inverse of `write_group`: trajectories of the very request that was asked."""
    return [Trajectory(**{**t, "request": t["request"] or request}) for t in saved]


def write_error(error: BaseException) -> dict[str, Any]:
    """An error in words."""
    return {"kind": type(error).__name__, "text": str(error.args[0] if len(error.args) == 1 else error),
            "notes": list(vars(error).get("__notes__", ())),
            "where": error.where if isinstance(error, RecipeError) else ""}  # fmt: skip


def read_error(saved: Mapping[str, Any], who: str) -> Exception:
    """What is raised here of an error that was told."""
    kind, text = saved["kind"], saved["text"]
    error = ERRORS[kind](text) if kind in ERRORS else RuntimeError(f"{kind}: {text}")
    for note in (*saved["notes"], f"raised in {who}"):
        error.add_note(note)
    return error
