"""The size of a run's checkpoints, and a check that there is room for them, before its first step.

Weights and the optimiser's state count, the latter as two numbers for each trained one, as for AdamW. Left out: replay,
whose blocks are shared between checkpoints, and everything small.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shuhari.config.stage import Components, Role, walk_learners
from shuhari.loop.based import Start
from shuhari.ports import Model, ability
from shuhari.store.files import StoreError
from shuhari.store.space import format_size, measure_free

LARGE, SHARE = 2**30, 0.1  # bytes, and of what is free: what is told as a run begins
MEMORY = 2  # numbers that an optimiser keeps for each that it trains
FLOAT = 4  # bytes


@dataclass(frozen=True)
class Size:
    """Bytes of a model's weights: `trained`; `fixed`, frozen weights that a checkpoint must store; and `lent`, frozen
    weights that it need not store, as the file at the model's `path` has them."""

    trained: int
    fixed: int = 0
    lent: int = 0

    def count(self, *, optimisers: int, moves: bool) -> int:
        """Return the bytes in a checkpoint, with the state of the optimisers that train the model."""
        if not (moves or optimisers):
            return self.fixed + (0 if self.lent else self.trained)
        return self.fixed + self.trained * (1 + MEMORY * optimisers)


@dataclass(frozen=True)
class Room:
    """`each`: bytes of a checkpoint, about; `kept`: number of checkpoints that stay on disk; `free`: free bytes."""

    each: int
    kept: int
    free: int

    def __str__(self) -> str:
        return f"checkpoints {format_size(self.each * self.kept)} ({self.kept} kept), free {format_size(self.free)}"


def measure_model(model: Model, start: Start | None) -> Size:
    """Return the size of a model that has been built."""
    module, lent = model.module, start.digests if start else {}
    moved = {name for name, p in module.named_parameters() if p.requires_grad}
    sizes = {name: x.numel() * x.element_size() for name, x in module.state_dict().items()}
    return Size(
        trained=sum(size for name, size in sizes.items() if name in moved),
        fixed=sum(size for name, size in sizes.items() if name not in moved and name not in lent),
        lent=sum(size for name, size in sizes.items() if name in lent),
    )


def read_size(model: Any) -> Size | None:
    """Return the size of a language model that would be loaded from a directory, from the headers of its files; None if
    they do not show it."""
    from shuhari.models.text.folder import check_weights

    place = Path(ability(model, "path")).expanduser()
    try:
        shapes = check_weights(place, "model")
    except (ValueError, OSError):
        return None
    whole = sum(map(math.prod, shapes.values())) * FLOAT
    if (lora := ability(model, "lora")) is None:
        return Size(trained=whole, lent=whole)
    layers = [s for name, s in shapes.items() if len(s) == 2 and _adapts(name.removesuffix(".weight"), lora.targets)]
    return Size(trained=sum(lora.rank * sum(shape) for shape in layers) * FLOAT, lent=whole)


def _adapts(name: str, targets: Collection[str]) -> bool:
    """Whether a layer gets adapters: all but the embeddings and the head, or the named ones."""
    if targets:
        return f".{name}".endswith(tuple(f".{t}" for t in targets))
    return not name.rpartition(".")[2].startswith(("embed", "lm_head", "wte", "wpe"))


def find_room(stages: Sequence[Components], sizes: Mapping[str, Size], path: Path) -> Room:
    """Return the approximate size of the largest checkpoint of these stages, from the sizes of the models that roles
    play."""
    trained, moved, seen = Counter[str](), set[str](), dict[int, Any]()
    for stage in stages:
        moved |= stage.follows.keys()
        for _, learner in walk_learners(stage.learners):
            parts = () if id(learner) in seen else ability(learner, "parts").values()
            seen[id(learner)] = learner  # each stage's remembers what it did, to the end of the run
            for part in parts:
                trained.update(part.trains)
    roles: dict[str, Role] = {}
    for stage in stages:
        roles |= stage.models
    heads = {name: role.same_as or name for name, role in roles.items()}  # whose weights they are
    moved = {heads.get(name, name) for name in moved}
    optimisers = {
        head: sum(n for name, n in trained.items() if heads.get(name, name) == head)
        for head in heads.values()
    }
    total = 0
    for name, role in roles.items():
        if heads[name] == name and (size := sizes.get(name) or sizes.get(role.init)) is not None:
            total += size.count(optimisers=optimisers[name], moves=name in moved)
    names = {stage.name.partition(" ")[0] for stage in stages}
    kept = stages[-1].store.keep + len(names) - 1  # the end of each stage that another one follows
    return Room(total, kept, measure_free(path / "checkpoints"))


def check_room(
    stages: Sequence[Components], models: Mapping[str, Model], starts: Mapping[str, Start | None], path: Path, *,
    new: bool,
) -> None:  # fmt: skip
    """Log the size of a run's checkpoints if it is large. Raises StoreError if there is no room: for the ones that are
    kept and the one being written or, for a resumed run, for that one."""
    room = find_room(stages, {name: measure_model(model, starts.get(name)) for name, model in models.items()}, path)
    needed = room.each * (room.kept + 1 if new else 1)
    if needed > room.free:
        what = f"{path} has no room for its checkpoints: {room}; {format_size(needed)} are needed, as the new one is "
        hint = "free some space, give --run on another disk, keep fewer (store.keep=1), or train adapters "
        raise StoreError(f"{what}written before an old one goes", f"{hint}(models.policy.lora.rank=8)")
    if room.each * room.kept > min(LARGE, SHARE * room.free):
        logging.getLogger("shuhari").info("%s", room)
