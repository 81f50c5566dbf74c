"""What a policy did, episode by episode: the groups of samples that a run kept, or held-out episodes that a controller
plays anew; as text, as JSON, as an animation. Nothing here changes a run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

from shuhari.cli.text import NOTHING, format_number, make_printable, note, print_json, say

EPISODES = 3  # of a controller, that are played
MOVES = 12  # of an episode of a controller, on a screen
NUMBERS = 8  # of an observation


def show_rollouts(run: Any, path: Path, step: int | None, json: bool) -> None:
    """Print the groups that a run kept of a step; of a controller whose run keeps none, held-out episodes of the
    checkpoint of that step. Exit 1 where there is nothing."""
    groups = [_read_group(g) for g in run.rollouts(step)]
    groups = groups or ([] if step is not None and run.rollouts() else _play(path, step))
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
        say(f"--- {entry['why']} {what} of step {entry['step']}: {make_printable(problem['id'])}{reward}")
        for name in ("prompt", "answer"):
            if problem[name] is not None:
                say(f"{name}: {make_printable(str(problem[name]), 2000)}")
        for episode, times in _count_alike(entry["episodes"]):
            rewards = " ".join(f"{k}={format_number(v)}" for k, v in episode["reward"].items())
            why = "; ".join(f"{k}: {make_printable(str(v), 200)}" for k, v in episode["reasons"].items())
            again = f" ({times} times)" if times > 1 else ""
            say(f"  [{rewards}] {episode['status']}{f' ({why})' if why else ''}{again}")
            (_say_moves if episode["observations"] else _say_turns)(episode)
    say()


def save_video(path: Path, to: Path, step: int | None, episode: int) -> None:
    """Write a held-out episode of a controller as an animation, and say what it shows."""
    from shuhari.tools import video

    try:
        why = video.save_video(path, to, step=step, episode=episode)
    except (TypeError, ValueError) as error:  # text, another ending, no such episode
        raise typer.BadParameter(str(error), param_hint="--video") from None
    if why:
        note(f"no picture of the environment: {why}; drawn are its observations, actions and rewards over time")
    say(f"video: {to}")


def save_samples(path: Path, step: int | None) -> None:
    """Draw what a policy makes beside its run."""
    from shuhari.tools import samples

    try:
        say(f"samples: {samples.save_samples(path, step=step)}")
    except TypeError as error:  # text that is written token by token
        raise typer.BadParameter(str(error), param_hint="--samples") from None


def _say_turns(episode: Mapping[str, Any]) -> None:
    """What was written, and what the environment or a tool answered."""
    for text, reply in zip(episode["steps"], episode["told"], strict=True):
        for mark, line in (("    ", text), ("    > ", reply)):
            if line or mark == "    ":
                say(mark + make_printable(line.rstrip("\n"), 2000).replace("\n", "\n" + mark))


def _say_moves(episode: Mapping[str, Any]) -> None:
    """What a controller saw, did and was paid: the first moves and the last."""
    moves = list(zip(episode["observations"], episode["steps"], episode["rewards"], strict=False))
    left = max(0, len(moves) - MOVES)
    for i, (seen, did, paid) in enumerate(moves):
        if left and i == MOVES // 2:
            say(f"    ... {left} more")
        if not left or not MOVES // 2 <= i < MOVES // 2 + left:
            earned = " ".join(f"{k}={format_number(v)}" for k, v in paid.items())
            say(f"    {i}: {_shorten(seen)} -> {did}{f'  [{earned}]' if earned else ''}")


def _shorten(seen: Any) -> str:
    """An observation in a line: the first numbers of a flat one, the shape of a picture."""
    if isinstance(seen, Mapping):
        return " ".join(f"{k}={_shorten(v)}" for k, v in seen.items())
    if not isinstance(seen, list):
        return format_number(seen)
    if seen and isinstance(seen[0], list):
        shape = [len(seen)]
        while isinstance(seen[0], list):
            seen = seen[0]
            shape.append(len(seen))
        return f"picture {' x '.join(map(str, shape))}"
    more = f" ... ({len(seen)} numbers)" if len(seen) > NUMBERS else ""
    return "(" + " ".join(format_number(x) for x in seen[:NUMBERS]) + more + ")"


def _play(path: Path, step: int | None) -> list[dict[str, Any]]:
    """Held-out episodes of a controller in plain values; none of a policy that writes text."""
    from shuhari.loop.watching import watch

    try:
        return [_read_watched(seen) for seen in watch(path, step, EPISODES)]
    except TypeError:
        return []


def _read_watched(seen: Any) -> dict[str, Any]:
    """A held-out episode as a group of one."""
    acts = [_to_readable(x) for x in seen.actions]
    common = {"status": str(seen.status), "reward": dict(seen.total), "reasons": {}}
    episode = {**common, "steps": [str(x) for x in acts], "told": [""] * len(acts), "actions": acts, "decisions": []}
    episode |= {
        "observations": [_to_readable(x) for x in seen.observations],
        "rewards": [dict(r) for r in seen.rewards],
    }
    problem = {"id": seen.problem.id, "prompt": None, "answer": None}
    return {"step": seen.step, "why": "held-out", "score": None, "problem": problem, "episodes": [episode]}


def _count_alike(episodes: Sequence[dict[str, Any]]) -> list[tuple[dict[str, Any], int]]:
    """Each different episode once, in order, with how many are like it."""
    found: dict[str, tuple[dict[str, Any], int]] = {}
    for episode in episodes:
        key = str({name: x for name, x in episode.items() if name != "decisions"})
        first, times = found.get(key, (episode, 0))
        found[key] = first, times + 1
    return list(found.values())


def _read_group(group: Mapping[str, Any]) -> dict[str, Any]:
    """A stored group in plain values."""
    trajectories = group["trajectories"]
    problem = trajectories[0].request.problem
    decisions = group.get("decisions") or [[{}] * len(t.steps) for t in trajectories]
    return {
        "step": group["step"],
        "why": group.get("why", ""),
        "score": group.get("score"),
        "problem": {"id": problem.id, "prompt": _to_readable(problem.prompt), "answer": _to_readable(problem.answer)},
        "episodes": [_read_episode(t, computed) for t, computed in zip(trajectories, decisions, strict=True)],
    }


def _read_episode(trajectory: Any, computed: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Rewards by name, summed over steps, and those of each step; `reasons`: the text that graders and rollouts left in
    `info`; `steps`, `told`: what was written, and answered; of a controller `actions` and `observations`, with the last
    one; `decisions`: of each step its `logp` and what was `computed` of it, one number a position."""
    from shuhari.data import is_tokens
    from shuhari.loop.watching import sum_rewards

    reasons: dict[str, str] = {k: v for k, v in trajectory.info.items() if isinstance(v, str)}
    for step in trajectory.steps:
        reasons |= {k: v for k, v in step.info.items() if isinstance(v, str) and k not in ("text", "observation")}
    acts = [step for step in trajectory.steps if step.action is not None]
    replies = [str(step.info.get("observation", "")) for step in acts]  # what the environment or a tool answered
    common = {"status": str(trajectory.status), "reward": sum_rewards(trajectory.steps), "reasons": reasons}
    numbers = [
        {name: _to_readable(x) for name, x in {"logp": step.logp, **found}.items() if x is not None}
        for step, found in zip(trajectory.steps, computed, strict=True)
        if step.action is not None
    ]
    paid = [sum_rewards([step]) for step in acts]
    played = [step.context for step in trajectory.steps if not is_tokens(step.context)]
    does = [_to_readable(step.action) for step in acts] if played else []
    did = {"steps": [_describe_act(step) for step in acts], "told": replies, "rewards": paid, "actions": does}
    return {**common, **did, "observations": [_to_readable(x) for x in played], "decisions": numbers}


def _describe_act(step: Any) -> str:
    return str(step.info["text"]) if "text" in step.info else str(_to_readable(step.action))


def _to_readable(value: Any) -> Any:
    """A payload as plain values."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, Mapping):
        return {k: _to_readable(v) for k, v in value.items()}
    if isinstance(value, tuple | list):
        return [_to_readable(v) for v in value]
    return value.hex() if isinstance(value, bytes) else value
