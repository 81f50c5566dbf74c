"""Shared by first-order optimisers: their parameters, the state of each, and the frame of a step.

A step takes the gradients, refuses those that are not finite, and clips their global norm. Leaves out parameter groups
and sparse gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from shuhari.data import Info, Number, Ramp
from shuhari.events import Event, When
from shuhari.ports import Evaluate


class Piece(NamedTuple):
    """Parameters of one device and type that have a gradient, and their optimiser state, in the order of `names`."""

    params: list[Tensor]
    grads: list[Tensor]
    steps: list[Tensor]  # number of steps of each, this one included
    kept: list[list[Tensor]]


Total = Callable[[Tensor], Tensor]  # sums a number over the processes that have shards of the parameters
Move = Callable[[Piece, float, float], None]  # (piece, lr, at): one step of these parameters, in place


class FirstOrder:
    """The frame of a step, used by an optimiser: `names` are the tensors kept for each parameter. `total`: for sharded
    parameters, sums over the processes that have the other shards, so that the norm is over all. `state`: the count of
    steps [P] and the kept tensors of every parameter, in the order of `bind`."""

    def __init__(self, *names: str) -> None:
        self._names = names
        self._memory: Any = None
        self._saved: Any = None
        self.total: Total | None = None

    def bind(self, params: Sequence[nn.Parameter]) -> None:
        """Takes these parameters, with a state of zeros, or of a `state` set before; parameters taken earlier keep
        theirs. Raises ValueError for a parameter that is not contiguous in memory: a fused kernel would read it
        wrongly."""
        old, self._memory = self._memory, _Memory(params, self._names)
        if old is not None:
            self._memory.keep(old)
        if self._saved is not None:
            self.state = self._saved

    def step(self, evaluate: Evaluate, at: float, lr: Number, clip: Number, move: Move) -> Info:
        """Runs one step at count `at` of the schedules, with `clip` the largest global gradient norm (0 is off).
        Returns the infos of the loss, `grad_norm` before the clip, and `lr`.

        Raises FloatingPointError, without changing any parameter, if the gradient is not finite.
        """
        info = dict(evaluate.backward())
        rate = resolve(lr, at)
        with torch.no_grad():
            live, grads, norm = self._memory.gradients(resolve(clip, at), self.total)
            for piece in self._memory.pieces(live, grads):
                move(piece, rate, at)
        return {**info, "grad_norm": norm, "lr": rate}

    def observe(self, reset: When | None, event: Event) -> None:
        """Resets the state, if it is due."""
        if reset is not None and reset.due(event) and self._memory is not None:
            self._memory.clear()

    @property
    def state(self) -> dict[str, Any]:
        return {} if self._memory is None else self._memory.tree()

    @state.setter
    def state(self, tree: dict[str, Any]) -> None:
        if self._memory is None:
            self._saved = tree or None
        elif tree:
            self._memory.load(tree)
            self._saved = None


def resolve(number: Number, at: float) -> float:
    """Returns a number, or a schedule's value at this count."""
    return float(number(at)) if isinstance(number, Ramp) else number


class _Memory:
    """The parameters of one optimiser and their state."""

    def __init__(self, params: Sequence[nn.Parameter], names: Sequence[str]) -> None:
        for i, given in enumerate(params):
            if not given.is_contiguous():
                raise ValueError(
                    f"parameter {i} of shape {tuple(given.shape)} is not contiguous: call .contiguous() on it"
                )
        self.params: list[Tensor] = list(params)
        self.kept = {
            name: [torch.zeros_like(p) for p in self.params]
            for name in names
        }
        self.steps: list[Tensor] = [torch.empty(0)] * len(self.params)
        kinds: dict[Any, list[int]] = {}
        for i, p in enumerate(self.params):
            kinds.setdefault((p.device, p.dtype), []).append(i)
        # norms of half-precision gradients are computed in single precision
        self.precision = torch.float64 if any(t is torch.float64 for _, t in kinds) else torch.float32
        self.groups = []  # one kernel call each: one device, one type; counts are views of one tensor
        for (device, _), own in kinds.items():
            counts = torch.zeros(len(own), device=device)
            self.groups.append((own, counts))
            for i, count in zip(own, counts.unbind(), strict=True):
                self.steps[i] = count

    def gradients(self, clip: float, total: Total | None = None) -> tuple[list[int], list[Tensor], float]:
        """Returns (the parameters that have a gradient, these gradients, removed and clipped, their global norm
        before)."""
        live: list[int] = []
        grads: list[Tensor] = []
        for i, p in enumerate(self.params):
            g = p.grad
            if g is not None:
                p.grad = None  # the next step computes its own
                live.append(i)
                # a gradient may be a view (transposed, expanded), and a kernel reads memory in order
                grads.append(g if g.is_contiguous() else g.contiguous())
        if not live:
            return live, grads, 0.0
        norms = torch._foreach_norm(grads, 2, self.precision)
        if len(self.groups) > 1:
            norms = tuple(n.to(norms[0].device) for n in norms)
        whole = torch.linalg.vector_norm(torch.stack(norms))
        norm = float(whole if total is None else total(whole.square()).sqrt())
        if not norm < float("inf"):
            raise FloatingPointError(f"the gradient is not finite (norm {norm}): no parameter was changed")
        if 0 < clip < norm:
            grads = list(torch._foreach_mul(grads, clip / (norm + 1e-6)))  # not in place: gradients may share memory
        return live, grads, norm

    def pieces(self, live: list[int], grads: list[Tensor]) -> Iterator[Piece]:
        """Yields the parameters `live` in pieces for one kernel call each, with their counts raised by one."""
        if len(self.groups) == 1 and len(live) == len(self.params):
            self.groups[0][1].add_(1)
            yield Piece(self.params, grads, self.steps, list(self.kept.values()))
            return
        of = dict(zip(live, grads, strict=True))
        for own, _ in self.groups:
            due = [i for i in own if i in of]
            if due:
                params, steps, *kept = (
                    [x[i] for i in due]
                    for x in (self.params, self.steps, *self.kept.values())
                )
                torch._foreach_add_(steps, 1)
                yield Piece(params, [of[i] for i in due], steps, kept)

    @torch.no_grad()
    def keep(self, old: _Memory) -> None:
        """Copies the state of another for the parameters that both have."""
        place = {id(p): j for j, p in enumerate(old.params)}
        for i, p in enumerate(self.params):
            j = place.get(id(p))
            if j is not None:
                for name, mine in self.kept.items():
                    mine[i] = old.kept[name][j]
                self.steps[i].copy_(old.steps[j])

    @torch.no_grad()
    def clear(self) -> None:
        """Resets to the initial state."""
        for x in (
            *self.steps,
            *(
                x
                for own in self.kept.values()
                for x in own
            ),
        ):
            x.zero_()

    def tree(self) -> dict[str, Any]:
        steps = torch.stack([s.cpu() for s in self.steps]) if self.steps else torch.zeros(0)
        return {"steps": steps} | {
            n: {str(i): x for i, x in enumerate(own)}
            for n, own in self.kept.items()
        }

    @torch.no_grad()
    def load(self, tree: dict[str, Any]) -> None:
        n = len(tree["steps"])
        if n != len(self.steps):
            raise ValueError(f"an optimiser's state is of {n} parameters: this one has {len(self.steps)}")
        for i, step in enumerate(self.steps):
            step.copy_(tree["steps"][i])
            for name, mine in self.kept.items():
                theirs = tree[name][str(i)]
                if mine[i].shape != theirs.shape:
                    shapes = f"{tuple(theirs.shape)}: expected {tuple(mine[i].shape)}"
                    raise ValueError(f"an optimiser's state has parameter {i} of shape {shapes}")
                mine[i].copy_(theirs)
