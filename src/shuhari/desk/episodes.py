"""Episodes as plain values, for the terminal and the board: groups of samples stored in a run, or held-out episodes
that a controller plays again. Nothing here changes a run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shuhari.data import Trajectory
from shuhari.store.files import StoreError

EPISODES = 3  # number of episodes of a controller to play


def play(path: Path, step: int | None, n: int = EPISODES, first: int = 0) -> list[dict[str, Any]]:
    """Play held-out episodes of a controller and return them as plain values; empty for a policy that writes text."""
    from shuhari.loop.watching import watch

    try:
        return [_read_watched(seen) for seen in watch(path, step, n, first)]
    except TypeError:
        return []


def _read_watched(seen: Any) -> dict[str, Any]:
    """Convert a held-out episode to a group of one."""
    acts = [to_readable(x) for x in seen.actions]
    common = {"status": str(seen.status), "reward": dict(seen.total), "reasons": {}}
    episode = {**common, "steps": [str(x) for x in acts], "told": [""] * len(acts), "actions": acts, "decisions": []}
    episode |= {
        "observations": [to_readable(x) for x in seen.observations],
        "rewards": [dict(r) for r in seen.rewards],
    }
    problem = {"id": seen.problem.id, "prompt": None, "answer": None}
    return {"step": seen.step, "why": "held-out", "score": None, "problem": problem, "episodes": [episode]}


def count_alike(episodes: Sequence[dict[str, Any]]) -> list[tuple[dict[str, Any], int]]:
    """Return each different episode once, in order, with how often it occurs."""
    found: dict[str, tuple[dict[str, Any], int]] = {}
    for episode in episodes:
        key = str({name: x for name, x in episode.items() if name != "decisions"})
        first, times = found.get(key, (episode, 0))
        found[key] = first, times + 1
    return list(found.values())


def check_group(group: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a stored group of episodes unchanged. Raises StoreError if it is malformed: the file may come from
    anybody."""
    trajectories, decisions = group.get("trajectories"), group.get("decisions") or ()
    faults = {
        "trajectories": not trajectories or not all(isinstance(t, Trajectory) for t in trajectories),
        "score": not isinstance(group.get("score", 0.0), float | int | None),
        "why": not isinstance(group.get("why", ""), str),
        "pieces": not isinstance(group.get("pieces") or {}, Mapping),
        "weights": not isinstance(group.get("weights") or {}, Mapping),
        "decisions": len(decisions) not in (0, len(trajectories or ())),
    }
    for name in (n for n, wrong in faults.items() if wrong):
        raise StoreError(f"a group of step {group['step']} is damaged: its {name} is {group.get(name)!s:.60}")
    for t, computed in zip(trajectories or (), decisions, strict=False):
        if len(computed) != len(t.steps):
            many = f"numbers of {len(computed)} steps, of {len(t.steps)}"
            raise StoreError(f"a group of step {group['step']} has {many}")
    return group


def read_group(group: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a stored group to plain values."""
    check_group(group)
    trajectories = group["trajectories"]
    problem = trajectories[0].request.problem
    decisions = group.get("decisions") or [[{}] * len(t.steps) for t in trajectories]
    return {
        "step": group["step"],
        "why": group.get("why", ""),
        "score": group.get("score"),
        "problem": {"id": problem.id, "prompt": to_readable(problem.prompt), "answer": to_readable(problem.answer)},
        "episodes": [read_episode(t, computed) for t, computed in zip(trajectories, decisions, strict=True)],
    }


def read_episode(trajectory: Any, computed: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Convert an episode to plain values: rewards by name, summed and by step; `reasons`: the texts that graders and
    rollouts left in `info`; `steps`, `told`: what was written, and the replies; for a controller `actions` and
    `observations`, including the last one; `decisions`: for each step its `logp` and the `computed` numbers, one a
    position."""
    from shuhari.data import is_tokens
    from shuhari.loop.watching import mean_rewards, sum_rewards

    acts = [step for step in trajectory.steps if step.action is not None]
    replies = [str(step.info.get("observation", "")) for step in acts]  # from the environment or a tool
    rewards, reasons = mean_rewards(trajectory), list_reasons(trajectory)
    common = {"status": str(trajectory.status), "reward": rewards, "reasons": reasons}
    numbers = [
        {name: to_readable(x) for name, x in {"logp": step.logp, **found}.items() if x is not None}
        for step, found in zip(trajectory.steps, computed, strict=True)
        if step.action is not None
    ]
    paid = [sum_rewards([step]) for step in acts]
    played = [step.context for step in trajectory.steps if not is_tokens(step.context)]
    does = [to_readable(step.action) for step in acts] if played else []
    did = {"steps": [_describe_act(step) for step in acts], "told": replies, "rewards": paid, "actions": does}
    return {**common, **did, "observations": [to_readable(x) for x in played], "decisions": numbers}


def list_reasons(trajectory: Any) -> dict[str, str]:
    """Return the texts that graders and rollouts left in `info`, by name."""
    reasons: dict[str, str] = {k: v for k, v in trajectory.info.items() if isinstance(v, str)}
    for step in trajectory.steps:
        reasons |= {k: v for k, v in step.info.items() if isinstance(v, str) and k not in ("text", "observation")}
    return reasons


def _describe_act(step: Any) -> str:
    return str(step.info["text"]) if "text" in step.info else str(to_readable(step.action))


def to_readable(value: Any) -> Any:
    """Convert a payload to plain values."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, Mapping):
        return {k: to_readable(v) for k, v in value.items()}
    if isinstance(value, tuple | list):
        return [to_readable(v) for v in value]
    return value.hex() if isinstance(value, bytes) else value
