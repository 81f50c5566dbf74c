"""Reads curves: of runs here, of `trainer_state.json` (TRL, transformers), of Stable-Baselines3's `progress.csv` and
`monitor.csv`, and of plain CSV, TSV and Parquet tables.

Nothing is written, and no code of a file is run. Left out: TensorBoard's event files, Weights & Biases."""

from __future__ import annotations

import csv
import json
import math
import re
import warnings
from collections.abc import Mapping, Sequence
from itertools import accumulate, chain
from pathlib import Path
from typing import Any

from shuhari.kernel.findings import AnalysisError, Curves
from shuhari.store import Run
from shuhari.store.files import read_file
from shuhari.store.listing import find_tested, name_task
from shuhari.store.schema import FILE

STATE, PROGRESS, MONITOR = "trainer_state.json", "progress.csv", "monitor.csv"
STEPS = "time/total_timesteps"  # the column of Stable-Baselines3's progress
AXES = ("step", "global_step", STEPS, "total_timesteps", "timesteps", "env_steps", "tokens", "epoch", "episode", "x")
OPEN = ("run", "metric", "step", "value")  # columns of an open table, a row a number; others are facts of the run
MOST = 1 << 30  # bytes of a table
SEPARATORS = {".csv": ",", ".tsv": "\t"}
TABLES = (*SEPARATORS, ".parquet")


def read_all(path: Path, name: str = "") -> list[Curves]:
    """Read the curves of all runs at a path: several if it is an open table, with columns `run`, `metric`, `step` and
    `value`. Raises as `read_curves` does."""
    if path.suffix not in TABLES or path.name.endswith(MONITOR) or not path.is_file():
        return [read_curves(path, name)]
    rows = _read_rows(path)
    return _split_table(path, rows) if rows and rows[0].keys() >= set(OPEN) else [_make_table(path, name, rows)]


def _split_table(path: Path, rows: Sequence[Mapping[str, Any]]) -> list[Curves]:
    """Return the runs of an open table, in the order in which they come."""
    found: dict[str, dict[float, dict[str, Any]]] = {}
    facts: dict[str, dict[str, str]] = {}
    for i, row in enumerate(rows, 2):
        step, value = _to_number(row["step"]), _to_number(row["value"])
        if step is None or value is None:
            said = f"step {row['step']!r} and value {row['value']!r}"
            raise AnalysisError(f"{path} line {i}: {said}: expected two numbers")
        run = str(row["run"])
        found.setdefault(run, {}).setdefault(step, {"step": step})[str(row["metric"])] = value
        facts[run] = {k: str(v) for k, v in row.items() if k not in OPEN and v not in (None, "")}
    out = []
    for run, steps in found.items():
        columns = _stack([steps[step] for step in sorted(steps)])
        out.append(Curves(run, path, "table", columns, "step", facts[run].get("method", ""), facts[run]))
    return out


def read_curves(path: Path, name: str = "") -> Curves:
    """Read the curves at a path: a run, a folder with a file of one of the known names, or a file. `name`: of the run
    (default: the path's). Raises AnalysisError naming the line, and the columns that are expected."""
    name = name or path.name
    if (path / FILE).is_file():
        run = Run(path)
        return Curves(name, path, "run", _drop_texts(run.metrics()), facts=_describe_run(run))
    if path.is_dir():
        path = _find_in(path)
    if not path.is_file():
        raise AnalysisError(f"no run and no file {str(path)!r}: expected a run, or one of {_describe()}")
    if path.name == STATE:
        return Curves(name, path, "trainer", _read_trainer(path))
    if path.name.endswith(MONITOR):
        return Curves(name, path, "monitor", _read_monitors(path), "timesteps")
    if path.suffix not in TABLES:
        raise AnalysisError(f"{path} is not known as curves: expected a run, or one of {_describe()}")
    return _make_table(path, name, _read_rows(path))


def _make_table(path: Path, name: str, rows: Sequence[Mapping[str, Any]]) -> Curves:
    """Return the curves of a table that is one run."""
    columns = _to_columns(rows)
    kind = "progress" if path.name == PROGRESS and STEPS in columns else "table"
    axis = next((one for one in AXES if one in columns), "")
    if not axis:
        axis, columns = "row", {"row": list(range(len(next(iter(columns.values()), [])))), **columns}
    if len(columns) < 2 or not columns[axis]:
        raise AnalysisError(f"{path} has no row of numbers: expected a column such as {AXES[0]!r}, and one a metric")
    return Curves(name or path.name, path, kind, columns, axis)


def _describe_run(run: Run) -> dict[str, str]:
    """Return what a run says of itself: recipe, task, seed, the methods that are laid over it."""
    recipe = run.recipe
    laid = "+".join(recipe.get("laid", {}))
    method = f"{recipe.get('name', '')}{'+' if laid else ''}{laid}"
    seed = str(recipe.get("seed", 0))
    return {"method": method, "task": describe_tested(recipe), "seed": seed, "made_with": "shuhari"}


def describe_tested(recipe: Mapping[str, Any]) -> str:
    """Return the task that a run is tested on, with its settings but for the seed: runs of which it is equal can be
    compared."""
    table = find_tested(recipe)
    settings = {key: value for key, value in table.items() if key not in ("name", "seed")}
    return f"{name_task(table)} {json.dumps(settings, sort_keys=True)}" if settings else name_task(table)


def _describe() -> str:
    return f"{STATE}, {PROGRESS}, {MONITOR}, a .csv, a .tsv, a .parquet"


def _find_in(folder: Path) -> Path:
    """Return the file of curves in a folder; of several checkpoints that of the last."""
    for name in (STATE, PROGRESS, MONITOR):
        if (folder / name).is_file():
            return folder / name
    states = sorted(folder.glob(f"checkpoint-*/{STATE}"), key=lambda p: int(re.sub(r"\D", "", p.parent.name) or 0))
    monitors = sorted(folder.glob(f"*.{MONITOR}"))
    if states or monitors:
        return states[-1] if states else monitors[0]
    there = ", ".join(sorted(p.name for p in folder.iterdir())[:8]) or "nothing"
    raise AnalysisError(f"{folder} is no run and has no curves (there: {there}): expected {STATE}, {PROGRESS} or "
                        f"{MONITOR} in it, or the path of a table")  # fmt: skip


def _read_text(path: Path) -> str:
    try:
        return read_file(path, MOST).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise AnalysisError(f"{path}: {error}") from None


def _stack(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return the columns of rows, None if a row has no value."""
    names = dict.fromkeys(chain.from_iterable(rows))
    out: dict[str, list[Any]] = {}
    for name in names:
        out[name] = [row.get(name) for row in rows]
    return out


def _drop_texts(columns: Mapping[str, Sequence[Any]]) -> dict[str, list[Any]]:
    """Return the columns that have a number, and the stages."""
    return {name: list(values) for name, values in columns.items()
            if name == "stage" or any(isinstance(v, int | float) for v in values)}  # fmt: skip


# ------------------------------------------------------------------------------------------------ of transformers


def _read_trainer(path: Path) -> dict[str, list[Any]]:
    """Return the columns of `log_history`, whose entries of one step are one row."""
    try:
        state = json.loads(_read_text(path))
        entries = state["log_history"]
        rows: dict[int, dict[str, Any]] = {}
        for i, entry in enumerate(entries):
            if not isinstance(entry, dict) or not isinstance(entry.get("step"), int):
                raise AnalysisError(f"{path}: entry {i + 1} of log_history has no whole number `step`")
            numbers = {k: v for k, v in entry.items() if isinstance(v, int | float)}
            rows.setdefault(entry["step"], {}).update(numbers)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        if isinstance(error, AnalysisError):
            raise
        message = f"{path} is no whole {STATE} ({type(error).__name__}: {error})"
        raise AnalysisError(f"{message}: expected the list `log_history` of entries with `step`") from None
    if not rows:
        raise AnalysisError(f"{path}: log_history is empty: nothing was logged before it was saved")
    return _stack([{"step": step, **rows[step]} for step in sorted(rows)])


# ------------------------------------------------------------------------------------------------ of Stable-Baselines3


def _read_monitors(path: Path) -> dict[str, list[Any]]:
    """Return the episodes of a monitor file, or of all in its folder if they are numbered, in the order in which they
    ended: `r`, `l`, `t` (seconds), further columns, and `timesteps`, the environment's steps so far."""
    files = [path] if path.name == MONITOR else sorted(path.parent.glob(f"*.{MONITOR}"))
    rows: list[tuple[float, dict[str, Any]]] = []
    for file in files:
        first, _, rest = _read_text(file).partition("\n")
        try:
            begun = float(json.loads(first.removeprefix("#"))["t_start"]) if first.startswith("#") else math.nan
        except (ValueError, TypeError, KeyError):
            begun = math.nan
        if math.isnan(begun):
            raise AnalysisError(f"{file} line 1: expected # and an object with t_start, as Stable-Baselines3's Monitor "
                                "writes")  # fmt: skip
        head, cells = _read_cells(rest.splitlines(), file, ",", 2)
        if missing := [name for name in ("r", "l", "t") if name not in head]:
            raise AnalysisError(f"{file} line 2: no column {missing[0]!r}: expected r, l and t")
        for row in cells:
            episode = {name: _to_number(cell) for name, cell in row.items()}
            rows.append((begun + (episode["t"] or 0.0), episode))
    rows.sort(key=lambda row: row[0])
    if not rows:
        raise AnalysisError(f"{path} has no finished episode")
    steps = list(accumulate(row["l"] or 0.0 for _, row in rows))
    return {"timesteps": list(steps), **_stack([row for _, row in rows])}


# ------------------------------------------------------------------------------------------------ of tables


def _read_rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a CSV, TSV or Parquet file as they are written: cells of the first two are texts."""
    if path.suffix == ".parquet":
        from shuhari.tasks.parquet import read_parquet

        try:
            return [row for _, row in read_parquet(path, path.name, MOST)]
        except (ValueError, ModuleNotFoundError) as error:
            raise AnalysisError(str(error)) from None
    text = _read_text(path)
    if text and not text.endswith(("\n", "\r")):
        warnings.warn(f"{path}: its last line has no end: it may be cut", stacklevel=2)
    return _read_cells(text.splitlines(), path, SEPARATORS[path.suffix], 1)[1]


def _read_cells(
    lines: Sequence[str], path: Path, separator: str, at: int
) -> tuple[list[str], list[dict[str, Any]]]:
    """Return (head, rows) of a table's lines, without empty ones. `at`: the line of the head."""
    try:
        rows = list(csv.reader(lines, delimiter=separator, strict=True))
    except csv.Error as error:
        raise AnalysisError(f"{path}: {error}") from None
    if not rows or len(set(rows[0])) < len(rows[0]):
        raise AnalysisError(f"{path} line {at}: expected a head of different names of columns")
    head = rows[0]
    for i, row in enumerate(rows[1:], at + 1):
        if row and len(row) != len(head):
            shown = ", ".join(head[:8]) + (", ..." if len(head) > 8 else "")
            raise AnalysisError(f"{path} line {i} has {len(row)} of the {len(head)} columns {shown}: is the file cut?")
    return head, [dict(zip(head, row, strict=True)) for row in rows[1:] if row]


def _to_columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return the columns of rows that have a number; a cell that is empty, or no number, is None."""
    numbers = {name: list(map(_to_number, values)) for name, values in _stack(rows).items()}
    return {name: values for name, values in numbers.items() if set(values) != {None}}


def _to_number(value: Any) -> float | None:
    return value if isinstance(value, int | float) else _read_number(str(value))


def _read_number(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return None
