"""A recipe with [study]: its component drives whole runs of the rest of the recipe, and the study is a run itself.

Below the study's folder, `children/<name>` holds the runs, which are ordinary ones. A row that the component yields is
a step: one transaction, with what all runs have spent so far. Resuming calls the component anew: finished runs are
read, the one at hand goes on, and scores that were measured before the last row are not measured again. Runs may take
turns, a step each. Left out: concurrent runs in processes; a study of studies.
"""

from __future__ import annotations

import inspect
import json
import logging
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from shuhari.config.build import make_component
from shuhari.config.overlay import format_path
from shuhari.config.recipe import Recipe, RecipeError, load
from shuhari.config.schedules import list_misfits
from shuhari.data import EMPTY, Info
from shuhari.loop.rehearsal import open_rehearsed
from shuhari.loop.resume import open_store, summarise
from shuhari.loop.roles import load_initial
from shuhari.loop.run import Run as OpenRun
from shuhari.loop.run import loop, open_run
from shuhari.loop.stopping import Stop
from shuhari.ports import Study, ability
from shuhari.store import Run, Store
from shuhari.store.schema import FILE

GIVEN = ("--set", "set")  # origins of what is laid over a recipe as a run is asked for
OWN = ("study", "seed", "name", "summary", "format")  # what a study reads that trains no run
CHILD = "child"  # the key of a report that is a run's and no row of the study


def train(recipe: Recipe, path: Path | None = None, *, curve: bool = False, **start: Any) -> Iterator[Info]:
    """Run a recipe, or its study if it has one, and yield one report a step; resumes from `path`, as `run.train`. A new
    run is rehearsed first, and so is each run of a study; not with `rehearsal=False`. curve: see `open_run`.

    A study also yields the reports of its runs, as progress: `step` is the study's, `stage` the run's name.
    """
    if "study" not in recipe.tree:
        yield from loop(open_rehearsed(recipe, path, curve=curve, **start))
        return
    with ExitStack() as held:
        folder = Path(held.enter_context(TemporaryDirectory())) if path is None else path
        yield from _rows(recipe, folder, **start)


def _rows(
    recipe: Recipe, path: Path, *, init: Mapping[str, Any] = EMPTY, rehearsal: bool = True, **known: Any
) -> Iterator[Info]:
    study = make_study(recipe)
    with open_store(path, recipe, keep=2, **known) as store:
        if store.get("complete"):
            return
        tree = store.load() or {"rows": [], "measured": {}, "seconds": 0.0}
        began, rows = time.monotonic() - tree["seconds"], list(tree["rows"])
        start = {"init": init, "rehearsal": rehearsal, "warn": False, **known}
        for problem in list_misfits(recipe):
            logging.getLogger("shuhari").warning("%s", problem)
        runs = Children(recipe, path / "children", start, dict(tree["measured"]))
        reports, step = iter(study(runs)), 0
        try:
            for report in reports:
                seconds, spent = time.monotonic() - began, {f"spent/{k}": v for k, v in runs.spent().items()}
                if CHILD in report:
                    yield {**report, **spent, "step": step, "stage": report[CHILD], "seconds": seconds}
                    continue
                row, step = {k: getattr(v, "item", lambda v=v: v)() for k, v in report.items()}, step + 1
                if step <= len(rows):
                    _check_same(path, step, rows[step - 1], row)
                    continue
                rows.append(row)
                info = {"step": step, "stage": "study", **spent, **row}
                tree = {"rows": rows, "measured": runs.measured, "seconds": seconds}
                store.commit(step, stage="study", wall=seconds, metrics=info, tree=tree)
                yield {**info, "seconds": seconds}
        except Stop as stop:
            logging.getLogger("shuhari").warning("%s is stopped (%s): the same command goes on", path, stop)
            return
        finally:
            ability(reports, "close")()  # a run that is at hand saves what it has
            runs.close()
        _finish(store, recipe, rows, runs, time.monotonic() - began)


def trains_runs(study: Study) -> bool:
    """Whether a study trains the runs of its recipe: one that simulates reads only its own settings."""
    return ability(study, "trains")


def make_study(recipe: Recipe) -> Study:
    """Make the component of [study]. Raises RecipeError for an override of the recipe that the study cannot use: of any
    setting but its own if it trains no run (`trains = False`), else of one that it sets separately for each run."""
    table, use = recipe.tree["study"], str(recipe.tree["study"].get("use"))
    study: Study = make_component("study", table)
    trains, ours = trains_runs(study), dict(_list_varied(table, ("study",)))
    if not trains and "laid" in recipe.tree:
        raise RecipeError("", f"{' and '.join(recipe.tree['laid'])}: a method changes runs, and the study {use!r} "
                          "trains none")  # fmt: skip
    for path, origin in recipe.sources.items():
        key = format_path(path)
        if origin in GIVEN and not trains and path[0] not in OWN:
            own = [f"study.{name}" for name in inspect.signature(type(study)).parameters]
            meant = f"study.{path[-1]}"
            near = f"did you mean {meant!r}?" if meant in own else f"its settings are {', '.join(own)}, and seed"
            raise RecipeError(key, f"the study {use!r} trains no run, so this has no effect; {near}")
        if origin in GIVEN and trains and key in ours:
            raise RecipeError(key, f"the study {use!r} sets it differently for each run: change {ours[key]}")
    return study


class Children:
    """The runs of a study, see `ports.Runs`: of `recipe` without its study, in folders below `path`.

    `start`: arguments for opening each; `measured`: results of `evaluate`, by run and settings, and what it spent.
    """

    def __init__(self, recipe: Recipe, path: Path, start: Mapping[str, Any], measured: dict[str, Any]) -> None:
        tree = {k: v for k, v in recipe.tree.items() if k not in ("study", "claim")}
        self.recipe = Recipe(recipe.name, tree, recipe.sources)
        self.path, self.start, self.measured = path, start, measured
        self.seed, self.repeatable = recipe.seed, True
        self.folder = path.with_name("shared")
        self._ledgers: dict[str, Mapping[str, float]] = {}  # of what was asked for since the study was called
        self._opened: dict[str, OpenRun] = {}  # runs that have not gone on yet

    def train(self, name: str, settings: Mapping[str, Any] = EMPTY) -> Generator[Info, None, Mapping[str, Any]]:
        """Open a run and train it to its end; returns its summary. Raises RecipeError if `name` is a run with other
        settings."""
        recipe = self.recipe.with_settings(settings, CHILD) if settings else self.recipe
        run = self._opened[name] = open_rehearsed(recipe, self.path / name, **self.start)
        self._ledgers[name] = run.ctx.ledger
        return self._go_on(name)

    def _go_on(self, name: str) -> Generator[Info, None, Mapping[str, Any]]:
        run = self._opened.pop(name)
        with closing(loop(run)) as reports:  # type: ignore[type-var]
            for report in reports:
                yield {**report, CHILD: name}
        summary = summarise(run)
        self.repeatable &= summary["repeatable"]
        return summary

    def reports(self, name: str) -> list[Info]:
        """Return what a run has reported so far, a row a step; empty for a run that has not begun."""
        if not (self.path / name / FILE).is_file():
            return []
        columns = Run(self.path / name).metrics()
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]

    def close(self) -> None:
        """Close runs that were opened and never continued."""
        for run in self._opened.values():
            with run:
                pass

    def evaluate(self, name: str, settings: Mapping[str, Any] = EMPTY) -> Mapping[str, float]:
        """Return the held-out scores of a run's last weights in its last stage, with `settings` applied to its recipe.
        """
        key = f"{name} {json.dumps(dict(settings), sort_keys=True)}"
        if key not in self.measured:
            recipe = load(self.path / name)
            weights = load_initial(str(self.path / name))
            with open_run(recipe.with_settings(settings, CHILD) if settings else recipe, init=weights) as run:
                run.progress.index = len(run.progress.stages) - 1
                run.enter_stage()  # which measures the weights that it starts from
                self.measured[key] = {"scores": dict(run.before), "spent": dict(run.ctx.ledger)}
        found = self.measured[key]
        if not found["scores"]:
            raise RecipeError("evaluate", "missing: the study measures its runs; give [evaluate] with n")
        self._ledgers[f"evaluate {key}"] = found["spent"]
        return dict(found["scores"])

    def spent(self) -> dict[str, float]:
        """Return the sum of the ledgers of all runs and measurements."""
        out: dict[str, float] = {}
        for ledger in self._ledgers.values():
            for what, amount in ledger.items():
                out[what] = out.get(what, 0) + amount
        return out


def _list_varied(table: Mapping[str, Any], at: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Yield (setting, key of [study]) of the settings that a study has lists of: as `contexts = {"task.seed" = [0,
    1]}`, and as `shares = ["task.a.share", "task.b.share"]`."""
    for name, value in table.items():
        if isinstance(value, Mapping):
            yield from _list_varied(value, (*at, name))
        elif isinstance(value, list | tuple):
            yield from ((key, format_path(at if key == name else (*at, name))) for key in (name, *value)
                        if isinstance(key, str))  # fmt: skip


def _check_same(path: Path, step: int, before: Info, now: Info) -> None:
    """Raise RuntimeError if a resumed study gives another row than before."""
    for key in before:
        if repr(before[key]) != repr(now.get(key)):
            message = f"row {step} had {key} = {before[key]!r} and now has {now.get(key)!r}"
            raise RuntimeError(f"{path}: the study does not repeat itself ({message}): start it anew in another folder")


def _finish(store: Store, recipe: Recipe, rows: list[Info], runs: Children, seconds: float) -> None:
    """Write summary.json as for any run; `before` and `after`: the first row and the last."""
    about = {"recipe": recipe.name, "seed": recipe.seed, "steps": len(rows), "wall_s": seconds, "spent": runs.spent()}
    ends = {"before": rows[0], "after": rows[-1]} if rows else {"before": {}, "after": {}}
    store.write_text("summary.json", json.dumps({**about, **ends, "repeatable": runs.repeatable}, indent=2) + "\n")
    store.set(complete=True)
