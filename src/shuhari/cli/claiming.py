"""`claim`: what a method's paper says, measured against its baseline."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shuhari.cli.text import as_json, note, number, say, table

if TYPE_CHECKING:
    from shuhari.claims.runs import Progress

QUIET = 15.0  # seconds between two lines where the output is no terminal


def claim(
    recipes: Annotated[list[str] | None, typer.Argument(metavar="RECIPE...", help="family/method, or a .toml.")] = None,
    smoke: Annotated[bool, typer.Option("--smoke", help="A minute's version on two seeds; no result is kept.")] = False,
    stale: Annotated[bool, typer.Option("--stale", help="Only those, or of all, whose result is out of date.")] = False,
    workers: Annotated[int, typer.Option(min=0, help="Processes (0: one a core).")] = 0,
    out: Annotated[Path, typer.Option(help="Where results go.")] = Path("results"),
    runs: Annotated[Path, typer.Option(help="Where runs are made; what is there is used again.")] = Path("runs/claims"),
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure the claims of recipes: both arms over common seeds, a paired interval, and a verdict.

    A claim that was stopped goes on where it stood. Results go to OUT/claims/<family>/<method>.json, curves to
    OUT/plots/<family>/<method>.png.

    Example: shuhari claim rlvr/pacs
    """
    from shuhari.claims.claim import read

    named = _stale(out, recipes) if stale else list(dict.fromkeys(recipes or []))
    if not named:
        if not stale:
            raise typer.BadParameter("which recipe? `shuhari methods` lists them; --stale takes what is out of date")
        say("every result is up to date")
        return
    claims = [read(name, smoke=smoke) for name in named]  # a mistake in one is found before the first run
    for option, folder in (("--out", out), ("--runs", runs)):
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise typer.BadParameter(f"{folder} cannot be written: {error.strerror}", param_hint=option) from None
    found = []
    for one in claims:
        result = _measured(one, workers, runs, out)
        found.append(result)
        if not json:
            _show(result)
        if not smoke:
            from shuhari.claims.result import write

            say(f"result: {write(result, out)}") if not json else write(result, out)
    if json:
        as_json(found)


def _measured(one: Any, workers: int, root: Path, out: Path) -> dict[str, Any]:
    from shuhari.claims.result import hashes, quantities_of, result_of
    from shuhari.claims.runs import make
    from shuhari.library import result as kept

    quantities, told = quantities_of(one), hashes(one)
    try:
        with _told(one.name) as tell:
            made = make(one, quantities, root, workers=workers, tell=tell)
    except KeyboardInterrupt:
        note(f"stopped; the runs that were made are in {root}, and the same command goes on")
        raise
    return result_of(one, quantities, made, kept(one.name, out / "claims"), told)


def _stale(out: Path, given: list[str] | None) -> list[str]:
    """Those of the recipes `given` (none: of all that state a claim) whose result is missing, out of date, or of an
    older core."""
    from shuhari.claims.claim import read
    from shuhari.claims.result import stale as why
    from shuhari.claims.sources import version
    from shuhari.library import result as kept
    from shuhari.recipe import load, names

    found = []
    for name in given or [n for n in names() if load(n).tree.get("claim")]:
        result = kept(load(name).name, out / "claims")
        reason = "not measured" if result is None else why(read(name), result)
        reason = reason or ("older core" if result is not None and result["hashes"]["core"] != version() else "")
        if reason:
            note(f"{name}: {reason}")
            found.append(name)
    return found


@contextmanager
def _told(name: str) -> Iterator[Callable[[Progress], None]]:
    """Shows how far a claim is: a bar on a terminal, a line now and then elsewhere."""
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    console = Console(stderr=True)
    if console.is_terminal:
        columns = (TextColumn(name), BarColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
        with Bar(*columns, TimeRemainingColumn(), console=console) as bar:
            task = bar.add_task("", total=1.0)
            yield lambda p: bar.update(task, completed=p.share, description=f"{p.done}/{p.total} {p.now}")
        return
    last = [-QUIET, time.monotonic(), 0.0]  # told at, began at, the share that was there before

    def tell(p: Progress) -> None:
        now = time.monotonic()
        last[2] = p.share if last[0] < 0 else last[2]
        if p.finished or now - last[0] > QUIET:
            gone, done = now - last[1], p.share - last[2]
            left = f", ETA {gone * (1 - p.share) / done:.0f} s" if done > 0.02 else ""
            end = f"; {p.finished}" if p.finished else ""
            note(f"{name}: {p.done}/{p.total} runs, {p.share:.0%}{left}{end}")
            last[0] = now

    yield tell


def _show(result: dict[str, Any]) -> None:
    say(f"{result['method']}: {result['verdict']}")
    if result["says"]:
        say(result["says"])
    rows = []
    for check in result["checks"]:
        means = {arm: _mean(values) for arm, values in check["values"].items()}
        against = check["against"] if isinstance(check["against"], str) else None
        other = means.get(against) if against else check["against"]
        times = f" x {check['factor']:g}" if check["factor"] != 1 else ""
        interval = f"[{number(check['low'])}, {number(check['high'])}]" if check["low"] is not None else "-"
        what = check.get("metric") or check.get("use", "")
        rows.append((
            what, check["direction"], f"{check['arm']} {number(means[check['arm']])}",
            f"{against or 'number'}{times} {number(other)}", check["difference"], interval,
            check["verdict"] + (f" ({check['why']})" if "why" in check else ""),
        ))  # fmt: skip
    table(("what", "claimed", "arm", "against", "difference", "95 % interval", "verdict"), rows)


def _mean(values: list[float | None]) -> float | None:
    there = [v for v in values if v is not None]
    return sum(there) / len(there) if there else None
