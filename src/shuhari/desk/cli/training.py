"""`train`: starts or resumes a run, or reports that it is complete; `--dry-run` describes it.

A first Ctrl-C or SIGTERM ends the run after the current step and saves; a second one stops at once, which loses what
came after the last checkpoint.
"""

from __future__ import annotations

import logging
import shlex
import signal
import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shuhari.desk.cli.diagnosing import say_findings
from shuhari.desk.cli.reading import show_profile
from shuhari.desk.cli.text import describe, describe_error, format_number, make_printable, note, print_table, say

if TYPE_CHECKING:
    from shuhari.config.recipe import Recipe
    from shuhari.desk.sinks import Watchers

MISTAKE, STOPPED = 2, 130
NEAR = 0.85  # of the limit: a mean length from where on many answers were cut
HANG_UP = (signal.SIGHUP,) if hasattr(signal, "SIGHUP") else ()  # closing the terminal also requests a stop


def train(
    recipe: Annotated[
        str, typer.Argument(help="family/method, a short name (ppo, grpo), a .toml file, or the folder of a run.")
    ],
    run: Annotated[Path | None, typer.Option(help="Folder of the run (default: under runs/).")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of everything random.")] = None,
    methods: Annotated[list[str] | None, typer.Option("--with", help="Lay a method over it; may be repeated.")] = None,
    sets: Annotated[list[str] | None, typer.Option("--set", help="A setting, a.b.c=value; may be repeated.")] = None,
    remove: Annotated[list[str] | None, typer.Option(help="A key to take out, a.b.c; may be repeated.")] = None,
    env: Annotated[str, typer.Option(metavar="ID", help="A Gymnasium id, as --set task.name=gym/ID.")] = "",
    init: Annotated[str, typer.Option(help="Start from the weights of RUN or RUN@step.")] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the resolved recipe and stop.")] = False,
    explain: Annotated[bool, typer.Option("--explain", help="As --dry-run, with what each setting is.")] = False,
    profile: Annotated[bool, typer.Option("--profile", help="Say where the time and the memory went.")] = False,
    log_to: Annotated[
        list[str] | None, typer.Option("--log-to", help="tensorboard[:DIR], wandb[:PROJECT], trackio[:PROJECT].")
    ] = None,
    accept: Annotated[bool, typer.Option("--accept-changes", help="Go on with data or code that has changed.")] = False,
    bold: Annotated[bool, typer.Option("--no-rehearsal", help="Do not try each stage before the first step.")] = False,
) -> None:
    """Train a recipe, or a method on its usual base. The same command again resumes the run where it stopped.

    A complete run continues if its last stage has a larger budget: --run RUN --set steps=200.

    A method is a recipe with only the changes of a paper; --with applies it to any recipe, several in order.

    Example: shuhari train baselines/grpo --with rlvr/kl_cov --set steps=50 --run runs/kl-cov
    """
    from shuhari.config.recipe import find_usual_base, load
    from shuhari.desk.cli.dry import list_nested
    from shuhari.desk.foreseen import foresee
    from shuhari.desk.naming import find_named
    from shuhari.desk.origins import list_undone

    sets = [*([f"task.name=gym/{env.removeprefix('gym/')}"] if env else []), *(sets or [])]
    typed, (recipe, more) = recipe, find_named(recipe, sets, remove or [])
    methods = [*more, *(methods or [])]
    if typed != recipe:
        note(f"{typed}: {recipe}{''.join(f' --with {name}' for name in more)}")
    found = load(recipe, sets, {} if seed is None else {"seed": seed}, methods, remove or [])
    laid = [*([recipe] if find_usual_base(recipe) else []), *methods]
    odd = [*list_nested(found), *list_undone(found, laid)]
    if dry_run or explain:
        from shuhari.config.schedules import list_misfits
        from shuhari.desk.cli.dry import dry_run as show_plan

        refused = show_plan(found, run or _make_path(found, init), explain=explain)
        for problem in [*list_misfits(found), *odd, *(f"the run would be refused: {why}" for why in refused)]:
            note(problem)
        if refused:
            raise typer.Exit(MISTAKE)
        return
    path = run or (Path(recipe) if (Path(recipe) / "recipe.toml").is_file() else _make_path(found, init))
    if run is not None and (stranger := _find_stranger(run)):
        raise typer.BadParameter(f"{run} is not a run and holds {stranger}: choose a folder that is empty, or new",
                                 param_hint="--run")  # fmt: skip
    if _is_complete(path, found, init):
        changed = _describe_changed(path, found)
        note(f"{path} is complete: nothing to do ({changed or 'another folder starts anew: --run'})")
        show_closing(path)
        return
    for problem in [*odd, *foresee(found, path)]:
        note(problem)
    command = _make_command(recipe, run, seed, methods, sets, remove or [], init)
    command += " --profile" if profile else ""
    command += "".join(f" --log-to {shlex.quote(text)}" for text in log_to or [])
    with _open_watchers(log_to or [], path, found) as watchers:
        done = _drive(found, path, init, command, profile, accept, not bold, watchers)
    if profile:
        show_profile(path)
    if not done:
        raise typer.Exit(STOPPED)
    show_closing(path)


def _open_watchers(words: list[str], path: Path, recipe: Recipe) -> Watchers:
    from shuhari.desk.sinks import Watchers, open_sinks

    try:
        return Watchers(open_sinks(words, path, recipe.tree))
    except (ValueError, ModuleNotFoundError) as error:
        raise typer.BadParameter(str(error), param_hint="--log-to") from None


def _find_stranger(folder: Path) -> str:
    """Return a file of a folder that is not a run's; "" for a run's folder, or an empty one."""
    names = sorted(p.name for p in folder.iterdir()) if folder.is_dir() else []
    if any(name.startswith(("run.", "recipe.toml", "checkpoints", "children", "summary.json")) for name in names):
        return ""
    return names[0] if names else ""


def _make_path(recipe: Recipe, init: str) -> Path:
    from shuhari.desk.api import default_path

    return default_path(recipe, init=init)


def _is_complete(path: Path, recipe: Recipe, init: str) -> bool:
    """Whether the run at `path` is complete; a run of another recipe or origin is refused later, by `open_run`."""
    from shuhari.config.recipe import dump, find_differences, restore_names, spreads
    from shuhari.store import Run
    from shuhari.store.files import read_file

    if not (path / "run.sqlite").is_file() or not (path / "recipe.toml").is_file():
        return False
    there = Run(path)
    text = read_file(path / "recipe.toml").decode()
    changed = find_differences(text, dump(restore_names(recipe, text, path)[0]))
    same = all(map(spreads, changed)) and (not init or there.get("init", "") == init)
    return same and there.status == "complete"


def _describe_changed(path: Path, recipe: Recipe) -> str:
    """Return which data or code of a complete run have changed; "" if none."""
    from shuhari.loop.outside import describe_changed, find_outside
    from shuhari.store import Run

    return describe_changed(Run(path).get("outside") or {}, find_outside(recipe))


def _make_command(
    recipe: str, run: Path | None, seed: int | None, methods: list[str], sets: list[str], remove: list[str], init: str
) -> str:
    words = ["shuhari", "train", recipe]
    for name in methods:
        words += ["--with", name]
    for flag, value in (("--run", run), ("--seed", seed), ("--init", init or None)):
        words += [] if value is None else [flag, str(value)]
    for text in sets:
        words += ["--set", text]
    for key in remove:
        words += ["--remove", key]
    return shlex.join(words)


# ------------------------------------------------------------------------------------------------ driving a run


def _drive(
    recipe: Recipe,
    path: Path,
    init: str,
    command: str,
    profile: bool,
    accept: bool,
    rehearsal: bool,
    watchers: Watchers,
) -> bool:
    """Train to the end; returns False if stopped. An error before the first step is a mistake in the recipe."""
    from shuhari.config.overlay import RecipeError
    from shuhari.desk.cli.live import Live
    from shuhari.desk.cli.pulse import Pulse
    from shuhari.desk.profile_report import train_profiled
    from shuhari.loop.roles import load_initial
    from shuhari.loop.stopping import end
    from shuhari.loop.study import train as unprofiled
    from shuhari.store import CheckpointError, StoreError

    try:
        weights = load_initial(init)
    except CheckpointError:
        raise
    except (StoreError, ValueError) as error:
        raise typer.BadParameter(f"{init}: {error}", param_hint="--init") from None
    step: int | None = None
    start: dict[str, Any] = {"init": weights, "origin": init, "accept": accept, "rehearsal": rehearsal,
                             "curve": True}  # fmt: skip
    reports = (train_profiled if profile else unprofiled)(recipe, path, **start)
    with _stop() as stop, _told(), Live(recipe, path) as live, Pulse() as pulse:
        try:
            for report in reports:
                step = int(report["step"])
                stop.started = True
                live.show(report)
                why = watchers.tell(report)
                pulse.beat(step)
                if why and not stop.asked:
                    end(reports, why)
                    break
                if stop.asked:
                    break
        except KeyboardInterrupt:
            reports.close()  # type: ignore[attr-defined]
            live.close()
            note(f"stopped inside a step; saved is {_describe_saved(path)}. To go on: {command}")
            return False
        except Exception as error:
            live.close()
            setting = isinstance(error, KeyError | ValueError | TypeError | FileNotFoundError | MemoryError)
            setting = setting or (isinstance(error, RuntimeError) and "allocate memory" in str(error))  # torch's
            setting = setting or type(error) is LookupError  # an unknown name in a setting
            setting = setting or "__notes__" in vars(error)  # of a user's environment, as it is made or tried
            if step is None and setting and not isinstance(error, RecipeError):
                raise RecipeError("", f"the run cannot start: {describe_error(error)}") from error
            if step is not None:
                note(f"failed after step {step}; what was stored is intact: {_describe_saved(path)}")
            raise
        reports.close()  # type: ignore[attr-defined]  # saves, where the last step is in no checkpoint yet
    if stop.asked and _read_status(path) != "complete":
        note(f"stopped after step {step}, saved in {path}. To go on: {command}")
        return False
    return True


def _describe_saved(path: Path) -> str:
    from shuhari.store import Run, StoreError

    try:
        cursor = Run(path).cursor
    except StoreError:
        cursor = None
    return f"step {cursor['step']} in {path}" if cursor else "nothing yet"


def _read_status(path: Path) -> str:
    from shuhari.store import Run

    return str(Run(path).status)


def _is_no_interrupt(record: logging.LogRecord) -> bool:
    """Whether a record of asyncio is about something other than a task ended by an interrupt, which was reported
    already."""
    return not (record.exc_info and record.exc_info[0] is KeyboardInterrupt)


@contextmanager
def _told() -> Iterator[None]:
    """Print the lines of the run's log as notes while inside, including those below warnings."""
    log, handler = logging.getLogger("shuhari"), logging.Handler(logging.INFO)
    handler.emit = lambda record: note(record.getMessage())  # type: ignore[method-assign]
    level = log.level
    log.addHandler(handler)
    log.setLevel(level or logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)


class _Stop:
    """A signal handler: the first signal requests a stop after the step; a second, or one before a step, interrupts."""

    asked = False
    started = False

    def __call__(self, number: int, frame: Any) -> None:
        if self.asked or not self.started:
            raise KeyboardInterrupt
        self.asked = True
        note("stopping after this step (once more: at once)")


@contextmanager
def _stop() -> Iterator[_Stop]:
    """Let SIGINT and SIGTERM request a stop instead of killing, while inside."""
    stop = _Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    logging.getLogger("asyncio").addFilter(_is_no_interrupt)
    before = {s: signal.signal(s, stop) for s in (signal.SIGINT, signal.SIGTERM, *HANG_UP)}
    try:
        yield stop
    finally:
        for s, handler in before.items():
            signal.signal(s, handler)


# ------------------------------------------------------------------------------------------------ at the end


def _warn_of_cut(stage: Mapping[str, Any], before: Mapping[str, float]) -> None:
    """Print that answers before training came near the limit of their length, as a change of the score may then be that
    they end in time."""
    from shuhari.config.overlay import look_up

    most = look_up(stage, ("rollout", "sampling", "max_new"))
    texts = look_up(stage, ("models", "policy", "use")) == "causal"
    if texts and isinstance(most, int) and before.get("length", 0) >= NEAR * most:
        note(f"held-out answers before training had {before['length']:.3g} of at most {most} tokens, so many were cut, "
             "and some of the change may be that they end in time: `shuhari eval MODEL RUN --set "
             f"rollout.sampling.max_new={8 * most}` compares them with more room")  # fmt: skip


def show_closing(path: Path) -> None:
    """Print the scores by chance, before and after training, and the paths of the numbers and curves."""
    from shuhari.desk.ends import (
        ANSWERS,
        describe_rewards,
        draw,
        find_last_stage,
        read_ends,
        tabulate_answers,
        tabulate_ends,
    )
    from shuhari.store import Run

    run = Run(path)
    columns, summary = run.metrics(), run.summary or {}
    after, (heads, rows) = read_ends(summary)["after"], tabulate_ends(summary)
    if why := summary.get("stopped"):
        say(f"stopped: {make_printable(str(why), 300)}")
    if rows:
        print_table(heads, rows)
        _warn_of_cut(find_last_stage(run.recipe), read_ends(summary)["before"])
    if answers := tabulate_answers(run.events("answers"), columns):
        print_table(ANSWERS, answers)
    for line in describe_rewards(find_last_stage(run.recipe), after, str(summary.get("measure") or "")):
        say(line)
    for place, card in run.get("data", {}).items():
        say(f"data {place}: {describe(card)}")
    if (score := _find_last(columns, ("regret",) if rows else ())) is not None:
        say(f"last {score[0]}: {format_number(score[1])}")
    say_findings(columns, run.recipe, path)
    picture = path / "curves.png"
    try:
        picture.unlink(missing_ok=True)  # a link is not followed
        draw(run.recipe, columns, summary, picture)
    except (ValueError, OSError) as error:  # the plot cannot be written
        note(f"no picture: {error}")
    else:
        say(f"curves:  {picture}")
    say(f"summary: {path / 'summary.json'}")
    if summary.get("recipe") == "baselines/quickstart":
        say(f"next:    shuhari show {path} --rollouts    # what the policy writes, and what each answer earned")
        say('         shuhari board    # the same in a browser: pip install "shuhari[board]"')
        say("         shuhari train baselines/grpo --set task.name=file/problems.jsonl    # problems of your own")
        say("         shuhari methods; shuhari tasks    # what there is; `train NAME --dry-run` shows a recipe")


def _find_last(columns: dict[str, list[Any]], labels: Collection[str]) -> tuple[str, float] | None:
    """Return (metric, last value) of the first of a run's curves with a value, among those with `labels` (empty:
    all)."""
    from shuhari.lab.plot import choose_curves

    for name in [name for label, name in choose_curves(columns).items() if not labels or label in labels]:
        values = [v for v in columns[name] if v is not None]
        if values:
            return name, values[-1]
    return None
