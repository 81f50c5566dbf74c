"""Repeats an update of a run, from the stored groups of a step, a checkpoint before it, and the loop's own parts.

pack -> [collect] -> buffers -> transforms -> learners, as in `loop.run.loop`, with the random streams of that step.
Nothing is sampled or stored: the models belong to a run that is opened only for this. Left out: evaluation, and groups
in flight. Axes: `B` rows, `K` positions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shuhari.batch import Batch
from shuhari.config.recipe import Recipe
from shuhari.config.stage import Components
from shuhari.data import Info, code, find_outcomes
from shuhari.desk.replay.steps import StepState, set_state
from shuhari.events import Collected
from shuhari.kernel.pack import pack
from shuhari.kernel.state import walk
from shuhari.loop.collect import pack_groups
from shuhari.loop.context import Context
from shuhari.loop.kept import decisions
from shuhari.loop.opening import warn_of_changes
from shuhari.loop.resume import restore
from shuhari.loop.run import Run, open_run
from shuhari.needs import Need
from shuhari.objectives.clip import k3
from shuhari.ports import ability
from shuhari.store import Run as Stored


@dataclass(eq=False)
class UpdateResult:
    """The result of an update. `numbers`: as in a step's report; `advantages`: of the decisions trained on; `after`:
    how far the policy moved; for each part the `gradient`, summed over its optimiser steps, and how far its parameters
    `moved`; for each group [samples] `rewards` and mean `credit` (advantage), NaN if there is none; `left`: number of
    groups that no buffer wanted."""

    numbers: Info
    advantages: Tensor
    after: dict[str, float]
    gradient: dict[str, Tensor]
    moved: dict[str, Tensor]
    rewards: list[list[float]]
    credit: list[list[float]]
    left: int


def find_start(stored: Stored, state: StepState) -> int:
    """Return the step of the last checkpoint before a step, in its stage or at the end of the previous one; 0 for the
    initial weights. Raises ValueError if there is none."""
    there = [c["step"] for c in stored.checkpoints()]
    if (start := choose_start(there, state.first, state.step, not stored.get("init"))) is not None:
        return start
    known = f"those there are of steps {', '.join(map(str, there))}" if there else "it has none"
    message = f"no checkpoint of stage {state.stage!r} before step {state.step}: {known}"
    raise ValueError(f"{stored.path} has {message}; [store] every and keep say which are kept")


def choose_start(there: Sequence[int], first: int, step: int, fresh: bool) -> int | None:
    """Choose among the checkpoints `there` like `find_start`, for a stage whose first step is `first`; None if there is
    none. fresh: whether the run started with weights of its own."""
    return max((c for c in there if first - 1 <= c < step), default=0 if first == 1 and fresh else None)


@contextmanager
def open_at(
    path: Path, recipe: Recipe, state: StepState, start: int, like: Mapping[str, type] | None = None
) -> Iterator[tuple[Run, dict[str, type], list[str]]]:
    """Open a run in the state when a step began. Yields (the run, place -> class of components with memory, places
    whose memory was not restored).

    start: the step of the checkpoint (`find_start`). like: the second item, for the run as configured: the memory of
    components of another class is not restored. Raises ValueError if weights or memory do not fit the recipe."""
    with open_run(recipe) as run:
        warn_of_changes(path, run)
        run.progress.stages = [_quieten(stage) for stage in run.progress.stages]
        run.ctx.engine = run.progress.stages[0].engine
        kinds, forgotten, stage = dict[str, type](), list[str](), -1
        if start:
            tree = Stored(path).load(start)  # loaded anew each time: components change their memory in place
            stage = tree["progress"]["stage"]
            parts = {s.name: s.list_memories() for s in run.progress.stages[: stage + 1]}
            kinds = {at: type(x) for at, x in walk(parts)}
            own = kinds if like is None else like
            kept = {at: x for at, x in tree["components"].items() if at in kinds and own.get(at) is kinds[at]}
            forgotten = [at for at in tree["components"] if at in own and at not in kept]
            flight = {**tree["flight"], "tickets": (), "jobs": ()}
            try:
                restore(run, {**tree, "components": kept, "flight": flight})
            except (KeyError, ValueError) as error:
                raise ValueError(f"what the checkpoint of step {start} has does not fit: {error}") from error
        set_state(run, state)
        run.progress.entered = stage == run.progress.index
        run.enter_stage()
        yield run, kinds, forgotten


def make_update(run: Run, kept: Sequence[Mapping[str, Any]], rounds: int = 1, *, exact: bool = False) -> UpdateResult:
    """Train on stored groups as the step did that the run is set to. rounds: number of collection rounds of the groups.
    exact: buffers hold what they held then. Raises ValueError if they do not, and a learner draws from them."""
    ctx, stage = run.ctx, run.stage
    groups = [list(g["trajectories"]) for g in kept]
    base = pack([
        t
        for group in groups
        for t in group
    ])
    before, left = _read_logp(base, ctx), list(groups)
    recorders = {at: _record(part) for at, part in _list_parts(stage)}
    while left and (want := run.wanted()):
        count = len(left) if rounds == 1 else want
        some, left = left[:count], left[count:]
        with ctx.phase("collect", run.rounds):
            run.tell(Collected(run.apply(stage.collect, pack_groups(some, ctx)), tuple(ctx.latest)))
    if len(left) == len(groups):
        raise ValueError(f"no learner of stage {stage.name!r} wants samples: they learn from recorded data")
    advantages, own = list[Tensor](), base["group"].unique()
    for name, learner in stage.learners.items():
        for batch in run.draws(name, learner):
            if not exact:
                _check_drawn(batch, own, name)
            batch = run.apply(learner.transforms, batch, learner)
            if "advantage" in batch:
                advantages.append(batch["advantage"][batch["mask"]])
            run.tell(learner.update(batch, ctx))
    credit = [[_mean(s["advantage"] for s in steps if "advantage" in s)
               for steps in decisions(g, ctx.seen)]
              for g in groups]  # fmt: skip
    weights = {name: ctx.at(weight) for name, weight in ctx.weights.items()}
    return UpdateResult(
        run.meter.means(),
        torch.cat(advantages) if advantages else torch.zeros(0),
        _compare(base, before, _read_logp(base, ctx)),
        {at: w.gradient for at, w in recorders.items() if w.before},
        {at: w.moved() for at, w in recorders.items() if w.before},
        [
            [_mean([np.array(find_outcomes(t, weights))]) for t in group]
            for group in groups
        ],
        credit,
        len(left),
    )


# ---------------------------------------------------------------- the run


def _quieten(stage: Components) -> Components:
    """Return a stage without evaluation, and with an engine in this process."""
    stand_in = ability(stage.engine, "stand_in")
    return replace(stage, evaluate=None, engine=stage.engine if stand_in is None else stand_in())


def _list_parts(stage: Components) -> Iterator[tuple[str, Any]]:
    for name, learner in stage.learners.items():
        parts: Mapping[str, Any] = ability(learner, "parts")
        for key, part in parts.items():
            yield (key if name == "main" else f"{name}/{key}"), part


def _check_drawn(batch: Batch, own: Tensor, name: str) -> None:
    """Raises ValueError if drawn rows belong to other groups than those stored of the step."""
    known = torch.isin(batch["group"], own) if "group" in batch else torch.zeros(len(batch), dtype=torch.bool)
    if not bool(known.all()):
        message = f"{int((~known).sum())} of {len(batch)} rows that learner {name!r} draws are replayed or recorded"
        raise ValueError(f"{message}: the rows of its buffer are known only if every group is stored "
                         "([store] groups = ['all']) and the checkpoint is of the step before")  # fmt: skip


# ---------------------------------------------------------------- what is looked at


@dataclass(eq=False)
class GradientRecorder:
    """An optimiser that sums the gradients at the start of its steps, before clipping."""

    optimiser: Any
    params: list[Tensor] = field(init=False, default_factory=list)
    before: list[Tensor] = field(init=False, default_factory=list)
    gradient: Tensor = field(init=False, default_factory=lambda: torch.zeros(0))
    added: bool = field(init=False, default=False)  # whether the current step's gradient is added

    def __getattr__(self, name: str) -> Any:
        return getattr(self.optimiser, name)

    def step(self, evaluate: Any, at: float) -> Info:
        if not self.before:
            self.params = list(evaluate.params)
            self.before = [p.detach().clone() for p in self.params]
            self.gradient = torch.zeros(sum(p.numel() for p in self.params))
        self.added = False
        info: Info = self.optimiser.step(_RecordedLoss(evaluate, self), at)
        return info

    def add(self, gradient: Tensor) -> None:
        """Add only the first gradient of a step: an optimiser may compute more, elsewhere or term by term."""
        if not self.added:
            self.gradient += gradient.detach().float().cpu()
        self.added = True

    def moved(self) -> Tensor:
        """Return the change of the parameters, flat."""
        return _flatten([p.detach() - b for p, b in zip(self.params, self.before, strict=True)])


@dataclass(eq=False)
class _RecordedLoss:
    """A loss that passes its gradients to a recorder."""

    loss: Any
    recorder: GradientRecorder

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loss, name)

    def backward(self) -> Info:
        info: Info = self.loss.backward()
        self.recorder.add(_flatten([torch.zeros_like(p) if p.grad is None else p.grad for p in self.recorder.params]))
        return info

    def gradients(self) -> dict[str, Tensor]:
        found: dict[str, Tensor] = self.loss.gradients()
        self.recorder.add(torch.stack([*found.values()]).sum(0))
        return found


def _record(part: Any) -> GradientRecorder:
    part.optimiser = recorder = GradientRecorder(part.optimiser)
    return recorder


def _flatten(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([x.reshape(-1).float().cpu() for x in tensors]) if tensors else torch.zeros(0)


def _read_logp(base: Batch, ctx: Context) -> tuple[Tensor, Tensor] | None:
    """Return (rows, [rows, K] log-probabilities of the actions) under the current policy; None for a model that has
    only a bound."""
    roles = [r for r in ctx.models if ability(ctx.models[r], "kind") == "exact"]
    role = next((r for r in roles if bool((base["role"] == code(r)).any())), None)
    if role is None:
        return None
    rows = ((base["role"] == code(role)) & base.decides).nonzero().squeeze(1)
    need = Need((role,), "log_prob")
    return rows, ctx.score(base.take(rows), [need])[need].detach().clone()


def _compare(
    base: Batch, before: tuple[Tensor, Tensor] | None, after: tuple[Tensor, Tensor] | None
) -> dict[str, float]:
    """Return `kl`: k3 between the policies before and after, over the decisions; `ratio_min`, `ratio_max`: the policy
    after over the sampling policy; `gap`: the mean distance between the log-probability before and the stored one."""
    if before is None or after is None:
        return {}
    rows = base.take(before[0])
    known = rows["mask"] & rows["logp"].isfinite()
    out = {"kl": float(k3(after[1] - before[1])[rows["mask"]].mean())}
    if bool(known.any()):
        ratio = (after[1] - rows["logp"])[known].exp()
        gap = (before[1] - rows["logp"])[known].abs().mean()
        out |= {"ratio_min": float(ratio.min()), "ratio_max": float(ratio.max()), "gap": float(gap)}
    return out


def _mean(parts: Any) -> float:
    """Return the mean of all values except NaN; NaN if there are none."""
    values = np.concatenate([*(np.ravel(x) for x in parts), np.zeros(0)])
    values = values[~np.isnan(values)]
    return float(values.mean()) if len(values) else float("nan")
