"""`sweep`: search settings of a recipe, and test the best ones on other seeds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from shuhari.desk.cli.text import note, print_json, print_table, say

TRIALS, TESTS = 16, "1000,1001,1002"  # defaults


def sweep(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="A recipe's name, or a .toml file.")],
    over: Annotated[
        list[str],
        typer.Option(metavar="KEY=...", help="To vary: KEY=LOW..HIGH, 'KEY=log LOW..HIGH', a list; may be repeated."),
    ],
    trials: Annotated[int, typer.Option(min=1, help="Number of trials.")] = TRIALS,
    metric: Annotated[
        list[str] | None, typer.Option(help="Maximize its last value (default: evaluate/greedy).")
    ] = None,
    minimize: Annotated[list[str] | None, typer.Option(help="A metric to minimize, alone or beside others.")] = None,
    seeds: Annotated[str, typer.Option(help="Tuning seeds, joined by commas; a trial's score is their mean.")] = "0",
    test_seeds: Annotated[
        str, typer.Option(help="Seeds for the test of the best settings and of the recipe's own; '' leaves it out.")
    ] = TESTS,
    sampler: Annotated[str, typer.Option(help="tpe or random.")] = "tpe",
    hyperband: Annotated[bool, typer.Option("--hyperband", help="End trials that fall behind early.")] = False,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the search.")] = 0,
    sets: Annotated[list[str] | None, typer.Option("--set", help="A setting of all trials; may be repeated.")] = None,
    methods: Annotated[list[str] | None, typer.Option("--with", help="A method laid over the recipe.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder (default: runs/sweeps/RECIPE).")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:  # fmt: skip
    """Search settings of a recipe by optuna, one trial at a time, and test the best ones on other seeds.

    The same command continues a sweep that was stopped, to the bit; more --trials continue one that has ended. Score on
    tuning seeds less score on test seeds is the overfit gap: the best of many trials looks better than it is. The best
    settings are written as a recipe, OUT/best.toml. With several objectives the trials that no other beats are the
    best, and their hypervolume is told.

    Example: shuhari sweep baselines/ppo_cartpole --over 'part.policy.optimiser.lr=log 1e-4..1e-2' --set env_steps=20000

    Example: shuhari sweep my.toml --over 'rollout.n=[4, 8]' --metric evaluate/mean --minimize spent/tokens
    """
    from shuhari.config import recipe as recipes
    from shuhari.config.overlay import read_settings
    from shuhari.desk.cli.claiming import end_by_sigterm
    from shuhari.lab.sweeps.space import read_space
    from shuhari.lab.sweeps.sweep import PICTURE, Objective, Sweep, run_sweep

    if sampler not in ("tpe", "random"):
        raise typer.BadParameter(f"{sampler!r}: expected tpe or random", param_hint="--sampler")
    found = recipes.load(recipe, settings=read_settings(sets or []), methods=methods or [])
    goals = [Objective(name) for name in metric or ([] if minimize else ["evaluate/greedy"])]
    goals += [Objective(name, up=False) for name in minimize or []]
    asked = Sweep(found, read_space(over), tuple(goals), trials, _read_seeds(seeds, "--seeds"),
                  _read_seeds(test_seeds, "--test-seeds"), sampler, hyperband, seed)  # fmt: skip
    if not asked.seeds:
        raise typer.BadParameter("expected at least one", param_hint="--seeds")
    _check_settings(asked)
    _check_optuna()
    at = out or Path("runs/sweeps") / found.name.replace("/", "-")
    try:
        with end_by_sigterm():
            result = run_sweep(asked, at, note)
    except KeyboardInterrupt:
        note(f"stopped; trials that have ended are in {at / 'trials.jsonl'}, and the same command goes on")
        raise
    _write_best(result, recipe, at, read_settings(sets or []))
    if json:
        print_json(result)
        return
    show_sweep(result)
    say(f"best settings as a recipe: {at / 'best.toml'}; all trials: {at / 'trials.jsonl'}; picture: {at / PICTURE}")


def _check_optuna() -> None:
    try:
        import optuna  # noqa: F401
    except ModuleNotFoundError:
        raise typer.BadParameter('sweeps need optuna: pip install "shuhari[studies]"') from None


def _read_seeds(text: str, option: str) -> tuple[int, ...]:
    try:
        found = tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise typer.BadParameter(f"{text!r}: expected whole numbers joined by commas", param_hint=option) from None
    if len(set(found)) < len(found) or any(x < 0 for x in found):
        raise typer.BadParameter(f"{text!r}: expected different numbers of 0 or more", param_hint=option)
    return found


def _check_settings(asked: Any) -> None:
    """Refuse, before the first trial, a setting that the recipe does not have, by both ends of its range."""
    from shuhari.config.build import build_stages
    from shuhari.lab.sweeps.space import Choice

    for key, law in asked.space.items():
        for value in law.values if isinstance(law, Choice) else (law.low, law.high):
            build_stages(asked.recipe.with_settings({key: value}).stages)


def show_sweep(result: Mapping[str, Any]) -> None:
    """Print the trials, the best first, the test and the importances."""
    names = [one["metric"] for one in result["objectives"]]
    keys = list(result["space"])
    best = {one["number"] for one in result["best"]}
    up = result["objectives"][0]["up"]

    def rank(trial: Mapping[str, Any]) -> float:
        return (-1 if up else 1) * trial["values"][0] if trial["values"] else math.inf

    rows = []
    for trial in sorted(result["trials"], key=rank):
        values = trial["values"] or [None] * len(names)
        rows.append((trial["number"], "*" if trial["number"] in best else "", trial["state"], *values,
                     *(trial["settings"][key] for key in keys)))  # fmt: skip
    print_table(("trial", "best", "state", *names, *keys), rows)
    if "hypervolume" in result:
        worst = ", ".join(f"{x:.4g}" for x in result["reference"])
        say(f"hypervolume {result['hypervolume']:.4g} above {worst}, the worst values seen")
    if result["importance"]:
        shares = ", ".join(f"{key} {value:.0%}" for key, value in result["importance"].items())
        say(f"importance (fANOVA, share of the variance over trials): {shares}")
    if "test" in result:
        _show_test(result["test"], names)


def _show_test(test: Sequence[Mapping[str, Any]], names: Sequence[str]) -> None:
    from shuhari.desk.cli.measuring import format_interval

    rows = []
    for row in test:
        for i, name in enumerate(names):
            gain = row.get("gain", [[None] * 3] * len(names))[i]
            gap = row["overfit"][i] if "overfit" in row else None
            rows.append((row["of"], name, row["mean"][i], gap, gain[0], format_interval(gain[1], gain[2])))
    print_table(("settings", "metric", "test seeds", "overfit gap", "gain over own", "95 % interval"), rows)


def _write_best(result: Mapping[str, Any], recipe: str, at: Path, settings: Mapping[str, Any]) -> None:
    """Write the best settings, of several objectives the first of the best, as a recipe."""
    import tomli_w

    from shuhari.config.overlay import lay, nest, split_path

    tree: dict[str, Any] = {}
    for key, value in {**settings, **result["best"][0]["settings"]}.items():
        lay(tree, nest(split_path(key), value), "", {})
    path = Path(recipe)
    base = str(path.resolve()) if path.suffix == ".toml" and path.is_file() else recipe
    text = tomli_w.dumps({"format": 2, "extends": base, **tree})
    (at / "best.toml").write_text(f"# Found by shuhari sweep: trial {result['best'][0]['number']} of "
                                  f"{len(result['trials'])}.\n{text}", encoding="utf-8")  # fmt: skip
