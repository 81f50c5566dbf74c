"""The command line. Help imports nothing heavy: each command imports what it needs when it runs.

Exit codes: 0 done, 1 the run failed, or nothing with the given name was found, 2 a mistake in the command, 130 stopped
and saved.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

from shuhari.desk.cli import (
    analyzing,
    boarding,
    catalogue,
    claiming,
    comparing,
    components,
    data,
    demonstrating,
    diagnosing,
    doctoring,
    evaluating,
    explaining,
    exporting,
    listing,
    planning,
    reading,
    replaying,
    reproducing,
    serving,
    sweeping,
    training,
)
from shuhari.desk.cli.text import describe_error, note, printable_log, say
from shuhari.desk.threads import share_the_machine
from shuhari.kernel import registry

DONE, FAILED, MISTAKE, STOPPED = 0, 1, 2, 130
REFUSED: Any = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")  # typer's, or click's

app = typer.Typer(
    name="shuhari",
    help="One RL loop for every generative policy, from a lookup table to a language model.",
    epilog="Example: shuhari train baselines/quickstart --run runs/quickstart",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
for name, command in (
    ("train", training.train),
    ("explain", explaining.explain),
    ("eval", evaluating.evaluate),
    ("export", exporting.export),
    ("serve", serving.serve),
    ("runs", listing.runs),
    ("show", reading.show),
    ("diagnose", diagnosing.diagnose),
    ("regrade", replaying.regrade),
    ("what-if", replaying.what_if),
    ("compare", comparing.compare),
    ("board", boarding.board),
    ("claim", claiming.claim),
    ("demonstrate", demonstrating.demonstrate),
    ("analyze", analyzing.analyze),
    ("sweep", sweeping.sweep),
    ("reproduce", reproducing.reproduce),
    ("plan", planning.plan),
    ("methods", catalogue.methods),
    ("tasks", catalogue.tasks),
    ("data", data.data),
    ("components", components.components),
    ("doctor", doctoring.doctor),
):
    app.command(name)(command)


def _show_version(asked: bool) -> None:
    if asked:
        from shuhari import __version__

        say(f"shuhari {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and stop.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error; may stand anywhere.")] = False,
) -> None:
    """One RL loop for every generative policy, from a lookup table to a language model."""


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line; always ends in SystemExit with one of the codes above."""
    given = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in given
    share_the_machine()
    told = _announce_code()
    registry.HEARS.append(told)
    try:
        with printable_log():
            code = app([a for a in given if a != "--debug"], prog_name="shuhari", standalone_mode=False)
        sys.exit(code if isinstance(code, int) else DONE)
    except (KeyboardInterrupt, typer.Abort):
        note("stopped")
        sys.exit(STOPPED)
    except REFUSED as error:
        sys.exit(refuse(error))
    except SystemExit:
        raise
    except BaseException as error:  # a user's code may raise one that is not an `Exception`
        if debug:
            from traceback import format_exception

            note("".join(format_exception(error)).rstrip("\n"))
        sys.exit(explain(error, debug=debug))
    finally:
        registry.HEARS.remove(told)


def _announce_code() -> Callable[[str], None]:
    """Return a callback that announces, once a file, that its code is about to run."""
    known = set[str]()

    def announce(file: str) -> None:
        if file not in known:
            known.add(file)
            note(f"running {file}, as the recipe names it")

    return announce


def refuse(error: Any) -> int:
    """Report a mistake in the command line like any other error, and return its exit code."""
    message, ctx = _reword(error, error.format_message()), getattr(error, "ctx", None)
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()
        return int(error.exit_code)
    told = message.removeprefix("Invalid value: ").removeprefix("Invalid value for ")
    option = vars(error).get("option_name") if type(error).__name__ == "NoSuchOption" else None
    if option and ctx is not None and any("--set" in p.opts for p in ctx.command.params):
        from shuhari.config.words import explain_option

        if meant := explain_option(option):
            told = f"no option {option}; {meant}"
    note(f"error: {told}")
    if ctx is not None:
        note(f"({ctx.command_path} --help shows what it takes)")
    return int(error.exit_code)


def _reword(error: Any, message: str) -> str:
    """Replace pydantic's message in a refusal by the value and what was expected."""
    from pydantic import ValidationError

    if not isinstance(error.__cause__, ValidationError):
        return message
    first = error.__cause__.errors()[0]
    wanted = first["msg"].removeprefix("Input should be ").partition(", unable")[0]
    for theirs, ours in (("less than or equal to", "at most"), ("greater than or equal to", "at least")):
        wanted = wanted.replace(theirs, ours)
    return message.replace(first["msg"], f"{first['input']}: expected {wanted}")


def explain(error: BaseException, *, debug: bool = False) -> int:
    """Report an error without a traceback, and return its exit code."""
    from shuhari.config.overlay import RecipeError
    from shuhari.data import StalledError
    from shuhari.store.directory import NoRunError
    from shuhari.store.files import FULL, LockedError, StoreError

    clear = isinstance(error, RecipeError | StoreError | StalledError | ImportError)  # whose messages are complete
    message = describe_error(error)
    if isinstance(error, OSError) and error.errno in FULL:
        clear, message = True, f"{f'{error.filename}: ' if error.filename else ''}the disk is full: free some space"
    note(f"error: {message}" if clear else f"error: {type(error).__name__}: {message}")
    if not debug and not isinstance(error, RecipeError) and (not clear or error.__cause__ is not None):
        note("(--debug shows where it happened)")
    return MISTAKE if isinstance(error, RecipeError | NoRunError | LockedError | ImportError) else FAILED
