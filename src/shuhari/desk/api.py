"""The Python interface: train a recipe, read its metrics, load a run, and use its policy."""

from __future__ import annotations

import hashlib
import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from shuhari.config import recipe as recipes
from shuhari.config.overlay import format_path
from shuhari.config.recipe import Recipe
from shuhari.data import EMPTY, Info, Payload, Sampling
from shuhari.desk.foreseen import warn_foreseen
from shuhari.desk.handed import hold_environment, is_environment, refuse_arguments, take, without_functions
from shuhari.desk.observations import parse_observations
from shuhari.desk.profile_report import train_profiled
from shuhari.desk.sinks import Watchers, ask
from shuhari.kernel.noise import CounterNoise, keys
from shuhari.kernel.recall import with_memory
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
        """name -> values by step, None if a step did not report it; includes `step`."""
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
        """Continue a complete run under a larger budget of its last stage, such as `extend(steps=200)`; without a
        budget, continue a stopped run to the end of its own. Returns the run as it is then. Schedules of further steps
        are those of a run with that budget from the start; steps already made do not change. Raises RecipeError for
        anything other than a larger budget, or if none is given and the budget is spent."""
        found = recipes.load(self.path)
        if not budget and not reopen(self.path):
            raise recipes.RecipeError("", f"{self.path} has spent its budget: give a larger one, as extend(steps=200)")
        own = found.tree.get("stage", {})
        last = found.stages[-1]["name"]
        keys = {k: k if k not in own.get(last, {}) else f"stage.{format_path((last,))}.{k}" for k in budget}
        longer = found.with_settings({keys[k]: value for k, value in budget.items()})
        return train(longer, self.path, progress=progress)

    def _repr_html_(self) -> str:
        """The display in a notebook: held-out scores, alarms, and plots."""
        from shuhari.desk.page import make_page

        return make_page(self.path)

    def video(self, to: str | Path, *, step: int | None = None, episode: int = 0) -> Path:
        """Write a held-out episode of a controller as an animated `.gif`: the environment's frames or, with a warning
        in the log, its observations, actions and rewards over time. Raises TypeError for a policy that writes text."""
        from shuhari.desk.video import save_video

        if why := save_video(self.path, to, step=step, episode=episode):
            logging.getLogger("shuhari").warning("no picture of the environment: %s", why)
        return Path(to)

    @property
    def policy(self) -> LoadedPolicy:
        """The trained policy, from the last checkpoint."""
        return load(self.path)

    def rollouts(self, step: int | None = None, problem: str = "") -> list[dict[str, Any]]:
        """Return the groups of samples that the run stored at a step (default: the last step with any), or of a
        problem."""
        from shuhari.store import Run

        return Run(self.path).rollouts(step, problem)

    def evaluate(
        self, n: int | None = None, *, samples: int | None = None, step: int | None = None, **settings: Any
    ) -> dict[str, float]:
        """Return held-out scores of the last weights, or of those at `step`: `greedy`, and with `samples` > 1 (default:
        1) also `mean` and `pass@k`; for recorded pairs `<part>/accuracy`, the share whose better answer is preferred;
        `<way>.<score>` for each further way to play, and `<metric>.<number>`.

        n: number of problems or episodes (default: the recipe's). settings: dotted keys of `evaluate` and
        `rollout.sampling`, such as `**{"evaluate.more.cold.sampling.temperature": 0.3}`, or nested tables; RecipeError
        for others. Nothing is stored; problems are logged to `shuhari`."""
        own = {} if samples is None and sets_samples(settings) else {"samples": 1 if samples is None else samples}
        found = measure(self.path, step, {**own, **({} if n is None else {"n": n})}, over=settings)
        for problem in found.problems:
            logging.getLogger("shuhari").warning("%s", problem)
        return found.scores


def default_path(recipe: Recipe, root: str | Path = "runs", init: str = "") -> Path:
    """Return runs/<method>-s<seed>, with a hash of the settings if they differ from the packaged recipe, or if the run
    starts from another run's weights, so that the same command finds the same run."""
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
    """Train a recipe to its end and return the run. An unfinished run at `path` resumes; a complete one is read, or
    continues if its last stage has a larger budget. The folder of a run as `recipe` means that run; another run of its
    recipe needs a `path`.

    dataset: rows to train on, as for the task `file`: a list of mappings, a `datasets.Dataset`, or a mapping of such by
    split (`DatasetDict`), which are written into the run's folder; or the path of a file. reward: a function
    `f(prompts, completions, **columns)` that returns a number or None for each sample, a list of such functions, or
    name -> function. env: an id of Gymnasium, a `gymnasium.Env` class, a function that makes one, or an environment,
    which each lane copies. tools: functions with annotations and a docstring that the policy may call in its answers. A
    function or class that other processes cannot import (a lambda, a notebook cell) works, but must be passed again to
    resume the run.

    settings: dotted keys of the recipe, such as `steps=100` or `**{"part.policy.terms.loss.high": 0.3}`. methods: names
    or files of methods, such as `rlvr/kl_cov`, applied to the recipe in order, before the settings. init: a run (`RUN`
    or `RUN@step`) whose weights this one starts from; it is part of the run, like the settings.

    progress: called with each step's report; True prints, False does not, None prints if the output is a terminal.
    observe: further callbacks for each report, such as `shuhari.TensorBoard`; one that raises is logged and not called
    again, but a mistake in its code (KeyError, TypeError) at its first call is raised. A callback can end the run after
    the step by raising `shuhari.Stop("why")` (or StopIteration), or by returning False: the run is then saved and
    complete, and `extend` continues it.

    profile: write `profile.json` and `trace.json` of these steps into the run's folder. accept_changes: resume a run
    even if its data or your code have changed. rehearsal: play every stage once before the first step, on two problems,
    to find mistakes in later stages early; it calls rewards and environments, and does not change the run.

    Problems that the first steps show are printed, or logged as warnings to `shuhari`. Raises RecipeError for a mistake
    in the recipe, the settings or the arguments, and if `path` holds another run.
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
        warn_foreseen(found, where)
        reports: Callable[..., Any] = train_profiled if profile else steps
        start: dict[str, Any] = {"init": load_initial(init), "origin": init, "accept": accept_changes}
        report = None
        with closing(reports(found, where, rehearsal=rehearsal, curve=True, **start)) as made:  # it holds the folder
            for report in made:
                asked = [ask(show, report), watchers.tell(report)]
                if why := next(filter(None, asked), ""):
                    end(made, why)
                    break
        if report is None:
            logging.getLogger("shuhari").warning("%s is complete: nothing was trained; another path starts anew", where)
    return read_trained(where)


def _find_run(recipe: str | Path | Recipe) -> Path | None:
    """Return the folder of a run, if the recipe is given as one."""
    return Path(recipe) if not isinstance(recipe, Recipe) and (Path(recipe) / "recipe.toml").is_file() else None


@contextmanager
def _show(
    recipe: Recipe, path: Path, progress: Callable[[Info], None] | bool | None
) -> Iterator[Callable[[Info], object]]:
    """Yield the callback for each report: the command line's display, or the caller's, if any, with alarms to the
    log."""
    if progress is True or (progress is None and sys.stdout.isatty()):
        from shuhari.desk.cli.live import Live

        with Live(recipe, path) as live:
            yield live.show
        return
    watch = Watch({"stage": recipe.stages})

    def log_findings(report: Info) -> object:
        for finding in watch.add(report):
            logging.getLogger("shuhari").warning("%s", finding)
        return progress(report) if callable(progress) else None

    yield log_findings


def read_trained(path: str | Path) -> Trained:
    """Read a run on disk, as `train` returns it."""
    from shuhari.store import Run

    columns = (run := Run(path)).metrics()
    reports = [
        {k: v[i] for k, v in columns.items() if v[i] is not None}
        for i in range(len(columns["step"]))
    ]
    return Trained(Path(path), reports, run.summary or EMPTY)


@dataclass(frozen=True, eq=False)
class LoadedPolicy:
    """A trained policy from `load`, to `generate` text or `act` in an environment.

    Random draws depend on `seed` and on the number of earlier calls, so that the same sequence of calls gives the same
    answers.
    """

    model: Any
    sampling: Sampling
    space: Any = None  # of one observation; None for text
    seed: int = 0
    calls: list[int] = field(default_factory=lambda: [0], repr=False)
    actions: Any = None  # the space of one action; None for text
    task: Any = field(default=None, repr=False)  # of the run, or of the run that was exported

    def evaluate(
        self,
        task: Any = None,
        reward: Any = None,
        n: int | None = None,
        *,
        samples: int = 1,
        **settings: Any,
    ) -> dict[str, float]:
        """Return held-out scores on problems of any task: `greedy`, and with `samples` > 1 also `mean` and `pass@k`.

        task: a name (`file/problems.jsonl`, `arithmetic`), a table as in a recipe, a component, or an environment as in
        `train(env=..)` (default: the task of the loaded run). reward: a grader that replaces the task's own score,
        which is then reported as `greedy.score`: a name (`maths`), `rewards.py:function`, a function as in `train`,
        several of these, or name -> one of them. n: number of problems (default: 32). settings: dotted keys as in
        `Trained.evaluate` (`**{"evaluate.split": "train", "rollout.sampling.max_new": 64}`). Nothing is stored;
        problems are logged to `shuhari`. Raises RecipeError for an unknown task, reward or setting."""
        from shuhari.desk.evaluating import Asked, make_graders, make_task, measure_model, open_bare

        if isinstance(task, str):
            task = {"name": task}
        elif is_environment(task):
            task = {"name": "gym", "path": f"world/{hold_environment(task)}"}
        made = make_task(task) if isinstance(task, Mapping) else task
        counts = {"samples": samples, **({} if n is None else {"n": n})}
        asked = Asked(self.task if made is None else made, None if reward is None else make_graders(reward),
                      settings=counts, over=settings)  # fmt: skip
        with open_bare(asked, replace(self.sampling, epsilon=0.0)) as (ctx, used, rollout):
            found = measure_model(self.model, ctx, used, rollout, -1, "the policy")
        for problem in found.problems:
            logging.getLogger("shuhari").warning("%s", problem)
        return found.scores

    def _repr_html_(self) -> str:
        """The display in a notebook: the model, its size, and its observations and actions."""
        from shuhari.desk.page import make_table

        module = ability(self.model, "module")
        size = None if module is None else f"{sum(p.numel() for p in module.parameters()):,}"
        facts: list[tuple[str, Any]] = [("model", type(self.model).__name__), ("weights", size)]
        facts += [("observations", self.space), ("actions", self.actions)]
        return make_table((), [fact for fact in facts if fact[1] is not None])

    def act(self, observation: Payload, *, greedy: bool = True) -> Any:
        """Return the action for one observation as the environment gives it (a number, an array, a mapping of these),
        or [n, ...] actions for a batch of observations. If the task's actions are masked, an observation is
        {"observation": ..., "action_mask": ...}."""
        if is_text(self.model):
            raise TypeError("this policy writes text: use generate(prompts)")
        if ability(self.model, "memory") is not None:
            raise TypeError("this policy remembers what it has seen: use predict(observation, state, episode_start), "
                            "and hand the state that it returns to the next call")  # fmt: skip
        return self._decide(observation, None, None, None, greedy)[0]

    def predict(
        self, observation: Payload, state: Any = None, episode_start: Any = None, deterministic: bool = False,
        reward: Any = None,
    ) -> tuple[Any, Any]:  # fmt: skip
        """Returns (action, state), with the interface of Stable-Baselines3's `predict`, for code written for it such as
        `evaluate_policy`: `act` with greedy=`deterministic`.

        For a recurrent policy, pass the returned state, an array [n, S], to the next call (None: all episodes begin);
        where `episode_start` [n] is true, an episode begins. Other policies ignore both, and return the state None.
        `reward` [n]: the rewards since the last call, weighted as in training, for a policy that needs them (a
        `decision_transformer`). Raises ValueError for a state of another number of observations, and if a needed reward
        is missing."""
        action, after = self._decide(observation, state, episode_start, reward, deterministic)
        return np.asarray(action), after

    def _decide(self, observation: Payload, state: Any, begins: Any, reward: Any, greedy: bool) -> tuple[Any, Any]:
        """The action for one observation or a batch, and what the policy carries on [n, S] (None: it keeps nothing)."""
        x, single = parse_observations(observation, self.space)
        n = 1 if single else len(next(iter(x.values())) if isinstance(x, dict) else x)
        memory = None
        if (size := ability(self.model, "memory")) is not None:
            memory = torch.zeros(n, size) if state is None else torch.as_tensor(np.array(state, np.float32))
            if memory.shape != (n, size):
                raise ValueError(f"state has the shape {tuple(memory.shape)}: expected {(n, size)}, as predict gave it")
            if state is not None and (rewarded := ability(self.model, "rewarded")) is not None:
                if reward is None:
                    raise ValueError("this policy needs the rewards: expected predict(.., reward = those since the "
                                     "last call)")  # fmt: skip
                memory = rewarded(memory, torch.as_tensor(np.array(reward, np.float32)).expand(n))
            if begins is not None:
                memory[torch.as_tensor(np.array(begins, bool)).expand(n)] = 0.0
        traces = self.model.sample(with_memory(x, memory), self._sampling(greedy), noise=self._noise(n))
        action = (traces.action if traces.taken is None else traces.taken).numpy()
        after = None if traces.memory is None else traces.memory.numpy()
        return ((action[0].item() if action.ndim == 1 else action[0]) if single else action), after

    def generate(self, prompts: Any, *, greedy: bool = True, max_new: int | None = None, **unknown: Any) -> Any:
        """Return the policy's completion of a prompt, or a list of them for a list of prompts. A prompt is a text,
        which a model with a chat template reads as a user's turn, or a conversation: a list of {"role", "content"}.
        unknown: arguments of other libraries, which raise TypeError with what is meant here."""
        refuse_arguments(unknown)
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
        """Write a language model as a Hugging Face directory, which `models.policy.path` and transformers read;
        `export` has more options."""
        if ability(self.model, "save") is None:
            raise TypeError(f"the model {type(self.model).__name__} has no format outside of its run but that of "
                            "shuhari.export(run, directory)")  # fmt: skip
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
    """Load the policy of a run (a path, a name under runs/, or `latest`) at its last checkpoint, at `step`, or at
    that of `RUN@step` or `RUN@best`; or of a directory written by `export`, `LoadedPolicy.save` or
    `Session.save_state`, of a Hugging Face language model, or of a .gguf file. env: the environment, if `train` was
    given one that cannot be imported."""
    from shuhari.desk.opening import find_kind, find_run, open_model

    if kind := find_kind(Path(run)):
        if step is not None:
            raise ValueError(f"step is {step}, and {run} is not a run, so that it has no steps")
        model, sampling, task = open_model(Path(run), kind, role)
        space, actions = task.spaces() or (None, None)
        of = task if kind == "controller" else None
        return LoadedPolicy(model, sampling, space, seed, actions=actions, task=of)
    path, named = find_run(str(run))
    step = named if step is None else step
    recipe = recipes.load(path)
    if env is not None:
        hold_environment(env)
    with without_functions(recipe), open_checkpoint(path, step, recipe) as opened:
        ctx = opened.ctx
        space, actions = ctx.task.spaces() or (None, None)
        tested = (opened.stage.evaluate.task if opened.stage.evaluate else None) or ctx.task
        return LoadedPolicy(role_model(ctx.models, role), ctx.sampling, space, seed, actions=actions, task=tested)
