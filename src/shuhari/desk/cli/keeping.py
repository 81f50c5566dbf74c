"""`claim --show`, `--stale`: stored results of claims, on their own beds and on others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from shuhari.desk.cli import verdicts
from shuhari.desk.cli.text import note, print_json, print_table, say

if TYPE_CHECKING:
    from shuhari.lab.claims.claim import Claim


@dataclass(frozen=True)
class Place:
    """The claim of a recipe, on its own bed or on another, with its result below `out`."""

    recipe: str
    out: Path
    bed: str = ""

    def __str__(self) -> str:
        return f"{self.recipe} on {self.bed}" if self.bed else self.recipe

    def read(self, *, smoke: bool = False) -> Claim:
        from shuhari.lab.claims.claim import read
        from shuhari.lab.claims.scale import read_on

        return read_on(self.recipe, self.bed, smoke=smoke) if self.bed else read(self.recipe, smoke=smoke)

    def read_kept(self) -> dict[str, Any] | None:
        """Read its result; None if there is none."""
        from shuhari.config.recipe import load
        from shuhari.lab.claims.result import read_kept

        return read_kept(load(self.recipe).name, self.out / "claims")


def place(recipe: str, out: Path, bed: str = "") -> Place:
    """Return the place of a recipe's result; with `bed`, on that bed instead of its own."""
    from shuhari.lab.claims.scale import folder_of

    return Place(recipe, folder_of(bed, out), bed) if bed else Place(recipe, out)


def list_places(recipes: Sequence[str], out: Path, bed: str = "") -> list[Place]:
    """Return for each recipe (none given: for all) the place of its own claim, and of those on other beds with results;
    with `bed`, only that one."""
    from shuhari.config.recipe import list_names, load
    from shuhari.lab.claims.scale import find_beds

    found = []
    for recipe in recipes or list_names():
        measured = find_beds(out, load(recipe).name)
        own = [place(recipe, out)] if not bed else [place(recipe, out, bed)] if recipes or bed in measured else []
        found += [*own, *(place(recipe, out, other) for other in measured if not bed)]
    return found


def show_kept(places: Sequence[Place], json: bool) -> None:
    """Print results: the stored ones or, with a note, the packaged ones."""
    from shuhari.config.recipe import load
    from shuhari.lab.claims.claim import point_to_shown
    from shuhari.lab.claims.result import read_kept

    results = []
    for one in places:
        recipe, result = load(one.recipe), one.read_kept()
        if result is None and not one.bed and (result := read_kept(recipe.name)) is not None:
            note(f"{recipe.name}: nothing in {one.out / 'claims'}; this is the result that shuhari brings")
        if result is None and not recipe.tree.get("claim"):
            raise typer.BadParameter(f"{one.recipe} states no claim{point_to_shown(one.recipe)}")
        if result is None:
            who, told = (f" on {one.bed}", f"--on {one.bed}") if one.bed else ("", f"--out {one.out}")
            raise typer.BadParameter(f"{recipe.name}{who}: not measured; `shuhari claim {one.recipe} {told}` does it")
        results.append(result)
    if json:
        print_json(results)
        return
    for one, result in zip(places, results, strict=True):
        if one.bed:
            say(f"on {one.bed}:")
        verdicts.show(result)


def find_stale(places: Sequence[Place], *, named: bool) -> dict[Place, str]:
    """Return place -> reason, for results that are out of date, of an earlier version of the code or, if `named`,
    missing."""
    from shuhari.config.overlay import RecipeError
    from shuhari.lab.claims.result import find_stale as why
    from shuhari.lab.claims.sources import is_older
    from shuhari.lab.claims.wording import EARLIER

    found = {}
    for one in places:
        try:
            result = one.read_kept()
        except RecipeError as error:
            note(f"{one}: {error}")  # the others continue
            continue
        if result is None and not named:
            continue
        reason = "not measured" if result is None else result.get("stale", "") or why(one.read(), result)
        reason = reason or (EARLIER if result is not None and is_older(result["hashes"]) else "")
        if reason:
            found[one] = reason
    return found


def describe_none(places: Sequence[Place], why: Mapping[Place, str], out: Path) -> str:
    """Return the message if no result is out of date, for the results at `places` that could be read."""
    there = 0 if why else sum((one.out / "claims" / f"{one.recipe}.json").is_file() for one in places)
    what = f"every result is up to date, all {there} in {out}" if there > 1 else "the result is up to date"
    return what if there else f"no result is in {out}: nothing was measured there (--out says where results are)"


def list_stale(why: Mapping[Place, str], json: bool, none: str) -> None:
    """Print the claims with outdated results and the reasons; `none` if there are none."""
    if json:
        rows = [{"recipe": one.recipe, **({"on": one.bed} if one.bed else {}), "why": why[one]} for one in why]
        print_json(rows)
    elif why:
        print_table(("recipe", "its result"), [(str(one), reason) for one, reason in why.items()])
        say("shuhari claim --prove tries which of them stand; shuhari claim RECIPE... measures those that it names")
    else:
        say(none)
