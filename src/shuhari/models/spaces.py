"""Gymnasium spaces for models of fixed size: observations as rows of features, actions as choices or boxes.

A task has spaces of one of these kinds, or a flat Dict of them (`context/<key>` columns); in a Dict the key
`action_mask` marks the allowed actions and is no feature. Leaves out tuples, text, sequences and graphs. Axes: `B`
rows, `D` features, `A` action dimensions or alternatives, `M` choices made at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from gymnasium import spaces
from torch import Tensor, nn

from shuhari.batch import Batch
from shuhari.data import nearest
from shuhari.events import Collected, Committed, Event, Loaded
from shuhari.models.convolution import Convolution, is_image
from shuhari.models.normaliser import Moments, Parts, merge_moments, moments
from shuhari.ports import Task

MASK = "action_mask"  # PettingZoo's name for it
TINY = 1e-12
FORBIDDEN = -1e9  # the logit or value of a forbidden action: finite, so that 0 times it is 0
DISCRETE = (spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)

Seen = Tensor | Mapping[str, Tensor]


def spaces_of(task: Task, model: str) -> tuple[Any, Any]:
    """Returns (observation space, action space). Raises TypeError for a text task, which has none."""
    found = task.spaces()
    if found is None:
        raise TypeError(f"the model {model!r} needs a task with spaces, not one of text (see the model 'causal')")
    return found


def _suggest(space: Any, what: str) -> str:
    """Returns a hint, for an error, at recipes that fit an action space; "" if there is none."""
    if what == "action" and isinstance(space, spaces.Box) and len(space.shape) == 1:
        return "; baselines/ppo_pendulum and baselines/sac_pendulum take such actions"
    return "; baselines/ppo_cartpole takes such actions" if what == "action" and isinstance(space, DISCRETE) else ""


def discrete(space: Any, what: str, model: str) -> spaces.Discrete:
    """Returns `space`, which must be Discrete. Raises TypeError otherwise."""
    if not isinstance(space, spaces.Discrete):
        message = f"the model {model!r} needs a Discrete {what} space: this task's is {space}"
        raise TypeError(message + _suggest(space, what))
    return space


def box(space: Any, what: str, model: str, *, bounded: bool = False) -> spaces.Box:
    """Returns `space`, which must be a Box of one axis (with bounds on every side if `bounded`). Raises TypeError
    otherwise."""
    if not isinstance(space, spaces.Box) or len(space.shape) != 1:
        message = f"the model {model!r} needs a Box {what} space of shape (A,): this task's is {space}"
        raise TypeError(message + _suggest(space, what))
    if bounded and not space.is_bounded():
        raise TypeError(f"the model {model!r} scales to bounds on every side: this task's {what} space is {space}")
    return space


def bounds_of(space: spaces.Box) -> tuple[Tensor, Tensor] | None:
    """Returns ([A] low, [A] high) as float32; None if the space has no bounds at all."""
    if not (np.isfinite(space.low).any() or np.isfinite(space.high).any()):
        return None
    return torch.from_numpy(space.low.astype(np.float32)), torch.from_numpy(space.high.astype(np.float32))


class Scale:
    """Maps actions in [-1, 1] to those of a bounded Box."""

    def __init__(self, space: spaces.Box) -> None:
        low, high = (torch.from_numpy(x).float() for x in (space.low, space.high))
        self._bounds, self._middle, self._half = (low, high), (high + low) / 2, (high - low) / 2

    def __call__(self, action: Tensor) -> Tensor:
        return torch.addcmul(self._middle, self._half, action).clamp(*self._bounds)

    def inverse(self, action: Tensor) -> Tensor:
        """Maps actions of the Box to [-1, 1]; values beyond the bounds are clamped."""
        return ((action - self._middle) / self._half.clamp(min=TINY)).clamp(-1, 1)


def alternatives(space: Any) -> list[int]:
    """Returns [M] the number of alternatives of each choice of a Discrete, MultiDiscrete or MultiBinary space (of one
    axis). Raises ValueError for another space."""
    if isinstance(space, spaces.Discrete):
        return [int(space.n)]
    if isinstance(space, spaces.MultiDiscrete) and space.nvec.ndim == 1:
        return [int(n) for n in space.nvec]
    if isinstance(space, spaces.MultiBinary) and len(space.shape) == 1:
        return [2] * int(space.shape[0])
    raise ValueError(f"the space {space}: expected a Discrete, MultiDiscrete or MultiBinary one, of one axis")


@dataclass(frozen=True, eq=False)
class Choices:
    """An action space of choices. `sizes`: alternatives of each; `joint`: M of them are made at once (else there is
    one); `start`: the environment's number of alternative 0, None if that is 0."""

    sizes: list[int]
    joint: bool
    start: int | Tensor | None
    places: Tensor | None  # [M, A] the place of each alternative among all; the last place is padding

    @classmethod
    def of(cls, space: Any, model: str) -> Choices:
        """Reads a space. Raises TypeError for one without choices."""
        try:
            sizes = alternatives(space)
        except ValueError:
            raise TypeError(
                f"the model {model!r} needs a Discrete, MultiDiscrete or MultiBinary action space: this task's is "
                f"{space}{_suggest(space, 'action')}"
            ) from None
        start: Any = getattr(space, "start", None)
        if start is not None:
            start = (torch.from_numpy(start).long() if np.ndim(start) else int(start)) if np.any(start) else None
        if isinstance(space, spaces.Discrete):
            return cls(sizes, False, start, None)
        ends = np.cumsum(sizes)
        rows = [np.append(np.arange(e - n, e), [ends[-1]] * (max(sizes) - n)) for n, e in zip(sizes, ends, strict=True)]
        return cls(sizes, True, start, torch.from_numpy(np.stack(rows)).long())

    @property
    def size(self) -> int:
        return sum(self.sizes)

    def spread(self, logits: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Returns (logits, allowed) [B, A], for joint choices [B, M, A], from logits and a mask [B, total size]; None
        if all are allowed. Forbidden alternatives, and the padding of shorter choices, are `FORBIDDEN`."""
        if mask is None and not self.joint:
            return logits, None
        if mask is None and len(set(self.sizes)) > 1:
            mask = torch.ones_like(logits, dtype=torch.bool)
        if self.places is not None:
            logits = F.pad(logits, (0, 1), value=FORBIDDEN)[:, self.places]
            mask = None if mask is None else F.pad(mask, (0, 1), value=False)[:, self.places]
        return (logits, None) if mask is None else (logits.masked_fill(~mask, FORBIDDEN), mask)


def check_allowed(allowed: Tensor | None) -> None:
    """Raises ValueError if a mask [B, ..., A] allows no action."""
    if allowed is not None and not bool((ok := allowed.any(-1)).all()):
        row = int((~ok).nonzero()[0, 0])
        raise ValueError(f"action_mask: row {row} allows no action: expected at least one for every decision")


class Inputs(nn.Module):
    """Observations -> features [B, D]: numbers (a Box flattened), then codes (one-hot for Discrete and MultiDiscrete, a
    MultiBinary as it is), then images (a `Convolution` each), in the order of the keys.

    normalise: numbers are normalised by running moments of the rows collected for training, updated when a step is
    committed, so that they are constant within a step; with a recorded data set, by its moments as it is loaded, before
    any update. orthogonal: initialisation of convolutions. see: the used parts of a Dict (empty: all); an action mask
    always counts. A model calls `observe` with its events. Raises TypeError for another space.
    """

    def __init__(
        self, space: Any, model: str, normalise: bool = False, orthogonal: bool = False, see: tuple[str, ...] = ()
    ) -> None:
        super().__init__()
        self.name, self.keys = model, tuple(space) if isinstance(space, spaces.Dict) else ()
        self.masked = MASK in self.keys
        if lost := [k for k in see if k not in self.keys or k == MASK]:
            known = [k for k in self.keys if k != MASK]
            raise ValueError(f"the model {model!r}: see = {list(see)}: the observations have no part {lost[0]!r}; "
                             f"{nearest(lost[0], known)}")  # fmt: skip
        self.keys = tuple(k for k in self.keys if not see or k in see or k == MASK)
        parts: dict[str, Any] = {k: space[k] for k in self.keys if k != MASK} if self.keys else {"": space}
        self._numbers = [k for k, s in parts.items() if isinstance(s, spaces.Box) and not is_image(s)]
        self._images = [k for k, s in parts.items() if is_image(s)]
        self._codes = {k: _code(s) for k, s in parts.items() if k not in (*self._numbers, *self._images)}
        if not parts or None in self._codes.values():
            raise TypeError(
                f"the model {model!r} reads Box, Discrete, MultiDiscrete and MultiBinary observations, or a flat Dict "
                f"of these: this task's are {space}"
            )
        size = sum(int(np.prod(parts[k].shape, dtype=int)) for k in self._numbers)
        self.moments = Moments(size) if normalise and size else None
        self.convolutions = nn.ModuleList(Convolution(parts[k].shape, orthogonal) for k in self._images)
        self._convolve: list[Any] = list(self.convolutions)
        self.size = (
            size
            + sum(c[0] for c in self._codes.values() if c)
            + sum(c.size for c in self._convolve)
        )
        self._plain = size > 0 and not self.keys and self.moments is None
        self._pending: Parts | None = None

    def of(self, batch: Batch) -> Seen:
        """Returns the observations of a batch's rows."""
        return {k: batch[f"context/{k}"] for k in self.keys} if self.keys else batch["context"]

    def mask(self, seen: Seen) -> Tensor | None:
        """Returns [B, alternatives] bool, the allowed actions; None if the space has no mask."""
        return seen[MASK] > 0 if self.masked else None  # type: ignore[index]

    def __call__(self, seen: Seen) -> Tensor:
        if self._plain:
            return _rows(seen)  # type: ignore[arg-type]
        parts: Any = seen if self.keys else {"": seen}
        features = [self._join(parts)] if self._numbers else []
        if self.moments is not None:
            features = [self.moments(features[0])]
        features += [_encode(parts[k], c) for k, c in self._codes.items() if c]
        features += [net(parts[k]) for k, net in zip(self._images, self._convolve, strict=True)]
        return features[0] if len(features) == 1 else torch.cat(features, 1)

    forward = __call__

    def observe(self, event: Event) -> None:
        """Updates the running moments with rows of decisions: collected ones count from the next step, recorded data at
        once. Raises ValueError at the end of a step if no row has ever been counted: normalisation would do nothing."""
        if self.moments is None or (isinstance(event, Loaded) and event.again and not self.moments.empty):  # counted
            return
        if isinstance(event, Collected | Loaded) and bool((decides := event.batch.decides).any()):
            seen: Any = self.of(event.batch.take(decides))
            rows = moments(self._join(seen if self.keys else {"": seen}))
            if isinstance(event, Loaded):
                self.moments.take(rows)
                return
            self._pending = rows if self._pending is None else merge_moments(self._pending, rows)
        elif isinstance(event, Committed):
            if self._pending is not None:
                self.moments.take(self._pending)
                self._pending = None
            elif self.moments.empty:
                raise ValueError(
                    f"the model {self.name!r}: normalise = true, and after a step there was nothing to take statistics "
                    "from: nothing was collected, and no buffer has loaded a data set, as `offline` does"
                )

    def _join(self, parts: Mapping[str, Tensor]) -> Tensor:
        rows = [_rows(parts[k]) for k in self._numbers]
        return rows[0] if len(rows) == 1 else torch.cat(rows, 1)


class Net(nn.Module):
    """Encodes observations as features and applies `body`. `inputs` and `body` are its parts."""

    def __init__(self, inputs: Inputs, body: nn.Module) -> None:
        super().__init__()
        self.inputs, self.body = inputs, body
        self._parts = inputs, body  # avoids the module's attribute lookup

    def __call__(self, seen: Seen) -> Tensor:
        inputs, body = self._parts
        out: Tensor = body(inputs(seen))
        return out

    forward = __call__


def _rows(x: Tensor) -> Tensor:
    """Returns x as [B, D] float32."""
    if x.dtype is not torch.float32:
        x = x.float()
    return x if x.dim() == 2 else x.reshape(x.shape[0], -1)  # `len` would fix the number of rows of an ONNX graph


def _code(space: Any) -> tuple[int, Tensor | None] | None:
    """Returns (columns, [M] the offset of each number's columns; None for bits as they are); None for another space."""
    if isinstance(space, spaces.MultiBinary):
        return int(np.prod(space.shape, dtype=int)), None
    if not isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        return None
    sizes = np.ravel(space.nvec if isinstance(space, spaces.MultiDiscrete) else space.n)
    return int(sizes.sum()), torch.from_numpy(np.cumsum(sizes) - sizes - np.ravel(space.start))


def _encode(x: Tensor, code: tuple[int, Tensor | None]) -> Tensor:
    """Returns [B, columns] one-hot rows of integers [B, ...]; bits as float."""
    size, shift = code
    if shift is None:
        return _rows(x)
    return torch.zeros(x.shape[0], size).scatter_(1, x.reshape(x.shape[0], -1) + shift, 1.0)
