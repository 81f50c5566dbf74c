"""One picture of what a policy samples: paths of a controller, its denoising chains, or a masked text as it is filled
in.

Left out: text written token by token, for which runs store rollouts, and animations (`video`). Axes: `N` samples, `K`
steps of denoising, `A` action dimensions, `T` moments, `L` tokens of an answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shuhari.config.evaluation import Evaluation
from shuhari.data import Array, read_first
from shuhari.desk.video import film_or_play, flatten
from shuhari.kernel.abilities import find_missing
from shuhari.kernel.noise import CounterNoise, keys
from shuhari.loop.evaluation import find_held_out
from shuhari.loop.opening import open_checkpoint
from shuhari.loop.watching import Watched
from shuhari.needs import role_model
from shuhari.ports.hooks import ability

SHOWN = 6  # episodes, or prompts
CHAINS = 128  # from the first observation
PICTURES = 5  # frames of an episode, if its environment renders
PANELS = 6  # of a chain
LONG = 100  # steps of an episode that are drawn over time
SIDE, PATHS = 2.4, (4.0, 3.6)  # inches: a panel, the panel of paths


def save_samples(run: str | Path, to: str | Path | None = None, *, step: int | None = None) -> Path:
    """Write a PNG of what the policy of a run's checkpoint (None: the last) samples, and return its path (None:
    `samples.png` in the run's folder).

    For a controller: greedy held-out episodes, as frames if its environment renders, otherwise as paths over the first
    two numbers of an observation, between the walls of its `scene`; if it denoises, also chains from its first
    observation. For a masked language model: the order in which it fills in answers to the first held-out prompts.
    Raises TypeError for a policy that writes token by token, and the errors of `watch`."""
    path = Path(run)
    out = path / "samples.png" if to is None else Path(to)
    with open_checkpoint(path, step) as opened:
        filled = _fill_masks(path, opened) if opened.ctx.task.spaces() is None else []
    figure = draw_filled(filled) if filled else _draw_controller(path, step)
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=100)
    return out


# ---------------------------------------------------------------- what is drawn


def _draw_controller(path: Path, step: int | None) -> Any:
    seen, _ = film_or_play(path, step, SHOWN)
    return draw_episodes(seen, _denoise(path, step, seen[0]))


def _denoise(path: Path, step: int | None, seen: Watched) -> Array | None:
    """Return [CHAINS, K + 1, A] points of chains from the first observation of an episode, the decision last; None if
    the policy does not denoise."""
    with open_checkpoint(path, step) as opened:
        model = role_model(opened.ctx.models, "policy")
        if ability(model, "kind") != "chain":
            return None
        first: Any = seen.observations[0]
        contexts = {k: _repeat(x) for k, x in first.items()} if isinstance(first, dict) else _repeat(first)
        noise = CounterNoise(keys(0, "samples", n=CHAINS))
        traces = model.sample(contexts, opened.ctx.now(opened.ctx.sampling), noise=noise)
        chain: Array = torch.cat([traces.info["chain"], traces.action[:, None]], 1).numpy()
        return chain


def _repeat(x: Any) -> Tensor:
    return torch.as_tensor(np.asarray(x)).expand(CHAINS, *np.shape(x))


def _fill_masks(path: Path, opened: Any) -> list[tuple[str, list[list[str]]]]:
    """Return for each prompt (prompt, its answer before each step and at the end: [L] tokens as text, "" for a
    mask)."""
    ctx, evaluation = opened.ctx, opened.stage.evaluate or Evaluation()
    if find_missing(policy := role_model(ctx.models, "policy"), "fill", "blank"):
        raise TypeError(f"{path}: its policy writes token by token: see show --rollouts")
    player = role_model(ctx.models, ability(opened.stage.rollout, "role"))
    out = []
    for i, problem in enumerate(read_first(find_held_out(evaluation.task or ctx.task, evaluation), SHOWN)):
        states: list[Tensor] = []
        watched = policy.module.register_forward_pre_hook(lambda _, given, at=states: at.append(given[0]))
        noise = CounterNoise(keys(i, "samples", n=1))
        (trace,) = player.sample([policy.encode(problem.prompt)], ctx.now(ctx.sampling), noise=noise)
        watched.remove()
        answers = [ids[0, -policy.length :].tolist() for ids in states if len(ids) == 1]
        masks = [ids.count(policy.blank) for ids in answers]
        # after the last step the answer may be scored, which starts again with masks only
        steps = next((k for k in range(1, len(masks)) if masks[k] >= masks[k - 1]), len(masks))
        said = [
            [_write(policy, x) for x in ids]
            for ids in answers[:steps]
        ]
        end = [_write(policy, x) for x in trace.action.tolist()]
        out.append((str(problem.prompt), [*said, end + ["·"] * (policy.length - len(end))]))
    return out


def _write(policy: Any, token: int) -> str:
    if token in (policy.blank, policy.end):
        return "" if token == policy.blank else "·"
    return str(policy.decode(np.array([token])))


# ---------------------------------------------------------------- how


def _new_figure(rows: int, columns: int, size: tuple[float, float]) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(size[0] * columns, size[1] * rows), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False)


def draw_filled(samples: Sequence[tuple[str, Sequence[Sequence[str]]]]) -> Any:
    """Return a figure of answers, a panel each: a line for each state, from masks (grey) at the top to the answer
    below, with the tokens filled in by each step marked. `·` is the end token."""
    figure, axes = _new_figure(1, len(samples), (2.2, 2.8))
    for ax, (prompt, states) in zip(axes[0], samples, strict=True):
        before: Sequence[str] = [""] * len(states[0])
        for y, state in enumerate(states):
            for x, (old, new) in enumerate(zip(before, state, strict=True)):
                colour = "0.85" if not new else "tab:orange" if new != old else "white"
                ax.add_patch(_box(x, y, colour))
                ax.text(x + 0.5, y + 0.5, new, ha="center", va="center", family="monospace", parse_math=False)
            before = state
        ax.set(xlim=(0, len(before)), ylim=(len(states), 0), xticks=[], ylabel="step")
        ax.set_yticks(np.arange(len(states)) + 0.5, range(len(states)))
        ax.set_title(prompt[-24:], fontsize="small", family="monospace", parse_math=False)
    return figure


def _box(x: float, y: float, colour: str, wide: float = 1.0, high: float = 1.0) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((x, y), wide, high, facecolor=colour, edgecolor="0.6", linewidth=0.5)


def _circle(x: float, y: float, radius: float) -> Any:
    from matplotlib.patches import Circle

    return Circle((x, y), radius, facecolor="#ffcdd2", edgecolor="0.6", linewidth=0.5)


def draw_episodes(seen: Sequence[Watched], chain: Array | None = None) -> Any:
    """Return a figure of episodes: a row of frames each, or one panel of paths. Below, or alone if every episode is one
    decision, the points of chains [N, K + 1, A] before some of the steps and at the end."""
    from matplotlib.figure import Figure

    filmed = all(e.frames for e in seen)
    walked = chain is None or any(len(e.actions) > 1 for e in seen)
    shown = [] if chain is None else np.unique(np.linspace(0, chain.shape[1] - 1, PANELS).round().astype(int)).tolist()
    heights = [SIDE] * len(seen) if filmed else [PATHS[1]] * walked
    columns = max(PICTURES if filmed else 1, len(shown))
    heights += [SIDE] * bool(shown)
    wide = max(SIDE * columns, 0 if filmed or not walked else PATHS[0])
    figure = Figure(figsize=(wide, sum(heights)), layout="constrained")
    grid = figure.add_gridspec(len(heights), columns, height_ratios=heights)
    for i, episode in enumerate(seen if filmed else ()):
        for j, t in enumerate(np.linspace(0, len(episode.frames) - 1, PICTURES).round().astype(int)):
            ax = figure.add_subplot(grid[i, j])
            ax.set_axis_off()
            ax.imshow(episode.frames[t])
            ax.set_title(f"{episode.problem.id}, step {t}", fontsize="x-small")
    if walked and not filmed:
        _draw_paths(figure.add_subplot(grid[0, : max(1, round(columns * PATHS[0] / wide))]), seen)
    if chain is not None:
        scene = seen[0].scene
        aim = None if scene is None or scene.aim is None else scene.aim(np.asarray(seen[0].observations[0]))
        left = figure.add_subplot(grid[-1, 0])
        others = [figure.add_subplot(grid[-1, j], sharey=left) for j in range(1, len(shown))]
        _draw_chain([left, *others], chain, shown, aim)
    return figure


def _draw_paths(ax: Any, seen: Sequence[Watched]) -> None:
    """Draw each episode over the first two numbers of its observations (over time if they have one), or over the places
    of its scene, between walls (grey), goals (green) and hazards (red), from a ring to a dot. Of long episodes over
    time, only the start of one."""
    scene = seen[0].scene
    place = flatten if scene is None or scene.place is None else scene.place
    if scene is not None:
        boxes = (
            (scene.whole, "white"),
            *((b, "0.6") for b in scene.walls),
            *((b, "#c8e6c9") for b in scene.goals),
        )
        for (x, y, wide, high), colour in boxes:
            ax.add_patch(_box(x, y, colour, wide, high))
        for x, y, radius in scene.hazards:
            ax.add_patch(_circle(x, y, radius))
    paths = [
        np.stack([np.asarray(place(x), np.float64) for x in episode.observations])
        for episode in seen
    ]
    names = ("observation 1", "observation 2") if scene is None else scene.names
    title = f"{len(seen)} episodes, from ring to dot"
    if paths[0].shape[1] == 1:
        names = "step", "observation"
        if (longest := max(map(len, paths)) - 1) > LONG:
            paths = [paths[0][: LONG + 1]]
            title = f"an episode's first {LONG} of {longest} steps"
        paths = [np.column_stack([np.arange(len(path)), path]) for path in paths]
    for path in paths:
        ax.plot(*path[:, :2].T, linewidth=0.8)
        colour = ax.lines[-1].get_color()
        ax.plot(*path[0, :2], "o", markersize=4, color=colour, fillstyle="none")
        ax.plot(*path[-1, :2], "o", markersize=3, color=colour)
    ax.set_title(title, fontsize="small")
    ax.set(xlabel=names[0], ylabel=names[1])
    ax.locator_params(nbins=6, integer=all((path % 1 == 0).all() for path in paths))


def _draw_chain(axes: Sequence[Any], chain: Array, shown: Sequence[int], aim: Array | None) -> None:
    """Draw the first two dimensions of the points before each step `shown`, a panel each, with a cross at the best
    decision; a single dimension as a histogram."""
    points = chain[..., :2]
    low, high = points.min((0, 1)), points.max((0, 1))
    for k, ax in zip(shown, axes, strict=True):
        if points.shape[-1] == 1:
            ax.hist(points[:, k, 0], bins=24, range=(low[0], high[0]))
            ax.set(xlim=(low[0], high[0]), xlabel="action")
        else:
            ax.scatter(*points[:, k].T, s=4)
            ax.set(xlim=(low[0], high[0]), ylim=(low[1], high[1]), xlabel="action 1")
            if aim is not None:
                ax.plot(*aim[:2], "x", color="tab:red")
        ax.set_title("decision" if k == points.shape[1] - 1 else f"before step {k + 1}", fontsize="x-small")
    axes[0].set_ylabel("samples" if points.shape[-1] == 1 else "action 2")
