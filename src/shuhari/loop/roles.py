"""Casting: which model plays which role, when it is created, and with what weights.

A role exists from the first stage that lists it, and keeps its model through later ones. But `same_as` applies to one
stage: a later stage that lists the role may point it at another role, or end the sharing, and with `init` or a model of
its own the role then starts anew, as if listed for the first time.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import torch

from shuhari.config.overlay import RecipeError, format_path
from shuhari.config.stage import Components, Role, walk_learners
from shuhari.data import EMPTY, code, nearest
from shuhari.events import Event, event_kinds
from shuhari.kernel.abilities import find_missing
from shuhari.kernel.profile import spanned
from shuhari.kernel.state import walk, walk_placed
from shuhari.loop.based import Start, find_start, put_back, read_whole
from shuhari.needs import Need, bind_models, distinct
from shuhari.ports import Follow, Model, Task, ability
from shuhari.ports.declares import declares
from shuhari.store import Run as Stored
from shuhari.store import find_checkpoint


@spanned("build")
def cast_roles(
    roles: Mapping[str, Role],
    models: dict[str, Model],
    task: Task,
    seed: int,
    init: Mapping[str, Any],
    shared: set[str] | None = None,
    *,
    sources: bool = True,
    starts: dict[str, Start | None] | None = None,
) -> None:
    """Create the roles of a stage that do not exist yet, each after the ones that it names, and give models of models
    the roles that they are made of. `init`: role -> state dict to start from; `shared`: the roles that currently play
    by `same_as`, kept from stage to stage; `sources`: whether to read the weights that `from` names, which may be gone
    by now if a checkpoint's weights follow; `starts`: filled with what each was loaded from. Raises KeyError if a role
    names another that does not exist, ValueError if roles name each other in a circle."""
    shared = set() if shared is None else shared
    for name in sort_roles(roles):
        role = roles[name]
        other = role.same_as or role.init
        if other and other not in models:
            raise KeyError(f"[models.{name}] names the role {other!r}, which nobody plays; {nearest(other, models)}")
        if role.same_as:
            models[name] = models[role.same_as]
            shared.add(name)
        elif name not in models or name in shared:
            shared.discard(name)
            models[name] = _make_model(name, role, models, task, seed, sources, starts)
            if name in init:
                take_weights(models[name], init[name], f"the weights given for role {name!r}")
            if role.frozen:
                models[name].module.requires_grad_(False)
    bind_models(models)


def sort_roles(roles: Mapping[str, Role]) -> list[str]:
    """Return the names of the roles, each after the ones that it names; otherwise in their order. Raises ValueError for
    a circle."""
    done: dict[str, None] = {}

    def visit(name: str, way: tuple[str, ...]) -> None:
        if name in way:
            raise ValueError(f"roles name each other in a circle: {' -> '.join((*way[way.index(name) :], name))}")
        if name not in done:
            for other in roles[name].asks:
                if other in roles:
                    visit(other, (*way, name))
            done[name] = None

    for name in roles:
        visit(name, ())
    return list(done)


def _make_model(
    name: str, role: Role, models: Mapping[str, Model], task: Task, seed: int, sources: bool,
    starts: dict[str, Start | None] | None,
) -> Model:  # fmt: skip
    if role.model is None:
        if starts is not None:
            starts[name] = starts.get(role.init)
        return copy.deepcopy(models[role.init])
    model: Model = role.model
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(code(seed, "model", name))
        model.build(task)
    if starts is not None:
        starts[name] = find_start(model)
    if role.init:
        take_weights(model, models[role.init].module.state_dict(), f"the weights of {role.init!r} for role {name!r}")
    if role.source and sources:
        start = _weights_from(role.source, name, models)
        take_weights(model, start, f"the weights of {role.source!r} for role {name!r}")
    return model


def _weights_from(source: str, name: str, models: Mapping[str, Model]) -> Mapping[str, Any]:
    """Return the weights of an existing role, or of a role of a stored run."""
    if source in models:
        return models[source].module.state_dict()
    run, _, role = source.partition(":")
    saved = load_initial(run)
    if (role or name) not in saved:
        near = nearest(role or name, saved)
        form = "'RUN:role' or 'RUN@step:role'"
        raise KeyError(f"[models.{name}] from = {source!r}: no role {role or name!r} there ({form}); {near}")
    found: Mapping[str, Any] = saved[role or name]
    return found


def take_weights(model: Model, weights: Mapping[str, Any], what: str) -> None:
    """Load weights by name; a head (`value`, `head`) that one side lacks stays as it is. Raises ValueError if a shape
    differs, or the rest is not the same: half of another architecture's weights is no start."""
    own = model.module.state_dict()
    weights = ability(model, "renamed")(weights)  # under adapters
    if (
        any(".lora_" in k for k in weights)
        and not any(".lora_" in k for k in own)
    ):
        raise ValueError(f"{what} have adapters, and the model here has none: give it the same `lora`, or as `path` "
                         "what `shuhari export` writes, where they are merged")  # fmt: skip
    shapes = [k for k in weights if k in own and own[k].shape != weights[k].shape]
    if shapes:
        k = shapes[0]
        raise ValueError(f"{what} do not fit: {k} is {tuple(weights[k].shape)} there, {tuple(own[k].shape)} here")
    apart = [k for k in own.keys() ^ weights.keys() if k.partition(".")[0] not in ("value", "head")]
    if apart:
        where = "here alone" if min(apart) in own else "there alone"
        raise ValueError(f"{what} do not fit: {len(apart)} of them differ, such as {min(apart)} ({where})")
    model.module.load_state_dict({k: v for k, v in weights.items() if k in own}, strict=False)


def weights(models: Mapping[str, Model]) -> dict[str, dict[str, torch.Tensor]]:
    """Return role -> state dict, each model once, under its first role."""
    seen: set[int] = set()
    out = {}
    for role, model in models.items():
        if id(model) not in seen:
            seen.add(id(model))
            out[role] = dict(model.module.state_dict())
    return out


def load_initial(of: str) -> dict[str, Any]:
    """Return role -> weights of `RUN`, `RUN@step` or `RUN@best`, to start another run from; empty for ""."""
    if not of:
        return {}
    path, step = find_checkpoint(of)
    return read_whole(Stored(path).load(step), path)


def load_weights(
    models: Mapping[str, Model], saved: Mapping[str, Mapping[str, torch.Tensor]], based: Mapping[str, Any] = EMPTY
) -> None:
    """Load the result of `weights`, exactly. `based`: what a checkpoint stores by reference, looked up among the
    weights of models that were just created, or at its path; raises StoreError if it has changed."""
    for role, tree in saved.items():
        if role not in models:
            raise KeyError(f"the checkpoint has weights for role {role!r}; {nearest(role, models)}")
        module = models[role].module
        whole = put_back(role, tree, based[role], module.state_dict()) if role in based else tree
        module.load_state_dict(dict(whole))


# ---------------------------------------------------------------- before step 0


def listens_to(follows: Mapping[str, Follow], kind: type) -> bool:
    """Whether a follower acts on this kind of event."""
    return any(kind in event_kinds(follow.on) for follow in follows.values())


def move_followers(follows: Mapping[str, Follow], models: Mapping[str, Model], event: Event) -> None:
    """Have every follower whose `on` names this kind of event move its role."""
    for follow in follows.values():
        if isinstance(event, event_kinds(follow.on)):
            follow(models, event)


def check_roles(stages: Sequence[Components]) -> None:
    """Check that every role that acts, that a part trains, that a follower moves, or that a transform or an objective
    uses (`needs`, `roles`) exists in its stage, and that no two needs share a column. Raises RecipeError with the place
    and the nearest role."""
    alive: set[str] = set()
    for stage in stages:
        alive |= stage.models.keys()
        for name, role in stage.models.items():
            for other in role.asks:
                if other not in alive:
                    raise _missing(("models", name), other, stage, alive - {name})
        try:
            sort_roles(stage.models)
        except ValueError as error:
            raise RecipeError("models", str(error)) from None
        needs: list[Need] = []
        for place, roles, wanted in walk_asked(stage):
            for asked in (
                *roles,
                *(
                    r
                    for n in wanted
                    for r in n.roles
                ),
            ):
                if asked not in alive:
                    raise _missing(place, asked, stage, alive)
            needs += wanted
            try:
                distinct(needs)
            except ValueError as error:
                raise RecipeError(format_path(place), str(error)) from None
    _check_used(stages)


def check_recorded(stages: Sequence[Components]) -> None:
    """Raise RecipeError if the `role` of a buffer of a controller's decisions has a model that makes none: the actions
    of environments would be taken for its decisions."""
    models: dict[str, Any] = {}
    for stage in stages:
        for name in sort_roles(stage.models):
            role = stage.models[name]
            models[name] = models.get(role.same_as or role.init) if role.model is None else role.model
        decide = [name for name, model in models.items() if not find_missing(model, "sample")]
        for at, learner in walk_learners(stage.learners if stage.task.spaces() is not None else EMPTY):
            for place, buffer in walk_placed(learner.buffer, (*at, "buffer")):
                name = vars(buffer).get("role", "")
                if name not in decide and models.get(name) is not None:
                    message = f"role {name!r} makes no decisions in stage {stage.name!r}; {nearest(name, decide)}"
                    raise RecipeError(format_path((*place, "role")), message)


def _check_used(stages: Sequence[Components]) -> None:
    """Raise RecipeError for a role that nothing in any stage uses or has among its settings, and whose name resembles
    one that is used: a misspelt name. Other unused roles may be called by a component that does not declare them."""
    asked: set[str] = set()
    for stage in stages:
        for _, roles, needs in walk_asked(stage):
            asked |= {
                *roles,
                *(
                    r
                    for need in needs
                    for r in need.roles
                ),
            }
        places = [part for _, part in walk({**stage.list_memories(), "more": stage.evaluate})]
        asked |= {
            r
            for part in places
            for r in declares(part).roles
        }
        asked |= {
            text
            for part in places
            for text in _texts(part)
        } & stage.models.keys()
    cast = [
        (stage.name, name, role)
        for stage in stages
        for name, role in stage.models.items()
    ]
    while (
        further := {
            r
            for _, name, role in cast
            if name in asked
            for r in (*role.asks, role.source)
            if r
        }
        - asked
    ):
        asked |= further
    for where, name, _ in cast:
        if name not in asked and (near := nearest(name, asked)).startswith("did you"):
            message = f"nothing asks role {name!r} in stage {where!r}; {near}"
            own = f"; leave it out (remove = ['models.{name}']), or let what calls it say so: roles = ({name!r},)"
            raise RecipeError(format_path(("models", name)), message + own)


def _texts(value: Any) -> Iterator[str]:
    """Yield the texts among the settings of a component."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from (*_texts(key), *_texts(item))
    elif isinstance(value, list | tuple | set | frozenset):
        for item in value:
            yield from _texts(item)
    elif is_dataclass(value):
        for f in fields(value):
            if f.init:
                yield from _texts(getattr(value, f.name, None))


def _missing(place: tuple[str, ...], role: str, stage: Components, alive: Iterable[str]) -> RecipeError:
    message = f"role {role!r} is not among the models of stage {stage.name!r}; {nearest(role, alive)}"
    return RecipeError(format_path(place), message)


def walk_asked(stage: Components) -> Iterator[tuple[tuple[str, ...], Sequence[str], Sequence[Need]]]:
    """Yield (place in the recipe, roles named there, needs) of every component that uses models."""
    tested = stage.evaluate
    ways: Mapping[str, Any] = tested.more if tested else EMPTY
    if any(learner.buffer.wanted() > 0 for learner in stage.learners.values()):
        yield from _walk_actors(stage.rollout, ("rollout",))
    plays = tested is not None and (tested.n or tested.watch or any(way.rollout is None for way in ways.values()))
    if plays and stage.evaluation_rollout is not stage.rollout:
        yield from _walk_actors(stage.evaluation_rollout, ("evaluate", "rollout"))
    for name, way in ways.items():
        if way.rollout is not None:
            yield from _walk_actors(way.rollout, ("evaluate", "more", name, "rollout"))
    for name, transform in stage.collect.items():
        yield ("collect", name), declares(transform).roles, declares(transform).needs
    for name, follow in stage.follows.items():
        yield ("follow", name), declares(follow).roles, ()
    for name, metric in (tested.metrics if tested else EMPTY).items():
        yield ("evaluate", "metrics", name), declares(metric).roles, declares(metric).needs
    for at, learner in walk_learners(stage.learners):
        for key, transform in learner.transforms.items():
            yield (*at, "transform", key), declares(transform).roles, declares(transform).needs
        parts = ability(learner, "parts")
        for key, part in parts.items():
            yield (*at, "part", key, "trains"), part.trains, ()
            for t, term in part.terms.items():
                place = (*at, "part", key, "terms", t)
                yield place, declares(term.objective).roles, declares(term.objective).needs
        if not parts:
            yield at or ("learner", "main"), declares(learner).roles, declares(learner).needs


def _walk_actors(
    rollout: Any, place: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], Sequence[str], Sequence[Need]]]:
    """Yield the roles that act in a rollout, and in rollouts that it is made of."""
    for at, part in walk_placed(rollout, place):
        for role in declares(part).roles:
            yield (*at, "role" if role == ability(part, "role") else "acts"), (role,), ()
