"""Prints what a policy did, episode by episode: stored groups of samples, or held-out episodes that a controller plays
again; as text, JSON or an animation. Nothing here changes a run.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer

from shuhari.desk.cli.text import NOTHING, format_number, make_printable, note, print_json, say
from shuhari.desk.episodes import count_alike, play, read_group

MOVES = 12  # of an episode of a controller, on a screen
NUMBERS = 8  # of an observation


def show_rollouts(run: Any, path: Path, step: int | None, json: bool) -> None:
    """Print the groups that a run stored at a step; for a controller without any, held-out episodes of the checkpoint
    of that step. Exits with 1 if there is nothing."""
    groups = [read_group(g) for g in run.rollouts(step)]
    groups = groups or ([] if step is not None and run.rollouts() else play(path, step))
    if json:
        print_json(groups)
    if not groups:
        of, kept = "" if step is None else f" of step {step}", run.kept_steps()
        near = f"; the nearest step is {min(kept, key=lambda s: abs(s - (step or 0)))}" if kept else ""
        note(f"{path} keeps no rollouts{of}{near}: [store] rollouts says how many groups of a step are kept")
        raise typer.Exit(NOTHING)
    if json:
        return
    for entry in groups:
        problem = entry["problem"]
        what = "group" if len(entry["episodes"]) > 1 else "episode"
        reward = "" if entry["score"] is None else f", reward {format_number(entry['score'])}"
        say(f"--- {entry['why']} {what} of step {entry['step']}: {problem['id']}{reward}")
        for name in ("prompt", "answer"):
            if problem[name] is not None:
                say(f"{name}: {make_printable(str(problem[name]), 2000)}")
        for episode, times in count_alike(entry["episodes"]):
            rewards = " ".join(f"{k}={format_number(v)}" for k, v in episode["reward"].items())
            why = "; ".join(f"{k}: {make_printable(str(v), 200)}" for k, v in episode["reasons"].items())
            again = f" ({times} times)" if times > 1 else ""
            say(f"  [{rewards}] {episode['status']}{f' ({why})' if why else ''}{again}")
            (_say_moves if episode["observations"] else _say_turns)(episode)
    say()


def save_video(path: Path, to: Path, step: int | None, episode: int) -> None:
    """Write a held-out episode of a controller as an animation, and print what it shows."""
    from shuhari.desk import video

    try:
        why = video.save_video(path, to, step=step, episode=episode)
    except (TypeError, ValueError) as error:  # text, another suffix, no such episode
        raise typer.BadParameter(str(error), param_hint="--video") from None
    if why:
        note(f"no picture of the environment: {why}; drawn are its observations, actions and rewards over time")
    say(f"video: {to}")


def save_samples(path: Path, step: int | None) -> None:
    """Draw samples of a policy into its run's folder."""
    from shuhari.desk import samples

    try:
        say(f"samples: {samples.save_samples(path, step=step)}")
    except TypeError as error:  # text that is written token by token
        raise typer.BadParameter(str(error), param_hint="--samples") from None


def _say_turns(episode: Mapping[str, Any]) -> None:
    """Print what was written, and the replies of the environment or a tool."""
    for text, reply in zip(episode["steps"], episode["told"], strict=True):
        for mark, line in (("    ", text), ("    > ", reply)):
            if line or mark == "    ":
                say(mark + make_printable(line.rstrip("\n"), 2000).replace("\n", "\n" + mark))


def _say_moves(episode: Mapping[str, Any]) -> None:
    """Print what a controller saw, did and was paid: the first moves and the last."""
    moves = list(zip(episode["observations"], episode["steps"], episode["rewards"], strict=False))
    left = max(0, len(moves) - MOVES)
    for i, (seen, did, paid) in enumerate(moves):
        if left and i == MOVES // 2:
            say(f"    ... {left} more")
        if not left or not MOVES // 2 <= i < MOVES // 2 + left:
            earned = " ".join(f"{k}={format_number(v)}" for k, v in paid.items())
            say(f"    {i}: {_shorten(seen)} -> {did}{f'  [{earned}]' if earned else ''}")


def _shorten(seen: Any) -> str:
    """Return an observation on one line: the first numbers of a flat one, the shape of a picture."""
    if isinstance(seen, Mapping):
        return " ".join(f"{k}={_shorten(v)}" for k, v in seen.items())
    if not isinstance(seen, list):
        return format_number(seen)
    if seen and isinstance(seen[0], list):
        shape = [len(seen)]
        while seen and isinstance(seen[0], list):
            seen = seen[0]
            shape.append(len(seen))
        return f"picture {' x '.join(map(str, shape))}"
    more = f" ... ({len(seen)} numbers)" if len(seen) > NUMBERS else ""
    return "(" + " ".join(format_number(x) for x in seen[:NUMBERS]) + more + ")"
