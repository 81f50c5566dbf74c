"""Recipes that somebody got wrong: packaged ones with seeded mistakes, each refused with a message or a plan that can
be described. By hand: `python tests/mutants.py 1500 --seed 0`, all in one process; a part of it is in the suite
(`contracts/test_mutants.py`).
"""

from __future__ import annotations

import argparse
import json
import math
import random
import signal
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import tomli_w

from buildable import list_buildable
from shuhari.config.build import build_stage
from shuhari.config.overlay import RecipeError, format_path, walk_leaves
from shuhari.config.recipe import Recipe, load
from shuhari.config.settings import KINDS as PORTS
from shuhari.config.settings import Settings
from shuhari.desk.amounts import describe_work
from shuhari.kernel import registry
from shuhari.loop.checks import check_stages

LIMIT = 5.0  # seconds of processor time for one
NUMBERS = (math.nan, math.inf, -math.inf, -1, 0, 10**12)
KINDS = ("seven", True, [1], {}, {"a": {"b": 1}}, "", -0.5, 1e300, [], [[1]], "max_new", 10**30)
ASIDE = ("claim", "laid", "paper")  # read by other commands, or made by the library
Step = str | int


class TooLong(BaseException):
    """More processor time than a mutant has. No Exception, so that nothing on the way takes it for its own."""


def describe(recipe: Recipe) -> list[str]:
    """What a dry run builds and checks."""
    shared: dict[str, Any] = {}
    stages = [build_stage(table, shared) for table in recipe.stages]
    check_stages(stages)
    if "study" in recipe.tree:
        Settings().make_component("study", recipe.tree["study"], "study")
    return [describe_work(stage) for stage in stages]


def judge(make: Callable[[], Recipe]) -> str:
    """`refused`, `a run`, or what is wrong: an error that is none of a recipe, or too much time."""

    def end(*_: Any) -> None:
        raise TooLong

    before = signal.signal(signal.SIGPROF, end)
    signal.setitimer(signal.ITIMER_PROF, LIMIT)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            describe(make())
        return "a run"
    except RecipeError as error:
        return "refused" if str(error).strip() else "refused without a word"
    except ImportError:  # of an extra, or of a module that a text names
        return "refused"
    except TooLong:
        return f"more than {LIMIT:g} s of processor time"
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:200]}"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


# ---------------------------------------------------------------- numbers


def list_numbers(recipe: Recipe) -> list[str]:
    """The dotted keys of all numbers of a recipe: those that it says, and defaults."""
    found: dict[str, None] = {}
    for stage in recipe.stages:
        for path, value in walk_leaves({k: v for k, v in stage.items() if k not in (*ASIDE, "name")}):
            found |= {format_path(path): None} if _is_number(value) else {}
    for component in (build_stage(stage) for stage in recipe.stages):
        found |= {key: None for key, value in component.defaults.items() if _is_number(value)}
    return list(found)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


# ---------------------------------------------------------------- mutants


def mutate(tree: dict[str, Any], rng: random.Random) -> tuple[dict[str, Any], str]:
    """(a tree with one to three mistakes, what they are)."""
    tree, told = deepcopy(tree), []
    for _ in range(rng.choice((1, 1, 2, 3))):
        places = [p for p in _walk(tree) if p[0] not in ASIDE]
        if not places:
            break
        path = rng.choice(places)
        holder: Any = tree
        for key in path[:-1]:
            holder = holder[key]
        key, kind = path[-1], rng.choice(MISTAKES)
        told.append(f"{kind.__name__} {'.'.join(map(str, path))}")
        kind(holder, key, rng)
    return tree, "; ".join(told)


def _walk(tree: Any, path: tuple[Step, ...] = ()) -> Iterator[tuple[Step, ...]]:
    items = tree.items() if isinstance(tree, dict) else enumerate(tree)
    for key, value in items:
        yield (*path, key)
        if isinstance(value, dict | list):
            yield from _walk(value, (*path, key))


def number(holder: Any, key: Any, rng: random.Random) -> None:
    holder[key] = rng.choice(NUMBERS)


def other_kind(holder: Any, key: Any, rng: random.Random) -> None:
    holder[key] = deepcopy(rng.choice(KINDS))


def missing(holder: Any, key: Any, rng: random.Random) -> None:
    del holder[key]


def misspelt(holder: Any, key: Any, rng: random.Random) -> None:
    if isinstance(holder, dict) and len(key) > 1:
        at = rng.randrange(len(key) - 1)
        holder[key[:at] + key[at + 1] + key[at] + key[at + 2 :]] = holder.pop(key)


def doubled(holder: Any, key: Any, rng: random.Random) -> None:
    if isinstance(holder, dict):
        holder[f"{key}2"] = deepcopy(holder[key])
    else:
        holder.append(deepcopy(holder[key]))


def another(holder: Any, key: Any, rng: random.Random) -> None:
    """Another component of any kind, or another text."""
    kind = rng.choice(sorted(k for k in set(PORTS.values()) if registry.names(k)))
    if isinstance(holder, dict) and isinstance(holder[key], dict):
        holder[key]["use"] = rng.choice(registry.names(kind))
    else:
        holder[key] = rng.choice(registry.names(kind))


def deep(holder: Any, key: Any, rng: random.Random) -> None:
    value: Any = 1
    for _ in range(60):
        value = {"a": value}
    holder[key] = value


def moved(holder: Any, key: Any, rng: random.Random) -> None:
    """One table inside another of the same level."""
    if isinstance(holder, dict) and len(holder) > 1:
        other = rng.choice([k for k in holder if k != key])
        if isinstance(holder[other], dict):
            holder[other][key] = holder.pop(key)


MISTAKES = (number, number, number, other_kind, other_kind, missing, misspelt, doubled, another, another, deep, moved)


def walk_mutants(n: int, seed: int, folder: Path) -> Iterator[tuple[str, str]]:
    """(what was done to which recipe, the verdict) of `n` mutants, each read from a file of TOML."""
    rng, names = random.Random(seed), list_buildable()
    trees: dict[str, dict[str, Any]] = {}
    for i in range(n):
        name = rng.choice(names)
        if name not in trees:
            trees[name] = {k: v for k, v in load(name).tree.items() if v is not None}
        tree, told = mutate(trees[name], rng)
        file = folder / f"mutant{i}.toml"
        try:
            file.write_text(tomli_w.dumps(tree))
        except (TypeError, ValueError):  # a mistake that TOML cannot write
            continue
        yield f"{name}: {told}", judge(lambda file=file: load(str(file)))  # type: ignore[misc]
        file.unlink()


def walk_numbers(n: int, seed: int) -> Iterator[tuple[str, str]]:
    """(recipe, key and value, the verdict) of `n` numeric settings, each set to what it should not be."""
    rng, names = random.Random(seed), list_buildable()
    keys: dict[str, list[str]] = {}
    for _ in range(n):
        name = rng.choice(names)
        if name not in keys:
            keys[name] = list_numbers(load(name))
        key, value = rng.choice(keys[name]), rng.choice((*NUMBERS, *KINDS[:4]))
        yield f"{name} {key}={value!r}", judge(lambda n=name, k=key, v=value: load(n, settings={k: v}))  # type: ignore[misc]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("n", type=int, nargs="?", default=1500)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    counts: Counter[str] = Counter()
    began, longest = time.process_time(), 0.0
    with tempfile.TemporaryDirectory() as folder:
        for walk in (walk_mutants(given.n, given.seed, Path(folder)), walk_numbers(given.n, given.seed)):
            at = time.process_time()
            for told, verdict in walk:
                at, took = time.process_time(), time.process_time() - at
                longest = max(longest, took)
                counts[verdict if verdict in ("refused", "a run") else "wrong"] += 1
                if verdict not in ("refused", "a run"):
                    print(f"{told}\n    {verdict}", flush=True)
    print(json.dumps({**counts, "seconds": round(time.process_time() - began), "longest": round(longest, 1)}))


if __name__ == "__main__":
    main()
