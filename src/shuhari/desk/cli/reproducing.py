"""`reproduce`: measure published numbers again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from shuhari.desk.cli.claiming import end_by_sigterm, show_progress
from shuhari.desk.cli.options import check_together
from shuhari.desk.cli.text import note, print_json, print_table, say

READS = {"": "NAME... --seeds --workers --data --out --runs --json", "--list": "NAME... --out --json"}
MODULES = {  # extra -> what it installs
    "control": "mujoco", "box2d": "Box2D", "minatar": "minatar", "atari": "ale_py", "ogbench": "ogbench",
}  # fmt: skip


def reproduce(
    ctx: typer.Context,
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME...", help="Published numbers, such as ppo-hopper; or `all`.")
    ] = None,
    show: Annotated[bool, typer.Option("--list", help="List the protocols and what is measured; run nothing.")] = False,
    seeds: Annotated[int, typer.Option(min=0, help="So many, from seed 0 on (0: those of the protocol).")] = 0,
    workers: Annotated[int, typer.Option(min=0, help="Processes (0: one a core).")] = 0,
    data: Annotated[Path, typer.Option(help="The folder with recorded data, if some are needed.")] = Path("data"),
    out: Annotated[Path, typer.Option(help="Where results go.")] = Path("results"),
    runs: Annotated[Path, typer.Option(help="Where runs are made; one complete there is not made again.")] = Path(
        "runs/reproduce"
    ),
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure published numbers again by the published protocol, and print ours beside them.

    A command that was stopped goes on where it stood. Results go to OUT/reproduce/NAME.json, with the curve of each
    seed, and OUT/reproduce/curves.png shows all of them. `reached`: our mean over seeds is at least the published mean
    less two standard errors of the difference; `above`: it is more than two above; `too wide`: these are more than a
    quarter of the number. A number of one run, or of another version of the environment, is shown without a mark.

    Example: shuhari reproduce ppo-hopper --seeds 5
    """
    from shuhari.lab.reproduce import picture, report
    from shuhari.lab.reproduce.recorded import check_data
    from shuhari.lab.reproduce.runs import ENDED, FOLDER, find_folder, list_runs, list_values, measure, read_result
    from shuhari.lab.reproduce.targets import find_target, read_targets

    check_together(ctx, READS)
    known = {name: replace(target, folder=str(data)) for name, target in read_targets().items()}
    whole = names == ["all"] or (show and not names)
    if names and "all" in names and not whole:
        raise typer.BadParameter(f"`all` stands alone, got {' '.join(names)}: expected all, or names")
    usual = [n for n in known if not known[n].data or (show and json)]
    chosen = usual if whole else [find_target(n).name for n in names or []]
    if not chosen:
        raise typer.BadParameter("which number? `shuhari reproduce --list` lists them, and `all` means all")
    if not show:
        for name in chosen:
            check_installed(known[name].needs)
            check_data(known[name], (runs / name).glob(f"seed-*/{ENDED}"))
        wanted = {n: (known[n], range(seeds or known[n].seeds)) for n in chosen}
        minutes = sum(target.minutes * len(s) for target, s in wanted.values())
        n = sum(len(s) for _, s in wanted.values())
        note(f"{n} run{'s' * (n != 1)}, about {minutes:.0f} minutes of one core in all")
        _make_folders({"--runs": runs, "--out": out})
        for name, (_, asked) in wanted.items():
            there = [run["seed"] for run in list_runs(read_result(name, out))]
            if more := [str(seed) for seed in there if seed not in asked]:
                note(f"{name}: {out / FOLDER} has seeds {', '.join(more)} from before: the table counts these, too")
            kept = [seed for seed in there if (find_folder(runs, name, seed) / ENDED).is_file()]
            if again := [str(seed) for seed in there if seed in asked and seed not in kept]:
                note(f"{name}: {out / FOLDER} has seeds {', '.join(again)}, and {runs} not their runs: these are made "
                     "again, and replace them")  # fmt: skip
        try:
            with end_by_sigterm(), show_progress("reproduce") as tell:
                measure(wanted, runs, out, workers=workers, tell=tell)
        except KeyboardInterrupt:
            begun = any((runs / name).is_dir() for name in wanted)
            note(f"stopped: what is there is in {runs}; the same command goes on" if begun else
                 "stopped before the first run had begun")  # fmt: skip
            raise
        drawn = out / FOLDER / "curves.png"
        if picture.save_curves(list(known), out, drawn):
            note(f"curves of all that is measured: {drawn}")
    if json:
        print_json([_to_plain(known[name], read_result(name, out)) for name in chosen])
        return
    print_table(report.HEAD, report.list_rows(chosen, out))
    for line in report.list_notes(chosen, out):
        say(line)
    if show:
        folder = out / FOLDER
        say(f"ours are the results in {folder}" if folder.is_dir() else f"no results in {folder}: --out names another")
        missing = {n: known[n].seeds - len(list_values(read_result(n, out))) for n in chosen}
        left = [n for n, seeds_left in missing.items() if seeds_left > 0]
        cost = sum(known[n].minutes * missing[n] for n in left)
        say(f"left: {', '.join(left) or 'nothing'}; about {cost:.0f} minutes of one core")
        if fetched := [n for n in chosen if known[n].data]:
            say(f"needs data from the network: {', '.join(fetched)}")
        if whole:
            head, rows = report.list_scores(out)
            print_table(head, rows)
            say("on recorded data, which have to be fetched: METHOD-DATA is a name, such as iql-hopper-medium, and "
                "--data the folder with their files")  # fmt: skip


def _make_folders(folders: Mapping[str, Path]) -> None:
    """Make the folders of options. Raises BadParameter with the option if one cannot be made."""
    for option, folder in folders.items():
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise typer.BadParameter(f"{folder}: {error.strerror}: expected a folder, or a name that is free",
                                     param_hint=option) from error  # fmt: skip


def check_installed(extra: str) -> None:
    """Raises RecipeError with the line for pip if an extra is not installed."""
    from shuhari.config.overlay import RecipeError

    if extra and find_spec(MODULES[extra]) is None:
        raise RecipeError("", f'it needs {MODULES[extra]}: pip install "shuhari[{extra}]"')


def _to_plain(target: Any, result: Mapping[str, Any] | None) -> dict[str, Any]:
    """A target and its result as JSON."""
    return {**asdict(target), "env": target.env, "result": result}
