"""From a stage's table to its components: tasks, models by role, and everything that learns.

This module names the sections of a recipe and the default of a missing section; `settings` makes each component.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from shuhari.bounds import Group, hints, wrong
from shuhari.buffers.references import find_reference
from shuhari.config.distributed import Distributed
from shuhari.config.evaluation import Evaluation
from shuhari.config.imitation import describe_imitation
from shuhari.config.overlay import PLACE, USE, RecipeError, format_path, order_entries, read_budgets
from shuhari.config.precision import correct_losses
from shuhari.config.settings import Settings
from shuhari.config.stage import MICRO_BATCH, Checkpointing, Components, Role
from shuhari.config.stopping import read_stop
from shuhari.config.values import join_key, read_plain
from shuhari.data import EMPTY, Number, Sampling, nearest
from shuhari.kernel.registry import declared
from shuhari.kernel.state import walk_placed
from shuhari.ports import Learner, Reward, Task, Transform, ability, is_vector
from shuhari.rewards.weights import default_weights, grades_nothing

ROLE = ("init", "same_as", "from", "frozen")  # keys of [models.<role>] that are no setting of the model
LONGEST = ("collect", "transform", "part", "learner")  # where "max_new" may stand for a number
LEARNER = {"buffer": "buffer", "part": "parts", "transform": "transforms"}  # section -> field


def make_component(kind: str, table: Mapping[str, Any], where: str = "", default: str | None = None) -> Any:
    """Make one component from a table, as a recipe would. Raises RecipeError."""
    return Settings().make_component(kind, table, where or kind, default)


def build_stages(tables: Iterable[Mapping[str, Any]]) -> list[Components]:
    """Build the stages of a run (`Recipe.stages`); sections with equal settings become one shared object."""
    shared: dict[str, Any] = {}
    return [build_stage(table, shared) for table in tables]


def build_stage(table: Mapping[str, Any] | Components, shared: dict[str, Any] | None = None) -> Components:
    """Build the components of one stage (an entry of `Recipe.stages`); `Components` made by hand are returned as they
    are. Pass the same `shared` dict for every stage of a run: sections with equal settings become one object. Raises
    RecipeError with the dotted key of the mistake."""
    if isinstance(table, Components):
        return table
    spend, name = read_budgets(table), str(table.get("name", "main"))
    made, task = _make_task(table, shared, in_steps="steps" in spend or not spend)
    rollout, n, sampling = _make_rollout(made, table.get("rollout", EMPTY))
    vector = is_vector(rollout)
    table = {**table, **{k: _replace_max_new(table[k], sampling.max_new) for k in LONGEST if k in table}}
    if vector and table.get("curriculum") and not ability(rollout, "asks"):
        message = "lanes of environments ask for no problems: leave it out, set rollout.asks = true, so they begin "
        message += "where it says, or play episodes (rollout.use = 'episode')"
        raise RecipeError("curriculum", message)
    engine = _make_section(made, "engine", table)
    stale: int = ability(engine, "staleness")
    if vector and stale:
        message = "lanes of environments are learnt from as they are stepped: leave it at 0, or play whole episodes"
        raise RecipeError("engine.staleness", f"{stale}: {message}")
    graders = table.get("reward", EMPTY)
    rewards = {
        k: made.make_component("reward", v, join_key("reward", k), k, {"name": k})
        for k, v in graders.items()
        if k not in ("weights", "beside")
    }
    evaluate, evaluation_rollout = _make_evaluation(made, table, rollout, vector, task)
    weights = _read_weights(made, graders, task, rewards)
    if "weights" not in graders:
        made.defaults["reward.weights"] = weights
    cut = table.get("micro_batch", MICRO_BATCH) or None
    if "micro_batch" not in table:
        made.defaults["micro_batch"] = MICRO_BATCH
    table, corrected = correct_losses(table)
    learners = _make_learners(made, table, cut, vector)
    if evaluate is not None and not evaluate.reference:
        evaluate.reference = _find_reference(learners)
    made.defaults |= corrected
    collect = {
        k: made.make_component("transform", v, join_key("collect", k), k)
        for k, v in order_transforms(table, "collect").items()
    }
    if spend.get("steps") == 0:
        _check_measuring(name, learners, evaluate)
    if grades_nothing(task, rewards):
        _check_graded(name, learners, collect)
    _check_answered(name, task, rewards, weights, learners, collect)
    return Components(
        name=name,
        imitates=describe_imitation(name, learners, task, alone=name == "main"),
        budget={unit: float(amount) for unit, amount in spend.items()},
        laid=table.get("laid", EMPTY),
        task=task,
        models=_make_roles(made, table.get("models", EMPTY), name),
        engine=engine,
        curriculum=_make_section(made, "curriculum", table),
        rollout=rollout,
        learners=learners,
        n=n,
        sampling=sampling,
        tokens=cut,
        rewards=rewards,
        weights=weights,
        collect=collect if learners else {},
        follows={
            role: made.make_component("follow", v, join_key("follow", role), "ema", {"role": role})
            for role, v in table.get("follow", EMPTY).items()
        },
        evaluate=evaluate,
        evaluation_rollout=evaluation_rollout,
        stop=read_stop(table.get("stop_when", ""), table.get("evaluate", EMPTY)),
        store=made.make(Checkpointing, table.get("store", EMPTY), "store", "[store]"),
        distributed=made.make(Distributed, table.get("distributed", EMPTY), "distributed", "[distributed]"),
        defaults=made.defaults,
    )


def build_models(tables: Iterable[Mapping[str, Any]]) -> list[tuple[Task, dict[str, Role]]]:
    """Build (task, models by role) of each stage, and nothing else of a recipe: no grader is loaded, no tool, no
    learner."""
    shared: dict[str, Any] = {}
    found = []
    for table in tables:
        made, task = _make_task(table, shared)
        found.append((task, _make_roles(made, table.get("models", EMPTY), str(table.get("name", "main")))))
    return found


def _make_task(
    table: Mapping[str, Any], shared: dict[str, Any] | None, in_steps: bool = True
) -> tuple[Settings, Task]:
    """Return (the maker of a stage's components, its task)."""
    seed = {"seed": int(table.get("seed", 0))}  # tasks and curricula draw from the run's seed unless they set their own
    made = Settings(shared, {"task": seed, "curriculum": seed}, in_steps=in_steps, whole=True)
    if "task" not in table:
        raise RecipeError("task", "missing: a recipe needs [task] with a name, or extends = \"baselines/grpo\"")
    return made, made.make_task(table["task"])


def _check_graded(stage: str, learners: Mapping[str, Learner], collect: Mapping[str, Transform]) -> None:
    """Raise RecipeError if rollouts of a task that grades nothing go through transforms, which read rewards; learning
    without transforms (distillation) needs no grades."""
    if _reads_rewards(learners, collect):
        message = "name a grader ([reward.<name>] use = 'rewards.py:function'), give the task answers, or learn from"
        raise RecipeError(f"stage {stage!r}", f"the task grades nothing: {message} the data (buffer.use = 'demos' or "
                          "'preferences')")  # fmt: skip


def _check_answered(
    stage: str,
    task: Task,
    rewards: Mapping[str, Reward],
    weights: Mapping[str, Number],
    learners: Mapping[str, Learner],
    collect: Mapping[str, Transform],
) -> None:
    """Raise RecipeError if a weighted reward compares with the answers of a task that has none: then no sample would be
    graded, which a run would find only after several rounds of collection."""
    blind = [k for k, r in rewards.items() if ability(r, "wants_answer") and weights.get(ability(r, "name") or k)]
    if blind and ability(task, "ungraded") and _reads_rewards(learners, collect):
        helps = ability(task, "unanswered") or "give its problems answers"
        own = f"a grader of your own ([reward.<name>] use = 'rewards.py:function') with --remove reward.{blind[0]}"
        own += ", and --remove reward.weights if that names it"
        message = "compares with the `answer` of a problem, and no problem has one"
        raise RecipeError(f"stage {stage!r}", f"the reward {blind[0]!r} {message}: {helps}; or {own}")


def _reads_rewards(learners: Mapping[str, Learner], collect: Mapping[str, Transform]) -> bool:
    """Whether rollouts are collected, and go through transforms, which read rewards."""
    return any(x.buffer.wanted() > 0 and {**collect, **x.transforms} for x in learners.values())


def _check_measuring(stage: str, learners: Mapping[str, Learner], evaluation: Evaluation | None) -> None:
    """Raise RecipeError if a stage of 0 steps, which only measures, has a learner, or nothing to measure."""
    if learners:
        message = "expected 1 or more; or nothing that learns (--remove part), and the stage only measures"
        raise RecipeError("steps", f"0 in stage {stage!r}, which has parts that learn: {message}")
    if evaluation is None or not (evaluation.n or evaluation.more or evaluation.metrics):
        message = "give [evaluate] with n above 0, ways to play (evaluate.more) or numbers (evaluate.metrics)"
        raise RecipeError("evaluate", f"stage {stage!r} of 0 steps only measures, and nothing is measured: {message}")


def order_transforms(table: Mapping[str, Any], section: str) -> dict[str, Mapping[str, Any]]:
    """Return the entries of `collect` or `transform` in their order; `before = "name"` moves one before another."""
    entries = table.get(section, EMPTY)
    places = {name: entry[PLACE] for name, entry in entries.items() if entry.get(PLACE) is not None}
    ordered = order_entries(entries, places, section)
    return {
        name: {k: v for k, v in entry.items() if k != PLACE}
        for name, entry in ordered.items()
    }


# ------------------------------------------------------------------------------------------------ sections


def _make_section(made: Settings, kind: str, table: Mapping[str, Any]) -> Any:
    return made.make_component(kind, table.get(kind, EMPTY), kind, USE[kind])


def _make_roles(made: Settings, table: Mapping[str, Any], stage: str) -> dict[str, Role]:
    roles: dict[str, Role] = {}
    for name, entry in table.items():
        where, own = join_key("models", name), {k: v for k, v in entry.items() if k not in ROLE}
        keys = ("init", "same_as", "from")
        init, same_as, source = (read_plain([str], entry.get(k, ""), f"{where}.{k}") for k in keys)
        frozen = read_plain([bool], entry.get("frozen", bool(source)), f"{where}.frozen")
        if (Path(source) / "config.json").is_file() and source:  # a Hugging Face directory
            own, source = {**own, "path": source}, ""
        if source and not own:
            raise RecipeError(f"{where}.from", f"{source!r}: name the model that gets these weights, use = ..")
        if source and init:
            raise RecipeError(f"{where}.from", f"{source!r}: init = {init!r} gives the weights already: expected one "
                              "of them")  # fmt: skip
        if same_as and (own or init or frozen):
            key = next(iter(own), "init" if init else "frozen")
            raise RecipeError(f"{where}.{key}", f"with same_as = {same_as!r} the role can have no other setting: "
                              "leave it out")  # fmt: skip
        if not own and not same_as and not init:
            raise RecipeError(where, 'expected use = .., init = "<role>" (a copy) or same_as = "<role>"')
        if own and "use" not in own and (near := nearest(name, {*table} - {name})).startswith("did you mean"):
            raise RecipeError(where, f"it has no 'use', which a new role needs; {near}")
        model = made.make_component("model", own, where) if own else None
        if same_as:  # which holds for its stage only: the role starts anew after it
            made.shared.pop(f"role {name}", None)
        else:
            born = made.shared.setdefault(f"role {name}", (stage, model))
            if model is not None and born[1] is not model:
                message = f"models live on: stage {stage!r} cannot change the model of stage {born[0]!r}"
                raise RecipeError(where, message)
        roles[name] = Role(model, init, same_as, source, frozen)
    return roles


def _replace_max_new(value: Any, max_new: int) -> Any:
    """Replace "max_new" in settings by the longest answer that sampling allows, and "constant:max_new" accordingly."""
    if isinstance(value, Mapping):
        return {k: _replace_max_new(v, max_new) for k, v in value.items()}
    known = {"max_new": max_new, "constant:max_new": f"constant:{max_new}"}
    return known.get(value, value) if isinstance(value, str) else value


def _make_rollout(made: Settings, table: Mapping[str, Any]) -> tuple[Any, int, Sampling]:
    n = made.check(Group, table.get("n", 1), "rollout.n")
    sampling = made.make(Sampling, table.get("sampling", EMPTY), "rollout.sampling", "sampling")
    rest = {k: v for k, v in table.items() if k not in ("n", "sampling")}
    rollout = made.make_component("rollout", rest, "rollout", USE["rollout"])
    for place, part in walk_placed(rollout, ("rollout",)):
        if part is not rollout and is_vector(part):
            raise RecipeError(format_path(place), "lanes of environments: expected a rollout of groups of samples")
    return rollout, n, sampling


def _read_weights(
    made: Settings, graders: Mapping[str, Any], task: Any, rewards: Mapping[str, Reward]
) -> dict[str, Number]:
    """Return [reward.weights], or the default weights; and, for graders that exist, the weights of [reward.beside],
    which replace none of the others."""
    given = {key: graders.get(key) for key in ("weights", "beside")}
    for key, table in given.items():
        if key in graders and (not isinstance(table, Mapping) or not table):
            raise RecipeError(f"reward.{key}", f"{table!r}: expected a table of reward names and their weights")
    read = {
        key: {k: made.check(Number, v, f"reward.{format_path((key, k))}") for k, v in (table or EMPTY).items()}
        for key, table in given.items()
    }
    more = {k: v for k, v in read["beside"].items() if k in rewards}
    found: dict[str, Number] = {}
    if given["weights"] is None:
        found |= default_weights(task, {k: v for k, v in rewards.items() if k not in more})
    return {**found, **read["weights"], **more}


def _make_evaluation(
    made: Settings, stage: Mapping[str, Any], rollout: Any, vector: bool, task: Task
) -> tuple[Evaluation | None, Any]:
    """Make [evaluate] and its `rollout`: the stage's own, or one episode at a time if that one has lanes. The sampling
    of a further way is laid over that of evaluation, or of the stage."""
    table = stage.get("evaluate")
    rest = {} if table is None else {k: v for k, v in table.items() if k != "rollout"}
    other = (table or EMPTY).get("rollout")
    alone = other is not None or vector
    used = made.make_component("rollout", other or EMPTY, "evaluate.rollout", "episode") if alone else rollout
    if table is None:
        return None, used
    sampling = rest.get("sampling", stage.get("rollout", EMPTY).get("sampling", EMPTY))
    for name, way in (rest.get("more") or EMPTY).items():
        if isinstance(way, Mapping) and isinstance(own := way.get("sampling"), Mapping):
            rest["more"] = {**rest["more"], name: {**way, "sampling": {**sampling, **own}}}
    evaluation: Evaluation = made.make(Evaluation, rest, "evaluate", "[evaluate]")
    if evaluation.task is not None and evaluation.task.spaces() != task.spaces():
        here, there = ("text" if x is None else f"{x[0]} -> {x[1]}" for x in (evaluation.task.spaces(), task.spaces()))
        raise RecipeError("evaluate.task", f"its spaces are {here}, those of the trained task {there}: expected the "
                          "same")  # fmt: skip
    for key, value in evaluation.settings.items():
        if message := wrong(hints(type(used)).get(key), value):
            raise RecipeError(f"evaluate.settings.{format_path((key,))}", f"{value!r}: {message}")
    return evaluation, used


def _find_reference(learners: Mapping[str, Learner]) -> str:
    """Return the data set of D4RL that is learnt from, "" if there is none, or if there are several environments'."""
    parts = [part for _, part in walk_placed(learners, ())]
    named = {find_reference(name): name for part in parts if (name := ability(part, "d4rl"))}
    return next(iter(named.values())) if len(named) == 1 else ""


def _make_learners(made: Settings, table: Mapping[str, Any], cut: int | None, vector: bool) -> dict[str, Learner]:
    named = table.get("learner", EMPTY)
    tables = {name: (join_key("learner", name), dict(entry)) for name, entry in named.items()}
    top = {s: table[s] for s in LEARNER if s in table}
    if "main" in tables:
        tables["main"] = (tables["main"][0], {**top, **tables["main"][1]})
    elif top.get("part"):
        tables = {"main": ("", top), **tables}
    if not tables and table.get("steps") != 0:
        message = "give [part.<name>] or [learner.<name>]; or steps = 0, and the stage only measures"
        raise RecipeError("part", f"missing: nothing learns; {message}")
    return {name: _make_learner(made, name, where, entry, cut, vector) for name, (where, entry) in tables.items()}


def _make_learner(
    made: Settings, name: str, where: str, entry: dict[str, Any], cut: int | None, vector: bool
) -> Learner:
    at = {s: s if name == "main" and s in entry else f"{where}.{s}".lstrip(".") for s in LEARNER}
    for section in ("part", "transform"):
        if section in entry and not isinstance(entry[section], Mapping):
            raise RecipeError(at[section], f"{entry[section]!r}: expected a table of named tables")
    if "transform" in entry:
        entry["transform"] = order_transforms(entry, "transform")
    buffer = dict(entry.get("buffer", EMPTY))
    buffer.setdefault("use", USE["buffer"])
    if vector and isinstance(buffer["use"], str) and declared("buffer", buffer["use"], "unit"):  # it can count these
        buffer.setdefault("unit", "decision")
    table = {LEARNER.get(k, k): v for k, v in {**entry, "buffer": buffer}.items()}
    places = {LEARNER[s]: place for s, place in at.items()}
    learner: Learner = made.make_component(
        "learner", table, where or "learner", "gradient", {"tokens": cut, "name": name}, places
    )
    for key, part in ability(learner, "parts").items():
        if not part.terms:
            raise RecipeError(f"{at['part']}.{format_path((key, 'terms'))}", "no terms: nothing to minimise")
    return learner
