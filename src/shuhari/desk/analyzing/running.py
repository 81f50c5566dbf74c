"""Runs analyses and keeps what they find: on what a user named, and the packaged findings of methods.

A packaged finding stands in the `finding.toml` of a method's folder:

```toml
analysis = "pass_at_k"          # the component: of kind run_analysis, or analysis (a function of the seed alone)
says = "..."                    # the question, in a sentence
null = "..."                    # what its numbers are compared with: a case without any effect by construction
seeds = 3                       # at least 3
settings = {n = 64}             # of the analysis

[paper]                         # as in a recipe

[[runs]]                        # trained once a seed, in order, and given to the analysis in that order
name = "start"
recipe = "beds/trie/twins"      # of the library, or a file of the folder
settings = {steps = 60}
init = ""                       # a run above, from whose end this one starts
given = ["start", "end"]        # checkpoints: of the last stage's beginning, of its end; []: it only starts another
```"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from shuhari.bounds import Bounds
from shuhari.config import library
from shuhari.config.overlay import RecipeError
from shuhari.config.settings import Settings
from shuhari.data import EMPTY, nearest
from shuhari.kernel import registry
from shuhari.kernel.findings import START, AnalysisError, Finding, Number, ignore
from shuhari.kernel.stats import t_interval

if TYPE_CHECKING:
    from shuhari.desk.analyzing.given import Names

FORMAT = 1
FOLDER, FILE = "findings", "finding.toml"
LEAST = 3  # seeds
ON_RUNS, ALONE = "run_analysis", "analysis"  # kinds of components
FIRST_SEED = 1000
UNSAFE = re.compile(r"[^\w@.-]")  # characters that names of files do without
DOTS = {"linestyle": "", "marker": "o", "markersize": 3}


@dataclass(frozen=True)
class Trained:
    """A run of a packaged finding, as written."""

    name: str
    """Name of the run, in the order in which runs are given to the analysis."""
    recipe: str
    """A recipe of the library, or the name of a file in the folder of the finding."""
    settings: Mapping[str, Any] = field(default=EMPTY)
    """Settings of the recipe that differ, dotted key or table."""
    init: str = ""
    """Name of the run from whose end it starts; from the recipe's own start if empty."""
    given: tuple[Literal["start", "end"], ...] = ("end",)
    """Checkpoints that the analysis gets: "start", of the beginning of its last stage, and "end"; none if it only
    starts another run."""


@dataclass(frozen=True)
class Stated:
    """A `finding.toml` as written."""

    analysis: str
    """Name of the analysis: a component of kind run_analysis, or of kind analysis, which needs no runs."""
    says: str
    """The question, in a sentence."""
    null: str = ""
    """What the numbers are compared with: a case without any effect by construction."""
    seeds: Annotated[int, Bounds(LEAST)] = LEAST
    """Number of seeds, at least 3."""
    settings: Mapping[str, Any] = field(default=EMPTY)
    """Settings of the analysis."""
    paper: Mapping[str, Any] = field(default=EMPTY)
    """Title, arxiv, year, and number in the catalogue, as in a recipe."""
    runs: tuple[Mapping[str, Any], ...] = ()
    """Runs that are trained for it, in order."""


@dataclass(frozen=True)
class Packaged:
    """A packaged finding: its `name` (family/method), the folder, how it was stated, and its runs."""

    name: str
    folder: Path
    stated: Stated
    runs: tuple[Trained, ...]


def list_analyses() -> dict[str, str]:
    """Return name -> kind of the analyses that there are."""
    return {**dict.fromkeys(registry.names(ON_RUNS), ON_RUNS), **dict.fromkeys(registry.names(ALONE), ALONE)}


def make_analysis(name: str, settings: Mapping[str, Any] = EMPTY) -> tuple[str, Any]:
    """Make an analysis by its name; returns (kind, component). Raises LookupError with the nearest name, RecipeError
    for a wrong setting."""
    kind = ALONE if name in registry.names(ALONE) else ON_RUNS
    if kind == ON_RUNS and name not in registry.names(ON_RUNS) and not {":", "."} & set(name):
        raise LookupError(f"no analysis {name!r}; {nearest(name, list_analyses())}")
    return kind, Settings().make_component(kind, {"use": name, **settings}, name)


def analyze(name: str, given: Names, settings: Mapping[str, Any] = EMPTY) -> Finding:
    """Analyse what the user named. Raises AnalysisError if it cannot answer; the message names what to give."""
    kind, analysis = make_analysis(name, settings)
    if kind == ALONE:
        raise AnalysisError(f"{name} reads no runs: call it without any")
    return _call(analysis, given)


def _call(analysis: Any, given: Names) -> Finding:
    if vars(type(analysis)).get("from_start", False):
        given = given.with_start()
    found: Finding = analysis(given)
    if not found.numbers:
        raise AnalysisError(f"{type(analysis).__name__} found no number")
    return found


# ------------------------------------------------------------------------------------------------ packaged findings


def list_packaged() -> dict[str, Packaged]:
    """Return the packaged findings by name, family/method."""
    return {name: read_packaged(name) for name in _list_folders()}


def _list_folders() -> list[str]:
    files = (registry.ROOT / "methods").glob(f"*/*/{FILE}")
    return sorted(f"{file.parent.parent.name}/{file.parent.name}" for file in files)


def read_packaged(name: str) -> Packaged:
    """Read a packaged finding. Raises LookupError with the nearest name, RecipeError for a mistake in its file."""
    file = registry.ROOT / "methods" / name / FILE
    if not file.is_file():
        raise LookupError(f"no packaged finding {name!r}; {nearest(name, _list_folders())}")
    table = {k: v for k, v in library.read_table(f"{name} ({FILE})", file).items() if k != "format"}
    stated: Stated = Settings().make(Stated, table, FILE, "a finding")
    runs = tuple(Settings().make(Trained, dict(one), f"{FILE}.runs", "a run of a finding") for one in stated.runs)
    known = [one.name for one in runs]
    for i, one in enumerate(runs):
        if one.init and one.init not in known[:i]:
            raise RecipeError(f"{FILE}.runs", f"{one.name} starts from {one.init!r}; {nearest(one.init, known[:i])}")
    return Packaged(name, file.parent, stated, runs)


def find_packaged(analysis: str) -> Packaged | None:
    """Return the packaged finding of an analysis, by its own name or that of the component; None if it has none."""
    every = list_packaged()
    return every.get(analysis) or next((one for one in every.values() if one.stated.analysis == analysis), None)


def measure_packaged(
    one: Packaged, root: Path, *, tell: Callable[[str], None] = ignore, draw: Path | None = None
) -> dict[str, Any]:
    """Train the runs of a packaged finding under `root` (what is there is used again), analyse them on each seed, and
    return the result: by number the value, interval and null of each seed. draw: where a picture of the first seed
    goes."""
    from shuhari.desk.analyzing.given import Names

    stated = one.stated
    kind, analysis = make_analysis(stated.analysis, stated.settings)
    seeds = [FIRST_SEED + i for i in range(stated.seeds)]
    found: list[Mapping[str, Number]] = []
    for seed in seeds:
        if kind == ALONE:
            found.append({k: Number(float(v)) for k, v in analysis(seed).items()})
            tell(f"{one.name}: seed {seed}")
            continue
        paths = train_runs(one, seed, root, tell)
        finding = _call(analysis, Names(tuple(paths), seed, show=tell))
        found.append(finding.numbers)
        if draw is not None and finding.panels and seed == seeds[0]:
            draw_finding(finding, draw, f"{one.name}, seed {seed}")
    names = dict.fromkeys(chain.from_iterable(found))
    return {
        "format": FORMAT,
        "name": one.name,
        "analysis": stated.analysis,
        "says": stated.says,
        "null": stated.null,
        "paper": dict(stated.paper),
        "settings": dict(stated.settings),
        "seeds": seeds,
        "numbers": {key: _join(key, found) for key in names},
        "digests": find_digests(one),
    }


def train_runs(one: Packaged, seed: int, root: Path, tell: Callable[[str], None]) -> list[str]:
    """Train the runs of a finding on one seed, and return those that are given to the analysis."""
    from shuhari.desk.api import train

    paths: dict[str, Path] = {}
    for run in one.runs:
        path = root / one.name / f"{run.name}-s{seed}"
        recipe: Any = one.folder / run.recipe if (one.folder / run.recipe).is_file() else run.recipe
        tell(f"{one.name}: seed {seed}, {run.name}")
        init = str(paths[run.init]) if run.init else ""
        train(recipe, path, init=init, seed=seed, progress=False, **run.settings)
        paths[run.name] = path
    ends, out = {"start": START, "end": ""}, list[str]()
    for run in one.runs:
        out += [f"{paths[run.name]}{ends[which]}" for which in run.given]
    return out


def _join(key: str, found: Sequence[Mapping[str, Number]]) -> dict[str, Any]:
    """Return one number of all seeds: values, their mean and Student interval, each seed's own interval and null."""
    from shuhari.lab.claims.result import round_to

    numbers = [one.get(key, Number(math.nan)) for one in found]
    values = [n.value for n in numbers]
    whole = t_interval([v for v in values if math.isfinite(v)])
    mean, low, high = map(round_to, (whole.value, whole.low, whole.high))
    nulls = [round_to(n.null) for n in numbers]
    return {"says": numbers[0].says, "values": list(map(round_to, values)), "mean": mean, "low": low, "high": high,
            "own": [[round_to(n.low), round_to(n.high)] for n in numbers], "null": nulls}  # fmt: skip


def find_digests(one: Packaged) -> dict[str, str]:
    """Return digests of what decides a packaged finding: its file, its recipes as resolved, and its own modules."""
    from shuhari.config.recipe import load
    from shuhari.lab.claims.digest import compute_digest
    from shuhari.lab.claims.sources import digest_modules

    recipes = []
    for run in one.runs:
        file = one.folder / run.recipe
        recipes.append(load(file if file.is_file() else run.recipe, settings=dict(run.settings)))
    _, analysis = make_analysis(one.stated.analysis, one.stated.settings)
    own = {f"recipe {run.name}": compute_digest(recipe) for run, recipe in zip(one.runs, recipes, strict=True)}
    modules = digest_modules([], [analysis])
    home = ".".join(("shuhari.methods", *one.name.split("/")))
    return {**own, **{name: digest for name, digest in modules.items() if name.startswith(home)}}


def write_finding(result: Mapping[str, Any], at: Path) -> Path:
    """Write `at`/findings/<family>/<method>.json, and return its path."""
    return write_kept(result, at / FOLDER / f"{result['name']}.json")


def read_finding(name: str, at: Path | None = None) -> dict[str, Any] | None:
    """Read the stored result of a packaged finding; None if it was not made. Raises RecipeError if it is damaged."""
    from shuhari.lab.claims.kept_results import find_results

    return read_kept((at or find_results(FOLDER)) / f"{name}.json")


def read_kept(path: Path) -> dict[str, Any] | None:
    """Read what `write_kept` has written; None if there is nothing. Raises RecipeError if it is damaged."""
    from shuhari.lab.claims.kept_results import read_json

    def refuse(found: Any) -> str:
        return "" if found["format"] == FORMAT and "numbers" in found else f"format {found['format']!r}, not {FORMAT}"

    return read_json(path, "the result of an analysis", refuse)


# ------------------------------------------------------------------------------------------------ of one call


def to_json(name: str, given: Names, settings: Mapping[str, Any], found: Finding) -> dict[str, Any]:
    """Return what is kept of one analysis."""
    numbers = {key: _to_table(number) for key, number in found.numbers.items()}
    return {"format": FORMAT, "analysis": name, "of": list(given.texts), "seed": given.seed, "settings": dict(settings),
            "numbers": numbers, "heads": list(found.heads), "rows": [list(row) for row in found.rows],
            "notes": list(found.notes)}  # fmt: skip


def _to_table(number: Number) -> dict[str, Any]:
    """Return a number as JSON has it: None if it is not finite."""
    return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in asdict(number).items()}


def write_kept(found: Mapping[str, Any], path: Path) -> Path:
    """Write what is kept as JSON, and return its path."""
    from shuhari.lab.claims.result import write_json

    return write_json(found, path)


def name_files(name: str, given: Sequence[str], at: Path) -> Path:
    """Return the path, without a suffix, of what is kept of an analysis of these runs."""
    plain = [UNSAFE.sub("-", Path(text).name or text) for text in given]
    return at / UNSAFE.sub("-", name) / ("_".join(plain)[:120] or "alone")


def draw_finding(found: Finding, to: Path, title: str) -> Path:
    """Draw the panels of a finding into a file."""
    from shuhari.lab.plot import STYLES, find_kind, make_figure, save_figure

    figure, axes = make_figure(len(found.panels))
    for ax, (name, panel) in zip(axes, found.panels.items(), strict=False):
        if "x" in panel.logarithmic:
            ax.set_xscale("log")
        if "y" in panel.logarithmic:
            ax.set_yscale("log")
        for i, (label, (x, y)) in enumerate(panel.lines.items()):
            colour, dashes = STYLES[i % len(STYLES)]
            style: Any = DOTS if label in panel.dots else {"linestyle": dashes}
            ax.plot(x, y, color=colour, label=label, **style)
        ax.set_title(name, parse_math=False)
        ax.set_xlabel(panel.x, parse_math=False)
        ax.set_ylabel(panel.y, parse_math=False)
        legend = ax.legend(fontsize="small")
        for text in legend.get_texts():
            text.set_parse_math(False)
    save_figure(figure, to, title, find_kind(to))
    return to

