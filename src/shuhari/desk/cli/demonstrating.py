"""`demonstrate`: show what a method changes, with and without it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from shuhari.desk.cli.claiming import end_by_sigterm, show_progress
from shuhari.desk.cli.options import check_together
from shuhari.desk.cli.text import note, print_json, print_table, say

HEAD = ("method", "quantity", "with", "without", "dose", "seeds")
READS = {
    "": "METHOD... --workers --out --runs --json",
    "--show": "METHOD... --out --json",
    "--dry-run": "METHOD...",
}


def demonstrate(
    ctx: typer.Context,
    methods: Annotated[
        list[str] | None, typer.Argument(metavar="METHOD...", help="family/method; none: all that have one.")
    ] = None,
    show: Annotated[bool, typer.Option("--show", help="Print what is kept; run nothing.")] = False,
    dry: Annotated[bool, typer.Option("--dry-run", help="Show both sides and the budget; run nothing.")] = False,
    workers: Annotated[int, typer.Option(min=0, help="Processes (0: one a core).")] = 0,
    out: Annotated[Path, typer.Option(help="Where results go.")] = Path("results"),
    runs: Annotated[Path, typer.Option(help="Where runs are made; what is there is used again.")] = Path("runs/claims"),
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Train with and without a method on the same seeds, and print its own quantity and its dose.

    The dose is the share of decisions, groups or rewards that the method changes. A demonstration compares no rivals
    and gives no verdict; `shuhari claim` does, for methods that have a claim. A command that was stopped goes on where
    it stood. Results go to OUT/demonstrations/<family>/<method>.json, curves to OUT/plots/<family>/<method>.png.

    Example: shuhari demonstrate rlvr/dr_grpo
    """
    from shuhari.config.library import refuse_part
    from shuhari.config.overlay import RecipeError
    from shuhari.lab import demonstrations
    from shuhari.lab.claims.checks import BASELINE
    from shuhari.lab.claims.pool import ClaimError
    from shuhari.lab.claims.result import describe_differences, find_differences

    check_together(ctx, READS)
    for name in methods or ():
        refuse_part(name)
    names = methods or demonstrations.list_names()
    shown = [demonstrations.read(name) for name in names]  # a mistake in one is found before the first run
    if dry:
        for one in shown:
            unit, amount = one.claim.budget or ("steps", 0.0)
            say(f"{one.name} on {one.claim.bed}: {amount:,.0f} {unit} a side, seeds {one.claim.seeds}")
            say(f"  quantity {one.stated.quantity}, dose {one.stated.dose}")
            changes = find_differences(one.claim, BASELINE)
            say(f"  without it: {', '.join(describe_differences(changes))}")
        return
    kept, failed = [], 0
    for one in shown:
        if show:
            found = demonstrations.read_result(one.name, out / demonstrations.FOLDER)
            if found is None and (found := demonstrations.read_result(one.name)) is not None:
                where = out / demonstrations.FOLDER
                note(f"{one.name}: nothing in {where}; this is the demonstration that shuhari brings")
            if found is None:
                note(f"{one.name}: not made yet: `shuhari demonstrate {one.name}`")
                continue
        else:
            runs.mkdir(parents=True, exist_ok=True)
            try:
                with show_progress(one.name) as tell, end_by_sigterm():
                    found = demonstrations.demonstrate(one, runs, workers=workers, tell=tell)
            except (ClaimError, RecipeError) as error:
                if len(shown) == 1:
                    raise
                note(f"{one.name}: {error}")  # the others continue
                failed += 1
                continue
            demonstrations.write(found, out)
        kept.append(found)
    if json:
        print_json(kept)
    elif kept:
        print_table(HEAD, [_list_cells(found) for found in kept])
    if failed:
        raise typer.Exit(1)


def _list_cells(found: Mapping[str, Any]) -> list[str]:
    def join(values: list[float | None]) -> str:
        return ", ".join("-" if v is None else f"{v:.3g}" for v in values)

    sides = (join(found[side]["values"]) for side in ("with", "without"))
    return [found["method"], found["quantity"], *sides, join(found["dose"]["values"]), str(len(found["seeds"]))]
