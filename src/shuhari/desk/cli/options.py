"""Which options of a command go together: an option without effect is refused, and so are two that exclude each
other."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from typing import Any

import typer


def check_together(ctx: typer.Context, reads: Mapping[str, str]) -> None:
    """Check a command line against `reads`: mode of a command -> the options that it reads. A mode is an option, an
    argument, or an option with its value ("--mode sync"); "" is a command line without any. A mode that is listed with
    another adds to it. Options that are listed nowhere go with all modes.

    Raises BadParameter naming two modes that exclude each other, or an option that would have no effect."""
    listed = {"": set[str]()} | {mode: {*text.split()} for mode, text in reads.items()}
    names = {_name(p): str(p.name) for p in ctx.command.params}
    concerned = {mode.split()[0] for mode in reads if mode}.union(*listed.values())
    assert concerned <= names.keys(), f"{concerned - names.keys()}: no options of {ctx.command_path}"
    given = [o for o in names if o in concerned and _is_given(ctx, names[o])]
    asked = [m for m in reads if m and m.split()[0] in given and _agrees(m, ctx.params[names[m.split()[0]]])]
    for one, other in combinations(asked, 2):
        if one.split()[0] not in listed[other] and other.split()[0] not in listed[one]:
            raise typer.BadParameter(f"{one} and {other} exclude each other: give one of them")
    mode = next(
        (
            m
            for m in asked
            if all(n == m or n.split()[0] in listed[m] for n in asked)
        ),
        "",
    )
    for option in given:
        if option in listed[mode] or option in [m.split()[0] for m in asked]:
            continue
        if option in listed[""]:
            raise typer.BadParameter(f"it is not read with {mode}: leave one of them out", param_hint=option)
        owners = " or ".join(m for m, own in listed.items() if option in own)
        raise typer.BadParameter(f"of {owners}, which is not given", param_hint=option)


def _name(parameter: Any) -> str:
    """Return an option as it is written, in its long form if it has one; an argument in capitals."""
    if parameter.param_type_name == "argument":
        return str(parameter.metavar or parameter.name.upper())
    return str(max(parameter.opts, key=len))


def _is_given(ctx: typer.Context, name: str) -> bool:
    source = ctx.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _agrees(mode: str, value: Any) -> bool:
    """Whether a mode that is an option with a value has that value."""
    return " " not in mode or mode.split()[1] == str(value)
