"""`claim`: test a paper's statement about its method against a baseline."""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from threading import current_thread, main_thread
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shuhari.desk.cli import exploring, keeping, verdicts
from shuhari.desk.cli.exploring import check_bed
from shuhari.desk.cli.options import check_together
from shuhari.desk.cli.text import make_console, make_printable, note, print_json, say

if TYPE_CHECKING:
    from shuhari.lab.claims.pool import Progress

QUIET = 15.0  # seconds between two lines if the output is not a terminal
READS = {
    "": "RECIPE... --smoke --on --workers --out --runs --json",
    "--board": "--by --out --runs --json",
    "--matrix": "--out --json",
    "--bed": "RECIPE... --dry-run --metric --margin --seeds --workers --out --runs --json",
    "--card": "RECIPE... --dry-run --workers --out --runs",
    "--tune": "RECIPE... --workers --out --runs --json",
    "--prove": "RECIPE... --stale --whole --quick --on --workers --out --runs --json",
    "--show": "RECIPE... --stale --on --out --runs --json",  # --runs: printed commands may end with it
    "--dry-run": "RECIPE... --stale --smoke --on --workers --out --runs",
    "--stale": "RECIPE... --on --out --runs --json",
}


def claim(
    ctx: typer.Context,
    recipes: Annotated[list[str] | None, typer.Argument(metavar="RECIPE...", help="family/method, or a .toml.")] = None,
    smoke: Annotated[bool, typer.Option("--smoke", help="A minute's version on two seeds; no result is kept.")] = False,
    stale: Annotated[bool, typer.Option("--stale", help="List the results that are out of date; run nothing.")] = False,
    show: Annotated[bool, typer.Option("--show", help="Print the results that are kept; run nothing.")] = False,
    dry: Annotated[bool, typer.Option("--dry-run", help="Show arms, budget and checks; run nothing.")] = False,
    prove: Annotated[bool, typer.Option("--prove", help="Rerun a part of each arm: does its result stand?")] = False,
    whole: Annotated[bool, typer.Option("--whole", help="With --prove: one seed of every arm to its end.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="With --prove: no arm to its end.")] = False,
    tune: Annotated[
        bool, typer.Option("--tune", help="Run the grids of the claim's `tune` table, on seeds of their own.")
    ] = False,
    board: Annotated[str, typer.Option(metavar="BED", help="Print the methods measured on BED, best first.")] = "",
    by: Annotated[str, typer.Option(help="With --board: the number to sort by ('': the bed's own score).")] = "",
    card: Annotated[bool, typer.Option("--card", help="Measure a bed beforehand: 24 runs of its baseline.")] = False,
    on: Annotated[str, typer.Option(metavar="BED", help="Measure the same claim on another bed.")] = "",
    bed: Annotated[str, typer.Option(help="Lay the method over BED and compare with that alone; exploratory.")] = "",
    metric: Annotated[str, typer.Option(help="With --bed: what is compared, such as evaluate/mean:area.")] = "",
    margin: Annotated[
        float, typer.Option(min=0.0, help="With --bed: the least effect of interest (0: chosen).")
    ] = 0.0,
    seeds: Annotated[int, typer.Option(min=0, help="With --bed: so many, once (0: look at 5, 8 and 12).")] = 0,
    matrix: Annotated[bool, typer.Option("--matrix", help="Print a table of methods by beds; run nothing.")] = False,
    workers: Annotated[int, typer.Option(min=0, help="Processes (0: one a core).")] = 0,
    out: Annotated[Path, typer.Option(help="Where results go.")] = Path("results"),
    runs: Annotated[Path, typer.Option(help="Where runs are made; what is there is used again.")] = Path("runs/claims"),
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure what a recipe's paper claims: method and baseline on the same seeds, an interval, and a verdict.

    A claim that was stopped resumes. Results go to OUT/claims/<family>/<method>.json, curves to
    OUT/plots/<family>/<method>.png. With --prove a part of every arm (method, baseline, ...) is run again: the result
    stands if it is the same bit for bit, otherwise it is marked stale.

    A bed is a small recipe on which methods are compared (docs/beds.md). With --bed any method, or several as A+B, is
    compared with any recipe alone; that is exploratory, and goes to OUT/explore/BED. With --on the same claim is
    measured on another bed, such as one of larger policies; that goes to OUT/scale/BED. --show and --stale include
    those results or, with --on, only that bed's.

    Example: shuhari claim rlvr/pacs
    """
    from shuhari.config.library import refuse_part
    from shuhari.config.overlay import RecipeError
    from shuhari.lab.claims.pool import ClaimError
    from shuhari.lab.claims.result import write

    check_together(ctx, READS)
    check_bed("--bed", bed)
    check_bed("--on", on)
    for name in recipes or ():
        refuse_part(name)
    if board:
        verdicts.show_board(board, by, out, json, runs)
        return
    if matrix:
        exploring.show_matrix(out, json)
        return
    if bed:
        made: list[dict[str, Any]] = []
        for name in recipes or [""]:
            with end_by_sigterm(), show_progress(f"{name} on {bed}") as tell:
                asked = (name, bed, metric, margin, seeds)
                result, path = exploring.run_exploration(*asked, dry, workers, runs, out, tell)
            exploring.show(result, path, json)
            made += [result] if result is not None else []
        exploring.show_together(made, json)
        return
    named = list(dict.fromkeys(recipes or []))
    if stale or (prove and not recipes):
        all_places = keeping.list_places(named, out, on)
        reasons = keeping.find_stale(all_places, named=bool(recipes))
        if not (prove or show or dry):
            keeping.list_stale(reasons, json, keeping.describe_none(all_places, reasons, out))
            return
        for at, reason in reasons.items():
            note(f"{at}: {reason}")
        places = list(reasons)
        if not places:
            say(keeping.describe_none(all_places, reasons, out))
            return
    elif not named:
        raise typer.BadParameter("which recipe? `shuhari methods` lists them, --stale those that are out of date")
    else:
        places = keeping.list_places(named, out, on) if show else [keeping.place(name, out, on) for name in named]
    if tune:
        _tune([at.read() for at in places], workers, runs, out, json)
        return
    if prove:
        from shuhari.desk.cli.proving import prove as proving

        if whole and quick:
            raise typer.BadParameter("--whole and --quick are opposites: give one")
        depth = "whole" if whole else "quick" if quick else "spot"
        with end_by_sigterm():
            stand = proving(places, runs, depth=depth, workers=workers, json=json, telling=show_progress)
        raise typer.Exit(0 if stand else 1)
    if show:
        keeping.show_kept(places, json)
        return
    out = places[0].out
    if card:
        with end_by_sigterm():
            for name in named:
                verdicts.show_card_plan(name, runs, out) if dry else _make_card(name, workers, runs, out)
        return
    claims = [at.read(smoke=smoke) for at in places]  # a mistake in one is found before the first run
    names = Counter((at.out, one.name) for at, one in zip(places, claims, strict=True))
    if twice := [name for (_, name), times in names.items() if times > 1]:
        why = f"two recipes are called {twice[0]!r}, and would share a result"
        raise typer.BadParameter(f"{why}: claim them apart, each with an --out of its own")
    if dry:
        for at, one in zip(places, claims, strict=True):
            verdicts.show_plan(one, runs, at.out)
            at.read(smoke=True)  # a mistake in `smoke` counts too
        return
    for option, folder in (("--out", out), ("--runs", runs))[smoke:]:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            TemporaryFile(dir=folder).close()
        except OSError as error:
            raise typer.BadParameter(f"{folder} cannot be written: {error.strerror}", param_hint=option) from None
    found, failed = [], 0
    for one in claims:
        try:
            result = _measure(one, workers, runs, out)
        except (ClaimError, RecipeError) as error:
            if len(claims) == 1:
                raise
            note(f"{one.name}: {error}")  # the others continue
            failed += 1
            continue
        found.append(result)
        path = None if smoke else write(result, out)
        if not json:
            verdicts.show(result)
            say(f"result: {path}" if path else "smoke: that it runs is all it says")
            if path:
                verdicts.say_plot(result, out)
    if json:
        print_json(found)
    if failed:
        raise typer.Exit(1)


def _measure(one: Any, workers: int, root: Path, out: Path) -> dict[str, Any]:
    from shuhari.lab.claims import registry, tuning
    from shuhari.lab.claims.measure import measure
    from shuhari.lab.claims.result import read_kept
    from shuhari.lab.claims.tries import file_of

    before, begun = (None, None) if one.smoke else (read_kept(one.name, out / "claims"), file_of(one.name, out))
    verdicts.note_shipped_result(one, before, out)
    last: list[Progress] = []
    try:
        with show_progress(one.name) as tell, end_by_sigterm():
            tuned = tuning.read(one.name, out / tuning.FOLDER) if one.tune else None
            log = out / registry.FILE

            def keep(p: Progress) -> None:
                last[:] = [p]
                tell(p)

            return measure(one, root, before, workers=workers, tell=keep, begun=begun, log=log, tuned=tuned)
    except KeyboardInterrupt:
        note(describe_stop(last[0] if last else None, root))
        raise


def describe_stop(last: Progress | None, root: Path) -> str:
    """Return what a claim leaves behind that was stopped after some progress; None: before its first run."""
    if last is None:
        return "stopped before the first run; the same command begins anew"
    of = f"stopped after {last.done} of {last.total} runs of this look"
    return f"{of}, which are in {root}; the same command goes on" if last.done else f"{of}; the same command goes on"


def _tune(claims: Sequence[Any], workers: int, runs: Path, out: Path, json: bool) -> None:
    """Run the grids of claims, store what was found, and print the best settings of each side."""
    from shuhari.lab.claims import tuning
    from shuhari.lab.claims.grids import SIDES

    for one in claims:
        if one.tune is None:
            raise typer.BadParameter(f"{one.name} has no `tune` table: docs/claims-reference.md shows one")
    made = []
    for one in claims:
        runs.mkdir(parents=True, exist_ok=True)
        with show_progress(f"{one.name} tuned") as tell, end_by_sigterm():
            found = tuning.tune(one, one.tune, runs, workers=workers, tell=tell)
        path = tuning.write(found, out)
        made.append(found)
        for side in () if json else SIDES:
            best = ", ".join(f"{key} = {value}" for key, value in found["sides"][side]["best"].items())
            say(f"{one.name} {side}: {best}")
        if not json:
            say(f"{path}; write these into the claim before it is measured")
    if json:
        print_json(made)


def _make_card(bed: str, workers: int, runs: Path, out: Path) -> None:
    from shuhari.lab.claims.making import make_card, plan_card, save_card

    runs.mkdir(parents=True, exist_ok=True)
    with show_progress(bed) as tell:
        made = make_card(bed, plan_card(bed), runs, workers=workers, tell=tell)
    spent = sum(sum(arm["cpu_s"]) for arm in made["arms"].values()) + sum(made["warm_cpu_s"])
    say(f"card: {save_card(made, out)}; {spent / 60:.1f} minutes of one core")


@contextmanager
def end_by_sigterm() -> Iterator[None]:
    """Treat SIGTERM like an interrupt inside, so that workers end and nothing is left behind."""

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop) if current_thread() is main_thread() else None
    try:
        yield
    finally:
        if before is not None:
            signal.signal(signal.SIGTERM, before)


@contextmanager
def show_progress(name: str) -> Iterator[Callable[[Progress], None]]:
    """Show the progress of a claim: a bar on a terminal, otherwise a line now and then."""
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    console = make_console(err=True)
    if console.is_terminal:
        texts = (TextColumn(text, markup=False) for text in ("{task.fields[name]}", "{task.description}"))
        columns = (next(texts), BarColumn(), next(texts), TimeElapsedColumn())
        with Bar(*columns, TimeRemainingColumn(), console=console) as bar:
            task = bar.add_task("", total=1.0, name=make_printable(name))
            yield lambda p: bar.update(
                task, completed=p.share, description=make_printable(f"{p.done}/{p.total} {p.now}")
            )
        return
    last = [-QUIET, time.monotonic(), 0.0]  # time of the last line, start time, initial share

    def show_line(p: Progress) -> None:
        now = time.monotonic()
        last[2] = p.share if last[0] < 0 else last[2]
        if p.finished or now - last[0] > QUIET:
            gone, done = now - last[1], p.share - last[2]
            left = f", ETA {gone * (1 - p.share) / done:.0f} s" if done > 0.02 else ""
            end = f"; {message}" if (message := p.finished or p.now) else ""
            note(f"{name}: {p.done}/{p.total} runs, {p.share:.0%}{left}{end}")
            last[0] = now

    yield show_line
