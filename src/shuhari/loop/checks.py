"""Checks of all stages before the first step: roles, columns, streams, reward names, group sizes.

A component of your own that declares nothing is not checked, and after one that does not declare what it writes any
column may exist (`declares`). Left out: what depends on data, such as the columns of a problem.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

from shuhari.config.build import build_stages
from shuhari.config.evaluation import Evaluation
from shuhari.config.overlay import RecipeError, format_path, split_path
from shuhari.config.recipe import Recipe
from shuhari.config.stage import walk_learners
from shuhari.data import EMPTY, nearest
from shuhari.kernel import registry
from shuhari.kernel.columns import DERIVED
from shuhari.kernel.pack import CORE
from shuhari.kernel.state import walk_placed
from shuhari.loop.answers import check_answers
from shuhari.loop.engines import check_engine
from shuhari.loop.evaluation import SPLITS, find_held_out
from shuhari.loop.roles import check_recorded, check_roles
from shuhari.loop.suits import check_levels, check_needs, check_plateaus, check_terms, describe_needs
from shuhari.ports import Learner, Reward, Task, ability
from shuhari.ports.declares import declares, is_among

if TYPE_CHECKING:
    from shuhari.config.stage import Components

Place = tuple[str, ...]
ALWAYS = frozenset(CORE) | frozenset(DERIVED) | {"reward", "context/*", "view/*"}
REPORTED = frozenset({"reward", "rollout", "evaluate", "spent"})  # what begins the names of a stage's own numbers
MISSED = {  # what is before the slash of a column -> how a name behind it is missed
    "reward": "no grader gives a reward {!r}",
    "weight": "no row is in the stream {!r} (the rows that a loss reads)",
    "links": "nothing makes links {!r}",
}
ANYTHING = ("*", *(f"{space}/*" for space in MISSED))  # what may be written by who does not say


def check_stages(stages: list[Components]) -> list[Components]:
    """Run all checks and return the stages. Raises RecipeError with the dotted key of the mistake and the nearest right
    name."""
    for stage in stages:
        check_needs(stage)
        check_plateaus(stage)
        check_levels(stage)
        check_terms(stage)
        check_engine(stage)
    check_roles(stages)
    check_recorded(stages)
    check_columns(stages)
    for stage in stages:
        check_samples(stage)
    check_room(stages)
    check_answers(stages)
    return stages


def make_stages(recipe: Recipe) -> list[Components]:
    """Build the stages of a recipe and check them. A RecipeError names the methods laid over the recipe, if it concerns
    a setting of one of them (or of none of them alone)."""
    try:
        return check_stages(build_stages(recipe.stages))
    except RecipeError as error:
        laid = recipe.tree.get("laid", EMPTY)
        if not laid or any(name in str(error) for name in laid):
            raise
        path = split_path(error.where) if error.where else ()
        within = [(p[2:] if p[:1] == ("stage",) != path[:1] else p, by) for p, by in recipe.sources.items()]
        by = dict.fromkeys(by for p, by in within if path and (p[: len(path)] == path or path[: len(p)] == p))
        told = {name: describe_needs(needs) for name, needs in laid.items()}
        blamed = [f"{n}, which needs {told[n]}" if told[n] else n for n in laid if f"with {n}" in by]
        who = "; ".join(blamed) if blamed else f"{' and '.join(laid)} laid over it"
        raise RecipeError(error.where, f"{error.problem} (with {who})") from error


def check_names(stages: Sequence[Components]) -> None:
    """Check, as a run begins, that no part of a sampling stage has the name of a group of numbers that such stages
    report."""
    for stage in stages:
        for place, learner in walk_learners(stage.learners):
            for name in set(_parts(learner)) & REPORTED if learner.buffer.wanted() > 0 else ():
                message = f"the stage {stage.name!r} reports {name}/… of its episodes: expected another name for a part"
                raise RecipeError(format_path((*place, "part", name)), message)


def check_columns(stages: Sequence[Components]) -> None:
    """Check that every column, stream, reward and link that a component reads exists where it reads it, in its stage.
    """
    for stage in stages:
        graded = graded_columns(stage.task, stage.rollout, stage.rewards)
        for _, learner in walk_learners(stage.learners):
            graded.add(learner.buffer, "reward")  # a data set brings its own
        check_weights(stage.weights, graded, stage.name)
        for name, reward in stage.rewards.items():
            graded.check(reward, ("reward", name), stage.name)
        graded.check(stage.rollout, ("rollout",), stage.name)
        if stage.evaluate is not None:
            _check_evaluation(stage, stage.evaluate)
        there = Columns(graded.known | ALWAYS, graded.tells)
        for place, learner in walk_learners(stage.learners):  # streams are known wherever they are named: a filter
            within = (component for _, component in _within(learner, place))  # may come before the buffer
            for x in (learner.buffer, *stage.collect.values(), *within):
                there.add(x, "weight")
        for component in (stage.curriculum, stage.rollout):
            there.add(component)
        there.known |= {*(declares(stage.task).stamps or ())}  # what its environments tell
        for name, transform in stage.collect.items():
            there.step(transform, ("collect", name), stage.name)
        there.check(stage.curriculum, ("curriculum",), stage.name)
        for place, learner in walk_learners(stage.learners):
            _check_learner(learner, place, Columns(there.known, there.tells), stage.name)


def check_samples(stage: Components) -> None:
    """Check that components that compare the samples of a group get enough samples."""
    rollout, plain = declares(stage.rollout), declares(stage.curriculum).stamps is not None
    if not (plain and rollout.least_n and rollout.stamps is not None):
        return  # who else may say how many there are
    compares: list[tuple[Place, Any]] = [(("rollout",), stage.rollout)]
    for place, learner in walk_learners(stage.learners):
        if learner.buffer.wanted() > 0:  # the others learn from what is recorded
            compares += [*((("collect", k), x) for k, x in stage.collect.items()), *_within(learner, place)]
    for place, component in compares:
        least = declares(component).least_n
        if least > stage.n:
            message = f"{format_path(place)} compares the samples of a group: expected {least} or more"
            raise RecipeError("rollout.n", f"{stage.n} in stage {stage.name!r}: {message}")


def check_room(stages: Sequence[Components]) -> None:
    """Check that a recipe's limit on the length of answers is shorter than the policy's context, so that it can be
    reached."""
    models: dict[str, Any] = {}
    for stage in stages:
        models |= {name: role.model for name, role in stage.models.items() if role.model is not None}
        sampled: dict[Place, Any] = {("rollout",): stage.sampling}
        if stage.evaluate is not None:
            ways: dict[Place, Any] = {("evaluate", "more", k): way.sampling for k, way in stage.evaluate.more.items()}
            sampled |= {("evaluate",): stage.evaluate.sampling, **ways}
        limit = ability(models.get("policy"), "limit")
        for place, sampling in sampled.items():
            at = format_path((*place, "sampling", "max_new"))
            if limit and sampling is not None and sampling.max_new >= limit and at not in stage.defaults:
                message = f"expected fewer tokens than the policy reads, {limit} (models.policy.context)"
                raise RecipeError(at, f"{sampling.max_new} in stage {stage.name!r}: {message}")


class Columns:
    """The columns `known` at a place: `reward/*` stands for any of a space (`reward`, `weight`, `links`), `*` for any
    outside of spaces. `tells`: whether the task's environments may report further rewards (its setting `tells`)."""

    def __init__(self, known: Iterable[str], tells: bool = False) -> None:
        self.known, self.tells = set(known), tells

    def add(self, component: Any, space: str = "") -> None:
        """Add what a component may have written to a space ("": anywhere)."""
        stamps, begins = declares(component).stamps, f"{space}/" if space else ""
        self.known |= {name for name in (ANYTHING if stamps is None else stamps) if name.startswith(begins)}

    def check(self, component: Any, place: Place, stage: str) -> None:
        """Check what a component, and components in its fields, read. Raises RecipeError with the setting that names
        what is missing."""
        for at, part in walk_placed(component, place):
            own = declares(part)
            for f in fields(part) if is_dataclass(part) else ():
                value, usual = getattr(part, f.name), f.default
                if f"{usual}".startswith("reward/") and not f"{value}/".startswith("reward/"):
                    message = f"{value!r} in stage {stage!r}: expected a column of rewards, such as {usual!r}"
                    raise RecipeError(format_path((*at, f.name)), message)
            links = (f"links/{own.links}",) if own.links and own.couples == "batch" else ()
            for name in (*own.reads, *links):
                if not self.has(name):
                    setting = _setting(part, name)
                    whole = bool(setting) and getattr(part, setting[0]) == name
                    raise self.missing(name, (*at, *setting), stage, whole)

    def step(self, component: Any, place: Place, stage: str) -> None:
        """Check a component, then add what it scores and writes."""
        self.check(component, place, stage)
        self.known |= {need.key for need in declares(component).needs}
        self.add(component)

    def has(self, name: str) -> bool:
        """Whether a column may exist."""
        return name in self.known or is_among(name, self.known)

    def missing(self, name: str, place: Place, stage: str, whole: bool = False) -> RecipeError:
        """Return the error for a missing column; `whole`: the setting has its whole name, including the part before the
        slash."""
        known = {n for n in self.known if not n.endswith("*")}
        space, _, rest = name.partition("/")
        names = set[str]()
        if rest and space in MISSED:
            names = {n.removeprefix(f"{space}/") for n in known if n.startswith(f"{space}/")}
            message, near = MISSED[space].format(rest), nearest(rest, names)
        else:
            message, near = f"nothing before it writes a column {name!r}", nearest(name, known)
            near = near if near.startswith("did you") else _name_writers(name) or near
        own = f"; a component of your own that writes it says so: stamps = ({name!r},)"
        if space == "reward" and self.tells:
            own = f"; where the environment's `info` has it: task.tells.{rest}=reward"
        elif space == "reward" and names:
            other = f"{format_path(place)}={'reward/' if whole else ''}{min(names)}"
            if place[-3:-1] == ("reward", "weights"):
                other = f"--remove {format_path(place)} --set reward.weights.{min(names)}=1"
            own = f"; to go by what is graded here: {other}"
        rest = "" if near.startswith(("did you", "the transform")) else own
        return RecipeError(format_path(place), f"{message} in stage {stage!r}; {near}{rest}")


def _name_writers(name: str) -> str:
    """Name the registered transforms that write a column by default, or the column nearest to its name; "" if none do.
    """
    written = _list_written()
    near = nearest(name, written)
    column = name if name in written else near.split("'")[1] if near.startswith("did you") else ""
    if not column:
        return ""
    *more, last = written[column][:3]
    who = f"the transforms {', '.join(more)} and {last} write" if more else f"the transform {last} writes"
    return f"{who} it" if name == column else f"{near} (which nothing before it writes either: {who} it)"


def _list_written() -> dict[str, list[str]]:
    """Return columns -> the registered transforms that write them by default: first the one of that name, then the
    library's, then the methods'."""

    def rank(name: str) -> tuple[bool, str]:
        return not registry.find("transform", name).__module__.startswith("shuhari.transforms."), name

    written: dict[str, list[str]] = {}
    for name in sorted(registry.names("transform"), key=rank):
        try:
            stamps = declares(registry.find("transform", name)(**registry.preset("transform", name))).stamps or ()
        except (TypeError, ValueError):  # it has settings without a default
            continue
        for column in stamps:
            if "*" not in column:
                written.setdefault(column, []).append(repr(name))
    return {column: sorted(names, key=lambda one: one != repr(column)) for column, names in written.items()}


def graded_columns(task: Task, rollout: Any, rewards: Mapping[str, Reward]) -> Columns:
    """Return the `reward/<name>` columns of all graders, and of rewards paid during an episode."""
    graded = Columns((), is_dataclass(task) and any(f.name == "tells" for f in fields(task)))
    for grader in (task, rollout, *rewards.values()):
        graded.add(grader, "reward")
    return graded


def check_weights(weights: Iterable[str], graded: Columns, stage: str) -> None:
    """Raise RecipeError for a weight of a reward that nothing grades."""
    for name in weights:
        if not graded.has(f"reward/{name}"):
            raise graded.missing(f"reward/{name}", ("reward", "weights", name), stage)


def _check_evaluation(stage: Components, evaluation: Evaluation) -> None:
    if evaluation.n and evaluation.split not in SPLITS:  # whether there are problems in one is dearer to know
        find_held_out(evaluation.task or stage.task, evaluation)
    further = [(("more", name, "rollout"), way.rollout) for name, way in evaluation.more.items() if way.rollout]
    plays: list[tuple[Place, Any]] = [(("rollout",), stage.evaluation_rollout), *further]
    for place, rollout in plays:
        tested = graded_columns(evaluation.task or stage.task, rollout, stage.rewards)
        tested.check(rollout, ("evaluate", *place), stage.name)
        if evaluation.measure not in ("", "reward") and not tested.has(name := f"reward/{evaluation.measure}"):
            raise tested.missing(name, ("evaluate", "measure"), stage.name)


def _within(learner: Learner, place: Place) -> Iterator[tuple[Place, Any]]:
    """Yield (place, component) of a learner's transforms and objectives, in order."""
    for key, transform in learner.transforms.items():
        yield (*place, "transform", key), transform
    for key, part in _parts(learner).items():
        for t, term in part.terms.items():
            yield (*place, "part", key, "terms", t), term.objective


def _check_learner(learner: Learner, place: Place, there: Columns, stage: str) -> None:
    there.step(learner.buffer, (*place, "buffer"), stage)
    for key, part in _parts(learner).items():
        for t, term in part.terms.items():
            if not there.has(f"weight/{term.stream}"):
                raise there.missing(f"weight/{term.stream}", (*place, "part", key, "terms", t, "stream"), stage)
    there.known |= {need.key for need in declares(learner).needs}
    for at, component in _within(learner, place):
        there.step(component, at, stage)
    for at, buffer in walk_placed(learner.buffer, (*place, "buffer")):
        for name in declares(buffer).hears:
            if not there.has(name):
                raise there.missing(name, (*at, *_setting(buffer, name)), stage)


def _parts(learner: Any) -> Mapping[str, Any]:
    """Return the parts of a gradient learner; a learner of your own may have none."""
    found: Mapping[str, Any] = ability(learner, "parts")
    return found


def _setting(component: Any, name: str) -> Place:
    """Return the field whose value names a column, if there is one."""
    values = [part for part in (name, name.partition("/")[2]) if part]
    names = [f.name for f in fields(component)] if is_dataclass(component) else []
    return next(((n,) for n in names if getattr(component, n) in values), ())
