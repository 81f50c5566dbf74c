"""`regrade` and `what-if`: stored rollouts under another grader, a stored update under other settings; read-only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from json import dumps
from typing import Annotated, Any

import typer

from shuhari.desk.cli.options import check_together
from shuhari.desk.cli.text import NOTHING, format_number, make_printable, note, print_json, print_table, say

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Sets = Annotated[list[str] | None, typer.Option("--set", help="A setting, a.b.c=value; may be given several times.")]
Removed = Annotated[list[str] | None, typer.Option("--remove", help="A key to take out; may be given several times.")]
READS = {"--step": "", "--steps": ""}  # of `regrade`
SHORT = 80  # characters of a text on a screen
LISTED = 5  # groups that change
GROUPS, EPISODES = 3, 8  # groups whose advantages are shown, and episodes of one
AFTER = {
    "kl": "KL(before || after)",
    "ratio_min": "ratio after, min",
    "ratio_max": "ratio after, max",
    "gap": "|log pi before - stored|",
}
COSINES = {"gradient": "of the gradients", "moved": "of how the weights moved"}


@contextmanager
def _refuse_mistakes() -> Iterator[None]:
    """Turn a ValueError into a mistake in the command; a RecipeError stays."""
    from shuhari.config.recipe import RecipeError

    try:
        yield
    except RecipeError:
        raise
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def regrade(
    ctx: typer.Context,
    run: Annotated[str, typer.Argument(help="A path, a name under runs/, or `latest`.")],
    reward: Annotated[list[str] | None, typer.Option(help="A grader: rewards.py:function, a name, NAME=USE.")] = None,
    step: Annotated[int | None, typer.Option(help="This step alone (default: all that are kept).")] = None,
    steps: Annotated[str, typer.Option(help="Steps a..b.")] = "",
    sets: Sets = None,
    remove: Removed = None,
    limit: Annotated[int, typer.Option(min=0, help="Episodes to show, those that change most.")] = 10,
    json: Json = False,
) -> None:
    """Grade the stored rollouts of a run with another grader, and show what would have changed: each reward, the
    trained one, the sign of group advantages, and which groups would have a gradient. The run does not change.

    Example: shuhari regrade latest --reward rewards.py:short --set reward.weights.short=0.5
    """
    from shuhari.desk.replay import regrade as graders

    check_together(ctx, READS)
    first, last = _read_steps(steps) if steps else (step, step)
    with _refuse_mistakes():
        found = graders.regrade(run, reward or (), first=first, last=last, sets=_join(sets, remove), limit=limit)
    if json:
        print_json(found)
    else:
        _say_regraded(found)


def what_if(
    run: Annotated[str, typer.Argument(metavar="RUN@STEP", help="A step of a run: latest@20.")],
    sets: Sets = None,
    remove: Removed = None,
    json: Json = False,
) -> None:
    """Repeat the update of a step from its stored rollouts, and beside it the same update with other settings: losses,
    gradients, clipping, advantages, how far the policy moves. The run does not change.

    Example: shuhari what-if latest@20 --set part.policy.terms.loss.high=0.4
    """
    from shuhari.desk.replay import what_if as updates

    with _refuse_mistakes():
        found = updates.what_if(run, _join(sets, remove))
    if json:
        print_json(found)
    else:
        _say_updates(found)


def _join(sets: list[str] | None, remove: list[str] | None) -> list[str]:
    """Join settings and removals into one list of settings."""
    return [*(sets or ()), *(f"remove={dumps([key])}" for key in remove or ())]


def _read_steps(steps: str) -> tuple[int | None, int | None]:
    """Parse `a..b` as (a, b), None for a missing end."""
    first, dots, last = steps.partition("..")
    if not dots or not all(x == "" or x.isdecimal() for x in (first, last)):
        raise typer.BadParameter(f"{steps!r}: expected a..b, such as 10..20", param_hint="--steps")
    return (int(first) if first else None), (int(last) if last else None)


def _say_regraded(found: Mapping[str, Any]) -> None:
    by = ", ".join(f"{name} ({use})" for name, use in found["graders"].items()) or "nothing: only weights differ"
    which = found["steps"]
    when = f"step {which[0]}" if len(which) == 1 else f"{len(which)} steps, {which[0]} to {which[-1]}"
    say(f"{found['run']}: {found['groups']} groups of {when}, {found['episodes']} episodes, graded anew by {by}")
    if not found["whole"]:
        note("the run keeps some groups of a step, as a rule the best, the worst and a random one: shares are of these")
    heads = ("reward", "old mean", "new mean", "changed", "ungraded", "ungraded now")
    rows = [_tabulate(name, entry) for name, entry in found["rewards"].items()]
    print_table(heads, [*rows, _tabulate("(trained)", found["reward"])])
    for name in found["graders"]:
        if not found["weights"]["new"].get(name) and name in found["rewards"]:
            note(f"{name} has no weight in the trained reward: --set reward.weights.{name}=1 gives it one")
    advantage, mixed = found["advantage"], found["mixed"]
    say(
        f"group advantage: of {advantage['compared']} episodes {advantage['other_sign']} would have the other sign, "
        f"{advantage['gained']} one where they had none, {advantage['lost']} none where they had one"
    )
    say(f"groups with different outcomes: {mixed['old']} of {found['groups']}, then {mixed['new']}")
    ways = {"to_mixed": "become mixed", "to_alike": "become all alike, and teach nothing",
            "to_ungraded": "have no grade any more, and are left out"}  # fmt: skip
    for key, become in ways.items():
        if groups := found[key]:
            named = ", ".join(f"{make_printable(g['group'], SHORT)} (step {g['step']})" for g in groups[:LISTED])
            say(f"{len(groups)} {become}: {named}{', ...' if groups[LISTED:] else ''}")
    if found["changes"]:
        left = found["changed"] - len(found["changes"])
        say(f"episodes that change most{f' ({left:,} more change: --limit shows more)' if left else ''}:")
    for c in found["changes"]:
        grades = " ".join(f"{n}={_arrow(*pair)}" for n, pair in c["rewards"].items())
        at = f"step {c['step']} {make_printable(c['group'], SHORT)} episode {c['episode']}"
        say(f"  {at}: {_arrow(c['old'], c['new'])} [{grades}] {_quote(c['text'])}")
    if found["failed"]:
        calls = f"a grader failed in {found['failed']} call{'s' * (found['failed'] > 1)}, of a group each"
        note(f"{calls}: those episodes are ungraded, and none counts as 0")
    for text in found["problems"]:
        note(f"problem: {make_printable(text, 500)}")
    if found["failed"] and not found["reward"]["new"]["graded"]:
        raise typer.Exit(NOTHING)


def _say_updates(found: Mapping[str, Any]) -> None:
    batch, start = found["batch"], found["weights"]["step"]
    of = "an unknown number of" if batch["of"] is None else batch["of"]
    weights = f"the checkpoint of step {start}" if start else "what the run began with"
    say(
        f"{found['run']}, step {found['step']} of stage {found['stage']}: {batch['groups']} of {of} groups, "
        f"{batch['episodes']} episodes; weights: {weights}"
    )
    for key, value in found["settings"].items():
        say(f"with {key} = {make_printable(str(value), SHORT)}")
    sides = [_list_numbers(found[side]) for side in ("configured", "changed") if found[side] is not None]
    heads = ("", "as configured", *["with the settings"][: len(sides) - 1], "the run reported")
    names = dict.fromkeys(
        name
        for side in sides
        for name in side
    )
    print_table(
        heads,
        [
            (n, *(side.get(n) for side in sides), found["reported"].get(n))
            for n in names
        ],
    )
    for part, cosine in found["cosine"].items():
        how = " and ".join(f"{format_number(cosine[k])} {of}" for k, of in COSINES.items())
        say(f"cosine of both updates, {part}: {how}")
    for group in _sort_groups(found["groups"])[:GROUPS]:
        say(f"group {make_printable(group['group'], SHORT)}: reward, advantage{'' if len(sides) == 1 else ' | then'}")
        for episode in group["episodes"][:EPISODES]:
            pairs = (
                " | ".join(format_number(x) for x in episode[k])
                for k in ("reward", "advantage")
            )
            say(f"  {',  '.join(pairs)}  {_quote(episode['text'])}")
    for text in found["notes"]:
        note(make_printable(text, 500))


def _list_numbers(side: Mapping[str, Any]) -> dict[str, Any]:
    """Return the numbers of one side by name, in the order of the table."""
    advantage = {f"advantage, {name}": x for name, x in side["advantage"].items() if name != "decisions"}
    return {**side["numbers"], **advantage, **{AFTER[name]: x for name, x in side["after"].items()}}


def _sort_groups(groups: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Sort groups whose advantages differ between the sides first."""
    return sorted(groups, key=lambda g: all(len({*e["advantage"]}) == 1 for e in g["episodes"]))


def _tabulate(name: str, entry: Mapping[str, Any]) -> tuple[Any, ...]:
    old, new = (entry[k] or {} for k in ("old", "new"))
    return name, old.get("mean"), new.get("mean"), entry["changed"], old.get("ungraded"), new.get("ungraded")


def _arrow(old: Any, new: Any) -> str:
    return f"{format_number(old)} -> {format_number(new)}"


def _quote(text: str) -> str:
    return '"' + make_printable(text, SHORT).replace("\n", "\\n") + '"'
