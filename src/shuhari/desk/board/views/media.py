"""What the policy of a checkpoint does, played or drawn on request; that takes seconds, so the last results are
cached."""

from __future__ import annotations

import base64
import io
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from shuhari.data import Array
from shuhari.desk.board.catalogue import Catalogue, read_stamp
from shuhari.desk.board.views.picture import Picture
from shuhari.desk.serving.refusals import Refused
from shuhari.store import Run

POINTS = 2000  # of a curve
STATES = 1000  # of a policy that is shown as a table
KEPT = 64 << 20  # bytes of cached pictures
FRAMES, SIDE = 400, 640  # pictures of an episode, at most; pixels of one

Step = Annotated[int, Field(ge=0)] | None
Episode = Annotated[int, Field(ge=0)]

_kept: OrderedDict[tuple[Any, ...], tuple[int, Any]] = OrderedDict()  # what was made -> (bytes, it)
_making = threading.Lock()  # one checkpoint at a time: each takes memory and all cores
_room = threading.Semaphore(2)  # one in progress, and one that waits for it


def list_checkpoints(runs: Catalogue, run: str) -> dict[str, Any]:
    """Return {run, checkpoints}: the steps with stored weights, and their held-out scores."""
    return {"run": run, "checkpoints": Run(runs.find(run)).checkpoints()}


def list_drawable(runs: Catalogue, run: str) -> dict[str, Any]:
    """Return {kinds, why}: which of `played`, `samples` and `policy` are available for a run's policy, judged by its
    recipe without loading weights; why there are none, or ""."""
    from gymnasium.spaces import Discrete

    from shuhari.config.build import build_stages
    from shuhari.kernel.abilities import find_missing
    from shuhari.loop.opening import read_recipe

    path = runs.find(run)

    def make() -> dict[str, Any]:
        stages = build_stages(read_recipe(path).stages)
        models = [stage.models["policy"].model for stage in stages if "policy" in stage.models]
        policy = next((model for model in models if model is not None), None)
        spaces = stages[-1].task.spaces()
        if spaces is None:
            if policy is not None and not find_missing(policy, "fill"):
                return {"kinds": ["samples"], "why": ""}
            return {"kinds": [], "why": "Its policy writes text token by token: the groups that the run kept show it."}
        kinds, few = ["played", "samples"], all(isinstance(space, Discrete) for space in spaces)
        if few and int(spaces[0].n) <= STATES and policy is not None and not find_missing(policy, "decide"):
            kinds.append("policy")
        return {"kinds": kinds, "why": ""}

    found: dict[str, Any] = _make(path, ("drawable",), make, lambda made: 1 << 10)
    return found


def draw_samples(runs: Catalogue, run: str, step: Step = None) -> Picture:
    """Return a picture of what a policy samples, as in `shuhari show --samples`. Nothing is written into the run."""
    from shuhari.desk.samples import save_samples

    path = runs.find(run)

    def make() -> Picture:
        with TemporaryDirectory(prefix="shuhari-board-") as folder:
            save_samples(path, to := Path(folder) / "samples.png", step=step)
            return Picture(to.read_bytes(), "image/png")

    found: Picture = _make(path, ("samples", step), make, lambda made: len(made.data))
    return found


def play_episode(runs: Catalogue, run: str, step: Step = None, episode: Episode = 0) -> dict[str, Any]:
    """Return a held-out episode of a controller as curves, and as pictures if its environment renders: {problem, step,
    status, rewards, track, frames: {at, images}}; images: base64 JPEG at the moments `at`."""
    from shuhari.desk.tokens import follow
    from shuhari.desk.video import film_or_play
    from shuhari.kernel.printable import make_printable

    path = runs.find(run)

    def make() -> dict[str, Any]:
        (seen,), _ = film_or_play(path, step, first=episode)
        told: dict[str, Any] = {"observation": seen.observations, "action": seen.actions}
        for name in sorted({
            name
            for paid in seen.rewards
            for name in paid
        }):
            told[f"reward {name}"] = [paid.get(name, 0.0) for paid in seen.rewards]
        return {"problem": make_printable(seen.problem.id, 200), "step": seen.step, "status": str(seen.status),
                "rewards": dict(seen.total), "track": follow(told, POINTS), "frames": _pack(seen.frames)}  # fmt: skip

    found: dict[str, Any] = _make(
        path, ("played", step, episode), make, lambda made: sum(map(len, made["frames"]["images"])) + (1 << 18)
    )
    return found


def _pack(frames: Sequence[Array]) -> dict[str, list[Any]]:
    """Return {at, images} of at most FRAMES pictures [H, W, 3] uint8, no side longer than SIDE."""
    from PIL import Image

    at, images = sorted({*np.linspace(0, len(frames) - 1, min(len(frames), FRAMES)).round().astype(int).tolist()}), []
    for i in at:
        image, data = Image.fromarray(frames[i]), io.BytesIO()
        image.reduce(max(1, -(-max(image.size) // SIDE))).save(data, "JPEG", quality=85)
        images.append(base64.b64encode(data.getvalue()).decode())
    return {"at": at, "images": images}


def describe_policy(runs: Catalogue, run: str, step: Step = None) -> dict[str, Any]:
    """Return {step, names, cells, chances}: probabilities of actions (by name) in every state, of a policy over at most
    `STATES`; `cells`: rows of letters of a gridworld whose cells are the states, otherwise None."""
    import torch

    from shuhari.loop.opening import open_checkpoint
    from shuhari.models.spaces import discrete, spaces_of
    from shuhari.needs import role_model
    from shuhari.ports.hooks import ability

    path = runs.find(run)

    def make() -> dict[str, Any]:
        with open_checkpoint(path, step) as opened:
            task = opened.ctx.task
            if task.spaces() is None:
                raise TypeError("its policy writes text, which is not a table")
            seen, does = spaces_of(task, "a table")
            states, actions = discrete(seen, "observation", "a table"), discrete(does, "action", "a table")
            decide = ability(role_model(opened.ctx.models, "policy"), "decide")
            if decide is None or int(states.n) > STATES:
                raise TypeError(f"{int(states.n)} states: expected a policy over at most {STATES}")
            with torch.no_grad():
                out = decide(torch.arange(int(states.n)) + int(states.start))
            sharp = torch.nn.functional.one_hot(out["action"].reshape(-1) - int(actions.start), int(actions.n))
            chances = torch.softmax(out["logits"], -1) if "logits" in out else sharp.float()
            cells = ability(task, "cells")
            names = ["up", "right", "down", "left"] if cells else [str(i) for i in range(int(actions.n))]
            return {"step": opened.ctx.step, "names": names, "cells": cells,
                    "chances": chances.double().round(decimals=4).tolist()}  # fmt: skip

    found: dict[str, Any] = _make(path, ("policy", step), make, lambda made: 1 << 18)
    return found


def _make(path: Path, what: tuple[Any, ...], make: Callable[[], Any], weigh: Callable[[Any], int]) -> Any:
    """Return something made of a run, from the cache or made now; errors of the library become Refused."""
    key = (str(path), read_stamp(path), *what)
    if not _room.acquire(blocking=False):
        raise Refused("others play or draw a checkpoint: one at a time, ask again soon", status=409, code="busy")
    try:
        with _making:
            if key not in _kept:
                try:
                    made = make()
                except (TypeError, ValueError, ImportError, RuntimeError) as error:
                    raise Refused(f"{path.name}: {error}"[:2000], status=422) from None
                _kept[key] = weigh(made), made
                while sum(size for size, _ in _kept.values()) > KEPT and len(_kept) > 1:
                    _kept.popitem(last=False)
            _kept.move_to_end(key)
            return _kept[key][1]
    finally:
        _room.release()
