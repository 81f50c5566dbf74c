"""The conformance check of a whole recipe: every call of its components is checked against its port, and it must
resume.

`check_recipe` runs a recipe for a few steps and checks every call of every transform, objective, learner, optimiser,
follower, reward, rollout, curriculum, buffer and metric in it; then it stops a second run half-way, resumes it, and
compares the two bit by bit. The checks of single components are in `learning`, `stored`, `playing` and `acting`. A
failed check raises ConformanceError, which names the component and what it did.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from shuhari.config.recipe import Recipe, load
from shuhari.kernel import state
from shuhari.loop.breaches import DRAWS, generator_states
from shuhari.loop.run import Run, loop, open_run
from shuhari.ports.hooks import ability
from shuhari.testing.compare import contents, differences, to_plain
from shuhari.testing.learning import (
    inspect_follow,
    inspect_objective,
    inspect_optimiser,
    inspect_transform,
    inspect_update,
)
from shuhari.testing.looking import ConformanceError, rebuild, require, require_port, require_same, to_tree
from shuhari.testing.playing import inspect_grades, inspect_group, inspect_lanes, inspect_metric, inspect_requests
from shuhari.testing.stored import inspect_draws, inspect_observing


@contextmanager
def watch(run: Run) -> Iterator[set[type]]:
    """A context manager in which every call of a component of the run is checked; it gives the classes of those that
    were called, as they are."""
    called: set[type] = set()
    with ExitStack() as held:
        for component, name, check in _find_ports(run):
            method = _check_calls(getattr(component, name), check, called)
            held.enter_context(patch.object(component, name, method))
        yield called


def _find_ports(run: Run) -> Iterator[tuple[type, str, Callable[..., Any]]]:
    """Yield (class, method, check) of each class in the run once, including components in fields of others."""
    seen: set[tuple[type, str]] = set()
    for stage in run.progress.stages:
        learners = list(stage.learners.values())
        parts = [
            p
            for learner in learners
            for p in ability(learner, "parts").values()
        ]
        transforms = [
            *stage.collect.values(),
            *(
                t
                for x in learners
                for t in x.transforms.values()
            ),
        ]
        found: list[tuple[Any, str, Callable[..., Any]]] = []
        found += [(x, "update", inspect_update) for x in learners]
        found += [(t, "__call__", inspect_transform) for t in transforms]
        found += [
            (t.objective, "__call__", inspect_objective)
            for p in parts
            for t in p.terms.values()
        ]
        found += [(p.optimiser, "step", inspect_optimiser) for p in parts]
        found += [(x, "__call__", inspect_follow) for x in stage.follows.values()]
        found += [
            (x.buffer, name, look)
            for x in learners
            for name, look in BUFFERS.items()
        ]
        found += [(x, "grade", inspect_grades) for x in stage.rewards.values()]
        found += [(m, "__call__", inspect_metric) for m in (stage.evaluate.metrics if stage.evaluate else {}).values()]
        found += [(stage.curriculum, "select", inspect_requests), (stage.curriculum, "observe", inspect_observing)]
        found += [(stage.rollout, "group", inspect_group), (stage.rollout, "collect", inspect_lanes)]
        for component, name, check in found:
            for _, part in state.walk(component) if name in ("select", "observe", "draw") else [("", component)]:
                kind = type(part)
                if hasattr(kind, name) and (kind, name) not in seen:
                    seen.add((kind, name))
                    yield kind, name, check


MUST_BE_CALLED = ("__call__", "grade", "update", "step")  # of transforms, losses, rules, metrics, rewards, optimisers
BUFFERS: Mapping[str, Callable[..., Any]] = {"draw": inspect_draws, "observe": inspect_observing}


def _check_calls(method: Callable[..., Any], check: Callable[..., Any], called: set[type]) -> Callable[..., Any]:
    def call(self: Any, *args: Any) -> Any:
        called.add(type(self))
        return check(self, lambda *given: method(self, *given), *args)

    return call


def check_recipe(recipe: Recipe | str | Path, path: Path) -> set[type]:
    """Train a recipe below `path`, every call of its components looked at; then train it again, stopped half-way and
    resumed, and compare the two runs bit by bit. Give it a small recipe (`shrink` makes one). Returns the classes of
    the components that were called; your own losses, rewards and similar components must be called. Raises
    ConformanceError, and what training raises."""
    found = recipe if isinstance(recipe, Recipe) else load(recipe)
    found = found.with_settings({"store.every": 1})
    run = open_run(found, path / "whole")
    made = 0
    with watch(run) as called:
        for _ in loop(run):
            made += 1
    for component, name, _ in _find_ports(run):
        own = not component.__module__.startswith("shuhari.")
        if own and name in MUST_BE_CALLED and component not in called:
            raise ConformanceError(f"{component.__name__}: the run of {made} steps never called it")
    with closing(loop(open_run(found, path / "resumed"))) as cut:  # type: ignore[type-var]
        for _ in range(max(1, made // 2)):
            next(cut, None)
    for _ in loop(open_run(found, path / "resumed")):
        pass
    _require_same(contents(path / "whole"), contents(path / "resumed"), "a run")
    return called


def check_study(recipe: Recipe | str | Path, path: Path) -> None:
    """Run the study of a recipe below `path`; then run it again, stopped after each of its rows and resumed, and
    compare the rows of the two bit by bit. Raises ConformanceError, and what the study raises."""
    from shuhari.loop import study

    found = recipe if isinstance(recipe, Recipe) else load(recipe)
    if "study" not in found.tree:
        raise ValueError(f"the recipe {found.name!r} has no [study]")
    who = str(found.tree["study"].get("use", "study")).rpartition(":")[2]
    whole = [_row(x) for x in study.train(found, path / "whole") if x["stage"] == "study"]
    rows: list[Any] = []
    for _ in range(len(whole) + 1):
        with closing(study.train(found, path / "resumed")) as cut:  # type: ignore[type-var]
            try:
                row = next((x for x in cut if x["stage"] == "study"), None)
            except RuntimeError as error:
                raise ConformanceError(f"{who}: {error}") from error
        if row is not None:
            rows.append(_row(row))
    _require_same(whole, rows, f"the study {who}")


def check_analysis(analysis: Any, seed: int = 0) -> Mapping[str, float]:
    """Call an analysis and return its numbers: by name, the same for the same seed, with no draw from a global
    generator."""
    require_port("analysis", analysis)
    found = analysis(seed)
    generators = generator_states()  # after the first call: a library that is imported there may draw
    again = rebuild(analysis)(seed)
    require(generator_states() == generators, analysis, DRAWS)
    numbers = isinstance(found, Mapping) and all(
        isinstance(k, str) and isinstance(x, float | int) for k, x in found.items()
    )
    require(numbers and found, analysis, f"gave {found!r:.80}: expected numbers by name")
    require_same(to_tree(dict(found)), to_tree(dict(again)), analysis, "gave other numbers for the same seed")
    return dict(found)


def _row(report: Mapping[str, Any]) -> Any:
    return to_plain({k: v for k, v in report.items() if k != "seconds"})


def _require_same(whole: Any, resumed: Any, who: str) -> None:
    if found := differences(whole, resumed):
        listed = "\n  ".join(found[:10])
        raise ConformanceError(f"{who} that was stopped and resumed ended otherwise:\n  {listed}")
