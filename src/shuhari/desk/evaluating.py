"""Evaluates any policies on any problems: runs, exports and models as they are, one after the other.

All get the same problems, sampling, graders and random streams: those of the first run that is named, otherwise of a
context made for the purpose. Nothing is stored. Left out: scores of learners on recorded problems, further ways to
play, and metrics, which belong to one run (`loop.measuring`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from shuhari.config.build import make_component
from shuhari.config.evaluation import Evaluation
from shuhari.config.overlay import RecipeError, format_path, lay, nest, split_path, walk_leaves
from shuhari.config.settings import Settings
from shuhari.config.stage import MICRO_BATCH
from shuhari.data import EMPTY, Sampling
from shuhari.desk.opening import fetch_model, find_kind, find_run, open_model
from shuhari.desk.replay.regrade import read_reward
from shuhari.loop.checks import check_weights, graded_columns
from shuhari.loop.context import Context
from shuhari.loop.evaluation import evaluate
from shuhari.loop.given import find_grader, play_environment
from shuhari.loop.measuring import Measured, list_greedy
from shuhari.loop.opening import MEASURED, open_checkpoint, open_models
from shuhari.needs import role_model
from shuhari.ports import ability, is_text
from shuhari.rewards.weights import default_weights
from shuhari.store import NoRunError

ALONE = {"n": 32, "samples": 1}  # defaults of [evaluate] without a run: a language model is slow


@dataclass(frozen=True)
class Asked:
    """How to evaluate policies. `task`: a component, None for that of the first run; `rewards`: name -> grader, None
    for the run's own, or only the task's score; `weights`: of rewards by name (default: 1 each). `settings`: replace
    those of [evaluate]; `over`: dotted key -> value, of `evaluate` and `rollout.sampling`."""

    task: Any = None
    rewards: Mapping[str, Any] | None = None
    weights: Mapping[str, float] = EMPTY
    settings: Mapping[str, Any] = field(default_factory=dict)
    over: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Named:
    """A policy by name. `kind`: `run`, a kind of `opening.find_kind`, or `hub`; `step`: of a run's checkpoint, None for
    the last."""

    name: str
    path: Path
    kind: str
    step: int | None = None


def find_policy(name: str, step: int | None = None, *, hub: bool = True) -> Named:
    """Find what a name means: a directory with a model, adapters or an export, a .gguf file, the state of a session, a
    run (`RUN`, `RUN@step`, `RUN@best`), otherwise an id of the hub, `owner/model`. step: for a run without one in its
    name. hub: whether ids of the hub are allowed. Raises NoRunError if nothing is found."""
    path = Path(name)
    if kind := find_kind(path):
        if step is not None:
            raise ValueError(f"--step {step}: {name} is not a run, and has no steps")
        return Named(name, path, kind)
    try:
        found, at = find_run(name)
    except NoRunError:
        if not hub or name.count("/") != 1 or path.parent.exists():
            raise
        return Named(name, path, "hub")
    return Named(name, found, "run", step if at is None else at)


def make_task(table: Mapping[str, Any], seed: int = 0) -> Any:
    """Make a task from a table as in a recipe, `name` and settings. Raises RecipeError if it is unknown or cannot be
    read."""
    try:
        return Settings(given={"task": {"seed": seed}}).make_component("task", dict(table), "task")
    except (FileNotFoundError, ValueError, ModuleNotFoundError) as error:
        raise error if isinstance(error, RecipeError) else RecipeError("task", str(error)) from None


def make_graders(rewards: Any, settings: Mapping[str, Any] = EMPTY) -> dict[str, Any]:
    """Return name -> grader for `USE` or `NAME=USE` (as in `[reward.<name>] use`: `maths`, `rewards.py:short`),
    functions, several of these, or a mapping name -> one of these. settings: name -> those of the grader. Raises
    RecipeError for anything else."""
    if isinstance(rewards, str) or callable(rewards) or not isinstance(rewards, Mapping | Sequence):
        rewards = [rewards]
    if not isinstance(rewards, Mapping):
        rewards = dict(_name_reward(one) for one in rewards)
    if unknown := [name for name in settings if name not in rewards]:
        key = f"reward.{format_path((unknown[0],))}"
        raise RecipeError(key, f"expected a setting of a grader in use: {', '.join(rewards)}")
    out = {}
    for name, one in rewards.items():
        table: Any = {"use": one, **settings.get(name, {})} if isinstance(one, str) else one
        out[name] = find_grader(name, table)
    return out


def _name_reward(one: Any) -> tuple[str, Any]:
    if isinstance(one, str):
        try:
            return read_reward(one)
        except ValueError as error:
            raise RecipeError("reward", str(error)) from None
    return getattr(one, "__name__", type(one).__name__.lower()), one


def split_settings(given: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Split dotted key -> value by section: {"task": a table, "reward": a table, "over": all other keys, unchanged}."""
    out: dict[str, dict[str, Any]] = {"task": {}, "reward": {}, "over": {}}
    for key, value in given.items():
        section, *rest = split_path(key)
        if section in ("task", "reward") and rest:
            lay(out[section], nest(tuple(rest), value), "--set", {})
        else:
            out["over"][key] = value
    return out


def measure_policies(named: Sequence[Named], asked: Asked) -> Iterator[tuple[Named, Measured]]:
    """Measure each policy, in order. Raises RecipeError for an unknown task or grader, for settings that do not affect
    playing, and for a policy that cannot play such problems; StoreError if a policy cannot be opened."""
    for one, served in serve_policies(named, asked):
        yield one, _measure(served)


def _measure(served: Served) -> Measured:
    found = evaluate(served.ctx, served.used, served.rollout)
    problems = tuple(dict.fromkeys(served.ctx.problems))
    return Measured(found, served.used, found.measure, served.step, problems,
                    played=list_greedy(served.ctx.probed or []))  # fmt: skip


@dataclass(frozen=True, eq=False)
class Served:
    """A policy that is ready to play: it is the `policy` of the context `ctx`, at its `step`; `used`: the evaluation,
    `rollout`: how it plays."""

    ctx: Context
    used: Evaluation
    rollout: Any
    step: int


def serve_policies(named: Sequence[Named], asked: Asked) -> Iterator[tuple[Named, Served]]:
    """Open each policy in turn, as the policy of the first run among them, or of the task asked for. Raises as
    `measure_policies` does."""
    host = next((one for one in named if one.kind == "run"), None)
    with ExitStack() as held:
        ctx, used, rollout = held.enter_context(_open_run(host, asked) if host else open_bare(asked))
        own = ctx.models.get("policy")
        for one in named:
            model, step = (own, ctx.step) if one is host else _load(one, used.task or ctx.task)
            _serve(model, ctx, used.task or ctx.task, one.name)
            yield one, Served(ctx, used, rollout, step)


def _serve(model: Any, ctx: Context, task: Any, name: str) -> None:
    """Make a model the policy of a context. Raises RecipeError if it cannot play the problems of the task."""
    if is_text(model) != (task.spaces() is None):
        writes = "writes text" if is_text(model) else "acts in an environment"
        wanted = "text" if task.spaces() is None else "actions"
        raise RecipeError("task", f"{name} {writes}, and these problems need {wanted}")
    ctx.models["policy"], ctx.version, ctx.probed = model, ctx.version + 1, []
    ctx.problems.clear()
    ctx.reward_names, ctx.tested_names = {}, {}
    ctx.serve()


def measure_model(model: Any, ctx: Context, used: Evaluation, rollout: Any, step: int, name: str) -> Measured:
    """Measure a model as the `policy` of a context. Raises RecipeError if it cannot play such problems."""
    _serve(model, ctx, used.task or ctx.task, name)
    return _measure(Served(ctx, used, rollout, step))


@contextmanager
def _open_run(host: Named, asked: Asked) -> Iterator[tuple[Context, Evaluation, Any]]:
    """Open a run as (context, evaluation, rollout), with the requested task, rewards and settings instead of its
    own."""
    with open_checkpoint(host.path, host.step, over=asked.over) as opened:
        ctx, stage = opened.ctx, opened.stage
        used = replace(stage.evaluate or Evaluation(), **asked.settings, more=EMPTY, metrics=EMPTY)
        if asked.task is not None:
            if asked.task.spaces() != ctx.task.spaces():
                raise RecipeError("task", f"its observations or actions differ from those that {host.name} was "
                                  "trained on")  # fmt: skip
            used = replace(used, task=asked.task)
        if asked.rewards is not None:
            _grade_by(ctx, used.task or ctx.task, stage.evaluation_rollout, asked)
        if (asked.task is not None or asked.rewards is not None) and not _sets_measure(asked.over):
            used = replace(used, measure="")
        yield ctx, used, stage.evaluation_rollout


@contextmanager
def open_bare(asked: Asked, sampling: Sampling | None = None) -> Iterator[tuple[Context, Evaluation, Any]]:
    """Open (a context without models, an evaluation, a rollout) for a task; `sampling`: defaults below the settings'.
    Raises RecipeError if no task is given."""
    if asked.task is None:
        raise RecipeError("task", "which problems? Give --task, such as file/problems.jsonl or arithmetic (`shuhari "
                          "tasks` lists them), or a run beside the model")  # fmt: skip
    tables = {section: dict[str, Any]() for section in MEASURED}
    for key, value in asked.over.items():
        for inner, leaf in walk_leaves({"": value}):
            path = (*split_path(key), *inner[1:])
            section = next((s for s in MEASURED if path[: len(s)] == s and len(path) > len(s)), None)
            if section is None:
                message = "expected evaluate.<setting>, rollout.sampling.<setting>, task.<setting> or reward.<name>"
                raise RecipeError(format_path(path), f"it has no effect on an evaluation: {message}")
            lay(tables[section], nest(path[len(section) :], leaf), "--set", {})
    made, (tested, sampled) = Settings(), tables.values()
    used = made.make(Evaluation, {**ALONE, **tested}, "evaluate", "[evaluate]")
    drawn = made.make(Sampling, sampled, "rollout.sampling", "[rollout.sampling]")
    drawn = replace(sampling or Sampling(), **{name: getattr(drawn, name) for name in sampled})
    text = asked.task.spaces() is None and play_environment(asked.task) is None
    rollout = make_component("rollout", {"use": "single" if text else "episode"})
    ctx = Context(0, asked.task, make_component("engine", {"use": "local"}), MICRO_BATCH)
    try:
        ctx.rollout, ctx.sampling = rollout, drawn
        _grade_by(ctx, asked.task, rollout, asked)
        ctx.open({"evaluate": (rollout, asked.task)}, ctx.rewards.values())
        yield ctx, replace(used, **asked.settings), rollout
    finally:
        ctx.close()


def _grade_by(ctx: Context, task: Any, rollout: Any, asked: Asked) -> None:
    """Replace the graders of a context by the requested ones."""
    graders = dict(asked.rewards or {})
    blind = [name for name, grader in graders.items() if ability(grader, "wants_answer")]
    if blind and ability(task, "ungraded"):
        helps = ability(task, "unanswered") or "give its problems answers"
        raise RecipeError("task", f"{blind[0]!r} compares with the `answer` of a problem, and none has one: {helps}")
    weights = dict(asked.weights) or default_weights(task, graders)
    check_weights(weights, graded_columns(task, rollout, graders), "evaluate")
    ctx.rewards, ctx.weights = graders, weights
    for grader in graders.values():
        ctx.opened.hold(grader)


def _load(one: Named, task: Any) -> tuple[Any, int]:
    """Load (the model for the role `policy`, its step)."""
    if one.kind in ("model", "hub") and task.spaces() is not None:
        raise RecipeError("task", f"{one.name} writes text, and these problems need actions")
    if one.kind == "run":
        models, _ = open_models(one.path, one.step)
        return role_model(models, "policy"), _find_step(one)
    if one.kind == "hub":
        return fetch_model(one.name, task), -1
    return open_model(one.path, one.kind, task=task)[0], -1


def _find_step(one: Named) -> int:
    from shuhari.store import Run

    return one.step if one.step is not None else int((Run(one.path).cursor or {"step": -1})["step"])


def _sets_measure(over: Mapping[str, Any]) -> bool:
    table = over.get("evaluate")
    return "evaluate.measure" in over or (isinstance(table, Mapping) and "measure" in table)


def describe_answer(episode: Any) -> dict[str, Any]:
    """Convert a greedy episode to plain values {id, prompt, answer, says, rewards, cut}: the problem and its right
    answer, what the policy wrote turn by turn, each grade by name, and whether a length limit cut it."""
    from shuhari.data import Status
    from shuhari.desk.episodes import read_episode, to_readable

    problem = episode.request.problem
    read = read_episode(episode, [{}] * len(episode.steps))
    return {"id": problem.id, "prompt": to_readable(problem.prompt), "answer": to_readable(problem.answer),
            "says": read["steps"], "rewards": read["reward"], "cut": episode.status is Status.TRUNCATED}  # fmt: skip
