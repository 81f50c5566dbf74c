"""`claim --bed` and `claim --matrix`: any method on any bed, and a table of all results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from shuhari.desk.cli import verdicts
from shuhari.desk.cli.comparing import show_sides
from shuhari.desk.cli.text import note, print_json, print_table, say

if TYPE_CHECKING:
    from shuhari.lab.claims.pool import Progress


def check_bed(option: str, bed: str) -> None:
    """Raises BadParameter for an unknown bed, with the nearest one or a list of all."""
    from shuhari.config.library import BEDS, CONTROL
    from shuhari.config.recipe import RecipeError, find_file, list_names

    try:
        if bed:
            find_file(bed)
    except RecipeError as error:
        beds = [n for n in list_names() if n.startswith(f"{BEDS}/") and CONTROL not in n.split("/")]
        near = "" if "did you mean" in error.problem else f"; beds are {', '.join(beds)}"
        raise typer.BadParameter(f"{error.problem}{near}", param_hint=option) from None


def run_exploration(
    name: str,
    bed: str,
    metric: str,
    margin: float,
    seeds: int,
    dry: bool,
    workers: int,
    runs: Path,
    out: Path,
    tell: Callable[[Progress], None],
) -> tuple[dict[str, Any] | None, Path | None]:
    """Measure a method on a bed, and return its result and file; a dry run prints its plan and returns neither."""
    from shuhari.lab.claims.explore import WHY, explore, folder_of
    from shuhari.lab.claims.measure import measure
    from shuhari.lab.claims.result import read_kept, write
    from shuhari.lab.claims.tries import file_of

    if not name:
        raise typer.BadParameter("which method? `shuhari methods` lists them")
    one = explore(name, bed, metric, margin, seeds)
    at = folder_of(one.bed, out)
    if dry:
        verdicts.show_plan(one, runs, at)
        return None, None
    before, begun = read_kept(one.name, at / "claims"), file_of(one.name, at)
    result = measure(one, runs, before, workers=workers, tell=tell, begun=begun)
    result |= {"bed": one.bed, "exploratory": [WHY]}
    return result, write(result, at)


def show(result: dict[str, Any] | None, path: Path | None, json: bool) -> None:
    """Print a result."""
    if json and result is not None:
        print_json(result)
    elif result is not None:
        verdicts.show(result)
        say(f"exploratory; result: {path}")
        if path is not None:
            verdicts.say_plot(result, path.parents[len(Path(result["method"]).parts)])


def show_together(results: Sequence[Mapping[str, Any]], json: bool) -> None:
    """Print several methods on one bed beside its baseline, at levels that hold for all of them."""
    from shuhari.desk.sides import compare_together

    if json or len(results) < 2:
        return
    for sides in compare_together(results):
        say("")
        show_sides(sides, "seeds")
        for caveat in sides.caveats:
            note(caveat)


def show_matrix(out: Path, json: bool) -> None:
    """Print methods by beds."""
    from dataclasses import asdict

    from shuhari.lab.claims.explore import arrange, read_cells

    if json:
        print_json([asdict(cell) for cell in read_cells(out)])
        return
    head, *rows = arrange(out)
    if not rows:
        raise typer.BadParameter(f"no results in {out}", param_hint="--out")
    print_table(head, rows)
    say("effect [interval] of the headline, or of the first check; ? is exploratory: no protocol was fixed before")
