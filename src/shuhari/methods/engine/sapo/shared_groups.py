"""A swarm's curriculum: part of each batch are answers of other runs, shared as text through a folder.

Source: "Sharing is Caring: Efficient LM Post-Training with Collective RL Experience Sharing" (SAPO, Amico et al. 2025,
arXiv 2509.08721), algorithm 1. Each node publishes, once a step, its problems and its answers to them. Each batch has I
own groups and J shared ones, chosen among shared groups whose rewards differ. Shared text is untrusted: it is read by
the store's codec, encoded by this run's tokenizer, and graded by this run's task and rewards; nothing in it is run. A
shared problem and its answer are believed: whoever may write to the folder is trusted that far. Left out: networks (the
folder may lie on a shared disk); choosing which groups a node publishes (all of them).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import floor
from pathlib import Path
from typing import Any

import numpy as np
import torch

from shuhari.bounds import Share, Size, check
from shuhari.data import Problem, Request, Status, Step, Trajectory, is_tokens, list_scores
from shuhari.events import Collected, Committed, Event
from shuhari.kernel.registry import register
from shuhari.methods.engine.sapo.shared_answers import SAID
from shuhari.ports import Ctx, Curriculum, ability
from shuhari.ports.declares import together
from shuhari.store.codec import CodecError, dumps, loads
from shuhari.store.files import replace_file

SUFFIX = ".told"  # <folder>/<node>/<round>.told: a node's answers of one step
LIMIT = 2**26  # largest size of such a file, in bytes
EPSILON = 1e-9  # so that 0.3 x 10 is 3


@register("curriculum", "shared_groups")
@dataclass
class Shared:
    """Fills part of each batch with answers of other runs, which share them as text through a folder (SAPO).

    Of n groups, floor(n x `external`) are drawn at random among those that other nodes published in the previous
    `window` rounds; `inner` gives the other problems, and replaces missing groups: a batch always has full size. A
    round is a step of the run. With `external` at 0, or without other nodes, it equals `inner`, bit for bit. Groups
    that cannot be read or encoded, or are longer than an answer may be, are left out. Needs the rollout
    `shared_answers`.

    Reports `curriculum/own_reward` (the mean `measure` of the node's own answers), `curriculum/external` (groups taken)
    and `curriculum/offered` (groups available).
    """

    spreads = ("folder",)
    inner: Curriculum
    """Curriculum of the run's own problems."""
    folder: str = ""
    """Folder that all runs share, each writing to a folder in it; "" shares nothing."""
    node: str = "node-0"
    """Name of this run, and of its folder in the shared one; different for every run."""
    external: Share = 0.5
    """Share of the groups in a batch that come from other runs; 0 uses none."""
    window: Size = 1
    """Number of past rounds (steps) from which groups of others are taken."""
    useful: bool = True
    """Whether to leave out groups of others with equal rewards by this run's own grading."""
    measure: str = "score"
    """Name of the reward by which groups are compared and reported."""
    role: str = "policy"
    """Role of the policy, whose tokenizer encodes the texts of others."""
    state: dict[str, Any] = field(
        init=False, default_factory=lambda: {"new": [], "taken": [], "offered": 0, "scores": [], "report": {}}
    )

    @property
    def stamps(self) -> tuple[str, ...] | None:
        return together((), self.inner)

    @property
    def reads(self) -> tuple[str, ...]:
        return (f"reward/{self.measure}",)

    def __post_init__(self) -> None:
        check(self)
        if not self.node or Path(self.node).name != self.node:
            raise ValueError(f"shared: node is {self.node!r}: expected the name of a folder")

    async def select(self, n: int, ctx: Ctx) -> list[Request]:
        told = await self._take(floor(n * self.external + EPSILON), ctx)
        own = await self.inner.select(n - len(told), ctx) if len(told) < n else []
        return own + told

    def observe(self, event: Event) -> None:
        if isinstance(event, Collected):
            own = [list(g) for g in event.groups if g and SAID not in g[0].request.settings]
            self.state["new"] += [told for g in own if (told := describe_group(g))]
            self.state["scores"] += [
                x
                for g in own
                for x in list_scores(g, self.measure)
            ]
        elif isinstance(event, Committed):
            self._tell(event.step - 1)
            scores = self.state["scores"]
            mean = {"curriculum/own_reward": sum(scores) / len(scores)} if scores else {}
            taken = {"curriculum/external": len(self.state["taken"]), "curriculum/offered": self.state["offered"]}
            self.state |= {"new": [], "taken": [], "offered": 0, "scores": [], "report": {**mean, **taken}}

    def report(self) -> dict[str, float]:
        return dict(self.state["report"])

    def _tell(self, round: int) -> None:
        """Publishes the round's groups, in an atomic write; a repeated step writes the same again."""
        if self.folder and self.state["new"]:
            path = Path(self.folder, self.node, f"{round:08d}{SUFFIX}")
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(path, [dumps(self.state["new"])])

    async def _take(self, wanted: int, ctx: Ctx) -> list[Request]:
        """Returns up to `wanted` groups of other nodes that can be learnt from, without repetition in a step."""
        told = self._read(ctx.step) if wanted and self.folder else {}
        self.state["offered"] = max(self.state["offered"], len(told))
        names = [name for name in told if name not in self.state["taken"]]
        taken = list[Request]()
        for i in torch.randperm(len(names), generator=ctx.rng("shared")).tolist():
            if len(taken) == wanted:
                break
            shown = show_group(told[names[i]], ctx, self.role)
            graded = await ctx.grade(shown) if shown else []
            scores = list_scores(graded, self.measure)
            if graded and not (self.useful and (len(scores) < 2 or max(scores) == min(scores))):
                taken.append(Request(graded[0].request.problem, len(graded), settings={SAID: tuple(graded)}))
                self.state["taken"].append(names[i])
        return taken

    def _read(self, step: int) -> dict[str, Any]:
        """Returns name -> group, for the groups that other nodes published in the rounds before `step`, in a fixed
        order."""
        rounds, found = range(max(step - self.window, 0), step), dict[str, Any]()
        there = Path(self.folder)
        nodes = sorted(p.name for p in there.iterdir() if p.is_dir()) if there.is_dir() else []
        for node in (name for name in nodes if name != self.node):
            for round in rounds:
                groups = read_told(there / node / f"{round:08d}{SUFFIX}")
                found |= {f"{node} {round} {i}": group for i, group in enumerate(groups)}
        return found


def describe_group(group: Sequence[Trajectory]) -> dict[str, Any]:
    """Returns the published form of a group: its problem, and each answer's text and whether it ended by itself,
    without answers that failed or have several turns."""
    good = [t for t in group if t.status in (Status.FINISHED, Status.TRUNCATED) and len(t.steps) == 1]
    answers = [[str(t.steps[0].info["text"]), t.status is Status.FINISHED] for t in good if "text" in t.steps[0].info]
    return {"problem": replace(group[0].request.problem, solution=None), "answers": answers} if answers else {}


def read_told(path: Path) -> list[Any]:
    """Returns the groups in another node's file; none if it does not exist, is too large or invalid."""
    try:
        if path.stat().st_size > LIMIT:
            return []
        found = loads(path.read_bytes(), LIMIT)
    except (OSError, CodecError):
        return []
    return found if isinstance(found, list) else []


def show_group(told: Any, ctx: Ctx, role: str) -> list[Trajectory]:
    """Returns the answers of a group as this run's tokens, ungraded; none if one of them cannot be encoded here."""
    problem = told.get("problem") if isinstance(told, dict) else None
    answers = told.get("answers") if isinstance(told, dict) else None
    if not isinstance(problem, Problem) or not isinstance(answers, list) or not answers:
        return []
    try:
        context = ctx.encode(problem.prompt, role)
        said = [(ctx.encode_text(text, role), bool(ended)) for text, ended in answers if isinstance(text, str)]
    except (TypeError, ValueError, KeyError):  # letters that this run's tokenizer does not know, or no text
        return []
    model: Any = ctx.models[role]
    room, out = ability(model, "limit"), list[Trajectory]()
    for ids, ended in said:
        if not (is_tokens(context) and is_tokens(ids)):
            return []
        whole: Any = np.asarray(ids)
        if ended and not (len(whole) and whole[-1] == model.end):  # a tokenizer may encode the end as a newline
            whole = np.append(whole, np.int32(model.end))
        if not 0 < len(whole) <= ctx.sampling.max_new or (room is not None and len(context) + len(whole) > room):  # type: ignore[arg-type]
            return []
        step = Step.of(context, whole, version=-1, role=role, info={"text": ctx.text(whole, role)})
        out.append(Trajectory(Request(problem), (step,), Status.FINISHED if ended else Status.TRUNCATED))
    return out if len(out) == len(answers) else []
