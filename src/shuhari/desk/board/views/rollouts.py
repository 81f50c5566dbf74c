"""Rollouts in detail: which groups of episodes a run stores, and each of them token by token."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from threading import Thread
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from shuhari.data import Array, Step, Trajectory, find_outcomes, is_tokens, sum_reward
from shuhari.desk.board.catalogue import Catalogue
from shuhari.desk.episodes import check_group, list_reasons, to_readable
from shuhari.desk.serving.refusals import Refused
from shuhari.desk.tokens import count_leaves, find_ranges, follow, read_numbers, spell, unroll
from shuhari.kernel.printable import make_printable
from shuhari.store import Run, StoreError
from shuhari.store.finding import to_number

CUT = 4000  # characters of a text in a response
MORE = 50_000  # and of further text on request
TOKENS = 2000  # of a step
GROUP = 16_000  # of a group
STEPS = 2000  # of an episode
POINTS = 2000  # of a curve
CHAINS = 10_000  # numbers of the chains of an episode
PROMPT, READING = 90, 0.3  # letters of a prompt in the list of groups; seconds for reading a page of them

Order = Literal["score", "worst", "best", "length", "step"]
Id = Annotated[int, Field(ge=0)]


def list_groups(
    runs: Catalogue,
    run: str,
    order: Order = "worst",
    down: bool = False,
    step: Annotated[int, Field(ge=0)] | None = None,
    problem: str = "",
    low: float | None = None,
    high: float | None = None,
    shortest: Annotated[int, Field(ge=0)] | None = None,
    longest: Annotated[int, Field(ge=0)] | None = None,
    status: str = "",
    text: str = "",
    replies: Annotated[int, Field(ge=0)] | None = None,
    contrast: bool = False,
    limit: Annotated[int, Field(ge=1, le=200)] = 50,
    offset: Annotated[int, Field(ge=0)] = 0,
) -> dict[str, Any]:
    """Return {run, status, total, kept, groups}: a page of the groups that a run stores, selected as by
    `Run.find_groups`; `total` that match, `kept` of all. Each has its `prompt`, cut, or "" if it has none of text."""
    Thread(target=import_module, args=("shuhari.store.rollouts",), daemon=True).start()  # slow, and needed next
    found = Run(runs.find(run))
    by: dict[str, Any] = {"step": step, "problem": problem, "low": low, "high": high, "shortest": shortest,
                          "longest": longest, "replies": replies, "contrast": contrast}  # fmt: skip
    by |= {name: value for name, value in (("status", status), ("text", text)) if value}
    try:
        groups = found.find_groups(order, descending=down, limit=limit, offset=offset, **by)
        total = found.count_groups(order, **by)
    except ValueError as error:  # no word in the text, no such status
        raise Refused(str(error)) from None
    kept = total if not any(by.values()) else found.count_groups("step")
    return {"run": run, "status": found.status, "total": total, "kept": kept,
            "groups": [{**_cut_names(g), "prompt": p}
                       for g, p in zip(groups, _read_prompts(found, groups), strict=True)]}  # fmt: skip


def _read_prompts(run: Run, groups: Sequence[Mapping[str, Any]]) -> list[str]:
    """The last turn of each group's prompt, cut; "" if it has none, cannot be read, or READING seconds have passed, so
    that a page of long answers is not late: the list then shows the name of the problem."""
    end, out = time.monotonic() + READING, []
    for group in groups:
        text = ""
        if time.monotonic() < end:
            with suppress(StoreError):
                text = _list_turns(run.read_group(group["id"])["trajectories"][0].request.problem.prompt)[-1][1]
        out.append(make_printable(" ".join(text.split()), PROMPT))
    return out


def _cut_names(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return a group of the list with printable names, and the unchanged name that finds the problem."""
    named = {k: make_printable(str(group[k]), 200) for k in ("task", "problem", "why") if group[k] is not None}
    find = None if group["problem"] is None else f"{group['task']}/{group['problem']}"
    return {**group, **named, "find": find if find is None or len(find) <= 1000 else None}


def open_group(runs: Catalogue, run: str, id: Id) -> dict[str, Any]:
    """Return a group with its episodes: rewards by name, reasons, and the first tokens of each step with their numbers.
    Equal episodes are listed once, with all their numbers (`alike`)."""
    group = check_group(Run(runs.find(run)).read_group(id))
    trajectories: Sequence[Trajectory] = group["trajectories"]
    problem, decisions = trajectories[0].request.problem, _read_decisions(group)
    numbers = [[read_numbers(s, c) for s, c in zip(t.steps, d, strict=True)]
               for t, d in zip(trajectories, decisions, strict=True)]  # fmt: skip
    alike: dict[Any, list[int]] = {}
    for i, t in enumerate(trajectories):
        alike.setdefault(_identify(t), []).append(i)
    most = max(32, min(TOKENS, GROUP // max(1, sum(len(trajectories[own[0]].steps) for own in alike.values()))))
    episodes = [
        {**_show_sample(group, own[0], numbers[own[0]], most), "index": own[0], "alike": own} for own in alike.values()
    ]
    return {
        "run": run,
        "id": id,
        "step": group["step"],
        "why": group.get("why", ""),
        "score": to_number(group.get("score")),
        "weights": group.get("weights"),
        "problem": {
            "id": make_printable(problem.id, 200),
            "task": problem.task,
            "find": f"{problem.task}/{problem.id}"[:1000],
            "prompt": [{"role": role, **cut(text)} for role, text in _list_turns(problem.prompt)],
            "answer": cut(_list_turns(problem.answer)[0][1]) if problem.answer is not None else None,
        },
        "numbers": find_ranges([
            columns
            for own in numbers
            for columns in own
        ]),
        "samples": len(trajectories),
        "episodes": episodes,
    }


def open_tokens(
    runs: Catalogue,
    run: str,
    id: Id,
    episode: Id,
    step: Id,
    offset: Id = 0,
    limit: Annotated[int, Field(ge=1, le=20_000)] = TOKENS,
) -> dict[str, Any]:
    """Return {pieces, mask, numbers} of further tokens of a step than those of `open_group`."""
    group = check_group(Run(runs.find(run)).read_group(id))
    at = _find_step(group, episode, step)
    columns = read_numbers(at, _read_decisions(group)[episode][step])
    return _describe_tokens(at, columns, group.get("pieces") or {}, offset, limit)


def open_text(runs: Catalogue, run: str, id: Id, part: str, offset: Id = 0) -> dict[str, Any]:
    """Return {text, left, next}: more of a text that was cut, from a character on. part: "prompt/TURN", "answer",
    "reason/EPISODE/NAME", "said/EPISODE/STEP" or "told/EPISODE/STEP"."""
    group = check_group(Run(runs.find(run)).read_group(id))
    kind, *rest = part.split("/", 2)
    problem = group["trajectories"][0].request.problem
    try:
        if kind in ("prompt", "answer"):
            text = _list_turns(getattr(problem, kind))[int(rest[0]) if rest else 0][1]
        elif kind == "reason":
            text = list_reasons(group["trajectories"][int(rest[0])])[rest[1]]
        elif kind in ("said", "told"):
            step = _find_step(group, int(rest[0]), int(rest[1]))
            text = _get_said(step) if kind == "said" else _get_told(step)
        else:
            raise KeyError(kind)
    except (LookupError, ValueError):
        raise Refused(f"part is {part!r:.80}: expected a text of group {id}", "part") from None
    return cut(text, MORE, offset)


def cut(text: str, most: int = CUT, offset: int = 0) -> dict[str, Any]:
    """Return {text, left, next}: a text made printable; `left`: number of characters after it, from `next` on."""
    end = min(len(text), offset + most)
    return {"text": make_printable(text[offset:end]), "left": len(text) - end, "next": end}


# ---------------------------------------------------------------- an episode


def _show_sample(group: Mapping[str, Any], i: int, numbers: Sequence[Mapping[str, Array]], most: int) -> dict[str, Any]:
    t: Trajectory = group["trajectories"][i]
    names = dict.fromkeys(
        name
        for step in t.steps
        for name in step.reward
    )
    rewards, weights = {name: sum_reward(t.steps, name) for name in names}, group.get("weights")
    played = [s for s in t.steps if not is_tokens(s.context)]
    infos = [t.info, *(s.info for s in t.steps)]
    facts = {
        k: v
        for info in infos
        for k, v in info.items()
        if isinstance(v, bool | int | float) and k != "ended"
    }
    advantages = [c["advantage"] for c in numbers if "advantage" in c]
    out = {
        "status": str(t.status),
        "rewards": rewards,
        "weighted": {k: w * rewards[k] for k, w in weights.items() if k in rewards} if weights else None,
        "outcomes": find_outcomes(t, weights) if weights else None,
        "reasons": {k: cut(v, 1000) for k, v in list_reasons(t).items()},
        "facts": dict(list(facts.items())[:30]),
        "advantage": float(np.nanmean(np.concatenate(advantages))) if advantages else None,
        "tokens": sum(int(np.count_nonzero(s.mask)) for s in t.steps),
    }
    if played:
        return {**out, "steps": [], "left": 0, "track": _track(t, numbers)}
    leaves = count_leaves(t)
    steps = [
        _describe_step(step, columns, group.get("pieces") or {}, most) | {"leaves": leaves[k], "of": k}
        for k, (step, columns) in enumerate(zip(t.steps[:STEPS], numbers, strict=False))
    ]
    return {**out, "steps": steps, "left": max(0, len(t.steps) - STEPS), "track": None}


def _describe_step(step: Step, numbers: Mapping[str, Array], pieces: Mapping[str, Any], most: int) -> dict[str, Any]:
    means = {name: float(np.nanmean(x)) for name, x in numbers.items()}
    tokens = _describe_tokens(step, numbers, pieces, 0, most)
    said = cut(_get_said(step)) if tokens["pieces"] is None and step.action is not None else None
    told = cut(_get_told(step)) if _get_told(step) else None
    rewards = {k: float(np.sum(v)) for k, v in step.reward.items()}
    return {"parent": step.parent, "role": step.role, "means": means, "said": said, "told": told, "rewards": rewards,
            **tokens}  # fmt: skip


def _describe_tokens(
    step: Step, numbers: Mapping[str, Array], pieces: Mapping[str, Any], offset: int, limit: int
) -> dict[str, Any]:
    texts = spell(step, pieces)
    if texts is None:
        return {"pieces": None, "total": len(step.mask), "mask": [], "numbers": {}}
    here = slice(offset, offset + limit)
    shown = {
        name: [float(f"{v:.5g}") for v in x[here].tolist()]
        for name, x in numbers.items()
    }
    return {"pieces": [make_printable(text) for text in texts[here]], "total": len(texts),
            "mask": step.mask[here].astype(int).tolist(), "numbers": shown}  # fmt: skip


def _track(t: Trajectory, numbers: Sequence[Mapping[str, Array]]) -> dict[str, Any]:
    """Return an episode of a controller as curves; `chains`: for each moment how its decision was denoised, if
    known."""
    acts = [(s, c) for s, c in zip(t.steps, numbers, strict=True) if s.action is not None]
    names = sorted({
        name
        for _, columns in acts
        for name in columns
    })
    told: dict[str, list[Any]] = {"observation": [s.context for s in t.steps if not is_tokens(s.context)]}
    told["action"] = [s.action for s, _ in acts]
    for name in sorted({
        name
        for s, _ in acts
        for name in s.reward
    }):
        told[f"reward {name}"] = [float(np.sum(s.reward.get(name, 0.0))) for s, _ in acts]
    for name in names:
        told[name] = [float(np.nanmean(c[name])) if name in c else None for _, c in acts]
    track, room, chains = follow(told, POINTS), CHAINS, list[dict[str, Any]]()
    for i in track["at"]:
        chain = unroll(*acts[i]) if i < len(acts) and room > 0 else {}
        room -= sum(map(len, chain.values()))
        chains.append(chain)
    return track | {"chains": chains if any(chains) else []}


def _identify(t: Trajectory) -> Any:
    """Return the key of an episode: equal episodes have equal keys."""
    steps = tuple(
        (s.action.tobytes() if isinstance(s.action, np.ndarray) else str(s.action), s.parent, _get_told(s),
         tuple((k, float(np.sum(v))) for k, v in s.reward.items()))
        for s in t.steps
    )  # fmt: skip
    return steps, str(t.status), tuple(list_reasons(t).items())


# ---------------------------------------------------------------- pieces of a group


def _read_decisions(group: Mapping[str, Any]) -> Sequence[Sequence[Mapping[str, Array]]]:
    return group.get("decisions") or [[{}] * len(t.steps) for t in group["trajectories"]]


def _find_step(group: Mapping[str, Any], episode: int, step: int) -> Step:
    trajectories = group["trajectories"]
    if episode >= len(trajectories) or step >= len(trajectories[episode].steps):
        raise Refused(f"episode {episode}, step {step}: the group has {len(trajectories)} episodes", status=404)
    found: Step = trajectories[episode].steps[step]
    return found


def _list_turns(payload: Any) -> list[tuple[str, str]]:
    """Return (role, text) of a prompt: messages one by one, anything else in one piece."""
    if isinstance(payload, tuple) and payload and all(isinstance(m, Mapping) and "content" in m for m in payload):
        return [(make_printable(str(m.get("role", "")), 40), str(m["content"])) for m in payload]
    return [("", payload if isinstance(payload, str) else "" if payload is None else str(to_readable(payload)))]


def _get_said(step: Step) -> str:
    return str(step.info["text"]) if "text" in step.info else str(to_readable(step.action))


def _get_told(step: Step) -> str:
    return str(step.info.get("observation", ""))
