"""The program of a further learner process (`python -m shuhari.distributed.rank LINK`): the models and parts of the
run, built from its recipe, with weights that it is sent. It differentiates its share of each optimiser batch with the
same code as in one process. It steps no optimiser.

The link carries messages of the codec; tensors of weights and gradients go through `group`. No pickle. The process ends
with its parent, however that ends. Left out: rollouts, rewards and optimisers, which stay with the parent.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from shuhari.data import EMPTY
from shuhari.distributed.processes import DONE, FAILED

if TYPE_CHECKING:
    from shuhari.config.stage import Components
    from shuhari.loop.context import Context

WORK = ("columns", "gradient", "hvp")


class Stamps:
    """A stand-in for an optimiser batch of `size` rows, which collects what pieces stamp."""

    def __init__(self, size: int) -> None:
        self.size, self.stamps = size, dict[str, Tensor]()

    def __len__(self) -> int:
        return self.size


def main(make: Callable[[Mapping[str, Any]], Any]) -> None:
    """Run a further process: `make`, called with its setup, returns the object that handles messages."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    faulthandler.enable()
    link = Connection(int(sys.argv[1]))
    code = 0
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):  # the parent is gone
        try:
            serve(link, make)
        except EOFError:
            raise
        except BaseException:
            code = 1
            traceback.print_exc()
            link.send_bytes(FAILED + traceback.format_exc().encode())
    os._exit(code)


def make_stages(setup: Mapping[str, Any]) -> tuple[list[Components], Context]:
    """Build the stages of the run's recipe and a context for them; also sets torch's number of threads."""
    from shuhari.config.build import build_stages
    from shuhari.config.recipe import Recipe
    from shuhari.loop.context import Context

    torch.set_num_threads(setup["threads"])
    recipe = Recipe(setup["name"], setup["tree"])
    stages = build_stages(recipe.stages)
    first = stages[0]
    return stages, Context(recipe.seed, first.task, first.engine, first.tokens, setup["threads"])


def serve(link: Connection, make: Callable[[Mapping[str, Any]], Any]) -> None:
    """Serve messages until the link is closed. Each gets one answer; an iterator each of its answers, None no answer.
    """
    from shuhari.store.codec import dumps, loads

    here = make(loads(link.recv_bytes()))
    link.send_bytes(DONE)
    while True:
        message = loads(link.recv_bytes(), limit=2**40)
        if (found := here.hear(**message)) is not None:
            for answer in found if isinstance(found, Iterator) else (found,):
                link.send_bytes(DONE + dumps(answer))


class Rank:
    """A learner process. `setup`: `name` and `tree` of the recipe, `rank`, `size`, `folder` in which all meet,
    `threads`, `cuda`."""

    def __init__(self, setup: Mapping[str, Any]) -> None:
        from shuhari.distributed.group import Group

        self.rank = setup["rank"]
        self.stages, self.ctx = make_stages(setup)
        self.begun, self.playing = 0, set[str]()
        (Path(setup["folder"]) / f"met-{self.rank}").touch()
        self.group = Group(Path(setup["folder"]), self.rank, setup["size"], cuda=setup["cuda"])

    def hear(self, ask: str, **rest: Any) -> Any:
        """Return the answer to a message; None if none is expected."""
        return getattr(self, f"on_{ask}")(**rest) if ask not in WORK else self.work(ask, **rest)

    def on_stage(self, name: str) -> dict[str, Any]:
        """Create the roles of the stages up to this one, and return their tensors, name -> shape."""
        from shuhari.distributed.devices import move_models
        from shuhari.loop.roles import cast_roles

        names = [stage.name for stage in self.stages]
        for stage in self.stages[self.begun : names.index(name) + 1]:
            move_models(stage.models, self.rank)
            cast_roles(stage.models, self.ctx.models, stage.task, self.ctx.seed, EMPTY, self.playing, sources=False)
        self.begun = names.index(name) + 1
        self.stage = self.stages[self.begun - 1]
        self.tensors = dict(walk_tensors(self.ctx.models))
        return {name: list(t.shape) for name, t in self.tensors.items()}

    def on_weights(self, names: Mapping[str, str]) -> None:
        """Load tensors, name -> type of numbers, from the group's broadcast."""
        for name, dtype in names.items():
            t = self.tensors[name]
            if str(t.dtype) != f"torch.{dtype}":
                t.data = t.data.to(getattr(torch, dtype))
        self.group.broadcast([self.tensors[name] for name in names])

    def on_share(
        self, place: tuple[str, str], share: Mapping[str, Any], size: int, scale: Mapping[str, float],
        tokens: int | None, packed: bool, ctx: Mapping[str, Any], count: list[Any],
    ) -> None:  # fmt: skip
        """Hold a share of an optimiser batch of `size` rows."""
        from shuhari.distributed.shares import take_now, unpack_share
        from shuhari.learners.pieces import Pieces, trained_parameters

        take_now(self.ctx, ctx, count)
        part = self.stage.learners[place[0]].parts[place[1]]  # type: ignore[attr-defined]
        params = trained_parameters(self.ctx.models, part.trains, f"part {place[1]!r}")
        batch = unpack_share(share)
        self.stamped, self.rows = Stamps(size), batch["_row"]
        self.pieces = Pieces(batch, part, place[1], self.ctx, params, scale, EMPTY,
                             cut=True, tokens=tokens, packed=packed, into=self.stamped)  # fmt: skip

    def work(self, ask: str, **rest: Any) -> dict[str, Any]:
        from shuhari.learners.pieces import Meters

        if ask == "columns":
            return self.pieces.columns()
        if ask == "hvp":
            return {"vector": self.pieces.hvp(rest["term"], rest["vector"].to(self.pieces.params[0].device))}
        upstream, meter = rest["upstream"], Meters()
        if upstream is not None:
            whole = {k: g.new_zeros(len(self.stamped), *g.shape[1:]) for k, g in upstream.items()}
            for k, g in upstream.items():
                whole[k][self.rows] = g
            upstream = whole
        grads = self.pieces.gradient(rest["terms"], upstream, meter)
        self.grads = [torch.zeros_like(p) if g is None else g for g, p in zip(grads, self.pieces.params, strict=True)]
        return {
            "reached": [g is not None for g in grads],
            "losses": {t: float(x) for t, x in meter.losses.items()},
            "infos": [(*key, float(total), float(n)) for key, (total, n) in meter.infos.items()],
            "stamps": {k: x[self.rows] for k, x in self.stamped.stamps.items()},
        }

    def on_reduce(self) -> None:
        """Sum the gradients of all processes."""
        self.group.reduce(self.grads)
        self.grads = []


def walk_tensors(models: Mapping[str, Any]) -> Iterator[tuple[str, Tensor]]:
    """Yield (name, tensor) of all parameters and buffers of the models, each once."""
    from shuhari.ports.hooks import ability

    seen: set[int] = set()
    for role in sorted(models):
        module: nn.Module | None = ability(models[role], "module")
        if module is not None:
            for name, t in (*module.named_parameters(), *module.named_buffers()):
                if id(t) not in seen:
                    seen.add(id(t))
                    yield f"{role}/{name}", t


def _end_with_parent() -> None:
    os.read(0, 1)  # nothing is ever written: this ends where the parent, which holds the other end, has ended
    os._exit(1)


if __name__ == "__main__":
    main(Rank)
