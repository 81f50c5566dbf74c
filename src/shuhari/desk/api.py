"""The Python interface: train a recipe, read its metrics, load a run and act with its policy."""

from __future__ import annotations

import hashlib
import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from shuhari.config import recipe as recipes
from shuhari.config.overlay import format_path
from shuhari.config.recipe import Recipe
from shuhari.data import EMPTY, Info, Payload, Sampling
from shuhari.desk.handed import hold_environment, take, without_functions
from shuhari.desk.profile_report import train_profiled
from shuhari.desk.sinks import Watchers, ask
from shuhari.kernel.noise import CounterNoise, keys
from shuhari.kernel.pack import dense
from shuhari.lab.diagnosis import Watch
from shuhari.loop.measuring import measure, sets_samples
from shuhari.loop.opening import open_checkpoint
from shuhari.loop.roles import load_initial
from shuhari.loop.stopping import end, reopen
from shuhari.loop.study import train as steps
from shuhari.needs import role_model
from shuhari.ports import ability, is_text


@dataclass(frozen=True, eq=False)
class Trained:
    """The result of `train`: the run's folder, one report a step, and the summary."""

    path: Path
    reports: list[Info] = field(repr=False)
    summary: Mapping[str, Any]

    @property
    def metrics(self) -> dict[str, list[Any]]:
        """name -> values by step, None where a step did not report it; `step` among them."""
        names = list(dict.fromkeys(
            n
            for r in self.reports
            for n in r
        ))
        return {
            n: [r.get(n) for r in self.reports]
            for n in names
        }

    def extend(self, progress: Callable[[Info], None] | bool | None = None, **budget: float) -> Trained:
        """Go on with a complete run under a larger budget of its last stage, such as `extend(steps=200)`, or, where it
        was stopped, with what is left of its budget: `extend()`; the run as it is then. What schedules say of the steps
        to come is as in a run that had that budget from the start; those that were made stay as they are. RecipeError
        for anything else than a larger budget, or for none where the whole was spent."""
        found = recipes.load(self.path)
        if not budget and not reopen(self.path):
            raise recipes.RecipeError("", f"{self.path} has spent its budget: give a larger one, as extend(steps=200)")
        own = found.tree.get("stage", {})
        last = found.stages[-1]["name"]
        keys = {k: k if k not in own.get(last, {}) else f"stage.{format_path((last,))}.{k}" for k in budget}
        longer = found.with_settings({keys[k]: value for k, value in budget.items()})
        return train(longer, self.path, progress=progress)

    def _repr_html_(self) -> str:
        """What a notebook shows: held-out scores, alarms, and the picture."""
        from shuhari.desk.page import make_page

        return make_page(self.path)

    def video(self, to: str | Path, *, step: int | None = None, episode: int = 0) -> Path:
        """Write a held-out episode of a controller as an animation, a `.gif`: what its environment draws, or its
        observations, actions and rewards over time, of which a line in the log tells. TypeError for a policy that
        writes text."""
        from shuhari.desk.video import save_video

        if why := save_video(self.path, to, step=step, episode=episode):
            logging.getLogger("shuhari").warning("no picture of the environment: %s", why)
        return Path(to)

    @property
    def policy(self) -> LoadedPolicy:
        """The trained policy, from the last checkpoint."""
        return load(self.path)

    def rollouts(self, step: int | None = None, problem: str = "") -> list[dict[str, Any]]:
        """The groups of samples that the run kept of a step (by default the last that kept any), or of a problem."""
        from shuhari.store import Run

        return Run(self.path).rollouts(step, problem)

    def evaluate(
        self, n: int | None = None, *, samples: int | None = None, step: int | None = None, **settings: Any
    ) -> dict[str, float]:
        """Held-out scores of the last weights, or of those of `step`: `greedy`, and with `samples` > 1 (default: 1)
        also `mean` and `pass@k`; of recorded pairs `<part>/accuracy`, the share whose better answer is preferred;
        `<way>.<score>` of each further way to play and `<metric>.<number>`. n: how many problems or episodes (default:
        the recipe's). settings: how it is measured, dotted keys as `**{"evaluate.more.cold.sampling.temperature": 0.3}`
        or nested, `evaluate` and `rollout.sampling` alone; RecipeError for others. Nothing is stored; what went wrong
        goes to the logger `shuhari`."""
        own = {} if samples is None and sets_samples(settings) else {"samples": 1 if samples is None else samples}
        found = measure(self.path, step, {**own, **({} if n is None else {"n": n})}, over=settings)
        for problem in found.problems:
            logging.getLogger("shuhari").warning("%s", problem)
        return found.scores


def default_path(recipe: Recipe, root: str | Path = "runs", init: str = "") -> Path:
    """runs/<method>-s<seed>, and a mark of the settings where they differ from the packaged recipe, or of the run whose
    weights it starts from, so that the same command finds the same run."""
    seeded = (replace(r, tree={**r.tree, "seed": recipe.seed}) for r in (recipe, recipe.plain) if r is not None)
    text, *plain = map(recipes.dump, seeded)
    same = plain == [text] and not init
    marked = f"{text}\n# init {init}" if init else text
    mark = "" if same else "-" + hashlib.blake2b(marked.encode(), digest_size=3).hexdigest()
    return Path(root) / f"{recipe.name.rpartition('/')[2]}-s{recipe.seed}{mark}"


def train(
    recipe: str | Path | Recipe,
    path: str | Path | None = None,
    *,
    dataset: Any = None,
    reward: Any = None,
    env: Any = None,
    tools: Any = (),
    methods: Sequence[str | Path] = (),
    seed: int | None = None,
    init: str = "",
    progress: Callable[[Info], None] | bool | None = None,
    observe: Callable[[Info], object] | Sequence[Callable[[Info], object]] = (),
    profile: bool = False,
    accept_changes: bool = False,
    rehearsal: bool = True,
    **settings: Any,
) -> Trained:
    """Train a recipe to its end and return the run; an unfinished run at `path` goes on, a complete one is read, or
    goes on where its last stage is given a larger budget. The folder of a run as `recipe` is that run; another one of
    its recipe needs a `path`.

    dataset: rows to train on, as the task `file` reads them: a list of mappings, a `datasets.Dataset`, or a mapping of
    such by split (`DatasetDict`); they are written into the run's folder. reward: a function
    `f(prompts, completions, **columns)` that returns a number or None for each sample, a list of them, or name ->
    function. env: a `gymnasium.Env` class, a function that makes one, or an environment, of which each lane plays a
    copy. tools: functions with annotations and a docstring, which the policy may call as it answers. A function or
    class that no other process can import (a lambda, a cell of a notebook) trains; the run then goes on only where it
    is handed over again.
    settings: dotted keys of the recipe, as `steps=100` or `**{"part.policy.terms.loss.high": 0.3}`. methods: names or
    files of methods, such as `rlvr/kl_cov`, laid over the recipe in order, below the settings. init: a run (`RUN`
    or `RUN@step`) whose weights this one starts from; it belongs to the run as the settings do. progress: called with
    each step's report; True prints, False does not, None prints where a person looks (a terminal). observe: what
    else is called with each report, as `shuhari.TensorBoard`; one that raises is noted in the log and not called again.
    Any of these ends the run after that step by raising `shuhari.Stop("why")` (or StopIteration), or by returning
    False: it is then saved and complete, and `extend` goes on.
    profile: write `profile.json` and `trace.json` of the steps made into the run's folder.
    What the first steps show to be wrong is printed, or goes to the logger `shuhari` as a warning.
    accept_changes: go on with a run whose data, or code of yours, is not what it was made with. rehearsal: play every
    stage once before the first step, on two problems, so that a mistake in a later one is found at once; it calls
    rewards and environments, and changes nothing of the run.
    Raises RecipeError for a mistake in the recipe, the settings or what is handed over, and where `path` holds another
    run.
    """
    handed = take(dataset, reward, env, settings, tools)
    changes = {**handed.settings, **settings, **({} if seed is None else {"seed": seed})}
    if isinstance(recipe, Recipe):
        laid = recipe.with_methods([recipes.read_method(str(m)) for m in methods], changes) if methods else recipe
        found = laid.with_settings(changes) if changes else laid
    else:
        found = recipes.load(recipe, settings=changes, methods=methods)
    if path is None:
        path = _find_run(recipe) or default_path(found, init=init)
    where = Path(path)
    with handed.placed(where), _show(found, where, progress) as show, Watchers(observe) as watchers:
        reports = train_profiled if profile else steps
        start: dict[str, Any] = {"init": load_initial(init), "origin": init, "accept": accept_changes}
        for report in (made := reports(found, where, rehearsal=rehearsal, curve=True, **start)):
            asked = [ask(show, report), watchers.tell(report)]
            if why := next(filter(None, asked), ""):
                end(made, why)
                break
    return read_trained(where)


def _find_run(recipe: str | Path | Recipe) -> Path | None:
    """The folder of a run, where that is what was named."""
    return Path(recipe) if not isinstance(recipe, Recipe) and (Path(recipe) / "recipe.toml").is_file() else None


@contextmanager
def _show(
    recipe: Recipe, path: Path, progress: Callable[[Info], None] | bool | None
) -> Iterator[Callable[[Info], object]]:
    """What is called with each report: the display of the command line; or the caller's own or nothing, with alarms to
    the log."""
    if progress is True or (progress is None and sys.stdout.isatty()):
        from shuhari.desk.cli.live import Live

        with Live(recipe, path) as live:
            yield live.show
        return
    watch = Watch({"stage": recipe.stages})

    def tell(report: Info) -> object:
        for finding in watch.add(report):
            logging.getLogger("shuhari").warning("%s", finding)
        return progress(report) if callable(progress) else None

    yield tell


def read_trained(path: str | Path) -> Trained:
    """Read a run on disk, as `train` returns it."""
    from shuhari.store import Run

    run = Run(path)
    columns = run.metrics()
    reports = [
        {k: v[i] for k, v in columns.items() if v[i] is not None}
        for i in range(len(columns["step"]))
    ]
    return Trained(Path(path), reports, run.summary or EMPTY)


@dataclass(frozen=True, eq=False)
class LoadedPolicy:
    """A trained policy, to `generate` text or `act` in an environment, as `load` gives it.

    Draws depend on `seed` and on how many calls were made before, so that the same calls give the same answers.
    """

    model: Any
    sampling: Sampling
    space: Any = None  # of one observation; None for text
    seed: int = 0
    calls: list[int] = field(default_factory=lambda: [0], repr=False)
    actions: Any = None  # the space of one action; None for text
    task: Any = field(default=None, repr=False)  # what a run, or an export of one, is tested on

    def evaluate(
        self,
        task: Any = None,
        reward: Any = None,
        n: int | None = None,
        *,
        samples: int = 1,
        **settings: Any,
    ) -> dict[str, float]:
        """Held-out scores on problems of any task: `greedy`, and with `samples` > 1 also `mean` and `pass@k`.

        task: a name (`file/problems.jsonl`, `arithmetic`), the table that a recipe would have, or a component; by
        default that of the run that was loaded. reward: what grades in the place of the task's own score, which is then
        reported as `greedy.score`: a name (`maths`), `rewards.py:function`, a function as of `train`, several of these,
        or name -> one of them. n: how many problems (default: 32). settings: how it is measured, dotted keys as of
        `Trained.evaluate` (`**{"evaluate.split": "train", "rollout.sampling.max_new": 64}`). Nothing is stored; what
        went wrong goes to the logger `shuhari`. RecipeError for a task, a reward or a setting that there is not."""
        from shuhari.desk.evaluating import Asked, make_graders, make_task, measure_model, open_bare

        made = make_task({"name": task} if isinstance(task, str) else task) if isinstance(task, str | Mapping) else task
        counts = {"samples": samples, **({} if n is None else {"n": n})}
        asked = Asked(self.task if made is None else made, None if reward is None else make_graders(reward),
                      settings=counts, over=settings)  # fmt: skip
        with open_bare(asked, replace(self.sampling, epsilon=0.0)) as (ctx, used, rollout):
            found = measure_model(self.model, ctx, used, rollout, -1, "the policy")
        for problem in found.problems:
            logging.getLogger("shuhari").warning("%s", problem)
        return found.scores

    def _repr_html_(self) -> str:
        """What a notebook shows: the model, its size, and what it reads and does."""
        from shuhari.desk.page import make_table

        module = ability(self.model, "module")
        size = None if module is None else f"{sum(p.numel() for p in module.parameters()):,}"
        facts: list[tuple[str, Any]] = [("model", type(self.model).__name__), ("weights", size)]
        facts += [("observations", self.space), ("actions", self.actions)]
        return make_table((), [fact for fact in facts if fact[1] is not None])

    def act(self, observation: Payload, *, greedy: bool = True) -> Any:
        """The environment's action for one observation as the environment gives it (a number, an array, a mapping of
        these), or [n, ...] for a batch of observations. Where the task's actions are masked, the observation is
        {"observation": ..., "action_mask": ...}."""
        if is_text(self.model):
            raise TypeError("this policy writes text: use generate(prompts)")
        x, single = parse_observations(observation, self.space)
        n = 1 if single else len(next(iter(x.values())) if isinstance(x, dict) else x)
        traces = self.model.sample(x, self._sampling(greedy), noise=self._noise(n))
        action = (traces.action if traces.taken is None else traces.taken).numpy()
        return (action[0].item() if action.ndim == 1 else action[0]) if single else action

    def predict(
        self, observation: Payload, state: None = None, episode_start: Any = None, deterministic: bool = False
    ) -> tuple[Any, None]:
        """(action, None), as Stable-Baselines3 returns it, for what was written for its policies (`evaluate_policy`
        among them): `act` with greedy=`deterministic`. `state` and `episode_start` are of recurrent policies, which
        there are not here."""
        return np.asarray(self.act(observation, greedy=deterministic)), None

    def generate(self, prompts: Any, *, greedy: bool = True, max_new: int | None = None) -> Any:
        """The policy's completion of a prompt, or a list of them for a list of prompts. A prompt is a text, which a
        model with a chat template reads as a turn of a user, or a conversation: a list of {"role", "content"}."""
        if not is_text(self.model):
            raise TypeError("this policy acts on observations: use act(observation)")
        if max_new is not None and max_new < 1:
            raise ValueError(f"max_new is {max_new}: expected at least 1")
        single = isinstance(prompts, str) or (bool(prompts) and all(isinstance(p, Mapping) for p in prompts))
        many = [prompts] if single else list(prompts)
        contexts = [self.model.encode(p if isinstance(p, str) else tuple(p)) for p in many]
        traces = self.model.sample(contexts, self._sampling(greedy, max_new), noise=self._noise(len(many)))
        texts = [self.model.decode(t.action) for t in traces]
        return texts[0] if single else texts

    def save(self, directory: str | Path) -> Path:
        """Write a language model as a Hugging Face directory, which `models.policy.path` and transformers read; see
        `export` for more."""
        if ability(self.model, "save") is None:
            raise TypeError(f"the model {type(self.model).__name__} has no format outside of its run")
        self.model.save(str(directory))
        return Path(directory)

    def _sampling(self, greedy: bool, max_new: int | None = None) -> Sampling:
        return replace(self.sampling, greedy=greedy, epsilon=0.0, max_new=max_new or self.sampling.max_new)

    def _noise(self, n: int) -> CounterNoise:
        self.calls[0] += 1
        return CounterNoise(keys(self.seed, "loaded", self.calls[0], n=n))


def load(
    run: str | Path, *, role: str = "policy", step: int | None = None, seed: int = 0, env: Any = None
) -> LoadedPolicy:
    """Load the policy of a run (a path, a name under runs/, or `latest`) as of its last checkpoint or of `step`; or
    that of a directory which `export`, `LoadedPolicy.save` or `Session.save_state` has written, of a language model of
    Hugging Face, or of a .gguf file. env: the environment,
    where `train` was handed one that cannot be imported."""
    from shuhari.desk.opening import find_kind, open_model
    from shuhari.store import resolve

    if kind := find_kind(Path(run)):
        if step is not None:
            raise ValueError(f"step is {step}, and {run} is no run: it has no steps")
        model, sampling, task = open_model(Path(run), kind, role)
        space, actions = task.spaces() or (None, None)
        of = task if kind == "controller" else None
        return LoadedPolicy(model, sampling, space, seed, actions=actions, task=of)
    path = resolve(str(run))
    recipe = recipes.load(path)
    if env is not None:
        hold_environment(env)
    with without_functions(recipe), open_checkpoint(path, step, recipe) as opened:
        ctx = opened.ctx
        space, actions = ctx.task.spaces() or (None, None)
        tested = (opened.stage.evaluate.task if opened.stage.evaluate else None) or ctx.task
        return LoadedPolicy(role_model(ctx.models, role), ctx.sampling, space, seed, actions=actions, task=tested)


def parse_observations(given: Any, space: Any) -> tuple[Any, bool]:
    """(what a model's `sample` takes, whether it was a single observation), of one observation of a space or a batch of
    them. Raises ValueError for a shape or for keys that are not those of the space."""
    if isinstance(given, Mapping) and hasattr(space, "spaces"):
        from shuhari.tasks.views import flatten  # knows Gymnasium, which text has no use for

        parts = flatten(given)
        if parts.keys() != space.keys():
            raise ValueError(f"an observation of {', '.join(parts)}: expected {', '.join(space.keys())}")
        found = {k: parse_observations(parts[k], s) for k, s in space.items()}
        if len(singles := {single for _, single in found.values()}) > 1:
            names = ", ".join(parts)
            raise ValueError(f"parts of an observation with and without a batch axis: {names}: expected all alike")
        return {k: x for k, (x, _) in found.items()}, singles.pop()
    if isinstance(given, Mapping) or hasattr(space, "spaces"):
        raise ValueError(f"an observation {str(given)[:60]}: expected one of {space}")
    x = dense([np.asarray(given)])[0]
    if bool(x.isnan().any()):
        raise ValueError(f"an observation {str(given)[:60]}: expected numbers, and some are NaN")
    axes = len(space.shape or ())
    if x.dim() not in (axes, axes + 1) or tuple(x.shape[x.dim() - axes :]) != tuple(space.shape or ()):
        one = tuple(space.shape or ())
        batch = f"(n{''.join(f', {k}' for k in one)}{'' if one else ','})"
        raise ValueError(f"an observation of shape {tuple(x.shape)}: expected {one}, or {batch} for a batch of n")
    return (x[None], True) if x.dim() == axes else (x, False)
