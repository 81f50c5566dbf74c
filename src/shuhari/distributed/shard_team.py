"""Learners that have the trained model in shards (`distributed.shard`), the run's side; the other one is `shard_rank`.

The learners are further processes. Each holds its rows of the weights, of the gradients and of the optimiser's state,
is sent each optimiser batch, and differentiates it and steps together with the others. In the run's process `Far`
stands for the optimiser, so that only a copy of the weights is kept there, for sampling, scoring, followers and
checkpoints: its rows come back after each update, a tensor at a time, and are sent again if something else has changed
them. For a checkpoint the optimiser's state is gathered in the form of one process, so that a resumed run may have
another number of learners, with or without shards. A `Team` for what a learner needs of one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from shuhari.batch import Batch
from shuhari.config.distributed import KINDS
from shuhari.config.overlay import RecipeError, format_path
from shuhari.config.stage import walk_learners
from shuhari.data import Info
from shuhari.distributed.devices import find_missing
from shuhari.distributed.processes import Processes
from shuhari.distributed.shares import pack_now, pack_share
from shuhari.events import Event, When
from shuhari.learners.parts import Part
from shuhari.learners.pieces import Pieces, Work
from shuhari.models.text.folder import read_json
from shuhari.ports.declares import declares
from shuhari.ports.hooks import ability

if TYPE_CHECKING:
    from shuhari.config.recipe import Recipe
    from shuhari.config.stage import Components
    from shuhari.loop.context import Context

LEARNER = "shuhari.distributed.shard_rank"
WHOLE = "or distributed.shard = false"


def open_shards(recipe: Recipe, stages: Sequence[Components], ctx: Context) -> ShardTeam:
    """Return the team of a run with a sharded model, and put `Far` in place of the optimisers of its parts. Raises
    RecipeError for what cannot be sharded."""
    team, known, role = ShardTeam(recipe, stages, ctx), set[int](), ""
    for stage in stages:
        learners = dict(zip(stage.learners, walk_learners(stage.learners), strict=True))
        found = [(name, key, at, part) for name, (at, learner) in learners.items()
                 for key, part in ability(learner, "parts").items()]  # fmt: skip
        for at, learner in learners.values():
            if not ability(learner, "parts"):
                place = format_path(at or ("learner", "main"))
                raise _refuse(f"{place} of stage {stage.name!r} has no `part` (an optimiser and its losses), so that "
                              f"nothing of it can be sharded: expected the learner 'gradient', {WHOLE}")  # fmt: skip
        if len(found) > 1:
            names = ", ".join(format_path((*at, "part", key)) for _, key, at, _ in found)
            raise _refuse(f"stage {stage.name!r} has {len(found)} parts ({names}), and one optimiser has shards: "
                          f"expected one part, {WHOLE}")  # fmt: skip
        for name, key, at, part in found:
            if id(part) in known:  # of a stage before
                continue
            check_part(format_path((*at, "part", key)), part, stage)
            if role and part.trains != (role,):
                raise _refuse(f"{role!r} is trained, and in stage {stage.name!r} {', '.join(part.trains)}: expected "
                              f"one role for all stages, {WHOLE}")  # fmt: skip
            (role,) = part.trains
            part.optimiser = Far(team, (stage.name, name, key), role, ability(part.optimiser, "reset"))
            known.add(id(part))
    return team


def check_part(where: str, part: Part, stage: Components) -> None:
    """Raise RecipeError for a part that cannot be trained in shards, as far as its settings show."""
    if len(part.trains) != 1:
        raise _refuse(f"{where} trains {', '.join(part.trains)}: expected one role, {WHOLE}")
    (role,) = part.trains
    if ability(part.optimiser, "share") is None:
        made = type(part.optimiser).__name__
        raise _refuse(f"the optimiser of {where} is {made}, whose step is not one of each weight by itself: expected "
                      f"adamw, adam or rmsprop, {WHOLE}")  # fmt: skip
    same = {role, *(name for name, other in stage.models.items() if other.same_as == role)}
    for name, term in part.terms.items():
        own, at = declares(term.objective), f"{where}.terms.{name}"
        if any(ability(term.objective, n) is not None for n in ("state", "observe")):
            raise _refuse(f"{at} remembers what it saw, which other processes would not: leave it out, {WHOLE}")
        others = {
            *own.roles,
            *(
                r
                for need in own.needs
                if need.live
                for r in need.roles
            ),
        } - same
        if others or own.roles:
            asked = ", ".join(sorted(others or own.roles))
            raise _refuse(f"{at} asks the model of {asked} as it is differentiated, which no learner has as a whole: "
                          f"expected columns that are scored before, {WHOLE}")  # fmt: skip
    if role in stage.models and stage.models[role].model is not None:
        _check_model(role, stage.models[role].model, stage.distributed.learners)


def _check_model(role: str, model: Any, size: int) -> None:
    """Raise RecipeError for a model that `size` learners cannot shard, as far as its settings show."""
    at = f"models.{role}"
    if ability(model, "export") is None:
        raise _refuse(f"{at} is {type(model).__name__}, which is not a language model: expected 'causal', {WHOLE}")
    if ability(model, "lora") is not None:
        raise _refuse(f"{at}.lora trains adapters, which fit into one process: expected none, {WHOLE}")
    if "value" in (ability(model, "offers") or ()):
        raise _refuse(f"{at} has a value head: expected none (a critic of its own is trained in one process), {WHOLE}")
    device = torch.device(named := ability(model, "device"))
    if device.type not in ("cpu", "cuda"):
        raise _refuse(f"{at}.device is {named!r}, and shards lie on CPUs or on CUDA: expected cpu or cuda, {WHOLE}")
    if device.type == "cuda" and (missing := find_missing(device.index or 0, size)):
        raise _refuse(f"{at}.device is {named!r}, and {missing}: expected cpu, fewer learners, {WHOLE}")
    config = Path(path).expanduser() / "config.json" if (path := ability(model, "path")) else None
    if config is None or config.is_file():
        kind = model.architecture if config is None else read_json(config).get("model_type")
        if kind not in KINDS:
            raise _refuse(f"{at} has the layout {kind!r}: expected one of {', '.join(KINDS)}, {WHOLE}")


def _refuse(problem: str) -> RecipeError:
    return RecipeError("distributed.shard", problem)


@dataclass(eq=False)
class Far:
    """A stand-in, in the run's process, for the optimiser of a part: the learners make its steps, and their state is
    shown as one. `place`: (stage, learner, part); `role`: the role whose weights they are; `reset`: the optimiser's
    own."""

    team: ShardTeam
    place: tuple[str, str, str]
    role: str
    reset: When | None = None

    def __post_init__(self) -> None:
        self.names: list[str] = []  # of its parameters, in their order
        self.saved: dict[str, Any] | None = None  # a state that the learners do not have yet

    def bind(self, params: Sequence[nn.Parameter]) -> None:
        """Own these parameters. Raises RecipeError if they belong to a model that cannot be sharded."""
        self.names = self.team.name_all(self.role, params)

    def step(self, evaluate: Any, at: float) -> Info:
        """Have the learners make one step; see `FirstOrder.step`."""
        return self.team.step(self, evaluate)

    def observe(self, event: Event) -> None:
        """Reset the state, if it is due."""
        if self.reset is not None and self.reset.due(event):
            self.team.clear(self)

    @property
    def state(self) -> dict[str, Any]:
        return self.team.collect(self) if self.saved is None else self.saved

    @state.setter
    def state(self, tree: dict[str, Any]) -> None:
        self.saved = tree or None
        self.team.owned.discard(self.place)


class ShardTeam:
    """The processes that hold a sharded model (`learners.pieces.Team`). They start with the first step. Every call
    raises RankError for what goes wrong in one of them, and then ends them all."""

    def __init__(self, recipe: Recipe, stages: Sequence[Components], ctx: Context) -> None:
        self.recipe, self.ctx, self.size = recipe, ctx, stages[0].distributed.learners
        self.processes = Processes(LEARNER, self.size, _DOING, _ANEW, ctx.poll_rollouts, self._let_go)
        self._module: Any = None
        self._let_go()

    def _let_go(self) -> None:
        self.ranges: list[dict[str, list[int]]] = []  # of each learner: parameter -> its first row there, how many
        self.owned: set[tuple[str, str, str]] = set()  # whose optimisers have begun there, with the state that is known
        self._known: dict[str, tuple[int, int]] = {}  # parameter -> (address, version) of what they have too
        self._stale = False

    # ---------------------------------------------------------------- what a learner asks of a team

    def takes(self, batch: Batch, params: Sequence[Tensor]) -> bool:
        """Return False: no loss is differentiated here, as `Far` sends the batch."""
        return False

    def spread(self, pieces: Pieces, place: tuple[str, str]) -> Work:
        raise NotImplementedError("the pieces of a loss whose model is in shards: expected a step of `Far`")

    def settle(self) -> None:
        """Copy the weights back here after the steps of an update."""
        if not self._stale:
            return
        params = dict(self._module.lm.named_parameters())
        for name, whole in self._gather([], "", params):
            with torch.no_grad():
                params[name].copy_(whole)
        self._known, self._stale = _mark(params), False

    def close(self) -> None:
        """See `Processes.close`."""
        self.processes.close()

    # ---------------------------------------------------------------- what `Far` asks

    def name_all(self, role: str, params: Sequence[nn.Parameter]) -> list[str]:
        """Return the names of a role's parameters. Raises RecipeError for a model that cannot be sharded."""
        model = self.ctx.models[role]
        _check_model(role, model, self.size)
        module: Any = model.module
        if module.why:
            raise _refuse(f"models.{role} cannot be in shards, as {module.why}: expected another model, {WHOLE}")
        names = {id(p): name for name, p in module.lm.named_parameters()}
        if {id(p) for p in params} != names.keys():
            raise _refuse(f"models.{role} has weights that are not trained: expected all of them to be, {WHOLE}")
        if self._module is not None and module is not self._module:
            raise _refuse(f"models.{role} starts anew in a later stage: expected one model for all stages, {WHOLE}")
        self._module = module
        return [names[id(p)] for p in params]

    def step(self, far: Far, loss: Any) -> Info:
        """Make one step of a part's optimiser on the loss of an optimiser batch."""
        self._begin(far)
        batch: Batch = loss.batch
        links = {name: (index, dict(columns)) for name, (index, columns) in batch.links.items()}
        now = pack_now(self.ctx)
        self.processes.ask_all("step", place=list(far.place), share=pack_share(batch), links=links,
                               terms=dict(loss.info_terms), **now)  # fmt: skip
        found, *_ = self.processes.answers()
        if "unfinished" in found:
            raise FloatingPointError(found["unfinished"])
        loss.info_terms.update(found["terms"])
        batch.stamps.update(found["stamps"])
        self._stale = True
        info: Info = found["info"]
        return info

    def collect(self, far: Far) -> dict[str, Any]:
        """Return the state of an optimiser, as it would be in one process."""
        if far.place not in self.owned:
            return {}
        place, params = list(far.place), dict(self._module.lm.named_parameters())
        self.processes.ask_all("counts", place=place)
        counts, *_ = self.processes.answers(still=True)
        of = dict(zip(self.ranges[0], counts, strict=True))
        tree: dict[str, Any] = {"steps": torch.tensor([of[name] for name in far.names])}
        for kind in self._ask_kinds(place):
            whole = dict(self._gather(place, kind, params))
            tree[kind] = {str(i): whole[name] for i, name in enumerate(far.names)}
        return tree

    def clear(self, far: Far) -> None:
        """Reset the state of an optimiser."""
        far.saved = None
        if far.place in self.owned:
            self.processes.ask_all("clear", place=list(far.place))

    # ---------------------------------------------------------------- how

    def _begin(self, far: Far) -> None:
        """Start the processes if needed, and send them the model, its changed weights, and the optimiser's state."""
        if not self.processes.others:
            self._start()
        params = dict(self._module.lm.named_parameters())
        if not self.ranges:
            self._send_model(far)
        place, now = list(far.place), _mark(params)
        moved = {name: p for name, p in params.items() if self._known.get(name) != now[name]}
        self._send([], "", moved)
        self._known = now
        if far.place in self.owned:
            return
        kinds = self._ask_kinds(place)
        if far.saved is not None:
            for kind in kinds:
                self._send(place, kind, {name: far.saved[kind][str(i)] for i, name in enumerate(far.names)})
            counts = dict(zip(far.names, far.saved["steps"].tolist(), strict=True))
            self.processes.ask_all("count", place=place, steps=[counts[name] for name in self.ranges[0]])
        far.saved = None
        self.owned.add(far.place)

    def _start(self) -> None:
        device = self._module.device
        gpu = None if device.type == "cpu" else device.index or 0
        setup = {"name": self.recipe.name, "tree": self.recipe.tree, "size": self.size, "gpu": gpu,
                 "threads": max(1, self.ctx.threads // self.size)}  # fmt: skip
        self.processes.start({number: {**setup, "rank": number - 1} for number in range(1, self.size + 1)})
        self.processes.answers()

    def _send_model(self, far: Far) -> None:
        model: Any = self.ctx.models[far.role]
        net, roles = self._module, [role for role, other in self.ctx.models.items() if other is model]
        self.processes.ask_all(
            "model", config=net.lm.config.to_json_string(use_diff=False), suppressed=net.suppressed.tolist(),
            pad=int(model.text.pad), roles=roles, place=list(far.place), dtype=str(net.lm.dtype).removeprefix("torch."),
            bfloat16=net.dtype is not None, recompute=net.recompute, limit=net.limit,
        )  # fmt: skip
        self.ranges = self.processes.answers()

    def _ask_kinds(self, place: list[str]) -> list[str]:
        self.processes.ask_all("own", place=place)
        kinds: list[str]
        kinds, *_ = self.processes.answers(still=True)
        return kinds

    def _send(self, place: list[str], kind: str, tensors: dict[str, Tensor]) -> None:
        """Send each learner its rows of tensors, one after the other; without a place, of the model."""
        for name, whole in tensors.items():
            for other, own in zip(self.processes.others, self.ranges, strict=True):
                first, rows = own[name]
                shard = whole.detach()[first : first + rows]
                self.processes.ask(other, "take", place=place, kind=kind, name=name, rows=shard)

    def _gather(self, place: list[str], kind: str, like: dict[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
        """Yield (parameter, whole tensor of a kind), one after the other; without a place, of the model. `like`:
        tensors of these shapes."""
        self.processes.ask_all("tell", place=place, kind=kind)
        for name in self.ranges[0]:
            whole = torch.empty_like(like[name], requires_grad=False)
            for other, own in zip(self.processes.others, self.ranges, strict=True):
                first, rows = own[name]
                whole[first : first + rows] = self.processes.answer(other, still=True)
            yield name, whole


def _mark(params: dict[str, Any]) -> dict[str, tuple[int, int]]:
    """Return marks that change if parameters are written to."""
    return {name: (p.data_ptr(), p._version) for name, p in params.items()}


_ANEW = (" it makes the components of the recipe anew, so what a script has defined or registered is not known there: "
         "put it in a module, or set distributed.learners = 1 and distributed.shard = false;")  # fmt: skip
_DOING = {"model": "making its shards of the model", "take": "taking its rows", "own": "binding an optimiser",
          "step": "making a step of an optimiser", "tell": "telling its rows"}  # fmt: skip
