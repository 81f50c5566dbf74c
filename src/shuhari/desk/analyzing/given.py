"""What an analysis is given: the curves and the policies that a user named."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from shuhari.config.overlay import RecipeError
from shuhari.data import Request, Trajectory, code, nearest
from shuhari.desk.analyzing.foreign import describe_tested, read_all, read_curves
from shuhari.desk.evaluating import Asked, Named, Served, find_policy, make_task, serve_policies
from shuhari.desk.opening import find_kind
from shuhari.kernel.findings import START, AnalysisError, Answers, Curves, Opened, ignore
from shuhari.loop.evaluation import find_held_out
from shuhari.loop.opening import read_recipe
from shuhari.loop.outcomes import name_measure
from shuhari.store import NoRunError, Run, find_checkpoint
from shuhari.store.listing import find_tested
from shuhari.store.schema import FILE

FILES = (".csv", ".tsv", ".parquet", ".json")  # ends of files of curves
AT_ONCE = 64  # samples of a problem that are drawn together
COMPARED = 64  # problems of two tasks that are compared


@dataclass(frozen=True, eq=False)
class Names:
    """The runs, models and files that a user named, as an analysis asks them (`kernel.findings.Given`).

    `texts`: as the user wrote them; `asked`: the task, graders and settings that policies play with, by default those
    of the first run."""

    texts: tuple[str, ...]
    seed: int = 0
    asked: Asked = field(default_factory=Asked)
    show: Callable[[str], None] = ignore

    @property
    def names(self) -> tuple[str, ...]:
        """What pictures and tables call them: the last part of each path, or all of it if two are alike."""
        short = tuple(text if "=" in text else Path(text.rstrip("/")).name or text for text in self.texts)
        return short if len(set(short)) == len(short) else self.texts

    def with_start(self) -> Names:
        """Return the same with the start of a single run before it; several are returned as they are."""
        return self if len(self.texts) > 1 else replace(self, texts=(f"{self.texts[0]}{START}", *self.texts))

    def draw_from(self, name: str) -> np.random.Generator:
        return np.random.default_rng([self.seed, code("analyze", name) & (1 << 63) - 1])

    def note(self, text: str) -> None:
        self.show(text)

    def read_curves(self) -> list[Curves]:
        out: list[Curves] = []
        names = dict(zip(self.texts, self.names, strict=True))
        for arm, text in self._list_runs():
            for one in read_all(find_path(text), names.get(text, text)):
                out.append(replace(one, arm=arm or one.arm))
        return out

    def _list_runs(self) -> list[tuple[str, str]]:
        """Return (arm, run) of each run: of `A=RUN,RUN` two."""
        out: list[tuple[str, str]] = []
        for text in self.texts:
            arm, equals, runs = text.partition("=")
            named = bool(equals and arm and runs) and not Path(text).exists()
            out += [(arm, one) for one in runs.split(",") if one] if named else [("", text)]
        return out

    def repeat(self, i: int) -> Curves:
        from shuhari.desk.api import train

        text = self._list_runs()[i][1]
        path = find_path(text)
        if not (path / FILE).is_file():
            raise AnalysisError(f"{text} has curves, and no recipe to train it again by: expected a run of shuhari")
        self.note(f"training {text} again")
        with TemporaryDirectory() as folder:
            train(read_recipe(path), Path(folder) / "again", progress=False, accept_changes=True)
            return read_curves(Path(folder) / "again", text)

    def find_policies(self, which: Sequence[int] | None = None) -> list[Named]:
        """Return the policies at some places, or all."""
        chosen = self.texts if which is None else [self.texts[i] for i in which]
        return [self._find(text) for text in chosen]

    def _find(self, text: str) -> Named:
        try:
            if text.endswith(START):
                path, _ = find_checkpoint(text.removesuffix(START))
                return Named(text, path, "run", find_start(path))
            return find_policy(text)
        except (NoRunError, ValueError) as error:
            if Path(text).exists():
                raise AnalysisError(f"{text} has curves and no policy: this analysis plays policies, and needs runs of "
                                    "shuhari, or directories of models with --task") from None  # fmt: skip
            raise AnalysisError(str(error)) from None

    @contextmanager
    def open(self, i: int) -> Iterator[Opened]:
        one = self._find(self.texts[i])
        host = next((p for p in self.find_policies() if p.kind == "run"), None)
        chosen = [one] if host is None or one.kind == "run" else [host, one]
        for found, served in serve_policies(chosen, self.asked):
            if found is one:
                yield Opened(self.names[i], served.ctx, dict(served.ctx.models))
                return

    def _check_tasks(self, policies: Sequence[Named], split: str) -> None:
        """Raises AnalysisError for runs that are tested on different problems, unless a task is given. Settings may
        differ that change training alone, such as what demonstrations are like."""
        recipes = {one.name: Run(one.path).recipe for one in policies if one.kind == "run"}
        if self.asked.task is not None or not recipes:
            return
        first, *others = recipes
        told = {name: describe_tested(recipe) for name, recipe in recipes.items()}
        if not (odd := [name for name in others if told[name] != told[first]]):
            return
        wanted = _list_problems(recipes[first], split)
        for other in odd:
            if wanted is None or _list_problems(recipes[other], split) != wanted:
                raise AnalysisError(f"{first} is tested on {told[first]}, {other} on {told[other]}: expected one task, "
                                    "or --task for the problems of all")  # fmt: skip

    def sample(
        self, n: int, samples: int, *, temperature: float = 1.0, draw: int = 0, which: Sequence[int] | None = None,
        split: str = "",
    ) -> list[Answers]:  # fmt: skip
        every = self.find_policies()
        chosen = list(range(len(every)) if which is None else which)
        host = next((i for i, one in enumerate(every) if one.kind == "run"), None)
        before = [] if host is None or host in chosen or not chosen else [host]  # its task is the one that all play
        self._check_tasks(every, split)
        out: dict[int, Answers] = {}
        places = [*before, *chosen]
        for i, (_, served) in zip(places, serve_policies([every[i] for i in places], self.asked), strict=True):
            if i in chosen:
                self.note(f"sampling {self.names[i]}: {samples} answers to each of at most {n} problems")
                out[i] = _sample(self.names[i], served, n, samples, temperature, draw, split)
                if len(out[i].ids) < n:
                    self.note(f"there are {len(out[i].ids)} problems")
        return [out[i] for i in chosen]


def _list_problems(recipe: Mapping[str, Any], split: str) -> tuple[Any, ...] | None:
    """Return how many held-out problems the task of a recipe has, and its first ones, without the run's seed; None if
    the task cannot be made, or has no problems in text."""
    table = {key: value for key, value in find_tested(recipe).items() if key != "seed"}
    try:
        task = make_task(table)
        source = task.problems(split or recipe.get("evaluate", {}).get("split", "test"))
    except (RecipeError, ValueError, LookupError):
        return None
    if task.spaces() is not None:
        return None
    size = source.size()
    problems = [source[i] for i in range(COMPARED if size is None else min(COMPARED, size))]
    return size, [(p.id, p.prompt, repr(p.answer)) for p in problems]


def find_start(path: Path) -> int:
    """Return the step of the checkpoint from which a run's last stage began. Raises AnalysisError if it is not kept."""
    stored = Run(path)
    steps = stored.read_columns(stored.list_metrics())
    first = next(step for step, stage in zip(steps["step"], steps["stage"], strict=True) if stage == steps["stage"][-1])
    before = [one["step"] for one in stored.checkpoints() if one["step"] < first]
    if not before:
        message = f"{path} keeps no checkpoint of what it began with: name that before it, as the run or model that "
        raise AnalysisError(message + "it was started from (analyses of answers need one that writes text)")
    return int(max(before))


def find_path(text: str) -> Path:
    """Return the path of a run by its name (`latest`, a name under runs/), or of a file. Raises AnalysisError if there
    is neither."""
    path = Path(text)
    if path.exists() and not find_kind(path):
        return path
    if path.suffix in FILES and not path.exists():
        there = [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else []
        raise AnalysisError(f"no file {text!r}; in {path.parent}/ {nearest(path.name, there)}")
    try:
        return find_checkpoint(text)[0]
    except (NoRunError, ValueError) as error:
        if path.exists():
            raise AnalysisError(f"{text} is a model, and has no curves: expected a run, or a table of curves") from None
        raise AnalysisError(str(error)) from None


def _sample(
    name: str, served: Served, n: int, samples: int, temperature: float, draw: int, split: str
) -> Answers:
    used = replace(served.used, split=split) if split else served.used
    ctx = served.ctx.fork("analyze", draw, rollout=served.rollout, task=used.task, ticket=draw << 32)
    source = find_held_out(ctx.task, used)
    size = source.size()
    problems = [source[i] for i in range(n if size is None else min(n, size))]
    if ctx.task.spaces() is not None:
        raise AnalysisError(f"{name} answers with actions: this analysis needs a policy that writes text")
    sampling = replace(used.sampling or served.ctx.now(served.ctx.sampling), greedy=False, epsilon=0.0,
                       temperature=temperature)  # fmt: skip
    texts: list[list[str]] = [[] for _ in problems]
    right = np.full((len(problems), samples), np.nan)
    lengths = right.copy()
    for first in range(0, samples, AT_ONCE):
        count = min(AT_ONCE, samples - first)
        served.ctx.probed = ctx.probed = []
        requests = [Request(p, count, sampling, settings=used.settings) for p in problems]
        ctx.wait(ctx.probe(requests, tag="analyze"))
        place = {(p.task, p.id): i for i, p in enumerate(problems)}
        for group in ctx.probed:
            i = place[group[0].request.problem.task, group[0].request.problem.id]
            for j, episode in enumerate(group):
                grade = _read_grade(episode, used.measure, ctx)
                texts[i].append(_read_text(episode))
                right[i, first + j] = np.nan if np.isnan(grade) else grade >= used.solved
                lengths[i, first + j] = sum(int(step.mask.sum()) for step in episode.steps)
    prompts = [_show_prompt(p.prompt) for p in problems]
    return Answers(name, [p.id for p in problems], prompts, texts, right, lengths)


def _read_grade(episode: Trajectory, measure: str, ctx: Any) -> float:
    """Return the reward of an episode, along the path to its last leaf; NaN if its grader gave none."""
    path = [episode.steps[i] for i in episode.paths()[-1]]
    totals: dict[str, float] = {}
    for step in path:
        for name, value in step.reward.items():
            totals[name] = totals.get(name, 0.0) + float(np.sum(value))
    chosen = name_measure(measure, totals, ctx.weights)
    if chosen == "reward":
        return sum(float(ctx.now(weight)) * totals.get(name, 0.0) for name, weight in ctx.weights.items())
    return totals.get(chosen, float("nan"))


def _read_text(episode: Trajectory) -> str:
    """Return what the policy wrote along the path to the last leaf, turn by turn."""
    path = [episode.steps[i] for i in episode.paths()[-1]]
    return "\n".join(str(step.info["text"]) for step in path if "text" in step.info)


def _show_prompt(prompt: Any) -> str:
    turn = prompt[-1] if isinstance(prompt, Sequence) and not isinstance(prompt, str) and prompt else prompt
    return str(turn.get("content") or "") if isinstance(turn, Mapping) else str(prompt)
