"""The algorithm of a stage in words: a line for each section of the loop, in order.

The text about a component is the first sentence of its docstring; nothing here is written for a particular component.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from inspect import getdoc
from typing import Any, TypeAlias

from shuhari.config.overlay import USE, Path, look_up
from shuhari.config.stage import Components, walk_learners
from shuhari.desk.components import take_sentence
from shuhari.desk.plain import format_value
from shuhari.kernel import registry
from shuhari.learners.parts import Term
from shuhari.ports import is_vector
from shuhari.ports.hooks import ability

# place in a recipe -> its object, or several that share a table, the component first
Places: TypeAlias = Mapping[Path, tuple[Any, ...]]


@dataclass(frozen=True)
class Item:
    """A component: its name in the recipe, a `detail` about its settings, what its docstring `says`, and whether it is
    `changed`."""

    name: str
    detail: str
    says: str
    changed: bool


@dataclass(frozen=True)
class Line:
    """A section of the loop, and its components."""

    section: str
    items: Sequence[Item]

    @property
    def changed(self) -> bool:
        return any(item.changed for item in self.items)


def describe_loop(stage: Components, table: Mapping[str, Any], changed: Sequence[Path]) -> list[Line]:
    """Describe the loop of a stage in at most ten lines. `table`: the stage of the recipe; `changed`: paths that
    differ."""
    places = find_places(stage)

    def item(at: Path, detail: str = "") -> Item:
        thing = places[at][0]
        differs = any(path[: len(at)] == at for path in changed)
        return Item(_name(table, at, thing), detail, summarise(thing), differs)

    samples = any(learner.buffer.wanted() > 0 for learner in stage.learners.values())
    lines = {"task": [item(("task",))]}
    if samples:
        if not is_vector(stage.rollout) or ability(stage.rollout, "asks"):
            lines["curriculum"] = [item(("curriculum",))]
        group = "" if is_vector(stage.rollout) else f"{stage.n} to a problem"
        lines["rollout"] = [item(("rollout",), group)]
        lines["rewards"] = list(_describe_rewards(stage, places, item, changed))
        lines["collect"] = [item(("collect", name)) for name in stage.collect]
    learners = list(walk_learners(stage.learners))
    lines["buffer"] = [item((*at, "buffer"), _describe_size(learner.buffer)) for at, learner in learners]
    lines["transforms"] = [
        item((*at, "transform", name))
        for at, learner in learners
        for name in learner.transforms
    ]
    parts = [
        ((*at, "part", key), part)
        for at, x in learners
        for key, part in ability(x, "parts").items()
    ]
    lines["terms"] = [
        item((*at, "terms", name), f"reduce = {term.reduce}, weight {_format(term.weight)}")
        for at, part in parts
        for name, term in part.terms.items()
    ]  # fmt: skip
    lines["optimiser"] = [
        item((*at, "optimiser"), f"trains {', '.join(part.trains)}; {_count(part.minibatches * part.epochs)} a batch")
        for at, part in parts
    ]
    lines["followers"] = [item(("follow", role), role) for role in stage.follows]
    return [Line(section, items) for section, items in lines.items() if items]


def _describe_rewards(stage: Components, places: Places, item: Any, changed: Iterable[Path]) -> Iterator[Item]:
    for name in stage.rewards:
        yield item(("reward", name), _describe_weight(stage, name))
    differs = any(path[:1] == ("reward",) and path[1] not in stage.rewards for path in changed)
    for name in stage.weights:
        if name not in stage.rewards:
            yield Item(name, _describe_weight(stage, name), "The task's own measure." if name in OWN else "", differs)


OWN = ("score", "task")  # rewards that tasks give


def _describe_weight(stage: Components, name: str) -> str:
    return f"weight {_format(stage.weights[name])}" if name in stage.weights else "without weight"


def _format(weight: Any) -> str:
    return f"{weight:g}" if isinstance(weight, int | float) else format_value(weight)


def _count(steps: int) -> str:
    return f"{steps} step{'' if steps == 1 else 's'}"


def _describe_size(buffer: Any) -> str:
    size, unit = ability(buffer, "size"), ability(buffer, "unit")
    return "" if size is None else f"{size} {unit or 'row'}{'' if size == 1 else 's'}"


# ------------------------------------------------------------------------------------------------ places of components


def find_places(stage: Components) -> Places:
    """Return path -> components of a stage, by their places in the recipe."""
    out: dict[Path, tuple[Any, ...]] = {
        (name,): (getattr(stage, name),) for name in ("task", "engine", "curriculum", "rollout", "store", "evaluate")
    }
    out["rollout", "sampling"] = (stage.sampling,)
    out["evaluate", "rollout"] = (stage.evaluation_rollout,)
    for section, named in (("reward", stage.rewards), ("collect", stage.collect), ("follow", stage.follows)):
        out |= {(section, name): (thing,) for name, thing in named.items()}
    out |= {("models", name): (role.model, role) for name, role in stage.models.items()}
    for at, learner in walk_learners(stage.learners):
        out |= {(*at, "transform", name): (thing,) for name, thing in learner.transforms.items()}
        out |= {(*at, "buffer"): (learner.buffer,), at or ("learner", "main"): (learner,)}
        for key, part in ability(learner, "parts").items():
            out |= {(*at, "part", key): (part,), (*at, "part", key, "optimiser"): (part.optimiser,)}
            terms = {name: (t.objective, t) if isinstance(t, Term) else (t,) for name, t in part.terms.items()}
            out |= {(*at, "part", key, "terms", name): things for name, things in terms.items()}
    return out


def find_component(places: Places, at: Path) -> Any:
    """Return the component at a place, also in a field of another; None if there is none."""
    if at in places:
        thing = places[at][0]
        return thing if registry.known_as(type(thing)) or _is_users(thing) else None
    holder = find_holder(places, at)
    thing = getattr(holder, at[-1], None) if holder is not None else None
    return thing if is_dataclass(thing) else None


def find_holder(places: Places, at: Path) -> Any:
    """Return the object that has the setting at a path as a field; None if there is none."""
    for cut in range(len(at) - 1, 0, -1):
        if at[:cut] in places:
            for thing in places[at[:cut]]:
                for key in at[cut:-1]:
                    thing = thing.get(key) if isinstance(thing, Mapping) else getattr(thing, key, None)
                if is_dataclass(thing) and at[-1] in {f.name for f in fields(thing) if f.init}:
                    return thing
            return None
    return None


def _is_users(thing: Any) -> bool:
    return is_dataclass(thing) and not type(thing).__module__.startswith("shuhari.")


def summarise(thing: Any) -> str:
    """Return the first sentence of the docstring of a component's class; "" if it has none."""
    doc = getdoc(type(thing)) or "" if thing is not None else ""
    return "" if doc.startswith(f"{type(thing).__name__}(") else take_sentence(doc)


def _name(table: Mapping[str, Any], at: Path, thing: Any) -> str:
    """Return a component's name in a recipe."""
    said: Any = look_up(table, at) or {}
    if at == ("task",):
        return str(said.get("name"))
    known = registry.known_as(type(thing))
    name = str(said.get("use") or (known[0][1] if known else USE.get(at[-1], at[-1])))
    entry = at[-1] if at[-2:-1] and at[-2] in ("terms", "reward", "collect", "transform") else name
    return name if entry == name else f"{entry} = {name}"
