"""An episode of a controller as an animation: the frames of its environment, otherwise plots of its numbers over time.

Written as GIF, with the library that matplotlib draws with. Axes: `T` decisions, `H` x `W` pixels.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from shuhari.data import Array, Payload
from shuhari.loop.watching import Watched, watch

FRAMES = 400  # of an animation, at most: longer episodes show every second moment, or every third, ...
SECONDS = 0.04  # of a frame
ENTRIES = 8  # numbers of an observation or an action that are drawn


def save_video(run: str | Path, to: str | Path, *, step: int | None = None, episode: int = 0) -> str:
    """Write a held-out episode of a run as an animation to `to`, a `.gif` file. Returns "" if the environment rendered
    it, otherwise why not; then its observations, actions and reward are drawn. Raises ValueError for another suffix,
    and the errors of `watch`."""
    path = Path(to)
    if path.suffix.lower() != ".gif":
        raise ValueError(f"{path}: expected a name that ends in .gif")
    (seen,), why = film_or_play(Path(run), step, first=episode)
    write_gif(seen.frames or draw_numbers(seen), path)
    return "" if seen.frames else why


def film(run: Path, step: int | None, n: int = 1, *, first: int = 0) -> list[Watched]:
    """Return `watch` with frames. Without a screen, SDL, which Gymnasium draws with, gets a dummy driver, so that it
    does not look for one. Warnings of Gymnasium about environments that cannot render are suppressed: the error or the
    frames show it."""
    if not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")) and sys.platform != "darwin":
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*render_mode")
        return watch(run, step, n, first=first, film=True)


def film_or_play(run: Path, step: int | None, n: int = 1, *, first: int = 0) -> tuple[list[Watched], str]:
    """Return episodes with frames if possible, otherwise without, and why."""
    why = "its environment draws nothing (render_mode rgb_array)"
    try:
        seen = film(run, step, n, first=first)
        if all(len(e.frames) == len(e.observations) for e in seen):
            return seen, ""
    except (ImportError, RuntimeError, ValueError) as error:  # no screen, no library, no such mode
        why = str(error)
        seen = watch(run, step, n, first=first)
    return [replace(e, frames=()) for e in seen], why


def write_gif(frames: Sequence[Array], path: Path) -> None:
    """Write frames [H, W, 3] uint8 as an endless animation, no more than FRAMES of them, and create the folder."""
    from PIL import Image

    every = -(-len(frames) // FRAMES)
    shown = [*frames[::every], *([frames[-1]] if (len(frames) - 1) % every else [])]
    images = [Image.fromarray(frame).quantize(64) for frame in shown]
    durations = [int(1000 * SECONDS)] * (len(images) - 1) + [1000]  # the last frame stays for a second
    path.parent.mkdir(parents=True, exist_ok=True)
    images[0].save(path, format="GIF", save_all=True, append_images=images[1:], duration=durations, loop=0)


def draw_numbers(seen: Watched) -> list[Array]:
    """Return frames for an episode without any: its observation, action and rewards over time, revealed step by
    step."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    panels = {
        "observation": _stack(seen.observations),
        "action": _stack(seen.actions),
        "reward, summed": _sum_rewards(seen.rewards),
    }
    figure = Figure(figsize=(6.4, 5.6), dpi=80, layout="constrained")
    canvas = FigureCanvasAgg(figure)
    axes: list[Any] = list(np.atleast_1d(figure.subplots(len(panels), 1, sharex=True)))
    for ax, (name, values) in zip(axes, panels.items(), strict=True):
        ax.plot(values, drawstyle="steps-post" if name == "action" else "default")
        ax.set_title(name, fontsize="small")
        ax.grid(alpha=0.25)
        ax.set_xlim(0, max(1, len(seen.actions)))
    axes[-1].set_xlabel("step")
    canvas.draw()
    whole = np.asarray(canvas.buffer_rgba())[..., :3].copy()
    boxes = [ax.get_window_extent().extents.round().astype(int) for ax in axes]  # left, bottom, right, top
    return [_cover(whole, boxes, i / max(1, len(seen.actions))) for i in _pick_moments(len(seen.observations))]


def _cover(whole: Array, boxes: Sequence[Array], share: float) -> Array:
    """Return the picture with everything beyond a share of each panel's width in white."""
    out = whole.copy()
    for left, bottom, right, top in boxes:
        out[len(out) - top + 1 : len(out) - bottom, left + 1 + int(share * (right - left)) : right] = 255
    return out


def _pick_moments(n: int) -> list[int]:
    """Return at most FRAMES / 4 of n moments: adjacent frames of numbers hardly differ."""
    return sorted(set(np.linspace(0, n - 1, min(n, FRAMES // 4)).round().astype(int).tolist()))


def _stack(values: Sequence[Payload]) -> Array:
    """Return [T, entries] the first entries of observations or actions, as numbers."""
    return np.stack([flatten(value)[:ENTRIES] for value in values]) if values else np.zeros((0, 1))


def flatten(value: Payload) -> Array:
    """Return the numbers of an observation or an action in one row; of a mapping key by key."""
    if isinstance(value, Mapping):
        return np.concatenate([flatten(x) for x in value.values()])
    return np.asarray(value, np.float64).reshape(-1)


def _sum_rewards(rewards: Sequence[Mapping[str, float]]) -> Array:
    """Return [T + 1] the cumulative reward, by the first name of each step."""
    paid = [next(iter(r.values()), 0.0) for r in rewards]
    return np.concatenate([np.zeros(1), np.cumsum(paid)])
