"""What the store keeps of a step's groups: how often each problem was solved, and a few groups with their numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from shuhari.batch import Batch
from shuhari.data import Array, Trajectory, code, find_outcomes, is_tokens
from shuhari.kernel.pack import rows_of
from shuhari.loop.outcomes import name_measure
from shuhari.ports import is_text
from shuhari.store import Store, pick

if TYPE_CHECKING:
    from shuhari.config.evaluation import Evaluation
    from shuhari.config.stage import Checkpointing
    from shuhari.loop.context import Context


def count_problems(ctx: Context, evaluation: Evaluation | None) -> list[tuple[str, str, int, int]]:
    """Return (task, problem, samples graded, samples that evaluation counts as solved) for each problem of the step."""
    measure, solved = (evaluation.measure, evaluation.solved) if evaluation else ("", 1.0)
    name = name_measure(measure, ctx.reward_names, ctx.weights)
    summed = name == "reward" and name not in ctx.reward_names
    weights = {n: ctx.at(weight) for n, weight in ctx.weights.items()} if summed else {name: 1.0}
    counts: dict[tuple[str, str], list[int]] = {}
    for t in (
        t
        for group in ctx.groups
        for t in group
    ):
        count = counts.setdefault((t.request.problem.task, t.request.problem.id), [0, 0])
        for value in find_outcomes(t, weights):
            count[0] += value == value
            count[1] += value >= solved
    return [(*key, n, right) for key, (n, right) in counts.items()]


def choose_rollouts(
    ctx: Context, keep: Checkpointing, store: Store, counts: Sequence[tuple[str, str, int, int]]
) -> list[dict[str, Any]]:
    """Return the groups of the step that the store keeps, by the rules of [store], with their `decisions`, the `pieces`
    of their text and the `weights` of rewards at this step. `counts`: the result of `count_problems`."""
    groups, ctx.groups = ctx.groups, []
    seen, ctx.seen = ctx.seen, []
    if not groups or not (keep.rollouts or "all" in keep.groups):
        return []
    problems = [g[0].request.problem for g in groups]
    changes: list[float] = []
    if "changed" in keep.groups:
        now = {(task, name): right / n if n else math.nan for task, name, n, right in counts}
        changes = [abs(now[p.task, p.id] - store.rate(p.task, p.id)) for p in problems]
    weights = {name: ctx.at(weight) for name, weight in ctx.weights.items()}
    rewards = [_grade(g, weights) for g in groups]
    scores = [sum(r) / len(r) for r in rewards]
    chosen = pick(scores, keep.rollouts, ctx.key("shown", ctx.step) % 2**32, keep.groups, changes)
    return [
        {"group": groups[i][0].request.key, "task": problems[i].task, "problem": problems[i].id, "why": why,
         "score": scores[i], "worst": min(rewards[i]), "best": max(rewards[i]), "weights": weights,
         "trajectories": tuple(groups[i]), "decisions": decisions(groups[i], seen),
         "pieces": name_tokens(groups[i], ctx.models)}
        for i, why in chosen
    ]  # fmt: skip


def _grade(group: list[Trajectory], weights: Mapping[str, float]) -> list[float]:
    """Return the trained reward of each graded leaf of a group; [NaN] if none was graded."""
    return [
        value
        for t in group
        for value in find_outcomes(t, weights)
        if value == value
    ] or [math.nan]


def decisions(group: Sequence[Trajectory], seen: Sequence[Batch]) -> tuple[tuple[dict[str, Array], ...], ...]:
    """Return for each step of each trajectory a dict of arrays, name -> [K] float32: `advantage`, and what models
    computed before the update (`<role>/<name>`: log-probabilities, entropies, values). A number stands at each token or
    action that the policy chose; elsewhere (prompts, answers of tools) there is NaN.

    seen: batches of rows, the oldest first; a number that is in several is taken from the last. A batch with only some
    of the group's rows is skipped.
    """
    rows = [
        (j, row)
        for j, t in enumerate(group)
        for row in rows_of(t.steps)
    ]
    out: list[list[dict[str, Array]]] = [
        [{} for _ in t.steps]
        for t in group
    ]
    mine = code(group[0].request.key or group[0].request.problem.id)
    for batch in seen:
        at = (batch["group"] == mine).nonzero().squeeze(1)
        if not len(at) or len(at) != len(rows):
            continue
        at = at[batch["id"][at].argsort()]
        mask = batch["mask"][at].numpy()
        for name, column in _numbers(batch):
            values = column[at].float().numpy()
            for i, (j, row) in enumerate(rows):
                _split(values[i][mask[i]], name, [(group[j].steps[k].mask, out[j][k]) for k in row])
    return tuple(tuple(steps) for steps in out)


def name_tokens(group: Sequence[Trajectory], models: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return role -> {ids: [n] the distinct tokens that it has written in a group, texts: n texts, of each token within
    a text}; roles that write no text are left out. A part of a character is U+FFFD."""
    written: dict[str, set[int]] = {}
    for step in (
        step
        for t in group
        for step in t.steps
        if is_tokens(step.action)
    ):
        written.setdefault(step.role, set()).update(step.action.tolist())  # type: ignore[union-attr]
    out: dict[str, dict[str, Any]] = {}
    for role, tokens in written.items():
        if role in models and is_text(models[role]):
            ids = sorted(tokens)
            out[role] = {"ids": np.array(ids, np.int32), "texts": _spell(ids, models[role].decode)}
    return out


def _spell(ids: Sequence[int], decode: Callable[[Array], str]) -> tuple[str, ...]:
    """Return the text of each token between two plain ones: alone, a tokenizer may drop the space before a word, and an
    end token has no text."""

    def read(*tokens: int) -> str:
        return str(decode(np.array(tokens, np.int32)))

    alone = [read(i) for i in ids]
    plain = next((i for i, text in zip(ids, alone, strict=True) if text.strip() and "\ufffd" not in text), None)
    if plain is None:
        return tuple(alone)
    before, twice, out = read(plain), read(plain, plain), list[str]()
    after = twice.removeprefix(before)
    for i, text in zip(ids, alone, strict=True):
        whole = read(plain, i, plain)
        inside = whole.startswith(before) and whole.endswith(after) and len(whole) >= len(before) + len(after)
        out.append(whole[len(before) : len(whole) - len(after)] if inside else text)
    return tuple(out)


def _numbers(batch: Batch) -> Iterator[tuple[str, Tensor]]:
    """Yield the floating-point columns [B, K] of the advantage and of models' scores."""
    for name in sorted({*batch.scored, *batch.stamps, "advantage"} & batch.names()):
        column = batch[name]
        if tuple(column.shape) == (len(batch), batch.width) and column.is_floating_point():
            yield name, column


def _split(values: Array, name: str, steps: Sequence[tuple[Array, dict[str, Array]]]) -> None:
    """Distribute the numbers of a row's decisions, in order, to the steps that it was joined from."""
    if len(values) != sum(np.count_nonzero(mask) for mask, _ in steps):
        return  # a transform says otherwise what a decision is
    first = 0
    for mask, columns in steps:
        n = int(np.count_nonzero(mask))
        if n:
            columns[name] = np.full(len(mask), np.nan, np.float32)
            columns[name][mask] = values[first : first + n]
        first += n
