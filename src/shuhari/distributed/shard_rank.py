"""The program of a learner process with a sharded model (`python -m shuhari.distributed.shard_rank LINK`): it holds its
shard of the weights and of the optimiser's state, and makes each optimiser step together with all other learners, on a
batch that it is sent. The other side is `shard_team`.

Components are built from the run's recipe, the model from its configuration; weights come and go over the link, rows of
one tensor at a time. Left out: rollouts, rewards and scoring before the update, which stay with the run.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed
from torch import Tensor

from shuhari.distributed.group import join_default
from shuhari.distributed.rank import main, make_stages

dist: Any = torch.distributed  # not all of whose names are declared


class ShardRank:
    """A learner process. `setup`: `name` and `tree` of the recipe, `rank`, `size`, `folder` in which all meet,
    `threads`, and `gpu`, the number of the first learner's GPU (None: on CPUs)."""

    def __init__(self, setup: Mapping[str, Any]) -> None:
        self.rank = setup["rank"]
        stages, self.ctx = make_stages(setup)
        self.stages = {stage.name: stage for stage in stages}
        self.owned = set[int]()  # the ids of parts whose optimisers have the shards
        gpu = None if setup["gpu"] is None else setup["gpu"] + self.rank
        join_default(Path(setup["folder"]), self.rank, setup["size"], gpu)
        self.mesh = dist.device_mesh.init_device_mesh("cpu" if gpu is None else "cuda", (setup["size"],))

    def hear(self, ask: str, **rest: Any) -> Any:
        """Return the answer to a message, or an iterator of several; None if none is expected."""
        return getattr(self, f"on_{ask}")(**rest)

    def on_model(
        self, config: str, suppressed: list[int], pad: int, roles: list[str], place: list[str], dtype: str,
        bfloat16: bool, recompute: bool, limit: int,
    ) -> dict[str, list[int]]:  # fmt: skip
        """Make the model that plays `roles`, with weights not set yet, and return name -> its first row here, and how
        many."""
        from transformers import AutoConfig

        from shuhari.distributed.sharded import Sharded, make_model, make_sharded

        tree = json.loads(config)
        made = type(AutoConfig.for_model(tree["model_type"])).from_dict(tree)
        compute = torch.bfloat16 if bfloat16 else None
        lm = make_sharded(made, self.mesh, getattr(torch, dtype), compute, limit)
        lm.generation_config.suppress_tokens = suppressed or None
        part = self._find(place)[1]
        self.sharded = Sharded(make_model(lm, SimpleNamespace(pad=pad), limit, recompute), self.mesh, part)
        self.owned.add(id(part))
        self.ctx.models = dict.fromkeys(roles, self.sharded.model)
        self.ctx.team = self.sharded
        return {name: list(self.sharded.find_range(name)) for name in self.sharded.shards}

    def on_own(self, place: list[str]) -> list[str]:
        """Have the optimiser of a part step the shards, and return the names of its state per parameter."""
        part = self._find(place)[1]
        if id(part) not in self.owned:
            self.sharded.own(part)
            self.owned.add(id(part))
        return sorted(part.optimiser.state.keys() - {"steps"})

    @torch.no_grad()
    def on_take(self, place: list[str], kind: str, name: str, rows: Tensor) -> None:
        """Load the rows here of one tensor of the optimiser's state; without a place, of the model."""
        self._find_tensors(place, kind)[name].copy_(rows)

    def on_count(self, place: list[str], steps: list[float]) -> None:
        """Load the number of steps of each parameter."""
        optimiser = self._find(place)[1].optimiser
        optimiser.state = {**optimiser.state, "steps": torch.tensor(steps)}

    def on_tell(self, place: list[str], kind: str) -> Iterator[Tensor]:
        """Yield the rows here of each tensor of one kind of the optimiser's state; without a place, of the model."""
        yield from (x.detach() for x in self._find_tensors(place, kind).values())

    def on_counts(self, place: list[str]) -> list[float]:
        """Return the number of steps of each parameter."""
        found: list[float] = self._find(place)[1].optimiser.state["steps"].tolist()
        return found

    @torch.no_grad()
    def on_clear(self, place: list[str]) -> None:
        """Reset the state of an optimiser to zeros."""
        optimiser = self._find(place)[1].optimiser
        zeros = {k: {i: torch.zeros_like(x) for i, x in own.items()} if k != "steps" else torch.zeros_like(own)
                 for k, own in optimiser.state.items()}  # fmt: skip
        optimiser.state = zeros

    def on_step(
        self, place: list[str], share: Mapping[str, Any], links: Mapping[str, Any], ctx: Mapping[str, Any],
        count: list[Any], terms: dict[str, list[str]],
    ) -> dict[str, Any]:  # fmt: skip
        """Make one step of a part's optimiser with all other learners on an optimiser batch, and return what it
        reports."""
        from shuhari.distributed.shares import take_now, unpack_share
        from shuhari.learners.loss import Loss

        learner, part = self._find(place)
        take_now(self.ctx, ctx, count)
        batch = unpack_share(share)
        batch.links.update({name: (index, dict(columns)) for name, (index, columns) in links.items()})
        params = list(self.sharded.shards.values())
        loss = Loss(batch, part, place[2], self.ctx, params, learner.tokens, terms, (place[1], place[2]))
        try:
            info = part.optimiser.step(loss, self.ctx.count)
        except FloatingPointError as error:
            return {"unfinished": str(error)}
        return {} if self.rank else {"info": info, "terms": terms, "stamps": dict(loss.batch.stamps)}

    def _find(self, place: list[str]) -> tuple[Any, Any]:
        """Return the learner and the part of (stage, learner, part)."""
        stage, learner, part = place
        found: Any = self.stages[stage].learners[learner]
        return found, found.parts[part]

    def _find_tensors(self, place: list[str], kind: str) -> dict[str, Tensor]:
        """Return parameter -> its rows here, as they lie in memory: of the optimiser's state or, without a place, of
        the model, as an optimiser may keep weights of its own."""
        if not place:
            return dict(self.sharded.shards)
        own = self._find(place)[1].optimiser.state[kind]
        return {name: own[str(i)] for i, name in enumerate(self.sharded.shards)}


if __name__ == "__main__":
    main(ShardRank)
